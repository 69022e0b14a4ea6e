//! The part of the schema that is about backward.

use super::Interval;
use super::build::{interval, seconds};
use crate::analysis::backward::{BackwardLine, ModuleBackward, NodeTime};
use crate::analysis::forward::Home;
use crate::analysis::summary::ProcessSummary;
use crate::model::profile::Profile;
use schemars::JsonSchema;
use serde::Serialize;

/// Version of this part. Keys are only ever added within a version.
pub const VERSION: u32 = 1;

/// Nodes, modules and lines that are listed.
const MOST: usize = 500;

/// Backward on the training thread.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Backward {
    /// [`VERSION`].
    pub version: u32,
    /// Time of the phase `backward`.
    pub total_s: f64,
    /// The same as a share of the thread's wall time.
    pub share: Interval,
    /// The part of it in no node: the engine itself, and waiting for it.
    pub outside_s: f64,
    /// Lines that called it, most time first.
    pub lines: Vec<Line>,
    /// Nodes, those with the most own time first.
    pub nodes: Vec<Node>,
    /// Modules whose nodes these are, those with the most time first.
    pub modules: Vec<Module>,
    /// Time in nodes of which no module can be told.
    pub unmatched_s: f64,
    /// Time of the phase `recompute`: forward that was computed again (activation checkpointing).
    pub recompute_s: f64,
    /// The same by the class of the innermost module, most first.
    pub recompute: Vec<Recompute>,
}

/// A line that called backward.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Line {
    /// The nearest file of the user's own code; null where there is none.
    pub file: Option<String>,
    /// The function there.
    pub function: Option<String>,
    /// The line.
    pub line: Option<u32>,
    /// Time of backward under it.
    pub total_s: f64,
    /// As a share of the thread's wall time.
    pub share: Interval,
}

/// A kind of node.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Node {
    /// `ConvolutionBackward0`.
    pub name: String,
    /// Time in which it was the innermost node.
    pub self_s: f64,
    /// Time in which it was on the stack.
    pub total_s: f64,
    /// Own time as a share of the thread's wall time.
    pub self_share: Interval,
    /// By what its modules are known: `module` (one alone), `class` (several of one class), `nets` (of several outermost modules, in each of one class), or why they are not: `outside` (its
    /// operator was called outside of modules), `several` (by modules of several classes), `seldom` (in too few ticks),
    /// `not_seen`.
    pub matched: &'static str,
    /// The classes of modules that called its operator.
    pub classes: Vec<String>,
    /// The module, where it is one alone.
    pub path: Option<String>,
}

/// A module, or all modules of a class.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Module {
    /// The class.
    pub class: String,
    /// Class of the outermost module; null where only the class can be told.
    pub root: Option<String>,
    /// As `named_modules()` has it; null where only the class can be told.
    pub path: Option<String>,
    /// Own time of its nodes.
    pub self_s: f64,
    /// As a share of the thread's wall time.
    pub self_share: Interval,
}

/// Forward that was computed again.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Recompute {
    /// The class of the innermost module; null where none was called or read.
    pub class: Option<String>,
    /// The time.
    pub self_s: f64,
}

/// Backward of a process; `None` where there was none.
pub(super) fn backward(profile: &Profile, process: &ProcessSummary) -> Option<Backward> {
    let table = &process.backward;
    let recompute_ns: u64 = table.recompute.iter().map(|each| each.ns).sum();
    if table.total_ns == 0 && recompute_ns == 0 {
        return None;
    }
    let nodes = table.nodes.iter().take(MOST);
    let modules = table.modules.iter().take(MOST);
    Some(Backward {
        version: VERSION,
        total_s: seconds(table.total_ns),
        share: interval(&table.share),
        outside_s: seconds(table.outside_ns),
        lines: table
            .lines
            .iter()
            .take(MOST)
            .map(|each| line(profile, each))
            .collect(),
        nodes: nodes.map(|each| node(profile, each)).collect(),
        modules: modules.map(|each| module(profile, each)).collect(),
        unmatched_s: seconds(table.unmatched_ns),
        recompute_s: seconds(recompute_ns),
        recompute: table
            .recompute
            .iter()
            .take(MOST)
            .map(|each| Recompute {
                class: each.class.clone(),
                self_s: seconds(each.ns),
            })
            .collect(),
    })
}

fn line(profile: &Profile, line: &BackwardLine) -> Line {
    let at = line.line.and_then(|(function, line)| {
        let function = profile.functions.get(function.index())?;
        Some((function, line))
    });
    Line {
        file: at.map(|(function, _)| function.file.clone()),
        function: at.map(|(function, _)| function.name.clone()),
        line: at.map(|(_, line)| line),
        total_s: seconds(line.ns),
        share: interval(&line.share),
    }
}

fn node(profile: &Profile, node: &NodeTime) -> Node {
    let (matched, classes, id) = match &node.home {
        Home::Module { id, class } => ("module", vec![class.clone()], Some(*id)),
        Home::Class(class) => ("class", vec![class.clone()], None),
        Home::Nets(nets) => {
            let mut classes: Vec<String> = nets.iter().map(|(class, _)| class.clone()).collect();
            classes.dedup();
            ("nets", classes, None)
        }
        Home::Outside => ("outside", Vec::new(), None),
        Home::Several(classes) => ("several", classes.clone(), None),
        Home::Seldom => ("seldom", Vec::new(), None),
        Home::NotSeen => ("not_seen", Vec::new(), None),
    };
    let info = id.and_then(|id| profile.nn_modules.get(id.index()));
    Node {
        name: node.name.clone(),
        self_s: seconds(node.self_ns),
        total_s: seconds(node.total_ns),
        self_share: interval(&node.share),
        matched,
        classes,
        path: info.map(|info| info.path.clone()),
    }
}

fn module(profile: &Profile, module: &ModuleBackward) -> Module {
    let info = module
        .module
        .and_then(|id| profile.nn_modules.get(id.index()));
    Module {
        class: module.class.clone(),
        root: info.map(|info| info.root.clone()),
        path: info.map(|info| info.path.clone()),
        self_s: seconds(module.ns),
        self_share: interval(&module.share),
    }
}
