//! How certain a share is: 95 % intervals that take into account that neighbouring samples resemble
//! each other.
//!
//! A share is a mean over time, and a training thread does the same thing for many successive
//! ticks, so its samples are worth less than as many independent ones. The thread's time is cut
//! into up to 30 batches of equal length. The variance of the mean comes from the differences
//! between neighbouring batches (the mean square successive difference: von Neumann 1941; batch
//! means: Law, Simulation Modeling and Analysis, 9.5.3), which a single change in the run, such as
//! the end of start-up, hardly affects. It gives the effective number of samples, `p (1 - p) /
//! variance`, at most the number of ticks; the interval is Wilson's (1927) for that number, with
//! Student's t in place of z, since the variance is an estimate. Ticks of threads that are known
//! not to have run count as samples, since the kernel reports that they did not run.

use schemars::JsonSchema;
use serde::Serialize;

/// A share of time, 0 to 1, with its interval.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct Share {
    /// 0 to 1.
    #[serde(rename = "share")]
    pub value: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Ticks in which it was seen; below 30 the share should not be quoted.
    pub samples: u64,
}

impl Share {
    /// With fewer ticks a share is not reported, only its upper end.
    pub const FEW: u64 = 30;

    /// Whether it was seen in too few ticks to be reported.
    pub fn is_uncertain(&self) -> bool {
        self.samples < Self::FEW
    }

    /// The difference from another share, which is independent of it.
    #[must_use]
    pub fn minus(&self, less: &Share) -> Share {
        let value = self.value - less.value;
        let below = (self.value - self.low).hypot(less.high - less.value);
        let above = (self.high - self.value).hypot(less.value - less.low);
        Share {
            value,
            low: value - below,
            high: (value + above).min(1.0),
            samples: self.samples,
        }
    }
}

/// Lower and upper bound.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct Bounds {
    /// At least.
    pub low: f64,
    /// At most.
    pub high: f64,
}

/// Maximum and minimum number of batches.
const MOST_BATCHES: usize = 30;
const FEWEST_BATCHES: usize = 10;
/// Ticks that a batch should hold.
const TICKS_A_BATCH: u64 = 10;

/// Student's t for a two-sided 95 % interval, by degrees of freedom. Source: any table of the
/// distribution.
const STUDENT: &[(usize, f64)] = &[
    (6, 2.447),
    (8, 2.306),
    (10, 2.228),
    (13, 2.160),
    (16, 2.120),
    (20, 2.086),
    (25, 2.060),
    (30, 2.042),
    (32, 2.037),
];

fn student(freedom: usize) -> f64 {
    STUDENT
        .iter()
        .rev()
        .find(|(from, _)| *from <= freedom)
        .map_or(2.571, |&(_, t)| t)
}

/// Time by category, in batches.
#[derive(Clone, Debug)]
pub struct Shares {
    batch_ns: f64,
    /// By category, then batch: nanoseconds.
    parts: Vec<Vec<f64>>,
    ticks: Vec<u64>,
    all_ticks: u64,
    total_ns: u64,
    elapsed_ns: u64,
}

impl Shares {
    /// For a thread with `total_ns` of samples that stand for `ticks`, and `categories`.
    pub fn new(total_ns: u64, ticks: u64, categories: usize) -> Self {
        let wanted = usize::try_from(ticks / TICKS_A_BATCH).unwrap_or(MOST_BATCHES);
        let batches = wanted.clamp(FEWEST_BATCHES, MOST_BATCHES);
        Self {
            batch_ns: (total_ns as f64 / batches as f64).max(1.0),
            parts: vec![vec![0.0; batches]; categories],
            ticks: vec![0; categories],
            all_ticks: ticks,
            total_ns,
            elapsed_ns: 0,
        }
    }

    /// Adds a sample: the thread's next `weight_ns`, of which each `(category, ns)` is a part,
    /// spread evenly.
    pub fn add(&mut self, weight_ns: u64, ticks: u32, parts: &[(usize, u64)]) {
        let start = self.elapsed_ns as f64;
        let end = start + weight_ns as f64;
        self.elapsed_ns = self.elapsed_ns.saturating_add(weight_ns);
        for &(category, part_ns) in parts {
            if part_ns == 0 {
                continue;
            }
            if let Some(seen) = self.ticks.get_mut(category) {
                *seen += u64::from(ticks);
            }
            let Some(batches) = self.parts.get_mut(category) else {
                continue;
            };
            let density = part_ns as f64 / weight_ns.max(1) as f64;
            let last = batches.len() - 1;
            let first = ((start / self.batch_ns) as usize).min(last);
            let past = ((end / self.batch_ns) as usize).min(last);
            for (offset, batch) in batches[first..=past].iter_mut().enumerate() {
                let from = (first + offset) as f64 * self.batch_ns;
                let to = if first + offset == last {
                    f64::MAX
                } else {
                    from + self.batch_ns
                };
                *batch += (end.min(to) - start.max(from)).max(0.0) * density;
            }
        }
    }

