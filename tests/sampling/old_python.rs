//! Pythons older than 3.10, which py-spy's walker reads: every thread's functions, files and lines,
//! as py-spy itself names them.
// Tests may: clippy's exemption does not reach helper functions of integration tests.

use crate::faults::wait_until;
use crate::on_each_engine;
use crate::python_target::{Python, Target};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// For what takes no longer than seconds on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// `select`, `pselect6` and `clock_nanosleep`, as in /proc/PID/task/TID/syscall: time.sleep.
const SLEEPING: [&str; 3] = ["23 ", "270 ", "230 "];
/// All stacks, of sleepers too, before the recording's name.
const TO_FOLDED: [&str; 6] = ["convert", "--format", "folded", "--idle", "-o", "-"];
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/old_python.py");

/// Lines of the program that are marked with `# line: MARK`.
fn marked(mark: &str) -> Vec<usize> {
    let text = std::fs::read_to_string(PROGRAM).unwrap();
    let mark = format!("# line: {mark}");
    let lines: Vec<usize> = text
        .lines()
        .enumerate()
        .filter(|(_, line)| line.ends_with(&mark))
        .map(|(index, _)| index + 1)
        .collect();
    assert!(!lines.is_empty(), "{mark}");
    lines
}

fn start(python: &str) -> Option<Target> {
    let mut target = Python::find(python)?.start(Path::new(PROGRAM), &[]);
    target.ready();
    // It says so before it waits for its next line, and the thread that sleeps before it does.
    target.wait_in_call(target.pid() as u64, &["0 "]);
    wait_until("a thread sleeps", || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", target.pid())).unwrap();
        let mut calls = tasks
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("syscall")).ok());
        calls.any(|call| SLEEPING.iter().any(|number| call.starts_with(number)))
    });
    Some(target)
}

/// Records for as long as it takes until most stacks are the walker's: on a busy machine it takes
/// seconds to find the interpreter.
fn record(target: &Target, engine: &str, options: &[&str], folder: &Path) -> PathBuf {
    let recording = folder.join("run.tspy");
    let recorder = Command::new(env!("CARGO_BIN_EXE_torchspy"))
        .args(["record", "--pid", &target.pid().to_string()])
        .args(["--engine", engine])
        .args(options)
        .arg("-o")
        .arg(&recording)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !has_python(&recording) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    kill(Pid::from_raw(recorder.id() as i32), Signal::SIGINT).unwrap();
    let output = recorder.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(has_python(&recording), "{said}");
    recording
}

/// Whether one thread computes for longer than all together had stacks without Python. The
/// recording may have just begun.
fn has_python(recording: &Path) -> bool {
    let folded = try_torchspy(&TO_FOLDED, recording).unwrap_or_default();
    let (mut computes, mut not_python) = (0, 0);
    for line in folded.lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let count: u64 = count.parse().unwrap();
        if stack.contains(";compute (") {
            computes += count;
        } else if !stack.contains(".py:") {
            not_python += count;
        }
    }
    computes > not_python
}

/// What it prints, or else why it does not.
fn try_torchspy(arguments: &[&str], recording: &Path) -> Result<String, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_torchspy"))
        .args(arguments)
        .arg(recording)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    match output.status.success() {
        true => Ok(text(output.stdout)),
        false => Err(text(output.stderr)),
    }
}

fn torchspy(arguments: &[&str], recording: &Path) -> String {
    try_torchspy(arguments, recording).unwrap()
}

/// All stacks with Python frames, `function (file:line)` from the root on, without the thread.
fn python_stacks(recording: &Path) -> BTreeSet<Vec<String>> {
    let folded = torchspy(&TO_FOLDED, recording);
    let stacks = folded.lines().map(|line| {
        let (stack, _) = line.rsplit_once(' ').unwrap();
        let frames = stack.split(';').skip(1);
        // Time in the run queue is drawn as a frame of its own.
        let frames = frames.filter(|frame| !frame.starts_with('['));
        frames.map(str::to_owned).collect::<Vec<_>>()
    });
    let is_python = |stack: &Vec<String>| stack.iter().any(|frame| frame.contains(".py:"));
    stacks.filter(is_python).collect()
}

fn ends_with(stack: &[String], function: &str, line: usize) -> bool {
    let wanted = format!("{function} (");
    let at = format!("target.py:{line})");
    stack
        .last()
        .is_some_and(|frame| frame.starts_with(&wanted) && frame.ends_with(&at))
}

