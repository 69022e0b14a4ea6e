//! What functions say of how batches are made.

/// What making a batch consists of, and what a worker does besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum InputTask {
    /// From bytes to arrays: images, audio, video, compressed data.
    Decode,
    /// From arrays to arrays: resizing, augmentation, tokenization.
    Transform,
    /// From samples to a batch.
    Collate,
    /// Files, and what is loaded from them as it stands.
    Read,
    /// Batches are handed to the trainer.
    Send,
    /// The dataset's own code, of which no row says more.
    Dataset,
    /// Waits for the trainer to ask for a batch.
    Idle,
    /// Waits for the worker's own interpreter lock.
    GilWait,
    /// Could run, but has no CPU.
    CpuWait,
    /// None of these: start, end, the loader's own code.
    Other,
}

impl InputTask {
    /// Every task, in the order of reports.
    pub const ALL: [InputTask; 10] = [
        InputTask::Decode,
        InputTask::Transform,
        InputTask::Collate,
        InputTask::Read,
        InputTask::Send,
        InputTask::Dataset,
        InputTask::Idle,
        InputTask::GilWait,
        InputTask::CpuWait,
        InputTask::Other,
    ];

    /// The stable name, as it stands in JSON.
    pub fn name(self) -> &'static str {
        match self {
            InputTask::Decode => "decode",
            InputTask::Transform => "transform",
            InputTask::Collate => "collate",
            InputTask::Read => "read",
            InputTask::Send => "send",
            InputTask::Dataset => "dataset",
            InputTask::Idle => "idle",
            InputTask::GilWait => "gil_wait",
            InputTask::CpuWait => "cpu_wait",
            InputTask::Other => "other",
        }
    }
}

/// What one function tells of the task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InputPart {
    /// Nothing.
    #[default]
    None,
    /// The task.
    Task(InputTask),
    /// The fetch of one batch: outward of it there is no dataset.
    Fetch,
    /// The worker's loop.
    Loop,
    /// The user's own code.
    Own,
}
