//! The part of the schema that is about waits and input.

use crate::analysis::Analysis;
use crate::analysis::input_queue::TaskTime;
use crate::analysis::intervals::Share;
use crate::analysis::stack_facts::Line;
use crate::analysis::waits::{Holder, WaitTime};
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use schemars::JsonSchema;
use serde::Serialize;

/// Waits that are listed, and lines of each task.
const MOST: usize = 500;
const MOST_LINES: usize = 10;

/// A source line.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct At {
    /// The file.
    pub file: String,
    /// The function.
    pub function: String,
    /// The line.
    pub line: u32,
}

/// One thing that the training thread waited for, at one line.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Wait {
    /// `gpu_sync`, `gpu_copy`, `collective`, `input_queue`, `gil`, `autograd`, `lock`, `disk`, `socket`, `io`, `child`,
    /// `events`, `sleep`, `cpu`, `stopped`.
    pub kind: &'static str,
    /// What exactly: the call, the collective, the system call.
    pub what: String,
    /// How long.
    pub seconds: f64,
    /// As a share of the training thread's wall time.
    pub share: f64,
    /// The same with its interval.
    pub interval: Share,
    /// The line; null where no Python frame was read.
    pub at: Option<At>,
    /// Whether the time is that of work which was queued on the GPU earlier, and not the line's own.
    pub earlier_work: bool,
    /// Of waits for the GIL: who held it, most time first.
    pub holders: Vec<GilHolder>,
}

/// Who held the GIL.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct GilHolder {
    /// The thread.
    pub tid: i32,
    /// Its name.
    pub thread: String,
    /// How long it was waited for.
    pub seconds: f64,
    /// Where it was; null where its stack was not read at that time.
    pub at: Option<At>,
}

/// Making batches.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Input {
    /// What workers did while the training thread waited for them; null without such waits.
    pub workers: Option<Workers>,
    /// What the training thread did itself; null if nothing.
    pub own: Option<OwnInput>,
}

/// What DataLoader workers did while the training thread waited for them.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Workers {
    /// How long it waited.
    pub waited_s: f64,
    /// Workers that lived, on average over the waits.
    pub workers: f64,
    /// The share of their time in which they did not wait to be asked for a batch.
    pub busy: Share,
    /// By task, as shares of their time.
    pub tasks: Vec<Task>,
}

/// What the training thread did to make batches itself.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct OwnInput {
    /// How long.
    pub seconds: f64,
    /// As a share of its wall time.
    pub share: Share,
    /// By task, as shares of its wall time.
    pub tasks: Vec<Task>,
}

/// One task.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Task {
    /// `decode`, `transform`, `collate`, `read`, `send`, `dataset`, `idle`, `gil_wait`, `cpu_wait`, `other`.
    pub task: &'static str,
    /// How long, of all workers together.
    pub seconds: f64,
    /// Its share.
    pub share: Share,
    /// Lines, most time first.
    pub lines: Vec<TaskLine>,
}

/// A line of a task.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct TaskLine {
    /// The line; null where no Python frame was read.
    pub at: Option<At>,
    /// How long.
    pub seconds: f64,
}

/// A line with its names.
pub(super) fn at(profile: &Profile, line: Option<Line>) -> Option<At> {
    let (function, line) = line?;
    let function = profile.functions.get(function.index())?;
    Some(At {
        file: function.file.clone(),
        function: function.name.clone(),
        line,
    })
}

/// The waits of the primary process.
pub(super) fn waits(profile: &Profile, analysis: &Analysis) -> Vec<Wait> {
    let rows = analysis
        .primary_waits()
        .map_or(&[][..], |waits| waits.rows.as_slice());
    rows.iter()
        .take(MOST)
        .map(|row| wait(profile, row))
        .collect()
}

fn wait(profile: &Profile, row: &WaitTime) -> Wait {
    Wait {
        kind: row.kind.name(),
        what: row.what.clone(),
        seconds: seconds(row.ns),
        share: row.share.value,
        interval: row.share,
        at: at(profile, row.at),
        earlier_work: row.kind.is_for_earlier_work(),
        holders: row
            .holders
            .iter()
            .filter_map(|each| holder(profile, each))
            .collect(),
    }
}

fn holder(profile: &Profile, holder: &Holder) -> Option<GilHolder> {
    let thread = profile.threads.get(holder.thread.index())?;
    Some(GilHolder {
        tid: thread.tid,
        thread: thread.name.clone(),
        seconds: seconds(holder.ns),
        at: at(profile, holder.at),
    })
}

/// The input of the primary process.
pub(super) fn input(profile: &Profile, analysis: &Analysis) -> Option<Input> {
    let waits = analysis.primary_waits()?;
    let tasks = |tasks: &[TaskTime]| tasks.iter().map(|each| task(profile, each)).collect();
    let workers = waits.meanwhile.as_ref().map(|meanwhile| Workers {
        waited_s: seconds(meanwhile.waited_ns),
        workers: meanwhile.workers,
        busy: meanwhile.busy,
        tasks: tasks(&meanwhile.tasks),
    });
    let own = waits.inline.as_ref().map(|inline| OwnInput {
        seconds: seconds(inline.ns),
        share: inline.share,
        tasks: tasks(&inline.tasks),
    });
    (workers.is_some() || own.is_some()).then_some(Input { workers, own })
}

fn task(profile: &Profile, time: &TaskTime) -> Task {
    Task {
        task: time.task.name(),
        seconds: seconds(time.ns),
        share: time.share,
        lines: time
            .lines
            .iter()
            .take(MOST_LINES)
            .map(|&(line, ns)| TaskLine {
                at: at(profile, line),
                seconds: seconds(ns),
            })
            .collect(),
    }
}
