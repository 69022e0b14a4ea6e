//! Frames, lines and native evaluations of real interpreters, against what Python says of itself
//! and what gdb sees.

use crate::python_target::{Python, Target};
use serde::Deserialize;
use std::collections::BTreeMap;
use torchspy::memory::{LayeredMemory, Memory, SnapshotMemory};
use torchspy::model::code::CodeInfo;
use torchspy::model::ids::CodeId;
use torchspy::python::code_object::CodeCache;
use torchspy::python::discover::Interpreter;
use torchspy::python::frames::{
    FrameError, PythonStack, data_stack_range, read_stack, state_range,
};
use torchspy::python::layout::FrameChain;
use torchspy::python::threads::{GilState, PythonThread, read_gil_holder, read_threads};

/// A thread as the program describes it: name, file, line and `f_lasti` of each frame, leaf first.
#[derive(Debug, Deserialize)]
struct Described {
    ident: u64,
    native: u64,
    frames: Vec<(String, String, u32, u32)>,
}

type Line = (String, String, u32);

struct Session {
    target: Target,
    interpreter: Interpreter,
    described: BTreeMap<String, Described>,
    threads: Vec<PythonThread>,
}

impl Session {
    fn start(python: &str) -> Option<Self> {
        let python = Python::find(python)?;
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/py_stacks.py");
        let mut target = python.start(program.as_ref(), &[]);
        let lines = target.ready();
        let described: BTreeMap<String, Described> = serde_json::from_str(&lines[0]).unwrap();
        let natives: Vec<u64> = described.values().map(|thread| thread.native).collect();
        target.wait_asleep(&natives);
        let interpreter = target.discover().unwrap();
        let threads = read_threads(&interpreter, &target.memory()).unwrap();
        assert_eq!(threads.len(), described.len());
        Some(Self {
            target,
            interpreter,
            described,
            threads,
        })
    }

    fn thread(&self, described: &Described) -> PythonThread {
        let found: Vec<_> = self
            .threads
            .iter()
            .filter(|thread| thread.pthread == described.ident)
            .collect();
        assert_eq!(found.len(), 1);
        *found[0]
    }
}

fn lines_of(stack: &PythonStack, codes: &mut CodeCache, memory: &dyn Memory) -> Vec<(Line, u32)> {
    let addresses: Vec<u64> = stack
        .frames
        .iter()
        .map(|frame| frame.code_address)
        .collect();
    let mut next = 0;
    codes.resolve(&addresses, memory, |_: &CodeInfo| {
        next += 1;
        CodeId(next)
    });
    let named = stack
        .frames
        .iter()
        .map(|frame| (frame, codes.get(frame.code_address).unwrap()));
    named
        .filter(|(_, code)| !code.is_shim)
        .map(|(frame, code)| {
            let line = code.line(frame.instruction);
            (
                (code.info.name.clone(), code.info.file.clone(), line),
                frame.instruction,
            )
        })
        .collect()
}

fn check_frames(python: &str) {
    let Some(session) = Session::start(python) else {
        return;
    };
    let memory = session.target.memory();
    let mut codes = CodeCache::new(&session.interpreter);
    let mut stack = PythonStack::default();
    let mappings = session.target.mappings();
    for (kind, described) in &session.described {
        let thread = session.thread(described);
        if let Some(native) = thread.native_thread_id {
            assert_eq!(native, described.native, "{kind}");
        }
        read_stack(
            &session.interpreter,
            thread.state_address,
            &memory,
            &mut stack,
        )
        .unwrap();
        let found = lines_of(&stack, &mut codes, &memory);
        let names: Vec<Line> = found.iter().map(|(line, _)| line.clone()).collect();
        let expected: Vec<Line> = described
            .frames
            .iter()
            .map(|(name, file, line, _)| (name.clone(), file.clone(), *line))
            .collect();
        assert_eq!(names, expected, "{kind} on {python}");
        // Without the symbol of None, trampolines are told by their code objects.
        let blind = Interpreter {
            none: None,
            ..session.interpreter.clone()
        };
        let mut trampolines = PythonStack::default();
        read_stack(&blind, thread.state_address, &memory, &mut trampolines).unwrap();
        // 3.13 specializes no call where there is no GIL.
        let first = if blind.free_threaded { 14 } else { 13 };
        let has_trampoline = kind == "constructor" && blind.version.minor >= first;
        assert_eq!(
            trampolines.frames.len() - stack.frames.len(),
            usize::from(has_trampoline),
            "{kind} on {python}"
        );
        assert_eq!(
            lines_of(&trampolines, &mut codes, &memory),
            found,
            "{kind} on {python}"
        );
        // All but the leaf stand at the very call at which the program saw them.
        for ((_, instruction), (name, _, _, lasti)) in found.iter().zip(&described.frames).skip(1) {
            assert_eq!(instruction, lasti, "{kind}: {name}");
        }

        assert_eq!(
            stack
                .runs
                .iter()
                .map(|run| run.range().len())
                .sum::<usize>(),
            stack.frames.len()
        );
        let inside = if kind == "main" {
            mappings.iter().find(|mapping| mapping.path == "[stack]")
        } else {
            mappings
                .iter()
                .find(|mapping| (mapping.start..mapping.end).contains(&thread.pthread))
        };
        let inside = inside.unwrap();
        let addresses: Vec<u64> = stack
            .runs
            .iter()
            .map(|run| run.stack_address.unwrap())
            .collect();
        assert!(
            addresses
                .iter()
                .all(|address| (inside.start..inside.end).contains(address)),
            "{kind}"
        );
        assert!(
            addresses.is_sorted_by(|leaf, root| leaf < root),
            "{kind}: {addresses:x?}"
        );
    }
    let main = session.thread(&session.described["main"]);
    assert_eq!(
        read_gil_holder(&session.interpreter, main.interpreter, &memory),
        match session.interpreter.free_threaded {
            true => GilState::Disabled,
            false => GilState::Free,
        }
    );
}

