//! Threads that never rest, on every interpreter that is installed: each stack is one that the
//! program can have, or says why it is not complete. Sampled at moments of no choice, between any
//! two instructions of a call or a return.

use crate::faults::{How, Recorder};
use crate::stack_case::{Place, Sampled, doubt, dump, python_frames, samples, start, start_with};
use crate::{on_each_engine, on_each_python};
use serde::Deserialize;
use std::collections::BTreeMap;
use torchspy::model::sample::Capture;
use torchspy::recording::reader::Recording;

/// Of all stacks that were read, at most one in so many may be incomplete.
const COMPLETE: usize = 100;
/// With perf a thread runs on, and its Python frames are read right after the kernel's sample: a
/// line, or a function that is called and left within 0.1 ms, may be the next one. Of such stacks
/// at most one in so many may be incomplete, and one impossible.
const RUNS_ON: usize = 20;
const DUMPS: usize = 8;

/// What the program says of itself, a line each.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Line {
    Function(Function),
    Case(Case),
}

#[derive(Debug, Deserialize)]
struct Function {
    /// As callers name it.
    key: String,
    /// As stacks name it.
    name: String,
    file: String,
    lines: Vec<u64>,
    /// What a line calls.
    calls: Vec<(u64, Vec<String>)>,
}

#[derive(Debug, Deserialize)]
struct Case {
    /// The thread's first function.
    case: String,
    tid: i32,
    /// The frames below that, leaf first.
    below: Vec<Place>,
    /// How many frames of a function there are, at least and at most.
    counts: BTreeMap<String, (usize, usize)>,
}

/// Stacks that were captured in one way.
#[derive(Default)]
struct Tally {
    all: usize,
    /// By the reason.
    incomplete: BTreeMap<String, usize>,
    faults: Vec<String>,
}

impl Tally {
    /// Fails where more than `most_faults` stacks are impossible, or more than one in `complete` is
    /// incomplete.
    fn check(&self, name: &str, most_faults: usize, complete: usize) {
        let Self {
            all,
            incomplete,
            faults,
        } = self;
        eprintln!(
            "{name}: {all} stacks, {} impossible, {incomplete:?}",
            faults.len()
        );
        assert!(
            faults.len() <= most_faults,
            "{name}: {} of {all}: {:#?}",
            faults.len(),
            &faults[..faults.len().min(20)]
        );
        let incomplete: usize = incomplete.values().sum();
        assert!(
            incomplete * complete <= *all,
            "{name}: {incomplete} of {all}"
        );
    }
}

struct Program {
    functions: Vec<Function>,
    cases: Vec<Case>,
}

impl Program {
    fn read(lines: &[String]) -> Self {
        let (mut functions, mut cases) = (Vec::new(), Vec::new());
        for line in lines {
            match serde_json::from_str(line).unwrap() {
                Line::Function(function) => functions.push(function),
                Line::Case(case) => cases.push(case),
            }
        }
        Self { functions, cases }
    }

    /// Why a thread of this case cannot have these frames (leaf first), if it cannot. `at_lines`:
    /// each calls the next one on its line, and not on another of its lines, and has one.
    fn fault(&self, case: &Case, frames: &[Place], at_lines: bool) -> Option<String> {
        let Some(path) = frames.strip_suffix(&case.below[..]) else {
            return Some("it does not begin as its thread does".to_owned());
        };
        let mut counts = BTreeMap::new();
        let mut called = vec![&case.case];
        for (name, file, line) in path.iter().rev() {
            let is_it = |function: &&Function| {
                called.contains(&&function.key)
                    && function.name == *name
                    && function.file == *file
                    && (function.lines.contains(line) || !at_lines && *line == 0)
            };
            let Some(function) = self.functions.iter().find(is_it) else {
                return Some(format!("nothing calls {name}, line {line}, there"));
            };
            *counts.entry(function.key.as_str()).or_insert(0) += 1;
            let here = function
                .calls
                .iter()
                .filter(|(at, _)| !at_lines || at == line);
            called = here.flat_map(|(_, called)| called).collect();
        }
        if path.is_empty() {
            return Some("it ends too early".to_owned());
        }
        let wrong = case.counts.iter().find(|(key, (least, most))| {
            let count = counts.get(key.as_str()).copied().unwrap_or(0);
            !(*least..=*most).contains(&count)
        });
        wrong.map(|(key, _)| format!("{key} is there too often, or not often enough"))
    }
}

fn said(case: &Case, fault: &str, frames: &[Place]) -> String {
    let places = frames
        .iter()
        .map(|(name, _, line)| format!("{name}:{line}"));
    let places: Vec<_> = places.collect();
    format!("{}: {fault}: {}", case.case, places.join(" "))
}

