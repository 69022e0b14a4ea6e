//! The view of `torchspy top` on a test backend, from segments as a sampler writes them: every view
//! at several sizes, and what keys do to it.

use crate::analysis_builder::{Builder, F, S, TICK_NS, fetch, lib, libc, names, torch, user};
use crate::track_builder::gpu;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::time::Duration;
use torchspy::live::Live;
use torchspy::model::ids::{GpuId, ProcessId, ThreadId, TrackId};
use torchspy::model::nn_module::NnModuleInfo;
use torchspy::model::profile::Profile;
use torchspy::model::progress::{CounterInfo, CounterKind, ProgressPoint};
use torchspy::model::segment::Segment;
use torchspy::model::track::{SHARE_ONE, TrackInfo, TrackKind, TrackPoint};
use torchspy::recording::Recording;
use torchspy::resolve::{Names, resolve};
use torchspy::sampling::session::ProgressSnapshot;
use torchspy::top::Status;
use torchspy::top::draw::{Colours, draw, plain};
use torchspy::top::state::{State, View};
use torchspy::torch::rules::RuleSet;

/// Ticks of a segment.
const TICKS: u64 = 40;

fn resolved(recording: &Recording, rules: &'static RuleSet) -> Profile {
    resolve(recording, Names { rules, ..names() })
}

fn module(path: &str, class: &str) -> F {
    F::Module(NnModuleInfo {
        root: "ResNet".to_owned(),
        number: 0,
        path: path.to_owned(),
        class: class.to_owned(),
        training: Some(true),
    })
}

fn call() -> F {
    lib("torch/nn/modules/module.py", "Module._call_impl")
}

/// A trainer that waits for its loader for a quarter of the time, with a worker, and `busy`
/// millionths of a GPU.
fn segment(index: u64, busy: u64) -> Segment {
    let mut builder = Builder::trainer();
    let start_ns = 1_000_000_000_000 + index * TICKS * TICK_NS;
    builder.process(101, 100, &["python", "train.py"]);
    builder.thread(1, 101, "pt_data_worker", true);
    let main = user("main", 40);
    let layer = [
        main.clone(),
        module("", "ResNet"),
        call(),
        user("ResNet.forward", 12),
        module("layer1", "Sequential"),
        call(),
        lib("torch/nn/modules/container.py", "Sequential.forward"),
        module("layer1.0", "Conv2d"),
        call(),
        lib("torch/nn/modules/conv.py", "Conv2d.forward"),
        torch("at::_ops::conv2d::call(at::Tensor const&)"),
        torch("at::native::mkldnn_convolution(at::Tensor const&)"),
    ];
    builder.ticks(0, TICKS / 2, S::Running, &layer);
    let backward = [
        main.clone(),
        lib("torch/_tensor.py", "Tensor.backward"),
        lib("torch/autograd/graph.py", "_engine_run_backward"),
        torch("torch::autograd::Engine::execute(std::vector const&)"),
    ];
    builder.ticks(0, TICKS / 4, S::Running, &backward);
    let waits = [
        main,
        lib(
            "torch/utils/data/dataloader.py",
            "_MultiProcessingDataLoaderIter._next_data",
        ),
        lib(
            "torch/utils/data/dataloader.py",
            "_MultiProcessingDataLoaderIter._try_get_data",
        ),
        libc("poll"),
    ];
    builder.ticks(0, TICKS / 4, S::Poll, &waits);
    builder.ticks(1, TICKS, S::Running, &fetch(&[libc("read")]));
    let device = gpu(&mut builder, &[100]);
    track(&mut builder, TrackKind::Utilization, device, busy);
    track(&mut builder, TrackKind::Power, device, 312_000);
    track(&mut builder, TrackKind::MemoryUsed, device, 41 << 30);
    builder.counters.push(CounterInfo {
        process: ProcessId::from_index(0),
        number: 0,
        kind: CounterKind::Batches,
        class: "_MultiProcessingDataLoaderIter".to_owned(),
        file: "/home/u/train.py".to_owned(),
        line: 40,
        facts: Vec::new(),
    });
    for tick in (0..TICKS).step_by(10) {
        builder.sideband.points.push(ProgressPoint {
            counter: torchspy::model::ids::CounterId::from_index(0),
            thread: ThreadId::from_index(0),
            before_ns: (tick * TICK_NS).saturating_sub(TICK_NS),
            time_ns: tick * TICK_NS,
            value: index * 4 + tick / 10,
        });
    }
    let mut segment = builder.segment(index, start_ns);
    for point in &mut segment.sideband.tracks.points {
        point.start_ns += start_ns;
        point.end_ns += start_ns;
    }
    segment
}

