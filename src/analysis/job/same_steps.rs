//! Which steps of two ranks, or of two hosts, are the same: the numbers of one side are shifted.

use std::collections::BTreeMap;

/// Ends by which shifts are compared at first, and shifts that are compared by all.
const MOST_FOR_SHIFTS: usize = 200;
const MOST_EXACT: usize = 8;

/// Times of ends by the numbers of steps, s.
pub(super) type Steps = BTreeMap<u64, f64>;

/// Mean length of a step.
pub(super) fn step_s(steps: &Steps) -> f64 {
    let ends = steps.first_key_value().zip(steps.last_key_value());
    ends.map_or(0.0, |(first, last)| {
        (last.1 - first.1) / (last.0 - first.0).max(1) as f64
    })
}

/// Ends by the numbers of another rank of the host, which are `shift` higher: each is of the step
/// that ended next to it. Of steps whose end the other did not see the number alone tells.
pub(super) fn by_time(own: Steps, numbering: &Steps, shift: i64, step_s: f64) -> Steps {
    let ends: Vec<(u64, f64)> = numbering.iter().map(|(&step, &at)| (step, at)).collect();
    let place = |(step, at): (u64, f64)| {
        let after = ends.partition_point(|end| end.1 <= at);
        let around = [after.checked_sub(1), Some(after)].into_iter().flatten();
        let near = around
            .filter_map(|index| ends.get(index))
            .filter(|end| (end.1 - at).abs() <= step_s / 2.0);
        let nearest = near.min_by(|a, b| (a.1 - at).abs().total_cmp(&(b.1 - at).abs()));
        let moved = step.saturating_add_signed(shift);
        match nearest {
            Some(end) => Some((end.0, at)),
            None => (!numbering.contains_key(&moved)).then_some((moved, at)),
        }
    };
    own.into_iter().filter_map(place).collect()
}

pub(super) fn by_step(all: &[Steps]) -> BTreeMap<u64, Vec<f64>> {
    let mut of_step: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (&step, &at) in all.iter().flatten() {
        of_step.entry(step).or_default().push(at);
    }
    of_step
}

/// Differences of the same steps, with the numbers of one side shifted: time and difference, s.
pub(super) fn differences(own: &Steps, to: &Steps, shift: i64) -> Vec<(f64, f64)> {
    let same = |(&step, &at): (&u64, &f64)| {
        let step = step.checked_add_signed(shift)?;
        Some((at, at - to.get(&step)?))
    };
    own.iter().filter_map(same).collect()
}

pub(super) fn mean_distance(differences: &[(f64, f64)]) -> f64 {
    let sum: f64 = differences.iter().map(|point| point.1.abs()).sum();
    sum / differences.len().max(1) as f64
}

/// By how much numbers of steps differ, at most `most` from what the times suggest: the shift with
/// the least score, that score, and the next best.
pub(super) fn best_shift(
    own: &Steps,
    to: &Steps,
    most: i64,
    score: &impl Fn(&[(f64, f64)]) -> f64,
) -> Option<(i64, f64, f64)> {
    let (first, at) = own.first_key_value()?;
    let near = to
        .iter()
        .min_by(|a, b| (a.1 - at).abs().total_cmp(&(b.1 - at).abs()))?;
    let start = i64::try_from(*near.0).ok()?.checked_sub_unsigned(*first)?;
    let every = own.len().div_ceil(MOST_FOR_SHIFTS).max(1);
    let some: Steps = own
        .iter()
        .step_by(every)
        .map(|(&step, &at)| (step, at))
        .collect();
    let scored = |own: &Steps, shift: i64| {
        let all = differences(own, to, shift);
        // A few that happen to agree show nothing.
        (2 * all.len() >= own.len()).then(|| (score(&all), shift))
    };
    let mut scores: Vec<(f64, i64)> = (start.saturating_sub(most)..=start.saturating_add(most))
        .filter_map(|shift| scored(&some, shift))
        .collect();
    scores.sort_by(|a, b| a.0.total_cmp(&b.0));
    scores.truncate(MOST_EXACT);
    let mut scores: Vec<(f64, i64)> = scores
        .iter()
        .filter_map(|&(_, shift)| scored(own, shift))
        .collect();
    scores.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (best, shift) = *scores.first()?;
    Some((shift, best, scores.get(1).map_or(f64::MAX, |next| next.0)))
}