fn every_stack_is_possible(version: &str, engine: &str) {
    stacks_are_possible(version, engine, &[]);
}

/// Variables that make CPython's own compilers write code while the program runs, which no unwind
/// table describes: frames in it are found by a guess. 3.14 and 3.15 have a JIT compiler where they
/// were built with it (PEP 744), 3.12 and later trampolines for perf (`-X perf`).
const COMPILERS: [(&str, &str); 2] = [("PYTHON_JIT", "1"), ("PYTHONPERFSUPPORT", "1")];

fn every_stack_is_possible_with_a_jit(version: &str, engine: &str) {
    stacks_are_possible(version, engine, &COMPILERS[..1]);
}

fn every_stack_is_possible_with_trampolines(version: &str, engine: &str) {
    stacks_are_possible(version, engine, &COMPILERS[1..]);
}

fn stacks_are_possible(version: &str, engine: &str, environment: &[(&str, &str)]) {
    let Some(mut target) = start_with(version, "stack_spins.py", &[], environment) else {
        return;
    };
    let is_mark = |mark: &String| environment.is_empty() || !mark.starts_with("a guess");
    let program = Program::read(&target.ready());
    let how = How {
        options: &[
            "--duration",
            "4s",
            "--rate",
            "500",
            "--max-stopped",
            "off",
            "--engine",
            engine,
        ],
        fault: None,
    };
    let recorded = Recorder::attach(target.pid(), how)
        .finish()
        .expect_success();
    let samples = samples(&Recording::read(&recorded.path()).unwrap());
    let is_perf = engine == "perf";
    // A dump stops threads, whatever engine `record` has.
    let dumps = if is_perf { 0 } else { DUMPS };
    let dumped: Vec<_> = (0..dumps).flat_map(|_| dump(target.pid(), &[])).collect();
    // The second is of threads that ran on while they were read.
    let mut tallies = [Tally::default(), Tally::default()];
    for case in &program.cases {
        let of_case = |sample: &&Sampled| sample.tid == case.tid && sample.is_read();
        let samples = samples.iter().filter(of_case);
        let mut stacks: Vec<(Vec<Place>, Option<String>, bool)> = samples
            .map(|sample| {
                let was_running = matches!(sample.capture, Capture::Sampled | Capture::Unstopped);
                let mark = sample.partial.map(str::to_owned);
                (sample.frames.clone(), mark, is_perf && was_running)
            })
            .collect();
        let of_case = dumped.iter().filter(|thread| thread["tid"] == case.tid);
        stacks.extend(of_case.map(|thread| {
            let mark = doubt(thread).filter(is_mark);
            (python_frames(thread), mark, false)
        }));
        let mut complete = 0;
        for (frames, mark, ran_on) in stacks {
            let tally = &mut tallies[usize::from(ran_on)];
            tally.all += 1;
            if let Some(mark) = mark {
                *tally.incomplete.entry(mark).or_insert(0) += 1;
                continue;
            }
            complete += 1;
            let fault = program.fault(case, &frames, true);
            let fault = fault.map(|fault| said(case, &fault, &frames));
            tally.faults.extend(fault);
        }
        // Some hundred on an idle machine; a busy one leaves out most.
        assert!(complete > 3, "{version}, {}: {complete}", case.case);
    }
    let [others, ran_on] = &tallies;
    let name = format!("{version} with {engine}");
    others.check(&name, 0, COMPLETE);
    assert_eq!(ran_on.all > 0, is_perf, "{name}");
    ran_on.check(&format!("{name}, running"), ran_on.all / RUNS_ON, RUNS_ON);
}

/// At the highest rates, without stops: while a thread is read it calls and returns. Which function
/// calls which is right nevertheless, in all stacks but one of so many. In 3.10 a frame that has
/// ended leads nowhere, as the first one of a thread does.
const POSSIBLE: usize = 300;
const POSSIBLE_ON_3_10: usize = 50;
/// Of these stacks, at most one in so many may be incomplete.
const WHOLE: usize = 10;

