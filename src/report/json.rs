//! The summary for machines: JSON of a versioned schema.
//!
//! Shares are 0 to 1, times are seconds unless their name says otherwise. Keys are only ever added
//! within a version; one that goes or changes its meaning raises [`SCHEMA`]. `summary`, `phases`,
//! `activities`, `operators`, `ops`, `modules`, `functions`, `lines`, `native` and `threads` at the
//! top are those of the primary process: the first trainer's, of its training thread.

pub mod backward;
mod build;
pub mod compile;
pub mod diff;
pub mod lanes;
pub mod modules;
pub mod operators;
pub mod progress;
pub mod verdict;

pub use build::{render_json, report, schema};

use crate::analysis::conditions::Conditions;
use crate::analysis::energy::Energy;
use crate::analysis::intervals::Share;
use crate::analysis::modules::ModuleTime;
use crate::analysis::quality::QualitySummary;
use crate::analysis::threads::ThreadSummary;
use crate::model::profile::AddedRules;
use crate::report::tables::collectives::Collective;
use crate::report::tables::functions::FunctionRow;
use crate::report::tables::gpu_idle::{Idle, NoIdle};
use crate::report::tables::input::Input;
use crate::report::tables::operators::Operator;
use crate::report::tables::processes::Process;
use crate::report::tables::waits::Wait;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Version of the schema.
pub const SCHEMA: u32 = 2;

/// A whole summary.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of the rules.
    pub rules: u32,
    /// Rules of the user's own (--rules); not there without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added_rules: Option<AddedRules>,
    /// Version of the torchspy that recorded.
    pub torchspy: String,
    /// The command line of the root process.
    pub command: Vec<String>,
    /// Host name.
    pub host: String,
    /// Wall clock at the start, ns since 1970.
    pub started_wall_ns: u64,
    /// Time recorded.
    pub duration_s: f64,
    /// Whether native stacks were asked for.
    pub native: bool,
    /// All processes.
    pub processes: Vec<Process>,
    /// Index in `processes` of the one that the keys below are of; null if nothing was sampled.
    pub primary: Option<usize>,
    /// Wall time of its training thread.
    pub wall_s: f64,
    /// What the computation row is: `host computation`, or `host op dispatch` with CUDA.
    pub computation_label: &'static str,
    /// What the run is bound by; null where the process is no trainer.
    pub verdict: Option<verdict::Verdict>,
    /// Shares by row.
    pub summary: BTreeMap<&'static str, f64>,
    /// The same of the time after start-up, as the verdict's figures are.
    pub after_startup: BTreeMap<&'static str, f64>,
    /// The same with intervals, and those of phases and activities.
    pub intervals: Intervals,
    /// Shares by phase; regions by the names that the user gave them.
    pub phases: BTreeMap<String, f64>,
    /// Shares by activity.
    pub activities: BTreeMap<&'static str, f64>,
    /// Shares by phase, then activity; zeros left out. They sum to 1.
    pub matrix: BTreeMap<String, BTreeMap<&'static str, f64>>,
    /// Computation versus other on the host, after itwinai's definition.
    pub itwinai: Itwinai,
    /// Operators; null where none was seen.
    pub operators: Option<operators::Operators>,
    /// Operators, those with the most own time first.
    pub ops: Vec<Operator>,
    /// Forward passes; null where there was none.
    pub forward: Option<modules::Forward>,
    /// `nn.Module`s of forward passes, each before those below it.
    pub modules: Vec<ModuleTime>,
    /// Backward; null where there was none.
    pub backward: Option<backward::Backward>,
    /// torch.compile; null where nothing of it was seen.
    pub compile: Option<compile::Compile>,
    /// Steps, epochs and throughput; null where no counter was read.
    pub progress: Option<progress::Progress>,
    /// What was measured; null if nothing was sampled.
    pub conditions: Option<Conditions>,
    /// The same as `rules`: waits, collectives and input once had a version of their own.
    pub wait_rules: u32,
    /// What the training thread waited for, most time first.
    pub waits: Vec<Wait>,
    /// What DataLoader workers did at the same time, or the training thread itself without them;
    /// null without a DataLoader.
    pub input: Option<Input>,
    /// Collectives of every rank.
    pub collectives: Vec<Collective>,
    /// Python functions, those with the most own time first.
    pub functions: Vec<FunctionRow>,
    /// Python lines.
    pub lines: Vec<FunctionRow>,
    /// The same time by the line of the user's own code that is nearest to the leaf: with all that
    /// the line calls.
    pub user_lines: Vec<FunctionRow>,
    /// Native functions.
    pub native_functions: Vec<FunctionRow>,
    /// Threads.
    pub threads: Vec<ThreadSummary>,
    /// GPUs that were recorded.
    pub gpus: Vec<lanes::Gpu>,
    /// Why there is none, or what is missing of all of them.
    pub gpus_missing: Vec<String>,
    /// Idle time of devices by where the host was.
    pub gpu_idle: Vec<Idle>,
    /// Why there is none of a rank.
    pub gpu_idle_missing: Vec<NoIdle>,
    /// Energy of devices; null where none has a counter.
    pub energy: Option<Energy>,
    /// What processes took of the host; null where that was not recorded.
    pub host_use: Option<lanes::Host>,
    /// The sampler's figures.
    pub quality: QualitySummary,
    /// What is missing of the recording.
    pub missing: Vec<String>,
}

/// Intervals of all shares.
#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub struct Intervals {
    /// By row.
    pub summary: BTreeMap<&'static str, Share>,
    /// By phase.
    pub phases: BTreeMap<String, Share>,
    /// By activity.
    pub activities: BTreeMap<&'static str, Share>,
}

/// Computation versus other.
#[derive(Clone, Copy, Debug, Default, JsonSchema, Serialize)]
pub struct Itwinai {
    /// The host's time in operators over all.
    pub computation: f64,
    /// The rest.
    pub other: f64,
}
