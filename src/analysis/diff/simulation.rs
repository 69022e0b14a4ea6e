//! Simulated trainers and a simulated sampler: how often is noise called a difference, and how
//! often is a real difference found?
//!
//! A step goes through parts of known length. Lengths vary from step to step; the machine's speed
//! drifts during a run, and differs from one run to the next. A tick falls anywhere within its
//! period. All random numbers come from a fixed seed.

use super::keys::Key;
use super::noise::RunToRun;
use super::steps::BetweenSteps;
use super::units::{Unit, Units};
use super::{Diff, Options, Row, Run, Verdict, compare};
use crate::model::category::{Activity, FrameKind, Phase, SummaryRow};
use crate::model::facts::StackFacts;
use crate::model::ids::{FunctionId, NnModuleId, ProcessId, ThreadId};
use crate::model::nn_module::NnModuleInfo;
use crate::model::process::{ProcessInfo, ThreadInfo};
use crate::model::profile::{Function, Profile, ProfileFrame, ProfileProcess, ProfileSample, Role};
use crate::model::sample::{Capture, ThreadState};

const TICK_NS: f64 = 10e6;

/// Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        // Separates neighbouring seeds (SplitMix64).
        let mut mixed = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Standard normal (Box and Muller 1958).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (2.0 * std::f64::consts::PI * self.uniform()).cos()
    }
}

/// A machine and a run on it.
#[derive(Clone, Copy)]
struct World {
    seconds: f64,
    /// Of a part's length from step to step, relative.
    jitter: f64,
    /// Of the machine's speed within a run, and over how many seconds it changes.
    drift: (f64, f64),
    /// Of its speed from run to run.
    run_to_run: f64,
    /// What layer 2 takes longer, ms.
    planted_ms: f64,
}

const QUIET: World = World {
    seconds: 60.0,
    jitter: 0.05,
    drift: (0.01, 3.0),
    run_to_run: 0.0,
    planted_ms: 0.0,
};

/// Parts of a step of 100 ms: layers in forward, operators in backward, the optimizer, the next
/// batch.
fn lengths_ms() -> Vec<(Phase, f64)> {
    let layers = [8.0, 6.0, 15.0, 2.0, 0.5, 0.5, 4.0, 1.0];
    let backward = [12.0, 9.0, 7.0, 5.0, 3.0, 2.0, 1.0, 0.5, 0.3, 0.2];
    let mut parts: Vec<(Phase, f64)> = layers.map(|ms| (Phase::Forward, ms)).to_vec();
    parts.extend(backward.map(|ms| (Phase::Backward, ms)));
    parts.extend([(Phase::Backward, 0.1); 60]);
    parts.extend([
        (Phase::Optimizer, 8.0),
        (Phase::Input, 7.0),
        (Phase::User, 2.0),
    ]);
    parts
}

/// The part that the slowdown is planted in.
const PLANTED: usize = 2;

struct Simulated {
    profile: Profile,
    steps: Vec<(u64, u64)>,
}

fn function(index: usize) -> Function {
    Function {
        name: format!("f{index}"),
        short_name: format!("f{index}"),
        file: "/home/u/train.py".to_owned(),
        first_line: 10,
        kind: FrameKind::PythonUser,
        is_python: true,
        ..Function::default()
    }
}

fn empty(parts: &[(Phase, f64)]) -> Profile {
    let mut profile = Profile::default();
    profile.processes.push(ProfileProcess {
        info: ProcessInfo::default(),
        role: Role::Trainer {
            rank: None,
            world_size: None,
            local_rank: None,
        },
        job: None,
        training_thread: Some(ThreadId(0)),
    });
    profile.threads.push(ThreadInfo {
        tid: 1,
        is_python: true,
        ..ThreadInfo::default()
    });
    profile.functions = (0..parts.len()).map(function).collect();
    profile.nn_modules = (0..parts.len())
        .map(|index| NnModuleInfo {
            root: "Net".to_owned(),
            number: 0,
            path: format!("layers.{index}"),
            class: "Block".to_owned(),
            training: Some(true),
        })
        .collect();
    profile
}

