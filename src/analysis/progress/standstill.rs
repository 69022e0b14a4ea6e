//! The end of a run in which no step ended.

use super::StepUnit;
use super::series::Counted;
use crate::model::category::Phase;
use crate::model::facts::Line;
use crate::model::profile::{Profile, ProfileSample};
use crate::model::wait::WaitKind;
use rustc_hash::FxHashMap;

/// The time from the last step, or another time, to the end of the recording, or to the program's
/// exit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standstill {
    /// Its start, CLOCK_MONOTONIC.
    pub since_ns: u64,
    pub ns: u64,
    /// The line at which the training thread was for most of it, and what it waited for there.
    pub at: Option<Line>,
    pub wait: Option<WaitKind>,
    /// The part of it, 0 to 1.
    pub share: f64,
}

/// The shortest time without a step that is worth a word, ns.
pub const STILL_NS: u64 = 10_000_000_000;

/// Whether a time without a step is worth a word: as long as this, as so many steps, and as this
/// part of the run.
pub fn is_long(still_ns: u64, step_ns: u64, wall_ns: u64) -> bool {
    const STILL_STEPS: u64 = 20;
    const STILL_PART: u64 = 20;
    still_ns >= STILL_NS.max(step_ns.saturating_mul(STILL_STEPS))
        && still_ns >= wall_ns / STILL_PART
}

/// The standstill at the end of a process with these steps, whose training thread has these
/// samples, sorted by start; `None` if steps are not an optimizer's, or end until shortly before
/// the end.
pub(super) fn standstill(
    profile: &Profile,
    counted: &Counted,
    samples: &[&ProfileSample],
) -> Option<Standstill> {
    let (first, last) = (counted.ended.first()?, counted.ended.last()?);
    if counted.unit != StepUnit::Optimizer {
        return None;
    }
    let later = counted.ended.iter().skip(1).map(|ended| ended.count);
    let steps = later.fold(0, u64::saturating_add).max(1);
    let step_ns = last.before_ns.saturating_sub(first.before_ns) / steps;
    let wall_ns = samples.iter().map(|sample| sample.weight_ns).sum();
    stood(profile, samples, last.before_ns).filter(|still| is_long(still.ns, step_ns, wall_ns))
}

/// Where a thread with these samples, sorted by start, was for most of the time from `since_ns` on.
pub fn stood(profile: &Profile, samples: &[&ProfileSample], since_ns: u64) -> Option<Standstill> {
    let from = samples.partition_point(|sample| sample.start_ns < since_ns);
    let after = samples.get(from..)?.iter();
    let mut places: FxHashMap<(Option<Line>, Option<WaitKind>), u64> = FxHashMap::default();
    for sample in after.filter(|sample| sample.phase != Phase::Shutdown) {
        let wait = sample.wait.map(|wait| wait.kind);
        let place = (profile.facts.line(sample.stack), wait);
        *places.entry(place).or_default() += sample.weight_ns;
    }
    let ns: u64 = places.values().sum();
    let ((at, wait), most_ns) = places.into_iter().max_by_key(|&(place, ns)| (ns, place))?;
    Some(Standstill {
        since_ns,
        ns,
        at,
        wait,
        share: most_ns as f64 / ns.max(1) as f64,
    })
}
