//! Energy by run, rank, epoch, step and phase, against joules that are known.

use crate::analysis_builder::*;
use crate::track_builder::{energy, gpu, utilization};
use serde_json::Value;
use torchspy::analysis::energy::RankEnergy;
use torchspy::analysis::energy::curve::{Joules, STEP_NS};
use torchspy::analysis::intervals::Bounds;
use torchspy::analysis::job::Folded;
use torchspy::analysis::job::reduce::reduce;
use torchspy::analysis::scaling::run::Run;
use torchspy::analysis::{Analysis, analyze};
use torchspy::model::ids::{CounterId, ProcessId, ThreadId};
use torchspy::model::profile::Profile;
use torchspy::model::progress::{CounterInfo, CounterKind, ProgressPoint};
use torchspy::model::track::TrackKind;
use torchspy::report::json::render_json;
use torchspy::report::mlflow::{Metric, workers};
use torchspy::report::text::{TextOptions, render_summary};

const MS: u64 = 1_000_000;
const EPOCHS: u64 = 3;
const STEPS: u64 = 10;
/// A step waits for its input first, while the device idles.
const STEP: u64 = 1000 * MS;
const INPUT: u64 = 300 * MS;
/// What comes before the first epoch, and behind each of them, without a kernel.
const START: u64 = 3000 * MS;
const PAUSE: u64 = 3000 * MS;
const EPOCH: u64 = STEPS * STEP + PAUSE;
const END: u64 = START + EPOCHS * EPOCH;

/// A device: W while no kernel runs, and while a step of each epoch computes.
#[derive(Clone, Copy)]
struct Power {
    idle: f64,
    busy: [f64; EPOCHS as usize],
}

const POWER: [Power; 2] = [
    Power {
        idle: 70.0,
        busy: [300.0, 400.0, 500.0],
    },
    Power {
        idle: 50.0,
        busy: [200.0, 250.0, 300.0],
    },
];

impl Power {
    fn step_j(&self, epoch: usize) -> f64 {
        (self.idle * INPUT as f64 + self.busy[epoch] * (STEP - INPUT) as f64) / 1e9
    }

    fn pause_j(&self) -> f64 {
        self.idle * PAUSE as f64 / 1e9
    }

    fn epoch_j(&self, epoch: usize) -> f64 {
        STEPS as f64 * self.step_j(epoch) + self.pause_j()
    }

    fn run_j(&self) -> f64 {
        let epochs: f64 = (0..EPOCHS as usize).map(|epoch| self.epoch_j(epoch)).sum();
        self.idle * START as f64 / 1e9 + epochs
    }

    /// From the end of the first step, which none was seen to end before, to that of the last.
    fn steps_j(&self) -> f64 {
        let epochs: f64 = (0..EPOCHS as usize).map(|epoch| self.epoch_j(epoch)).sum();
        epochs - self.step_j(0) - self.pause_j()
    }

    /// From the start to a moment.
    fn until_j(&self, ns: u64) -> f64 {
        let mut above = 0.0;
        for (epoch, watts) in self.busy.iter().enumerate() {
            above += busy_ns(epoch as u64, ns) as f64 * (watts - self.idle);
        }
        (self.idle * ns as f64 + above) / 1e9
    }
}

/// Time in which a device was busy in an epoch, until a moment.
fn busy_ns(epoch: u64, ns: u64) -> u64 {
    let within = ns.saturating_sub(START + epoch * EPOCH).min(STEPS * STEP);
    within / STEP * (STEP - INPUT) + (within % STEP).saturating_sub(INPUT)
}

fn rank_of(builder: &mut Builder, rank: usize) {
    let number = rank.to_string();
    let process = builder.process(100 + rank as i32, 1, &["python", "train.py"]);
    let variables = [("RANK", number.as_str()), ("WORLD_SIZE", "2")];
    builder.environment(process, &variables);
    let thread = builder.thread(process, 100 + rank as i32, "python", true);
    let input = [
        user("main", 88),
        lib(
            "torch/utils/data/dataloader.py",
            "_BaseDataLoaderIter.__next__",
        ),
    ];
    let forward = [
        user("main", 89),
        lib("torch/nn/modules/module.py", "Module._call_impl"),
        torch("at::native::linear(at::Tensor const&)"),
    ];
    builder.ticks(thread, START / TICK_NS, S::Running, &[user("prepare", 12)]);
    for _ in 0..EPOCHS {
        for _ in 0..STEPS {
            builder.ticks(thread, INPUT / TICK_NS, S::Poll, &input);
            builder.ticks(thread, (STEP - INPUT) / TICK_NS, S::Running, &forward);
        }
        builder.ticks(thread, PAUSE / TICK_NS, S::Running, &[user("validate", 40)]);
    }
}