fn simulate(world: &World, seed: u64) -> Simulated {
    let parts = lengths_ms();
    let mut random = Random::new(seed);
    let mut profile = empty(&parts);
    let stacks: Vec<_> = parts
        .iter()
        .enumerate()
        .map(|(index, &(phase, _))| {
            let frame = |nn_module| ProfileFrame {
                function: FunctionId::from_index(index),
                line: 11,
                nn_module,
                ..ProfileFrame::default()
            };
            let module = (phase == Phase::Forward).then(|| NnModuleId::from_index(index));
            let frames = module.map(|id| frame(Some(id))).into_iter();
            let stack = profile.stacks.intern(frames.chain([frame(None)]));
            let line = Some((FunctionId::from_index(index), 11));
            let facts = StackFacts {
                user_line: line,
                python_leaf: line,
                modules: profile.facts.module_chains.intern(module),
                ..StackFacts::default()
            };
            let count = profile.stacks.stacks().len();
            profile.facts.stacks.resize(count, facts);
            stack
        })
        .collect();
    let of_run = 1.0 + world.run_to_run * random.normal();
    let mut drift = random.normal();
    let (mut now, mut steps) = (0.0, Vec::new());
    let (mut tick_end, mut last, mut number) = (TICK_NS * random.uniform(), 0.0, 0.0);
    while now < world.seconds * 1e9 {
        let start = now;
        // The drift keeps its variance and loses its memory.
        let kept = (-0.1 / world.drift.1).exp();
        drift = drift * kept + random.normal() * (1.0 - kept * kept).sqrt();
        let speed = of_run * (1.0 + world.drift.0 * drift);
        for (index, &(phase, ms)) in parts.iter().enumerate() {
            let planted = if index == PLANTED {
                world.planted_ms
            } else {
                0.0
            };
            let noise = (1.0 + world.jitter * random.normal()).max(0.1);
            now += (ms + planted) * 1e6 * noise * speed;
            while tick_end <= now {
                profile
                    .samples
                    .push(sample(last, tick_end, phase, stacks[index]));
                last = tick_end;
                number += 1.0;
                tick_end = TICK_NS * (number + random.uniform());
            }
        }
        steps.push((start as u64, now as u64));
    }
    profile.end_ns = now as u64;
    Simulated { profile, steps }
}

fn sample(
    from: f64,
    to: f64,
    phase: Phase,
    stack: Option<crate::model::ids::StackId>,
) -> ProfileSample {
    ProfileSample {
        stack,
        start_ns: from as u64,
        weight_ns: to as u64 - from as u64,
        ticks: 1,
        capture: Capture::Stopped,
        state: ThreadState::Running,
        phase,
        activity: Activity::AtenCompute,
        row: SummaryRow::HostComputation,
        ..ProfileSample::default()
    }
}

/// Runs of A and of B, compared.
fn compared(a: &World, b: &World, runs: usize, seed: u64, options: &Options) -> Diff {
    let simulated = |world: &World, side: u64| -> Vec<Simulated> {
        (0..runs as u64)
            .map(|run| simulate(world, seed * 1000 + run * 2 + side))
            .collect()
    };
    let sides = [simulated(a, 0), simulated(b, 1)];
    let [a, b] = sides.each_ref().map(|side| {
        side.iter()
            .map(|each| Run {
                name: String::new(),
                profile: &each.profile,
                process: ProcessId(0),
                units: Units::Steps(each.steps.clone()),
                evaluation: BetweenSteps::default(),
            })
            .collect::<Vec<_>>()
    });
    compare(&a, &b, options).unwrap()
}

#[derive(Default)]
struct Tally {
    step_called: u32,
    any_part_called: u32,
    step_held: u32,
    layer_held: u32,
}

fn layer(diff: &Diff) -> &Row {
    diff.rows
        .iter()
        .find(|row| matches!(&row.key, Key::Module { path, .. } if path == "layers.2"))
        .unwrap()
}

/// Equal runs, compared `tries` times. `truth_ms` is what B takes longer.
fn tally(a: &World, b: &World, runs: usize, tries: u64, options: &Options) -> Tally {
    let mut tally = Tally::default();
    let truth = (b.planted_ms - a.planted_ms) * 1e6;
    let holds = |row: &Row| (row.difference_ns - truth).abs() <= row.half_ns;
    for seed in 0..tries {
        let diff = compared(a, b, runs, seed, options);
        assert_eq!(diff.unit, Unit::Step);
        let step = diff.step.as_ref().unwrap();
        tally.step_called += u32::from(step.verdict != Verdict::Noise);
        let called = diff.rows.iter().any(|row| row.verdict != Verdict::Noise);
        tally.any_part_called += u32::from(called);
        tally.step_held += u32::from(holds(step));
        tally.layer_held += u32::from(holds(layer(&diff)));
    }
    tally
}

