//! The sampler: when to poll, which threads to stop, what to copy, and how to process the copies.
//!
//! ```text
//! keeper ──processes──▶ tracer ──copies──▶ worker ──segments──▶ writer
//! ```
//!
//! [`session`] is the entry point. The tracer only polls, stops, copies and resumes; everything
//! else runs on other threads, behind bounded queues, after the target was resumed.

mod allocator_readings;
mod budget;
mod call_history;
mod capture;
mod code_copies;
mod control;
mod execs;
mod fallback;
mod footprint;
mod held_reader;
mod image;
pub mod inspect;
mod keeper;
mod kept;
mod kept_sleeps;
pub mod live_environment;
mod maps_reader;
mod merge;
mod old_threads;
mod outbox;
pub mod py_spy_view;
mod raw;
mod schedule;
pub mod session;
pub mod snapshot;
mod source_reader;
mod stops;
mod symbol_loader;
mod thread_match;
mod tracer;
mod watched;
mod worker;
