//! Steps of a run, where they are known, without the evaluation between them.

use super::RunFacts;
use super::measure::training_samples;
use super::units::Units;
use crate::analysis::progress::{Pass, Step, Why, evaluations, progress, timed_steps};
use crate::model::category::Phase;
use crate::model::ids::ProcessId;
use crate::model::profile::{Profile, ProfileSample};
use crate::model::seconds;
use schemars::JsonSchema;
use serde::Serialize;

/// Evaluation between the steps of a run, which is not part of them.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Eq, Serialize)]
#[schemars(rename = "EvaluationBetweenSteps")]
pub struct BetweenSteps {
    /// Passes of a loader without a step.
    pub passes: u64,
    /// From the end of the step before each to the end of its last forward pass, in total.
    #[serde(rename = "seconds", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub ns: u64,
}

impl BetweenSteps {
    /// The sum over the runs of a side.
    pub fn of_side(runs: &[RunFacts]) -> Self {
        let mut sum = Self::default();
        for evaluation in runs.iter().filter_map(|run| run.evaluation.as_ref()) {
            sum.add(evaluation);
        }
        sum
    }

    fn add(&mut self, other: &Self) {
        self.passes = self.passes.saturating_add(other.passes);
        self.ns = self.ns.saturating_add(other.ns);
    }
}

/// Steps of a process that torch.profiler slowed down (`record --trace`).
pub(super) fn profiled(profile: &Profile, process: ProcessId) -> u64 {
    let steps = timed_steps(profile, process).into_iter();
    steps.filter(|(_, why)| *why == Some(Why::Profiled)).count() as u64
}

/// The unit of a process's time: its steps without warm-up, and without those that torch.profiler
/// slowed down (`record --trace`); seconds if no counter was read. A step lasts from the end of the
/// one before, so that the first step after an evaluation would include it: such a step begins
/// where the evaluation ends.
pub fn units_of(profile: &Profile, process: ProcessId) -> (Units, BetweenSteps) {
    let samples = training_samples(profile, process);
    let mut evaluation = BetweenSteps::default();
    let Some(progress) = progress(profile, process, &samples) else {
        return (Units::Seconds, evaluation);
    };
    let warm = progress.warm_up.steps;
    let passes = evaluations(profile, process, &samples);
    let mut timed = timed_steps(profile, process);
    timed.retain(|(step, _)| step.number > warm);
    // Times with a reservation say more than none.
    let is_profiled = |why: &Option<Why>| *why == Some(Why::Profiled);
    if !timed.iter().all(|(_, why)| is_profiled(why)) {
        timed.retain(|(_, why)| !is_profiled(why));
    }
    let steps: Vec<(u64, u64)> = timed
        .into_iter()
        .map(|(step, _)| {
            let before = before(&step, &passes, &samples);
            evaluation.add(&before);
            (step.start_ns.saturating_add(before.ns), step.end_ns)
        })
        .collect();
    if steps.is_empty() {
        (Units::Seconds, evaluation)
    } else {
        (Units::Steps(steps), evaluation)
    }
}

/// The evaluation at the start of a step. `passes` and `samples` are sorted by start.
fn before(step: &Step, passes: &[Pass], samples: &[&ProfileSample]) -> BetweenSteps {
    let first = passes.partition_point(|pass| pass.start_ns <= step.start_ns);
    // Gradients that are accumulated over a complete pass make no step in it.
    let trains = |pass: &Pass| {
        let from = samples.partition_point(|sample| sample.start_ns < pass.start_ns);
        let rest = samples.iter().skip(from);
        rest.take_while(|sample| sample.start_ns < pass.end_ns)
            .any(|sample| sample.phase == Phase::Backward)
    };
    let inside = passes
        .iter()
        .skip(first)
        .take_while(|pass| pass.start_ns < step.end_ns)
        .filter(|pass| pass.end_ns <= step.end_ns && !trains(pass));
    let (mut passes, mut end_ns) = (0, step.start_ns);
    for pass in inside {
        passes += 1;
        end_ns = end_ns.max(pass.end_ns);
    }
    BetweenSteps {
        passes,
        ns: end_ns.min(step.end_ns).saturating_sub(step.start_ns),
    }
}