fn check_stacks(python: &str, engine: &str) {
    let Some(target) = start(python) else { return };
    let folder = tempfile::tempdir().unwrap();
    let recording = record(&target, engine, &[], folder.path());
    let stacks = python_stacks(&recording);
    let asleep = stacks
        .iter()
        .find(|stack| ends_with(stack, "sleep_long", marked("asleep")[0]));
    let asleep = asleep.unwrap_or_else(|| panic!("{stacks:?}"));
    assert!(
        ends_with(
            &asleep[..asleep.len() - 1],
            "outer_sleep",
            marked("outer asleep")[0]
        ),
        "{asleep:?}"
    );
    let main = marked("main")[0];
    assert!(
        stacks
            .iter()
            .any(|stack| ends_with(stack, "wait_for_line", main) && stack.len() == 3),
        "{stacks:?}"
    );
    let busy = marked("busy");
    let computing =
        |stack: &Vec<String>| busy.iter().any(|&line| ends_with(stack, "compute", line));
    assert!(stacks.iter().any(computing), "{stacks:?}");

    let report = torchspy(&["report", "--full"], &recording);
    assert!(
        report.contains("older than 3.10: Python frames only"),
        "{report}"
    );
    let version = format!("Python {python}.");
    assert!(report.contains(&version), "{report}");
    // Three threads, about as many samples of each as ticks: idle ones are no exception.
    let json: serde_json::Value =
        serde_json::from_str(&torchspy(&["report", "--json"], &recording)).unwrap();
    let wall: Vec<f64> = json["threads"]
        .as_array()
        .unwrap()
        .iter()
        .map(|thread| thread["wall_s"].as_f64().unwrap())
        .collect();
    assert_eq!(wall.len(), 3, "{json}");
    let longest = wall.iter().copied().fold(0.0, f64::max);
    assert!(wall.iter().all(|&one| one > 0.9 * longest), "{wall:?}");
    // Nothing is stopped once the walker has found the interpreter.
    let quality = |name: &str| json["quality"][name].as_u64().unwrap();
    assert!(2 * quality("stops") < quality("ticks"), "{json}");
    assert!(engine != "perf" || quality("stops") == 0, "{json}");
}

/// A single look shows them, too, and the walker does not go at a rate of its own.
fn check_dump(python: &str) {
    let Some(target) = start(python) else { return };
    let output = Command::new(env!("CARGO_BIN_EXE_torchspy"))
        .args(["dump", "--json", "--pid", &target.pid().to_string()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let dump: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let threads = &dump["looks"][0]["processes"][0]["threads"];
    for (function, mark) in [("sleep_long", "asleep"), ("wait_for_line", "main")] {
        let line = marked(mark)[0];
        let is_it = |frame: &serde_json::Value| {
            frame["function"] == function && frame["line"] == line && frame["python"] == true
        };
        let shown = threads.as_array().unwrap().iter();
        let mut frames = shown.flat_map(|thread| thread["frames"].as_array().unwrap());
        assert!(frames.any(is_it), "{function}: {dump:#}");
    }
}

/// py-spy as a program, of the peers' environment, sees the same stacks.
fn check_peer(python: &str, engine: &str) {
    let Some(peer) = crate::installed::peer("py-spy") else {
        return;
    };
    let Some(target) = start(python) else { return };
    let output = Command::new(peer)
        .args(["dump", "--json", "--full-filenames", "--pid"])
        .arg(target.pid().to_string())
        .output()
        .unwrap();
    let theirs: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ours: BTreeSet<Vec<String>> = python_stacks(&record(&target, engine, &[], folder.path()));
    let mut compared = 0;
    for thread in theirs.as_array().unwrap() {
        let frames = thread["frames"].as_array().unwrap().iter().rev();
        let stack: Vec<(String, String)> = frames
            .map(|frame| {
                let name = frame["name"].as_str().unwrap();
                let file = frame["filename"].as_str().unwrap();
                let file = file.rsplit('/').next().unwrap();
                (format!("{name} ("), format!("{file}:{})", frame["line"]))
            })
            .collect();
        let computes = stack.last().unwrap().0 == "compute (";
        let same = ours.iter().any(|ours| {
            ours.len() == stack.len()
                && ours.iter().zip(&stack).all(|(ours, (name, place))| {
                    ours.starts_with(name)
                        && (computes && name == "compute (" || ours.ends_with(place))
                })
        });
        assert!(same, "{stack:?} is not in {ours:?}");
        compared += 1;
    }
    assert_eq!(compared, 3);
}

/// Only the thread that holds the lock, which is the one that computes.
fn check_gil(python: &str, engine: &str) {
    let Some(target) = start(python) else { return };
    let folder = tempfile::tempdir().unwrap();
    let stacks = python_stacks(&record(&target, engine, &["--gil"], folder.path()));
    assert!(!stacks.is_empty());
    for stack in &stacks {
        assert!(stack.last().unwrap().starts_with("compute ("), "{stacks:?}");
    }
}

macro_rules! on_each {
    ($check:ident: $($name:ident $version:literal),*) => {$(
        #[test]
        fn $name() {
            $check($version);
        }
    )*};
}

on_each_engine!(check_stacks: stacks_2_7 "2.7", stacks_3_6 "3.6", stacks_3_7 "3.7", stacks_3_8 "3.8", stacks_3_9 "3.9");
on_each!(check_dump: dump_2_7 "2.7", dump_3_6 "3.6", dump_3_7 "3.7", dump_3_8 "3.8", dump_3_9 "3.9");
on_each_engine!(check_peer: peer_2_7 "2.7", peer_3_6 "3.6", peer_3_7 "3.7", peer_3_8 "3.8", peer_3_9 "3.9");
on_each_engine!(check_gil: gil_2_7 "2.7", gil_3_9 "3.9");
