//! Which runs do the same work.

use super::run::Run;
use super::{Point, Unit, mean_of_runs};
use std::collections::BTreeMap;

/// Amounts of work that differ by no more are the same.
pub(super) const SAME: f64 = 0.05;

/// Whether two amounts of work are the same.
fn is_same((one, other): (f64, f64)) -> bool {
    (one - other).abs() <= SAME * one.max(other)
}

impl Run {
    /// Whether another run of the same size does the same, as far as both were counted.
    fn is_repeated_by(&self, other: &Run, unit: Unit) -> bool {
        let agree = |of: &dyn Fn(&Run) -> Option<f64>| of(self).zip(of(other)).is_none_or(is_same);
        agree(&|run| run.samples(unit)) && (unit == Unit::Step || agree(&|run| run.steps_an_epoch))
    }
}

/// Repetitions by strategy, number of ranks, and amount of work.
pub(super) type Groups = BTreeMap<(String, u32, usize), Vec<Run>>;

/// Runs of other work are no repetitions. Those whose samples were not counted are taken to do the
/// work of the others.
pub(super) fn groups(runs: Vec<Run>, unit: Unit) -> Groups {
    let mut runs = runs;
    runs.sort_by(|a, b| {
        let work = |of: Option<f64>| of.unwrap_or(f64::MAX);
        let samples = work(a.samples(unit)).total_cmp(&work(b.samples(unit)));
        samples.then(work(a.steps_an_epoch).total_cmp(&work(b.steps_an_epoch)))
    });
    let mut groups = Groups::new();
    for run in runs {
        let (strategy, ranks) = (run.strategy_name().to_owned(), run.ranks);
        let own = (strategy.clone(), ranks, 0)..=(strategy.clone(), ranks, usize::MAX);
        let next = groups.range(own.clone()).count();
        let mut before = groups.range(own).rev();
        let same = before.find(|(_, others)| {
            let mut others = others.iter();
            others.all(|other| run.is_repeated_by(other, unit))
        });
        let number = same.map_or(next, |((_, _, number), _)| *number);
        groups
            .entry((strategy, ranks, number))
            .or_default()
            .push(run);
    }
    groups
}

/// Points of the same strategy and number of ranks as the one before: they do other work.
pub(super) fn other_work(points: &[Point]) -> impl Iterator<Item = (&Point, &Point)> {
    points.iter().zip(points.iter().skip(1)).filter(|(a, b)| {
        let of = |point: &Point| (point.strategy.clone(), point.ranks);
        of(a) == of(b)
    })
}

/// Whether each rank's batch, or that of all together, is that of the base.
pub(super) fn has_batch_of(point: &Point, base: &Point) -> bool {
    let samples = |point: &Point| mean_of_runs(&point.runs, |run| run.samples_a_step);
    point.runs == base.runs
        || samples(point)
            .zip(samples(base))
            .is_some_and(|(own, base_samples)| {
                let times = f64::from(point.ranks) / f64::from(base.ranks);
                is_same((own, base_samples)) || is_same((own, base_samples * times))
            })
}
