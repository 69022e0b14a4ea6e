//! Tasks of asyncio, as a dump shows them.

use super::dump::Place;

/// A task that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsyncTask {
    pub name: String,
    /// The thread that runs its event loop, by tid; `None` if that was not found.
    pub tid: Option<i32>,
    pub state: TaskState,
    /// The names of the tasks that it awaits.
    pub awaits: Vec<String>,
    /// Its coroutine and what that awaits, innermost first; empty while it runs: its frames are
    /// those of its thread.
    pub frames: Vec<Place>,
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskState {
    Running,
    /// What it awaited is there: it waits for its event loop.
    Ready,
    /// The same, for the first time.
    NotStarted,
    Waiting,
}

impl TaskState {
    pub const ALL: &[Self] = &[
        TaskState::Running,
        TaskState::Ready,
        TaskState::NotStarted,
        TaskState::Waiting,
    ];

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            TaskState::Running => "running",
            TaskState::Ready => "ready",
            TaskState::NotStarted => "not_started",
            TaskState::Waiting => "waiting",
        }
    }
}
