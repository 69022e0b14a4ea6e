//! The summary for machines: JSON of a versioned schema.
//!
//! Shares are 0 to 1, times are seconds unless their name says otherwise. Keys are only ever added within a version;
//! one that goes or changes its meaning raises [`SCHEMA`]. `summary`, `phases`, `activities`, `functions`, `lines`,
//! `native` and `threads` at the top are those of the primary process: the first trainer's, of its training thread.

use crate::analysis::Analysis;
use crate::analysis::functions::{FunctionTime, LineTime};
use crate::analysis::intervals::Share;
use crate::analysis::quality::QualitySummary;
use crate::analysis::summary::ProcessSummary;
use crate::analysis::threads::ThreadSummary;
use crate::model::category::{Activity, Phase, SummaryRow};
use crate::model::ids::FunctionId;
use crate::model::profile::{Function, Profile, Role};
use crate::torch::rules::RULES_VERSION;
use serde::Serialize;
use std::collections::BTreeMap;

/// Version of the schema.
pub const SCHEMA: u32 = 1;

/// Functions and lines that are listed.
const MOST: usize = 100;

/// A whole summary.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of the rules that told phases and activities.
    pub rules: u32,
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
    /// Shares by row.
    pub summary: BTreeMap<&'static str, f64>,
    /// The same with intervals, and those of phases and activities.
    pub intervals: Intervals,
    /// Shares by phase.
    pub phases: BTreeMap<&'static str, f64>,
    /// Shares by activity.
    pub activities: BTreeMap<&'static str, f64>,
    /// Shares by phase, then activity; zeros left out. They sum to 1.
    pub matrix: BTreeMap<&'static str, BTreeMap<&'static str, f64>>,
    /// Computation versus other on the host, after itwinai's definition.
    pub itwinai: Itwinai,
    /// Python functions, those with the most own time first.
    pub functions: Vec<FunctionRow>,
    /// Python lines.
    pub lines: Vec<FunctionRow>,
    /// Native functions.
    pub native_functions: Vec<FunctionRow>,
    /// Threads.
    pub threads: Vec<Thread>,
    /// The sampler's figures.
    pub quality: Quality,
    /// What is missing of the recording.
    pub missing: Vec<String>,
}

/// A process.
#[derive(Clone, Debug, Serialize)]
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
    pub phases: BTreeMap<&'static str, f64>,
    /// Shares of that time by activity.
    pub activities: BTreeMap<&'static str, f64>,
}

/// A share's interval.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Interval {
    /// The share.
    pub share: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Ticks in which it was seen; below 30 the share should not be quoted.
    pub samples: u64,
}

/// Intervals of all shares.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Intervals {
    /// By row.
    pub summary: BTreeMap<&'static str, Interval>,
    /// By phase.
    pub phases: BTreeMap<&'static str, Interval>,
    /// By activity.
    pub activities: BTreeMap<&'static str, Interval>,
}

/// Computation versus other.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Itwinai {
    /// The host's time in operators over all.
    pub computation: f64,
    /// The rest.
    pub other: f64,
}

/// A function or line.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionRow {
    /// Its name.
    pub name: String,
    /// Its file, or a native function's module.
    pub file: String,
    /// The line; a function's first; null for native functions.
    pub line: Option<u32>,
    /// Own time.
    pub self_s: f64,
    /// Time on the stack.
    pub total_s: f64,
}

/// A thread.
#[derive(Clone, Debug, Serialize)]
pub struct Thread {
    /// Its tid.
    pub tid: i32,
    /// Its name.
    pub name: String,
    /// What it is, for people.
    pub role: &'static str,
    /// Time sampled.
    pub wall_s: f64,
    /// CPU time.
    pub cpu_s: f64,
    /// What it did most.
    pub main_activity: &'static str,
    /// The share of its time that it did that.
    pub main_share: f64,
}

/// Stop times.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StopTimes {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Longest.
    pub max: f64,
}

