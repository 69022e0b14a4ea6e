//! `torchspy dump` on a machine whose CPUs are all taken: what is asked to stop stands late, and is
//! read then.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test"
)]

mod faults;
mod installed;
mod python_target;

use faults::{TORCHSPY, Target, any_python, program, python, wait_until};
use serde_json::Value;
use std::process::Command;

/// Whether a look shows the thread's Python frames.
fn shows(pid: i32, function: &str) -> bool {
    let output = Command::new(TORCHSPY)
        .args(["dump", "--json", "--pid", &pid.to_string()])
        .output()
        .unwrap();
    let look: Value = serde_json::from_slice(&output.stdout).unwrap();
    let threads = look["looks"][0]["processes"][0]["threads"].as_array();
    let mut frames = threads
        .unwrap()
        .iter()
        .flat_map(|thread| thread["frames"].as_array().unwrap());
    frames.any(|frame| frame["python"] == true && frame["function"] == function)
}

/// Of 3.10 it is known whose each thread state is when the stacks were read once. The second read,
/// which comes late, is the one that counts.
#[test]
fn a_thread_that_stands_late_has_its_python_frames() {
    let (Some(python), Some(spinner)) = (python("3.10"), any_python()) else {
        return;
    };
    let target = Target::start(&[&python, &program("hangs.py"), "gil"]);
    wait_until("it holds the GIL", || shows(target.pid(), "hold"));
    let code = "import signal\nsignal.alarm(300)\nprint('ready', flush=True)\nwhile True: pass\n";
    let cpus = std::thread::available_parallelism().unwrap().get();
    let spinners: Vec<Target> = (0..5 * cpus.min(8))
        .map(|_| Target::start(&[&spinner, "-c", code]))
        .collect();
    for look in 0..25 {
        assert!(shows(target.pid(), "hold"), "look {look}");
    }
    drop(spinners);
}
