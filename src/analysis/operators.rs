//! Operators: a table like torch.profiler's key averages, from samples.
//!
//! Own time of an operator is the time of samples whose innermost operator it is, total time that
//! of samples with it anywhere on the stack, counted once: torch.profiler's "Self CPU" and "CPU
//! total". As there, it is wall time of the training thread, including waits for a CPU and for the
//! slowest OpenMP thread; the time of OpenMP's workers is excluded. Samples do not show how often
//! an operator was called, so the table has no number of calls.

use super::intervals::{Share, Shares};
use super::summary::parts;
use crate::model::category::{Activity, Phase};
use crate::model::facts::{Facts, Line, OperatorSite};
use crate::model::ids::{ChainId, NameId};
use crate::model::operator::NamedBy;
use crate::model::profile::{Profile, ProfileSample};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// The call site of an operator: samples with equal values form one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallSite {
    /// The phase: `backward`, or another phase of the training thread.
    pub phase: Phase,
    /// The node of autograd's graph that called it: `ConvolutionBackward0`.
    pub node: Option<String>,
    /// The class of the innermost `nn.Module` that called it: `Conv2d`. `None` before Python 3.11,
    /// which has no qualified names.
    pub module: Option<String>,
    /// The nearest line of the user's own code.
    pub line: Option<Line>,
}

/// Time of an operator from one call site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    pub call: CallSite,
    /// As in [`OperatorTime`].
    pub self_ns: u64,
    /// As in [`OperatorTime`].
    pub total_ns: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct OperatorTime {
    /// `aten::add`, as in torch.profiler; the name of a kernel if no symbol names the operator.
    pub name: String,
    /// Source of the name.
    pub named_by: NamedBy,
    /// Time in which it was the innermost operator.
    pub self_ns: u64,
    /// Time in which it was on the stack; recursion counts once.
    pub total_ns: u64,
    /// Own time as a share of the thread's wall time.
    pub share: Share,
    /// Call sites, by descending time. They add up to both times.
    pub sites: Vec<Site>,
}

/// The operators of one training thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperatorTable {
    /// Operators, those with the most own time first.
    pub operators: Vec<OperatorTime>,
    /// Time in any operator, by activity, descending. It adds up to the sum of all own times.
    pub inside: Vec<(Activity, u64)>,
    /// Time in no operator, by activity, descending.
    pub outside: Vec<(Activity, u64)>,
}

impl OperatorTable {
    /// Time in any operator.
    pub fn inside_ns(&self) -> u64 {
        self.inside.iter().map(|&(_, ns)| ns).sum()
    }

    /// Time in no operator.
    pub fn outside_ns(&self) -> u64 {
        self.outside.iter().map(|&(_, ns)| ns).sum()
    }
}

/// Sums of one operator.
struct Sum {
    name: NameId,
    named_by: NamedBy,
    self_ns: u64,
    total_ns: u64,
    sites: FxHashMap<(Phase, OperatorSite), (u64, u64)>,
}

/// Sums of all operators, in the order in which they were first seen.
#[derive(Default)]
struct Sums {
    sums: Vec<Sum>,
    index: FxHashMap<NameId, usize>,
}

impl Sums {
    fn at(&mut self, site: &OperatorSite) -> usize {
        let sums = &mut self.sums;
        *self.index.entry(site.name).or_insert_with(|| {
            sums.push(Sum {
                name: site.name,
                named_by: site.named_by,
                self_ns: 0,
                total_ns: 0,
                sites: FxHashMap::default(),
            });
            sums.len() - 1
        })
    }

    /// Adds the time of a chain of operators to each of them; `is_own` if it is own time of the
    /// innermost one.
    fn add(&mut self, chain: &[&OperatorSite], is_own: bool, phase: Phase, weight_ns: u64) {
        for (at, site) in chain.iter().enumerate() {
            // Recursion counts once, at the innermost call.
            if chain.iter().take(at).any(|inner| inner.name == site.name) {
                continue;
            }
            let own_ns = if at == 0 && is_own { weight_ns } else { 0 };
            let index = self.at(site);
            if let Some(sum) = self.sums.get_mut(index) {
                sum.named_by = sum.named_by.min(site.named_by);
                sum.self_ns = sum.self_ns.saturating_add(own_ns);
                sum.total_ns = sum.total_ns.saturating_add(weight_ns);
                let (site_self, site_total) = sum.sites.entry((phase, **site)).or_default();
                *site_self = site_self.saturating_add(own_ns);
                *site_total = site_total.saturating_add(weight_ns);
            }
        }
    }
}

