//! Counts the optimizer's steps of a process that goes on, from one part of its run after another.
//!
//! Parts may overlap. A step is counted once, and none is lost between two parts: what counts is
//! the value of the counter, and not how many of its changes were seen in a part.

use super::StepUnit;
use super::series::{Quiet, count, readings};
use crate::model::ids::{CounterId, ProcessId};
use crate::model::profile::Profile;
use crate::model::progress::{CounterKind, ProgressPoint};
use rustc_hash::FxHashMap;

/// Counters of one process that are followed: it may make objects without end.
const MOST_COUNTERS: usize = 256;

/// How often a step changes a counter is the largest number that divides its rises. So many rises
/// hardly have a larger one in common by chance, and in so long a time the rises are single steps.
const RISES: usize = 16;
const LONG_NS: u64 = 60_000_000_000;
/// Most steps between two readings: a counter that rises by more was overwritten.
const MOST_STEPS: u64 = 1 << 20;

/// The counters that count steps of an optimizer.
const KINDS: [CounterKind; 4] = [
    CounterKind::TrainerSteps,
    CounterKind::LightningSteps,
    CounterKind::ParameterVersion,
    CounterKind::OptimizerState,
];

/// Steps that ended between two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedSteps {
    pub count: u64,
    /// Mean length of these, ns; `None` of the first, whose start was not seen.
    pub each_ns: Option<u64>,
}

/// The steps of one process so far.
#[derive(Clone, Debug, Default)]
pub struct RunningSteps {
    /// By the number of the counter in its process.
    counters: FxHashMap<u32, Known>,
    chosen: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// Its value before the first step that counts: that of its first reading.
    first: u64,
    /// How often a step changes it, once that is known.
    each: Option<u64>,
    steps: u64,
    /// Time of the last reading that was taken.
    taken_ns: u64,
    last_end_ns: Option<u64>,
}

impl RunningSteps {
    /// Whether a counter is known that counts the steps.
    pub fn is_counting(&self) -> bool {
        self.chosen.is_some()
    }

    /// Adds a part of the run that ends later than the one before; returns the steps that are new.
    /// A process's number of a counter is the same in all parts, whatever ids they have.
    pub fn add(&mut self, profile: &Profile, process: ProcessId) -> Vec<EndedSteps> {
        let all: Vec<(CounterId, Vec<&ProgressPoint>)> = KINDS
            .into_iter()
            .flat_map(|kind| readings(profile, process, kind))
            .collect();
        let number = |id: CounterId| Some(profile.counters.get(id.index())?.number);
        for (id, points) in &all {
            if let (Some(number), Some(first)) = (number(*id), points.first())
                && (self.counters.len() < MOST_COUNTERS || self.counters.contains_key(&number))
            {
                self.counters.entry(number).or_insert(Known {
                    first: first.value,
                    each: None,
                    steps: 0,
                    taken_ns: 0,
                    last_end_ns: None,
                });
            }
        }
        let points_of = |wanted: u32| {
            let mut found = all.iter();
            found
                .find(|(id, _)| number(*id) == Some(wanted))
                .map_or(&[][..], |(_, points)| points)
        };
        let is_at_rest = |chosen: u32| {
            let taken_ns = self.counters.get(&chosen).map_or(0, |known| known.taken_ns);
            let last = points_of(chosen).last();
            last.is_none_or(|last| last.time_ns <= taken_ns)
        };
        // Another model may be trained later on; of two at the same time one counts.
        let may_choose = self.chosen.is_none_or(is_at_rest);
        let counted = count(profile, process).filter(|found| found.unit == StepUnit::Optimizer);
        if let Some((id, each)) = counted.and_then(|found| found.counter)
            && let Some(best) = number(id)
            && let Some(known) = self.counters.get_mut(&best)
            && (known.each.is_some() || is_enough(profile, id, points_of(best)))
        {
            known.each.get_or_insert(each);
            if may_choose {
                self.chosen = Some(best);
            }
        }
        let Some(chosen) = self.chosen else {
            return Vec::new();
        };
        let points = points_of(chosen);
        match self.counters.get_mut(&chosen) {
            Some(known) => known.take(profile, points),
            None => Vec::new(),
        }
    }
}

/// Whether readings show how often a step changes their counter.
fn is_enough(profile: &Profile, id: CounterId, points: &[&ProgressPoint]) -> bool {
    let kind = profile.counters.get(id.index()).map(|info| info.kind);
    let counts_steps = matches!(
        kind,
        Some(CounterKind::TrainerSteps | CounterKind::LightningSteps)
    );
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return false;
    };
    let lasts = last.time_ns.saturating_sub(first.time_ns) >= LONG_NS;
    counts_steps || points.len() > RISES || lasts
}

impl Known {
    fn take(&mut self, profile: &Profile, points: &[&ProgressPoint]) -> Vec<EndedSteps> {
        let quiet = Quiet::of(profile, points);
        let each = self.each.unwrap_or(1).max(1);
        let mut found = Vec::new();
        for point in points.iter().filter(|point| point.time_ns > self.taken_ns) {
            // A counter that was set again counts nothing until it exceeds its old value.
            let steps = point.value.saturating_sub(self.first) / each;
            if steps > self.steps {
                let count = steps - self.steps;
                if count > MOST_STEPS {
                    self.first = point.value.saturating_sub(self.steps.saturating_mul(each));
                    continue;
                }
                let before_ns = quiet.until(point);
                let end_ns = before_ns + point.time_ns.saturating_sub(before_ns) / 2;
                let length_ns = self.last_end_ns.map(|last| end_ns.saturating_sub(last));
                found.push(EndedSteps {
                    count,
                    each_ns: length_ns.map(|ns| ns / count),
                });
                self.steps = steps;
                self.last_end_ns = Some(end_ns);
            }
        }
        self.taken_ns = points
            .last()
            .map_or(self.taken_ns, |last| self.taken_ns.max(last.time_ns));
        found
    }
}