fn track(builder: &mut Builder, kind: TrackKind, gpu: GpuId, value: u64) {
    let tracks = &mut builder.sideband.tracks;
    tracks.tracks.push(TrackInfo {
        kind,
        gpu: Some(gpu),
        pid: 0,
        process: String::new(),
    });
    tracks.points.push(TrackPoint {
        track: TrackId::from_index(tracks.tracks.len() - 1),
        start_ns: 0,
        end_ns: TICKS * TICK_NS / 2,
        value,
    });
}

fn watched(segments: u64) -> Live {
    let mut live = Live::new(Builder::new().run, resolved, RuleSet::built_in());
    for index in 0..segments {
        live.add(segment(index, (index + 1) % 10 * SHARE_ONE / 10));
    }
    live
}

fn status() -> Status {
    Status {
        sampler: ProgressSnapshot {
            elapsed: Duration::from_secs(3723),
            ticks: 1000,
            samples: 1000,
            rate_hz: 100.0,
            threads: 2,
            processes: 2,
            stopped_share: 0.004,
            over_budget: false,
        },
        ..Status::default()
    }
}

fn drawn(live: &Live, status: &Status, state: &mut State, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| draw(frame, live, status, state, Colours::None))
        .unwrap();
    let shown = terminal.backend().to_string();
    let lines: Vec<&str> = shown
        .lines()
        .map(|line| line.trim_matches('"').trim_end())
        .collect();
    lines.join("\n")
}

fn press(state: &mut State, codes: &[KeyCode]) {
    for code in codes {
        state.key(KeyEvent::new(*code, KeyModifiers::NONE));
    }
}

#[test]
fn every_view_at_80_by_24() {
    let live = watched(25);
    for view in View::ALL {
        let mut state = State {
            view,
            ..State::default()
        };
        insta::assert_snapshot!(
            format!("{view:?}_80x24"),
            drawn(&live, &status(), &mut state, (80, 24))
        );
    }
}

#[test]
fn large_small_and_empty_screens() {
    let live = watched(25);
    let mut state = State::default();
    insta::assert_snapshot!("160x50", drawn(&live, &status(), &mut state, (160, 50)));
    insta::assert_snapshot!("40x10", drawn(&live, &status(), &mut state, (40, 10)));
    let nothing = Live::new(Builder::new().run, resolved, RuleSet::built_in());
    insta::assert_snapshot!(
        "nothing_yet",
        drawn(&nothing, &status(), &mut state, (80, 24))
    );
    state.help = true;
    insta::assert_snapshot!("help", drawn(&live, &status(), &mut state, (80, 24)));
}

/// As many activities as leave the names of phases in full.
#[test]
fn names_of_phases_are_not_cut() {
    let mut live = Live::new(Builder::new().run, resolved, RuleSet::built_in());
    let mut segment = segment(0, SHARE_ONE);
    // An activity more, so that not all of them fit.
    for sample in segment.samples.iter_mut().step_by(2) {
        sample.queue_ns = sample.weight_ns / 2;
    }
    live.add(segment);
    let mut state = State {
        view: View::Phases,
        ..State::default()
    };
    for width in 60..=160 {
        let shown = drawn(&live, &status(), &mut state, (width, 24));
        assert!(
            shown.contains("Phase, last 5 s (4: all)"),
            "{width}:\n{shown}"
        );
        let mut lines = shown.lines();
        let sum = lines.find(|line| line.trim().starts_with("100.0%"));
        assert!(!sum.unwrap().contains('…'), "{width}:\n{shown}");
    }
}

#[test]
fn no_size_is_too_small() {
    let live = watched(3);
    let many: Vec<u16> = (1..30).chain([79, 80, 81, 500]).collect();
    for view in View::ALL {
        for &width in &many {
            for height in (1..14).chain([24, 100]) {
                let mut state = State {
                    view,
                    selected: 1000,
                    ..State::default()
                };
                let shown = drawn(&live, &status(), &mut state, (width, height));
                // A frame of any size shows something: what does not fit is cut, and says so.
                assert!(!shown.trim().is_empty(), "{view:?} {width}x{height}");
            }
        }
    }
}

