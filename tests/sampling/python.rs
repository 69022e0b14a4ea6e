//! Python frames that were missing without a word: just after attaching, of subinterpreters, of
//! deep stacks, of code that runs once.

use crate::faults::{
    How, Recorded, Recorder, STEADY, TORCHSPY, Target, any_python, partial, python, run, wait_until,
};
use crate::on_each_engine;
use serde_json::Value;
use std::process::Command;

on_each_engine!(
    code_that_runs_once_has_its_name,
    the_first_samples_after_attaching_have_python_frames_or_say_why,
    one_deep_recursion_is_one_stack_whatever_its_depth,
);

const VERSIONS: [&str; 4] = ["3.10", "3.11", "3.12", "3.13"];

/// Folded stacks and the seconds of each, of one recording.
fn folded(recorded: &Recorded) -> Vec<(String, f64)> {
    let path = recorded.path();
    let output = run(&[
        "convert",
        &path.to_string_lossy(),
        "--format",
        "folded",
        "-o",
        "-",
    ]);
    assert!(output.status.success(), "{}", output.stderr);
    let lines = output.stdout.lines().filter_map(|line| {
        let (stack, count) = line.rsplit_once(' ')?;
        Some((stack.to_owned(), count.parse().ok()?))
    });
    lines.collect()
}

/// What a `dump` shows of the first thread: its Python functions, leaf first, and why it is
/// partial.
fn dumped(pid: i32) -> (Vec<String>, Value) {
    let output = Command::new(TORCHSPY)
        .args(["dump", "--json", "--pid", &pid.to_string()])
        .output()
        .unwrap();
    let look: Value = serde_json::from_slice(&output.stdout).unwrap();
    let threads = look["looks"][0]["processes"][0]["threads"]
        .as_array()
        .unwrap();
    let main = threads.iter().find(|thread| thread["tid"] == pid).unwrap();
    let frames = main["frames"].as_array().unwrap();
    let python = frames.iter().filter(|frame| frame["python"] == true);
    let names = python.map(|frame| frame["function"].as_str().unwrap().to_owned());
    (names.collect(), main["partial"].clone())
}

fn code_that_runs_once_has_its_name(engine: &str) {
    const SOURCE: &str = "
import signal, sys, time
signal.alarm(300)
body = 'import time\\ndef part{0}():\\n    end = time.thread_time() + .0008\\n    while time.thread_time() < end: pass\\npart{0}()\\n'
print('ready', flush=True)
number = 0
while True:
    number += 1
    exec(compile(body.format(number), 'module%d.py' % number, 'exec'), {})
";
    let Some(python) = any_python() else { return };
    let how = How {
        options: &["--rate", "400", "--max-stopped", "off", "--engine", engine],
        fault: None,
    };
    let target = Target::start(&[&python, "-c", SOURCE]);
    let recorder = Recorder::attach(target.pid(), how);
    let fresh = |report: &Value| report["quality"]["fresh"].as_u64().unwrap_or(0);
    // How many samples a second has is the machine's affair.
    wait_until("enough was read", || {
        recorder.wait_for_segment();
        let report = run(&["report", "--json", &recorder.path().to_string_lossy()]).stdout;
        let report: Option<Value> = serde_json::from_str(&report).ok();
        report.is_some_and(|report| fresh(&report) > 600)
    });
    let report = recorder.interrupt().expect_success().report();
    let (fresh, gone) = (fresh(&report), partial(&report, "code_gone"));
    // The kernel's sample is taken before the code objects are read: some are freed by then.
    let bound = match engine {
        "perf" => 20,
        _ => 200,
    };
    assert!(gone * bound <= fresh, "{gone} of {fresh}");
}

fn the_first_samples_after_attaching_have_python_frames_or_say_why(engine: &str) {
    const SOURCE: &str = "
def busy():
    print('ready', flush=True)
    while True: pass
busy()
";
    let Some(python) = any_python() else { return };
    let target = Target::start(&[&python, "-c", SOURCE]);
    for attempt in 0..5 {
        let how = How {
            options: &["--duration", "0.3", "--rate", "500", "--engine", engine],
            fault: None,
        };
        let recorded = Recorder::attach(target.pid(), how)
            .finish()
            .expect_success();
        for (stack, count) in folded(&recorded) {
            let is_told = ["busy", "[partial: ", "[not captured]"]
                .iter()
                .any(|part| stack.contains(part));
            assert!(is_told, "attempt {attempt}: {count} {stack}");
        }
    }
}

