//! How much the times of operators differ between whole steps.
//!
//! Threads are walked one after the other, and an operator may run in several (forward and
//! backward pass), so times are summed by key and step until all threads are done.

use super::host::add;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Keys in steps whose times are kept apart, some 40 MB: 1000 steps with 500 different calls. A
/// trace with more has no spreads.
const MOST_SUMS: usize = 1 << 19;

/// Standard deviations over whole steps; a step without a call counts with 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeSpread {
    /// Of the own time in a step.
    pub self_sd_ns: u64,
    /// Of the total time in a step.
    pub total_sd_ns: u64,
}

/// Spreads by the lowest index in [`super::TraceSummary::host_keys`] of the keys that are counted
/// together and occur in a whole step. Those that do not occur have none: their times do not
/// differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeSpreads {
    /// Of keys of one name. The total time is that not within a call of the same name.
    pub by_name: BTreeMap<u32, TimeSpread>,
    /// Of keys of one name with the same shapes and types.
    pub by_shape: BTreeMap<u32, TimeSpread>,
}

/// Times of a key in one step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepTimes {
    pub(super) self_ns: u64,
    pub(super) total_ns: u64,
    /// See [`super::HostTimes::outer_ns`].
    pub(super) outer_ns: u64,
}

/// Times by key and step.
#[derive(Debug, Default)]
pub(super) struct Sums {
    sums: FxHashMap<(u32, u32), StepTimes>,
    /// There were more than [`MOST_SUMS`].
    is_full: bool,
}

impl Sums {
    /// The times of a key in a step; `None` where there are too many.
    pub(super) fn of(&mut self, key: u32, step: u32) -> Option<&mut StepTimes> {
        if self.sums.len() >= MOST_SUMS {
            self.is_full = true;
            self.sums = FxHashMap::default();
        }
        (!self.is_full).then(|| self.sums.entry((key, step)).or_default())
    }

    /// Spreads by the first key of the same name, and of the same shapes, for each key. `None` if
    /// not all times are known.
    pub(super) fn spreads(
        &self,
        names: &[u32],
        shapes: &[u32],
        steps: usize,
    ) -> Option<TimeSpreads> {
        (!self.is_full).then(|| TimeSpreads {
            by_name: self.by(names, steps, |times| times.outer_ns),
            by_shape: self.by(shapes, steps, |times| times.total_ns),
        })
    }

    fn by(
        &self,
        groups: &[u32],
        steps: usize,
        total_ns: fn(&StepTimes) -> u64,
    ) -> BTreeMap<u32, TimeSpread> {
        let mut sums: Vec<(u32, u32, u32, &StepTimes)> = self
            .sums
            .iter()
            .map(|(&(key, step), times)| (groups[key as usize], step, key, times))
            .collect();
        sums.sort_unstable_by_key(|&(group, step, key, _)| (group, step, key));
        let of_group = |sums: &[(u32, u32, u32, &StepTimes)]| {
            let lowest = sums.iter().map(|&(_, _, key, _)| key).min()?;
            let (mut own, mut total) = (Vec::new(), Vec::new());
            for of_step in sums.chunk_by(|a, b| a.1 == b.1) {
                let mut times = (0, 0);
                for (_, _, _, more) in of_step {
                    add(&mut times.0, more.self_ns);
                    add(&mut times.1, total_ns(more));
                }
                own.push(times.0);
                total.push(times.1);
            }
            let spread = TimeSpread {
                self_sd_ns: deviation(&own, steps),
                total_sd_ns: deviation(&total, steps),
            };
            Some((lowest, spread))
        };
        sums.chunk_by(|a, b| a.0 == b.0)
            .filter_map(of_group)
            .collect()
    }
}

/// The standard deviation of `count` values, of which those that are not in `values` are 0.
fn deviation(values: &[u64], count: usize) -> u64 {
    let zeros = count.saturating_sub(values.len()) as f64;
    let count = count as f64;
    let mean = values.iter().map(|&value| value as f64).sum::<f64>() / count;
    let squares: f64 = values
        .iter()
        .map(|&value| (value as f64 - mean).powi(2))
        .sum();
    let variance = (squares + zeros * mean.powi(2)) / (count - 1.0).max(1.0);
    variance.sqrt().round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_without_a_call_count_with_zero() {
        assert_eq!(deviation(&[9, 10, 11], 3), 1);
        // 0, 0, 30, 30: squares of 15 over 3.
        assert_eq!(deviation(&[30, 30], 4), 17);
        assert_eq!(deviation(&[30], 1), 0);
        assert_eq!(deviation(&[], 4), 0);
    }

    #[test]
    fn too_many_are_not_known() {
        let mut sums = Sums::default();
        for step in 0..MOST_SUMS as u32 {
            assert!(sums.of(0, step).is_some());
        }
        assert!(sums.of(0, 0).is_none());
        assert_eq!(sums.spreads(&[0], &[0], MOST_SUMS), None);
        assert!(sums.sums.is_empty());
    }
}