/// What the sampler does: copy thread state and data stack first, read the frames from the copy.
fn check_snapshot(python: &str) {
    let Some(session) = Session::start(python) else {
        return;
    };
    let memory = session.target.memory();
    for (kind, described) in &session.described {
        let thread = session.thread(described);
        let (mut live, mut copied) = (PythonStack::default(), PythonStack::default());
        read_stack(
            &session.interpreter,
            thread.state_address,
            &memory,
            &mut live,
        )
        .unwrap();
        let mut snapshot = SnapshotMemory::default();
        let mut copy =
            |address, length| snapshot.insert(address, memory.read_bytes(address, length).unwrap());
        let (address, length) = state_range(&session.interpreter, thread.state_address);
        copy(address, length);
        let stacks = live.runs.iter().filter_map(|run| run.stack_address);
        let (low, high) = (stacks.clone().min().unwrap(), stacks.max().unwrap());
        // The leaf's CFrame may lie below the marks, and all lie in the stack that the sampler
        // copies.
        copy(low - 1024, (high - low) as usize + 1536);
        if let Some((address, length)) =
            data_stack_range(&session.interpreter, thread.state_address, &memory)
        {
            copy(address, length);
        }
        let layered = LayeredMemory::new(&snapshot, &memory);
        read_stack(
            &session.interpreter,
            thread.state_address,
            &layered,
            &mut copied,
        )
        .unwrap();
        assert_eq!(live, copied);
        let missed = layered.into_missed();
        // Generators, and all frames of 3.10, lie on the heap.
        if !["generator", "coroutine"].contains(&kind.as_str())
            && session.interpreter.version.minor > 10
        {
            assert_eq!(missed, [], "{kind} on {python}");
        }
    }
}

/// 3.10 links and unlinks a `CFrame` and a frame one after the other: each moment in between, made
/// from a thread that is held.
#[test]
fn an_evaluation_of_3_10_that_begins_or_ends_takes_no_frame_of_another() {
    let Some(session) = Session::start("3.10") else {
        return;
    };
    let FrameChain::Objects { frame, cframe } = session.interpreter.layout.chain else {
        panic!("not 3.10");
    };
    let memory = session.target.memory();
    let offsets = &session.interpreter.layout.frame;
    for (kind, described) in &session.described {
        let state = session.thread(described).state_address;
        let read = |field: u32, value: Option<u64>| {
            let mut changed = SnapshotMemory::default();
            if let Some(value) = value {
                changed.insert(state + u64::from(field), value.to_le_bytes().to_vec());
            }
            let mut stack = PythonStack::default();
            let layered = LayeredMemory::new(&changed, &memory);
            read_stack(&session.interpreter, state, &layered, &mut stack).unwrap();
            stack
        };
        let pointer = |address: u64, offset: u32| memory.read_u64(address + u64::from(offset));
        let addresses = |stack: &PythonStack| -> Vec<Option<u64>> {
            stack.runs.iter().map(|run| run.stack_address).collect()
        };
        let whole = read(frame, None);
        let inner = pointer(state, cframe.leaf).unwrap();
        let outer = pointer(inner, cframe.previous).unwrap();
        let ending = read(cframe.leaf, Some(outer));
        assert_eq!(ending.frames, whole.frames, "{kind}");
        assert_eq!(ending.ending_inside, Some(outer), "{kind}");
        assert_eq!(addresses(&ending)[0], None, "{kind}");
        assert_eq!(addresses(&ending)[1..], addresses(&whole)[1..], "{kind}");
        let back = pointer(whole.frames[0].frame_address, offsets.previous).unwrap();
        let beginning = read(frame, Some(back));
        assert_eq!(beginning.frames, whole.frames[1..], "{kind}");
        assert_eq!(beginning.ending_inside, None, "{kind}");
        assert_eq!(addresses(&beginning), addresses(&whole), "{kind}");
        assert_eq!(beginning.runs[0].length, 0, "{kind}");
    }
}

