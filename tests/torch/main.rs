//! Recordings of real torch. What they find is counts and shares, whatever else the machine does.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

use faults::{How, Recorded, Recorder, marked};
use serde_json::Value;
use std::process::{Command, Stdio};

mod agent;
mod agent_push;
mod backward;
mod compile;
mod diff;
mod dump;
mod job;
mod native;
mod operators;
mod roles;
mod scaling;
mod waits;
mod watch;

#[path = "../faults/mod.rs"]
mod faults;
#[path = "../installed/mod.rs"]
mod installed;
#[path = "../native_live/mod.rs"]
mod native_live;

/// Sampling that goes on on a busy machine: within the usual bound of 2 %, a stop of 0.1 s, in
/// which a thread waited for a CPU, leaves out those of the next 5 s.
const STEADY: [&str; 2] = ["--max-stopped", "off"];

/// The recording of a launched program, sampled steadily.
fn record(words: &[&str]) -> Recorded {
    let how = How {
        options: &STEADY,
        ..How::default()
    };
    let command = Recorder::launch_command(words, how);
    Recorder::spawn(command, tempfile::tempdir().unwrap())
        .finish()
        .expect_success()
}

/// Time for which late polls stood besides their own periods.
fn missed_s(report: &Value) -> f64 {
    let quality = |key: &str| report["quality"][key].as_f64().unwrap();
    quality("missed_ticks") / quality("asked_hz")
}

fn torchspy() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_torchspy"));
    command.stdin(Stdio::null());
    command
}
