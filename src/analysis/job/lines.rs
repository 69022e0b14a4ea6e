//! Lines through differences of times.

use crate::analysis::slopes::{middle, slopes};

/// Differences that are kept for the pairs of Theil and Sen.
const MOST_FOR_PAIRS: usize = 250;

/// A line through differences.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// The mean time, s.
    pub(super) middle_s: f64,
    pub(super) offset_s: f64,
    pub(super) drift: f64,
}

impl Line {
    pub(super) fn at(&self, at_s: f64) -> f64 {
        self.offset_s + self.drift * (at_s - self.middle_s)
    }
}

/// The line that outliers do not move.
pub(super) fn robust_line(all: &[(f64, f64)]) -> Line {
    let every = all.len().div_ceil(MOST_FOR_PAIRS).max(1);
    let some: Vec<(f64, f64)> = all.iter().copied().step_by(every).collect();
    let drift = middle(&slopes(&some));
    let middle_s = all.iter().map(|point| point.0).sum::<f64>() / all.len() as f64;
    let rest = all
        .iter()
        .map(|point| point.1 - drift * (point.0 - middle_s));
    let mut rest: Vec<f64> = rest.collect();
    rest.sort_by(f64::total_cmp);
    Line {
        middle_s,
        offset_s: middle(&rest),
        drift,
    }
}

/// The line of least squares, the standard deviation of a difference from it, and the sum of the
/// squares of times.
pub(super) fn least_squares(all: &[(f64, f64)]) -> (Line, f64, f64) {
    let count = all.len().max(1) as f64;
    let middle_s = all.iter().map(|point| point.0).sum::<f64>() / count;
    let offset_s = all.iter().map(|point| point.1).sum::<f64>() / count;
    let times: f64 = all.iter().map(|point| (point.0 - middle_s).powi(2)).sum();
    let products = all.iter();
    let products = products.map(|point| (point.0 - middle_s) * (point.1 - offset_s));
    let line = Line {
        middle_s,
        offset_s,
        drift: products.sum::<f64>() / times.max(f64::MIN_POSITIVE),
    };
    let rest = all.iter().map(|point| (point.1 - line.at(point.0)).powi(2));
    (
        line,
        (rest.sum::<f64>() / (count - 2.0).max(1.0)).sqrt(),
        times,
    )
}
