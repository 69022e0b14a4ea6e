//! Steps of a run, where they are known.

use super::measure::training_samples;
use super::units::Units;
use crate::analysis::progress::{progress, steps};
use crate::model::ids::ProcessId;
use crate::model::profile::Profile;

/// The unit of a process's time: its steps without warm-up; seconds if no counter was read.
pub fn units_of(profile: &Profile, process: ProcessId) -> Units {
    let samples = training_samples(profile, process);
    let Some(progress) = progress(profile, process, &samples) else {
        return Units::Seconds;
    };
    let warm = progress.warm_up.steps;
    let steps: Vec<(u64, u64)> = steps(profile, process)
        .iter()
        .filter(|step| step.number > warm)
        .map(|step| (step.start_ns, step.end_ns))
        .collect();
    if steps.is_empty() {
        Units::Seconds
    } else {
        Units::Steps(steps)
    }
}
