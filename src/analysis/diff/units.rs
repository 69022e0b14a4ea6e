//! The unit in which runs are counted, and how a run's time is cut into blocks.
//!
//! Neighbouring steps resemble each other, and a machine drifts: single steps are not independent
//! measurements. A run is cut into up to 30 blocks of equally many steps; the differences between
//! blocks show how certain the run's mean is.

use crate::model::category::Phase;
use crate::model::named::named;
use crate::model::profile::ProfileSample;

/// Maximum and minimum number of blocks; fewer blocks do not show how much blocks differ.
const MOST_BLOCKS: usize = 30;
pub(super) const FEWEST_BLOCKS: usize = 5;
/// Ticks that a block should hold.
const TICKS_A_BLOCK: u64 = 10;

/// What a run's time is counted by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Units {
    /// Steps: start and end, CLOCK_MONOTONIC, in order and without overlaps. Time outside of them
    /// is left out.
    Steps(Vec<(u64, u64)>),
    /// Seconds of wall time, where no steps are known: from the first sample of forward, backward
    /// or optimizer to the last.
    Seconds,
}

named!(
    /// The unit that figures are per.
    Unit {
        Step = "step",
        /// Of wall time: shares, which do not show whether a run is faster.
        Second = "second",
    }
);

/// An interval of time that counts, and the block that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interval {
    start_ns: u64,
    end_ns: u64,
    block: usize,
}

/// A run's time in blocks.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    intervals: Vec<Interval>,
    /// Units by block: steps, or seconds.
    pub(super) units: Vec<f64>,
    /// Time by block, ns.
    pub(super) time_ns: Vec<f64>,
}

impl Blocks {
    /// The blocks of a run with these `samples` of its training thread; `None` if it is too short.
    pub(super) fn new(units: &Units, samples: &[&ProfileSample]) -> Option<Self> {
        match units {
            Units::Steps(steps) => Self::of_steps(steps, samples),
            Units::Seconds => Self::of_seconds(samples),
        }
    }

    /// Units in all blocks.
    pub(super) fn unit_count(&self) -> f64 {
        self.units.iter().sum()
    }

    /// Time in all blocks, ns.
    pub(super) fn all_ns(&self) -> f64 {
        self.time_ns.iter().sum()
    }

    fn of_steps(steps: &[(u64, u64)], samples: &[&ProfileSample]) -> Option<Self> {
        // A recording is untrusted input: steps that are out of order or overlap are dropped.
        let mut sorted: Vec<(u64, u64)> = Vec::with_capacity(steps.len());
        for &(start_ns, end_ns) in steps {
            let after = sorted
                .last()
                .is_none_or(|&(_, last_ns)| start_ns >= last_ns);
            if end_ns > start_ns && after {
                sorted.push((start_ns, end_ns));
            }
        }
        let (&(first_ns, _), &(_, last_ns)) = (sorted.first()?, sorted.last()?);
        let inside = |sample: &&&ProfileSample| (first_ns..last_ns).contains(&sample.start_ns);
        let ticks: u64 = samples
            .iter()
            .filter(inside)
            .map(|sample| u64::from(sample.ticks))
            .sum();
        let count = block_count(ticks).min(sorted.len());
        if count < FEWEST_BLOCKS {
            return None;
        }
        let mut blocks = Self::empty(count);
        for (index, &(start_ns, end_ns)) in sorted.iter().enumerate() {
            let block = index * count / sorted.len();
            blocks.push(start_ns, end_ns, block);
            blocks.units[block] += 1.0;
        }
        Some(blocks)
    }

    fn of_seconds(samples: &[&ProfileSample]) -> Option<Self> {
        let first = samples.iter().find(|sample| trains(sample.phase));
        let last = samples.iter().rfind(|sample| trains(sample.phase));
        let start_ns = first.or(samples.first())?.start_ns;
        let last = last.or(samples.last())?;
        let end_ns = last.start_ns.saturating_add(last.weight_ns);
        let ticks: u64 = samples
            .iter()
            .filter(|sample| (start_ns..end_ns).contains(&sample.start_ns))
            .map(|sample| u64::from(sample.ticks))
            .sum();
        let count = block_count(ticks);
        let length_ns = end_ns.checked_sub(start_ns)?;
        if count < FEWEST_BLOCKS || length_ns < count as u64 {
            return None;
        }
        let mut blocks = Self::empty(count);
        for block in 0..count {
            let edge = |block: usize| {
                let part = u128::from(length_ns) * block as u128 / count as u128;
                start_ns.saturating_add(u64::try_from(part).unwrap_or(u64::MAX))
            };
            let (from_ns, to_ns) = (edge(block), edge(block + 1));
            blocks.push(from_ns, to_ns, block);
            blocks.units[block] = (to_ns - from_ns) as f64 / 1e9;
        }
        Some(blocks)
    }

    fn empty(count: usize) -> Self {
        Self {
            intervals: Vec::new(),
            units: vec![0.0; count],
            time_ns: vec![0.0; count],
        }
    }

    fn push(&mut self, start_ns: u64, end_ns: u64, block: usize) {
        if let Some(sum) = self.time_ns.get_mut(block) {
            *sum += end_ns.saturating_sub(start_ns) as f64;
        }
        match self.intervals.last_mut() {
            Some(last) if last.block == block && last.end_ns == start_ns => last.end_ns = end_ns,
            _ => self.intervals.push(Interval {
                start_ns,
                end_ns,
                block,
            }),
        }
    }

    /// Where the time from `start_ns` on falls: parts of (block, ns) in `into`, which is cleared
    /// first. The search begins at `at`; times are queried in order.
    pub(super) fn parts(
        &self,
        at: &mut usize,
        start_ns: u64,
        weight_ns: u64,
        into: &mut Vec<(usize, u64)>,
    ) {
        into.clear();
        let end_ns = start_ns.saturating_add(weight_ns);
        while self
            .intervals
            .get(*at)
            .is_some_and(|interval| interval.end_ns <= start_ns)
        {
            *at += 1;
        }
        for interval in self.intervals.iter().skip(*at) {
            if interval.start_ns >= end_ns {
                break;
            }
            let from_ns = interval.start_ns.max(start_ns);
            let part_ns = interval.end_ns.min(end_ns).saturating_sub(from_ns);
            if part_ns == 0 {
                continue;
            }
            match into.last_mut() {
                Some((block, ns)) if *block == interval.block => *ns = ns.saturating_add(part_ns),
                _ => into.push((interval.block, part_ns)),
            }
        }
    }
}

fn trains(phase: Phase) -> bool {
    matches!(phase, Phase::Forward | Phase::Backward | Phase::Optimizer)
}

fn block_count(ticks: u64) -> usize {
    usize::try_from(ticks / TICKS_A_BLOCK)
        .unwrap_or(MOST_BLOCKS)
        .min(MOST_BLOCKS)
}
