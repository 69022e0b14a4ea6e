//! Waits of real interpreters: each kind is found at its line, for as long as the program says, and
//! the GIL's holder is named.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test"
)]

mod faults;
mod installed;

use faults::{TORCHSPY, missed_s, program, python};
use serde_json::Value;
use std::process::{Command, Stdio};

/// What is planted: mark, kind, part of the words, the least share of its time that must be found.
const PLANTED: &[(&str, &str, &str, f64)] = &[
    ("sleep", "sleep", "time.sleep()", 0.8),
    ("lock", "lock", "a lock", 0.8),
    ("queue", "lock", "queue.", 0.8),
    // The thread also runs between two waits.
    ("gil", "gil", "GIL", 0.6),
    ("pipe", "io", "read", 0.8),
    ("socket", "socket", "recv", 0.8),
    ("child", "child", "subprocess.", 0.8),
    ("loop", "events", "epoll_wait", 0.8),
];

/// With so much time without a sample, s, what was found of 0.8 s each says little.
const MISSED: f64 = 0.4;

/// The line of a program that carries a mark.
fn marked(text: &str, mark: &str) -> u64 {
    let wanted = format!("# mark: {mark}");
    let line = text.lines().position(|line| line.ends_with(&wanted));
    line.unwrap() as u64 + 1
}

fn check(version: &str) {
    let Some(python) = python(version) else {
        return;
    };
    let script = program("waits.py");
    let text = std::fs::read_to_string(&script).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let done = Command::new(TORCHSPY)
        .current_dir(folder.path())
        .args(["record", "-o", "run.tspy", "--", &python, &script, "2"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    let truth: Value = serde_json::from_slice(&done.stdout).unwrap();
    let report = Command::new(TORCHSPY)
        .current_dir(folder.path())
        .args(["report", "--json", "run.tspy"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let rows = report["waits"].as_array().unwrap();
    let missed = missed_s(&report);
    if missed > MISSED {
        println!("skipped: the machine is too busy: {missed:.2} s passed without a sample");
        return;
    }
    for &(mark, kind, words, least) in PLANTED {
        let line = marked(&text, mark);
        let own: Vec<&Value> = rows
            .iter()
            .filter(|row| row["kind"] == kind && row["at"]["line"] == line)
            .collect();
        let found: f64 = own.iter().map(|row| row["seconds"].as_f64().unwrap()).sum();
        let truth = truth[mark].as_f64().unwrap();
        let slack = missed + without_cpu(rows, line);
        let shown = format!("{version} {mark}: {found:.2} of {truth:.2} s, ±{slack:.2} s\n{said}");
        assert!(!own.is_empty(), "{shown}");
        assert!(found + slack > least * truth, "{shown}");
        assert!(found - missed < 1.2 * truth, "{shown}");
        let what = own[0]["what"].as_str().unwrap();
        assert!(what.contains(words), "{version} {mark}: {what}");
        let share = own[0]["share"].as_f64().unwrap();
        let interval = &own[0]["interval"];
        assert!(interval["low"].as_f64().unwrap() <= share);
        assert!(interval["high"].as_f64().unwrap() >= share);
    }
    check_holder(rows, marked(&text, "gil"), marked(&text, "spin"));
    let disk = truth["disk"].as_f64().unwrap();
    check_disk(rows, marked(&text, "disk"), disk, missed);
    let full = Command::new(TORCHSPY)
        .current_dir(folder.path())
        .args(["report", "--full", "run.tspy"])
        .output()
        .unwrap();
    let full = String::from_utf8_lossy(&full.stdout);
    assert!(full.contains("WAITS of the training thread"), "{full}");
}

/// Who held the GIL most is a thread that spins, and its line says so. On a loaded machine not
/// every capture of a spinning thread is made: then the thread is known, and its line is not.
fn check_holder(rows: &[Value], waiting: u64, spinning: u64) {
    let row = rows
        .iter()
        .find(|row| row["kind"] == "gil" && row["at"]["line"] == waiting)
        .unwrap();
    let holders = row["holders"].as_array().unwrap();
    let seconds = |holder: &Value| holder["seconds"].as_f64().unwrap();
    let of_row = row["seconds"].as_f64().unwrap();
    let all: f64 = holders.iter().map(seconds).sum();
    assert!(all > 0.05 * of_row && all < 1.01 * of_row, "{row}");
    let spins = |holder: &&Value| holder["at"]["function"] == "spin";
    let spin: f64 = holders.iter().filter(spins).map(seconds).sum();
    let without_line = |holder: &&Value| holder["at"].is_null();
    let without_line: f64 = holders.iter().filter(without_line).map(seconds).sum();
    assert!(
        spin > 0.5 * (all - without_line) && spin > 0.02 * of_row,
        "{row}"
    );
    let line = holders.iter().find(spins).unwrap()["at"]["line"].as_u64();
    assert!(
        line.is_some_and(|line| (spinning - 1..=spinning).contains(&line)),
        "{row}"
    );
}

/// How long the thread waited for a CPU at a line. Until it has one its wait is not over for it.
fn without_cpu(rows: &[Value], line: u64) -> f64 {
    rows.iter()
        .filter(|row| row["kind"] == "cpu" && row["at"]["line"] == line)
        .map(|row| row["seconds"].as_f64().unwrap())
        .sum()
}

fn check_disk(rows: &[Value], line: u64, truth: f64, missed: f64) {
    // Fewer than 30 samples of 10 ms say little.
    if truth < 0.3 {
        println!("skipped: fsync took {truth:.3} s in all, too little to sample");
        return;
    }
    let found: f64 = rows
        .iter()
        .filter(|row| row["kind"] == "disk" && row["at"]["line"] == line)
        .map(|row| row["seconds"].as_f64().unwrap())
        .sum();
    let slack = missed + without_cpu(rows, line);
    assert!(found + slack > 0.6 * truth, "{found} of {truth}: {rows:?}");
}

#[test]
fn waits_are_named_on_python_3_10() {
    check("3.10");
}

#[test]
fn waits_are_named_on_python_3_11() {
    check("3.11");
}

#[test]
fn waits_are_named_on_python_3_12() {
    check("3.12");
}

#[test]
fn waits_are_named_on_python_3_13() {
    check("3.13");
}
