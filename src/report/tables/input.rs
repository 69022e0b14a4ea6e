//! How batches are made: by DataLoader workers while the training thread waits, or by the training
//! thread.

use super::waits::{At, at};
use crate::analysis::Analysis;
use crate::analysis::input_queue::TaskTime;
use crate::analysis::intervals::Share;
use crate::model::as_json::name;
use crate::model::input::InputTask;
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use schemars::JsonSchema;
use serde::Serialize;

/// Maximum number of lines listed per task.
const MOST_LINES: usize = 10;

/// Making batches.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Input {
    /// What workers did while the training thread waited for them; null without such waits.
    pub workers: Option<Workers>,
    /// What the training thread did itself; null if it made none.
    pub own: Option<OwnInput>,
}

/// What DataLoader workers did while the training thread waited for them.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Workers {
    /// How long it waited.
    pub waited_s: f64,
    /// Mean number of live workers during the waits.
    pub workers: f64,
    /// The share of their time in which they did not wait for a request for a batch.
    pub busy: Share,
    /// By task, as shares of their time.
    pub tasks: Vec<Task>,
}

/// What the training thread did to make batches itself.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct OwnInput {
    pub seconds: f64,
    /// As a share of its wall time.
    pub share: Share,
    /// By task, as shares of its wall time.
    pub tasks: Vec<Task>,
}

/// One task.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Task {
    /// `decode`, `transform`, `collate`, `read`, `send`, `dataset`, `idle`, `gil_wait`, `cpu_wait`,
    /// `other`.
    #[serde(serialize_with = "name")]
    #[schemars(with = "String")]
    pub task: InputTask,
    /// Time, summed over all workers.
    pub seconds: f64,
    pub share: Share,
    /// Lines, by descending time.
    pub lines: Vec<TaskLine>,
}

/// A line of a task.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct TaskLine {
    /// The line; null if no Python frame was read.
    pub at: Option<At>,
    pub seconds: f64,
}

/// Input of the primary process.
pub fn input(profile: &Profile, analysis: &Analysis) -> Option<Input> {
    let waits = analysis.primary_waits()?;
    let tasks = |tasks: &[TaskTime]| tasks.iter().map(|each| task(profile, each)).collect();
    let workers = waits.worker_activity.as_ref().map(|workers| Workers {
        waited_s: seconds(workers.waited_ns),
        workers: workers.workers,
        busy: workers.busy,
        tasks: tasks(&workers.tasks),
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
        task: time.task,
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
