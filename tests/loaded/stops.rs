//! Memory that nobody answers for, and machines on which a stop waits for a CPU: no thread of the
//! target may stay stopped.

use crate::faults::{
    How, Recorder, TORCHSPY, Target, any_python, assert_error, compiled, output_of, program, run,
    wait_until,
};
use serde_json::Value;
use std::process::{Child, Command, Stdio};

/// Waits until a recording has some stops: each is paid back before the next, and how long one
/// takes is the machine's affair.
fn wait_for_stops(recorder: &Recorder) {
    wait_until("ten stops", || {
        recorder.wait_for_segment();
        let report = run(&["report", "--json", &recorder.path().to_string_lossy()]).stdout;
        let report: Option<Value> = serde_json::from_str(&report).ok();
        let stops = report.and_then(|report| report["quality"]["stops"].as_u64());
        stops > Some(10)
    });
}

/// A stack with pages of a userfaultfd in it that never answers: the thread runs on, and is
/// sampled.
#[test]
fn pages_that_nobody_answers_for_keep_no_thread_stopped() {
    let Some(path) = compiled("unanswered.c") else {
        return;
    };
    let mut target = Target::spawn(&mut Command::new(path));
    let line = target.line();
    if line.starts_with("refused") {
        println!("skipped: no userfaultfd here");
        return;
    }
    let recorder = Recorder::attach(target.pid(), How::default());
    wait_for_stops(&recorder);
    let snapshot = run(&["dump", "--pid", &target.pid().to_string()]);
    assert!(snapshot.status.success(), "{}", snapshot.stderr);
    assert!(
        snapshot.stdout.contains("far_below"),
        "behind the hole in its stack: {}",
        snapshot.stdout
    );
    recorder.interrupt().expect_success();
    target.close_input();
    // It used to be stopped for as long as torchspy lived; it counts even what other programs take
    // of its CPU.
    let gap_us: u64 = target.expect("gap")[0].parse().unwrap();
    println!("longest gap {gap_us} us");
}

/// Whoever reads a process's memory, or its command line, waits for its mmap lock, here for good:
/// `record` says so and ends, and `dump` shows what the kernel knows.
#[test]
fn a_lock_that_is_never_given_up_keeps_nobody_waiting() {
    let Some(path) = compiled("mmap_lock.c") else {
        return;
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut target = Target::spawn(Command::new(path).arg(file.path()));
    if target.line().starts_with("refused") {
        println!("skipped: no FUSE here, or nothing may be mounted");
        return;
    }
    let pid = target.pid().to_string();
    let folder = tempfile::tempdir().unwrap();
    let mut record = Command::new(TORCHSPY);
    record.current_dir(folder.path());
    let recorded = output_of(record.args(["record", "--pid", &pid]));
    let unknown = "command line unknown: its memory does not answer";
    assert_error(&recorded, unknown, &["mmap lock", "torchspy dump --pid"]);
    let snapshot = run(&["dump", "--pid", &pid]);
    assert!(snapshot.status.success(), "{}", snapshot.stderr);
    let text = &snapshot.stdout;
    assert!(text.contains("its memory does not answer"), "{text}");
    assert!(!target.states().contains(&b't'), "a thread stays stopped");
    target.close_input();
    assert!(target.wait().success());
}

/// Programs that use every CPU ten times over.
struct Load(Vec<Child>);

impl Load {
    fn start(python: &str) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = || {
            Command::new(python)
                .args(["-c", "while True: pass"])
                .stdin(Stdio::null())
                .spawn()
                .unwrap()
        };
        Self((0..10 * cpus).map(|_| spin()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The share of their running time for which threads may be stopped holds on a machine that is ten
/// times overloaded, too. How long one stop takes is the machine's: where none of its CPUs runs
/// torchspy, a stop lasts for as long. It is paid back before the next tick with stops, so all but
/// the stops of the longest tick are within the share.
#[test]
fn stops_stay_within_the_budget_under_load() {
    let Some(python) = any_python() else { return };
    let target = Target::start(&[&python, &program("fault_compute.py"), "--until-stdin"]);
    let load = Load::start(&python);
    let recorder = Recorder::attach(target.pid(), How::default());
    for _ in 0..8 {
        recorder.wait_for_segment();
    }
    let report = recorder.interrupt().expect_success().report();
    drop(load);
    let quality = &report["quality"];
    let share = quality["stopped_share"].as_f64().unwrap();
    println!("stopped {:.2} %: {}", 100.0 * share, quality["stop_us"]);
    let longest_s = quality["stop_us"]["max"].as_f64().unwrap() / 1e6;
    // One of its threads at least runs or waits for a CPU at any time.
    let longest_share = longest_s / report["duration_s"].as_f64().unwrap();
    // The last tick may have stopped each of its threads.
    assert!(share <= 0.02 + 3.0 * longest_share, "{quality}");
    assert!(quality["stops"].as_u64().unwrap() > 0, "{quality}");
}

/// The median stop of a thread that computes beside so many sleepers, in microseconds.
fn median_stop_us(path: &str, sleepers: u32) -> f64 {
    let mut target = Target::start(&[path, &sleepers.to_string()]);
    let recorder = Recorder::attach(target.pid(), How::default());
    for _ in 0..2 {
        recorder.wait_for_segment();
    }
    wait_for_stops(&recorder);
    let report = recorder.interrupt().expect_success().report();
    target.close_input();
    let quality = &report["quality"];
    println!("{sleepers} sleepers: stops {}", quality["stop_us"]);
    quality["stop_us"]["p50"].as_f64().unwrap()
}

/// What is asked to stop is collected before the next is asked: thousands of sleepers do not
/// prolong the stop of who runs. Asked together they all were stopped for as long as it took to ask
/// and read them: 60 ms and more of 3,000, as against 0.05.
#[test]
fn thousands_of_sleepers_do_not_prolong_a_stop() {
    let Some(path) = compiled("many_sleepers.c") else {
        return;
    };
    let (few, many) = (30, 3000);
    let (few_us, many_us) = (median_stop_us(&path, few), median_stop_us(&path, many));
    let more = f64::from(many / few);
    // A machine that is busier than it was a moment ago has stops of a few time slices.
    let limit_us = more * few_us.max(200.0);
    assert!(many_us < limit_us, "{few_us} and {many_us} us");
}
