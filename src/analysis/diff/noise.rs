//! How certain a difference is.
//!
//! **One run.** Its blocks (see [`units`](super::units)) are measurements that resemble their
//! neighbours and that drift. The variance of the run's mean is that of independent blocks, times
//! `(1 + r) / (1 - r)`, where `r` is the first autocorrelation of the blocks (with its bias in
//! short series removed: Kendall 1954; the factor is that of a first-order autoregression); the
//! degrees of freedom decrease by the same factor. Drift within a run is noise: a run that got
//! slower by itself is not distinguished from one that was made slower. The variance is never less
//! than what sampling alone causes.
//!
//! **From one run to the next** a machine changes, too: memory is laid out anew, and other load
//! comes and goes. Two single runs cannot show how much, so a relative standard deviation is
//! assumed ([`Comparison::run_to_run`]). Where a side has several runs, it is measured: the scatter
//! of a part's time among the runs of one side, moderated by the scatter of all parts (Smyth 2004:
//! few runs, many parts), and never below that part's own scatter. The step itself, which every
//! verdict depends on, uses its own scatter alone.
//!
//! **Hundreds of parts** are compared; by chance alone, one in twenty has a 95 % interval that
//! excludes zero. A part is called slower or faster only if it is beyond what chance produces among
//! *all* of them: Holm's (1979) procedure, which holds for any dependence between parts, keeps the
//! probability of any wrong call at 1 %. The step is a separate question, at 5 %.

use super::measure::Series;
use super::student::{t95, two_sided};
use super::units::Blocks;

/// Probability that any part is called slower or faster by chance.
pub(super) const FAMILY_ERROR: f64 = 0.01;
/// The same for the step.
pub(super) const STEP_ERROR: f64 = 0.05;
/// Number of runs that the common scatter of all parts counts as, where a side has several runs.
const PRIOR_FREEDOM: f64 = 8.0;
/// Degrees of freedom of variances that are assumed or come from sampling alone.
const KNOWN: f64 = 200.0;
/// Maximum autocorrelation of blocks; beyond it the run is one long drift, and shows nothing.
const MOST_ALIKE: f64 = 0.8;
const FEWEST_FREEDOM: f64 = 2.0;

/// A part's time per unit in one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    /// ns per unit.
    pub(super) mean: f64,
    /// Of the mean.
    pub(super) variance: f64,
    pub(super) freedom: f64,
}

impl Estimate {
    /// For a run cut into `blocks`; `None` for a part that it does not have.
    pub(super) fn new(series: Option<&Series>, blocks: &Blocks, tick_ns: f64) -> Self {
        let units = blocks.unit_count().max(f64::MIN_POSITIVE);
        let per_unit = |sampling: f64| sampling.max(1.0) * (tick_ns / units).powi(2);
        let Some(series) = series else {
            return Self {
                mean: 0.0,
                variance: per_unit(1.0),
                freedom: KNOWN,
            };
        };
        let mean = series.blocks.iter().sum::<f64>() / units;
        let (variance, freedom) = of_blocks(&series.blocks, &blocks.units, mean);
        let floor = per_unit(series.sampling);
        Self {
            mean,
            variance: variance.max(floor),
            freedom: if variance < floor { KNOWN } else { freedom },
        }
    }
}

/// Variance of the mean per unit, and its degrees of freedom.
fn of_blocks(times: &[f64], units: &[f64], mean: f64) -> (f64, f64) {
    let count = times.len().min(units.len()) as f64;
    if count < 2.0 {
        return (f64::INFINITY, FEWEST_FREEDOM);
    }
    let size = units.iter().sum::<f64>() / count;
    let apart: Vec<f64> = times
        .iter()
        .zip(units)
        .map(|(time, units)| (time - mean * units) / size)
        .collect();
    let squares: f64 = apart.iter().map(|each| each * each).sum();
    if squares <= 0.0 {
        return (0.0, count - 1.0);
    }
    let products: f64 = apart.windows(2).map(|pair| pair[0] * pair[1]).sum();
    let seen = products / squares;
    let alike = (seen + (1.0 + 4.0 * seen) / count).clamp(0.0, MOST_ALIKE);
    let factor = (1.0 + alike) / (1.0 - alike);
    let variance = squares / (count - 1.0) / count * factor;
    (variance, (count / factor - 1.0).max(FEWEST_FREEDOM))
}

/// A part's difference between two sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Difference {
    /// ns per unit, and variance of it, of A and of B.
    pub(super) means: [f64; 2],
    pub(super) variances: [f64; 2],
    pub(super) freedom: f64,
}

impl Difference {
    /// B less A, ns per unit.
    pub(super) fn value(&self) -> f64 {
        self.means[1] - self.means[0]
    }

    /// Half of its 95 % interval.
    pub(super) fn half(&self) -> f64 {
        t95(self.freedom) * (self.variances[0] + self.variances[1]).sqrt()
    }

    /// Half of the 95 % interval of one side.
    pub(super) fn half_of(&self, side: usize) -> f64 {
        t95(self.freedom) * self.variances.get(side).copied().unwrap_or(0.0).sqrt()
    }

    /// Probability of a difference at least as large by chance.
    pub(super) fn chance(&self) -> f64 {
        let error = (self.variances[0] + self.variances[1]).sqrt();
        if error > 0.0 {
            two_sided(self.value() / error, self.freedom)
        } else {
            1.0
        }
    }

    /// B relative to A, minus one, with half of its 95 % interval (by the delta method); `None` if
    /// A has no time in it.
    pub(super) fn relative(&self) -> Option<(f64, f64)> {
        let [a, b] = self.means;
        if a <= 0.0 {
            return None;
        }
        let ratio = b / a;
        let spread = (self.variances[1] + ratio * ratio * self.variances[0]).sqrt() / a;
        Some((ratio - 1.0, t95(self.freedom) * spread))
    }
}

