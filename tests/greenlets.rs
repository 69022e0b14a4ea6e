//! Greenlets: a stack that another stack switched to.
#![allow(clippy::unwrap_used, reason = "a test")]

mod installed;
mod runtimes;

use serde_json::Value;
use std::process::Command;

/// A greenlet's frames are those of its Python functions. What lies below its first one is another
/// greenlet's stack, to which no call leads: whatever is found there is a guess, and each frame
/// says so.
#[test]
fn frames_below_a_greenlet_are_marked_as_guesses() {
    let Some(mut target) = runtimes::start("gevent_frames.py", &[]) else {
        return;
    };
    target.ready_with();
    let output = Command::new(env!("CARGO_BIN_EXE_torchspy"))
        .args(["dump", "--json", "--pid", &target.pid().to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let dump: Value = serde_json::from_slice(&output.stdout).unwrap();
    let threads = dump["looks"][0]["processes"][0]["threads"]
        .as_array()
        .unwrap();
    let main = threads.iter().find(|thread| thread["tid"] == target.pid());
    let frames = main.unwrap()["frames"].as_array().unwrap();
    let named = |frame: &Value, name: &str| frame["function"].as_str().unwrap().contains(name);
    let python = frames.iter().filter(|frame| frame["python"] == true);
    let python: Vec<&str> = python
        .filter_map(|frame| frame["function"].as_str())
        .collect();
    assert_eq!(
        python,
        ["compute", "descend", "descend", "descend", "descend"],
        "{dump:#}"
    );
    let entry = frames
        .iter()
        .position(|frame| named(frame, "g_initialstub"));
    let entry = entry.unwrap_or_else(|| panic!("{dump:#}"));
    let is_guess = |frame: &Value| frame["guess"].as_bool().unwrap();
    assert!(!frames[..entry].iter().any(is_guess), "{dump:#}");
    // The call of the switch itself is on the greenlet's own stack.
    let below = &frames[entry + 1..];
    let from = below.iter().position(is_guess).unwrap_or(below.len());
    assert!(
        below[..from].iter().all(|frame| named(frame, "g_switch")),
        "{dump:#}"
    );
    assert!(below[from..].iter().all(is_guess), "{dump:#}");
    assert!(from < below.len(), "no frame of the hub: {dump:#}");
}
