//! The part of the schema that is about steps, epochs and throughput.

use crate::analysis::intervals::Share;
use crate::analysis::progress::{
    Evaluation, LeftOut, Progress as Analysed, SlowStep, StepTimes, StepUnit, WarmUp,
};
use crate::analysis::summary::ProcessSummary;
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Version of this part. Keys are only ever added within a version.
pub const VERSION: u32 = 1;

/// Progress of the process.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Progress {
    /// [`VERSION`].
    pub version: u32,
    /// Unit of steps: `optimizer`, or `batch` if no training was seen.
    pub unit: &'static str,
    /// The counter of steps: `parameter_version`, `optimizer_state`, `trainer_steps`,
    /// `lightning_steps`, `batches`.
    pub source: Option<&'static str>,
    /// Class of the object that has the counter.
    pub class: String,
    /// Steps that ended in the recording.
    pub steps: u64,
    /// Upper bound, if there may have been more; null if not, or if it is unknown.
    pub steps_at_most: Option<u64>,
    /// Time of the first reading, if more steps may have ended before it.
    pub counted_from_s: Option<f64>,
    /// Training passes over the data that were seen, in part too; null if unknown.
    pub epochs: Option<u64>,
    /// Whether there were more.
    pub more_epochs: bool,
    /// Upper bound of the epochs, if there may have been more and all are of the same length.
    pub epochs_at_most: Option<u64>,
    /// Steps per second, without warm-up and time between passes; null if too few were seen.
    pub steps_per_s: Option<f64>,
    /// Samples of the dataset per second, of this process alone; null if the batch size is not
    /// known.
    pub samples_per_s: Option<f64>,
    /// Batches delivered for training, as far as they were seen.
    pub batches: u64,
    /// Whether there were more.
    pub more_batches: bool,
    /// Batches per step; null if it is not an integer.
    pub batches_per_step: Option<u64>,
    /// Lengths of steps; null if too few were seen.
    pub step_ms: Option<StepMs>,
    /// Lengths of the epochs that are complete in the recording and that another one follows, with
    /// the time between them.
    pub epoch_s: Vec<f64>,
    /// Steps at the start that the figures above exclude.
    pub warmup: WarmUp,
    /// The other steps: `step_ms`, `steps_per_s`, `phases` and `slow` are not of these.
    pub left_out: LeftOut,
    /// Passes without a step; null if there were none.
    pub evaluation: Option<Evaluation>,
    /// Wall time of the training thread per step, by phase.
    pub phases: BTreeMap<String, PhaseMs>,
    /// Share of the steps' time in collectives in other phases than `communication`.
    pub collectives_elsewhere: Share,
    /// Steps that took much longer than others.
    pub slow: Vec<Slow>,
}

/// Lengths of steps, milliseconds.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct StepMs {
    /// Number of steps that the figures are of.
    pub steps: u64,
    /// Mean.
    pub mean: f64,
    /// 95 % interval of the mean; null if steps last five ticks or less, or are
    /// fewer than ten, as all below.
    pub mean_low: Option<f64>,
    /// See `mean_low`.
    pub mean_high: Option<f64>,
    /// Standard deviation, without the variance that the ticks add.
    pub sd: Option<f64>,
    /// Percentiles.
    pub p50: Option<f64>,
    /// See `p50`.
    pub p95: Option<f64>,
    /// See `p50`.
    pub p99: Option<f64>,
    /// The longest.
    pub max: Option<f64>,
    /// Mean uncertainty of the end of a step.
    pub resolution: Option<f64>,
}

/// A phase of a step.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct PhaseMs {
    /// Milliseconds per step.
    pub ms: f64,
    /// Share of the steps' time.
    pub share: Share,
}

/// A step that took much longer than others.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Slow {
    /// Its number in the recording, from 1.
    pub step: u64,
    /// Start, seconds from the start of the recording.
    pub at_s: f64,
    /// Length.
    pub ms: f64,
    /// The phase that took longer than it usually does.
    pub phase: String,
    /// By how much.
    pub more_ms: f64,
    /// The user's line that called it; null if none was on the stack.
    pub file: Option<String>,
    /// See `file`.
    pub line: Option<u32>,
}

/// The progress of a process; `None` if no counter was read.
pub(super) fn progress(profile: &Profile, process: &ProcessSummary) -> Option<Progress> {
    let analysed = process.progress.as_ref()?;
    Some(Progress {
        version: VERSION,
        unit: match analysed.unit {
            StepUnit::Optimizer => "optimizer",
            StepUnit::Batch => "batch",
        },
        source: analysed.source.map(|kind| kind.name()),
        class: analysed.class.clone(),
        steps: analysed.steps,
        steps_at_most: analysed.steps_at_most,
        counted_from_s: analysed.counted_from_ns.map(seconds),
        epochs: analysed.epochs,
        more_epochs: analysed.more_epochs,
        epochs_at_most: analysed.epochs_at_most,
        steps_per_s: analysed.steps_per_s(),
        samples_per_s: analysed.samples_per_s(),
        batches: analysed.batches,
        more_batches: analysed.more_batches,
        batches_per_step: analysed.batches_per_step,
        step_ms: analysed.times.as_ref().map(step_ms),
        epoch_s: analysed.epoch_ns.iter().copied().map(seconds).collect(),
        warmup: analysed.warm_up,
        left_out: analysed.left_out,
        evaluation: Some(analysed.evaluation).filter(|sum| sum.passes > 0),
        phases: phases(profile, analysed),
        collectives_elsewhere: analysed.collectives_elsewhere,
        slow: analysed
            .slow
            .iter()
            .map(|slow| slow_row(profile, slow))
            .collect(),
    })
}

fn step_ms(times: &StepTimes) -> StepMs {
    let spread = times.spread.as_ref();
    let ms = |ns: u64| ns as f64 / 1e6;
    StepMs {
        steps: times.steps,
        mean: times.mean_ns / 1e6,
        mean_low: times.interval_ns.map(|(low, _)| low / 1e6),
        mean_high: times.interval_ns.map(|(_, high)| high / 1e6),
        sd: spread.map(|spread| spread.sd_ns / 1e6),
        p50: spread.map(|spread| ms(spread.p50_ns)),
        p95: spread.map(|spread| ms(spread.p95_ns)),
        p99: spread.map(|spread| ms(spread.p99_ns)),
        max: spread.map(|spread| ms(spread.max_ns)),
        resolution: spread.map(|spread| ms(spread.resolution_ns)),
    }
}

fn phases(profile: &Profile, analysed: &Analysed) -> BTreeMap<String, PhaseMs> {
    let phases = analysed.phases.iter().map(|phase| {
        let row = PhaseMs {
            ms: phase.per_step_ns / 1e6,
            share: phase.share,
        };
        (profile.phase_name(phase.phase).to_owned(), row)
    });
    phases.collect()
}

fn slow_row(profile: &Profile, slow: &SlowStep) -> Slow {
    let function = slow
        .line
        .and_then(|(function, _)| profile.function(function));
    Slow {
        step: slow.number,
        at_s: seconds(slow.start_ns.saturating_sub(profile.start_ns)),
        ms: slow.ns as f64 / 1e6,
        phase: profile.phase_name(slow.phase).to_owned(),
        more_ms: slow.more_ns as f64 / 1e6,
        file: function.map(|function| function.file.clone()),
        line: slow.line.map(|(_, line)| line),
    }
}
