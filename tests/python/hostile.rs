//! Memory that lies, and memory that fails: nothing panics, nothing hangs, and what was read is
//! kept.

use crate::python_target::Python;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;
use torchspy::memory::{FaultyMemory, Memory, ReadError, SnapshotMemory};
use torchspy::model::code::CodeInfo;
use torchspy::model::ids::CodeId;
use torchspy::python::code_object::CodeCache;
use torchspy::python::discover::Interpreter;
use torchspy::python::frames::{MAX_FRAMES, PythonStack, data_stack_range, read_stack};
use torchspy::python::layout::debug_offsets;
use torchspy::python::threads::{read_gil_holder, read_threads};

/// Keeps what was read.
struct Recorder<M> {
    inner: M,
    reads: RefCell<BTreeMap<u64, Vec<u8>>>,
}

impl<M: Memory> Memory for Recorder<M> {
    fn read_exact(&self, address: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        self.inner.read_exact(address, buffer)?;
        let mut reads = self.reads.borrow_mut();
        let kept = reads.entry(address).or_default();
        if kept.len() < buffer.len() {
            *kept = buffer.to_vec();
        }
        Ok(())
    }
}

struct Recording {
    interpreter: Interpreter,
    ranges: Vec<(u64, Vec<u8>)>,
}

impl Recording {
    /// Reads everything of a process that sleeps at known places.
    fn of(python: &str) -> Option<Self> {
        let python = Python::find(python)?;
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/py_stacks.py");
        let mut target = python.start(program.as_ref(), &[]);
        target.ready();
        let threads = read_threads(&target.discover().unwrap(), &target.memory()).unwrap();
        let natives: Vec<u64> = threads
            .iter()
            .filter_map(|thread| thread.native_thread_id)
            .collect();
        target.wait_asleep(
            if natives.is_empty() {
                vec![target.pid() as u64]
            } else {
                natives
            }
            .as_slice(),
        );
        let interpreter = target.discover().unwrap();
        let recorder = Recorder {
            inner: target.memory(),
            reads: RefCell::default(),
        };
        if let Some(size) = debug_offsets::size_for(interpreter.version) {
            recorder
                .read_bytes(interpreter.runtime_address, size)
                .unwrap();
        }
        let (frames, codes) = read_all(&interpreter, &recorder);
        assert!(frames > 100 && codes > 50, "{frames} {codes}");
        let ranges = recorder.reads.into_inner().into_iter().collect();
        Some(Self {
            interpreter,
            ranges,
        })
    }

    fn snapshot(&self) -> SnapshotMemory {
        let mut snapshot = SnapshotMemory::default();
        for (address, bytes) in &self.ranges {
            snapshot.insert(*address, bytes.clone());
        }
        snapshot
    }
}

/// Reads all there is; how many frames and named code objects it was.
fn read_all(interpreter: &Interpreter, memory: &dyn Memory) -> (usize, usize) {
    let mut stack = PythonStack::default();
    let mut codes = CodeCache::new(interpreter);
    let (mut frames, mut named) = (0, 0);
    for thread in read_threads(interpreter, memory)
        .unwrap_or_default()
        .iter()
        .take(32)
    {
        let _ = read_gil_holder(interpreter, thread.interpreter, memory);
        let _ = data_stack_range(interpreter, thread.state_address, memory);
        let _ = read_stack(interpreter, thread.state_address, memory, &mut stack);
        assert!(stack.frames.len() <= MAX_FRAMES);
        assert_eq!(
            stack
                .runs
                .iter()
                .map(|run| run.range().len())
                .sum::<usize>(),
            stack.frames.len()
        );
        assert!(
            stack
                .runs
                .iter()
                .all(|run| run.range().end <= stack.frames.len())
        );
        frames += stack.frames.len();
        let addresses: Vec<u64> = stack
            .frames
            .iter()
            .map(|frame| frame.code_address)
            .collect();
        codes.resolve(&addresses, memory, |_: &CodeInfo| CodeId(0));
        for frame in &stack.frames {
            if let Ok(code) = codes.get(frame.code_address) {
                let _ = code.line(frame.instruction);
                named += 1;
            }
        }
    }
    (frames, named)
}

/// A lie: in which range, where in it, and what stands there instead.
#[derive(Clone, Debug)]
enum Lie {
    Byte(u8),
    Word(u64),
    /// The address of another range.
    Pointer(prop::sample::Index),
}

fn lies() -> impl Strategy<Value = Vec<(prop::sample::Index, prop::sample::Index, Lie)>> {
    let lie = prop_oneof![
        any::<u8>().prop_map(Lie::Byte),
        prop_oneof![
            any::<u64>(),
            Just(0),
            Just(u64::MAX),
            Just(i64::MAX as u64),
            0_u64..5000
        ]
        .prop_map(Lie::Word),
        any::<prop::sample::Index>().prop_map(Lie::Pointer),
    ];
    prop::collection::vec(
        (
            any::<prop::sample::Index>(),
            any::<prop::sample::Index>(),
            lie,
        ),
        1..60,
    )
}

