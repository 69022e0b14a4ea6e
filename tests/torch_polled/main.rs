//! Recordings of real torch whose figures come of polls while it trains: one that comes late misses
//! a step or a module's path.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

use faults::{STEADY, missed_s};
use std::process::{Command, Stdio};

mod modules;
mod progress;

#[path = "../faults/mod.rs"]
mod faults;
#[path = "../installed/mod.rs"]
mod installed;
#[path = "../native_live/mod.rs"]
mod native_live;

fn torchspy() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_torchspy"));
    command.stdin(Stdio::null());
    command
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}
