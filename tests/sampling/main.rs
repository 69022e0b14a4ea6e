//! `record`, `dump` and `top` on live processes of many kinds.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

mod dump;
mod dump_peers;
mod greenlets;
mod notebooks;
mod old_python;
mod other_stacks;
mod places;
mod python;
mod top;

#[path = "../faults/mod.rs"]
mod faults;
#[path = "../installed/mod.rs"]
mod installed;
#[path = "../native_live/mod.rs"]
mod native_live;
#[path = "../python_target/mod.rs"]
mod python_target;
#[path = "../runtimes/mod.rs"]
mod runtimes;
#[path = "../stack_peers/mod.rs"]
mod stack_peers;
#[path = "../terminal/mod.rs"]
mod terminal;
