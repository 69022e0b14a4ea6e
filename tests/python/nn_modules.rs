//! Which modules the calls of real interpreters are of, against what `named_modules()` says; and
//! memory that lies.

use crate::main_stack;
use crate::python_target::{Python, Target};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;
use torchspy::memory::{Memory, ReadError, SnapshotMemory};
use torchspy::model::ids::NnModuleId;
use torchspy::model::nn_module::NnModuleInfo;
use torchspy::python::discover::Interpreter;
use torchspy::torch::probe::{ModuleProbe, ProbeFrame};
use torchspy::torch::rules::{ModuleCall, RuleSet};

/// Path, class and `training`.
type Row = (String, String, bool);

fn start(python: &str) -> Option<Target> {
    let python = Python::find(python)?;
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/nn_modules.py");
    Some(python.start(program.as_ref(), &[]))
}

/// The next case: what the program says of it; at its end how many there were.
fn next_case(target: &mut Target) -> Result<Vec<Row>, usize> {
    let line = target.line();
    if let Some(count) = line.strip_prefix("done ") {
        return Err(count.parse().unwrap());
    }
    let rows = serde_json::from_str(&line).unwrap();
    assert_eq!(target.line(), "ready");
    Ok(rows)
}

fn frames(interpreter: &Interpreter, target: &Target) -> Vec<ProbeFrame> {
    let (stack, codes) = main_stack(interpreter, target);
    let probed = stack.frames.iter().map(|frame| {
        let code = codes.get(frame.code_address).unwrap();
        ProbeFrame {
            first_local: frame.first_local,
            call: RuleSet::built_in()
                .python(&code.info.file, &code.info.name)
                .module_call,
        }
    });
    probed.collect()
}

/// What the probe finds, outermost first, each module once.
fn found(
    probe: &mut ModuleProbe,
    frames: &[ProbeFrame],
    memory: &dyn Memory,
    infos: &mut Vec<NnModuleInfo>,
) -> Vec<NnModuleInfo> {
    let mut ids = Vec::new();
    probe.find(
        frames,
        true,
        memory,
        |info| {
            let known = infos.iter().position(|known| known == info);
            let at = known.unwrap_or_else(|| {
                infos.push(info.clone());
                infos.len() - 1
            });
            Some(NnModuleId::from_index(at))
        },
        &mut ids,
    );
    assert!(ids.iter().all(|(at, _)| frames[*at].call != ModuleCall::No));
    assert!(ids.is_sorted_by(|outer, inner| outer.0 > inner.0));
    ids.iter()
        .map(|(_, id)| infos[id.index()].clone())
        .collect()
}

/// A process that has ended.
struct Gone;

impl Memory for Gone {
    fn read_exact(&self, _: u64, _: &mut [u8]) -> Result<(), ReadError> {
        Err(ReadError::Gone)
    }
}

/// A process whose objects were freed.
struct Freed;

impl Memory for Freed {
    fn read_exact(&self, _: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        buffer.fill(0);
        Ok(())
    }
}

fn check(python: &str) {
    let Some(mut target) = start(python) else {
        return;
    };
    let mut interpreter = None;
    let mut probe = None;
    let mut infos = Vec::new();
    let mut cases = 0;
    let count = loop {
        let expected = match next_case(&mut target) {
            Ok(expected) => expected,
            Err(count) => break count,
        };
        let interpreter = interpreter.get_or_insert_with(|| target.discover().unwrap());
        // One for all cases: what was true of the case before must not be taken for true.
        let probe = probe.get_or_insert_with(|| ModuleProbe::new(interpreter));
        let frames = frames(interpreter, &target);
        let live = target.memory();
        // The last samples of a process are looked at when it has ended.
        let memories: [&dyn Memory; 4] = [&live, &live, &Gone, &Freed];
        for (turn, memory) in memories.into_iter().enumerate() {
            let mut ended = probe.clone();
            let probe = if turn < 2 { &mut *probe } else { &mut ended };
            let found = found(probe, &frames, memory, &mut infos);
            let rows: Vec<Row> = found
                .iter()
                .map(|info| {
                    (
                        info.path.clone(),
                        info.class.clone(),
                        info.training.unwrap(),
                    )
                })
                .collect();
            assert_eq!(rows, expected, "case {cases}, turn {turn} on {python}");
            let roots: Vec<_> = found.iter().map(|info| (&info.root, info.number)).collect();
            assert!(roots.windows(2).all(|pair| pair[0] == pair[1]), "{found:?}");
        }
        cases += 1;
        target.send("");
    };
    assert_eq!(cases, count);
    assert!(cases > 20);
    let numbers = |root: &str| -> Vec<u32> {
        let mut numbers: Vec<u32> = infos
            .iter()
            .filter(|info| info.root == root && info.path.is_empty())
            .map(|info| info.number)
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    };
    // The second model of a class is another tree; a wrapper is no model of its own.
    assert_eq!(numbers("Net"), [0, 1], "{infos:?}");
    assert_eq!(numbers("Block"), [0], "{infos:?}");
}

