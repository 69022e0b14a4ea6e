//! Every valid segment comes back as it was; no bytes make the decoder panic.

use super::column::{ColumnReader, Corrupt};
use super::rows::WireCounts;
use super::tracks::WireTracks;
use super::{Decoder, Encoder, WireSegment2, decode_run, encode_run};
use crate::model::address::CodeAddress;
use crate::model::code::{CodeInfo, PythonVersion};
use crate::model::frame::{Frame, Partial, Trust};
use crate::model::ids::{
    CodeId, FrameId, GpuId, ModuleId, NnModuleId, ProcessId, StackId, ThreadId, TrackId,
};
use crate::model::module::{ModuleInfo, ModuleKind, SymbolInfo};
use crate::model::nn_module::NnModuleInfo;
use crate::model::process::{ProcessInfo, ThreadInfo};
use crate::model::quality::Quality;
use crate::model::region::Region;
use crate::model::run::{ClockPair, Loss, RunInfo};
use crate::model::sample::{Capture, Gil, Sample, ThreadState};
use crate::model::segment::Segment;
use crate::model::sideband::Sideband;
use crate::model::stack_table::StackTable;
use crate::model::tables::Tables;
use crate::model::track::{
    CounterTracks, GpuClock, GpuInfo, TrackGap, TrackInfo, TrackKind, TrackPoint,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// A number of any magnitude.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64_u32).prop_map(|(bits, shift)| bits >> shift)
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z_]{0,12}", "(_ZN2at[0-9A-Za-z_]{0,20})", "\\PC{0,8}"]
}

fn processes() -> impl Strategy<Value = Vec<ProcessInfo>> {
    let process = (
        number(),
        text(),
        vec(text(), 0..4),
        vec((text(), text()), 0..3),
    )
        .prop_map(|(number, text, command, environment)| ProcessInfo {
            pid: number as i32,
            start_ticks: number,
            parent_pid: (number >> 3) as i32,
            exe: text.clone(),
            command,
            environment,
            python: text.clone(),
            torch: text.clone(),
            has_torch: number & 1 == 0,
            has_cuda: number & 2 == 0,
            note: text,
            first_seen_ns: number,
            last_seen_ns: !number,
            cpu_ns: number >> 1,
            exited: number & 4 == 0,
        });
    vec(process, 1..4)
}

fn threads() -> impl Strategy<Value = Vec<ThreadInfo>> {
    let thread = (number(), number(), text()).prop_map(|(number, other, name)| ThreadInfo {
        process: ProcessId(other as u32),
        tid: number as i32,
        start_ticks: other,
        name,
        is_python: number & 1 == 0,
        first_seen_ns: number,
        last_seen_ns: other,
    });
    vec(thread, 1..8)
}

fn modules() -> impl Strategy<Value = Vec<ModuleInfo>> {
    let kinds = select(&[ModuleKind::File, ModuleKind::Vdso, ModuleKind::Anonymous][..]);
    let module =
        (kinds, text(), vec(any::<u8>(), 0..21)).prop_map(|(kind, path, build_id)| ModuleInfo {
            kind,
            path,
            build_id,
        });
    vec(module, 1..5)
}

fn symbols() -> impl Strategy<Value = Vec<SymbolInfo>> {
    let symbol = (number(), number(), number(), text()).prop_map(|(module, start, size, name)| {
        let start = start.min(u64::MAX - 1);
        SymbolInfo {
            module: ModuleId(module as u32),
            start,
            end: start.saturating_add(size.max(1)),
            name,
        }
    });
    (vec(symbol, 0..12), any::<bool>()).prop_map(|(mut symbols, sorted)| {
        if sorted {
            symbols.sort();
        }
        symbols
    })
}

fn codes() -> impl Strategy<Value = Vec<CodeInfo>> {
    let code =
        (text(), text(), number(), number()).prop_map(|(name, file, number, hash)| CodeInfo {
            name,
            file,
            first_line: number as u32,
            version: PythonVersion::new((number >> 8) as u8, number as u8),
            content_hash: hash,
        });
    vec(code, 1..6)
}