fn counter(builder: &mut Builder, process: usize, kind: CounterKind) -> CounterId {
    let id = CounterId::from_index(builder.counters.len());
    builder.counters.push(CounterInfo {
        process: ProcessId::from_index(process),
        number: id.0,
        kind,
        class: "Counted".to_owned(),
        file: "/home/u/train.py".to_owned(),
        line: 80,
        facts: Vec::new(),
    });
    id
}

/// A reading, and the last one before it.
fn read(builder: &mut Builder, counter: CounterId, before_ns: u64, time_ns: u64, value: u64) {
    let process = builder.counters[counter.index()].process;
    builder.sideband.points.push(ProgressPoint {
        counter,
        thread: ThreadId::from_index(process.index()),
        before_ns,
        time_ns,
        value,
    });
}

/// Each step ends between two readings that are as far from its end; each pass of a loader is first
/// seen when its epoch begins, and the last validation gives out its last batch at the end.
fn count(builder: &mut Builder, process: usize) {
    let steps = counter(builder, process, CounterKind::TrainerSteps);
    read(builder, steps, START, START, 0);
    for epoch in 0..EPOCHS {
        let begin = START + epoch * EPOCH;
        let train = counter(builder, process, CounterKind::Batches);
        read(builder, train, begin, begin, 1);
        for step in 1..=STEPS {
            let end = begin + step * STEP;
            let (before, after) = (end - TICK_NS / 2, end + TICK_NS / 2);
            read(builder, steps, before, after, epoch * STEPS + step);
            if step < STEPS {
                let given = after + TICK_NS;
                read(builder, train, after, given, step + 1);
            }
        }
        let pause = begin + STEPS * STEP;
        let validate = counter(builder, process, CounterKind::Batches);
        let first = pause + 2 * TICK_NS;
        read(builder, validate, first, first, 1);
        read(builder, validate, first, pause + PAUSE, 3);
    }
}

/// Two ranks, each with a device of its own, whose counter is `late` by so much each time it is
/// read, and the ranks' progress if `counted`.
fn recorded(late: fn(u64) -> u64, counted: bool) -> Builder {
    let mut builder = Builder::new();
    for (rank, power) in POWER.into_iter().enumerate() {
        rank_of(&mut builder, rank);
        if counted {
            count(&mut builder, rank);
        }
        let id = gpu(&mut builder, &[100 + rank as i32]);
        utilization(&mut builder, id, END, |from, to| {
            (0..EPOCHS)
                .map(|epoch| (busy_ns(epoch, to) - busy_ns(epoch, from)) as f64)
                .sum()
        });
        energy(&mut builder, id, END, |from, to| {
            // As a counter of whole mJ is read.
            let read = |ns: u64| (power.until_j(late(ns)) * 1e3).round() / 1e3;
            read(to) - read(from) + 1e-6
        });
    }
    builder
        .sideband
        .tracks
        .points
        .sort_by_key(|point| (point.track, point.end_ns));
    builder
}

fn analyzed(builder: Builder) -> (Profile, Analysis) {
    let profile = builder.profile();
    let analysis = analyze(&profile);
    (profile, analysis)
}

fn exact(ns: u64) -> u64 {
    ns
}

/// The counter is in whole mJ, and sums are of dozens of its readings.
fn assert_joules(reported: f64, truth: f64) {
    assert!(
        (reported - truth).abs() < 0.05,
        "{reported} J and not {truth}"
    );
}

fn assert_reported(reported: &Joules, truth: f64) {
    assert_joules(reported.joules, truth);
    assert_holds(reported, truth);
}

/// Bounds hold the truth, and are no wider than what can be taken between readings around both
/// ends.
fn assert_holds(reported: &Joules, truth: f64) {
    assert!(
        reported.interval.low <= truth + 1e-3 && truth - 1e-3 <= reported.interval.high,
        "{reported:?} and not {truth}"
    );
    let most = 500.0 * 8.0 * STEP_NS as f64 / 1e9;
    assert!(
        reported.interval.high - reported.interval.low <= most,
        "{reported:?}"
    );
}

fn rank(analysis: &Analysis, rank: usize) -> &RankEnergy {
    let ranks = analysis.energy.ranks.iter();
    let mut own = ranks.filter(|each| each.process == ProcessId::from_index(rank));
    own.next().unwrap()
}

