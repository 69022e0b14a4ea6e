//! The part of the schema that is about torch.compile.

use crate::analysis::Analysis;
use crate::analysis::compile::CompiledFunction;
use crate::analysis::intervals::Share;
use crate::model::seconds::of as seconds;
use crate::report::tables::compile::{GraphBreak, graph_breaks};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Version of this part. Keys are only ever added within a version.
pub const VERSION: u32 = 1;

/// Functions and graph breaks that are listed.
const MOST: usize = 500;

/// What torch.compile did on the training thread.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Compile {
    /// [`VERSION`].
    pub version: u32,
    /// Time of compiling, the wait for compilers included: the phase `compile`.
    pub compile_s: f64,
    /// The same as a share of the thread's wall time.
    pub compile_share: Share,
    /// The same by stage: `dynamo`, `aot_autograd`, `inductor`, `build`, `other`.
    pub stages_s: BTreeMap<&'static str, f64>,
    /// The part of `compile_s` of which the function is not known.
    pub unknown_s: f64,
    /// Time of compiled code.
    pub run_s: f64,
    /// The same as a share of the thread's wall time.
    pub run_share: Share,
    /// The part of `run_s` in backward of which the function is not known.
    pub backward_s: f64,
    /// Functions, those with the most time first.
    pub functions: Vec<CompiledFunction>,
    /// Graph breaks that were seen, by file and line.
    pub graph_breaks: Vec<GraphBreak>,
    /// Functions and graph breaks that are not listed.
    pub left_out: usize,
}

/// What torch.compile did in a process; `None` where nothing of it was seen.
pub(super) fn compile(analysis: &Analysis) -> Option<Compile> {
    let table = &analysis.primary()?.compile;
    if table.is_empty() {
        return None;
    }
    let left_out = [table.functions.len(), table.graph_breaks.len()]
        .map(|count| count.saturating_sub(MOST))
        .iter()
        .sum();
    Some(Compile {
        version: VERSION,
        compile_s: seconds(table.compile_ns),
        compile_share: table.compile_share,
        stages_s: table
            .stages
            .iter()
            .map(|&(stage, ns)| (stage.name(), seconds(ns)))
            .collect(),
        unknown_s: seconds(table.unknown_ns),
        run_s: seconds(table.run_ns),
        run_share: table.run_share,
        backward_s: seconds(table.backward_ns),
        functions: table.functions.iter().take(MOST).cloned().collect(),
        graph_breaks: graph_breaks(analysis, MOST),
        left_out,
    })
}
