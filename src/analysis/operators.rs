//! Operators: a table like torch.profiler's key averages, from samples.
//!
//! Own time of an operator is the time of samples whose innermost operator it is, total time that of samples with it
//! anywhere on the stack, counted once: what torch.profiler calls "Self CPU" and "CPU total". It is wall time of the
//! training thread, waits for a CPU and for the slowest OpenMP thread included, as it is there; the time of OpenMP's workers
//! is no part of it. How often an operator was called is not in a sample, and not in the table.

use super::intervals::{Share, Shares};
use super::summary::parts;
use crate::model::category::{Activity, FrameKind, Phase};
use crate::model::ids::{FrameId, FunctionId, StackId};
use crate::model::operator::{NamedBy, OperatorMark};
use crate::model::profile::{Function, Profile, ProfileSample};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// Where an operator was called from: samples with the same answers are one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The phase: `backward`, or what else the training thread was about.
    pub phase: Phase,
    /// The node of autograd's graph that called it: `ConvolutionBackward0`.
    pub node: Option<String>,
    /// The class of the innermost `nn.Module` that called it: `Conv2d`. Not known before Python 3.11, which has no qualified
    /// names.
    pub module: Option<String>,
    /// The nearest line of the user's own code.
    pub line: Option<(FunctionId, u32)>,
}

/// Time of an operator from one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The place.
    pub place: Place,
    /// As of [`OperatorTime`].
    pub self_ns: u64,
    /// As of [`OperatorTime`].
    pub total_ns: u64,
}

/// Time of one operator.
#[derive(Clone, Debug, PartialEq)]
pub struct OperatorTime {
    /// `aten::add`, as torch.profiler calls it; a kernel's name where no symbol has the operator's.
    pub name: String,
    /// By what it was named.
    pub named_by: NamedBy,
    /// Time in which it was the innermost operator.
    pub self_ns: u64,
    /// Time in which it was on the stack; recursion counts once.
    pub total_ns: u64,
    /// Own time as a share of the thread's wall time.
    pub share: Share,
    /// Where it was called from, most time first. They add up to both times.
    pub sites: Vec<Site>,
}

/// The operators of one training thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperatorTable {
    /// Operators, those with the most own time first.
    pub operators: Vec<OperatorTime>,
    /// Time in any operator, by activity, most first. It adds up to the sum of all own times.
    pub inside: Vec<(Activity, u64)>,
    /// Time in none, likewise.
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

/// An operator on a stack, and what was found outward of it.
struct Seen<'p> {
    name: &'p str,
    named_by: NamedBy,
    own: bool,
    node: Option<&'p str>,
    module: Option<&'p str>,
    line: Option<(FunctionId, u32)>,
    /// Past a node or the engine: modules further out only called `backward()`.
    in_engine: bool,
}

/// What a stack tells: its operators, the innermost first.
struct StackOperators<'p> {
    profile: &'p Profile,
    frames: Vec<FrameId>,
}

impl<'p> StackOperators<'p> {
    fn function(&self, at: usize) -> Option<(&'p Function, FunctionId, u32)> {
        let frame = self.profile.stacks.frame(*self.frames.get(at)?);
        let function = self.profile.functions.get(frame.function.index())?;
        Some((function, frame.function, frame.line))
    }

    fn find(&self) -> Vec<Seen<'p>> {
        let mut seen: Vec<Seen<'p>> = Vec::new();
        let mut own_open = true;
        let mut last_python: Option<&'p Function> = None;
        for at in 0..self.frames.len() {
            let Some((function, id, line)) = self.function(at) else {
                continue;
            };
            let operator = match &function.operator {
                OperatorMark::None => None,
                OperatorMark::Operator(name) => Some((name.as_str(), NamedBy::Schema)),
                OperatorMark::LibraryKernel(Some(name)) => Some((name.as_str(), NamedBy::Kernel)),
                OperatorMark::LibraryKernel(None) | OperatorMark::PythonKernel => self
                    .kernel(at, function)
                    .map(|name| (name, NamedBy::Kernel)),
                OperatorMark::Node(node) => {
                    own_open = false;
                    for each in &mut seen {
                        each.node = each.node.or(Some(node));
                        each.in_engine = true;
                    }
                    None
                }
                OperatorMark::Engine => {
                    own_open = false;
                    seen.iter_mut().for_each(|each| each.in_engine = true);
                    None
                }
                OperatorMark::ModuleCall => {
                    let class = last_python.and_then(module_class);
                    for each in seen.iter_mut().filter(|each| !each.in_engine) {
                        each.module = each.module.or(class);
                    }
                    None
                }
            };
            if let Some((name, named_by)) = operator {
                if !seen.iter().any(|each| each.name == name) {
                    seen.push(Seen {
                        name,
                        named_by,
                        own: own_open,
                        node: None,
                        module: None,
                        line: None,
                        in_engine: false,
                    });
                }
                own_open = false;
            }
            if function.is_python {
                last_python = Some(function);
            }
            if function.kind == FrameKind::PythonUser {
                for each in &mut seen {
                    each.line = each.line.or(Some((id, line)));
                }
            }
        }
        seen
    }

    /// The kernel that the glue at `at` calls: inward of it, and no further than the next operator.
    fn kernel(&self, at: usize, glue: &Function) -> Option<&'p str> {
        let in_python = glue.operator == OperatorMark::PythonKernel;
        let kernel = (0..at)
            .rev()
            .filter_map(|inner| self.function(inner))
            .map(|(function, _, _)| function)
            .take_while(|function| {
                matches!(
                    function.operator,
                    OperatorMark::None | OperatorMark::ModuleCall
                )
            })
            .find(|function| match in_python {
                true => function.is_python && function.kind != FrameKind::PythonTorch,
                false => function.file == glue.file && !function.plumbing,
            });
        match kernel {
            // Torch's glue imports what it needs when it is first called: that is no kernel.
            Some(kernel) if in_python && kernel.plumbing => None,
            Some(kernel) => Some(&kernel.short_name),
            None if in_python => None,
            None => Some("kernel without a name"),
        }
    }
}

