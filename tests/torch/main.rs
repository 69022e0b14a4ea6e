//! Recordings of real torch. What they find is counts and shares, whatever else the machine does.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

use faults::{How, Recorded, Recorder, STEADY, marked, missed_s};
use std::process::{Command, Stdio};

mod backward;
mod compile;
mod diff;
mod dump;
mod held;
mod memory;
mod native;
mod operators;
mod py_spy_callers;
mod roles;
mod trace;
mod waits;

#[path = "../faults/mod.rs"]
mod faults;
#[path = "../installed/mod.rs"]
mod installed;
#[path = "../native_live/mod.rs"]
mod native_live;

/// The recording of a launched program, sampled steadily.
fn record(words: &[&str], engine: &str) -> Recorded {
    let options = [&STEADY[..], &["--engine", engine]].concat();
    let how = How {
        options: &options,
        ..How::default()
    };
    let command = Recorder::launch_command(words, how);
    Recorder::spawn(command, tempfile::tempdir().unwrap())
        .finish()
        .expect_success()
}

fn torchspy() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_torchspy"));
    command.stdin(Stdio::null());
    command
}
