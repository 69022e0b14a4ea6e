//! The tree of modules: which `nn.Module` the forward passes of a training thread were in.
//!
//! A module's own time is that of forward samples whose innermost module it is, its total time that
//! of samples in which it, or one below it in the tree, was called. It is wall time, like that of
//! operators. Forward that is recomputed for backward (activation checkpointing) is excluded: it is
//! the phase `recompute`, with a table of its own next to backward.

use super::intervals::{Share, Shares};
use super::module_groups::{Groups, Member, group};
use super::progress::{Progress, StepUnit};
use crate::model::as_json::null_if_empty;
use crate::model::category::Phase;
use crate::model::facts::Facts;
use crate::model::ids::{ChainId, NnModuleId};
use crate::model::nn_module::NnModuleInfo;
use crate::model::profile::{Profile, ProfileSample};
use crate::model::seconds;
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::Serialize;
use std::cmp::Reverse;

/// Maximum number of modules; time of further ones counts for their parents: a recording is
/// untrusted input.
const MAX_MODULES: usize = 10_000;
/// Maximum depth of the tree.
const MAX_DEPTH: usize = 64;

/// One module.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
#[schemars(rename = "Module")]
pub struct ModuleTime {
    /// Class of the outermost module.
    pub root: String,
    /// Number among the outermost modules of that class, from 0.
    pub number: u32,
    /// As in `named_modules()`, without wrappers; empty for the outermost module.
    pub path: String,
    /// Its class; null for a container that was indexed and never called.
    #[serde(serialize_with = "null_if_empty")]
    #[schemars(with = "Option<String>")]
    pub class: String,
    /// Time in which it was the innermost module.
    #[serde(rename = "self_s", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub self_ns: u64,
    /// Time in which it, or a module below it, was called.
    #[serde(rename = "total_s", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub total_ns: u64,
    /// The part of `total_s` in which the innermost module was in evaluation mode.
    #[serde(rename = "eval_s", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub eval_ns: u64,
    /// Training time per step, ms: `total_s` less `eval_s`, or all of it if nothing is trained.
    /// Null if the number of steps is not known.
    pub per_step_ms: Option<f64>,
    /// Own time as a share of the thread's wall time.
    pub self_share: Share,
    /// Total time as a share of the thread's wall time.
    pub total_share: Share,
    /// 0 for the outermost module.
    #[serde(skip)]
    pub depth: usize,
}

impl ModuleTime {
    /// The last part of its path; the class of an outermost module.
    pub fn name(&self) -> &str {
        match self.path.rsplit('.').next() {
            Some(name) if !name.is_empty() => name,
            _ => &self.root,
        }
    }
}

/// Modules that differ only by a number.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
#[schemars(rename = "Group")]
pub struct ModuleGroup {
    /// Number of modules.
    pub count: usize,
    /// The figures of the group; the path has `*` for the number, and the depth is that of what is
    /// shown.
    #[serde(flatten)]
    pub time: ModuleTime,
    /// The end of its path, from the nearest listed module that contains it.
    #[serde(skip)]
    pub name: String,
}

/// The modules of a training thread's forward passes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModuleTree {
    /// Modules, each before those below it; siblings by descending total time.
    pub modules: Vec<ModuleTime>,
    /// The same with modules that differ only by a number grouped, in the same order.
    pub groups: Vec<ModuleGroup>,
    /// Time in forward.
    pub forward_ns: u64,
    /// The part of it whose module is not known.
    pub unknown_ns: u64,
}

impl ModuleTree {
    /// Sets the time per step, over all steps of the recording, if these are known exactly; without
    /// evaluation if an optimizer's steps are counted.
    pub(super) fn per_step(&mut self, progress: Option<&Progress>) {
        let are_exact = |progress: &&Progress| {
            let more = progress.steps_at_most.is_some() || progress.counted_from_ns.is_some();
            progress.steps > 0 && !more
        };
        let Some(progress) = progress.filter(are_exact) else {
            return;
        };
        let groups = self.groups.iter_mut().map(|group| &mut group.time);
        for module in self.modules.iter_mut().chain(groups) {
            let evaluated_ns = match progress.unit {
                StepUnit::Optimizer => module.eval_ns,
                StepUnit::Batch => 0,
            };
            let ns = module.total_ns.saturating_sub(evaluated_ns) as f64;
            module.per_step_ms = Some(ns / progress.steps as f64 / 1e6);
        }
    }
}

