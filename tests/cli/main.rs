//! The command line: arguments, messages, signals, what `record` starts and ends.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

mod agent;
mod config;
mod dump_job;
mod job;
mod launch;
mod launchers;
mod mlflow;
mod objects;
mod py_spy;
mod ras;
mod record;
mod regions;
mod signals;
mod snapshot;
mod ssh;
mod usage;
mod view;
mod watch;

#[path = "../faults/mod.rs"]
mod faults;
#[path = "../installed/mod.rs"]
mod installed;
#[path = "../terminal/mod.rs"]
mod terminal;