#[test]
fn bounds_of_many_visits_are_no_more_than_the_device_took() {
    const VISITS: u64 = 20;
    const LONG: u64 = 500 * MS;
    const SHORT: u64 = 50 * MS;
    const WATTS: f64 = 500.0;
    let mut builder = Builder::new();
    let process = builder.process(100, 1, &["python", "train.py"]);
    let thread = builder.thread(process, 100, "python", true);
    let forward = [
        user("main", 89),
        lib("torch/nn/modules/module.py", "Module._call_impl"),
        torch("at::native::linear(at::Tensor const&)"),
    ];
    for _ in 0..VISITS {
        builder.ticks(thread, LONG / TICK_NS, S::Running, &[user("main", 88)]);
        builder.ticks(thread, SHORT / TICK_NS, S::Running, &forward);
    }
    let id = gpu(&mut builder, &[100]);
    energy(&mut builder, id, VISITS * (LONG + SHORT), |from, to| {
        WATTS * (to - from) as f64 / 1e9
    });
    let (_, analysis) = analyzed(builder);
    let phases = &analysis.energy.ranks[0].phases;
    let longest = phases[0].energy.unwrap();
    let truth = WATTS * (VISITS * LONG) as f64 / 1e9;
    assert!(longest.interval.low <= truth, "{longest:?}");
    assert!(truth <= longest.interval.high, "{longest:?}");
    let all = analysis.energy.devices[0].joules;
    assert!(longest.interval.high <= all, "{longest:?} of {all}");
}

#[test]
fn energy_of_the_run_the_epochs_the_steps_and_the_ranks() {
    let (_, analysis) = analyzed(recorded(exact, true));
    for (number, power) in POWER.iter().enumerate() {
        let device = &analysis.energy.devices[number];
        assert_joules(device.joules, power.run_j());
        assert_eq!(device.covered_ns, END);
        // What it would have taken anyway is told apart.
        assert!(
            (device.idle_w.unwrap() - power.idle).abs() < 1e-3,
            "{device:?}"
        );
        let idle_j = power.idle * END as f64 / 1e9;
        assert_joules(device.idle_j.unwrap(), idle_j);

        let rank = rank(&analysis, number);
        assert!(!rank.shared, "{rank:?}");
        assert_eq!(rank.gpu, device.gpu);
        assert_eq!(rank.steps, EPOCHS * STEPS - 1);
        let step = rank.step.unwrap();
        let steps = rank.steps as f64;
        assert_joules(step.joules, power.steps_j() / steps);
        let all = Joules {
            joules: step.joules * steps,
            interval: Bounds {
                low: step.interval.low * steps,
                high: step.interval.high * steps,
            },
        };
        assert_holds(&all, power.steps_j());
        // Where the last one ends is not known.
        assert_eq!(rank.epochs.len(), EPOCHS as usize - 1);
        for (epoch, reported) in rank.epochs.iter().enumerate() {
            assert_reported(&reported.unwrap(), power.epoch_j(epoch));
        }
        // A wait for input is shorter than two readings and steps of the counter; a forward pass
        // and a validation are not.
        let phase = |name: &str| {
            let mut phases = rank.phases.iter();
            phases.find(|phase| phase.phase == name).unwrap()
        };
        assert_eq!(phase("input").energy, None);
        let forward = phase("forward").energy.unwrap();
        let truth: f64 = power.busy.iter().map(|watts| watts * 7.0).sum();
        assert_joules(forward.joules, truth);
        assert!(forward.interval.low <= truth && truth <= forward.interval.high);
    }
}