/// A module while its times are summed.
struct Node<'p> {
    info: &'p NnModuleInfo,
    path: &'p str,
    class: &'p str,
    parent: Option<usize>,
}

/// Times of a module or a group.
#[derive(Clone, Copy, Default)]
struct Times {
    self_ns: u64,
    total_ns: u64,
    eval_ns: u64,
}

/// The modules of a call chain with all that contain them, and the innermost.
#[derive(Clone, Default)]
struct Called {
    nodes: Vec<usize>,
    innermost: Option<usize>,
    evaluates: bool,
}

/// By chain, of [`Facts::module_chains`](crate::model::facts::Facts::module_chains).
type ByChain = FxHashMap<ChainId, Called>;

struct Builder<'p> {
    profile: &'p Profile,
    nodes: Vec<Node<'p>>,
    by_path: FxHashMap<(&'p str, u32, &'p str), usize>,
    chains: FxHashMap<NnModuleId, Vec<usize>>,
}

impl<'p> Builder<'p> {
    /// The nodes of a module and of all that contain it, outermost first.
    fn chain(&mut self, id: NnModuleId) -> Vec<usize> {
        if let Some(known) = self.chains.get(&id) {
            return known.clone();
        }
        let mut chain = Vec::new();
        if let Some(info) = self.profile.nn_module(id) {
            let dots = info.path.match_indices('.').map(|(at, _)| at);
            let inner = (!info.path.is_empty()).then_some(info.path.len());
            let ends = std::iter::once(0).chain(dots).chain(inner);
            for end in ends.take(MAX_DEPTH) {
                let path = info.path.get(..end).unwrap_or_default();
                let Some(node) = self.node(info, path, chain.last().copied()) else {
                    break;
                };
                chain.push(node);
                if path.len() == info.path.len()
                    && let Some(node) = self.nodes.get_mut(node)
                {
                    node.class = &info.class;
                } else if path.is_empty()
                    && let Some(node) = self.nodes.get_mut(node)
                {
                    node.class = &info.root;
                }
            }
        }
        chain.dedup();
        self.chains.insert(id, chain.clone());
        chain
    }

    fn node(
        &mut self,
        info: &'p NnModuleInfo,
        path: &'p str,
        parent: Option<usize>,
    ) -> Option<usize> {
        let key = (info.root.as_str(), info.number, path);
        if let Some(&known) = self.by_path.get(&key) {
            return Some(known);
        }
        if self.nodes.len() >= MAX_MODULES {
            return None;
        }
        let at = self.nodes.len();
        self.nodes.push(Node {
            info,
            path,
            class: "",
            parent,
        });
        self.by_path.insert(key, at);
        Some(at)
    }

    fn called(&mut self, calls: ChainId) -> Called {
        let profile = self.profile;
        let mut called = Called::default();
        for id in profile.facts.modules_from(calls) {
            let chain = self.chain(id);
            if called.innermost.is_none() {
                called.innermost = chain.last().copied();
                let info = profile.nn_module(id);
                called.evaluates = info.is_some_and(|info| info.training == Some(false));
            }
            called.nodes.extend(chain);
        }
        called.nodes.sort_unstable();
        called.nodes.dedup();
        called
    }

    /// The modules in the form that grouping needs.
    fn members(&self) -> Vec<Member<'p>> {
        let member = |node: &Node<'p>| Member {
            parent: node.parent,
            name: match node.path.rsplit('.').next() {
                Some(name) if !name.is_empty() => name,
                _ => &node.info.root,
            },
            class: node.class,
        };
        self.nodes.iter().map(member).collect()
    }
}

