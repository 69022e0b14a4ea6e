//! The tree of modules: which `nn.Module` the forward passes of a training thread were in.
//!
//! A module's own time is that of forward samples whose innermost module it is, its total time that of samples in which it, or
//! one below it in the tree, was called. It is wall time, as that of operators is. A forward that is computed again for
//! backward (activation checkpointing) is no part of it: that is the phase `recompute`, and as backward in a table of its own.

use super::intervals::{Share, Shares};
use crate::model::category::Phase;
use crate::model::ids::{NnModuleId, StackId};
use crate::model::nn_module::NnModuleInfo;
use crate::model::profile::{Profile, ProfileSample};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// Modules past which time is left to the ones above: a recording is hostile.
const MAX_MODULES: usize = 10_000;
/// The deepest tree.
const MAX_DEPTH: usize = 64;

/// Time of one module.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleTime {
    /// Class of the outermost module.
    pub root: String,
    /// Counts outermost modules of that class from 0.
    pub number: u32,
    /// As `named_modules()` has it; empty for the outermost module.
    pub path: String,
    /// Its class; empty for a container that was indexed and never called.
    pub class: String,
    /// 0 for the outermost module.
    pub depth: usize,
    /// Time in which it was the innermost module.
    pub self_ns: u64,
    /// Time in which it or a module below it was called.
    pub total_ns: u64,
    /// The part of `total_ns` in which the innermost module was in evaluation mode (`training` False).
    pub eval_ns: u64,
    /// Own time as a share of the thread's wall time.
    pub self_share: Share,
    /// Total time, likewise.
    pub total_share: Share,
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

/// The modules of a training thread's forward passes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModuleTree {
    /// Modules, each before those below it; siblings by total time.
    pub modules: Vec<ModuleTime>,
    /// Time in forward.
    pub forward_ns: u64,
    /// The part of it of which no module is known.
    pub unread_ns: u64,
}

/// A module while it is summed up.
struct Node<'p> {
    info: &'p NnModuleInfo,
    path: &'p str,
    class: &'p str,
    children: Vec<usize>,
    self_ns: u64,
    total_ns: u64,
    eval_ns: u64,
}

/// What a stack tells: its modules with all above them, and the innermost.
#[derive(Clone, Default)]
struct Seen {
    nodes: Vec<usize>,
    innermost: Option<usize>,
    evaluates: bool,
}

struct Builder<'p> {
    profile: &'p Profile,
    nodes: Vec<Node<'p>>,
    roots: Vec<usize>,
    by_path: FxHashMap<(&'p str, u32, &'p str), usize>,
    chains: FxHashMap<NnModuleId, Vec<usize>>,
}