/// The sampler's figures.
#[derive(Clone, Debug, Serialize)]
pub struct Quality {
    /// Ticks a second that were carried out.
    pub rate_hz: f64,
    /// Rate that was asked for.
    pub asked_hz: f64,
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
    /// Threads that did not stop in time.
    pub stop_timeouts: u64,
    /// torchspy's own CPU time, in cores.
    pub own_cpu: f64,
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The report of a profile.
pub fn report(profile: &Profile, analysis: &Analysis) -> Report {
    let primary = analysis.primary();
    let empty = BTreeMap::new();
    let shares = |each: fn(&ProcessSummary) -> BTreeMap<&'static str, f64>| {
        primary.map_or(empty.clone(), each)
    };
    Report {
        schema: SCHEMA,
        rules: RULES_VERSION,
        torchspy: profile.run.torchspy.clone(),
        command: profile.run.command.clone(),
        host: profile.run.host.clone(),
        started_wall_ns: profile.run.started_wall_ns,
        duration_s: seconds(profile.end_ns.saturating_sub(profile.start_ns)),
        native: profile.run.native,
        processes: analysis
            .processes
            .iter()
            .map(|each| process(profile, each))
            .collect(),
        primary: analysis.primary,
        wall_s: primary.map_or(0.0, |process| seconds(process.wall_ns)),
        computation_label: primary.map_or("host computation", ProcessSummary::computation_label),
        summary: shares(summary_shares),
        intervals: primary.map(intervals).unwrap_or_default(),
        phases: shares(phase_shares),
        activities: shares(activity_shares),
        matrix: primary.map(matrix).unwrap_or_default(),
        itwinai: primary.map(itwinai).unwrap_or_default(),
        functions: primary.map_or(Vec::new(), |process| {
            process
                .hot
                .python
                .iter()
                .take(MOST)
                .filter_map(|time| function_row(profile, time))
                .collect()
        }),
        lines: primary.map_or(Vec::new(), |process| {
            process
                .hot
                .lines
                .iter()
                .take(MOST)
                .filter_map(|time| line_row(profile, time))
                .collect()
        }),
        native_functions: primary.map_or(Vec::new(), |process| {
            process
                .hot
                .native
                .iter()
                .take(MOST)
                .filter_map(|time| function_row(profile, time))
                .collect()
        }),
        threads: primary.map_or(Vec::new(), |process| {
            process
                .threads
                .iter()
                .filter_map(|each| thread(profile, each))
                .collect()
        }),
        quality: quality(&analysis.quality),
        missing: profile.missing.clone(),
    }
}

/// The report as JSON text, indented, with a line feed at its end.
///
/// # Errors
/// None in practice: the structures hold nothing that JSON cannot.
pub fn render_json(profile: &Profile, analysis: &Analysis) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string_pretty(&report(profile, analysis))?;
    text.push('\n');
    Ok(text)
}

fn summary_shares(process: &ProcessSummary) -> BTreeMap<&'static str, f64> {
    process
        .rows
        .iter()
        .map(|(row, _, share)| (row.name(), share.value))
        .collect()
}

fn phase_shares(process: &ProcessSummary) -> BTreeMap<&'static str, f64> {
    process
        .phases
        .iter()
        .map(|(phase, share)| (phase.name(), share.value))
        .collect()
}

fn activity_shares(process: &ProcessSummary) -> BTreeMap<&'static str, f64> {
    process
        .activities
        .iter()
        .map(|(activity, share)| (activity.name(), share.value))
        .collect()
}

fn interval(share: &Share) -> Interval {
    Interval {
        share: share.value,
        low: share.low,
        high: share.high,
        samples: share.samples,
    }
}

fn intervals(process: &ProcessSummary) -> Intervals {
    let rows = process
        .rows
        .iter()
        .map(|(row, _, share): &(SummaryRow, u64, Share)| (row.name(), interval(share)));
    let phases = process
        .phases
        .iter()
        .map(|(phase, share)| (phase.name(), interval(share)));
    let activities = process
        .activities
        .iter()
        .map(|(activity, share)| (activity.name(), interval(share)));
    Intervals {
        summary: rows.collect(),
        phases: phases.collect(),
        activities: activities.collect(),
    }
}

fn matrix(process: &ProcessSummary) -> BTreeMap<&'static str, BTreeMap<&'static str, f64>> {
    let total = process.matrix.total().max(1) as f64;
    let cells = |phase: Phase| -> BTreeMap<&'static str, f64> {
        Activity::ALL
            .iter()
            .map(|&activity| (activity.name(), process.matrix.cell(phase, activity)))
            .filter(|&(_, ns)| ns > 0)
            .map(|(name, ns)| (name, ns as f64 / total))
            .collect()
    };
    Phase::ALL
        .iter()
        .map(|&phase| (phase.name(), cells(phase)))
        .filter(|(_, cells)| !cells.is_empty())
        .collect()
}