/// 3.11 and 3.12 link a `CFrame` before they fill it in: what led outwards may be anything.
fn check_unfilled(python: &str) {
    const UNFILLED: u64 = 0x1000;
    let Some(session) = Session::start(python) else {
        return;
    };
    let (FrameChain::Entries(cframe) | FrameChain::ShimsBehindCFrame(cframe)) =
        session.interpreter.layout.chain
    else {
        panic!("{python} has no CFrame");
    };
    let memory = session.target.memory();
    let state = session.thread(&session.described["main"]).state_address;
    let leaf = state + u64::from(cframe.leaf);
    let mut stack = PythonStack::default();
    read_stack(&session.interpreter, state, &memory, &mut stack).unwrap();
    let whole = stack.clone();
    let mut read = |outer: u64| {
        let mut fields = vec![0; 64];
        fields[cframe.previous as usize..][..8].copy_from_slice(&outer.to_le_bytes());
        let mut changed = SnapshotMemory::default();
        changed.insert(leaf, UNFILLED.to_le_bytes().to_vec());
        changed.insert(UNFILLED, fields);
        let layered = LayeredMemory::new(&changed, &memory);
        let result = read_stack(&session.interpreter, state, &layered, &mut stack);
        result.map(|()| stack.clone())
    };
    let outside = read(memory.read_u64(leaf).unwrap()).unwrap();
    assert_eq!(outside.frames, whole.frames);
    let first = outside.runs[0];
    assert_eq!((first.stack_address, first.length), (Some(UNFILLED), 0));
    assert!(outside.leaf_is_unfilled && !whole.leaf_is_unfilled);
    // It leads to something without a frame: that is no empty stack.
    assert_eq!(read(UNFILLED), Err(FrameError::Invalid(UNFILLED)));
}

#[test]
fn an_evaluation_of_3_11_that_begins_hides_no_frames() {
    check_unfilled("3.11");
}

#[test]
fn an_evaluation_of_3_12_that_begins_hides_no_frames() {
    check_unfilled("3.12");
}

/// A native frame as gdb sees it.
#[derive(Debug)]
struct NativeFrame {
    pc: u64,
    stack: std::ops::Range<u64>,
    name: String,
}

impl NativeFrame {
    fn is_evaluation(&self) -> bool {
        self.name.starts_with("_PyEval_EvalFrameDefault")
    }
}

/// Every native evaluation that gdb sees has one run, whose address lies in its part of the C
/// stack.
fn check_evaluations(python: &str) {
    if std::process::Command::new("gdb")
        .arg("--version")
        .output()
        .is_err()
    {
        eprintln!("skipped: no gdb here");
        return;
    }
    let Some(session) = Session::start(python) else {
        return;
    };
    let memory = session.target.memory();
    let stacks = gdb_stacks(&session.target);
    for (kind, described) in &session.described {
        let thread = session.thread(described);
        let mut stack = PythonStack::default();
        read_stack(
            &session.interpreter,
            thread.state_address,
            &memory,
            &mut stack,
        )
        .unwrap();
        let native = &stacks[&described.native];
        let matched: Vec<usize> = stack
            .runs
            .iter()
            .map(|run| {
                native
                    .iter()
                    .position(|frame| frame.stack.contains(&run.stack_address.unwrap()))
                    .unwrap()
            })
            .collect();
        assert!(
            matched.is_sorted_by(|leaf, root| leaf < root),
            "{kind} on {python}: {matched:?}"
        );
        // The cold part of the evaluation function, where Debian's 3.14 and 3.15 make their calls,
        // has no symbol; there the frames that runs lie in tell where it is.
        let code: Vec<u64> = matched.iter().map(|&index| native[index].pc).collect();
        let cold = *code.iter().min().unwrap()..=*code.iter().max().unwrap();
        let named = native.iter().any(NativeFrame::is_evaluation);
        let expected = (0..native.len()).filter(|&index| match named {
            true => native[index].is_evaluation(),
            false => native[index].name == "None" && cold.contains(&native[index].pc),
        });
        assert_eq!(
            matched,
            expected.collect::<Vec<_>>(),
            "{kind} on {python}: {native:x?}"
        );
    }
}