impl<'p> Builder<'p> {
    /// The nodes of a module and of all above it, outermost first.
    fn chain(&mut self, id: NnModuleId) -> Vec<usize> {
        if let Some(known) = self.chains.get(&id) {
            return known.clone();
        }
        let mut chain = Vec::new();
        if let Some(info) = self.profile.nn_modules.get(id.index()) {
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
            children: Vec::new(),
            self_ns: 0,
            total_ns: 0,
            eval_ns: 0,
        });
        self.by_path.insert(key, at);
        match parent.and_then(|parent| self.nodes.get_mut(parent)) {
            Some(parent) => parent.children.push(at),
            None => self.roots.push(at),
        }
        Some(at)
    }

    fn seen(&mut self, stack: StackId) -> Seen {
        let profile = self.profile;
        let mut seen = Seen::default();
        for frame in profile.stacks.leaf_to_root(Some(stack)) {
            let Some(id) = profile.stacks.frame(frame).nn_module else {
                continue;
            };
            let chain = self.chain(id);
            if seen.innermost.is_none() {
                seen.innermost = chain.last().copied();
                let info = profile.nn_modules.get(id.index());
                seen.evaluates = info.is_some_and(|info| info.training == Some(false));
            }
            seen.nodes.extend(chain);
        }
        seen.nodes.sort_unstable();
        seen.nodes.dedup();
        seen
    }

    fn sum(&mut self, seen: &Seen, weight_ns: u64) {
        for &node in &seen.nodes {
            if let Some(node) = self.nodes.get_mut(node) {
                node.total_ns = node.total_ns.saturating_add(weight_ns);
                if seen.evaluates {
                    node.eval_ns = node.eval_ns.saturating_add(weight_ns);
                }
            }
        }
        if let Some(node) = seen.innermost.and_then(|node| self.nodes.get_mut(node)) {
            node.self_ns = node.self_ns.saturating_add(weight_ns);
        }
    }

    /// All modules, each before those below it.
    fn in_order(&self, shares: &Shares) -> Vec<ModuleTime> {
        let by_time = |nodes: &[usize]| {
            let mut sorted = nodes.to_vec();
            // The first is taken last.
            sorted.sort_by_key(|&at| {
                let node = &self.nodes[at];
                let name = (&node.info.root, node.info.number, node.path);
                Reverse((Reverse(node.total_ns), name))
            });
            sorted
        };
        let mut open: Vec<(usize, usize)> =
            by_time(&self.roots).into_iter().map(|at| (at, 0)).collect();
        let mut modules = Vec::with_capacity(self.nodes.len());
        while let Some((at, depth)) = open.pop() {
            let node = &self.nodes[at];
            modules.push(ModuleTime {
                root: node.info.root.clone(),
                number: node.info.number,
                path: node.path.to_owned(),
                class: node.class.to_owned(),
                depth,
                self_ns: node.self_ns,
                total_ns: node.total_ns,
                eval_ns: node.eval_ns,
                self_share: shares.share(self.nodes.len() + at),
                total_share: shares.share(at),
            });
            let below = by_time(&node.children);
            open.extend(below.into_iter().map(|child| (child, depth + 1)));
        }
        modules
    }
}

/// The modules of a thread's samples, which are sorted by start. `wall_ns` and `ticks` are their sums.
pub fn modules(
    profile: &Profile,
    samples: &[&ProfileSample],
    wall_ns: u64,
    ticks: u64,
) -> ModuleTree {
    let mut builder = Builder {
        profile,
        nodes: Vec::new(),
        roots: Vec::new(),
        by_path: FxHashMap::default(),
        chains: FxHashMap::default(),
    };
    let is_forward = |sample: &&&ProfileSample| sample.phase == Phase::Forward;
    let mut seen_on: FxHashMap<StackId, Seen> = FxHashMap::default();
    let mut tree = ModuleTree::default();
    for sample in samples.iter().filter(is_forward) {
        tree.forward_ns = tree.forward_ns.saturating_add(sample.weight_ns);
        let known = match sample.stack {
            None => None,
            Some(stack) => {
                let seen = seen_on.entry(stack).or_insert_with(|| builder.seen(stack));
                builder.sum(seen, sample.weight_ns);
                seen.innermost
            }
        };
        if known.is_none() {
            tree.unread_ns = tree.unread_ns.saturating_add(sample.weight_ns);
        }
    }
    let count = builder.nodes.len();
    if count == 0 {
        return tree;
    }
    let mut shares = Shares::new(wall_ns, ticks, 2 * count);
    let mut parts = Vec::new();
    for sample in samples {
        parts.clear();
        if sample.phase == Phase::Forward
            && let Some(seen) = sample.stack.and_then(|stack| seen_on.get(&stack))
        {
            parts.extend(seen.nodes.iter().map(|&node| (node, sample.weight_ns)));
            let own = seen.innermost.map(|node| (count + node, sample.weight_ns));
            parts.extend(own);
        }
        // A sample in no module passes time, too.
        shares.add(sample.weight_ns, sample.ticks, &parts);
    }
    tree.modules = builder.in_order(&shares);
    tree
}