fn nn_modules() -> impl Strategy<Value = Vec<NnModuleInfo>> {
    let module =
        (text(), text(), text(), number()).prop_map(|(root, path, class, number)| NnModuleInfo {
            root,
            path,
            class,
            number: number as u32,
            training: [None, Some(false), Some(true)][number as usize % 3],
        });
    vec(module, 1..6)
}

fn frames() -> impl Strategy<Value = Vec<Frame>> {
    let frame = (0..9_u8, number(), number(), number()).prop_map(|(kind, id, a, b)| match kind {
        0..=2 => Frame::Python {
            code: CodeId(id as u32),
            instruction: a as u32,
            line: b as u32,
        },
        3 => Frame::Truncated(Partial::ALL[a as usize % Partial::ALL.len()]),
        4 => Frame::NnModule(NnModuleId(id as u32)),
        5 => Frame::Compiles(CodeId(id as u32)),
        _ => Frame::Native {
            module: ModuleId(id as u32),
            address: if b & 1 == 0 {
                CodeAddress::Ip(a)
            } else {
                CodeAddress::Return(a)
            },
            trust: [Trust::Unwound, Trust::FramePointer, Trust::Scanned][b as usize % 3],
        },
    });
    vec(frame, 1..40)
}

fn samples() -> impl Strategy<Value = Vec<Sample>> {
    let (captures, states) = (select(Capture::ALL), select(ThreadState::ALL));
    let gils = select(&[Gil::Unknown, Gil::NotHeld, Gil::Held][..]);
    let times = (0..1_u64 << 62, 0..1_u64 << 50, 0..1_u64 << 50, 0..4_u64);
    let ids = (
        any::<u32>(),
        any::<Option<u32>>(),
        any::<Option<u32>>(),
        any::<Option<u32>>(),
    );
    let sample = (captures, states, gils, times, ids, any::<u32>()).prop_map(
        |(capture, state, gil, (start_ns, weight_ns, run_ns, queue_ns), ids, ticks)| {
            let (thread, stack, gil_holder, syscall) = ids;
            Sample {
                thread: ThreadId(thread),
                stack: stack.map(StackId),
                start_ns,
                weight_ns,
                ticks: if ticks & 3 == 0 { ticks } else { 1 },
                capture,
                state,
                syscall,
                gil,
                gil_holder: gil_holder.map(ThreadId),
                run_ns: if ticks & 4 == 0 { run_ns } else { 0 },
                queue_ns,
            }
        },
    );
    vec(sample, 0..40)
}

fn quality() -> impl Strategy<Value = Quality> {
    (vec(number(), 0..5), number()).prop_map(|(stops, number)| {
        let mut quality = Quality {
            ticks: number,
            late_ticks: number >> 1,
            missed_ticks: number >> 2,
            target_run_ns: number >> 3,
            skipped_for_budget: number >> 4,
            stop_timeouts: number >> 5,
            torn_retries: number >> 6,
            own_cpu_ns: number >> 7,
            own_queue_ns: number >> 8,
            throttled_ns: number >> 9,
            calls_cut_short: number >> 11,
            calls_left_running: number >> 12,
            privileges_lost: number >> 13,
            skipped_for_late_stop: number >> 14,
            skipped_for_turn: number >> 15,
            ..Quality::default()
        };
        stops.into_iter().for_each(|ns| quality.stops.record(ns));
        quality
    })
}