fn nearly_every_stack_is_possible_without_stops(version: &str) {
    let Some(mut target) = start(version, "stack_spins.py", &[]) else {
        return;
    };
    let program = Program::read(&target.ready());
    let how = How {
        options: &[
            "--duration",
            "3s",
            "--rate",
            "20000",
            "--nonblocking",
            "--no-native",
        ],
        fault: None,
    };
    let recorded = Recorder::attach(target.pid(), how)
        .finish()
        .expect_success();
    let samples = samples(&Recording::read(&recorded.path()).unwrap());
    let (mut faults, mut torn, mut all) = (Vec::new(), 0, 0);
    for case in &program.cases {
        let is_read = |sample: &&Sampled| {
            let is_of_case = sample.tid == case.tid && sample.is_read();
            is_of_case && !sample.frames.is_empty()
        };
        for sample in samples.iter().filter(is_read) {
            all += 1;
            torn += usize::from(sample.partial.is_some());
            if sample.partial.is_none()
                && let Some(fault) = program.fault(case, &sample.frames, false)
            {
                faults.push(said(case, &fault, &sample.frames));
            }
        }
    }
    eprintln!(
        "{version}: {all} stacks without stops, {torn} torn, {} impossible",
        faults.len()
    );
    assert!(all > 1000, "{version}: {all}");
    assert!(torn * WHOLE <= all, "{version}: {torn} of {all}");
    let possible = match version {
        "3.10" => POSSIBLE_ON_3_10,
        _ => POSSIBLE,
    };
    assert!(
        faults.len() * possible <= all,
        "{version}: {} of {all}: {:#?}",
        faults.len(),
        &faults[..faults.len().min(20)]
    );
}

on_each_python!(nearly_every_stack_is_possible_without_stops:
    without_stops_on_3_10 "3.10",
    without_stops_on_3_11 "3.11",
    without_stops_on_3_12 "3.12",
    without_stops_on_3_13 "3.13",
    without_stops_on_3_14 "3.14",
    without_stops_on_3_15 "3.15",
    without_stops_on_3_13t "3.13t",
    without_stops_on_3_14t "3.14t",
);

on_each_engine!(every_stack_is_possible:
    every_stack_is_possible_on_3_10 "3.10",
    every_stack_is_possible_on_3_11 "3.11",
    every_stack_is_possible_on_3_12 "3.12",
    every_stack_is_possible_on_3_13 "3.13",
    every_stack_is_possible_on_3_14 "3.14",
    every_stack_is_possible_on_3_15 "3.15",
    every_stack_is_possible_on_3_13t "3.13t",
    every_stack_is_possible_on_3_14t "3.14t",
);

on_each_engine!(every_stack_is_possible_with_a_jit:
    with_a_jit_on_3_14 "3.14",
    with_a_jit_on_3_15 "3.15",
);

on_each_engine!(every_stack_is_possible_with_trampolines:
    with_trampolines_on_3_12 "3.12",
    with_trampolines_on_3_13 "3.13",
    with_trampolines_on_3_14 "3.14",
);

#[test]
fn a_frame_too_few_too_many_or_on_another_line_is_a_fault() {
    let program = Program::read(&[
        r#"{"key": "f", "name": "f", "file": "p", "lines": [1, 2], "calls": [[2, ["g"]]]}"#.into(),
        r#"{"key": "g", "name": "C.g", "file": "p", "lines": [4, 5], "calls": [[5, ["g", "h"]]]}"#
            .into(),
        r#"{"key": "h", "name": "h", "file": "p", "lines": [7], "calls": []}"#.into(),
        r#"{"case": "f", "tid": 1, "below": [["run", "t", 9]], "counts": {"g": [0, 2]}}"#.into(),
    ]);
    let is_possible = |frames: &[(&str, &str, u64)]| {
        let place = |&(name, file, line): &(&str, &str, u64)| (name.into(), file.into(), line);
        let frames: Vec<Place> = frames.iter().map(place).collect();
        program.fault(&program.cases[0], &frames, true).is_none()
    };
    let (run, f, g, h) = (
        ("run", "t", 9),
        ("f", "p", 2),
        ("C.g", "p", 5),
        ("h", "p", 7),
    );
    assert!(is_possible(&[f, run]) && is_possible(&[("f", "p", 1), run]));
    assert!(is_possible(&[g, f, run]) && is_possible(&[h, g, g, f, run]));
    let on_another_line =
        [g, ("f", "p", 1), run].map(|(name, file, line)| (name.into(), file.into(), line));
    let fault = program.fault(&program.cases[0], &on_another_line, false);
    assert_eq!(fault, None);
    for wrong in [
        &[][..],
        &[run],
        &[f],
        &[h, f, run],
        &[h, g, run],
        &[g, ("f", "p", 1), run],
        &[g, f, ("run", "t", 8)],
        &[h, g, g, g, f, run],
        &[h, g, f, f, run],
        &[("h", "q", 7), g, f, run],
        &[("h", "p", 8), g, f, run],
    ] {
        assert!(!is_possible(wrong), "{wrong:?}");
    }
}