/// The operator that a stack's own time is spent in.
pub(super) fn innermost_operator(profile: &Profile, stack: StackId) -> Option<&str> {
    let frames = profile.stacks.leaf_to_root(Some(stack)).collect();
    let seen = (StackOperators { profile, frames }).find();
    seen.iter().find(|each| each.own).map(|each| each.name)
}

/// `Conv2d` of `Conv2d.forward`, `Net` of `main.<locals>.Net.forward`; `None` of a hook and of a name that is not qualified.
fn module_class(function: &Function) -> Option<&str> {
    let class = function.name.strip_suffix(".forward")?;
    class.rsplit('.').next().filter(|class| !class.is_empty())
}

/// Sums of one operator.
struct Sum<'p> {
    name: &'p str,
    named_by: NamedBy,
    self_ns: u64,
    total_ns: u64,
    sites: FxHashMap<Place, (u64, u64)>,
}

/// Sums of all operators, in the order in which they were first seen.
#[derive(Default)]
struct Sums<'p> {
    sums: Vec<Sum<'p>>,
    index: FxHashMap<&'p str, usize>,
}

impl<'p> Sums<'p> {
    /// Adds the time of a stack to an operator on it, and says which it is.
    fn add(&mut self, seen: &Seen<'p>, phase: Phase, weight_ns: u64) -> usize {
        let Self { sums, index } = self;
        let at = *index.entry(seen.name).or_insert_with(|| {
            sums.push(Sum {
                name: seen.name,
                named_by: seen.named_by,
                self_ns: 0,
                total_ns: 0,
                sites: FxHashMap::default(),
            });
            sums.len() - 1
        });
        let own_ns = if seen.own { weight_ns } else { 0 };
        let place = Place {
            phase,
            node: seen.node.map(str::to_owned),
            module: seen.module.map(str::to_owned),
            line: seen.line,
        };
        if let Some(sum) = sums.get_mut(at) {
            sum.named_by = sum.named_by.min(seen.named_by);
            sum.self_ns = sum.self_ns.saturating_add(own_ns);
            sum.total_ns = sum.total_ns.saturating_add(weight_ns);
            let (site_self, site_total) = sum.sites.entry(place).or_default();
            *site_self = site_self.saturating_add(own_ns);
            *site_total = site_total.saturating_add(weight_ns);
        }
        at
    }
}

/// The operators of a thread's samples, which are sorted by start. `wall_ns` and `ticks` are their sums.
pub fn operators(
    profile: &Profile,
    samples: &[&ProfileSample],
    wall_ns: u64,
    ticks: u64,
) -> OperatorTable {
    let mut sums = Sums::default();
    let mut own_of: FxHashMap<StackId, usize> = FxHashMap::default();
    for ((stack, phase), weight_ns) in weights(samples) {
        let frames = profile.stacks.leaf_to_root(Some(stack)).collect();
        for seen in (StackOperators { profile, frames }).find() {
            let at = sums.add(&seen, phase, weight_ns);
            if seen.own {
                own_of.insert(stack, at);
            }
        }
    }
    let own = |sample: &ProfileSample| own_of.get(&sample.stack?).copied();
    let shares = shares(samples, wall_ns, ticks, sums.sums.len(), own);
    let times = sums.sums.into_iter().enumerate();
    let mut operators: Vec<OperatorTime> = times
        .map(|(at, sum)| OperatorTime {
            name: sum.name.to_owned(),
            named_by: sum.named_by,
            self_ns: sum.self_ns,
            total_ns: sum.total_ns,
            share: shares.share(at),
            sites: sites(sum.sites),
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

/// Time by stack and phase, in an order that is the same on every run.
fn weights(samples: &[&ProfileSample]) -> Vec<((StackId, Phase), u64)> {
    let mut weights: FxHashMap<(StackId, Phase), u64> = FxHashMap::default();
    for sample in samples {
        if let Some(stack) = sample.stack {
            let weight = weights.entry((stack, sample.phase)).or_default();
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
        // A sample in no operator passes time, too.
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

fn sites(sums: FxHashMap<Place, (u64, u64)>) -> Vec<Site> {
    let mut sites: Vec<Site> = sums
        .into_iter()
        .map(|(place, (self_ns, total_ns))| Site {
            place,
            self_ns,
            total_ns,
        })
        .collect();
    sites.sort_by(|left, right| {
        (Reverse((left.total_ns, left.self_ns)), &left.place)
            .cmp(&(Reverse((right.total_ns, right.self_ns)), &right.place))
    });
    sites
}
