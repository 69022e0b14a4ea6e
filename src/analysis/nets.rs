//! Which of several nets a node of backward belongs to if their forward passes create the same
//! kinds of nodes, such as the two nets of a GAN.
//!
//! Two observations decide. A line that calls backward may reach one net only: kinds that only the
//! other net creates are then missing below it, for long enough to have been seen. And the engine
//! runs the nodes of one pass in the reverse order of their creation (`sequence_nr`,
//! torch/csrc/autograd/engine.cpp): where all nodes of one net come before all of the other, a
//! sample before a kind that only the first net creates belongs to the first net.

use super::forward::Forward;
use crate::model::category::Phase;
use crate::model::ids::{FunctionId, StackId};
use crate::model::profile::ProfileSample;
use rustc_hash::FxHashMap;

/// Nets as bits, by [`Forward::nets_of`].
pub(super) type Nets = u64;
/// A line that called backward.
pub(super) type Line = Option<(FunctionId, u32)>;

/// Ticks below a line in which a net must have been expected before its absence counts: it is then
/// missed in one of twenty cases.
const EXPECTED: f64 = 3.0;
/// Minimum number of passes with an order; one in `STRAYS` of them may have another.
const PASSES: u32 = 3;
const STRAYS: u32 = 20;

/// A sample of backward.
struct BackwardSample {
    /// Its index in the thread's samples.
    index: usize,
    line: Line,
    ticks: u64,
    nets: Nets,
}

/// The nets that each sample's innermost node may belong to; 0 if unknown. `seen` returns a stack's
/// innermost node and line.
pub(super) fn nets_of_samples(
    forward: &Forward<'_>,
    names: &[&str],
    samples: &[&ProfileSample],
    seen: impl Fn(StackId) -> (Option<usize>, Line),
) -> Vec<Nets> {
    let by_node: Vec<Nets> = names.iter().map(|name| forward.nets_of(name)).collect();
    let mut passes: Vec<Vec<BackwardSample>> = Vec::new();
    let mut goes_on = None;
    for (at, sample) in samples.iter().enumerate() {
        let own = sample.stack.map(&seen);
        let (Some((node, line)), Phase::Backward | Phase::Recompute) = (own, sample.phase) else {
            goes_on = None;
            continue;
        };
        if goes_on != Some(line) {
            passes.push(Vec::new());
            goes_on = Some(line);
        }
        let nets = node.and_then(|node| by_node.get(node)).copied();
        if let (Some(pass), Phase::Backward) = (passes.last_mut(), sample.phase) {
            pass.push(BackwardSample {
                index: at,
                line,
                ticks: u64::from(sample.ticks),
                nets: nets.unwrap_or(0),
            });
        }
    }
    let missing = missing_below(&passes);
    let order = Order::of(&passes);
    let mut found = vec![0; samples.len()];
    for pass in &passes {
        for (at, sample) in pass.iter().enumerate() {
            let reached = sample.nets & !missing.get(&sample.line).copied().unwrap_or(0);
            let left = order.narrow(pass, at, some_of(reached, sample.nets));
            if let Some(slot) = found.get_mut(sample.index) {
                *slot = left;
            }
        }
    }
    found
}

fn some_of(wanted: Nets, otherwise: Nets) -> Nets {
    if wanted == 0 { otherwise } else { wanted }
}

/// The net that alone creates a kind of node.
fn alone(nets: Nets) -> Option<usize> {
    (nets.count_ones() == 1).then(|| nets.trailing_zeros() as usize)
}

const BITS: usize = Nets::BITS as usize;

/// The nets that each line does not reach.
fn missing_below(passes: &[Vec<BackwardSample>]) -> FxHashMap<Line, Nets> {
    let mut by_line: FxHashMap<Line, (u64, [u64; BITS])> = FxHashMap::default();
    for sample in passes.iter().flatten() {
        let (ticks, of) = by_line.entry(sample.line).or_insert((0, [0; BITS]));
        *ticks += sample.ticks;
        if let Some(slot) = alone(sample.nets).and_then(|net| of.get_mut(net)) {
            *slot += sample.ticks;
        }
    }
    let mut usual = [0.0_f64; BITS];
    for (ticks, of) in by_line.values() {
        for (usual, &own) in usual.iter_mut().zip(of) {
            *usual = usual.max(own as f64 / (*ticks).max(1) as f64);
        }
    }
    by_line
        .into_iter()
        .map(|(line, (ticks, of))| {
            let missing = of.iter().zip(usual).enumerate();
            let missing = missing
                .filter(|(_, (own, usual))| **own == 0 && usual * ticks as f64 >= EXPECTED)
                .fold(0, |nets, (net, _)| nets | 1 << net);
            (line, missing)
        })
        .collect()
}

/// The first and last position in a pass of each net that creates a kind of node alone.
fn ends(pass: &[BackwardSample]) -> Vec<(usize, usize, usize)> {
    let mut ends: Vec<(usize, usize, usize)> = Vec::new();
    for (at, sample) in pass.iter().enumerate() {
        let Some(net) = alone(sample.nets) else {
            continue;
        };
        match ends.iter_mut().find(|(known, _, _)| *known == net) {
            Some((_, _, last)) => *last = at,
            None => ends.push((net, at, at)),
        }
    }
    ends
}

/// For each net those that come after it in a pass.
struct Order {
    after: [Nets; BITS],
}

impl Order {
    fn of(passes: &[Vec<BackwardSample>]) -> Self {
        let mut counts: FxHashMap<(usize, usize), u32> = FxHashMap::default();
        for pass in passes {
            let ends = ends(pass);
            for &(net, first, _) in &ends {
                for &(other, _, last) in ends.iter().filter(|(other, _, _)| *other != net) {
                    // Not all of `net` come after all of `other`.
                    if first < last {
                        *counts.entry((net, other)).or_default() += 1;
                    }
                }
            }
        }
        let mut after = [0; BITS];
        for (&(net, other), &count) in &counts {
            let against = counts.get(&(other, net)).copied().unwrap_or(0);
            if let Some(slot) = after.get_mut(net)
                && count >= PASSES
                && against * STRAYS <= count
            {
                *slot |= 1 << other;
            }
        }
        Self { after }
    }

    fn is_before(&self, net: usize, other: usize) -> bool {
        self.after
            .get(net)
            .is_some_and(|after| after & (1 << other) != 0)
    }

    /// Restricts the nets of a sample to those that its position in the pass allows.
    fn narrow(&self, pass: &[BackwardSample], at: usize, nets: Nets) -> Nets {
        if nets.count_ones() < 2 {
            return nets;
        }
        let ends = ends(pass);
        let allowed = |net: usize| {
            ends.iter().all(|&(other, first, last)| {
                let too_early = self.is_before(other, net) && last >= at;
                let too_late = self.is_before(net, other) && first <= at;
                !too_early && !too_late
            })
        };
        let left = (0..BITS)
            .filter(|&net| nets & (1 << net) != 0 && allowed(net))
            .fold(0, |left, net| left | 1 << net);
        some_of(left, nets)
    }
}
