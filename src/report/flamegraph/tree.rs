//! The frames of a view merged into one tree per thread.

use crate::analysis::gpu_overlay::account::{Account, Part};
use crate::analysis::gpu_overlay::windows::Windows;
use crate::model::category::{Activity, Phase};
use crate::model::ids::{ProcessId, StackId};
use crate::report::view::{Shown, View, ViewFrame};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// Maximum number of boxes of a tree. A recording is untrusted input: deep stacks with no common
/// root would take gigabytes.
const MAX_NODES: usize = 2_000_000;

/// One box: all time that a thread spent with the same frames from the root to here.
#[derive(Debug)]
pub(super) struct Node {
    /// The thread, as an index into [`View::roots`].
    pub(super) root: usize,
    /// The frame; `None` for the root of a thread.
    pub(super) shown: Option<Shown>,
    /// Indices of its children, by time.
    pub(super) children: Vec<usize>,
    /// Its time, ns.
    pub(super) total_ns: u64,
    /// The part of its time in which it was the leaf, ns.
    pub(super) self_ns: u64,
    /// The part of its time in which the unwinder got here by a guess, ns.
    pub(super) guessed_ns: u64,
    /// Its time by phase, ns, in the order of [`Phase::ALL`].
    pub(super) phases: [u64; Phase::ALL.len()],
    /// Its time by activity, ns, in the order of [`Activity::ALL`].
    pub(super) activities: [u64; Activity::ALL.len()],
    /// Idle time of the process's GPU at the same time; `None` if unknown.
    pub(super) gpu_idle: Option<Part>,
}

impl Node {
    fn add(&mut self, ns: u64, guessed: bool, phase: Phase, activity: Activity) {
        let sums = [
            &mut self.total_ns,
            &mut self.phases[phase as usize],
            &mut self.activities[activity as usize],
        ];
        for sum in sums {
            *sum = sum.saturating_add(ns);
        }
        if guessed {
            self.guessed_ns = self.guessed_ns.saturating_add(ns);
        }
    }
}

/// The boxes of each stack.
type Paths = FxHashMap<(usize, Option<StackId>, bool), Vec<usize>>;

/// All boxes.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    roots: Vec<usize>,
}

impl Tree {
    /// All boxes of `view`; `gpus` are windows of the GPU of each process.
    pub(super) fn build(view: &View<'_>, gpus: &FxHashMap<ProcessId, Windows>) -> Self {
        let mut sums = FxHashMap::<_, u64>::default();
        for interval in view.intervals() {
            let key = (
                interval.root,
                interval.stack,
                interval.queued,
                interval.phase,
                interval.activity,
            );
            let sum = sums.entry(key).or_default();
            *sum = sum.saturating_add(interval.weight_ns);
        }
        let mut tree = Self {
            nodes: Vec::new(),
            roots: Vec::new(),
        };
        for root in 0..view.roots().len() {
            let thread = tree.add(root, None);
            tree.roots.push(thread);
        }
        let mut known = FxHashMap::default();
        let mut paths = Paths::default();
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_unstable();
        for ((root, stack, queued, phase, activity), ns) in sums {
            let path = tree.path(root, &view.frames(stack, queued), &mut known);
            for &(node, guessed) in &path {
                tree.nodes[node].add(ns, guessed, phase, activity);
            }
            if let Some(&(leaf, _)) = path.last() {
                let own = &mut tree.nodes[leaf].self_ns;
                *own = own.saturating_add(ns);
            }
            if gpus.contains_key(&view.roots()[root].process) {
                let nodes = path.into_iter().map(|(node, _)| node);
                paths.insert((root, stack, queued), nodes.collect());
            }
        }
        tree.lay_over(view, gpus, &paths);
        tree.sort(view);
        tree
    }

    /// Assigns the idle time of GPUs to the boxes.
    fn lay_over(&mut self, view: &View<'_>, gpus: &FxHashMap<ProcessId, Windows>, paths: &Paths) {
        let mut accounts: FxHashMap<usize, Account> = FxHashMap::default();
        for interval in view.intervals() {
            let key = (interval.root, interval.stack, interval.queued);
            let windows = gpus.get(&view.roots()[interval.root].process);
            let (Some(windows), Some(path)) = (windows, paths.get(&key)) else {
                continue;
            };
            let end_ns = interval.start_ns.saturating_add(interval.weight_ns);
            for &node in path {
                let account = accounts.entry(node).or_default();
                account.add(windows, interval.start_ns, end_ns);
            }
        }
        for (node, account) in accounts {
            let node = &mut self.nodes[node];
            let windows = gpus.get(&view.roots()[node.root].process);
            node.gpu_idle = windows.map(|windows| account.finish(windows));
        }
    }

    /// The boxes of the stack `frames`, from the thread's root on, and whether each was reached by
    /// a guess.
    fn path(
        &mut self,
        root: usize,
        frames: &[ViewFrame],
        known: &mut FxHashMap<(usize, Shown), usize>,
    ) -> Vec<(usize, bool)> {
        let mut at = self.roots[root];
        let mut path = vec![(at, false)];
        for frame in frames {
            at = match known.get(&(at, frame.shown)) {
                Some(&child) => child,
                // Deeper frames count for the box reached so far.
                None if self.nodes.len() >= MAX_NODES => break,
                None => {
                    let child = self.add(root, Some(frame.shown));
                    self.nodes[at].children.push(child);
                    known.insert((at, frame.shown), child);
                    child
                }
            };
            path.push((at, frame.guessed));
        }
        path
    }

    fn add(&mut self, root: usize, shown: Option<Shown>) -> usize {
        self.nodes.push(Node {
            root,
            shown,
            children: Vec::new(),
            total_ns: 0,
            self_ns: 0,
            guessed_ns: 0,
            phases: [0; Phase::ALL.len()],
            activities: [0; Activity::ALL.len()],
            gpu_idle: None,
        });
        self.nodes.len() - 1
    }

    fn sort(&mut self, view: &View<'_>) {
        for index in 0..self.nodes.len() {
            let mut children = std::mem::take(&mut self.nodes[index].children);
            children.sort_by_cached_key(|&child| {
                let node = &self.nodes[child];
                (
                    Reverse(node.total_ns),
                    node.shown.map(|shown| (view.label(shown), shown)),
                )
            });
            self.nodes[index].children = children;
        }
    }

    /// Every box of at least `min_ns` with its depth, each before its children, in drawing order.
    pub(super) fn walk(&self, min_ns: u64) -> Vec<(&Node, usize)> {
        let mut order = Vec::new();
        let mut open: Vec<(usize, usize)> =
            self.roots.iter().rev().map(|&root| (root, 0)).collect();
        while let Some((index, depth)) = open.pop() {
            let node = &self.nodes[index];
            if node.total_ns < min_ns.max(1) {
                continue;
            }
            order.push((node, depth));
            open.extend(node.children.iter().rev().map(|&child| (child, depth + 1)));
        }
        order
    }

    /// Sum of all roots, side by side: the width of the drawing, never shown as a figure.
    pub(super) fn width_ns(&self) -> u64 {
        self.roots.iter().fold(0, |sum, &root| {
            sum.saturating_add(self.nodes[root].total_ns)
        })
    }
}
