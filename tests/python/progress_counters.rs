//! Counters of progress in real interpreters, against what the program says of them.

use crate::main_stack;
use crate::python_target::{Python, Target};
use std::collections::BTreeMap;
use torchspy::memory::{FaultyMemory, Memory};
use torchspy::model::ids::{CounterId, ThreadId};
use torchspy::model::progress::{CounterKind, facts};
use torchspy::python::discover::Interpreter;
use torchspy::torch::probe::progress::{FoundCounter, ProgressProbe, ScanFrame};

const THREAD: ThreadId = ThreadId(3);

/// Outermost first.
fn frames(interpreter: &Interpreter, target: &Target) -> Vec<ScanFrame> {
    let (stack, codes) = main_stack(interpreter, target);
    let frames = stack.frames.iter().rev().map(|frame| ScanFrame {
        address: frame.frame_address,
        is_module: codes.get(frame.code_address).unwrap().info.name == "<module>",
    });
    frames.collect()
}

fn check(python: &str) {
    let Some(python) = Python::find(python) else {
        return;
    };
    let program = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/programs/progress_counters.py"
    );
    let mut target = python.start(program.as_ref(), &[]);
    let mut found: Vec<FoundCounter> = Vec::new();
    let mut known: Option<(Interpreter, ProgressProbe)> = None;
    let mut stops = 0;
    let mut searches = 0;
    loop {
        let line = target.line();
        if line == "done" {
            break;
        }
        let expected: BTreeMap<String, u64> = serde_json::from_str(&line).unwrap();
        assert_eq!(target.line(), "ready");
        stops += 1;
        let (interpreter, probe) = known.get_or_insert_with(|| {
            let interpreter = target.discover().unwrap();
            let probe = ProgressProbe::new(&interpreter);
            (interpreter, probe)
        });
        let memory = target.memory();
        let mut points = Vec::new();
        probe.read(THREAD, stops, &memory, &memory, &mut points);
        // Once it is known, a counter is read without another search.
        let holds = |probe: &ProgressProbe| {
            expected.iter().all(|(kind, value)| {
                let values = probe.values(THREAD);
                values
                    .iter()
                    .any(|(each, now)| each.name() == kind && now == value)
            })
        };
        if !holds(probe) {
            let frames = frames(interpreter, &target);
            probe.search(THREAD, stops, &frames, &memory, &memory, |counter| {
                found.push(counter.clone());
                Some(CounterId::from_index(found.len() - 1))
            });
            probe.read(THREAD, stops, &memory, &memory, &mut points);
            searches += 1;
        }
        assert!(
            holds(probe),
            "stop {stops}: {expected:?}, and not {:?}",
            probe.values(THREAD)
        );
        target.send("");
    }
    assert_eq!(stops, 44);
    // One for each of the loops, at most.
    assert!(searches <= 14, "{searches}");
    let loader = found
        .iter()
        .find(|counter| counter.kind == CounterKind::Batches)
        .unwrap();
    assert_eq!(loader.class, "_MultiProcessingDataLoaderIter");
    let expected = [
        (facts::BATCH_SIZE, "16"),
        (facts::WORKERS, "4"),
        (facts::PIN_MEMORY, "true"),
        (facts::PREFETCH, "2"),
        (facts::DATASET, "list"),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(loader.facts, expected);
}

#[test]
fn counters_on_3_10() {
    check("3.10");
}

#[test]
fn counters_on_3_11() {
    check("3.11");
}

#[test]
fn counters_on_3_12() {
    check("3.12");
}

#[test]
fn counters_on_3_13() {
    check("3.13");
}

#[test]
fn counters_on_3_14() {
    check("3.14");
}

#[test]
fn counters_on_3_15() {
    check("3.15");
}

#[test]
fn counters_on_3_13t() {
    check("3.13t");
}

#[test]
fn counters_on_3_14t() {
    check("3.14t");
}

/// Memory that cannot be read costs a counter, and nothing else.
#[test]
fn memory_that_fails_is_survived() {
    let Some(python) = Python::find("3.11") else {
        return;
    };
    let program = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/programs/progress_counters.py"
    );
    let mut target = python.start(program.as_ref(), &[]);
    target.line();
    assert_eq!(target.line(), "ready");
    let interpreter = target.discover().unwrap();
    let frames = frames(&interpreter, &target);
    let mut probe = ProgressProbe::new(&interpreter);
    let memory = target.memory();
    let mut intern = |_: &FoundCounter| Some(CounterId(0));
    assert!(
        probe
            .search(THREAD, 0, &frames, &memory, &memory, &mut intern)
            .changed
    );
    let ranges = probe.watch_list(THREAD).ranges;
    assert!(ranges.len() >= 3, "{ranges:?}");
    for &(address, length) in &ranges {
        let faulty = FaultyMemory::new(target.memory(), address, address + length as u64);
        let mut points = Vec::new();
        probe.read(THREAD, 1, &faulty, &faulty, &mut points);
        assert!(faulty.reached() > 0 && points.is_empty(), "{address:#x}");
        let mut fresh = ProgressProbe::new(&interpreter);
        fresh.search(THREAD, 0, &frames, &faulty, &faulty, &mut intern);
    }
    // A place that holds something else is no counter any more.
    let mut points = Vec::new();
    probe.read(THREAD, 2, &memory, &memory, &mut points);
    assert_eq!(points.len(), 1);
    assert!(memory.read_u8(ranges[0].0).is_ok());
}
