//! The summary for machines: JSON of a versioned schema.
//!
//! Shares are 0 to 1, times are seconds unless their name says otherwise. Keys are only ever added within a version;
//! one that goes or changes its meaning raises [`SCHEMA`]. `summary`, `phases`, `activities`, `operators`, `ops`, `modules`, `functions`, `lines`,
//! `native` and `threads` at the top are those of the primary process: the first trainer's, of its training thread.

pub mod backward;
mod build;
pub mod compile;
pub mod conditions;
pub mod diff;
pub mod energy;
pub mod lanes;
pub mod modules;
pub mod operators;
pub mod progress;
pub mod verdict;
pub mod waits;

pub use build::{render_json, report, schema};

use crate::analysis::intervals::Share;
use crate::report::tables::collectives::Collective;
use crate::report::tables::functions::FunctionRow;
use crate::report::tables::gpu_idle::{Idle, NoIdle};
use crate::report::tables::modules::Module;
use crate::report::tables::operators::Operator;
use crate::report::tables::threads::Thread;
use crate::report::tables::waits::Wait;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Version of the schema.
pub const SCHEMA: u32 = 2;

/// Rules that the user added.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
pub struct AddedRules {
    /// Rows.
    pub rows: usize,
    /// Functions of the recording that any of these is for.
    pub functions: usize,
}

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
    pub modules: Vec<Module>,
    /// Backward; null where there was none.
    pub backward: Option<backward::Backward>,
    /// torch.compile; null where nothing of it was seen.
    pub compile: Option<compile::Compile>,
    /// Steps, epochs and throughput; null where no counter was read.
    pub progress: Option<progress::Progress>,
    /// What was measured; null if nothing was sampled.
    pub conditions: Option<conditions::Conditions>,
    /// The same as `rules`: waits, collectives and input once had a version of their own.
    pub wait_rules: u32,
    /// What the training thread waited for, most time first.
    pub waits: Vec<Wait>,
    /// What DataLoader workers did meanwhile, or the training thread itself without them; null without a DataLoader.
    pub input: Option<waits::Input>,
    /// Collectives of every rank.
    pub collectives: Vec<Collective>,
    /// Python functions, those with the most own time first.
    pub functions: Vec<FunctionRow>,
    /// Python lines.
    pub lines: Vec<FunctionRow>,
    /// The same time by the line of the user's own code that is nearest to the leaf: with all that the line calls.
    pub user_lines: Vec<FunctionRow>,
    /// Native functions.
    pub native_functions: Vec<FunctionRow>,
    /// Threads.
    pub threads: Vec<Thread>,
    /// GPUs that were recorded.
    pub gpus: Vec<lanes::Gpu>,
    /// Why there is none, or what is missing of all of them.
    pub gpus_missing: Vec<String>,
    /// Idle time of devices by where the host was.
    pub gpu_idle: Vec<Idle>,
    /// Why there is none of a rank.
    pub gpu_idle_missing: Vec<NoIdle>,
    /// Energy of devices; null where none has a counter.
    pub energy: Option<energy::Energy>,
    /// What processes took of the host; null where that was not recorded.
    pub host_use: Option<lanes::Host>,
    /// The sampler's figures.
    pub quality: Quality,
    /// What is missing of the recording.
    pub missing: Vec<String>,
}

/// A process.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Process {
    /// Its pid.
    pub pid: i32,
    /// Its parent's.
    pub parent_pid: i32,
    /// `trainer`, `dataloader_worker`, `launcher`, `other`.
    pub role: &'static str,
    /// Its rank, where it has one.
    pub rank: Option<u32>,
    /// Ranks in the job.
    pub world_size: Option<u32>,
    /// Its rank on this node.
    pub local_rank: Option<u32>,
    /// Number of a DataLoader worker.
    pub worker: Option<u32>,
    /// Interpreter version; null if none was found.
    pub python: Option<String>,
    /// Torch version; null without torch, or where it could not be read.
    pub torch: Option<String>,
    /// Whether CUDA is loaded.
    pub cuda: bool,
    /// The command line.
    pub command: Vec<String>,
    /// What is missing of this process, and why.
    pub note: Option<String>,
    /// CPU time of the sampled threads.
    pub cpu_s: f64,
    /// Wall time of the training thread.
    pub wall_s: f64,
    /// Its tid.
    pub training_tid: Option<i32>,
    /// Shares of that time by row; empty without samples.
    pub summary: BTreeMap<&'static str, f64>,
    /// Shares of that time by phase.
    pub phases: BTreeMap<String, f64>,
    /// Shares of that time by activity.
    pub activities: BTreeMap<&'static str, f64>,
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

/// Stop times.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
pub struct StopTimes {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Longest.
    pub max: f64,
}

/// The sampler's figures.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Quality {
    /// Ticks a second that were carried out.
    pub rate_hz: f64,
    /// Rate that was asked for.
    pub asked_hz: f64,
    /// Captures of training threads a second; null without such threads.
    pub training_hz: Option<f64>,
    /// Ticks carried out.
    pub ticks: u64,
    /// Late ones.
    pub late_ticks: u64,
    /// Ticks left out.
    pub missed_ticks: u64,
    /// Thread samples, in ticks.
    pub samples: u64,
    /// Captures that read a stack.
    pub fresh: u64,
    /// Captures by kind.
    pub captures: BTreeMap<&'static str, u64>,
    /// Stops of threads.
    pub stops: u64,
    /// How long they were, in microseconds.
    pub stop_us: StopTimes,
    /// Stopped time over the CPU time of all sampled threads.
    pub stopped_share: f64,
    /// Fresh captures that reach their root; null without native stacks.
    pub rooted_share: Option<f64>,
    /// Fresh captures of Python threads that merged wholly; null without any.
    pub merged_share: Option<f64>,
    /// Fresh captures that are not whole, by reason.
    pub partial: BTreeMap<&'static str, u64>,
    /// Native frames found by a checked guess.
    pub guessed_frames: f64,
    /// Fresh captures with such a frame.
    pub guessed_stacks: f64,
    /// Time of training threads that no rule could name.
    pub unclassified: f64,
    /// Stacks lost while recording.
    pub lost: u64,
    /// Captures left out to stay within the budget.
    pub skipped_for_budget: u64,
    /// Captures left out since a stop that was asked for before had not come yet.
    pub skipped_for_late_stop: u64,
    /// Looks at training threads that were left out since every CPU was taken, and their processes took turns.
    pub skipped_for_turn: u64,
    /// Stops that came late: after 2 ms, when the other threads had been seen to.
    pub stop_timeouts: u64,
    /// System calls that stops cut short, with EINTR or less than was asked for, at most: they may have ended so by themselves.
    pub calls_cut_short: u64,
    /// Captures of running threads that were not stopped, since that would have cut a system call short: without native frames.
    pub calls_left_running: u64,
    /// Setuid and setgid programs that run without their privileges, since their thread was being stopped when they began.
    pub privileges_lost: u64,
    /// torchspy's own CPU time, in cores.
    pub own_cpu: f64,
}
