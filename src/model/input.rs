//! What functions say of how batches are made.

use super::named::named;

named!(
    /// What making a batch consists of, and what a worker does besides.
    #[derive(Default)]
    InputTask {
        /// From bytes to arrays: images, audio, video, compressed data.
        Decode = "decode",
        /// From arrays to arrays: resizing, augmentation, tokenization.
        Transform = "transform",
        /// From samples to a batch.
        Collate = "collate",
        /// Files, and what is loaded from them as it stands.
        Read = "read",
        /// Batches are handed to the trainer.
        Send = "send",
        /// The dataset's own code, of which no row says more.
        Dataset = "dataset",
        /// Waits for the trainer to ask for a batch.
        Idle = "idle",
        /// Waits for the worker's own interpreter lock.
        GilWait = "gil_wait",
        /// Could run, but has no CPU.
        CpuWait = "cpu_wait",
        /// None of these: start, end, the loader's own code.
        #[default]
        Other = "other",
    }
);

/// What one function says of the task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InputPart {
    #[default]
    None,
    Task(InputTask),
    /// The fetch of one batch: outward of it there is no dataset.
    Fetch,
    Loop,
    Own,
}
