//! Progress: steps, epochs and throughput, from counters that were read with the samples.
//!
//! A step is an optimizer step; if no optimizer was seen to step, it is a batch that a DataLoader
//! delivered. Counters give the exact number of steps, and the two samples between which each of
//! them ended: a step's length is known to about a tick on either side, and percentiles are given
//! only if steps last more than five ticks.
//!
//! | file | content |
//! |---|---|
//! | [`series`] | which counter counts the steps, and when each of them ended |
//! | [`onset`] | when steps get slow, while a run is watched |
//! | [`passes`] | passes of loaders over their data: which of them trained, which evaluated |
//! | [`running`] | the steps of a run that goes on, from one part of it after another |
//! | [`standstill`] | the end of a run in which no step ended |
//! | [`times`] | lengths of steps, without warm-up and time between epochs; slow steps and their phase |
//! | [`window`] | restricts a recording to some of its steps, or to an interval |

pub mod onset;
pub mod passes;
pub mod running;
pub mod series;
pub mod standstill;
pub mod times;
pub mod window;

use super::intervals::Share;
use crate::model::category::Phase;
use crate::model::ids::{FunctionId, ProcessId, ThreadId};
use crate::model::profile::{Profile, ProfileSample};
pub use crate::model::progress::Why;
use crate::model::progress::{CounterKind, facts};
use crate::model::seconds;
pub use passes::Pass;
use schemars::JsonSchema;
use serde::Serialize;
pub use series::{Step, steps};
use standstill::Standstill;
use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepUnit {
    /// Steps of an optimizer.
    #[default]
    Optimizer,
    /// Batches that a DataLoader delivered: no training was seen.
    Batch,
}

/// Steps at the start, which the headline excludes.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Eq, Serialize)]
pub struct WarmUp {
    pub steps: u64,
    /// Time until the last of them ended.
    #[serde(rename = "seconds", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub ns: u64,
}

/// Steps that [`StepTimes`] does not include, by reason. Reasons are those of the complete
/// recording, in each of its parts.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Steps whose start was not seen: those before the first end that was read.
    pub unseen: u64,
    /// Slow steps at the start of the program, and those up to the last in which torch.compile was
    /// at work.
    pub start: u64,
    /// Time of these.
    #[serde(rename = "start_seconds", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub start_ns: u64,
    /// Whether torch.compile was at work in them.
    pub compiles: bool,
    /// Steps in which a pass over the data began.
    pub between_passes: u64,
    /// Steps that torch.profiler slowed down: it ran in a part of them (`record --trace`).
    pub profiled: u64,
    /// Whether there are no other complete steps, as there may be in a part of a recording:
    /// [`StepTimes`] is of these then.
    pub all: bool,
}

/// Lengths of steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTimes {
    /// Number of steps.
    pub steps: u64,
    /// Their total time.
    pub ns: u64,
    pub mean_ns: f64,
    /// 95 % interval of the mean; `None` if steps are too short to be distinguished, or too few.
    pub interval_ns: Option<(f64, f64)>,
    /// The distribution; `None` if steps last no more than five ticks.
    pub spread: Option<Spread>,
}

/// Distribution of steps' lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Standard deviation, without the variance that the ticks add.
    pub sd_ns: f64,
    /// Percentiles.
    pub p50_ns: u64,
    pub p95_ns: u64,
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Mean uncertainty of the end of a step.
    pub resolution_ns: u64,
}

/// A step that took much longer than others.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowStep {
    /// Its number in the recording, from 1.
    pub number: u64,
    /// Start, CLOCK_MONOTONIC.
    pub start_ns: u64,
    pub ns: u64,
    /// The median length of a step.
    pub usual_ns: u64,
    /// The phase that took longer than usual, and by how much.
    pub phase: Phase,
    pub more_ns: u64,
    /// The user's line that called that phase in this step.
    pub line: Option<(FunctionId, u32)>,
}

/// Time of a phase per step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhaseTime {
    pub phase: Phase,
    /// Time per step, ns.
    pub per_step_ns: f64,
    /// Its share of steps' time.
    pub share: Share,
}

/// Passes without a step.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Eq, Serialize)]
pub struct Evaluation {
    /// How many.
    pub passes: u64,
    /// Batches that they delivered.
    pub batches: u64,
    /// From the first batch of each to the end of the last batch's forward, in total.
    #[serde(rename = "seconds", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub ns: u64,
}

