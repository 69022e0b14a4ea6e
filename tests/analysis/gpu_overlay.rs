//! Idle time and energy of a GPU by where the host was, against what was planted.

use crate::analysis_builder::*;
use crate::track_builder::{READING_NS, WINDOW_NS, energy, gpu, level, utilization};
use torchspy::analysis::gpu_overlay::account::Part;
use torchspy::analysis::gpu_overlay::cut::{NothingKept, keep_idle};
use torchspy::analysis::gpu_overlay::{GpuIdle, NoOverlay, Subject};
use torchspy::analysis::{Analysis, analyze};
use torchspy::model::profile::Profile;
use torchspy::model::track::TrackKind;
use torchspy::report::flamegraph::{self, Colours};
use torchspy::report::json::render_json;
use torchspy::report::text::{TextOptions, render_summary};
use torchspy::report::view::ViewOptions;

const MS: u64 = 1_000_000;

/// Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next()
    }
}

/// A line of the script for each turn, for how long, and the share of that time in which the device
/// is busy, at its end.
#[derive(Clone, Copy, Debug)]
struct Turn {
    line: u32,
    start_ns: u64,
    end_ns: u64,
    busy: f64,
}

impl Turn {
    fn busy_ns(&self, from_ns: u64, to_ns: u64) -> f64 {
        let length = (self.end_ns - self.start_ns) as f64;
        let begins_ns = self.end_ns - (length * self.busy) as u64;
        self.end_ns
            .min(to_ns)
            .saturating_sub(begins_ns.max(from_ns)) as f64
    }
}

/// Turns of three lines, each of its own length (give or take a fifth) and with a busy share of its
/// own.
fn turns(random: &mut Random, lengths_ms: [f64; 3], busy: [f64; 3], end_ns: u64) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    let mut start_ns = 0;
    while start_ns < end_ns {
        let at = turns.len() % 3;
        let length = lengths_ms[at] * random.between(0.8, 1.2) * 1e6;
        let end = start_ns + length as u64;
        turns.push(Turn {
            line: 10 + at as u32,
            start_ns,
            end_ns: end,
            busy: (busy[at] * random.between(0.9, 1.1)).clamp(0.0, 1.0),
        });
        start_ns = end;
    }
    turns
}

/// As a sampler at 100 Hz sees the turns: each tick is that of the line at its end.
fn recorded(turns: &[Turn], end_ns: u64) -> Profile {
    let mut builder = Builder::trainer();
    let mut at = 0;
    for tick in 0..end_ns / TICK_NS {
        let now = tick * TICK_NS + TICK_NS / 2;
        while turns.get(at).is_some_and(|turn| turn.end_ns <= now) {
            at += 1;
        }
        let line = turns.get(at).map_or(1, |turn| turn.line);
        builder.ticks(0, 1, S::Running, &[user("main", line)]);
    }
    let id = gpu(&mut builder, &[100]);
    let busy = |from, to| turns.iter().map(|turn| turn.busy_ns(from, to)).sum::<f64>();
    utilization(&mut builder, id, end_ns, busy);
    energy(&mut builder, id, end_ns, |from, to| {
        (70.0 * (to - from) as f64 + 430.0 * busy(from, to)) / 1e9
    });
    builder
        .sideband
        .tracks
        .points
        .sort_by_key(|point| (point.track, point.end_ns));
    builder.profile()
}

fn idle(analysis: &Analysis) -> &GpuIdle {
    analysis.gpu_idle[0].1.as_ref().unwrap()
}

fn of_line(analysis: &Analysis, line: u32) -> Part {
    let idle = idle(analysis);
    let rows = idle.rows.iter().chain(&idle.unresolved);
    let mut of_line =
        rows.filter(|row| matches!(row.subject, Subject::Line((_, each)) if each == line));
    of_line.next().unwrap().part
}

/// Where a figure is given, its bounds hold the truth; and what is shorter than two windows has
/// none.
#[test]
fn bounds_hold_the_truth_and_short_things_are_not_resolved() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let end_ns = 60_000 * MS;
    let (mut given, mut held, mut sure) = (0, 0, 0);
    for run in 0..40 {
        // 20 ms to 2 s, and busy for anything from nothing to all of the time.
        let lengths = [(); 3].map(|()| 10_f64.powf(random.between(1.3, 3.3)));
        let busy = [(); 3].map(|()| random.between(-0.3, 1.3).clamp(0.0, 1.0));
        let turns = turns(&mut random, lengths, busy, end_ns);
        let profile = recorded(&turns, end_ns);
        let analysis = analyze(&profile);
        for (at, length_ms) in lengths.into_iter().enumerate() {
            let part = of_line(&analysis, 10 + at as u32);
            let own = turns.iter().filter(|turn| turn.line == 10 + at as u32);
            let truth: f64 = own
                .map(|turn| {
                    let length = turn.end_ns.min(end_ns).saturating_sub(turn.start_ns) as f64;
                    length - turn.busy_ns(turn.start_ns, end_ns)
                })
                .sum();
            let windows = length_ms * 1e6 / WINDOW_NS as f64;
            assert!(
                !part.resolved || windows > 1.5,
                "run {run}: {windows} windows: {part:?}"
            );
            assert!(
                part.resolved || windows < 2.7,
                "run {run}: {windows} windows: {part:?}"
            );
            if part.resolved {
                given += 1;
                held += usize::from(part.low <= truth && truth <= part.high);
                let width = (part.high - part.low) / part.host_ns as f64;
                sure += usize::from(width < 0.5);
                assert!(part.low <= part.amount && part.amount <= part.high);
            }
        }
    }
    eprintln!("{given} given, {held} hold the truth, {sure} within half of the time");
    assert!(given >= 30, "{given}");
    assert!(held * 10 >= given * 9, "{held} of {given}");
    // Bounds that always hold because they say nothing would be no answer.
    assert!(sure * 2 >= given, "{sure} of {given}");
}