impl Called {
    /// The same for groups.
    fn grouped(&self, group_of: &[usize]) -> Self {
        let of = |node: &usize| group_of.get(*node).copied();
        let mut nodes: Vec<usize> = self.nodes.iter().filter_map(of).collect();
        nodes.sort_unstable();
        nodes.dedup();
        Self {
            nodes,
            innermost: self.innermost.as_ref().and_then(of),
            evaluates: self.evaluates,
        }
    }

    /// Adds a weight to the times of its modules.
    fn sum(&self, weight_ns: u64, times: &mut [Times]) {
        for &node in &self.nodes {
            if let Some(times) = times.get_mut(node) {
                times.total_ns = times.total_ns.saturating_add(weight_ns);
                if self.evaluates {
                    times.eval_ns = times.eval_ns.saturating_add(weight_ns);
                }
            }
        }
        if let Some(times) = self.innermost.and_then(|node| times.get_mut(node)) {
            times.self_ns = times.self_ns.saturating_add(weight_ns);
        }
    }
}

/// A thread's samples, sorted by start, and their sums.
#[derive(Clone, Copy)]
struct Thread<'s> {
    facts: &'s Facts,
    samples: &'s [&'s ProfileSample],
    wall_ns: u64,
    ticks: u64,
}

impl Thread<'_> {
    /// Times of `count` modules or groups; and shares, first of total times and then of own times.
    fn sum(&self, by_chain: &ByChain, count: usize) -> (Vec<Times>, Shares) {
        let mut times = vec![Times::default(); count];
        let mut shares = Shares::new(self.wall_ns, self.ticks, 2 * count);
        let mut parts = Vec::new();
        for sample in self.samples {
            parts.clear();
            if sample.phase == Phase::Forward
                && let Some(calls) = self.facts.of(sample.stack).modules
                && let Some(called) = by_chain.get(&calls)
            {
                called.sum(sample.weight_ns, &mut times);
                parts.extend(called.nodes.iter().map(|&node| (node, sample.weight_ns)));
                let own = called
                    .innermost
                    .map(|node| (count + node, sample.weight_ns));
                parts.extend(own);
            }
            // A sample in no module counts in the total, too.
            shares.add(sample.weight_ns, sample.ticks, &parts);
        }
        (times, shares)
    }
}

/// Indices and depths, each before those below it, siblings by total time and then by name.
fn in_order<K: Ord>(
    parents: &[Option<usize>],
    times: &[Times],
    name: impl Fn(usize) -> K,
) -> Vec<(usize, usize)> {
    let mut below: Vec<Vec<usize>> = vec![Vec::new(); parents.len()];
    let mut roots = Vec::new();
    for (at, parent) in parents.iter().enumerate() {
        match parent.and_then(|parent| below.get_mut(parent)) {
            Some(siblings) => siblings.push(at),
            None => roots.push(at),
        }
    }
    let sort = |siblings: &mut Vec<usize>| {
        let total = |at: usize| times.get(at).map_or(0, |times| times.total_ns);
        // The stack returns the last one first.
        siblings.sort_by_cached_key(|&at| Reverse((Reverse(total(at)), name(at))));
    };
    sort(&mut roots);
    let mut open: Vec<(usize, usize)> = roots.into_iter().map(|at| (at, 0)).collect();
    let mut order = Vec::with_capacity(parents.len());
    while let Some((at, depth)) = open.pop() {
        order.push((at, depth));
        let mut siblings = below.get_mut(at).map(std::mem::take).unwrap_or_default();
        sort(&mut siblings);
        open.extend(siblings.into_iter().map(|child| (child, depth + 1)));
    }
    order
}