fn itwinai(process: &ProcessSummary) -> Itwinai {
    let counts = process.itwinai;
    let total = (counts.computation_ns + counts.other_ns).max(1) as f64;
    Itwinai {
        computation: counts.computation_ns as f64 / total,
        other: counts.other_ns as f64 / total,
    }
}

fn process(profile: &Profile, summary: &ProcessSummary) -> Process {
    let info = profile
        .processes
        .get(summary.process.index())
        .map(|process| process.info.clone())
        .unwrap_or_default();
    let (role, ranks, worker) = match summary.role {
        Role::Launcher => ("launcher", (None, None, None), None),
        Role::Trainer {
            rank,
            world_size,
            local_rank,
        } => ("trainer", (rank, world_size, local_rank), None),
        Role::DataLoaderWorker { number, .. } => {
            ("dataloader_worker", (None, None, None), Some(number))
        }
        Role::Other => ("other", (None, None, None), None),
    };
    let text = |value: String| (!value.is_empty()).then_some(value);
    let sampled = summary.wall_ns > 0;
    let shares = |each: fn(&ProcessSummary) -> BTreeMap<&'static str, f64>| {
        if sampled {
            each(summary)
        } else {
            BTreeMap::new()
        }
    };
    Process {
        pid: info.pid,
        parent_pid: info.parent_pid,
        role,
        rank: ranks.0,
        world_size: ranks.1,
        local_rank: ranks.2,
        worker,
        python: text(info.python),
        torch: text(info.torch),
        cuda: info.has_cuda,
        command: info.command,
        note: text(info.note),
        cpu_s: seconds(summary.cpu_ns),
        wall_s: seconds(summary.wall_ns),
        training_tid: summary
            .training_thread
            .and_then(|thread| profile.threads.get(thread.index()))
            .map(|thread| thread.tid),
        summary: shares(summary_shares),
        phases: shares(phase_shares),
        activities: shares(activity_shares),
    }
}

fn named(profile: &Profile, id: FunctionId) -> Option<&Function> {
    profile.functions.get(id.index())
}

fn function_row(profile: &Profile, time: &FunctionTime) -> Option<FunctionRow> {
    let function = named(profile, time.function)?;
    Some(FunctionRow {
        name: function.name.clone(),
        file: function.file.clone(),
        line: function.is_python.then_some(function.first_line),
        self_s: seconds(time.self_ns),
        total_s: seconds(time.total_ns),
    })
}

fn line_row(profile: &Profile, time: &LineTime) -> Option<FunctionRow> {
    let function = named(profile, time.function)?;
    Some(FunctionRow {
        name: function.name.clone(),
        file: function.file.clone(),
        line: Some(time.line),
        self_s: seconds(time.self_ns),
        total_s: seconds(time.total_ns),
    })
}

fn thread(profile: &Profile, summary: &ThreadSummary) -> Option<Thread> {
    let info = profile.threads.get(summary.thread.index())?;
    Some(Thread {
        tid: info.tid,
        name: info.name.clone(),
        role: summary.role,
        wall_s: seconds(summary.wall_ns),
        cpu_s: seconds(summary.cpu_ns),
        main_activity: summary.main_activity.name(),
        main_share: summary.main_share,
    })
}

fn quality(summary: &QualitySummary) -> Quality {
    let us = |ns: u64| ns as f64 / 1e3;
    Quality {
        rate_hz: summary.rate_hz,
        asked_hz: summary.asked_hz,
        ticks: summary.ticks,
        late_ticks: summary.late_ticks,
        missed_ticks: summary.missed_ticks,
        samples: summary.samples,
        fresh: summary.fresh,
        captures: BTreeMap::from([
            ("stopped", summary.stopped),
            ("asleep", summary.asleep),
            ("unstopped", summary.unstopped),
            ("reused", summary.reused),
            ("unread", summary.unread),
        ]),
        stops: summary.stops,
        stop_us: StopTimes {
            p50: us(summary.stop_p50_ns),
            p99: us(summary.stop_p99_ns),
            max: us(summary.stop_max_ns),
        },
        stopped_share: summary.stopped_share,
        rooted_share: summary.rooted_share,
        merged_share: summary.merged_share,
        partial: summary
            .partial
            .iter()
            .map(|&(reason, count)| (reason.name(), count))
            .collect(),
        guessed_frames: summary.guessed_frames,
        guessed_stacks: summary.guessed_stacks,
        unclassified: summary.unclassified,
        lost: summary.lost,
        skipped_for_budget: summary.skipped_for_budget,
        stop_timeouts: summary.stop_timeouts,
        own_cpu: summary.own_cpu,
    }
}