/// What is told is told in JSON and in words.
#[test]
fn energy_in_the_report_and_its_json() {
    let (profile, analysis) = analyzed(recorded(exact, true));
    let json: Value = serde_json::from_str(&render_json(&profile, &analysis).unwrap()).unwrap();
    let reported = &json["energy"];
    assert_eq!(reported["estimate"], true);
    for (number, power) in POWER.iter().enumerate() {
        let joules = |value: &Value| value["energy_j"].as_f64().unwrap();
        let device = &reported["devices"][number];
        assert_eq!(
            (&device["gpu"], &device["mig"]),
            (&number.into(), &Value::Null)
        );
        assert_eq!(device["uuid"], format!("GPU-{number}"));
        assert_joules(joules(device), power.run_j());
        assert_eq!(device["energy_s"], END as f64 / 1e9);
        let (idle, above) = (&device["idle_j"], &device["above_idle_j"]);
        assert_joules(
            idle.as_f64().unwrap() + above.as_f64().unwrap(),
            power.run_j(),
        );

        let rank = &reported["ranks"][number];
        assert_eq!(
            (&rank["pid"], &rank["rank"], &rank["gpu"], &rank["shared"]),
            (
                &(100 + number).into(),
                &number.into(),
                &number.into(),
                &false.into()
            )
        );
        assert_eq!(rank["steps"], EPOCHS * STEPS - 1);
        assert_joules(joules(&rank["step"]), power.steps_j() / 29.0);
        let epochs = rank["epochs"].as_array().unwrap();
        assert_eq!(epochs.len(), EPOCHS as usize - 1);
        for (epoch, reported) in epochs.iter().enumerate() {
            let truth = power.epoch_j(epoch);
            assert_joules(joules(reported), truth);
            let bound = |name: &str| reported["interval"][name].as_f64().unwrap();
            assert!(
                bound("low") <= truth && truth <= bound("high"),
                "{reported}"
            );
        }
        let mut phases = rank["phases"].as_array().unwrap().iter();
        let input = phases.find(|phase| phase["phase"] == "input").unwrap();
        assert_eq!(
            (&input["host_s"], &input["energy"]),
            (&9.0.into(), &Value::Null)
        );
    }

    let text = render_summary(&profile, &analysis, TextOptions::default());
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let (_, reported) = text.split_once("\nENERGY of the whole device").unwrap();
    let reported = reported.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        // 3 s and 9 s of idling, and epochs of 2,520, 3,220 and 3,920 J.
        "GPU 0 9,870 J in 42.0 s, 235 W",
        "idle baseline 2,940 J (70 W, as seen for ",
        "above it 6,930 J",
        " 318 ",
        " rank 0/2, step (29 steps)",
        " 2,520 ",
        "rank 0/2, epoch 1 ",
        " 3,220 ",
        "rank 0/2, epoch 2 ",
        "input: not resolved",
        "GPU 1 6,300 J in 42.0 s, 150 W",
        " 202 ",
        " 1,700 ",
        "rank 1/2, epoch 1 ",
    ] {
        assert!(reported.contains(part), "{part}: {text}");
    }
}

/// A driver's counter shows what was taken until the last of its steps.
#[test]
fn bounds_hold_where_the_counter_is_late() {
    let late = |ns: u64| ns.saturating_sub(37 * MS) / STEP_NS * STEP_NS;
    let (_, analysis) = analyzed(recorded(late, true));
    for (number, power) in POWER.iter().enumerate() {
        let device = &analysis.energy.devices[number];
        let near = |reported: f64, truth: f64| (reported - truth).abs() <= 0.02 * truth;
        assert!(near(device.joules, power.run_j()), "{device:?}");
        let rank = rank(&analysis, number);
        let step = rank.step.unwrap().joules;
        assert!(near(step * rank.steps as f64, power.steps_j()), "{step}");
        for (epoch, reported) in rank.epochs.iter().enumerate() {
            let (reported, truth) = (reported.unwrap(), power.epoch_j(epoch));
            assert_holds(&reported, truth);
            assert!(near(reported.joules, truth), "{reported:?} and not {truth}");
        }
    }
}

/// Readings are missing in the middle of the second epoch of the first rank: what they should have
/// told is not made up.
#[test]
fn an_epoch_without_readings_is_not_told() {
    let mut builder = recorded(exact, true);
    let lost = START + EPOCH + 4 * STEP..START + EPOCH + 6 * STEP;
    let of_first = builder.sideband.tracks.tracks.iter().position(|track| {
        track.kind == TrackKind::Energy && track.gpu.is_some_and(|gpu| gpu.index() == 0)
    });
    let of_first = of_first.unwrap();
    builder.sideband.tracks.points.retain(|point| {
        point.track.index() != of_first || point.end_ns <= lost.start || point.start_ns >= lost.end
    });
    let (profile, analysis) = analyzed(builder);
    let lost_j = 2.0 * POWER[0].step_j(1);
    let device = &analysis.energy.devices[0];
    assert_joules(device.joules, POWER[0].run_j() - lost_j);
    assert_eq!(device.covered_ns, END - 2 * STEP);
    let first = rank(&analysis, 0);
    let epochs: Vec<bool> = first.epochs.iter().map(Option::is_some).collect();
    assert_eq!(epochs, [true, false]);
    assert_eq!(first.step, None);
    assert_reported(&rank(&analysis, 1).epochs[1].unwrap(), POWER[1].epoch_j(1));
    let json: Value = serde_json::from_str(&render_json(&profile, &analysis).unwrap()).unwrap();
    assert!(json["energy"]["ranks"][0]["epochs"][1].is_null());
}