#[test]
fn what_has_ended_stays_and_says_so() {
    let live = watched(5);
    let status = Status {
        ended: Some("the process has ended".to_owned()),
        recording: Some("torchspy-train.tspy".to_owned()),
        nccl_ras: Some("NCCL RAS (localhost:28028): nothing listens there".to_owned()),
        ..status()
    };
    let shown = drawn(&live, &status, &mut State::default(), (80, 24));
    assert!(
        shown.contains("ENDED") && shown.contains("the process has ended"),
        "{shown}"
    );
    assert!(shown.contains("28028): nothing listens there"), "{shown}");
    assert!(
        shown.contains("recording into torchspy-train.tspy"),
        "{shown}"
    );
    assert!(shown.contains("ResNet.forward"), "{shown}");
}

#[test]
fn a_filter_and_a_folded_branch() {
    let live = watched(5);
    let mut state = State::default();
    press(
        &mut state,
        &[KeyCode::Char('/'), KeyCode::Char('C'), KeyCode::Char('O')],
    );
    let shown = drawn(&live, &status(), &mut state, (80, 24));
    assert!(
        shown.contains("Conv2d.forward") && !shown.contains("ResNet.forward"),
        "{shown}"
    );
    assert!(shown.contains("filter: CO_"), "{shown}");
    press(&mut state, &[KeyCode::Esc, KeyCode::Char('m')]);
    let shown = drawn(&live, &status(), &mut state, (80, 24));
    assert!(
        shown.contains("layer1") && !shown.contains("Conv2d"),
        "{shown}"
    );
    press(&mut state, &[KeyCode::Down, KeyCode::Char('+')]);
    let shown = drawn(&live, &status(), &mut state, (80, 24));
    assert!(shown.contains("0 (Conv2d)"), "{shown}");
}

#[test]
fn now_forgets_and_since_does_not() {
    // 25 segments are ten seconds, of which the last five are now.
    let live = watched(25);
    let process = live.shown(None).unwrap();
    assert_eq!(process.info.pid, 100);
    let segment_ns = TICKS * TICK_NS;
    assert_eq!(process.since.wall_ns, 25 * segment_ns);
    assert_eq!(process.now.wall_ns, 13 * segment_ns);
    let conv = process
        .now
        .operators
        .times
        .iter()
        .find(|(name, _)| name.contains("conv2d"));
    assert_eq!(conv.unwrap().1.total_ns, 13 * segment_ns / 2);
    let mut live = live;
    live.reset();
    let process = live.shown(None).unwrap();
    assert_eq!(
        (process.since.wall_ns, process.now.wall_ns),
        (0, 13 * segment_ns)
    );
}

#[test]
fn a_flamegraph_is_of_the_last_minute() {
    let live = watched(400);
    let recording = live.last_minute();
    let seconds = (recording.end_ns - recording.start_ns) as f64 / 1e9;
    assert!((60.0..61.0).contains(&seconds), "{seconds}");
    let device = &live.devices[0];
    let kept_ns = live.end_ns - device.utilization.front().unwrap().0;
    assert!(kept_ns <= 60_000_000_000, "{kept_ns}");
}

#[test]
fn a_pid_given_out_again_is_another_process() {
    let mut live = watched(5);
    let mut next = segment(5, 0);
    next.tables.processes[0].start_ticks += 1;
    live.add(next);
    assert_eq!(live.processes[&100].since.wall_ns, TICKS * TICK_NS);
}

/// Equal own time is sorted by total time; tabs and verdict are whole in 80 columns.
#[test]
fn ties_go_by_total_time_and_the_head_fits_80_columns() {
    let live = watched(25);
    let mut state = State::default();
    let shown = drawn(&live, &status(), &mut state, (80, 24));
    let at = |text: &str| {
        shown
            .find(text)
            .unwrap_or_else(|| panic!("{text}:\n{shown}"))
    };
    // Functions without own time.
    assert!(at("100.0%") < at("Module._call_impl"), "{shown}");
    assert!(at("Sequential.forward") < at("Tensor.backward"), "{shown}");
    assert!(
        shown.contains(
            " F Functions  L Lines  n Native  o Ops  m Modules  a Phases  t Threads  P Procs"
        ),
        "{shown}"
    );
    let (_, verdict) = shown.split_once("\nVERDICT").unwrap();
    let (verdict, _) = verdict.split_once(" F Functions").unwrap();
    assert!(!verdict.contains('…'), "{shown}");
}

#[test]
fn plain_lines_have_head_and_table_and_no_keys() {
    let live = watched(25);
    let text = plain(&live, &status(), &mut State::default(), 80, 20);
    assert!(
        text.starts_with("torchspy  python train.py\ntrainer pid 100 | 01:02:03"),
        "{text}"
    );
    assert!(
        text.contains("VERDICT") && text.contains("Conv2d.forward"),
        "{text}"
    );
    assert!(
        !text.contains("q quit") && !text.contains('\u{1b}'),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
}
