//! Making of batches: what a function's rules define for it.

use super::named::named;

named!(
    /// The tasks of making a batch, and other activities of a worker.
    #[derive(Default)]
    InputTask {
        /// From bytes to arrays: images, audio, video, compressed data.
        Decode = "decode",
        /// From arrays to arrays: resizing, augmentation, tokenization.
        Transform = "transform",
        /// From samples to a batch.
        Collate = "collate",
        /// Reading files, and loading from them without decoding.
        Read = "read",
        /// Batches are handed to the trainer.
        Send = "send",
        /// The dataset's own code that no row classifies further.
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

impl InputTask {
    /// Whether it is work, and neither a wait nor other code.
    pub fn is_work(self) -> bool {
        !matches!(self, Self::Idle | Self::GilWait | Self::CpuWait)
    }
}

/// What a function's rules define for the task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InputPart {
    #[default]
    None,
    Task(InputTask),
    /// The fetch of one batch: frames below it do not belong to the dataset.
    Fetch,
    Loop,
    Own,
}