/// The progress of one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    pub unit: StepUnit,
    /// The counter that steps were counted by.
    pub source: Option<CounterKind>,
    /// Class of the object that the counter belongs to.
    pub class: String,
    /// Steps that ended in the recording.
    pub steps: u64,
    /// Upper bound of the steps, if there may have been more; `None` if not, or if it is unknown.
    pub steps_at_most: Option<u64>,
    /// From the start of the recording to the first reading of the counter, ns, if steps may have
    /// ended before it.
    pub counted_from_ns: Option<u64>,
    /// Training passes that were seen; `None` if no loader was, and nothing else counts epochs.
    pub epochs: Option<u64>,
    /// Of these, passes that had begun before the recording.
    pub epochs_before: u64,
    /// Whether there were more: the batches of the passes that were seen are too few for the steps.
    pub more_epochs: bool,
    /// Upper bound of the epochs, if there may have been more and all are of the same length.
    pub epochs_at_most: Option<u64>,
    /// Epochs that are complete in the recording.
    pub epochs_complete: u64,
    /// Lengths of those that another one follows, with the time between them, ns: where the last
    /// one ends is not known.
    pub epoch_ns: Vec<u64>,
    /// Batches per step: more than 1 if gradients are accumulated. `None` if it is not an integer.
    pub batches_per_step: Option<u64>,
    /// Batches delivered for training, as far as they were seen.
    pub batches: u64,
    /// Whether there were more: those that were seen are too few for the steps.
    pub more_batches: bool,
    /// Samples in a batch.
    pub batch_size: Option<u64>,
    /// Excluded from the fields below.
    pub warm_up: WarmUp,
    /// Steps that `times` does not include.
    pub left_out: LeftOut,
    /// Lengths of steps.
    pub times: Option<StepTimes>,
    /// Steps' time by phase, descending.
    pub phases: Vec<PhaseTime>,
    /// Collectives in other phases than `communication`, as a share of the steps' time: DDP's are
    /// part of backward.
    pub collectives_elsewhere: Share,
    /// Steps much longer than the others.
    pub slow: Vec<SlowStep>,
    /// Passes without a step.
    pub evaluation: Evaluation,
    /// The end of the run, if no step ended in it for long.
    pub standstill: Option<Standstill>,
    /// The thread that steps were read from.
    pub thread: Option<ThreadId>,
    /// Numbers of the loaders' counters that delivered training batches.
    pub trained: Vec<u32>,
}

impl Progress {
    /// Steps per second.
    pub fn steps_per_s(&self) -> Option<f64> {
        let times = self.times.as_ref()?;
        (times.mean_ns > 0.0).then(|| 1e9 / times.mean_ns)
    }

    /// Samples of the dataset per second, in this process alone.
    pub fn samples_per_s(&self) -> Option<f64> {
        let size = self.batch_size?.checked_mul(self.batches_per_step?)?;
        Some(self.steps_per_s()? * size as f64)
    }
}

/// The progress of a process whose training thread has these samples, sorted by start. `None` if no
/// counter that moved was read.
pub fn progress(
    profile: &Profile,
    process: ProcessId,
    samples: &[&ProfileSample],
) -> Option<Progress> {
    let counted = series::count(profile, process)?;
    let passes = passes::passes(profile, process, &counted);
    let training: Vec<&Pass> = passes.iter().filter(|pass| pass.trains).collect();
    let batches: u64 = training
        .iter()
        .fold(0, |sum, pass| u64::saturating_add(sum, pass.batches));
    let batches_per_step = match counted.unit {
        StepUnit::Batch => Some(1),
        StepUnit::Optimizer => passes::batches_per_step(&passes),
    };
    let batch_size = batch_size(profile, &training);
    let timed = times::timed(profile, process, &counted, &passes, samples);
    let evaluation = match counted.unit {
        StepUnit::Batch => Evaluation::default(),
        StepUnit::Optimizer => {
            evaluation(&evaluating(profile, process, &passes, &counted, samples))
        }
    };
    let most_epochs = passes::most(&passes, counted.most.unwrap_or(counted.steps))
        .filter(|&most| counted.unit == StepUnit::Optimizer && most > training.len() as u64);
    let more_epochs = most_epochs.is_some() || passes::are_missing(&passes, counted.steps);
    let complete = match counted.unit {
        StepUnit::Optimizer => passes::complete(profile, &passes),
        StepUnit::Batch => Vec::new(),
    };
    let lightning = series::raised(profile, process, CounterKind::LightningEpochs);
    let epochs = match (training.len(), lightning) {
        (0, Some(ended)) if ended > 0 => Some(ended),
        (0, _) => None,
        (passes, _) => Some(passes as u64),
    };
    Some(Progress {
        unit: counted.unit,
        source: Some(counted.kind),
        class: counted.class.clone(),
        steps: counted.steps,
        steps_at_most: counted.most,
        counted_from_ns: counted
            .late_ns
            .map(|late_ns| late_ns.saturating_sub(profile.start_ns)),
        more_epochs: more_epochs && counted.unit == StepUnit::Optimizer,
        epochs_at_most: most_epochs,
        epochs: epochs.filter(|_| counted.unit == StepUnit::Optimizer),
        epochs_before: training.iter().filter(|pass| pass.began_before).count() as u64,
        epochs_complete: complete.len() as u64,
        epoch_ns: complete
            .iter()
            .filter(|pass| pass.is_followed)
            .map(|pass| pass.end_ns.saturating_sub(pass.start_ns))
            .collect(),
        more_batches: batches_per_step.is_some_and(|each| {
            counted.unit == StepUnit::Optimizer && passes::are_batches_missing(&passes, each)
        }),
        batches_per_step,
        batches,
        batch_size,
        warm_up: timed.warm_up,
        left_out: timed.left_out,
        phases: timed.phases,
        collectives_elsewhere: timed.collectives_elsewhere,
        slow: timed.slow,
        times: timed.times,
        evaluation,
        standstill: standstill::standstill(profile, &counted, samples),
        thread: counted.thread,
        trained: trained(profile, &training),
    })
}

