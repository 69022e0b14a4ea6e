//! From the sampler's tables to segments, and from segments to one recording: nothing changes on
//! the way.

use crate::builder::{TorchProcess, run_info, small_segments, write};
use torchspy::model::frame::Frame;
use torchspy::model::ids::{ModuleId, ProcessId, StackId, ThreadId};
use torchspy::model::process::{ProcessInfo, ThreadInfo};
use torchspy::model::sample::Sample;
use torchspy::model::segment::Segment;
use torchspy::model::stack_table::StackTable;
use torchspy::model::tables::Tables;
use torchspy::recording::{Recording, segment_of};

fn recorded(segments: &[Segment]) -> Recording {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.tspy");
    write(&path, &run_info(), segments);
    Recording::read(&path).unwrap()
}

/// A sample without ids: thread, frames root first, and its numbers.
fn spelled(
    sample: &Sample,
    stacks: &StackTable<Frame>,
    thread: impl Fn(ThreadId) -> i32,
    frame: impl Fn(&Frame) -> String,
) -> String {
    let frames: Vec<String> = stacks
        .root_to_leaf(sample.stack)
        .into_iter()
        .map(|id| frame(stacks.frame(id)))
        .collect();
    let plain = Sample {
        thread: ThreadId(0),
        stack: None,
        gil_holder: None,
        ..*sample
    };
    let holder = sample.gil_holder.map(&thread);
    format!(
        "{} {holder:?} {plain:?} {}",
        thread(sample.thread),
        frames.join(";")
    )
}

#[test]
fn samples_mean_the_same_in_the_session_and_in_the_recording() {
    let mut process = TorchProcess::new(24);
    let mut sent = Vec::new();
    let mut segments = Vec::new();
    for second in 0..4 {
        let (samples, segment) = process.second_with_samples(second == 3);
        sent.extend(samples);
        segments.push(segment);
    }
    let recording = recorded(&segments);
    let tables = &process.tables;
    let spell_frame = |frame: &Frame, modules: &[_], codes: &[_]| match *frame {
        Frame::Python {
            code,
            instruction,
            line,
        } => {
            let code: &torchspy::model::code::CodeInfo = &codes[code.index()];
            format!("{code:?} {instruction} {line}")
        }
        Frame::Native {
            module,
            address,
            trust,
        } => {
            let module: &torchspy::model::module::ModuleInfo = &modules[module.index()];
            format!("{module:?} {address:?} {trust:?}")
        }
        Frame::Truncated(reason) => format!("{reason:?}"),
        Frame::NnModule(id) => format!("{id:?}"),
        Frame::Compiles(code) => format!("{:?}", codes[code.index()]),
    };
    let mut before: Vec<String> = sent
        .iter()
        .map(|sample| {
            spelled(
                sample,
                &tables.stacks,
                |id| tables.threads[&id].tid,
                |frame| spell_frame(frame, &tables.modules, &tables.codes),
            )
        })
        .collect();
    let mut after: Vec<String> = recording
        .samples
        .iter()
        .map(|sample| {
            spelled(
                sample,
                &recording.tables.stacks,
                |id| recording.tables.threads[&id].tid,
                |frame| spell_frame(frame, &recording.tables.modules, &recording.tables.codes),
            )
        })
        .collect();
    before.sort();
    after.sort();
    assert!(before.len() > 800);
    assert_eq!(before, after);
    let order: Vec<_> = recording
        .samples
        .iter()
        .map(|s| (s.thread, s.start_ns))
        .collect();
    assert!(order.is_sorted());
}

#[test]
fn every_native_frame_finds_its_symbol() {
    let mut process = TorchProcess::new(8);
    let recording = recorded(&[process.second(false), process.second(true)]);
    let mut found = 0;
    for frame in recording.tables.stacks.frames() {
        if let Frame::Native {
            module, address, ..
        } = *frame
        {
            let symbol = recording.symbols.lookup(module, address.lookup());
            found += usize::from(symbol.is_some_and(|symbol| symbol.name.starts_with("_Z")));
        }
    }
    assert!(found > 400, "{found}");
    assert!(recording.symbols.lookup(ModuleId(0), 0).is_none());
    assert!(recording.symbols.lookup(ModuleId(99), 0x1000).is_none());
    assert!(recording.symbols.len() > 300);
}

#[test]
fn the_same_things_of_two_segments_are_one() {
    let segments = small_segments();
    let recording = recorded(&segments);
    let (whole, first) = (&recording.tables, &segments[0].tables);
    assert_eq!(whole.processes.len(), first.processes.len());
    assert_eq!(whole.threads.len(), first.threads.len());
    assert_eq!(whole.modules, first.modules);
    assert_eq!(whole.codes, first.codes);
    assert_eq!(whole.stacks.stacks(), first.stacks.stacks());
    assert_eq!(recording.sideband.quality.ticks, 200);
    assert_eq!(
        (recording.start_ns, recording.end_ns),
        (1_000_000_000, 3_000_000_000)
    );
}

fn with_process(index: u64, process: ProcessInfo) -> Segment {
    Segment {
        index,
        start_ns: index,
        end_ns: index + 1,
        tables: Tables {
            processes: vec![process],
            ..Tables::default()
        },
        last: index == 1,
        ..Segment::default()
    }
}

