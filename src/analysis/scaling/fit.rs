//! Models of the time by the number of ranks, fitted to what was measured, and what they predict.
//!
//! Both have two parameters, which are found by least squares, weighted by the errors of the
//! points. Those errors are estimates, so intervals use Student's t, and whether a model describes
//! the points is tested by Fisher's ratio of variances. A model that does not is not shown.

use super::mean::Estimate;
use crate::analysis::diff::student::{ratio_above, t95};
use crate::model::named::named;

/// Numbers of ranks that a model with two parameters needs to be tested.
const FEWEST: usize = 3;
/// A model is not shown if points as far from it have a probability below this by chance.
const MISFIT: f64 = 0.01;

named!(
    /// A model of the time T that the same work takes on n ranks.
    Model {
        /// T(n) = a + b / n: a part that more ranks do not make shorter (Amdahl 1967).
        Amdahl = "amdahl",
        /// T(n) = b / n + c s(n) 2 (n - 1) / n: computation that is shared, and in each of s(n)
        /// steps a ring all-reduce of the gradients, limited by bandwidth (Patarasuk and Yuan
        /// 2009).
        Ring = "ring_all_reduce",
    }
);

/// How the steps that the same work takes depend on the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Division {
    /// Each rank has a batch of the same size: with twice the ranks half the steps.
    PerRank,
    /// All ranks share a batch of the same size: the same number of steps.
    Global,
}

impl Division {
    /// Steps for the same work, relative to those of `least` ranks.
    pub fn steps(self, ranks: f64, least: f64) -> f64 {
        match self {
            Division::PerRank => least / ranks,
            Division::Global => 1.0,
        }
    }
}

/// A measured time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    pub ranks: f64,
    /// Time of the same work, s, and its standard error with degrees of freedom.
    pub time_s: f64,
    pub error_s: f64,
    pub freedom: f64,
}

/// A fitted model.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    pub model: Model,
    /// The parameters: of Amdahl's law the serial part of the time of the least ranks; of the ring
    /// the part of their time that communication would take with many ranks, s(n) = 1. 0 to 1.
    pub part: Estimate,
    /// How probable it is by chance that the points are as far from it.
    pub chance: f64,
    /// With twice the most ranks.
    pub predicted: Predicted,
    solution: Solution,
    division: Option<Division>,
    least: f64,
}

/// What a model says of a number of ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicted {
    pub ranks: f64,
    /// Time of the same work, s: of a new run, with the variation from run to run.
    pub time_s: Estimate,
    /// With respect to the least ranks.
    pub speed_up: Estimate,
}

/// Why there is no fit.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum NoFit {
    #[error("the speed-up is not known")]
    NoWork,
    #[error("it needs {FEWEST} numbers of ranks, and there are {0}")]
    TooFew(usize),
    #[error("the error of a time is not known: too few steps, or a single epoch")]
    NoError,
    #[error("how many steps the same work takes is not known, or follows no rule")]
    NoDivision,
    #[error("the points are further from it than their errors allow (p = {0:.1e})")]
    Misfit(f64),
    #[error("the points get faster with more ranks than it allows")]
    TooFast,
    #[error("the same work gets no faster with more ranks")]
    NoGain,
}

/// Parameters by least squares.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Solution {
    /// Of the first and second column.
    parameters: [f64; 2],
    /// Their covariance.
    covariance: [[f64; 2]; 2],
    squares: f64,
}

/// The model's columns: T = first * p + second * q.
fn columns(model: Model, ranks: f64, steps: f64) -> [f64; 2] {
    match model {
        Model::Amdahl => [1.0, 1.0 / ranks],
        Model::Ring => [steps * 2.0 * (ranks - 1.0) / ranks, 1.0 / ranks],
    }
}

fn solve(rows: &[([f64; 2], f64, f64)]) -> Option<Solution> {
    let (mut xx, mut xy) = ([[0.0; 2]; 2], [0.0; 2]);
    for (x, y, error) in rows {
        let weight = error.powi(-2);
        for i in 0..2 {
            xy[i] += weight * x[i] * y;
            for j in 0..2 {
                xx[i][j] += weight * x[i] * x[j];
            }
        }
    }
    let determinant = xx[0][0] * xx[1][1] - xx[0][1] * xx[1][0];
    if !determinant.is_finite() || determinant <= 1e-12 * xx[0][0] * xx[1][1] {
        return None;
    }
    let covariance = [
        [xx[1][1] / determinant, -xx[0][1] / determinant],
        [-xx[1][0] / determinant, xx[0][0] / determinant],
    ];
    let parameters = covariance.map(|row| row[0] * xy[0] + row[1] * xy[1]);
    let squares = rows
        .iter()
        .map(|(x, y, error)| ((y - dot(*x, parameters)) / error).powi(2))
        .sum();
    Some(Solution {
        parameters,
        covariance,
        squares,
    })
}

fn dot(a: [f64; 2], b: [f64; 2]) -> f64 {
    a[0] * b[0] + a[1] * b[1]
}

impl Solution {
    fn variance(&self, gradient: [f64; 2]) -> f64 {
        let row = self.covariance.map(|row| dot(row, gradient));
        dot(gradient, row).max(0.0)
    }

