//! One run, measured: the time of every part in every block.

use super::keys::Keys;
use super::units::{Blocks, Units};
use crate::analysis::summary::parts;
use crate::model::category::Phase;
use crate::model::ids::{ProcessId, StackId, ThreadId};
use crate::model::profile::{Profile, ProfileSample};
use rustc_hash::FxHashMap;

/// The time of one part of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Series {
    /// By block, ns.
    pub(super) blocks: Vec<f64>,
    /// Ticks in which it was seen.
    pub(super) ticks: u64,
    /// Minimum variance due to sampling, in squared ticks (see [`Visits`]).
    pub(super) sampling: f64,
}

/// How precisely samples measure a part's time. A visit that one tick saw may have been shorter or
/// longer by about a tick, and similar visits were not seen at all: a variance of one squared tick.
/// The length of a longer visit is uncertain only in its start and end within a tick: at most a
/// quarter.
#[derive(Clone, Copy, Debug, Default)]
struct Visits {
    /// The last sample that saw the part, counted from 1.
    last: usize,
    long: bool,
    variance: f64,
}

impl Visits {
    const SHORT: f64 = 1.0;
    const LONG: f64 = 0.25;

    fn see(&mut self, sample: usize, ticks: u32) {
        if self.last == sample {
            return;
        }
        let goes_on = self.last != 0 && self.last + 1 == sample;
        self.last = sample;
        if !goes_on {
            self.variance += Self::SHORT;
            self.long = false;
        }
        if (goes_on || ticks > 1) && !self.long {
            self.long = true;
            self.variance -= Self::SHORT - Self::LONG;
        }
    }
}

/// A run before the parts to compare are chosen.
#[derive(Debug)]
pub(super) struct Scan<'p> {
    samples: Vec<&'p ProfileSample>,
    pub(super) blocks: Blocks,
    keys_of: FxHashMap<(StackId, Phase), Vec<usize>>,
    /// Ticks by part.
    pub(super) ticks: Vec<u64>,
    /// Time by part, ns; only parts that stacks belong to.
    pub(super) time_ns: Vec<f64>,
    /// Mean length of a tick, ns.
    pub(super) tick_ns: f64,
    /// All time of the training thread, ns.
    pub(super) wall_ns: u64,
}

/// The samples of the thread that runs the training loop.
pub(super) fn training_samples(profile: &Profile, process: ProcessId) -> Vec<&ProfileSample> {
    let thread: Option<ThreadId> = profile
        .process(process)
        .and_then(|process| process.training_thread);
    profile
        .samples
        .iter()
        .filter(|sample| Some(sample.thread) == thread)
        .collect()
}

impl<'p> Scan<'p> {
    /// Scans a run; `None` if it is too short to be cut into blocks. `parts_of` returns the parts
    /// that a stack is in, by number, each once; the flag is whether it was seen in forward.
    pub(super) fn new(
        profile: &'p Profile,
        process: ProcessId,
        units: &Units,
        parts_of: &mut dyn FnMut(StackId, Phase) -> Vec<usize>,
    ) -> Option<Self> {
        let samples = training_samples(profile, process);
        let blocks = Blocks::new(units, &samples)?;
        let wall_ns = samples
            .iter()
            .fold(0_u64, |sum, sample| sum.saturating_add(sample.weight_ns));
        let ticks: u64 = samples.iter().map(|sample| u64::from(sample.ticks)).sum();
        let mut scan = Self {
            samples,
            blocks,
            keys_of: FxHashMap::default(),
            ticks: Vec::new(),
            time_ns: Vec::new(),
            tick_ns: wall_ns as f64 / ticks.max(1) as f64,
            wall_ns,
        };
        scan.count(parts_of);
        Some(scan)
    }

    fn count(&mut self, parts_of: &mut dyn FnMut(StackId, Phase) -> Vec<usize>) {
        let (mut at, mut parts) = (0, Vec::new());
        for sample in &self.samples {
            self.blocks
                .parts(&mut at, sample.start_ns, sample.weight_ns, &mut parts);
            let (Some(stack), false) = (sample.stack, parts.is_empty()) else {
                continue;
            };
            let found = self
                .keys_of
                .entry((stack, sample.phase))
                .or_insert_with(|| parts_of(stack, sample.phase));
            let inside_ns: u64 = parts.iter().map(|&(_, ns)| ns).sum();
            for &key in found.iter() {
                if self.ticks.len() <= key {
                    self.ticks.resize(key + 1, 0);
                    self.time_ns.resize(key + 1, 0.0);
                }
                if let (Some(ticks), Some(time_ns)) =
                    (self.ticks.get_mut(key), self.time_ns.get_mut(key))
                {
                    *ticks += u64::from(sample.ticks);
                    *time_ns += inside_ns as f64;
                }
            }
        }
    }