fn check_lies(python: &str) {
    let Some(recording) = Recording::of(python) else {
        return;
    };
    let mut runner = TestRunner::new(Config {
        cases: 300,
        failure_persistence: None,
        ..Config::default()
    });
    let outcome = runner.run(&lies(), |lies| {
        let mut ranges = recording.ranges.clone();
        for (range, place, lie) in lies {
            let target = match lie {
                Lie::Pointer(index) => index.get(&recording.ranges).0,
                Lie::Word(word) => word,
                Lie::Byte(byte) => byte.into(),
            };
            let index = range.index(ranges.len());
            let bytes = &mut ranges[index].1;
            match lie {
                Lie::Byte(byte) => {
                    let place = place.index(bytes.len());
                    bytes[place] = byte;
                }
                _ if bytes.len() >= 8 => {
                    let place = place.index(bytes.len() / 8) * 8;
                    bytes[place..place + 8].copy_from_slice(&target.to_le_bytes());
                }
                _ => {}
            }
        }
        let mut snapshot = SnapshotMemory::default();
        ranges
            .into_iter()
            .for_each(|(address, bytes)| snapshot.insert(address, bytes));
        read_all(&recording.interpreter, &snapshot);
        // Where the interpreter states its own offsets, they lie too.
        if let Some(size) = debug_offsets::size_for(recording.interpreter.version) {
            let bytes = snapshot
                .read_bytes(recording.interpreter.runtime_address, size)
                .unwrap();
            if let Ok(layout) = debug_offsets::parse_layout(
                recording.interpreter.version,
                recording.interpreter.free_threaded,
                &bytes,
            ) {
                read_all(
                    &Interpreter {
                        layout,
                        ..recording.interpreter.clone()
                    },
                    &snapshot,
                );
            }
        }
        Ok(())
    });
    outcome.unwrap();
}

/// Whatever single read fails, the frames nearer to the leaf are kept.
fn check_faults(python: &str) {
    let Some(recording) = Recording::of(python) else {
        return;
    };
    let snapshot = recording.snapshot();
    let interpreter = &recording.interpreter;
    let threads = read_threads(interpreter, &snapshot).unwrap();
    let mut failed = 0;
    for thread in threads {
        let (mut whole, mut part) = (PythonStack::default(), PythonStack::default());
        read_stack(interpreter, thread.state_address, &snapshot, &mut whole).unwrap();
        for (index, frame) in whole.frames.iter().enumerate() {
            let faulty = FaultyMemory::new(&snapshot, frame.frame_address, frame.frame_address + 8);
            let result = read_stack(interpreter, thread.state_address, &faulty, &mut part);
            assert!(faulty.reached() > 0);
            if result.is_ok() {
                // The leaf alone: an evaluation that has only begun looks so, in 3.11 and 3.12.
                assert!(index == 0 && [11, 12].contains(&interpreter.version.minor));
                assert_eq!(part.runs[0].range().len(), 0);
                assert!(whole.frames.ends_with(&part.frames));
                continue;
            }
            assert_eq!(part.frames, whole.frames[..index]);
            failed += 1;
        }
        let faulty =
            FaultyMemory::new(&snapshot, thread.state_address, thread.state_address + 8192);
        assert!(read_stack(interpreter, thread.state_address, &faulty, &mut part).is_err());
        assert!(faulty.reached() > 0 && part.frames.is_empty() && part.runs.is_empty());
    }
    assert!(failed > 80, "{failed}");
}

/// Frames that lead back to themselves end.
fn check_cycle(python: &str) {
    let Some(recording) = Recording::of(python) else {
        return;
    };
    let interpreter = &recording.interpreter;
    let snapshot = recording.snapshot();
    let thread = read_threads(interpreter, &snapshot).unwrap()[0];
    let mut stack = PythonStack::default();
    read_stack(interpreter, thread.state_address, &snapshot, &mut stack).unwrap();
    let (leaf, root) = (
        stack.frames[0].frame_address,
        stack.frames.last().unwrap().frame_address,
    );
    let mut bytes = snapshot
        .read_bytes(root, interpreter.layout.frame.head as usize)
        .unwrap();
    let previous = interpreter.layout.frame.previous as usize;
    bytes[previous..previous + 8].copy_from_slice(&leaf.to_le_bytes());
    let mut bent = snapshot.clone();
    bent.insert(root, bytes);
    read_stack(interpreter, thread.state_address, &bent, &mut stack).unwrap_err();
    assert!(stack.frames.len() > 1 && stack.frames.len() <= MAX_FRAMES);
}

macro_rules! on_each {
    ($($module:ident $version:literal),*) => {$(
        mod $module {
            #[test]
            fn lies_are_survived() {
                super::check_lies($version);
            }

            #[test]
            fn faults_cost_only_what_lies_behind_them() {
                super::check_faults($version);
            }

            #[test]
            fn circles_end() {
                super::check_cycle($version);
            }
        }
    )*};
}

on_each!(
    python_3_10 "3.10", python_3_11 "3.11", python_3_12 "3.12", python_3_13 "3.13", python_3_14 "3.14",
    python_3_15 "3.15", python_3_13t "3.13t", python_3_14t "3.14t"
);