/// One second of idle waiting, one of computing, and the two in a drawing, a summary, and JSON.
fn long_turns() -> (Profile, Analysis) {
    let mut random = Random(7);
    let end_ns = 30_000 * MS;
    let turns = turns(&mut random, [1000.0, 1000.0, 40.0], [0.0, 1.0, 0.5], end_ns);
    let profile = recorded(&turns, end_ns);
    let analysis = analyze(&profile);
    (profile, analysis)
}

#[test]
fn the_code_that_starves_the_device_is_named() {
    let (profile, analysis) = long_turns();
    let starving = of_line(&analysis, 10);
    assert!(starving.share().unwrap() > 0.9, "{starving:?}");
    assert!(of_line(&analysis, 11).share().unwrap() < 0.1);
    assert!(!of_line(&analysis, 12).resolved);
    let text = render_summary(&profile, &analysis, TextOptions::default());
    for part in [
        "GPU 0 IDLE while the training thread was at (estimate, windows of 167 ms)",
        "train.py:10 main",
        "Any kernel counts",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("train.py:12 main\n  Any"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&render_json(&profile, &analysis).unwrap()).unwrap();
    let rows = json["gpu_idle"].as_array().unwrap();
    let row = |line: u32| rows.iter().find(|row| row["line"] == line).unwrap();
    assert_eq!(row(10)["kind"], "line");
    assert_eq!(row(10)["file"], "/home/u/train.py");
    let (low, high) = (&row(10)["interval"]["low"], &row(10)["interval"]["high"]);
    let seconds = row(10)["seconds"].as_f64().unwrap();
    assert!(low.as_f64().unwrap() <= seconds && seconds <= high.as_f64().unwrap());
    assert!(row(12)["seconds"].is_null() && row(12)["interval"].is_null());
    assert_eq!(row(12)["resolved"], false);
}

#[test]
fn drawings_say_what_the_device_did() {
    let (profile, _) = long_turns();
    let draw = |colours| {
        let mut svg = Vec::new();
        flamegraph::render_in(&profile, &ViewOptions::default(), colours, &mut svg).unwrap();
        String::from_utf8(svg).unwrap()
    };
    let by_code = draw(Colours::Code);
    assert!(
        by_code.contains("GPU at the same time: idle 100 % (estimate"),
        "tooltips"
    );
    assert!(by_code.contains("GPU at the same time: not resolved"));
    assert!(!by_code.contains("GPU idle for 80 % and more"), "legend");
    let by_gpu = draw(Colours::Gpu);
    for name in [
        "GPU idle for 80 % and more",
        "GPU busy: idle for less than 20 %",
        "not resolved: shorter than 2 windows",
    ] {
        assert!(by_gpu.contains(name), "{name}");
    }
    assert!(by_gpu.contains("rgb(208,79,0)") && !by_gpu.contains("rgb(255,203,5)"));
    // Without a device nothing is said of one.
    let mut bare = profile.clone();
    bare.sideband.tracks = torchspy::model::track::CounterTracks::default();
    let mut svg = Vec::new();
    flamegraph::render_in(&bare, &ViewOptions::default(), Colours::Gpu, &mut svg).unwrap();
    let svg = String::from_utf8(svg).unwrap();
    assert!(!svg.contains("GPU at the same time") && svg.contains("no GPU known"));
}

#[test]
fn only_idle_windows_are_kept() {
    let (mut profile, analysis) = long_turns();
    let before: u64 = profile.samples.iter().map(|sample| sample.weight_ns).sum();
    let kept = keep_idle(&mut profile).unwrap();
    assert!(kept.windows > 0 && kept.windows < kept.of, "{kept:?}");
    let after: u64 = profile.samples.iter().map(|sample| sample.weight_ns).sum();
    assert_eq!(after, kept.windows as u64 * WINDOW_NS);
    assert!(after < before / 2);
    let ticks: u64 = profile
        .samples
        .iter()
        .map(|sample| u64::from(sample.ticks))
        .sum();
    assert!(
        ticks.abs_diff(after / TICK_NS) < after / TICK_NS / 20,
        "{ticks}"
    );
    // What is left is the line that starves the device, mostly.
    let starving = of_line(&analyze(&profile), 10).host_ns;
    assert!(starving * 10 > after * 9, "{starving} of {after}");
    assert!(of_line(&analysis, 10).host_ns > starving);

    let mut bare = Profile::default();
    assert_eq!(keep_idle(&mut bare), Err(NothingKept::NoWindows));
    let mut builder = Builder::trainer();
    builder.ticks(0, 300, S::Running, &[user("main", 1)]);
    let id = gpu(&mut builder, &[100]);
    utilization(&mut builder, id, 3_000 * MS, |from, to| {
        0.5 * (to - from) as f64
    });
    let mut busy = builder.profile();
    assert!(matches!(
        keep_idle(&mut busy),
        Err(NothingKept::NoneIdle(_))
    ));
}

#[test]
fn why_there_is_no_overlay_is_said() {
    let why = |make: fn(&mut Builder)| {
        let mut builder = Builder::trainer();
        builder.ticks(0, 300, S::Running, &[user("main", 1)]);
        make(&mut builder);
        let profile = builder.profile();
        let analysis = analyze(&profile);
        let text = render_summary(&profile, &analysis, TextOptions::default());
        let why = *analysis.gpu_idle[0].1.as_ref().unwrap_err();
        assert_eq!(
            text.contains("GPU IDLE by line: unknown"),
            !analysis.tracks.devices.is_empty(),
            "{text}"
        );
        why
    };
    assert_eq!(why(|_| {}), NoOverlay::NoDevice);
    let several = why(|builder| {
        builder.processes[0].has_cuda = true;
        for _ in 0..2 {
            let id = gpu(builder, &[]);
            utilization(builder, id, 3_000 * MS, |_, _| 0.0);
        }
    });
    assert_eq!(several, NoOverlay::Several);
    // An instance, of which the driver tells GPM's figures alone.
    let instance = why(|builder| {
        let id = gpu(builder, &[100]);
        level(builder, TrackKind::SmActive, id, 3_000 * MS, 0.5);
    });
    assert_eq!(instance.to_string(), "its utilization was not measured");
    let clock = why(|builder| {
        let id = gpu(builder, &[100]);
        utilization(builder, id, 3_000 * MS, |_, _| 0.0);
        builder.sideband.tracks.clocks[0].error_ns = 100 * MS;
    });
    assert_eq!(
        clock.to_string(),
        "the driver's clock is not known well enough"
    );
}

/// Energy of phases and the idle baseline against what was planted.
#[test]
fn energy_by_phase_and_above_the_baseline() {
    let mut builder = Builder::trainer();
    let input = [
        user("main", 88),
        lib(
            "torch/utils/data/dataloader.py",
            "_MultiProcessingDataLoaderIter._try_get_data",
        ),
        libc("poll"),
    ];
    let step = [
        user("main", 90),
        lib("torch/optim/optimizer.py", "Optimizer.step"),
        torch("at::native::add(at::Tensor const&)"),
    ];
    // Two seconds idle, one second busy; ten times.
    for _ in 0..10 {
        builder.ticks(0, 200, S::Poll, &input);
        builder.ticks(0, 100, S::Running, &step);
    }
    let end_ns = 30_000 * MS;
    let id = gpu(&mut builder, &[100, 7]);
    let busy = |from: u64, to: u64| {
        let until = |at: u64| {
            (at / (3_000 * MS) * 1_000 * MS + (at % (3_000 * MS)).saturating_sub(2_000 * MS)) as f64
        };
        until(to) - until(from)
    };
    utilization(&mut builder, id, end_ns, busy);
    // The counter is late by up to a step, as the driver's is.
    energy(&mut builder, id, end_ns, |from, to| {
        let late = |at: u64| at / READING_NS * READING_NS;
        let (from, to) = (late(from), late(to));
        (70.0 * (to - from) as f64 + 430.0 * busy(from, to)) / 1e9
    });
    let profile = builder.profile();
    let analysis = analyze(&profile);
    let device = &analysis.energy.devices[0];
    let truth = 70.0 * 30.0 + 430.0 * 10.0;
    assert!((device.joules - truth).abs() < 0.02 * truth, "{device:?}");
    assert!((device.idle_w.unwrap() - 70.0).abs() < 2.0, "{device:?}");
    let rank = &analysis.energy.ranks[0];
    assert!(rank.shared);
    let of = |name: &str| {
        let mut phases = rank.phases.iter();
        let phase = phases.find(|phase| phase.phase == name).unwrap();
        phase.energy.unwrap()
    };
    for (name, truth) in [("input", 70.0 * 20.0), ("optimizer", 500.0 * 10.0)] {
        let energy = of(name);
        assert!(
            energy.interval.low <= truth && truth <= energy.interval.high,
            "{name}: {energy:?}"
        );
        assert!(
            (energy.joules - truth).abs() < 0.02 * truth,
            "{name}: {energy:?}"
        );
    }
    let text = render_summary(&profile, &analysis, TextOptions::default());
    for part in [
        "ENERGY of the whole device (estimate",
        "idle baseline",
        "shared with other processes",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json = render_json(&profile, &analysis).unwrap();
    assert!(json.contains("\"above_idle_j\""), "{json}");
}
