//! The part of the schema that is about backward.

use crate::analysis::Analysis;
use crate::analysis::backward::RecomputeTime;
use crate::analysis::intervals::Share;
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use crate::report::tables::backward::{self, Line, Module, Node};
use schemars::JsonSchema;
use serde::Serialize;

/// Version of this part. Keys are only ever added within a version.
pub const VERSION: u32 = 1;

/// Maximum number of listed nodes, modules and lines.
const MOST: usize = 500;

/// Backward on the training thread.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Backward {
    /// [`VERSION`].
    pub version: u32,
    /// Time of the phase `backward`.
    pub total_s: f64,
    /// As a share of the thread's wall time.
    pub share: Share,
    /// The part of it in no node: the engine itself, and waits for it.
    pub outside_s: f64,
    /// Lines that called it, by descending time.
    pub lines: Vec<Line>,
    /// Nodes by descending own time.
    pub nodes: Vec<Node>,
    /// Modules that the nodes belong to, by descending time.
    pub modules: Vec<Module>,
    /// Time in nodes whose module is not known.
    pub unmatched_s: f64,
    /// Time of the phase `recompute`: recomputed forward (activation checkpointing).
    pub recompute_s: f64,
    /// The same by the class of the innermost module, descending.
    pub recompute: Vec<RecomputeTime>,
}

/// Backward of a process; `None` if there was none.
pub(super) fn backward(profile: &Profile, analysis: &Analysis) -> Option<Backward> {
    let table = &analysis.primary()?.backward;
    let recompute_ns: u64 = table.recompute.iter().map(|each| each.ns).sum();
    if table.total_ns == 0 && recompute_ns == 0 {
        return None;
    }
    Some(Backward {
        version: VERSION,
        total_s: seconds(table.total_ns),
        share: table.share,
        outside_s: seconds(table.outside_ns),
        lines: backward::lines(profile, analysis, MOST),
        nodes: backward::nodes(profile, analysis, MOST),
        modules: backward::modules(profile, analysis, MOST),
        unmatched_s: seconds(table.unmatched_ns),
        recompute_s: seconds(recompute_ns),
        recompute: table.recompute.iter().take(MOST).cloned().collect(),
    })
}