/// Epochs of a process that are complete in the recording; empty if steps are not an optimizer's.
pub fn epochs(profile: &Profile, process: ProcessId) -> Vec<Pass> {
    match series::count(profile, process) {
        Some(counted) if counted.unit == StepUnit::Optimizer => {
            passes::complete(profile, &passes::passes(profile, process, &counted))
        }
        _ => Vec::new(),
    }
}

/// What the pace of a process is made of.
#[derive(Clone, Debug, Default)]
pub struct Paced {
    /// As [`timed_steps`].
    pub steps: Vec<(Step, Option<Why>)>,
    /// Training passes that are complete in the recording; none if steps are not an optimizer's.
    pub epochs: Vec<Pass>,
    /// Samples in a batch, and batches in a step.
    pub batch_size: Option<u64>,
    pub batches_per_step: Option<u64>,
}

/// The pace of a process; empty if no counter was read.
pub fn paced(profile: &Profile, process: ProcessId) -> Paced {
    let Some(counted) = series::count(profile, process) else {
        return Paced::default();
    };
    let passes = passes::passes(profile, process, &counted);
    let samples = series::thread_samples(profile, counted.thread);
    let training: Vec<&Pass> = passes.iter().filter(|pass| pass.trains).collect();
    let steps = times::chosen(profile, process, &counted, &passes, &samples);
    let batch_size = batch_size(profile, &training);
    match counted.unit {
        StepUnit::Batch => Paced {
            steps,
            epochs: Vec::new(),
            batch_size,
            batches_per_step: Some(1),
        },
        StepUnit::Optimizer => Paced {
            steps,
            epochs: passes::complete(profile, &passes),
            batch_size,
            batches_per_step: passes::batches_per_step(&passes),
        },
    }
}

/// The steps of a process, and how they are counted.
#[derive(Clone, Debug, Default)]
pub struct Counting {
    pub steps: Vec<Step>,
    /// Their numbers count from the program's start, and are exact.
    pub counts_from_start: bool,
    /// Further steps that there may have been, by which numbers may be too low.
    pub uncounted: u64,
    /// What counts the steps of all ranks of a job alike, from their start on, and by how much it
    /// is ahead of the numbers.
    pub counted: Option<(String, i64)>,
    /// The end of the run, if no step ended in it for long.
    pub standstill: Option<Standstill>,
}

/// How the steps of a process are counted; `None` if no counter was read. `samples`: those of the
/// training thread.
pub fn counting(
    profile: &Profile,
    process: ProcessId,
    samples: &[&ProfileSample],
) -> Option<Counting> {
    let counted = series::count(profile, process)?;
    let most = counted.most.unwrap_or(counted.steps);
    let uncounted = most.saturating_sub(counted.steps);
    let from_start = series::begins_with_program(profile) && counted.late_ns.is_none();
    Some(Counting {
        steps: series::listed(profile, &counted),
        counts_from_start: from_start && uncounted == 0,
        uncounted,
        counted: counted.ahead.map(|ahead| (counted.name(), ahead)),
        standstill: standstill::standstill(profile, &counted, samples),
    })
}

