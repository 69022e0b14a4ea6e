//! A Gaussian process over positions in a step, given the windows' idle shares.
#![allow(
    clippy::needless_range_loop,
    reason = "matrices are clearer with indices"
)]

use super::position::{ByPosition, POSITIONS};

/// Time at positions, passes of positions, and what is the same everywhere.
pub(super) const FEATURES: usize = 2 * POSITIONS + 1;

/// Shares of the prior that time at positions, and passes, have.
const SPLITS: [[f64; 2]; 3] = [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]];
/// Standard deviations of the prior; its correlation lengths, in steps; those of windows' errors.
const PRIORS: [f64; 2] = [0.2, 0.4];
const LENGTHS: [f64; 2] = [0.06, 0.25];
const ERRORS: [f64; 5] = [0.006, 0.012, 0.025, 0.05, 0.1];

/// A window: what was done in it, and the share of it in which the device was idle.
pub(super) struct Row {
    pub(super) features: [f64; FEATURES],
    pub(super) idle: f64,
}

/// Mean and standard deviation of the shares of `wanted`, averaged over priors by their evidence.
pub(super) fn fit(rows: &[Row], wanted: &[ByPosition], alike: &[f64]) -> Vec<(f64, f64)> {
    let mut squares = vec![0.0; FEATURES * FEATURES];
    let (mut products, mut idle) = ([0.0; FEATURES], 0.0);
    for row in rows {
        for a in 0..FEATURES {
            for b in 0..FEATURES {
                squares[a * FEATURES + b] += row.features[a] * row.features[b];
            }
            products[a] += row.features[a] * row.idle;
        }
        idle += row.idle * row.idle;
    }
    let mut fits = Vec::new();
    for length in LENGTHS {
        let root = prior(length, alike);
        for (split, deviation) in SPLITS
            .iter()
            .flat_map(|split| PRIORS.map(|each| (split, each)))
        {
            // Shares are `basis` times independent standard normals.
            let used: Vec<usize> = (0..2).filter(|&half| split[half] > 0.0).collect();
            let size = used.len() * POSITIONS + 1;
            let mut basis = vec![0.0; FEATURES * size];
            for (block, &half) in used.iter().enumerate() {
                let scale = deviation * split[half].sqrt();
                for a in 0..POSITIONS {
                    for b in 0..=a {
                        basis[(half * POSITIONS + a) * size + block * POSITIONS + b] =
                            scale * root[a * POSITIONS + b];
                    }
                }
            }
            basis[FEATURES * size - 1] = 1.0;
            let half = product(&squares, &basis, FEATURES, FEATURES, size);
            let turned = transposed(&basis, FEATURES, size);
            let normal = product(&turned, &half, size, FEATURES, size);
            let right = product(&turned, &products, size, FEATURES, 1);
            let wanted = wanted.iter().map(|own| {
                let mut full = [1.0; FEATURES];
                full[..POSITIONS].copy_from_slice(own);
                full[POSITIONS..2 * POSITIONS].copy_from_slice(own);
                product(&turned, &full, size, FEATURES, 1)
            });
            let wanted: Vec<Vec<f64>> = wanted.collect();
            for error in ERRORS {
                let weight = 1.0 / (error * error);
                let mut matrix: Vec<f64> = normal.iter().map(|each| each * weight).collect();
                for at in 0..size {
                    matrix[at * size + at] += 1.0;
                }
                cholesky(&mut matrix, size);
                let mut solved: Vec<f64> = right.iter().map(|each| each * weight).collect();
                solve(&matrix, size, &mut solved);
                let log: f64 = (0..size).map(|at| matrix[at * size + at].ln()).sum();
                let chi = idle * weight - dot(&solved, &solved);
                let evidence = -(rows.len() as f64) * error.ln() - log - 0.5 * chi;
                let shares = wanted.iter().map(|own| {
                    let mut own = own.clone();
                    solve(&matrix, size, &mut own);
                    (dot(&own, &solved), dot(&own, &own))
                });
                fits.push((evidence, shares.collect::<Vec<_>>()));
            }
        }
    }
    let best = fits
        .iter()
        .map(|fit| fit.0)
        .fold(f64::NEG_INFINITY, f64::max);
    let mut sums = vec![(0.0, 0.0, 0.0); wanted.len()];
    for (evidence, shares) in &fits {
        let weight = (evidence - best).exp();
        for (sum, (share, variance)) in sums.iter_mut().zip(shares) {
            sum.0 += weight;
            sum.1 += weight * share;
            sum.2 += weight * (variance + share * share);
        }
    }
    let moments = sums.into_iter().map(|(total, share, square)| {
        let share = share / total;
        (share, (square / total - share * share).max(0.0).sqrt())
    });
    moments.collect()
}

/// Root of the prior's covariance: half of it is a phase's, half falls with the distance.
fn prior(length: f64, alike: &[f64]) -> Vec<f64> {
    let mut root: Vec<f64> = (0..POSITIONS * POSITIONS)
        .map(|pair| {
            let apart = (pair / POSITIONS).abs_diff(pair % POSITIONS);
            let apart = apart.min(POSITIONS - apart) as f64 / POSITIONS as f64;
            let jitter = if apart == 0.0 { 1e-4 } else { 0.0 };
            0.5 * alike[pair] * (1.0 + (-apart / length).exp()) + jitter
        })
        .collect();
    cholesky(&mut root, POSITIONS);
    root
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn transposed(matrix: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    (0..rows * columns)
        .map(|at| matrix[at % rows * columns + at / rows])
        .collect()
}

/// `a` (`rows` by `inner`) times `b` (`inner` by `columns`).
fn product(a: &[f64], b: &[f64], rows: usize, inner: usize, columns: usize) -> Vec<f64> {
    let mut to = vec![0.0; rows * columns];
    for row in 0..rows {
        for at in 0..inner {
            let factor = a[row * inner + at];
            if factor != 0.0 {
                for column in 0..columns {
                    to[row * columns + column] += factor * b[at * columns + column];
                }
            }
        }
    }
    to
}

/// The lower root of a positive matrix, in place; only the lower half is used.
fn cholesky(matrix: &mut [f64], size: usize) {
    for row in 0..size {
        for column in 0..=row {
            let (own, other) = (row * size, column * size);
            let done = dot(&matrix[own..own + column], &matrix[other..other + column]);
            let rest = matrix[own + column] - done;
            matrix[own + column] = match row == column {
                true => rest.max(1e-12).sqrt(),
                false => rest / matrix[other + column],
            };
        }
    }
}

/// Solves for a lower root, in place.
fn solve(root: &[f64], size: usize, right: &mut [f64]) {
    for row in 0..size {
        let done = dot(&root[row * size..row * size + row], &right[..row]);
        right[row] = (right[row] - done) / root[row * size + row];
    }
}