/// Puts ids into the bounds of their tables, stacks' parents before them, and samples into order.
fn made_valid(mut segment: Segment, parents: &[(u32, u32)]) -> Segment {
    let below = |id: u32, count: usize| id % count as u32;
    let tables = &mut segment.tables;
    for thread in tables.threads.values_mut() {
        thread.process.0 = below(thread.process.0, tables.processes.len());
    }
    for symbol in &mut segment.symbols {
        symbol.module.0 = below(symbol.module.0, tables.modules.len());
    }
    let mut frames = tables.stacks.frames().to_vec();
    for frame in &mut frames {
        match frame {
            Frame::Python { code, .. } => code.0 = below(code.0, tables.codes.len()),
            Frame::Native { module, .. } => module.0 = below(module.0, tables.modules.len()),
            Frame::Compiles(code) => code.0 = below(code.0, tables.codes.len()),
            Frame::NnModule(id) => id.0 = below(id.0, tables.nn_modules.len()),
            Frame::Truncated(_) => {}
        }
    }
    let stacks = parents.iter().enumerate().map(|(index, &(parent, frame))| {
        let parent = parent % (index as u32 + 1);
        let frame = FrameId(below(frame, frames.len()));
        let parent = (parent as usize != index).then_some(StackId(parent));
        (parent, frame)
    });
    let stacks: Vec<_> = stacks.collect();
    let stack_count = stacks.len();
    tables.stacks = StackTable::from_parts(frames, stacks);
    for sample in &mut segment.samples {
        sample.thread.0 = below(sample.thread.0, tables.threads.len());
        if let Some(holder) = &mut sample.gil_holder {
            holder.0 = below(holder.0, tables.threads.len());
        }
        sample.stack = sample
            .stack
            .filter(|_| stack_count > 0)
            .map(|stack| StackId(below(stack.0, stack_count)));
    }
    segment
        .samples
        .sort_by_key(|sample| (sample.start_ns, sample.thread));
    segment
}

fn segments() -> impl Strategy<Value = Segment> {
    let people = (processes(), threads(), samples());
    let code = (
        modules(),
        symbols(),
        codes(),
        frames(),
        vec(any::<(u32, u32)>(), 0..60),
        nn_modules(),
    );
    let clock = (number(), number()).prop_map(|(monotonic_ns, wall_ns)| ClockPair {
        monotonic_ns,
        wall_ns,
    });
    let loss = (number(), number(), text()).prop_map(|(time_ns, samples, reason)| Loss {
        time_ns,
        samples,
        reason,
    });
    let rest = (
        quality(),
        vec(clock, 0..3),
        vec(loss, 0..3),
        any::<bool>(),
        (any::<u64>(), 0..1_u64 << 61, 0..1_u64 << 61),
    );
    (people, code, rest).prop_map(|(people, code, rest)| {
        let (processes, threads, samples) = people;
        let (modules, symbols, codes, frames, parents, nn_modules) = code;
        let (quality, clocks, losses, last, (index, start_ns, length_ns)) = rest;
        let segment = Segment {
            index,
            start_ns,
            end_ns: start_ns + length_ns,
            tables: Tables {
                processes,
                threads: (0..).map(ThreadId).zip(threads).collect(),
                modules: modules.into(),
                codes: codes.into(),
                nn_modules: nn_modules.into(),
                stacks: StackTable::from_parts(frames, Vec::new()),
                ..Tables::default()
            },
            symbols,
            samples,
            sideband: Sideband {
                quality,
                clocks,
                losses,
                ..Sideband::default()
            },
            last,
        };
        made_valid(segment, &parents)
    })
}

/// The payload of a segment, and its length before compression.
fn encoded(segment: &Segment) -> Result<(Vec<u8>, usize), Corrupt> {
    let mut payload = Vec::new();
    let length = Encoder::new().unwrap().encode(segment, &mut payload)?;
    Ok((payload, length))
}

/// A segment as a file has it: samples thread by thread.
fn by_thread(mut segment: Segment) -> Segment {
    segment
        .samples
        .sort_by_key(|sample| (sample.thread, sample.start_ns));
    segment
}