/// Variation from one run to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RunToRun {
    /// Assumed: a relative standard deviation.
    Assumed(f64),
    /// Measured from the runs of both sides.
    Measured {
        /// The relative standard deviation, beyond what varies within a run.
        scatter: f64,
        /// Degrees of freedom: runs less sides.
        freedom: usize,
    },
}

/// All parts of all runs: by part, then by side, then by run.
pub(super) struct Comparison {
    parts: Vec<[Vec<Estimate>; 2]>,
    pub(super) run_to_run: RunToRun,
}

impl Comparison {
    /// `assumed` is the relative standard deviation from one run to the next, used where it cannot
    /// be measured.
    pub(super) fn new(parts: Vec<[Vec<Estimate>; 2]>, assumed: f64) -> Self {
        let freedom = parts.first().map_or(0, freedom);
        let run_to_run = if freedom == 0 {
            RunToRun::Assumed(assumed)
        } else {
            let excess: f64 = parts
                .iter()
                .map(|sides| scatter(sides) - within(sides))
                .sum();
            let squares: f64 = parts.iter().map(mean_square).sum();
            RunToRun::Measured {
                scatter: (excess / squares.max(f64::MIN_POSITIVE)).max(0.0).sqrt(),
                freedom,
            }
        };
        Self { parts, run_to_run }
    }

    pub(super) fn difference(&self, part: usize, is_step: bool) -> Option<Difference> {
        let sides = self.parts.get(part)?;
        let means = [mean(&sides[0]), mean(&sides[1])];
        Some(match self.run_to_run {
            RunToRun::Assumed(relative) => single(sides, means, relative),
            RunToRun::Measured { freedom, .. } if is_step => {
                let own = scatter(sides);
                let inside = within(sides);
                let variance = own.max(inside);
                let shared = |side: &[Estimate]| variance / side.len().max(1) as f64;
                Difference {
                    means,
                    variances: [shared(&sides[0]), shared(&sides[1])],
                    freedom: if own >= inside {
                        freedom as f64
                    } else {
                        single(sides, means, 0.0).freedom
                    },
                }
            }
            RunToRun::Measured {
                scatter: relative,
                freedom,
            } => {
                let own = scatter(sides);
                let freedom = freedom as f64;
                let side = |index: usize| {
                    let usual = mean_variance(&sides[index]) + (relative * means[index]).powi(2);
                    let moderated =
                        (PRIOR_FREEDOM * usual + freedom * own) / (PRIOR_FREEDOM + freedom);
                    moderated.max(own) / sides[index].len().max(1) as f64
                };
                Difference {
                    means,
                    variances: [side(0), side(1)],
                    freedom: PRIOR_FREEDOM + freedom,
                }
            }
        })
    }
}

/// For two sides whose runs are assumed to scatter by a known amount. Degrees of freedom: Welch
/// 1947.
fn single(sides: &[Vec<Estimate>; 2], means: [f64; 2], relative: f64) -> Difference {
    let mut variances = [0.0; 2];
    let mut squares = 0.0;
    for ((side, mean), variance) in sides.iter().zip(means).zip(&mut variances) {
        let count = side.len().max(1) as f64;
        let between = (relative * mean).powi(2) / count;
        squares += between.powi(2) / KNOWN;
        *variance = between;
        for run in side {
            let part = run.variance / (count * count);
            squares += part.powi(2) / run.freedom;
            *variance += part;
        }
    }
    let sum = variances[0] + variances[1];
    let freedom = if squares > 0.0 && sum.is_finite() {
        (sum * sum / squares).max(1.0)
    } else {
        FEWEST_FREEDOM
    };
    Difference {
        means,
        variances,
        freedom,
    }
}

fn freedom(sides: &[Vec<Estimate>; 2]) -> usize {
    sides.iter().map(|side| side.len().saturating_sub(1)).sum()
}

fn mean(side: &[Estimate]) -> f64 {
    side.iter().map(|run| run.mean).sum::<f64>() / side.len().max(1) as f64
}

fn mean_variance(side: &[Estimate]) -> f64 {
    side.iter().map(|run| run.variance).sum::<f64>() / side.len().max(1) as f64
}

/// Variance of a run's mean, as runs of one side show it.
fn scatter(sides: &[Vec<Estimate>; 2]) -> f64 {
    let squares: f64 = sides
        .iter()
        .map(|side| {
            let middle = mean(side);
            side.iter()
                .map(|run| (run.mean - middle).powi(2))
                .sum::<f64>()
        })
        .sum();
    squares / freedom(sides).max(1) as f64
}

/// Variance of a run's mean, as its own blocks show it.
fn within(sides: &[Vec<Estimate>; 2]) -> f64 {
    let count = sides.iter().map(Vec::len).sum::<usize>().max(1) as f64;
    let sum: f64 = sides.iter().flatten().map(|run| run.variance).sum();
    sum / count
}

fn mean_square(sides: &[Vec<Estimate>; 2]) -> f64 {
    (mean(&sides[0]).powi(2) + mean(&sides[1]).powi(2)) / 2.0
}

/// Which of `chances` are beyond what chance produces among all of them (Holm 1979).
pub(super) fn beyond_chance(chances: &[f64], error: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..chances.len()).collect();
    order.sort_by(|&one, &other| chances[one].total_cmp(&chances[other]));
    let mut beyond = vec![false; chances.len()];
    for (rank, &index) in order.iter().enumerate() {
        if chances[index] > error / (chances.len() - rank) as f64 {
            break;
        }
        beyond[index] = true;
    }
    beyond
}
