//! Recordings of real torch whose figures come of polls while it trains: one that comes late misses
//! a step or a module's path.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

mod modules;
mod progress;

#[path = "../installed/mod.rs"]
mod installed;
#[path = "../native_live/mod.rs"]
mod native_live;
