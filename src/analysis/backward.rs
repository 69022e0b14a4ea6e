//! Backward: the nodes of autograd's graph under the line that called `backward()`, and the modules
//! that they belong to.
//!
//! The table covers the phase `backward` of the training thread. On a GPU the engine's own threads
//! do the work; their stacks are attached below the line that waits for them (see `resolve`). A
//! node's own time is that of samples whose innermost node it is, its total time that of samples
//! with it anywhere on the stack. Forward that is recomputed for a node is the phase `recompute`
//! and does not count as time of the node.
//!
//! No frame of a node names the module whose forward created it. The module is inferred from the
//! forward samples of the same thread (see [`forward`](super::forward)): a node is attributed where
//! its forward operator was seen in a single module, or only in modules of one class. With several
//! nets, the calling line and the order of nodes may decide ([`nets`](super::nets)). Other nodes
//! are reported as unmatched, with the reason.

use super::forward::{Forward, ForwardOrigin, of_nets};
use super::intervals::{Share, Shares};
use super::nets::{Nets, nets_of_samples};
use crate::model::category::Phase;
use crate::model::facts::{Facts, Line};
use crate::model::ids::{NameId, NnModuleId, StackId};
use crate::model::profile::{Profile, ProfileSample};
use crate::model::seconds;
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::Serialize;
use std::cmp::Reverse;

/// Time of one kind of node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeTime {
    /// `ConvolutionBackward0`; for the user's own `torch.autograd.Function` the class:
    /// `MyFunctionBackward`.
    pub name: String,
    /// Time in which it was the innermost node.
    pub self_ns: u64,
    /// Time in which it was on the stack; a node inside itself counts once.
    pub total_ns: u64,
    /// Own time as a share of the thread's wall time.
    pub share: Share,
    /// The module whose forward created it.
    pub origin: ForwardOrigin,
}

/// Time of backward of one module, or of all modules of one class.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleBackward {
    /// The class; with the nets if there are several: `Conv2d of Discriminator or Generator`.
    pub class: String,
    /// The module; `None` if only the class is known.
    pub module: Option<NnModuleId>,
    /// Own time of its nodes.
    pub ns: u64,
    /// The same as a share of the thread's wall time.
    pub share: Share,
}

/// Time under one line that called `backward()`.
#[derive(Clone, Debug, PartialEq)]
pub struct BackwardLine {
    /// The nearest line of the user's own code around the engine; `None` where there is none.
    pub line: Option<Line>,
    /// Time of backward.
    pub ns: u64,
    /// As a share of the thread's wall time.
    pub share: Share,
}

/// Recomputed forward.
#[derive(Clone, Debug, JsonSchema, PartialEq, Eq, Serialize)]
pub struct RecomputeTime {
    /// The class of the innermost module; null if none was called, or it was not read.
    pub class: Option<String>,
    #[serde(rename = "self_s", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub ns: u64,
}

/// Backward on one training thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BackwardTable {
    /// Time of the phase.
    pub total_ns: u64,
    /// As a share of the thread's wall time.
    pub share: Share,
    /// The part of it in no node: the engine itself, and waits for it.
    pub outside_ns: u64,
    /// Lines that called it, by descending time.
    pub lines: Vec<BackwardLine>,
    /// Nodes, those with the most own time first.
    pub nodes: Vec<NodeTime>,
    /// Modules, those with the most time first.
    pub modules: Vec<ModuleBackward>,
    /// Time in nodes whose module is not known.
    pub unmatched_ns: u64,
    /// Time of the phase `recompute` by class, descending.
    pub recompute: Vec<RecomputeTime>,
}

/// Sums of one kind of node.
struct Node<'p> {
    name: &'p str,
    self_ns: u64,
    total_ns: u64,
}

/// Nodes in the order in which they were first seen.
struct Builder<'p> {
    facts: &'p Facts,
    nodes: Vec<Node<'p>>,
    index: FxHashMap<NameId, usize>,
}

impl<'p> Builder<'p> {
    fn node(&mut self, name: NameId) -> usize {
        let nodes = &mut self.nodes;
        *self.index.entry(name).or_insert_with(|| {
            nodes.push(Node {
                name: self.facts.names.get(name),
                self_ns: 0,
                total_ns: 0,
            });
            nodes.len() - 1
        })
    }

    /// The innermost node of a stack.
    fn innermost(&self, stack: Option<StackId>) -> Option<usize> {
        let name = self.facts.nodes(stack).next()?;
        self.index.get(&name).copied()
    }