fn decoded(payload: &[u8], length: usize) -> Result<Segment, Corrupt> {
    Decoder::new(2).unwrap().decode(payload, length)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_segment_comes_back(segment in segments()) {
        let (payload, length) = encoded(&segment).unwrap();
        prop_assert_eq!(decoded(&payload, length).unwrap(), by_thread(segment));
    }

    #[test]
    fn buffers_can_be_used_again(first in segments(), second in segments()) {
        let (mut encoder, mut decoder) = (Encoder::new().unwrap(), Decoder::new(2).unwrap());
        for segment in [&first, &second, &first] {
            let mut payload = Vec::new();
            let length = encoder.encode(segment, &mut payload).unwrap();
            let read = decoder.decode(&payload, length).unwrap();
            prop_assert_eq!(read, by_thread(segment.clone()));
        }
    }

    #[test]
    fn damaged_tables_do_no_harm(
        segment in segments(),
        edits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let (payload, length) = encoded(&segment).unwrap();
        let mut raw = zstd::bulk::decompress(&payload, length).unwrap();
        for (at, byte) in edits {
            raw[at.index(length)] = byte;
        }
        let payload = zstd::bulk::compress(&raw, 1).unwrap();
        if let Ok(segment) = decoded(&payload, raw.len()) {
            // What passes is valid: it can be written.
            encoded(&segment).unwrap();
        }
    }

    #[test]
    fn any_bytes_do_no_harm(raw in vec(any::<u8>(), 0..2000)) {
        let payload = zstd::bulk::compress(&raw, 1).unwrap();
        let _ = decoded(&payload, raw.len());
        let _ = decoded(&raw, raw.len());
        let _ = decode_run(&raw);
    }
}

#[test]
fn the_run_comes_back() {
    let run = RunInfo {
        torchspy: "0.1.0".into(),
        command: vec!["python".into(), "tränen.py".into()],
        threads: Some("pt_.*".into()),
        rate_hz: 99.5,
        max_stopped: 0.02,
        pid: -1,
        started_ns: u64::MAX,
        notes: vec![String::new()],
        regions: vec![Region::parse("loss=train.py:Net.loss").unwrap()],
        ..RunInfo::default()
    };
    assert_eq!(decode_run(&encode_run(&run).unwrap()).unwrap(), run);
    let of_session = RunInfo {
        session: Some(ClockPair {
            monotonic_ns: 1,
            wall_ns: u64::MAX,
        }),
        ..run
    };
    assert_eq!(
        decode_run(&encode_run(&of_session).unwrap()).unwrap(),
        of_session
    );
}

#[test]
fn ids_that_do_not_exist_are_not_written() {
    let mut segment = Segment::default();
    segment.tables.stacks = StackTable::from_parts(Vec::new(), vec![(None, FrameId(0))]);
    assert!(encoded(&segment).is_err());
}

#[test]
fn a_declared_length_is_not_believed() {
    let (payload, length) = encoded(&Segment::default()).unwrap();
    let mut decoder = Decoder::new(2).unwrap();
    assert!(decoder.decode(&payload, length).is_ok());
    for wrong in [0, length - 1, length + 1, 1 << 20, u32::MAX as usize] {
        assert!(decoder.decode(&payload, wrong).is_err());
    }
    let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 19).unwrap();
    assert!(decoder.decode(&bomb, 64 << 20).is_err());
}