const ALONE: Options = Options { run_to_run: 0.0 };
const TRIES: u64 = 100;

#[test]
fn equal_runs_on_a_machine_that_drifts_within_a_run_do_not_differ() {
    let tally = tally(&QUIET, &QUIET, 1, TRIES, &ALONE);
    // 5 % are expected for the step, 1 % for all parts together.
    assert!(tally.step_called <= 10, "{}", tally.step_called);
    assert!(tally.any_part_called <= 4, "{}", tally.any_part_called);
    assert!(tally.step_held >= 90 && tally.layer_held >= 90);
}

#[test]
fn equal_runs_on_a_machine_that_changes_between_them_do_not_differ() {
    let changes = World {
        run_to_run: 0.01,
        ..QUIET
    };
    let allowed = tally(&changes, &changes, 1, TRIES, &Options::default());
    assert!(allowed.step_called <= 10, "{}", allowed.step_called);
    assert!(allowed.any_part_called <= 4, "{}", allowed.any_part_called);
    // Without that allowance the step is called different much too often, so the test would notice.
    let alone = tally(&changes, &changes, 1, 60, &ALONE);
    assert!(alone.step_called > 12, "{}", alone.step_called);
}

#[test]
fn pooled_runs_measure_what_changes_between_them() {
    let changes = World {
        run_to_run: 0.03,
        seconds: 20.0,
        ..QUIET
    };
    let tally = tally(&changes, &changes, 3, TRIES, &Options::default());
    assert!(tally.step_called <= 10, "{}", tally.step_called);
    assert!(tally.any_part_called <= 4, "{}", tally.any_part_called);
    assert!(tally.step_held >= 90 && tally.layer_held >= 90);
}

#[test]
fn a_module_that_takes_five_percent_of_a_step_longer_is_found_and_named() {
    let changes = World {
        run_to_run: 0.005,
        ..QUIET
    };
    let planted = World {
        planted_ms: 5.0,
        ..changes
    };
    let tries = 40;
    let (mut step_found, mut named, mut elsewhere) = (0, 0, 0);
    for seed in 0..tries {
        let diff = compared(&changes, &planted, 1, seed, &Options::default());
        let step = diff.step.as_ref().unwrap();
        step_found += u32::from(step.verdict == Verdict::Slower);
        named += u32::from(layer(&diff).verdict == Verdict::Slower);
        let others = diff.rows.iter().filter(|row| {
            row.verdict != Verdict::Noise
                && matches!(&row.key, Key::Module { path, .. } if !path.is_empty() && path != "layers" && path != "layers.2")
        });
        elsewhere += u32::from(others.count() > 0);
        if step.verdict == Verdict::Slower {
            let carrier = diff.carrier.as_ref().unwrap();
            assert_eq!(carrier.key, layer(&diff).key);
        }
    }
    assert_eq!(named, tries as u32);
    assert!(step_found >= 36, "{step_found}");
    assert!(elsewhere <= 2, "{elsewhere}");
}

#[test]
fn intervals_hold_the_difference_that_was_planted() {
    let planted = World {
        planted_ms: 3.0,
        ..QUIET
    };
    let tally = tally(&QUIET, &planted, 1, TRIES, &ALONE);
    assert!(tally.step_held >= 90, "{}", tally.step_held);
    assert!(tally.layer_held >= 90, "{}", tally.layer_held);
}

#[test]
fn several_runs_are_told_from_one() {
    let one = compared(&QUIET, &QUIET, 1, 1, &Options::default());
    assert_eq!(one.run_to_run, RunToRun::Assumed(0.01));
    let short = World {
        seconds: 10.0,
        ..QUIET
    };
    let two = compared(&short, &short, 2, 1, &Options::default());
    assert!(matches!(
        two.run_to_run,
        RunToRun::Measured { freedom: 2, .. }
    ));
}
