//! Processes, and ranks side by side.

use crate::analysis::Analysis;
use crate::analysis::summary::ProcessSummary;
use crate::model::category::SummaryRow;
use crate::model::profile::{Profile, Role};
use crate::model::seconds::of as seconds;
use crate::report::table::{Column, In, Kind, Value};
use crate::report::text::role;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// A process.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Process {
    /// Its pid.
    pub pid: i32,
    /// Pid of its parent.
    pub parent_pid: i32,
    /// `trainer`, `dataloader_worker`, `launcher`, `other`.
    pub role: &'static str,
    /// Its rank; null if it has none.
    pub rank: Option<u32>,
    /// Ranks in the job.
    pub world_size: Option<u32>,
    /// Its rank on this node.
    pub local_rank: Option<u32>,
    /// Number of a DataLoader worker.
    pub worker: Option<u32>,
    /// Interpreter version; null if none was found.
    pub python: Option<String>,
    /// Torch version; null without torch, or if it could not be read.
    pub torch: Option<String>,
    /// Whether CUDA is loaded.
    pub cuda: bool,
    /// The command line.
    pub command: Vec<String>,
    /// What is missing for this process, and why.
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
    /// The role as text: `rank 0/2`.
    #[serde(skip)]
    pub shown: String,
}

type Col = Column<Process>;

/// Processes in CSV; ranks in text.
pub const PROCESSES: &[Col] = &[
    Col::words("", |row| (&row.shown).into()).width(10),
    Col::new(Kind::Id, "pid", "pid", |row| row.pid.into()),
    Col::new(Kind::Seconds, "wall_s", "wall s", |row| row.wall_s.into()).width(8),
    of_row("share_host_computation", "compute", |row| {
        share(row, SummaryRow::HostComputation)
    })
    .width(8),
    of_row("share_communication", "comm", |row| {
        share(row, SummaryRow::Communication)
    }),
    of_row("share_input", "input", |row| share(row, SummaryRow::Input)),
    of_row("share_gpu_wait", "gpu", |row| {
        share(row, SummaryRow::GpuWait)
    }),
    of_row("share_python", "python", |row| {
        share(row, SummaryRow::Python)
    })
    .width(7),
    of_row("share_omp_barrier", "omp", |row| {
        share(row, SummaryRow::OmpBarrier)
    }),
    of_row("share_cpu_wait", "no cpu", |row| {
        share(row, SummaryRow::CpuWait)
    })
    .width(7),
    of_row("", "other", |row| {
        let others = OTHERS.iter().filter_map(|row_of| shares_of(row, *row_of));
        others.sum::<f64>().into()
    })
    .only(In::Text),
    Col::data(Kind::Text, "role", |row| row.role.into()),
    Col::data(Kind::Count, "rank", |row| row.rank.into()),
    Col::data(Kind::Count, "world_size", |row| row.world_size.into()),
    Col::data(Kind::Count, "local_rank", |row| row.local_rank.into()),
    Col::data(Kind::Count, "worker", |row| row.worker.into()),
    Col::data(Kind::Count, "parent_pid", |row| row.parent_pid.into()),
    Col::data(Kind::Text, "python", |row| row.python.as_ref().into()),
    Col::data(Kind::Text, "torch", |row| row.torch.as_ref().into()),
    Col::data(Kind::Text, "cuda", |row| row.cuda.into()),
    Col::data(Kind::Seconds, "cpu_s", |row| row.cpu_s.into()),
    Col::data(Kind::Points, "share_compile", |row| {
        share(row, SummaryRow::Compile)
    }),
    Col::data(Kind::Points, "share_startup", |row| {
        share(row, SummaryRow::Startup)
    }),
    Col::data(Kind::Points, "share_shutdown", |row| {
        share(row, SummaryRow::Shutdown)
    }),
    Col::data(Kind::Points, "share_other", |row| {
        share(row, SummaryRow::Other)
    }),
    Col::data(Kind::Points, "share_unclassified", |row| {
        share(row, SummaryRow::Unclassified)
    }),
];

/// Rows that text sums.
const OTHERS: [SummaryRow; 5] = [
    SummaryRow::Compile,
    SummaryRow::Startup,
    SummaryRow::Shutdown,
    SummaryRow::Other,
    SummaryRow::Unclassified,
];

const fn of_row(key: &'static str, label: &'static str, value: fn(&Process) -> Value) -> Col {
    Col::new(Kind::Points, key, label, value)
}

fn shares_of(row: &Process, of: SummaryRow) -> Option<f64> {
    row.summary.get(of.name()).copied()
}

fn share(row: &Process, of: SummaryRow) -> Value {
    shares_of(row, of).unwrap_or_default().into()
}

pub fn processes(profile: &Profile, analysis: &Analysis) -> Vec<Process> {
    let processes = analysis.processes.iter();
    processes.map(|each| process(profile, each)).collect()
}

/// Processes that train.
pub fn ranks(profile: &Profile, analysis: &Analysis) -> Vec<Process> {
    let trains = |process: &&ProcessSummary| matches!(process.role, Role::Trainer { .. });
    let ranks = analysis.processes.iter().filter(trains);
    ranks.map(|each| process(profile, each)).collect()
}

fn process(profile: &Profile, summary: &ProcessSummary) -> Process {
    let info = profile.process(summary.process);
    let info = info.map(|process| process.info.clone()).unwrap_or_default();
    let text = |value: String| (!value.is_empty()).then_some(value);
    let sampled = (summary.wall_ns > 0).then_some(summary);
    Process {
        pid: info.pid,
        parent_pid: info.parent_pid,
        role: summary.role.name(),
        rank: summary.role.rank(),
        world_size: summary.role.world_size(),
        local_rank: match summary.role {
            Role::Trainer { local_rank, .. } => local_rank,
            _ => None,
        },
        worker: summary.role.worker(),
        python: text(info.python),
        torch: text(info.torch),
        cuda: info.has_cuda,
        command: info.command,
        note: text(info.note),
        cpu_s: seconds(summary.cpu_ns),
        wall_s: seconds(summary.wall_ns),
        training_tid: summary
            .training_thread
            .and_then(|thread| profile.thread(thread))
            .map(|thread| thread.tid),
        summary: sampled.map(summary_shares).unwrap_or_default(),
        phases: sampled
            .map(|summary| phase_shares(profile, summary))
            .unwrap_or_default(),
        activities: sampled.map(activity_shares).unwrap_or_default(),
        shown: role(summary.role),
    }
}

/// Shares of a training thread's time by row.
pub fn summary_shares(process: &ProcessSummary) -> BTreeMap<&'static str, f64> {
    let rows = process.rows.iter();
    rows.map(|(row, _, share)| (row.name(), share.value))
        .collect()
}

/// The same by phase.
pub fn phase_shares(profile: &Profile, process: &ProcessSummary) -> BTreeMap<String, f64> {
    let phases = process.phases.iter();
    phases
        .map(|&(phase, share)| (profile.phase_name(phase).to_owned(), share.value))
        .collect()
}

/// The same by activity.
pub fn activity_shares(process: &ProcessSummary) -> BTreeMap<&'static str, f64> {
    let activities = process.activities.iter();
    activities
        .map(|(activity, share)| (activity.name(), share.value))
        .collect()
}
