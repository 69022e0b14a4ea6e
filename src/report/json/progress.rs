//! The part of the schema that is about steps, epochs and throughput.

use crate::analysis::intervals::Share;
use crate::analysis::progress::{Progress as Analysed, SlowStep, StepTimes, StepUnit};
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
    /// What a step is: `optimizer`, or `batch` where nothing was trained.
    pub unit: &'static str,
    /// What counted the steps: `parameter_version`, `trainer_steps`, `lightning_steps`, `batches`.
    pub source: Option<&'static str>,
    /// Class of the object that was read.
    pub class: String,
    /// Steps that ended in the recording.
    pub steps: u64,
    /// From when on they were counted, where more may have ended before.
    pub counted_from_s: Option<f64>,
    /// Passes over the data that began and trained; null where that is not known.
    pub epochs: Option<u64>,
    /// Whether there were more.
    pub more_epochs: bool,
    /// Steps a second, less warm-up and what lay between passes; null where too few were seen.
    pub steps_per_s: Option<f64>,
    /// Samples of the dataset a second, of this process alone; null where the batch size is not
    /// known.
    pub samples_per_s: Option<f64>,
    /// Batches that were given out for training, as far as they were seen.
    pub batches: u64,
    /// Whether there were more.
    pub more_batches: bool,
    /// Batches for a step; null where it is no whole number.
    pub batches_per_step: Option<u64>,
    /// Lengths of steps; null where too few were seen.
    pub step_ms: Option<StepMs>,
    /// How long the epochs took that were seen whole, with what came between them.
    pub epoch_s: Vec<f64>,
    /// What was left out of the above at the start.
    pub warmup: WarmUp,
    /// Passes without a step; null where there was none.
    pub evaluation: Option<Evaluation>,
    /// Wall time of the training thread in a step, by phase.
    pub phases: BTreeMap<String, PhaseMs>,
    /// Share of the steps' time in collectives that lie in other phases than `communication`.
    pub collectives_elsewhere: Share,
    /// Steps that took much longer than others.
    pub slow: Vec<Slow>,
}

/// Lengths of steps, milliseconds.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct StepMs {
    /// Steps that these figures are of.
    pub steps: u64,
    /// Mean.
    pub mean: f64,
    /// 95 % interval of the mean; null where steps last five ticks or less, as all below.
    pub mean_low: Option<f64>,
    /// See `mean_low`.
    pub mean_high: Option<f64>,
    /// Standard deviation, less what the ticks add.
    pub sd: Option<f64>,
    /// Percentiles.
    pub p50: Option<f64>,
    /// See `p50`.
    pub p95: Option<f64>,
    /// See `p50`.
    pub p99: Option<f64>,
    /// The longest.
    pub max: Option<f64>,
    /// How well the end of a step is known, on average.
    pub resolution: Option<f64>,
}

/// Steps at the start.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct WarmUp {
    /// How many.
    pub steps: u64,
    /// Seconds until the last of them ended.
    pub seconds: f64,
}

/// Passes without a step.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Evaluation {
    /// How many.
    pub passes: u64,
    /// Batches that they gave out.
    pub batches: u64,
    /// From the first to the last batch of each, in all.
    pub seconds: f64,
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
    /// When it began, seconds from the start.
    pub at_s: f64,
    /// How long it took.
    pub ms: f64,
    /// The phase that took more than it usually does.
    pub phase: String,
    /// By how much.
    pub more_ms: f64,
    /// The user's line under which that was; null where none was on the stack.
    pub file: Option<String>,
    /// See `file`.
    pub line: Option<u32>,
}

/// The progress of a process; `None` where no counter was read.
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
        counted_from_s: analysed.counted_from_ns.map(seconds),
        epochs: analysed.epochs,
        more_epochs: analysed.more_epochs,
        steps_per_s: analysed.steps_per_s(),
        samples_per_s: analysed.samples_per_s(),
        batches: analysed.batches,
        more_batches: analysed.more_batches,
        batches_per_step: analysed.batches_per_step,
        step_ms: analysed.times.as_ref().map(step_ms),
        epoch_s: analysed.epoch_ns.iter().copied().map(seconds).collect(),
        warmup: WarmUp {
            steps: analysed.warm_up.steps,
            seconds: seconds(analysed.warm_up.ns),
        },
        evaluation: evaluation(analysed),
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

fn evaluation(analysed: &Analysed) -> Option<Evaluation> {
    let evaluation = analysed.evaluation;
    (evaluation.passes > 0).then(|| Evaluation {
        passes: evaluation.passes,
        batches: evaluation.batches,
        seconds: seconds(evaluation.ns),
    })
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
        .and_then(|(function, _)| profile.functions.get(function.index()));
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
