//! Jobs of real torch: many ranks, their launchers, the agent, the ring, `watch` and `scaling`.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

use faults::STEADY;
use std::process::{Command, Stdio};

mod agent;
mod agent_push;
mod job;
mod launchers;
mod ring;
mod scaling;
mod watch;

#[path = "../faults/mod.rs"]
mod faults;
#[path = "../installed/mod.rs"]
mod installed;

fn torchspy() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_torchspy"));
    command.stdin(Stdio::null());
    command
}
