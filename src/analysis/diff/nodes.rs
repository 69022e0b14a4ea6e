//! Compares groups of stacks that the caller defines, such as the boxes of a flame graph.

use super::noise::{Comparison, Estimate, FAMILY_ERROR, beyond_chance};
use super::{DiffError, Figure, Run, Scanned, Verdict, verdict};
use crate::model::ids::StackId;
use crate::model::profile::Profile;

/// A group, compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    pub a: Figure,
    pub b: Figure,
    /// B minus A, ns per unit, and half of its 95 % interval; `None` if it was seen in too few
    /// ticks on both sides.
    pub difference_ns: Option<(f64, f64)>,
    /// The verdict, all groups taken together.
    pub verdict: Verdict,
}

/// Compares groups of stacks, by number. `groups_of` returns the groups that a stack of a run is
/// in; the runs of A come before those of B. The caller decides whether steps or seconds are
/// counted, from the result of [`compare`](super::compare).
///
/// # Errors
/// A side without a run, or a run that is too short.
pub fn compare_nodes(
    a: &[Run<'_>],
    b: &[Run<'_>],
    unit: super::units::Unit,
    options: &super::Options,
    groups_of: &mut dyn FnMut(&Profile, usize, StackId) -> Vec<usize>,
) -> Result<Vec<Node>, DiffError> {
    let mut sides = [Vec::new(), Vec::new()];
    for (index, run) in a.iter().chain(b).enumerate() {
        let scanned = Scanned::new(unit, run, &mut |stack, _| {
            groups_of(run.profile, index, stack)
        })?;
        sides[usize::from(index >= a.len())].push(scanned);
    }
    if sides.iter().any(Vec::is_empty) {
        return Err(DiffError::NoRun);
    }
    let count = sides
        .iter()
        .flatten()
        .map(|run| run.scan.ticks.len())
        .max()
        .unwrap_or(0);
    let mut nodes: Vec<Node> = (0..count).map(|number| rough(&sides, number)).collect();
    let kept: Vec<bool> = nodes
        .iter()
        .map(|node| !node.a.is_uncertain() || !node.b.is_uncertain())
        .collect();
    let series = sides.each_ref().map(|side| {
        side.iter()
            .map(|run| run.scan.measure(&kept, false))
            .collect::<Vec<_>>()
    });
    let numbers: Vec<usize> = (0..count).filter(|&number| kept[number]).collect();
    let estimates = numbers
        .iter()
        .map(|number| {
            [0, 1].map(|side| {
                let runs = sides[side].iter().zip(&series[side]);
                runs.map(|(run, series)| {
                    Estimate::new(series.get(number), &run.scan.blocks, run.scan.tick_ns)
                })
                .collect()
            })
        })
        .collect();
    let comparison = Comparison::new(estimates, options.run_to_run);
    let differences: Vec<_> = (0..numbers.len())
        .filter_map(|part| comparison.difference(part, false))
        .collect();
    let chances: Vec<f64> = differences.iter().map(|each| each.chance()).collect();
    let beyond = beyond_chance(&chances, FAMILY_ERROR);
    for ((&number, difference), beyond) in numbers.iter().zip(&differences).zip(beyond) {
        if let Some(node) = nodes.get_mut(number) {
            node.a.half_ns = difference.half_of(0);
            node.b.half_ns = difference.half_of(1);
            node.difference_ns = Some((difference.value(), difference.half()));
            node.verdict = verdict(beyond, difference.value());
        }
    }
    Ok(nodes)
}

/// A group's times without a comparison.
fn rough(sides: &[Vec<Scanned<'_>>; 2], number: usize) -> Node {
    let figure = |side: &[Scanned<'_>]| {
        let mean = |run: &Scanned<'_>| {
            let time_ns = run.scan.time_ns.get(number).copied().unwrap_or(0.0);
            time_ns / run.scan.blocks.unit_count().max(f64::MIN_POSITIVE)
        };
        let ticks = |run: &Scanned<'_>| run.scan.ticks.get(number).copied().unwrap_or(0);
        Figure {
            mean_ns: side.iter().map(mean).sum::<f64>() / side.len().max(1) as f64,
            half_ns: 0.0,
            samples: side.iter().map(ticks).sum(),
        }
    };
    Node {
        a: figure(&sides[0]),
        b: figure(&sides[1]),
        difference_ns: None,
        verdict: Verdict::Noise,
    }
}
