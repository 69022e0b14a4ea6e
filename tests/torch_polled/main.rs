//! Recordings of real torch whose figures come of polls while it trains: one that comes late misses
//! a step or a module's path.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

use serde_json::Value;
use std::process::{Command, Stdio};

mod modules;
mod progress;

#[path = "../installed/mod.rs"]
mod installed;
#[path = "../native_live/mod.rs"]
mod native_live;

fn torchspy() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_torchspy"));
    command.stdin(Stdio::null());
    command
}

/// Sampling that goes on on a busy machine: within the usual bound of 2 %, a stop of 0.1 s, in
/// which a thread waited for a CPU, leaves out those of the next 5 s.
const STEADY: [&str; 2] = ["--max-stopped", "off"];

/// Time for which late polls stood besides their own periods.
fn missed_s(report: &Value) -> f64 {
    let quality = |key: &str| report["quality"][key].as_f64().unwrap();
    quality("missed_ticks") / quality("asked_hz")
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}