/// The steps of a process, as [`steps`] lists them, each with the reason why it is not timed.
pub fn timed_steps(profile: &Profile, process: ProcessId) -> Vec<(Step, Option<Why>)> {
    series::count(profile, process).map_or(Vec::new(), |counted| {
        let passes = passes::passes(profile, process, &counted);
        let samples = series::thread_samples(profile, counted.thread);
        times::chosen(profile, process, &counted, &passes, &samples)
    })
}

/// Passes of a process that evaluated, by start, each until the end of its last batch's forward;
/// empty if steps are not an optimizer's. `samples` are those of the training thread.
pub fn evaluations(profile: &Profile, process: ProcessId, samples: &[&ProfileSample]) -> Vec<Pass> {
    match series::count(profile, process) {
        Some(counted) if counted.unit == StepUnit::Optimizer => {
            let passes = passes::passes(profile, process, &counted);
            evaluating(profile, process, &passes, &counted, samples)
        }
        _ => Vec::new(),
    }
}

fn trained(profile: &Profile, training: &[&Pass]) -> Vec<u32> {
    let counters = training
        .iter()
        .filter_map(|pass| profile.counters.get(pass.counter.index()));
    let distinct: BTreeSet<u32> = counters.map(|counter| counter.number).collect();
    distinct.into_iter().collect()
}

/// The batch size, if it is the same in all training passes.
fn batch_size(profile: &Profile, training: &[&Pass]) -> Option<u64> {
    let mut sizes = training.iter().map(|pass| {
        let counter = profile.counters.get(pass.counter.index())?;
        counter.fact(facts::BATCH_SIZE)?.parse::<u64>().ok()
    });
    let first = sizes.next()??;
    sizes.all(|size| size == Some(first)).then_some(first)
}

/// Passes without a step, each until the end of its last batch's forward. A pass with a single
/// batch, next to longer ones that train, does not count: it is an inspection of the data,
/// `next(iter(loader))`, or the start of an epoch whose first step was not seen.
fn evaluating(
    profile: &Profile,
    process: ProcessId,
    passes: &[Pass],
    counted: &series::Counted,
    samples: &[&ProfileSample],
) -> Vec<Pass> {
    let batches = series::readings(profile, process, CounterKind::Batches);
    let batches = batches.iter().flat_map(|(_, points)| points);
    // After these, what computes is no longer the batch before.
    let mut events: Vec<u64> = batches.map(|point| point.time_ns).collect();
    events.extend(counted.ended.iter().map(|ended| ended.before_ns));
    events.sort_unstable();
    let longer = passes.iter().any(|pass| pass.trains && pass.batches > 1);
    let evaluates = |pass: &&Pass| !pass.trains && (pass.batches > 1 || !longer);
    let to_last_forward = |pass: &Pass| {
        let next = events.partition_point(|&event_ns| event_ns <= pass.end_ns);
        let until_ns = events.get(next).copied().unwrap_or(profile.end_ns);
        let end_ns = last_forward(samples, pass.end_ns, until_ns).unwrap_or(pass.end_ns);
        Pass { end_ns, ..*pass }
    };
    passes
        .iter()
        .filter(evaluates)
        .map(to_last_forward)
        .collect()
}

fn evaluation(passes: &[Pass]) -> Evaluation {
    let mut sum = Evaluation::default();
    for pass in passes {
        sum.passes += 1;
        sum.batches = sum.batches.saturating_add(pass.batches);
        let ns = pass.end_ns.saturating_sub(pass.start_ns);
        sum.ns = sum.ns.saturating_add(ns);
    }
    sum
}

/// End of the last forward between two times; `None` if there is none, or if a batch was trained.
fn last_forward(samples: &[&ProfileSample], from_ns: u64, until_ns: u64) -> Option<u64> {
    let from = samples.partition_point(|sample| sample.start_ns < from_ns);
    let rest = samples.get(from..)?.iter();
    let mut last_ns = None;
    for sample in rest.take_while(|sample| sample.start_ns < until_ns) {
        match sample.phase {
            Phase::Forward => {
                let end_ns = sample.start_ns.saturating_add(sample.weight_ns);
                last_ns = Some(end_ns.min(until_ns));
            }
            Phase::Backward | Phase::Recompute | Phase::Optimizer => return None,
            _ => {}
        }
    }
    last_ns
}
