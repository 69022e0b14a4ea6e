//! Some 155 stack situations on every interpreter that is installed: Python frames as Python itself sees them, and each merged
//! into its place in the native stack.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

mod installed;
mod python_target;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use python_target::{Python, Target};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

/// What a case says of itself: its thread, and its frames, leaf first: name, file, line.
#[derive(Deserialize)]
struct Case {
    tid: u64,
    frames: Vec<(String, String, u64)>,
}

/// Cases that cannot be exact, and why: version, case, reason. None is known.
const EXCEPTIONS: [(&str, &str, &str); 0] = [];
/// Futex, as /proc/PID/syscall has it: what a thread sleeps in that waits for a lock.
const FUTEX: &str = "202 ";

fn dump(pid: i32) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_torchspy"))
        .args(["dump", "--json", "--pid", &pid.to_string()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let threads = &value["looks"][0]["processes"][0]["threads"];
    threads.as_array().unwrap().clone()
}

fn start(version: &str, arguments: &[&str]) -> Option<(Target, BTreeMap<String, Case>)> {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/stack_cases.py");
    let mut target = Python::find(version)?.start(program.as_ref(), arguments);
    let lines = target.ready();
    let cases: BTreeMap<String, Case> = serde_json::from_str(&lines[0]).unwrap();
    for case in cases.values() {
        target.wait_in_call(case.tid, &[FUTEX]);
    }
    Some((target, cases))
}

/// What is wrong with a thread, if anything is.
fn fault(case: &Case, thread: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let all = thread["frames"].as_array().unwrap();
    let python = all.iter().filter(|frame| frame["python"] == true);
    let found: Vec<_> = python
        .map(|frame| {
            let line = frame["line"].as_u64().unwrap_or(0);
            (text(&frame["function"]), text(&frame["file"]), line)
        })
        .collect();
    if found != case.frames {
        return Some(format!("frames {found:#?}, not {:#?}", case.frames));
    }
    if !thread["partial"].is_null() {
        return Some(text(&thread["partial"]));
    }
    let guess = all.iter().find(|frame| frame["guess"] == true);
    guess.map(|frame| format!("a guess: {frame:#}"))
}

fn check(version: &str, arguments: &[&str], least: usize) {
    let Some((target, cases)) = start(version, arguments) else {
        return;
    };
    assert!(cases.len() >= least, "{} cases", cases.len());
    let threads = dump(target.pid());
    let mut faults = Vec::new();
    for (name, case) in &cases {
        let thread = threads.iter().find(|thread| thread["tid"] == case.tid);
        let fault = thread.map_or(Some("no such thread".to_owned()), |thread| {
            fault(case, thread)
        });
        let is_known = EXCEPTIONS
            .iter()
            .any(|&(of, known, _)| of == version && known == name);
        match fault {
            Some(fault) if !is_known => faults.push(format!("{name}: {fault}")),
            None if is_known => faults.push(format!("{name}: exact, and yet an exception")),
            _ => {}
        }
    }
    assert!(faults.is_empty(), "Python {version}\n{}", faults.join("\n"));
}

fn check_all(version: &str) {
    check(version, &[], 150);
    check(version, &["second"], 2);
}

#[test]
fn every_case_is_exact_on_3_10() {
    check_all("3.10");
}

#[test]
fn every_case_is_exact_on_3_11() {
    check_all("3.11");
}

#[test]
fn every_case_is_exact_on_3_12() {
    check_all("3.12");
}

#[test]
fn every_case_is_exact_on_3_13() {
    check_all("3.13");
}

#[test]
fn every_case_is_exact_on_3_14() {
    check_all("3.14");
}

#[test]
fn every_case_is_exact_on_3_15() {
    check_all("3.15");
}

/// A loop through functions that C code calls back: at most of its instructions the frame pointer tells who called.
const COMPUTES: &str = "
import functools
print('ready', flush=True)
words = [str(i) for i in range(2000)]
while True:
    sorted(words, key=lambda word: functools.reduce(lambda a, b: a + ord(b), word, 0))
";
/// SIGSTOPs at moments of no choice.
const MOMENTS: usize = 40;

#[test]
fn a_stopped_process_is_read_with_its_registers_and_stays_stopped() {
    let Some(python) = Python::find("3.11") else {
        return;
    };
    let mut target = python.start_source(COMPUTES, &[]);
    target.ready();
    let pid = Pid::from_raw(target.pid());
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let (_, after) = stat.rsplit_once(") ").unwrap();
        after.as_bytes()[0]
    };
    let mut outside_calls = 0;
    for _ in 0..MOMENTS {
        kill(pid, Signal::SIGSTOP).unwrap();
        while state() != b'T' {
            std::thread::yield_now();
        }
        let place = || std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap();
        let before = place();
        let threads = dump(target.pid());
        let main = &threads[0];
        if before.starts_with("-1 ") {
            outside_calls += 1;
            assert_eq!(main["capture"], "stopped", "{main:#}");
        }
        assert_eq!(main["state"], "stopped", "{main:#}");
        assert!(main["partial"].is_null(), "{main:#}");
        let guesses = main["frames"].as_array().unwrap();
        assert!(
            guesses.iter().all(|frame| frame["guess"] == false),
            "{main:#}"
        );
        // The kernel lets it go from our stop into that of SIGSTOP, where it was.
        while state() != b'T' {
            assert_ne!(state(), b'R', "it runs");
        }
        assert_eq!(place(), before, "it did not run meanwhile");
        kill(pid, Signal::SIGCONT).unwrap();
        while state() == b'T' {
            std::thread::yield_now();
        }
    }
    assert!(outside_calls > 0, "it was always in a system call");
}
