//! Threads that are held, or spin, in a known situation: what the target says of its frames, and
//! what `dump` shows of them.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use crate::python_target::{Python, Target};
use serde::Deserialize;
use serde_json::Value;
use std::io::Write;
use std::process::Command;
use torchspy::model::frame::Frame;
use torchspy::model::sample::{Capture, Sample};
use torchspy::recording::reader::Recording;

/// A frame: name, file, line.
pub type Place = (String, String, u64);

/// What a thread says of itself: its case, and its frames, leaf first.
#[derive(Debug, Deserialize)]
pub struct Case {
    pub case: String,
    pub pid: u64,
    pub tid: u64,
    pub frames: Vec<Place>,
}

/// Cases that cannot be exact: version, case, reason.
pub type Exceptions = [(&'static str, &'static str, &'static str)];

/// Futex, as /proc/PID/syscall has it: what a thread sleeps in that waits for a lock.
const FUTEX: &str = "202 ";

/// All threads of a process, or with `--tree` of those that descend from it, too.
pub fn dump(pid: i32, options: &[&str]) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_torchspy"))
        .args(["dump", "--json", "--pid", &pid.to_string()])
        .args(options)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let mut value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let processes = value["looks"][0]["processes"].as_array_mut().unwrap();
    // Where Python could not be read in time, the note says so, of all threads.
    let threads = |process: &mut Value| {
        let note = process["note"].take();
        let mut threads = process["threads"].as_array().unwrap().clone();
        for thread in threads.iter_mut().filter(|_| !note.is_null()) {
            thread["partial"] = note.clone();
        }
        threads
    };
    processes.iter_mut().flat_map(threads).collect()
}

/// A program of tests/programs, started; none where there is no such Python.
pub fn start(version: &str, program: &str, arguments: &[&str]) -> Option<Target> {
    start_with(version, program, arguments, &[])
}

/// The same with more variables of the environment.
pub fn start_with(
    version: &str,
    program: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Option<Target> {
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/");
    let program = format!("{programs}{program}");
    let python = Python::find(version)?;
    Some(python.start_with(program.as_ref(), arguments, environment))
}

/// Python's frames among those of a thread, leaf first.
pub fn python_frames(thread: &Value) -> Vec<Place> {
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let all = thread["frames"].as_array().unwrap();
    let python = all.iter().filter(|frame| frame["python"] == true);
    python
        .map(|frame| {
            let line = frame["line"].as_u64().unwrap_or(0);
            (text(&frame["function"]), text(&frame["file"]), line)
        })
        .collect()
}

/// Why a thread's stack is not complete and certain, if it is not.
pub fn doubt(thread: &Value) -> Option<String> {
    if !thread["partial"].is_null() {
        return Some(thread["partial"].to_string());
    }
    let mut frames = thread["frames"].as_array().unwrap().iter();
    let guess = frames.find(|frame| frame["guess"] == true);
    guess.map(|frame| format!("a guess: {frame:#}"))
}

/// What is wrong with a thread, if anything is.
fn fault(case: &Case, thread: &Value) -> Option<String> {
    let found = python_frames(thread);
    if found != case.frames {
        return Some(format!("frames {found:#?}, not {:#?}", case.frames));
    }
    doubt(thread)
}

/// Adds a line of JSON for a case to the file that `scripts/python-table` asks for.
fn tell(version: &str, case: &str, fault: Option<&str>) {
    let Some(path) = std::env::var_os("TORCHSPY_CASES") else {
        return;
    };
    let line = serde_json::json!({ "python": version, "case": case, "fault": fault });
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path);
    writeln!(file.unwrap(), "{line}").unwrap();
}

/// Starts a program that holds threads in locks, and compares each with what it says, `least` cases
/// at least.
pub fn check(
    version: &str,
    (program, arguments): (&str, &[&str]),
    least: usize,
    exceptions: &Exceptions,
) {
    let Some(mut target) = start(version, program, arguments) else {
        return;
    };
    let lines = target.ready();
    let cases = lines.iter().map(|line| serde_json::from_str(line).unwrap());
    let cases: Vec<Case> = cases.collect();
    assert!(cases.len() >= least, "{} cases", cases.len());
    for case in &cases {
        target.wait_in_call(case.tid, &[FUTEX]);
    }
    let threads = dump(target.pid(), &["--tree"]);
    let mut faults = Vec::new();
    for case in &cases {
        let name = &case.case;
        let thread = threads.iter().find(|thread| thread["tid"] == case.tid);
        let fault = thread.map_or(Some("no such thread".to_owned()), |thread| {
            fault(case, thread)
        });
        tell(version, name, fault.as_deref());
        let is_known = exceptions
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

/// A test for each interpreter that torchspy reads, which calls `$check` with its version.
#[macro_export]
macro_rules! on_each_python {
    ($check:path: $($name:ident $version:literal),* $(,)?) => {$(
        #[test]
        fn $name() {
            $check($version);
        }
    )*};
}

/// A sample of a recording.
pub struct Sampled {
    pub pid: i32,
    pub tid: i32,
    /// Python's frames, leaf first.
    pub frames: Vec<Place>,
    pub partial: Option<&'static str>,
    pub capture: Capture,
}

impl Sampled {
    /// Whether a stack was read. How often a thread that waits for a CPU does not stop in time is
    /// up to the machine.
    pub fn is_read(&self) -> bool {
        ![Some("stop_timeout"), Some("overflow")].contains(&self.partial)
    }
}

/// All samples, by thread, in the order of their times.
pub fn samples(recording: &Recording) -> Vec<Sampled> {
    let mut samples: Vec<_> = recording.samples.iter().collect();
    samples.sort_by_key(|sample| (sample.thread, sample.start_ns));
    let sampled = |sample: &Sample| {
        let thread = &recording.tables.threads[&sample.thread];
        let mut found = Sampled {
            pid: recording.tables.processes[thread.process.index()].pid,
            tid: thread.tid,
            frames: Vec::new(),
            partial: None,
            capture: sample.capture,
        };
        for frame in recording.tables.stacks.leaf_to_root(sample.stack) {
            match *recording.tables.stacks.frame(frame) {
                Frame::Python { code, line, .. } => {
                    let code = &recording.tables.codes[code.index()];
                    let place = (code.name.clone(), code.file.clone(), line.into());
                    found.frames.push(place);
                }
                Frame::Truncated(why) => found.partial = Some(why.name()),
                _ => {}
            }
        }
        found
    };
    samples.into_iter().map(sampled).collect()
}