#[test]
fn later_facts_of_a_process_replace_but_never_blank_out() {
    let first = ProcessInfo {
        pid: 7,
        start_ticks: 100,
        parent_pid: 1,
        exe: "/bin/sh".into(),
        command: vec!["sh".into()],
        environment: vec![("RANK".into(), "0".into())],
        python: "3.11.7".into(),
        first_seen_ns: 50,
        last_seen_ns: 60,
        cpu_ns: 9,
        has_cuda: true,
        ..ProcessInfo::default()
    };
    let later = ProcessInfo {
        pid: 7,
        start_ticks: 100,
        exe: "/usr/bin/python3".into(),
        torch: "2.15.0".into(),
        first_seen_ns: 55,
        last_seen_ns: 70,
        cpu_ns: 8,
        exited: true,
        ..ProcessInfo::default()
    };
    let expected = ProcessInfo {
        exe: later.exe.clone(),
        torch: later.torch.clone(),
        last_seen_ns: 70,
        exited: true,
        ..first.clone()
    };
    let recording = recorded(&[
        with_process(0, first.clone()),
        with_process(1, later.clone()),
    ]);
    assert_eq!(recording.tables.processes, [expected]);
    // The same pid, started later: another process.
    let other = ProcessInfo {
        start_ticks: 200,
        ..later
    };
    let recording = recorded(&[
        with_process(0, first.clone()),
        with_process(1, other.clone()),
    ]);
    assert_eq!(recording.tables.processes, [first, other]);
}

/// What a process is found to be once it has called exec replaces what it was, and is not mixed
/// with it.
#[test]
fn an_exec_makes_something_else_of_a_process() {
    let python = ProcessInfo {
        pid: 7,
        start_ticks: 100,
        python: "3.11.7".into(),
        ..ProcessInfo::default()
    };
    let other = ProcessInfo {
        python: String::new(),
        note: "not a Python process".into(),
        ..python.clone()
    };
    for (first, later) in [(&python, &other), (&other, &python)] {
        let segments = [
            with_process(0, first.clone()),
            with_process(1, later.clone()),
        ];
        assert_eq!(
            recorded(&segments).tables.processes,
            std::slice::from_ref(later),
            "{first:?}"
        );
    }
}

fn with_thread(index: u64, start_ticks: u64, name: &str) -> Segment {
    let mut segment = with_process(index, ProcessInfo::default());
    let thread = ThreadInfo {
        process: ProcessId(0),
        tid: 8,
        start_ticks,
        name: name.into(),
        is_python: index == 0,
        first_seen_ns: 1 + index,
        last_seen_ns: 2 + index,
    };
    segment.tables.threads.insert(ThreadId(0), thread);
    segment
}

#[test]
fn a_thread_is_known_by_its_start_where_that_was_read() {
    let reused = recorded(&[with_thread(0, 10, "a"), with_thread(1, 20, "b")]);
    assert_eq!(reused.tables.threads.len(), 2);
    for (first, second) in [(10, 10), (0, 10), (10, 0)] {
        let same = recorded(&[with_thread(0, first, "a"), with_thread(1, second, "b")]);
        assert_eq!(same.tables.threads.len(), 1);
        let thread = &same.tables.threads[&ThreadId(0)];
        assert_eq!((thread.start_ticks, thread.name.as_str()), (10, "b"));
        assert!(thread.is_python);
        assert_eq!((thread.first_seen_ns, thread.last_seen_ns), (1, 3));
    }
}

#[test]
fn a_segment_holds_only_what_it_uses() {
    let mut process = TorchProcess::new(160);
    process.second(false);
    let tables = &process.tables;
    let stack = StackId::from_index(tables.stacks.stacks().len() - 1);
    let sample = Sample {
        thread: ThreadId(3),
        stack: Some(stack),
        gil_holder: Some(ThreadId(9)),
        ..small_segments()[0].samples[0]
    };
    let depth = tables.stacks.leaf_to_root(Some(stack)).count();
    let of_session = Segment {
        samples: vec![sample],
        ..Segment::default()
    };
    let segment = segment_of(tables, of_session, &[], |_, _| None);
    let own = &segment.tables;
    let tids: Vec<i32> = own.threads.values().map(|thread| thread.tid).collect();
    assert_eq!(tids, [4242 + 3, 4242 + 9]);
    assert_eq!(own.stacks.stacks().len(), depth);
    assert!(own.stacks.frames().len() <= depth && own.codes.len() < depth);
    assert_eq!(
        segment.samples[0].stack,
        Some(StackId::from_index(depth - 1))
    );
    assert!(segment.symbols.is_empty());
}

#[test]
fn ids_that_the_session_does_not_know_are_left_out() {
    let tables = Tables::default();
    let sample = small_segments()[0].samples[0];
    let of_session = Segment {
        samples: vec![sample],
        ..Segment::default()
    };
    let segment = segment_of(&tables, of_session, &[ProcessId(5)], |_, _| None);
    assert!(segment.samples.is_empty() && segment.tables.processes.is_empty());
}

#[test]
fn stacks_that_are_no_longer_needed_are_forgotten() {
    let mut process = TorchProcess::new(20);
    process.second(false);
    let before = process.tables.stacks.clone();
    let mut live = [
        Some(StackId(3)),
        Some(StackId::from_index(before.stacks().len() - 1)),
        None,
        Some(StackId(u32::MAX)),
    ];
    let asked = live;
    process.tables.forget_stacks_except(&mut live);
    let after = &process.tables.stacks;
    assert!(after.stacks().len() < 100 && after.stacks().len() < before.stacks().len());
    let frames = |table: &StackTable<Frame>, stack: Option<StackId>| -> Vec<Frame> {
        table
            .root_to_leaf(stack)
            .into_iter()
            .map(|id| *table.frame(id))
            .collect()
    };
    for (old, new) in asked.into_iter().zip(live).take(2) {
        assert_eq!(frames(&before, old), frames(after, new));
    }
    assert_eq!(live[2..], [None, None]);
}