/// The operators of a thread's samples, which are sorted by start. `wall_ns` and `ticks` are their
/// sums.
pub fn operators(
    profile: &Profile,
    samples: &[&ProfileSample],
    wall_ns: u64,
    ticks: u64,
) -> OperatorTable {
    let facts = &profile.facts;
    let mut sums = Sums::default();
    for ((operators, is_own, phase), weight_ns) in weights(facts, samples) {
        let chain: Vec<&OperatorSite> = facts.operators_from(operators).collect();
        sums.add(&chain, is_own, phase, weight_ns);
    }
    let index = std::mem::take(&mut sums.index);
    let own = |sample: &ProfileSample| {
        let site = facts.own_operator(sample.stack)?;
        index.get(&site.name).copied()
    };
    let shares = shares(samples, wall_ns, ticks, sums.sums.len(), own);
    let times = sums.sums.into_iter().enumerate();
    let mut operators: Vec<OperatorTime> = times
        .map(|(at, sum)| OperatorTime {
            name: facts.names.get(sum.name).to_owned(),
            named_by: sum.named_by,
            self_ns: sum.self_ns,
            total_ns: sum.total_ns,
            share: shares.share(at),
            sites: sites(facts, sum.sites),
        })
        .collect();
    operators.sort_by(|left, right| {
        (Reverse((left.self_ns, left.total_ns)), &left.name)
            .cmp(&(Reverse((right.self_ns, right.total_ns)), &right.name))
    });
    OperatorTable {
        inside: by_activity(samples.iter().filter(|sample| own(sample).is_some())),
        outside: by_activity(samples.iter().filter(|sample| own(sample).is_none())),
        operators,
    }
}

/// Time by chain of operators, whether it is own time of the innermost one, and phase; in the same
/// order on every run.
fn weights(facts: &Facts, samples: &[&ProfileSample]) -> Vec<((ChainId, bool, Phase), u64)> {
    let mut weights: FxHashMap<(ChainId, bool, Phase), u64> = FxHashMap::default();
    for sample in samples {
        let of_stack = facts.of(sample.stack);
        if let Some(operators) = of_stack.operators {
            let key = (operators, of_stack.is_in_operator, sample.phase);
            let weight = weights.entry(key).or_default();
            *weight = weight.saturating_add(sample.weight_ns);
        }
    }
    let mut weights: Vec<_> = weights.into_iter().collect();
    weights.sort_unstable();
    weights
}

fn shares(
    samples: &[&ProfileSample],
    wall_ns: u64,
    ticks: u64,
    count: usize,
    own: impl Fn(&ProfileSample) -> Option<usize>,
) -> Shares {
    let mut shares = Shares::new(wall_ns, ticks, count);
    for sample in samples {
        // A sample in no operator counts in the total, too.
        let part = own(sample).map(|at| (at, sample.weight_ns));
        shares.add(sample.weight_ns, sample.ticks, part.as_slice());
    }
    shares
}

fn by_activity<'s>(samples: impl Iterator<Item = &'s &'s ProfileSample>) -> Vec<(Activity, u64)> {
    let mut times: FxHashMap<Activity, u64> = FxHashMap::default();
    for sample in samples {
        for (_, activity, _, ns) in parts(sample) {
            let time = times.entry(activity).or_default();
            *time = time.saturating_add(ns);
        }
    }
    let mut times: Vec<(Activity, u64)> = times.into_iter().filter(|&(_, ns)| ns > 0).collect();
    times.sort_by_key(|&(activity, ns)| (Reverse(ns), activity));
    times
}

fn sites(facts: &Facts, sums: FxHashMap<(Phase, OperatorSite), (u64, u64)>) -> Vec<Site> {
    let name = |id: Option<NameId>| id.map(|id| facts.names.get(id).to_owned());
    let mut call_sites: FxHashMap<CallSite, (u64, u64)> = FxHashMap::default();
    for ((phase, site), (self_ns, total_ns)) in sums {
        let call = CallSite {
            phase,
            node: name(site.node),
            module: name(site.module),
            line: site.line,
        };
        // An operator may have two names at one call site.
        let (call_self, call_total) = call_sites.entry(call).or_default();
        *call_self = call_self.saturating_add(self_ns);
        *call_total = call_total.saturating_add(total_ns);
    }
    let mut sites: Vec<Site> = call_sites
        .into_iter()
        .map(|(call, (self_ns, total_ns))| Site {
            call,
            self_ns,
            total_ns,
        })
        .collect();
    sites.sort_by(|left, right| {
        (Reverse((left.total_ns, left.self_ns)), &left.call)
            .cmp(&(Reverse((right.total_ns, right.self_ns)), &right.call))
    });
    sites
}