    fn add(&mut self, sample: &ProfileSample) {
        let mut counted: Vec<NameId> = Vec::new();
        for name in self.facts.nodes(sample.stack) {
            // A node inside itself counts once.
            if counted.contains(&name) {
                continue;
            }
            let at = self.node(name);
            if let Some(node) = self.nodes.get_mut(at) {
                node.total_ns = node.total_ns.saturating_add(sample.weight_ns);
                if counted.is_empty() {
                    node.self_ns = node.self_ns.saturating_add(sample.weight_ns);
                }
            }
            counted.push(name);
        }
    }
}

/// Backward in a thread's samples, which are sorted by start. `wall_ns` and `ticks` are their sums.
pub fn backward(
    profile: &Profile,
    samples: &[&ProfileSample],
    wall_ns: u64,
    ticks: u64,
) -> BackwardTable {
    let facts = &profile.facts;
    let mut table = BackwardTable::default();
    let mut builder = Builder {
        facts,
        nodes: Vec::new(),
        index: FxHashMap::default(),
    };
    let mut lines: FxHashMap<Option<Line>, u64> = FxHashMap::default();
    let mut recompute: FxHashMap<Option<&str>, u64> = FxHashMap::default();
    for sample in samples {
        if sample.phase == Phase::Backward {
            table.total_ns = table.total_ns.saturating_add(sample.weight_ns);
        }
        if sample.stack.is_none() {
            continue;
        }
        if sample.phase == Phase::Recompute {
            let module = facts.modules(sample.stack).next();
            let module = module.and_then(|id| profile.nn_module(id));
            let sum = recompute
                .entry(module.map(|module| module.class.as_str()))
                .or_default();
            *sum = sum.saturating_add(sample.weight_ns);
        } else if sample.phase == Phase::Backward {
            builder.add(sample);
            let of_stack = facts.of(sample.stack);
            if of_stack.nodes.is_none() {
                table.outside_ns = table.outside_ns.saturating_add(sample.weight_ns);
            }
            let sum = lines.entry(of_stack.backward_line).or_default();
            *sum = sum.saturating_add(sample.weight_ns);
        }
    }
    table.recompute = sorted(recompute)
        .into_iter()
        .map(|(class, ns)| RecomputeTime {
            class: class.map(str::to_owned),
            ns,
        })
        .collect();
    if table.total_ns == 0 {
        return table;
    }
    let forward = Forward::of(profile, samples);
    let origins: Vec<ForwardOrigin> = builder
        .nodes
        .iter()
        .map(|node| forward.origin_in(node.name, 0))
        .collect();
    let names: Vec<&str> = builder.nodes.iter().map(|node| node.name).collect();
    let nets = nets_of_samples(&forward, &names, samples, |stack| {
        let line = facts.of(Some(stack)).backward_line;
        (builder.innermost(Some(stack)), line)
    });
    let lines = sorted(lines);
    let mut categories = Categories::new(builder.nodes.len(), &lines);
    let modules = categories.modules(&forward, &builder, samples, &nets);
    let shares = categories.shares(&builder, samples, &modules, wall_ns, ticks);
    categories.fill(&mut table, builder, origins, &shares);
    table
}

fn sorted<K: Ord + Copy>(sums: FxHashMap<K, u64>) -> Vec<(K, u64)> {
    let mut sums: Vec<(K, u64)> = sums.into_iter().filter(|&(_, ns)| ns > 0).collect();
    sums.sort_by_key(|&(key, ns)| (Reverse(ns), key));
    sums
}

/// Keys that have a share: the phase, each node, each module, each line.
struct Categories<'s> {
    nodes: usize,
    modules: Vec<((String, Option<NnModuleId>), u64)>,
    unmatched_ns: u64,
    lines: &'s [(Option<Line>, u64)],
}

impl<'s> Categories<'s> {
    fn new(nodes: usize, lines: &'s [(Option<Line>, u64)]) -> Self {
        Self {
            nodes,
            modules: Vec::new(),
            unmatched_ns: 0,
            lines,
        }
    }