#[test]
fn without_progress_there_is_energy_by_run_and_rank_alone() {
    let (profile, analysis) = analyzed(recorded(exact, false));
    let first = rank(&analysis, 0);
    assert_eq!((first.step, first.steps), (None, 0));
    assert!(first.epochs.is_empty());
    assert_joules(analysis.energy.devices[0].joules, POWER[0].run_j());
    let text = render_summary(&profile, &analysis, TextOptions::default());
    assert!(
        !text.contains("step (") && !text.contains("epoch 1"),
        "{text}"
    );
    let json: Value = serde_json::from_str(&render_json(&profile, &analysis).unwrap()).unwrap();
    let reported = &json["energy"]["ranks"][0];
    assert!(reported["step"].is_null() && reported["epochs"].as_array().unwrap().is_empty());
}

/// itwinai sums the watts of seconds, and takes the mean of utilizations.
#[test]
fn what_mlflow_is_told_and_the_energy_of_a_size_are_those_of_the_devices() {
    let profile = recorded(exact, true).profile();
    let workers = workers(&profile);
    let names: Vec<&str> = workers.iter().map(|worker| worker.name.as_str()).collect();
    assert_eq!(names, ["worker_0 (main)", "worker_1"]);
    for ((rank, worker), power) in workers.iter().enumerate().zip(POWER) {
        let params = [
            ("strategy", "unknown".to_owned()),
            ("global_rank", rank.to_string()),
            ("global_world_size", "2".to_owned()),
            ("probing_interval", "1".to_owned()),
        ];
        assert_eq!(worker.params, params);
        let of = |key: &str| -> Vec<Metric> {
            let metrics = worker.metrics.iter();
            metrics
                .filter(|metric| metric.key == key)
                .copied()
                .collect()
        };
        let watts = of("gpu_power_W");
        let seconds = END / 1_000_000_000;
        assert_eq!(watts.len() as u64, seconds);
        assert_joules(watts.iter().map(|metric| metric.value).sum(), power.run_j());
        let steps: Vec<i64> = watts.iter().map(|metric| metric.step).collect();
        assert_eq!(steps, (0..seconds as i64).collect::<Vec<_>>());
        let between = watts
            .windows(2)
            .map(|pair| pair[1].timestamp_ms - pair[0].timestamp_ms);
        assert!(between.into_iter().all(|ms| ms == 1000));
        let busy = of("gpu_utilization_percent");
        let mean = busy.iter().map(|metric| metric.value).sum::<f64>() / busy.len() as f64;
        let truth = 100.0 * busy_share();
        assert!((mean - truth).abs() < 1.0, "{mean} and not {truth}");
        // Of the main worker alone; the last pass begins no next one: its end is not known.
        let epochs: Vec<f64> = of("epoch_time_s")
            .iter()
            .map(|metric| metric.value)
            .collect();
        match rank {
            0 => assert_eq!(epochs, [EPOCH as f64 / 1e9; EPOCHS as usize - 1]),
            _ => assert!(epochs.is_empty()),
        }
    }

    let mut folded = Folded::default();
    folded.add("both.tspy".to_owned(), reduce(&profile));
    let run = Run::new("two".to_owned(), &folded.finish(None));
    let energy = run.energy.unwrap();
    assert_eq!((energy.devices, energy.ranks_without), (2, 0));
    assert_joules(energy.joules, POWER.iter().map(Power::run_j).sum());
    let epoch = energy.epoch.unwrap();
    let timed = EPOCHS as usize - 1;
    let truth: f64 = (0..timed)
        .map(|epoch| POWER.iter().map(|power| power.epoch_j(epoch)).sum::<f64>())
        .sum();
    // A boundary lies between two readings.
    assert!(
        (epoch.value / (truth / timed as f64) - 1.0).abs() < 0.01,
        "{epoch:?}"
    );
    assert_eq!(
        (run.ranks, run.epochs, run.strategy_name()),
        (2, timed, "unknown")
    );
    let utilization = run.utilization.unwrap();
    assert!(
        utilization.error.is_some() && utilization.value > busy_share(),
        "{utilization:?}"
    );
}

/// Part of the recording in which a device is busy.
fn busy_share() -> f64 {
    (EPOCHS * STEPS * (STEP - INPUT)) as f64 / END as f64
}
