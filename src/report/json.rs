//! The summary for machines: JSON of a versioned schema.
//!
//! Shares are 0 to 1, times are seconds unless their name says otherwise. Keys are only added
//! within a version; removing a key or changing its meaning raises [`SCHEMA`]. `summary`, `phases`,
//! `activities`, `operators`, `ops`, `modules`, `functions`, `lines`, `native` and `threads` at the
//! top level are those of the primary process: the first trainer's, of its training thread.

pub mod backward;
mod build;
pub mod compile;
pub mod diff;
pub mod job;
pub mod memory;
pub mod modules;
pub mod operators;
pub mod progress;
pub mod scaling;
pub mod trace;
pub mod tracks;
pub mod verdict;

pub use build::{render_json, report, schema};

use crate::analysis::conditions::Conditions;
use crate::analysis::device_memory::DeviceMemory;
use crate::analysis::energy::Energy;
use crate::analysis::intervals::Share;
use crate::analysis::modules::ModuleTime;
use crate::analysis::quality::QualitySummary;
use crate::analysis::threads::ThreadSummary;
use crate::model::nccl_ras::KeptRas;
use crate::model::profile::AddedRules;
use crate::report::tables::collectives::{Collective, SlowRank};
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

/// The summary of a recording.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of the rules.
    pub rules: u32,
    /// The user's own rules (--rules); absent without any.
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
    /// Whether native stacks were requested.
    pub native: bool,
    /// All processes.
    pub processes: Vec<Process>,
    /// Index in `processes` of the process that the keys below describe; null if nothing was
    /// sampled.
    pub primary: Option<usize>,
    /// Wall time of its training thread.
    pub wall_s: f64,
    /// Label of the computation row: `host computation`, or `host op dispatch` with CUDA.
    pub computation_label: &'static str,
    /// What the run is bound by; null if the process is not a trainer.
    pub verdict: Option<verdict::Verdict>,
    /// Shares by row.
    pub summary: BTreeMap<&'static str, f64>,
    /// The same for the time after start-up, which the verdict uses.
    pub after_startup: BTreeMap<&'static str, f64>,
    /// The same shares with intervals, and those of phases and activities.
    pub intervals: Intervals,
    /// Shares by phase; regions by their names.
    pub phases: BTreeMap<String, f64>,
    /// Shares by activity.
    pub activities: BTreeMap<&'static str, f64>,
    /// Shares by phase, then activity, without zeros. They sum to 1.
    pub matrix: BTreeMap<String, BTreeMap<&'static str, f64>>,
    /// Computation versus other on the host, after itwinai's definition.
    pub itwinai: Itwinai,
    /// Operators; null if none was seen.
    pub operators: Option<operators::Operators>,
    /// Operators by descending own time.
    pub ops: Vec<Operator>,
    /// Forward passes; null if there were none.
    pub forward: Option<modules::Forward>,
    /// `nn.Module`s of forward passes, each before those below it.
    pub modules: Vec<ModuleTime>,
    /// Backward; null if there was none.
    pub backward: Option<backward::Backward>,
    /// torch.compile; null if it was not seen.
    pub compile: Option<compile::Compile>,
    /// Steps, epochs and throughput; null if no counter was read.
    pub progress: Option<progress::Progress>,
    /// What NCCL (RAS) reported while no step ended; null if it was not asked, or a step has ended
    /// since.
    pub nccl_ras: Option<KeptRas>,
    /// Conditions of the run; null if nothing was sampled.
    pub conditions: Option<Conditions>,
    /// Same as `rules`: rules of waits, collectives and input had a version of their own before.
    pub wait_rules: u32,
    /// What the training thread waited for, by descending time.
    pub waits: Vec<Wait>,
    /// What DataLoader workers did during these waits; without workers, what the training thread
    /// did to make batches. Null without a DataLoader.
    pub input: Option<Input>,
    /// Collectives of every rank.
    pub collectives: Vec<Collective>,
    /// The rank that arrives last at collectives that run on GPUs; null if there is none, or that
    /// cannot be told.
    pub slow_rank: Option<SlowRank>,
    /// Python functions by descending own time.
    pub functions: Vec<FunctionRow>,
    /// Python lines.
    pub lines: Vec<FunctionRow>,
    /// The same time by the line of the user's own code nearest to the leaf, with all that the line
    /// calls.
    pub user_lines: Vec<FunctionRow>,
    /// Native functions.
    pub native_functions: Vec<FunctionRow>,
    /// Threads.
    pub threads: Vec<ThreadSummary>,
    /// GPUs that were recorded.
    pub gpus: Vec<tracks::Gpu>,
    /// Why there is no GPU, or what is missing for all of them.
    pub gpus_missing: Vec<String>,
    /// Idle time of devices by what the host executed.
    pub gpu_idle: Vec<Idle>,
    /// Why idle time is missing for a rank.
    pub gpu_idle_missing: Vec<NoIdle>,
    /// Energy of devices; null if none has a counter.
    pub energy: Option<Energy>,
    /// A trace of torch.profiler (--trace-file); absent without one. Its times are those of a
    /// process that torch.profiler slowed down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traced: Option<trace::TracedBeside>,
    /// Ranks of the processes that have a trace in the recording (`record --trace`); null for what
    /// is no rank.
    pub traced_ranks: Vec<Option<u32>>,
    /// Processes that have none although `record --trace` asked for one.
    pub without_trace: Vec<trace::WithoutTrace>,
    /// Which code raised the memory of processes; empty where it was not read with samples.
    pub memory: Vec<memory::Memory>,
    /// What torch's caching allocator of processes held of devices; empty where it was not read.
    pub device_memory: Vec<DeviceMemory>,
    /// Which code raised the device memory that it gave to tensors.
    pub device_memory_by_code: Vec<memory::DeviceMemoryByCode>,
    /// Use of the host by processes; null if it was not recorded.
    pub host_use: Option<tracks::Host>,
    /// The sampler's figures.
    pub quality: QualitySummary,
    /// What is missing in the recording.
    pub missing: Vec<String>,
    /// Whether it was still being recorded: the rest is to come.
    pub growing: bool,
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
    /// Share of the host's time in operators.
    pub computation: f64,
    /// The rest.
    pub other: f64,
}
