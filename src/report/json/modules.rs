//! The part of the schema that is about `nn.Module`s.

use super::Interval;
use super::build::{interval, seconds};
use crate::analysis::modules::ModuleTime;
use crate::analysis::summary::ProcessSummary;
use serde::Serialize;

/// Version of this part. Keys are only ever added within a version.
pub const VERSION: u32 = 1;

/// Modules that are listed.
const MOST: usize = 1000;

/// Modules of the training thread's forward passes.
#[derive(Clone, Debug, Serialize)]
pub struct Modules {
    /// [`VERSION`].
    pub version: u32,
    /// Time in forward.
    pub forward_s: f64,
    /// The part of it of which no module is known.
    pub unread_s: f64,
    /// Modules, each before those below it; siblings by total time.
    pub modules: Vec<Module>,
    /// Modules that are not listed: those with the least total time.
    pub left_out: usize,
}

/// One module.
#[derive(Clone, Debug, Serialize)]
pub struct Module {
    /// Class of the outermost module.
    pub root: String,
    /// Counts outermost modules of that class from 0.
    pub number: u32,
    /// As `named_modules()` has it, less wrappers; empty for the outermost module.
    pub path: String,
    /// Its class; null for a container that was indexed and never called.
    pub class: Option<String>,
    /// Time in which it was the innermost module.
    pub self_s: f64,
    /// Time in which it, or a module below it, was called.
    pub total_s: f64,
    /// The part of `total_s` in which the innermost module was in evaluation mode.
    pub eval_s: f64,
    /// Own time as a share of the thread's wall time.
    pub self_share: Interval,
    /// Total time as a share of the thread's wall time.
    pub total_share: Interval,
}

/// The modules of a process; `None` where there was no forward.
pub(super) fn modules(process: &ProcessSummary) -> Option<Modules> {
    let tree = &process.modules;
    if tree.forward_ns == 0 {
        return None;
    }
    let shown = most(&tree.modules, MOST);
    Some(Modules {
        version: VERSION,
        forward_s: seconds(tree.forward_ns),
        unread_s: seconds(tree.unread_ns),
        left_out: tree.modules.len() - shown.len(),
        modules: shown.into_iter().map(module).collect(),
    })
}

/// The `count` modules with the most total time, in their order. What stands above one of them is among them: it has no less
/// time, and comes first.
pub(crate) fn most(modules: &[ModuleTime], count: usize) -> Vec<&ModuleTime> {
    let mut ranked: Vec<(usize, &ModuleTime)> = modules.iter().enumerate().collect();
    ranked.sort_by_key(|&(at, module)| (std::cmp::Reverse(module.total_ns), at));
    ranked.truncate(count);
    ranked.sort_by_key(|&(at, _)| at);
    ranked.into_iter().map(|(_, module)| module).collect()
}

fn module(time: &ModuleTime) -> Module {
    Module {
        root: time.root.clone(),
        number: time.number,
        path: time.path.clone(),
        class: (!time.class.is_empty()).then(|| time.class.clone()),
        self_s: seconds(time.self_ns),
        total_s: seconds(time.total_ns),
        eval_s: seconds(time.eval_ns),
        self_share: interval(&time.self_share),
        total_share: interval(&time.total_share),
    }
}
