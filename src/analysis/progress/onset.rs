//! When steps get slow, while they are watched: the mean of a few seconds against those before.

use std::collections::VecDeque;

/// Shortest window, ns, over which the length of steps is averaged.
const WINDOW_NS: u64 = 5_000_000_000;
/// Windows against which the newest are held: at least ten minutes with steps below 5 s.
const KEPT: usize = 120;
/// Fewest windows before something is slow: a minute, or as many steps of more than 5 s.
const FEWEST: usize = 12;
/// Slow windows in a row that are no single checkpoint or garbage collection.
const IN_A_ROW: u32 = 2;
/// The standard deviation of a normal distribution over its median absolute deviation.
const PER_MAD: f64 = 1.4826;
/// Least deviation as a share of the median: equal steps have none, and a percent is no trouble.
const LEAST_DEVIATION: f64 = 0.02;

/// Steps that got slow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slow {
    /// Their mean length over the usual one.
    pub ratio: f64,
}

/// The lengths of one counter's steps as they come. They are compared with each other, so the
/// counter may count several times a step.
#[derive(Clone, Debug, Default)]
pub struct Onset {
    /// Mean lengths of windows, ns.
    lengths: VecDeque<f64>,
    /// Where the window under way began, and the last reading with a new value: time and value.
    begun: Option<(u64, u64)>,
    last: Option<(u64, u64)>,
    slow_in_a_row: u32,
    is_slow: bool,
}

impl Onset {
    /// A reading with a new value. Times are of CLOCK_MONOTONIC. Returns how slow steps are where
    /// they have just become slower than the median by more than so many deviations.
    pub fn add(&mut self, time_ns: u64, value: u64, deviations: f64) -> Option<Slow> {
        let (begun_ns, first) = match (self.begun, self.last) {
            (Some(begun), Some((_, last))) if value >= last => begun,
            _ => {
                // The first reading, or a counter that begins again.
                self.begun = Some((time_ns, value));
                self.last = self.begun;
                return None;
            }
        };
        self.last = Some((time_ns, value));
        if time_ns < begun_ns + WINDOW_NS || value == first {
            return None;
        }
        self.begun = self.last;
        let length_ns = (time_ns - begun_ns) as f64 / (value - first) as f64;
        let slow = self.judge(length_ns, deviations);
        self.lengths.push_back(length_ns);
        if self.lengths.len() > KEPT {
            self.lengths.pop_front();
        }
        slow
    }

    /// Time passed without a new value: a step that does not end is slow before it has.
    pub fn wait(&mut self, now_ns: u64, deviations: f64) -> Option<Slow> {
        let (last_ns, _) = self.last?;
        let length_ns = now_ns.saturating_sub(last_ns);
        let is_long = length_ns > WINDOW_NS * u64::from(IN_A_ROW);
        let (median, limit) = self.limit(deviations)?;
        if self.is_slow || !is_long || length_ns as f64 <= limit {
            return None;
        }
        self.is_slow = true;
        Some(Slow {
            ratio: length_ns as f64 / median,
        })
    }

    /// What follows is not of the window under way: nothing was read for a time.
    pub fn interrupt(&mut self) {
        self.begun = None;
        self.last = None;
    }

    /// The usual length, and that from which on steps are slow.
    fn limit(&self, deviations: f64) -> Option<(f64, f64)> {
        if self.lengths.len() < FEWEST {
            return None;
        }
        let middle = median(self.lengths.iter().copied().collect());
        let apart = self.lengths.iter().map(|length| (length - middle).abs());
        let deviation = (PER_MAD * median(apart.collect())).max(LEAST_DEVIATION * middle);
        Some((middle, middle + deviations * deviation))
    }

    fn judge(&mut self, length_ns: f64, deviations: f64) -> Option<Slow> {
        let (median, limit) = self.limit(deviations)?;
        if length_ns <= limit {
            self.slow_in_a_row = 0;
            self.is_slow = false;
            return None;
        }
        self.slow_in_a_row += 1;
        if self.is_slow || self.slow_in_a_row < IN_A_ROW {
            return None;
        }
        self.is_slow = true;
        Some(Slow {
            ratio: length_ns / median,
        })
    }
}

/// The median of lengths; 0 of none.
fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Steps of these lengths, ms, read as they end; the numbers of those at which they were slow.
    fn slow_at(lengths_ms: impl Iterator<Item = u64>) -> Vec<usize> {
        let (mut onset, mut now_ns, mut found) = (Onset::default(), SECOND, Vec::new());
        onset.add(now_ns, 0, 4.0);
        for (number, length_ms) in lengths_ms.enumerate() {
            now_ns += length_ms * 1_000_000;
            if onset.add(now_ns, number as u64 + 1, 4.0).is_some() {
                found.push(number);
            }
        }
        found
    }

    /// A length that varies by a tenth.
    fn usual(number: u64) -> u64 {
        95 + number * 7919 % 11
    }

    #[test]
    fn steps_that_get_slow_are_found_once() {
        let found = slow_at((0..3000).map(|number| match number {
            2000..2500 => 2 * usual(number),
            _ => usual(number),
        }));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!((2030..2120).contains(&found[0]), "{found:?}");
        let again = slow_at((0..5000).map(|number| match number {
            2000..2200 | 4000..4200 => 2 * usual(number),
            _ => usual(number),
        }));
        assert_eq!(again.len(), 2, "{again:?}");
    }

    #[test]
    fn a_checkpoint_and_noise_are_not_slow() {
        let found = slow_at((0..5000).map(|number| match number % 1000 {
            999 => 8000,
            _ => usual(number),
        }));
        assert_eq!(found, [0; 0]);
        // The first minute has nothing to be compared with.
        let start = slow_at((0..400).map(|number| if number < 200 { 50 } else { 200 }));
        assert_eq!(start, [0; 0]);
    }

    #[test]
    fn a_step_that_does_not_end_is_slow() {
        let mut onset = Onset::default();
        for second in 0..100 {
            assert_eq!(onset.wait(second * SECOND, 4.0), None);
            assert_eq!(onset.add(second * SECOND, second, 4.0), None);
        }
        assert_eq!(onset.wait(105 * SECOND, 4.0), None);
        assert_eq!(onset.wait(111 * SECOND, 4.0), Some(Slow { ratio: 12.0 }));
        assert_eq!(onset.wait(112 * SECOND, 4.0), None, "it is told once");
    }

    #[test]
    fn what_was_not_read_is_no_slow_step() {
        let mut onset = Onset::default();
        for second in 0..100 {
            onset.add(second * SECOND, second, 4.0);
        }
        onset.interrupt();
        assert_eq!(onset.wait(300 * SECOND, 4.0), None);
        for second in 300..320 {
            assert_eq!(onset.add(second * SECOND, second, 4.0), None);
        }
        // A counter that begins again.
        assert_eq!(onset.add(330 * SECOND, 0, 4.0), None);
    }
}