#[test]
fn tracks_come_back_and_have_to_fit_together() {
    let tracks = CounterTracks {
        gpus: vec![GpuInfo {
            uuid: "GPU-8d2c".to_owned(),
            index: 3,
            mig: Some(1),
            name: "X100".to_owned(),
            recorded: true,
            ..GpuInfo::default()
        }],
        clocks: vec![GpuClock {
            gpu: GpuId(0),
            monotonic_ns: 5,
            driver_ns: 1 << 60,
            error_ns: 7,
            clock: "realtime".to_owned(),
        }],
        tracks: vec![TrackInfo {
            kind: TrackKind::NetworkSent,
            gpu: Some(GpuId(0)),
            pid: 12,
            process: "python".to_owned(),
        }]
        .into(),
        points: vec![TrackPoint {
            track: TrackId(0),
            start_ns: 10,
            end_ns: 20,
            value: 1 << 60,
        }],
        gaps: vec![TrackGap {
            gpu: None,
            kind: Some(TrackKind::Energy),
            start_ns: 1,
            end_ns: 0,
            reason: "why".to_owned(),
        }],
    };
    let written = |tracks: &CounterTracks| {
        let mut segment = Segment::default();
        segment.sideband.tracks = tracks.clone();
        let (payload, length) = encoded(&segment)?;
        decoded(&payload, length)
    };
    assert_eq!(written(&tracks).unwrap().sideband.tracks, tracks);
    let wrong: [fn(&mut CounterTracks); 6] = [
        |tracks| tracks.points[0].track = TrackId(1),
        |tracks| tracks.points[0].value += 1,
        |tracks| tracks.points[0].end_ns = 1 << 63,
        |tracks| tracks.tracks.values_mut()[0].gpu = Some(GpuId(1)),
        |tracks| tracks.gaps[0].gpu = Some(GpuId(9)),
        |tracks| tracks.clocks[0].gpu = GpuId(1),
    ];
    for spoil in wrong {
        let mut tracks = tracks.clone();
        spoil(&mut tracks);
        assert!(written(&tracks).is_err(), "{tracks:?}");
    }
}

/// Version 2 was written before there were counter tracks; and a reader of that time takes what it
/// knows.
#[test]
fn a_segment_without_tracks_is_read_and_tracks_are_passed_over() {
    let mut segment = Segment {
        index: 7,
        ..Segment::default()
    };
    segment.sideband.tracks.gaps.push(TrackGap {
        gpu: None,
        kind: None,
        start_ns: 1,
        end_ns: 0,
        reason: "why".to_owned(),
    });
    let (payload, length) = encoded(&segment).unwrap();
    let raw = zstd::bulk::decompress(&payload, length).unwrap();
    let (wire, tracks): (WireSegment2<ColumnReader<'_>>, &[u8]) =
        postcard::take_from_bytes(&raw).unwrap();
    assert_eq!(wire.first.index, 7);
    assert!(!tracks.is_empty());
    let old = &raw[..raw.len() - tracks.len()];
    let payload = zstd::bulk::compress(old, 3).unwrap();
    let read = decoded(&payload, old.len()).unwrap();
    assert_eq!(
        (read.index, read.sideband.tracks),
        (7, CounterTracks::default())
    );
}

/// Kinds that the first readers of tracks do not know come after all that these read.
#[test]
fn tracks_of_later_kinds_come_back_and_are_passed_over_by_older_readers() {
    let track = |kind| TrackInfo {
        kind,
        gpu: None,
        pid: 12,
        process: String::new(),
    };
    let point = |track| TrackPoint {
        track: TrackId(track),
        start_ns: 10,
        end_ns: 20,
        value: 7,
    };
    let mut segment = Segment::default();
    let tracks = &mut segment.sideband.tracks;
    tracks.tracks = vec![
        track(TrackKind::Anonymous),
        track(TrackKind::SampledAnonymous),
        track(TrackKind::Private),
    ]
    .into();
    tracks.points = vec![point(0), point(1), point(2)];
    let (payload, length) = encoded(&segment).unwrap();
    let read = decoded(&payload, length).unwrap();
    assert_eq!(read.sideband.tracks, segment.sideband.tracks);
    // What the first readers of tracks take.
    let raw = zstd::bulk::decompress(&payload, length).unwrap();
    let (_, rest): (WireSegment2<ColumnReader<'_>>, &[u8]) =
        postcard::take_from_bytes(&raw).unwrap();
    let (known, rest): (WireTracks<ColumnReader<'_>>, &[u8]) =
        postcard::take_from_bytes(rest).unwrap();
    let known = known.decode().unwrap();
    assert_eq!(known.tracks, vec![track(TrackKind::Anonymous)].into());
    assert_eq!(known.points, [point(0)]);
    assert!(postcard::from_bytes::<WireCounts>(rest).is_ok());
}
