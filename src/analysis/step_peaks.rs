//! The most device memory that tensors had in each step, and what it was of.

use super::memory_code::kept_held;
use super::progress::{Step, timed_steps};
use super::tracks::of_pid;
use crate::model::held::{Held, Holding};
use crate::model::ids::ProcessId;
use crate::model::profile::Profile;
use crate::model::track::{TrackKind, TrackPoint};
use schemars::JsonSchema;
use serde::Serialize;

/// Devices whose memory is read begin with this.
const CUDA: &str = "cuda";

/// The highest readings of the steps of one process, on all of its devices together. What a step
/// has between two readings is not in them.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct StepPeaks {
    /// Timed steps that they are of.
    pub steps: u64,
    /// The median of the highest readings.
    pub median_bytes: u64,
    /// The median of the lowest.
    pub lowest_median_bytes: u64,
    /// The highest of all.
    pub highest_bytes: u64,
    /// The number of its step in the recording.
    pub highest_step: u64,
    /// What the highest was of in the steps since modules were read; null where what they hold was
    /// not read, or not all of it.
    pub parts: Option<PeakParts>,
}

/// What the tensors of a peak were, by what modules and optimizers held at the reading before it.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct PeakParts {
    /// The number of the step in the recording, and its highest reading.
    pub step: u64,
    pub bytes: u64,
    pub parameters_bytes: u64,
    pub optimizer_state_bytes: u64,
    pub buffers_bytes: u64,
    /// The most that gradients had at any reading. They come and go in each step.
    pub gradients_most_bytes: u64,
    /// The rest if there were no gradients: activations, batches, temporary tensors, larger
    /// storages that tensors of modules are views of.
    pub others_most_bytes: u64,
    /// The rest with the most of gradients.
    pub others_least_bytes: u64,
}

struct StepPeak {
    step: Step,
    highest: u64,
    lowest: u64,
}

/// The peaks of a process whose device memory was read; `None` without timed steps.
pub fn step_peaks(profile: &Profile, process: ProcessId) -> Option<StepPeaks> {
    let pid = profile.process(process)?.info.pid;
    let readings = of_pid(profile, TrackKind::SampledAllocated, pid)?;
    let steps = timed_steps(profile, process).into_iter();
    let timed = steps.filter(|(_, why)| why.is_none());
    let all: Vec<StepPeak> = timed
        .filter_map(|(step, _)| of_step(step, readings))
        .collect();
    let kept = kept_held(profile, process);
    let kept = kept.filter_map(|each| Some((each.time_ns, each.result.ok()?)));
    let kept: Vec<(u64, Held)> = kept.collect();
    let highest = all.iter().max_by_key(|each| each.highest)?;
    let since_ns = kept.first().map_or(u64::MAX, |(time_ns, _)| *time_ns);
    let covered = all.iter().filter(|each| each.step.start_ns >= since_ns);
    let covered = covered.max_by_key(|each| each.highest);
    Some(StepPeaks {
        steps: all.len() as u64,
        median_bytes: median(all.iter().map(|each| each.highest))?,
        lowest_median_bytes: median(all.iter().map(|each| each.lowest))?,
        highest_bytes: highest.highest,
        highest_step: highest.step.number,
        parts: covered.and_then(|peak| parts(&kept, peak)),
    })
}

/// The highest and the lowest level of a step: what it begins with counts.
fn of_step(step: Step, readings: &[TrackPoint]) -> Option<StepPeak> {
    let begin = readings.partition_point(|reading| reading.end_ns <= step.start_ns);
    let end = readings.partition_point(|reading| reading.end_ns <= step.end_ns);
    let within = readings.get(begin.saturating_sub(1)..end)?;
    let values = within.iter().map(|reading| reading.value);
    Some(StepPeak {
        highest: values.clone().max()?,
        lowest: values.min()?,
        step,
    })
}

fn median(values: impl Iterator<Item = u64>) -> Option<u64> {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

fn parts(kept: &[(u64, Held)], peak: &StepPeak) -> Option<PeakParts> {
    let mut known = kept.iter().rev();
    let (_, held) = known.find(|(time_ns, _)| *time_ns <= peak.step.start_ns)?;
    if !held.is_whole() {
        return None;
    }
    let of = |held: &Held, holding: Holding| -> u64 {
        let totals = held.totals();
        let own = totals.iter().filter(|part| part.holding == holding);
        let on_devices = own.filter(|part| part.device.starts_with(CUDA));
        on_devices.map(|part| part.bytes).sum()
    };
    let lasting = [
        Holding::Parameters,
        Holding::OptimizerState,
        Holding::Buffers,
    ];
    let [parameters, state, buffers] = lasting.map(|holding| of(held, holding));
    let gradients = kept.iter().map(|(_, held)| of(held, Holding::Gradients));
    let gradients = gradients.max().unwrap_or(0);
    let rest = [state, buffers]
        .into_iter()
        .try_fold(peak.highest.checked_sub(parameters)?, u64::checked_sub)?;
    (parameters > 0).then_some(PeakParts {
        step: peak.step.number,
        bytes: peak.highest,
        parameters_bytes: parameters,
        optimizer_state_bytes: state,
        buffers_bytes: buffers,
        gradients_most_bytes: gradients,
        others_most_bytes: rest,
        others_least_bytes: rest.saturating_sub(gradients),
    })
}