    pub fn share(&self, category: usize) -> Share {
        let (Some(batches), Some(&samples)) = (self.parts.get(category), self.ticks.get(category))
        else {
            return Share::default();
        };
        if self.total_ns == 0 || self.all_ticks == 0 {
            return Share::default();
        }
        let sum: f64 = batches.iter().sum();
        let value = (sum / self.total_ns as f64).clamp(0.0, 1.0);
        let shares: Vec<f64> = batches.iter().map(|part| part / self.batch_ns).collect();
        let worth = effective_samples(value, &shares, self.all_ticks);
        // Degrees of freedom of the successive difference: about two thirds of the batches (Bendat
        // and Piersol).
        let (low, high) = wilson(value, worth, student((batches.len() - 1) * 2 / 3));
        Share {
            value,
            low,
            high,
            samples,
        }
    }
}

/// The number of independent samples that the batches are equivalent to.
fn effective_samples(value: f64, batches: &[f64], ticks: u64) -> f64 {
    let ticks = ticks as f64;
    let differences: f64 = batches
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).powi(2))
        .sum();
    let variance = differences / (2.0 * (batches.len() as f64 - 1.0)) / batches.len() as f64;
    let spread = value * (1.0 - value);
    if variance <= 0.0 || spread <= 0.0 {
        return ticks;
    }
    (spread / variance).clamp(1.0, ticks.max(1.0))
}

/// Wilson's score interval for a share `value` of `samples`.
pub fn wilson(value: f64, samples: f64, z: f64) -> (f64, f64) {
    if samples <= 0.0 {
        return (0.0, 1.0);
    }
    let z2 = z * z / samples;
    let middle = (value + z2 / 2.0) / (1.0 + z2);
    let half = z / (1.0 + z2)
        * (value * (1.0 - value) / samples + z2 / (4.0 * samples))
            .max(0.0)
            .sqrt();
    (
        (middle - half).clamp(0.0, value),
        (middle + half).clamp(value, 1.0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marsaglia's xorshift64, as a source of numbers in 0..1 that is the same on every run.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as f64 / (1_u64 << 53) as f64
        }
    }

    /// Share of 1,000 simulated recordings whose interval contains the true share: for these
    /// intervals, and for intervals that treat every tick as independent. The state is drawn again
    /// every `dwell` ticks on average.
    fn coverage(truth: f64, dwell: f64, ticks: u64) -> (f64, f64) {
        let mut random = Random(0x9E37_79B9_7F4A_7C15);
        let runs = 1000;
        let (mut held, mut naive_held) = (0, 0);
        for _ in 0..runs {
            let mut shares = Shares::new(ticks * 10, ticks, 2);
            let mut state = random.next() < truth;
            for _ in 0..ticks {
                if random.next() < 1.0 / dwell {
                    state = random.next() < truth;
                }
                shares.add(10, 1, &[(usize::from(state), 10)]);
            }
            let share = shares.share(1);
            let (low, high) = wilson(share.value, ticks as f64, 1.96);
            held += usize::from(share.low <= truth && truth <= share.high);
            naive_held += usize::from(low <= truth && truth <= high);
        }
        (
            f64::from(held as u32) / f64::from(runs),
            f64::from(naive_held as u32) / f64::from(runs),
        )
    }

    #[test]
    fn intervals_hold_the_truth_where_samples_are_independent() {
        for truth in [0.02, 0.3, 0.5, 0.95] {
            let (held, _) = coverage(truth, 1.0, 2000);
            assert!((0.93..=0.995).contains(&held), "{truth}: {held}");
        }
    }

    #[test]
    fn intervals_hold_the_truth_where_samples_resemble_their_neighbours() {
        for (truth, dwell) in [(0.3, 5.0), (0.5, 10.0), (0.1, 8.0)] {
            let (held, naive) = coverage(truth, dwell, 3000);
            assert!((0.925..=0.995).contains(&held), "{truth} {dwell}: {held}");
            assert!(
                naive < 0.8,
                "{truth} {dwell}: the test would pass without batches: {naive}"
            );
        }
    }

    #[test]
    fn one_change_does_not_make_a_share_doubtful() {
        let mut shares = Shares::new(30_000, 3000, 2);
        for tick in 0..3000 {
            shares.add(10, 1, &[(usize::from(tick >= 1000), 10)]);
        }
        let share = shares.share(1);
        assert!((share.value - 2.0 / 3.0).abs() < 1e-9);
        assert!(share.high - share.low < 0.2, "{share:?}");
    }

    #[test]
    fn a_sample_longer_than_a_batch_is_spread() {
        let mut shares = Shares::new(1000, 100, 2);
        shares.add(600, 60, &[(0, 600)]);
        shares.add(400, 40, &[(1, 400)]);
        assert!((shares.share(0).value - 0.6).abs() < 1e-9);
        assert!((shares.share(1).value - 0.4).abs() < 1e-9);
        assert_eq!(shares.share(1).samples, 40);
    }

    #[test]
    fn nothing_is_no_share() {
        let shares = Shares::new(0, 0, 1);
        assert_eq!(shares.share(0), Share::default());
        assert_eq!(shares.share(9), Share::default());
    }

    #[test]
    fn a_category_never_seen_has_an_upper_end() {
        let mut shares = Shares::new(1000, 100, 2);
        shares.add(1000, 100, &[(0, 1000)]);
        let never = shares.share(1);
        assert_eq!(never.value, 0.0);
        assert!(never.high > 0.01 && never.high < 0.06, "{never:?}");
        assert!(never.is_uncertain());
    }
}