    /// Finds the module of each sample's innermost node.
    fn modules(
        &mut self,
        forward: &Forward<'_>,
        builder: &Builder<'_>,
        samples: &[&ProfileSample],
        nets: &[Nets],
    ) -> Vec<Option<usize>> {
        let mut known: FxHashMap<(usize, Nets), Option<usize>> = FxHashMap::default();
        let mut found = Vec::with_capacity(samples.len());
        for (sample, &nets) in samples.iter().zip(nets) {
            let stack = sample.stack.filter(|_| sample.phase == Phase::Backward);
            let Some(node) = builder.innermost(stack) else {
                found.push(None);
                continue;
            };
            let module = *known.entry((node, nets)).or_insert_with(|| {
                let origin =
                    forward.origin_in(builder.nodes.get(node).map_or("", |node| node.name), nets);
                self.module(origin)
            });
            let sum = match module.and_then(|module| self.modules.get_mut(module)) {
                Some((_, ns)) => ns,
                None => &mut self.unmatched_ns,
            };
            *sum = sum.saturating_add(sample.weight_ns);
            found.push(module);
        }
        found
    }

    fn module(&mut self, origin: ForwardOrigin) -> Option<usize> {
        let key = match origin {
            ForwardOrigin::Module { id, class } => (class, Some(id)),
            ForwardOrigin::Class(class) => (class, None),
            ForwardOrigin::Nets(nets) => (of_nets(&nets), None),
            _ => return None,
        };
        let known = self.modules.iter().position(|(module, _)| *module == key);
        Some(known.unwrap_or_else(|| {
            self.modules.push((key, 0));
            self.modules.len() - 1
        }))
    }

    fn shares(
        &self,
        builder: &Builder<'_>,
        samples: &[&ProfileSample],
        modules: &[Option<usize>],
        wall_ns: u64,
        ticks: u64,
    ) -> Shares {
        let (modules_at, lines_at) = (1 + self.nodes, 1 + self.nodes + self.modules.len());
        let line_index: FxHashMap<_, usize> = self
            .lines
            .iter()
            .enumerate()
            .map(|(at, &(line, _))| (line, at))
            .collect();
        let mut shares = Shares::new(wall_ns, ticks, lines_at + self.lines.len());
        let mut parts = Vec::with_capacity(4);
        for (sample, module) in samples.iter().zip(modules) {
            parts.clear();
            if sample.phase == Phase::Backward {
                parts.push((0, sample.weight_ns));
                if sample.stack.is_some() {
                    let own = builder.innermost(sample.stack);
                    let line = line_index.get(&builder.facts.of(sample.stack).backward_line);
                    let own = [
                        own.map(|node| 1 + node),
                        module.map(|module| modules_at + module),
                        line.map(|line| lines_at + line),
                    ];
                    parts.extend(own.into_iter().flatten().map(|at| (at, sample.weight_ns)));
                }
            }
            // A sample of another phase counts in the total, too.
            shares.add(sample.weight_ns, sample.ticks, &parts);
        }
        shares
    }

    fn fill(
        &self,
        table: &mut BackwardTable,
        builder: Builder<'_>,
        origins: Vec<ForwardOrigin>,
        shares: &Shares,
    ) {
        let (modules_at, lines_at) = (1 + self.nodes, 1 + self.nodes + self.modules.len());
        table.share = shares.share(0);
        table.unmatched_ns = self.unmatched_ns;
        for (at, (node, origin)) in builder.nodes.into_iter().zip(origins).enumerate() {
            if node.total_ns > 0 {
                table.nodes.push(NodeTime {
                    name: node.name.to_owned(),
                    self_ns: node.self_ns,
                    total_ns: node.total_ns,
                    share: shares.share(1 + at),
                    origin,
                });
            }
        }
        table.nodes.sort_by(|left, right| {
            (Reverse((left.self_ns, left.total_ns)), &left.name)
                .cmp(&(Reverse((right.self_ns, right.total_ns)), &right.name))
        });
        let modules = self.modules.iter().enumerate();
        table.modules = modules
            .filter(|(_, (_, ns))| *ns > 0)
            .map(|(at, ((class, module), ns))| ModuleBackward {
                class: class.clone(),
                module: *module,
                ns: *ns,
                share: shares.share(modules_at + at),
            })
            .collect();
        table.modules.sort_by(|left, right| {
            (Reverse(left.ns), &left.class, left.module).cmp(&(
                Reverse(right.ns),
                &right.class,
                right.module,
            ))
        });
        let lines = self.lines.iter().enumerate();
        table.lines = lines
            .map(|(at, &(line, ns))| BackwardLine {
                line,
                ns,
                share: shares.share(lines_at + at),
            })
            .collect();
    }
}
