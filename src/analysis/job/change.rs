//! Since when: the point at which the mean of a series changes.
//!
//! The split into two means that leaves the least squares (Page 1955; Hinkley 1970). Its
//! significance is that of a permutation test: how many random orders of the same values have a
//! split as good. The interval holds the splits whose likelihood is within 1.92 of the best, half
//! of the 95 % point of chi-squared with one degree of freedom (Wilks 1938).

/// Random orders that are tried.
const ORDERS: u32 = 999;
/// Values on either side, at least.
const FEWEST: usize = 4;
const WITHIN: f64 = 1.92;

/// A change of the mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Index of the first value after it, with its 95 % interval.
    pub at: usize,
    pub low: usize,
    pub high: usize,
    /// Means before and after.
    pub before: f64,
    pub after: f64,
}

/// The best split; `None` for too few values.
pub fn best_split(values: &[f64]) -> Option<Change> {
    let gains = gains(values)?;
    let (at, _) = best(&gains)?;
    let all = squares(values);
    let likelihood = |gain: f64| -(values.len() as f64) / 2.0 * (all - gain).max(1e-12).ln();
    let most = gains
        .iter()
        .map(|&(_, gain)| likelihood(gain))
        .fold(f64::MIN, f64::max);
    let mut within = gains
        .iter()
        .filter(|&&(_, gain)| likelihood(gain) >= most - WITHIN)
        .map(|&(at, _)| at);
    let low = within.next()?;
    let high = within.next_back().unwrap_or(low);
    let (before, after) = values.split_at_checked(at)?;
    Some(Change {
        at,
        low,
        high,
        before: mean(before),
        after: mean(after),
    })
}

/// How probable a split as good as the best is where nothing changes: 0.001 to 1.
pub fn probability(values: &[f64]) -> f64 {
    let of = |values: &[f64]| {
        gains(values)
            .and_then(|gains| best(&gains))
            .map(|(_, gain)| gain)
    };
    let Some(own) = of(values) else { return 1.0 };
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut order = values.to_vec();
    let mut as_good = 0;
    for _ in 0..ORDERS {
        for last in (1..order.len()).rev() {
            // xorshift64 (Marsaglia 2003): the same orders in each run.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            order.swap(last, (random % (last as u64 + 1)) as usize);
        }
        as_good += u32::from(of(&order).is_some_and(|gain| gain >= own));
    }
    f64::from(as_good + 1) / f64::from(ORDERS + 1)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn squares(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|value| (value - mean).powi(2)).sum()
}

fn best(gains: &[(usize, f64)]) -> Option<(usize, f64)> {
    gains.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))
}

/// By how much each split reduces the sum of squares.
fn gains(values: &[f64]) -> Option<Vec<(usize, f64)>> {
    let count = values.len();
    if count < 2 * FEWEST {
        return None;
    }
    let all: f64 = values.iter().sum();
    let mut sum = 0.0;
    let mut gains = Vec::with_capacity(count);
    for (index, value) in values.iter().enumerate() {
        sum += value;
        let (left, right) = ((index + 1) as f64, (count - index - 1) as f64);
        if index + 1 >= FEWEST && count - index > FEWEST {
            let difference = sum / left - (all - sum) / right;
            gains.push((index + 1, difference.powi(2) * left * right / count as f64));
        }
    }
    Some(gains)
}

#[cfg(test)]
mod tests {
    use super::{best_split, probability};

    fn noise(count: usize) -> impl Iterator<Item = f64> {
        (0..count).map(|at| ((at * 7919) % 101) as f64 / 101.0)
    }

    #[test]
    fn a_planted_change_is_found_where_it_is() {
        let values: Vec<f64> = noise(200)
            .enumerate()
            .map(|(at, value)| value + if at >= 130 { 0.8 } else { 0.0 })
            .collect();
        let change = best_split(&values).unwrap();
        assert!((127..=133).contains(&change.at), "{change:?}");
        assert!(change.low <= 130 && 130 <= change.high, "{change:?}");
        assert!(
            (change.after - change.before - 0.8).abs() < 0.1,
            "{change:?}"
        );
        assert_eq!(probability(&values), 0.001);
    }

    #[test]
    fn without_a_change_it_is_improbable_that_one_is_claimed() {
        let values: Vec<f64> = noise(200).collect();
        assert!(probability(&values) > 0.05);
        assert_eq!(best_split(&values[..7]), None);
        assert_eq!(probability(&[]), 1.0);
    }
}
