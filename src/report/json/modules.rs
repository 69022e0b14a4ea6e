//! The part of the schema that is about `nn.Module`s.

use super::Interval;
use super::build::{interval, seconds};
use crate::analysis::modules::ModuleTime;
use crate::analysis::summary::ProcessSummary;
use schemars::JsonSchema;
use serde::Serialize;

/// Version of this part. Keys are only ever added within a version.
pub const VERSION: u32 = 1;

/// Modules that are listed.
const MOST: usize = 1000;

/// The training thread's forward passes.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Forward {
    /// [`VERSION`].
    pub version: u32,
    /// Time in forward.
    pub forward_s: f64,
    /// The part of it of which no module is known.
    pub unread_s: f64,
    /// Modules that are not listed: those with the least total time.
    pub left_out: usize,
    /// The same with those as one that do the same thing in different places: `layers.*.attention`.
    pub groups: Vec<Group>,
    /// Groups that are not listed.
    pub groups_left_out: usize,
}

/// Modules that differ by a number alone.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Group {
    /// How many they are.
    pub count: usize,
    /// As of one of them; its path has `*` for the number.
    #[serde(flatten)]
    pub module: Module,
}

/// One module.
#[derive(Clone, Debug, JsonSchema, Serialize)]
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
    /// Training time (`total_s` less `eval_s`; all of it where nothing is trained) per step, ms; null where no steps are known.
    pub per_step_ms: Option<f64>,
    /// Own time as a share of the thread's wall time.
    pub self_share: Interval,
    /// Total time as a share of the thread's wall time.
    pub total_share: Interval,
}

/// The forward passes of a process; `None` where there was none.
pub(super) fn forward(process: &ProcessSummary) -> Option<Forward> {
    let tree = &process.modules;
    if tree.forward_ns == 0 {
        return None;
    }
    let groups = most(&tree.groups, |group| group.time.total_ns);
    Some(Forward {
        version: VERSION,
        forward_s: seconds(tree.forward_ns),
        unread_s: seconds(tree.unread_ns),
        left_out: tree.modules.len().saturating_sub(MOST),
        groups_left_out: tree.groups.len() - groups.len(),
        groups: groups
            .into_iter()
            .map(|group| Group {
                count: group.count,
                module: module(process, &group.time),
            })
            .collect(),
    })
}

/// The modules of a process, each before those below it; siblings by total time.
pub(super) fn modules(process: &ProcessSummary) -> Vec<Module> {
    let shown = most(&process.modules.modules, |module| module.total_ns);
    shown
        .into_iter()
        .map(|time| module(process, time))
        .collect()
}

/// Those with the most total time, in their order. What stands above one of them is among them: it has no less time, and comes
/// first.
fn most<T>(rows: &[T], total_ns: impl Fn(&T) -> u64) -> Vec<&T> {
    let mut ranked: Vec<(usize, &T)> = rows.iter().enumerate().collect();
    ranked.sort_by_key(|&(at, row)| (std::cmp::Reverse(total_ns(row)), at));
    ranked.truncate(MOST);
    ranked.sort_by_key(|&(at, _)| at);
    ranked.into_iter().map(|(_, row)| row).collect()
}

fn module(process: &ProcessSummary, time: &ModuleTime) -> Module {
    Module {
        root: time.root.clone(),
        number: time.number,
        path: time.path.clone(),
        class: (!time.class.is_empty()).then(|| time.class.clone()),
        self_s: seconds(time.self_ns),
        total_s: seconds(time.total_ns),
        eval_s: seconds(time.eval_ns),
        per_step_ms: process.per_step_ns(time).map(|ns| ns / 1e6),
        self_share: interval(&time.self_share),
        total_share: interval(&time.total_share),
    }
}