    /// With the first parameter at zero: the least squares there.
    fn without_first(&self) -> f64 {
        let [first, second] = self.parameters;
        second - first * self.covariance[0][1] / self.covariance[0][0]
    }
}

/// Fits a model. `run_to_run` is the variation between runs, as a share.
///
/// # Errors
/// Why it is not shown.
pub fn fit(
    model: Model,
    points: &[Measured],
    division: Option<Division>,
    run_to_run: f64,
) -> Result<Fit, NoFit> {
    let mut sizes: Vec<f64> = points.iter().map(|point| point.ranks).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let (Some(&least), Some(&most)) = (sizes.first(), sizes.last()) else {
        return Err(NoFit::TooFew(0));
    };
    if sizes.len() < FEWEST {
        return Err(NoFit::TooFew(sizes.len()));
    }
    if points
        .iter()
        .any(|point| point.error_s <= 0.0 || point.time_s <= 0.0)
    {
        return Err(NoFit::NoError);
    }
    if model == Model::Ring && division.is_none() {
        return Err(NoFit::NoDivision);
    }
    let steps = |ranks: f64| division.map_or(1.0, |division| division.steps(ranks, least));
    let x = |ranks: f64| columns(model, ranks, steps(ranks));
    let rows: Vec<_> = points
        .iter()
        .map(|point| (x(point.ranks), point.time_s, point.error_s))
        .collect();
    let solution = solve(&rows).ok_or(NoFit::TooFew(sizes.len()))?;
    let freedom = points
        .iter()
        .map(|point| point.freedom)
        .fold(f64::MAX, f64::min);
    let t = t95(freedom);
    let [first, second] = solution.parameters;
    if first + t * solution.covariance[0][0].sqrt() < 0.0 {
        return Err(NoFit::TooFast);
    }
    if second - t * solution.covariance[1][1].sqrt() <= 0.0 {
        return Err(NoFit::NoGain);
    }
    let left = (points.len() - 2) as f64;
    let chance = ratio_above(solution.squares / left, left, freedom);
    if chance < MISFIT {
        return Err(NoFit::Misfit(chance));
    }
    let bounded = match first < 0.0 {
        true => [0.0, solution.without_first()],
        false => solution.parameters,
    };
    let mut fit = Fit {
        model,
        part: Estimate::default(),
        chance,
        predicted: Predicted {
            ranks: 2.0 * most,
            time_s: Estimate::default(),
            speed_up: Estimate::default(),
        },
        solution: Solution {
            parameters: bounded,
            ..solution
        },
        division,
        least,
    };
    fit.part = fit.part_of_time(t, solution.parameters);
    fit.predicted = fit.predict(2.0 * most, t, solution.parameters, run_to_run);
    Ok(fit)
}

impl Fit {
    fn x(&self, ranks: f64) -> [f64; 2] {
        let steps = self.division.map_or(1.0, |it| it.steps(ranks, self.least));
        columns(self.model, ranks, steps)
    }

    /// Time of the same work, s.
    pub fn time_s(&self, ranks: f64) -> f64 {
        dot(self.x(ranks), self.solution.parameters)
    }

    /// The first parameter's part of the least ranks' time; of one rank's without communication
    /// for the ring.
    fn part_of_time(&self, t: f64, free: [f64; 2]) -> Estimate {
        let (own, whole) = match self.model {
            Model::Amdahl => ([1.0, 0.0], self.x(self.least)),
            Model::Ring => ([2.0, 0.0], [0.0, 1.0 / self.least]),
        };
        let value_of = |parameters| dot(own, parameters) / dot(whole, parameters);
        let (value, free_value) = (value_of(self.solution.parameters), value_of(free));
        let total = dot(whole, free);
        let gradient = [
            (own[0] - free_value * whole[0]) / total,
            (own[1] - free_value * whole[1]) / total,
        ];
        let half = t * self.solution.variance(gradient).sqrt();
        Estimate::within(
            value,
            (free_value - half).clamp(0.0, value),
            (free_value + half).max(value),
        )
    }

    fn predict(&self, ranks: f64, t: f64, free: [f64; 2], run_to_run: f64) -> Predicted {
        let (at, from) = (self.x(ranks), self.x(self.least));
        let time = |parameters| dot(at, parameters);
        let (value, free_time) = (time(self.solution.parameters), time(free));
        let half = t * (self.solution.variance(at) + (run_to_run * value).powi(2)).sqrt();
        let time_s = Estimate::within(
            value,
            (free_time - half).clamp(0.0, value),
            (free_time + half).max(value),
        );
        // The variance of the logarithm of the quotient.
        let (free_from, safe) = (dot(from, free), free_time.max(value / 2.0));
        let gradient = [0, 1].map(|at_column| from[at_column] / free_from - at[at_column] / safe);
        let relative = self.solution.variance(gradient) + run_to_run.powi(2);
        let factor = (t * relative.sqrt()).exp();
        let speed_up = self.time_s(self.least) / value;
        Predicted {
            ranks,
            time_s,
            speed_up: Estimate::within(
                speed_up,
                (free_from / safe / factor).min(speed_up),
                (free_from / safe * factor).max(speed_up),
            ),
        }
    }
}