#[test]
fn paths_on_3_10() {
    check("3.10");
}

#[test]
fn paths_on_3_11() {
    check("3.11");
}

#[test]
fn paths_on_3_12() {
    check("3.12");
}

#[test]
fn paths_on_3_13() {
    check("3.13");
}

#[test]
fn paths_on_3_14() {
    check("3.14");
}

#[test]
fn paths_on_3_15() {
    check("3.15");
}

#[test]
fn paths_on_3_13t() {
    check("3.13t");
}

#[test]
fn paths_on_3_14t() {
    check("3.14t");
}

/// Keeps what was read, and counts.
struct Recorder<M> {
    inner: M,
    reads: RefCell<BTreeMap<u64, Vec<u8>>>,
    bytes: RefCell<usize>,
}

impl<M: Memory> Memory for Recorder<M> {
    fn read_exact(&self, address: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        *self.bytes.borrow_mut() += buffer.len();
        self.inner.read_exact(address, buffer)?;
        let mut reads = self.reads.borrow_mut();
        let kept = reads.entry(address).or_default();
        if kept.len() < buffer.len() {
            *kept = buffer.to_vec();
        }
        Ok(())
    }
}

fn recorder<M>(inner: M) -> Recorder<M> {
    Recorder {
        inner,
        reads: RefCell::default(),
        bytes: RefCell::default(),
    }
}

/// Memory in which any words were replaced, by others of it or by anything: nothing panics, nothing
/// goes on for ever.
fn check_hostile(python: &str) {
    let Some(mut target) = start(python) else {
        return;
    };
    let rows = next_case(&mut target).unwrap();
    let interpreter = target.discover().unwrap();
    let frames = frames(&interpreter, &target);
    let live = recorder(target.memory());
    let mut infos = Vec::new();
    let whole = found(
        &mut ModuleProbe::new(&interpreter),
        &frames,
        &live,
        &mut infos,
    );
    assert_eq!(whole.len(), rows.len());
    let ranges: Vec<(u64, Vec<u8>)> = live.reads.into_inner().into_iter().collect();
    let addresses: Vec<u64> = ranges.iter().map(|(address, _)| *address).collect();
    let edit = (
        any::<prop::sample::Index>(),
        any::<prop::sample::Index>(),
        prop_oneof![
            3 => any::<prop::sample::Index>().prop_map(|at| *at.get(&addresses)),
            1 => any::<u64>(),
            1 => 0..64_u64,
            1 => Just(u64::MAX),
        ],
    );
    let mut runner = TestRunner::new(Config {
        cases: 400,
        failure_persistence: None,
        ..Config::default()
    });
    let mut differed = 0;
    let differ = RefCell::new(&mut differed);
    runner
        .run(&prop::collection::vec(edit, 1..8), |edits| {
            let mut ranges = ranges.clone();
            for (range, word, value) in edits {
                let count = ranges.len();
                let bytes = &mut ranges[range.index(count)].1;
                let words = bytes.len() / 8;
                if words > 0 {
                    let at = word.index(words) * 8;
                    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
                }
            }
            let mut snapshot = SnapshotMemory::default();
            for (address, bytes) in ranges {
                snapshot.insert(address, bytes);
            }
            let lying = recorder(snapshot);
            let mut probe = ModuleProbe::new(&interpreter);
            let mut infos = Vec::new();
            for _ in 0..2 {
                let found = found(&mut probe, &frames, &lying, &mut infos);
                prop_assert!(found.len() <= frames.len());
                prop_assert!(found.iter().all(|info| info.path.len() <= 1024));
                **differ.borrow_mut() += usize::from(found != whole);
            }
            prop_assert!(*lying.bytes.borrow() < 64 << 20);
            Ok(())
        })
        .unwrap();
    assert!(differed > 100, "the lies were not told: {differed}");
}

#[test]
fn lies_on_3_10() {
    check_hostile("3.10");
}

#[test]
fn lies_on_3_11() {
    check_hostile("3.11");
}

#[test]
fn lies_on_3_13() {
    check_hostile("3.13");
}

#[test]
fn lies_on_3_13t() {
    check_hostile("3.13t");
}