#[test]
fn a_main_thread_in_a_subinterpreter_has_the_frames_of_both() {
    const SOURCE: &str = "
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
run = getattr(interpreters, 'run_string')
inner = '''
def inside():
    print('ready', flush=True)
    while True: pass
inside()
'''
def outside():
    run(interpreters.create(), inner)
outside()
";
    for version in VERSIONS {
        let Some(python) = python(version) else {
            continue;
        };
        let target = Target::start(&[&python, "-c", SOURCE]);
        let (names, partial) = dumped(target.pid());
        let wanted = ["inside", "<module>", "outside", "<module>"];
        assert_eq!(names, wanted, "{version}");
        assert_eq!(partial, Value::Null, "{version}");
    }
}

#[test]
fn a_subinterpreter_that_rests_takes_no_frames_away() {
    const SOURCE: &str = "
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
made = interpreters.create()
interpreters.run_string(made, 'x = 1')
def afterwards():
    print('ready', flush=True)
    while True: pass
afterwards()
";
    for version in VERSIONS {
        let Some(python) = python(version) else {
            continue;
        };
        let target = Target::start(&[&python, "-c", SOURCE]);
        let (names, partial) = dumped(target.pid());
        assert_eq!(names, ["afterwards", "<module>"], "{version}");
        assert_eq!(partial, Value::Null, "{version}");
    }
}

fn one_deep_recursion_is_one_stack_whatever_its_depth(engine: &str) {
    const SOURCE: &str = "
import sys, time
sys.setrecursionlimit(20000)
def leaf(end):
    while time.perf_counter() < end: pass
def deeper(left):
    if left: deeper(left - 1)
    else: leaf(time.perf_counter() + .08)
def rooted():
    end = time.perf_counter() + 3
    depth = 5000
    while time.perf_counter() < end:
        deeper(depth)
        depth = 5000 + (depth + 37) % 700
rooted()
";
    for version in &VERSIONS {
        let Some(python) = python(version) else {
            continue;
        };
        let folder = tempfile::tempdir().unwrap();
        let how = How {
            options: &["--engine", engine, STEADY[0], STEADY[1]],
            fault: None,
        };
        let command = Recorder::launch_command(&[&python, "-c", SOURCE], how);
        let recorded = Recorder::spawn(command, folder).finish().expect_success();
        let stacks: Vec<(String, f64)> = folded(&recorded)
            .into_iter()
            .filter(|(stack, _)| stack.contains("leaf") && !stack.contains("[cpu_wait]"))
            .collect();
        // One that changed while it was read says so: on a busy machine some are read without a
        // stop.
        let is_torn = |stack: &str| stack.contains("[partial: torn]");
        let whole = stacks.iter().filter(|(stack, _)| !is_torn(stack));
        let all: f64 = whole.map(|(_, count)| count).sum();
        // By Python frames alone: what is at the leaf of native ones differs.
        let mut kept: f64 = 0.0;
        for (stack, count) in &stacks {
            let frames: Vec<&str> = stack.split(';').collect();
            let at = frames.iter().position(|frame| frame.contains("too_deep"));
            // Frames that say nothing are not drawn.
            let is_complete = stack.contains("rooted") && frames.len() > 4000;
            let is_whole = is_complete && !is_torn(stack);
            if is_whole && at.is_some_and(|at| (1000..1100).contains(&at)) {
                kept += count;
            }
        }
        assert!(all > 0.0, "{version}");
        // Where the native stack was not copied to its root, the Python frames still tell it.
        for (stack, _) in &stacks {
            assert!(
                stack.contains("rooted") || is_torn(stack),
                "{version}: {}",
                &stack[..stack.len().min(400)]
            );
        }
        // The first samples of a thread find out how deep its stack is.
        assert!(kept > 0.8 * all, "{version}: {kept} of {all}");
    }
}
