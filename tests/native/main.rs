//! Native stacks, of live processes and of bytes made here.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

mod gdb;
mod hostile;
mod modules;
mod steps;
mod symbols;

#[path = "../installed/mod.rs"]
mod installed;
#[path = "../native_live/mod.rs"]
mod native_live;