    /// The time of every part that `kept` selects, by number; `fixed` adds the parts that every run
    /// has (see [`Keys`]).
    pub(super) fn measure(&self, kept: &[bool], fixed: bool) -> FxHashMap<usize, Series> {
        let mut sums = Sums {
            series: FxHashMap::default(),
            blocks: self.blocks.units.len(),
        };
        let (mut at, mut intervals) = (0, Vec::new());
        for (index, sample) in self.samples.iter().enumerate() {
            self.blocks
                .parts(&mut at, sample.start_ns, sample.weight_ns, &mut intervals);
            if intervals.is_empty() {
                continue;
            }
            let seen = NumberedSample {
                number: index + 1,
                ticks: sample.ticks,
                intervals: &intervals,
            };
            if fixed {
                sums.add_fixed(sample, &seen);
            }
            let of_stack = sample
                .stack
                .and_then(|stack| self.keys_of.get(&(stack, sample.phase)));
            for &key in of_stack.into_iter().flatten() {
                if kept.get(key).copied().unwrap_or(false) {
                    sums.add(key, 1.0, &seen);
                }
            }
        }
        let mut series = sums.into_series();
        if fixed {
            series.insert(Keys::STEP, self.step());
        }
        series
    }

    /// The complete step: its time follows from the steps' bounds, each known to a tick.
    fn step(&self) -> Series {
        Series {
            blocks: self.blocks.time_ns.clone(),
            ticks: self
                .samples
                .iter()
                .map(|sample| u64::from(sample.ticks))
                .sum(),
            sampling: 2.0 * Visits::LONG,
        }
    }
}

/// A sample, and where its time falls.
struct NumberedSample<'s> {
    /// Counts from 1.
    number: usize,
    ticks: u32,
    intervals: &'s [(usize, u64)],
}

struct Sums {
    series: FxHashMap<usize, (Series, Visits)>,
    blocks: usize,
}

impl Sums {
    fn add_fixed(&mut self, sample: &ProfileSample, seen: &NumberedSample<'_>) {
        if sample.phase.region().is_none() {
            self.add(Keys::of_phase(sample.phase), 1.0, seen);
        }
        let weight = sample.weight_ns.max(1) as f64;
        for (_, activity, row, ns) in parts(sample) {
            if ns > 0 {
                self.add(Keys::of_activity(activity), ns as f64 / weight, seen);
                self.add(Keys::of_row(row), ns as f64 / weight, seen);
            }
        }
    }

    /// Adds a part of a sample's time.
    fn add(&mut self, key: usize, part: f64, seen: &NumberedSample<'_>) {
        let blocks = self.blocks;
        let (series, visits) = self.series.entry(key).or_insert_with(|| {
            let series = Series {
                blocks: vec![0.0; blocks],
                ..Series::default()
            };
            (series, Visits::default())
        });
        // Both parts of a sample may be of one kind: it was seen once.
        if visits.last != seen.number {
            series.ticks += u64::from(seen.ticks);
        }
        visits.see(seen.number, seen.ticks);
        for &(block, ns) in seen.intervals {
            if let Some(sum) = series.blocks.get_mut(block) {
                *sum += ns as f64 * part;
            }
        }
    }

    fn into_series(self) -> FxHashMap<usize, Series> {
        self.series
            .into_iter()
            .map(|(key, (series, visits))| {
                let sampling = visits.variance;
                (key, Series { sampling, ..series })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Visits;

    fn variance(seen: &[(usize, u32)]) -> f64 {
        let mut visits = Visits::default();
        for &(sample, ticks) in seen {
            visits.see(sample, ticks);
        }
        visits.variance
    }

    #[test]
    fn a_visit_counts_once_and_less_if_it_is_long() {
        assert_eq!(variance(&[(1, 1)]), 1.0);
        assert_eq!(variance(&[(1, 1), (1, 1)]), 1.0, "two parts of a sample");
        assert_eq!(variance(&[(1, 1), (2, 1), (3, 1)]), 0.25);
        assert_eq!(variance(&[(1, 1), (3, 1), (5, 1)]), 3.0);
        assert_eq!(variance(&[(4, 9)]), 0.25, "a sample of nine ticks");
        assert_eq!(variance(&[(1, 1), (2, 1), (7, 1)]), 1.25);
    }
}
