//! Means with their standard errors, and what is derived from them with 95 % intervals.

use crate::analysis::diff::student::t95;
use schemars::JsonSchema;
use serde::Serialize;

/// Parts of a run from which an error is estimated, at least.
const FEWEST_PARTS: usize = 6;
/// Above, an error counts as known.
const KNOWN: f64 = 1000.0;

/// A figure with its 95 % interval.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Serialize)]
#[schemars(rename = "Estimate")]
pub struct Estimate {
    pub value: f64,
    /// Ends of the 95 % interval; null if it is not known.
    pub low: Option<f64>,
    pub high: Option<f64>,
}

impl Estimate {
    /// A value with an interval.
    pub fn within(value: f64, low: f64, high: f64) -> Self {
        Self {
            value,
            low: Some(low),
            high: Some(high),
        }
    }

    /// The same in another unit; `factor` is positive.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self {
            value: self.value * factor,
            low: self.low.map(|low| low * factor),
            high: self.high.map(|high| high * factor),
        }
    }
}

/// A mean, and how certain it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    pub value: f64,
    /// Standard error; `None` if there are too few values for one.
    pub error: Option<f64>,
    /// Degrees of freedom of the error.
    pub freedom: f64,
}

impl Mean {
    /// The mean of independent values; `None` without any.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        let value = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|each| (each - value).powi(2)).sum();
        let error = (values.len() > 1).then(|| (squares / (count - 1.0) / count).sqrt());
        (!values.is_empty()).then_some(Self {
            value,
            error,
            freedom: (count - 1.0).max(1.0),
        })
    }

    /// The mean of a run by parts of equal length that follow each other: its error comes from the
    /// differences between neighbours, as that of [`crate::analysis::intervals`].
    pub fn of_parts(value: f64, parts: &[f64]) -> Self {
        let differences: f64 = parts
            .windows(2)
            .map(|pair| (pair[1] - pair[0]).powi(2))
            .sum();
        let count = parts.len() as f64;
        let error = (differences / (2.0 * (count - 1.0)) / count).sqrt();
        Self {
            value,
            error: (parts.len() >= FEWEST_PARTS).then_some(error),
            freedom: ((count - 1.0) * 2.0 / 3.0).max(1.0),
        }
    }

    /// With an independent error besides; `freedom` of this one.
    #[must_use]
    pub fn with(self, error: f64, freedom: f64) -> Self {
        let Some(own) = self.error else { return self };
        let (a, b) = (own.powi(2), error.powi(2));
        Self {
            error: Some((a + b).sqrt()),
            freedom: welch([(a, self.freedom), (b, freedom)]),
            ..self
        }
    }

    /// The mean with its interval, which does not go below zero.
    pub fn estimate(&self) -> Estimate {
        let half = self.error.map(|error| t95(self.freedom) * error);
        Estimate {
            value: self.value,
            low: half.map(|half| (self.value - half).max(0.0)),
            high: half.map(|half| self.value + half),
        }
    }

    /// This mean divided by another one, which is independent of it. The interval is one of the
    /// logarithm.
    pub fn over(&self, other: &Self) -> Estimate {
        let value = self.value / other.value.max(f64::MIN_POSITIVE);
        let relative = |mean: &Self| Some((mean.error? / mean.value).powi(2));
        let (Some(a), Some(b)) = (relative(self), relative(other)) else {
            return Estimate {
                value,
                ..Estimate::default()
            };
        };
        let freedom = welch([(a, self.freedom), (b, other.freedom)]);
        let factor = (t95(freedom) * (a + b).sqrt()).exp();
        Estimate::within(value, value / factor, value * factor)
    }
}

/// Degrees of freedom of a sum of variances (Welch 1947, Satterthwaite 1946).
fn welch(parts: [(f64, f64); 2]) -> f64 {
    let sum: f64 = parts.iter().map(|(variance, _)| variance).sum();
    let below: f64 = parts
        .iter()
        .map(|(variance, freedom)| variance.powi(2) / freedom)
        .sum();
    match below > 0.0 {
        true => (sum.powi(2) / below).clamp(1.0, KNOWN),
        false => KNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_those_of_the_values() {
        let mean = Mean::of(&[9.0, 10.0, 11.0]).unwrap();
        assert_eq!(mean.value, 10.0);
        let estimate = mean.estimate();
        // 4.3027 by a standard error of 1 / sqrt(3).
        assert!(
            (estimate.high.unwrap() - 12.484).abs() < 0.001,
            "{estimate:?}"
        );
        assert_eq!(Mean::of(&[3.0]).unwrap().error, None);
        assert_eq!(Mean::of(&[]), None);
        // A drift is no noise.
        let drift: Vec<f64> = (0..30).map(f64::from).collect();
        let by_parts = Mean::of_parts(14.5, &drift).error.unwrap();
        assert!(by_parts < 0.2 * Mean::of(&drift).unwrap().error.unwrap());
    }

    #[test]
    fn a_quotient_is_as_uncertain_as_both() {
        let known = |value: f64, error: f64| Mean {
            value,
            error: Some(error),
            freedom: 1000.0,
        };
        let ratio = known(10.0, 0.3).over(&known(5.0, 0.2));
        // exp(1.962 * 0.05)
        assert!(
            (ratio.high.unwrap() / 2.0 - 1.1031).abs() < 1e-3,
            "{ratio:?}"
        );
        let unknown = Mean {
            error: None,
            ..known(5.0, 0.2)
        };
        assert_eq!(known(10.0, 0.3).over(&unknown).low, None);
    }
}