impl Builder<'_> {
    fn time(&self, node: usize, depth: usize, times: Times, shares: (Share, Share)) -> ModuleTime {
        let node = &self.nodes[node];
        ModuleTime {
            root: node.info.root.clone(),
            number: node.info.number,
            path: node.path.to_owned(),
            class: node.class.to_owned(),
            depth,
            self_ns: times.self_ns,
            total_ns: times.total_ns,
            eval_ns: times.eval_ns,
            per_step_ms: None,
            self_share: shares.0,
            total_share: shares.1,
        }
    }

    fn key(&self, node: usize) -> (&str, u32, &str) {
        let node = &self.nodes[node];
        (&node.info.root, node.info.number, node.path)
    }

    /// All modules, each before those below it.
    fn modules(&self, thread: Thread<'_>, by_chain: &ByChain) -> Vec<ModuleTime> {
        let count = self.nodes.len();
        let (times, shares) = thread.sum(by_chain, count);
        let parents: Vec<_> = self.nodes.iter().map(|node| node.parent).collect();
        in_order(&parents, &times, |at| self.key(at))
            .into_iter()
            .map(|(at, depth)| {
                let shares = (shares.share(count + at), shares.share(at));
                self.time(at, depth, times[at], shares)
            })
            .collect()
    }

    /// The same, grouped.
    fn groups(&self, thread: Thread<'_>, by_chain: &ByChain) -> Vec<ModuleGroup> {
        let Groups { groups, of } = group(&self.members());
        let by_chain: ByChain = by_chain
            .iter()
            .map(|(&calls, called)| (calls, called.grouped(&of)))
            .collect();
        let count = groups.len();
        let (times, shares) = thread.sum(&by_chain, count);
        let parents: Vec<_> = groups.iter().map(|group| group.parent).collect();
        let mut parts = vec![0; count];
        for &parent in parents.iter().flatten() {
            parts[parent] += 1;
        }
        // By group: its path, the part of it that is still to be shown, and its depth as shown.
        let mut shown: Vec<(String, String, usize)> = vec![Default::default(); count];
        let mut rows = Vec::with_capacity(count);
        for (at, _) in in_order(&parents, &times, |at| self.key(groups[at].first)) {
            let own = &groups[at];
            let (mut path, mut name, mut depth) = (String::new(), own.name.clone(), 0);
            if let Some(parent) = own.parent {
                let (above, left, next) = &shown[parent];
                path = joined(above, &own.name);
                name = joined(left, &own.name);
                depth = *next;
            }
            // A container that was never called is shown with its only part.
            let is_class_known = !self.nodes[own.first].class.is_empty();
            if parts[at] == 1 && !is_class_known && times[at].self_ns == 0 {
                shown[at] = (path, name, depth);
                continue;
            }
            let shares = (shares.share(count + at), shares.share(at));
            let mut time = self.time(own.first, depth, times[at], shares);
            time.path.clone_from(&path);
            rows.push(ModuleGroup {
                time,
                name,
                count: own.count,
            });
            shown[at] = (path, String::new(), depth + 1);
        }
        rows
    }
}

fn joined(above: &str, name: &str) -> String {
    match above.is_empty() {
        true => name.to_owned(),
        false => format!("{above}.{name}"),
    }
}

/// The modules of a thread's samples, which are sorted by start. `wall_ns` and `ticks` are their
/// sums.
pub fn modules(
    profile: &Profile,
    samples: &[&ProfileSample],
    wall_ns: u64,
    ticks: u64,
) -> ModuleTree {
    let mut builder = Builder {
        profile,
        nodes: Vec::new(),
        by_path: FxHashMap::default(),
        chains: FxHashMap::default(),
    };
    let is_forward = |sample: &&&ProfileSample| sample.phase == Phase::Forward;
    let mut by_chain = ByChain::default();
    let mut tree = ModuleTree::default();
    for sample in samples.iter().filter(is_forward) {
        tree.forward_ns = tree.forward_ns.saturating_add(sample.weight_ns);
        let calls = profile.facts.of(sample.stack).modules;
        let innermost = calls.and_then(|calls| {
            let called = by_chain
                .entry(calls)
                .or_insert_with(|| builder.called(calls));
            called.innermost
        });
        if innermost.is_none() {
            tree.unknown_ns = tree.unknown_ns.saturating_add(sample.weight_ns);
        }
    }
    if builder.nodes.is_empty() {
        return tree;
    }
    let thread = Thread {
        facts: &profile.facts,
        samples,
        wall_ns,
        ticks,
    };
    tree.modules = builder.modules(thread, &by_chain);
    tree.groups = builder.groups(thread, &by_chain);
    tree
}
