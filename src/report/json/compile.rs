//! The part of the schema that is about torch.compile.

use crate::analysis::compile::{BreakSite, CompiledFunction};
use crate::analysis::intervals::Share;
use crate::analysis::summary::ProcessSummary;
use crate::model::seconds::of as seconds;
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
    pub functions: Vec<Function>,
    /// Graph breaks that were seen, by file and line.
    pub graph_breaks: Vec<GraphBreak>,
    /// Functions and graph breaks that are not listed.
    pub left_out: usize,
}

/// A function that was compiled.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Function {
    /// Its name; the class of an `nn.Module` that was compiled as a whole.
    pub name: String,
    /// Its file; null where only the class of a module is known.
    pub file: Option<String>,
    /// Its first line; null where only the rest of it behind a graph break was seen.
    pub line: Option<u32>,
    /// Time in which it was compiled.
    pub compile_s: f64,
    /// As a share of the thread's wall time.
    pub compile_share: Share,
    /// Times that it, or a part of it behind a graph break, was seen being compiled: a lower bound.
    pub compilations: u32,
    /// Those of them that were not the first of their part.
    pub recompilations: u32,
    /// Time of its compiled code.
    pub run_s: f64,
    /// As a share of the thread's wall time.
    pub run_share: Share,
}

/// A graph break.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct GraphBreak {
    /// The file.
    pub file: String,
    /// The line.
    pub line: u32,
    /// The function.
    pub function: String,
}

/// What torch.compile did in a process; `None` where nothing of it was seen.
pub(super) fn compile(process: &ProcessSummary) -> Option<Compile> {
    let table = &process.compile;
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
        functions: table.functions.iter().take(MOST).map(function).collect(),
        graph_breaks: table.graph_breaks.iter().take(MOST).map(broken).collect(),
        left_out,
    })
}

fn function(function: &CompiledFunction) -> Function {
    Function {
        name: function.name.clone(),
        file: (!function.file.is_empty()).then(|| function.file.clone()),
        line: (function.line > 0).then_some(function.line),
        compile_s: seconds(function.compile_ns),
        compile_share: function.compile_share,
        compilations: function.compilations,
        recompilations: function.recompilations,
        run_s: seconds(function.run_ns),
        run_share: function.run_share,
    }
}

fn broken(site: &BreakSite) -> GraphBreak {
    GraphBreak {
        file: site.file.clone(),
        line: site.at.line,
        function: site.at.function.clone(),
    }
}