/// By thread id: native frames, leaf first.
fn gdb_stacks(target: &Target) -> BTreeMap<u64, Vec<NativeFrame>> {
    let script = "
import gdb
for thread in gdb.selected_inferior().threads():
    thread.switch()
    frame = gdb.newest_frame()
    while frame is not None and frame.older() is not None:
        older = frame.older()
        stack = [int(x.read_register('rsp')) for x in (frame, older)]
        print('FRAME', thread.ptid[1], frame.pc(), *stack, frame.name())
        frame = older
";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("script.py");
    std::fs::write(&path, script).unwrap();
    let output = std::process::Command::new("gdb")
        .args([
            "-nx",
            "-batch",
            "-iex",
            "set debuginfod enabled off",
            "-iex",
        ])
        .arg(format!("set sysroot {}", target.root().display()))
        .arg("-iex")
        .arg(format!("file /proc/{}/exe", target.pid()))
        .args(["-p", &target.pid().to_string(), "-x"])
        .arg(path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut stacks: BTreeMap<u64, Vec<NativeFrame>> = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("FRAME ")) {
        let mut words = line.splitn(5, ' ');
        let [thread, pc, low, high] = [0; 4].map(|_| words.next().unwrap().parse::<u64>().unwrap());
        let name = words.next().unwrap().to_owned();
        stacks.entry(thread).or_default().push(NativeFrame {
            pc,
            stack: low..high,
            name,
        });
    }
    assert!(
        !stacks.is_empty(),
        "{text} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    stacks
}

/// py-spy names the same frames, for the versions that it knows.
fn check_peer(python: &str) {
    let Some(peer) = crate::installed::peer("py-spy") else {
        return;
    };
    let Some(session) = Session::start(python) else {
        return;
    };
    let output = std::process::Command::new(peer)
        .args(["dump", "--json", "--pid", &session.target.pid().to_string()])
        .output()
        .unwrap();
    let peers: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let memory = session.target.memory();
    let mut codes = CodeCache::new(&session.interpreter);
    let mut stack = PythonStack::default();
    for thread in peers.as_array().unwrap() {
        let ident = thread["thread_id"].as_u64().unwrap();
        let ours = session
            .threads
            .iter()
            .find(|ours| ours.pthread == ident)
            .unwrap();
        read_stack(
            &session.interpreter,
            ours.state_address,
            &memory,
            &mut stack,
        )
        .unwrap();
        let ours: Vec<String> = lines_of(&stack, &mut codes, &memory)
            .iter()
            .map(|((name, file, line), _)| format!("{} {file} {line}", last_part(name)))
            .collect();
        let text = |frame: &serde_json::Value, key: &str| frame[key].as_str().unwrap().to_owned();
        let theirs: Vec<String> = thread["frames"]
            .as_array()
            .unwrap()
            .iter()
            .map(|frame| {
                format!(
                    "{} {} {}",
                    last_part(&text(frame, "name")),
                    text(frame, "filename"),
                    frame["line"]
                )
            })
            // It takes the trampoline of `__init__` for a frame.
            .filter(|line| line != "__init__ __init__ 0")
            .collect();
        assert_eq!(ours, theirs, "{python}");
    }
    assert_eq!(peers.as_array().unwrap().len(), session.threads.len());
}

/// py-spy has `co_name`, with the class in front where it knows one.
fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

macro_rules! peer_on_each {
    ($($name:ident $version:literal),*) => {$(
        #[test]
        fn $name() {
            check_peer($version);
        }
    )*};
}

peer_on_each!(py_spy_agrees_3_10 "3.10", py_spy_agrees_3_11 "3.11", py_spy_agrees_3_12 "3.12", py_spy_agrees_3_13 "3.13");

macro_rules! on_each {
    ($($module:ident $version:literal),*) => {$(
        mod $module {
            #[test]
            fn frames_are_those_that_python_sees() {
                super::check_frames($version);
            }

            #[test]
            fn a_snapshot_holds_what_a_stack_needs() {
                super::check_snapshot($version);
            }

            #[test]
            fn runs_are_the_evaluations_that_gdb_sees() {
                super::check_evaluations($version);
            }
        }
    )*};
}

on_each!(
    python_3_10 "3.10", python_3_11 "3.11", python_3_12 "3.12", python_3_13 "3.13", python_3_14 "3.14",
    python_3_15 "3.15", python_3_13t "3.13t", python_3_14t "3.14t", debian_static "debian"
);
