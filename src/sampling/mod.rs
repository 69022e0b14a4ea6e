//! The sampler: when to look, whom to stop, what to copy, and what to make of it.
//!
//! ```text
//! keeper ──processes──▶ tracer ──copies──▶ worker ──segments──▶ writer
//! ```
//!
//! [`session`] is the way in. The tracer does nothing but ask, stop, copy and resume; all else happens after the target
//! runs on, on other threads, behind bounded queues.

mod budget;
mod calls;
mod capture;
mod code_copies;
mod control;
mod execs;
mod fallback;
mod image;
pub mod inspect;
mod keeper;
mod live_environment;
pub mod look;
mod maps_reader;
mod merge;
mod old_threads;
mod outbox;
mod raw;
mod schedule;
pub mod session;
mod stops;
mod symbol_loader;
mod thread_match;
mod tracer;
mod watched;
mod worker;
