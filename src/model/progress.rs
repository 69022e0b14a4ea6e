//! How far a training run is: counters in the target that were read with the samples, and the
//! conditions that it runs under.

use super::ids::{CounterId, ProcessId, ThreadId};
use serde::{Deserialize, Serialize};

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CounterKind {
    /// Batches that a DataLoader's iterator has given out since it began its pass: `_num_yielded`.
    Batches,
    /// In-place changes of one parameter that an optimizer updates: a constant number of them for
    /// each of its steps.
    ParameterVersion,
    /// Optimizer steps, as the Transformers Trainer counts them: `state.global_step`.
    TrainerSteps,
    /// Optimizer steps, as Lightning counts them.
    LightningSteps,
    /// Epochs that Lightning has ended.
    LightningEpochs,
}

impl CounterKind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Batches,
        Self::ParameterVersion,
        Self::TrainerSteps,
        Self::LightningSteps,
        Self::LightningEpochs,
    ];

    /// Its name in texts for machines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Batches => "batches",
            Self::ParameterVersion => "parameter_version",
            Self::TrainerSteps => "trainer_steps",
            Self::LightningSteps => "lightning_steps",
            Self::LightningEpochs => "lightning_epochs",
        }
    }
}

/// A counter of one object of the target.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CounterInfo {
    /// Its process.
    pub process: ProcessId,
    /// Counts the objects of the process whose counters were read, from 0: two objects are two
    /// numbers.
    pub number: u32,
    /// What it counts.
    pub kind: CounterKind,
    /// The object's class: `_MultiProcessingDataLoaderIter`, `AdamW`.
    pub class: String,
    /// The file of the user's code that holds the object, and that code's first line; empty and 0
    /// where not known.
    pub file: String,
    /// See `file`.
    pub line: u32,
    /// What else the object says, by name: see [`facts`].
    pub facts: Vec<(String, String)>,
}

impl CounterInfo {
    /// What the object says under this name.
    pub fn fact(&self, name: &str) -> Option<&str> {
        let mut facts = self.facts.iter();
        facts
            .find(|(each, _)| each == name)
            .map(|(_, value)| value.as_str())
    }
}

/// Names of facts and conditions.
pub mod facts {
    /// The function that holds the object.
    pub const FUNCTION: &str = "function";
    /// Samples in a batch, as the batch sampler says.
    pub const BATCH_SIZE: &str = "batch_size";
    /// DataLoader workers.
    pub const WORKERS: &str = "workers";
    /// `pin_memory`: `true` or `false`.
    pub const PIN_MEMORY: &str = "pin_memory";
    /// `prefetch_factor`.
    pub const PREFETCH: &str = "prefetch";
    /// Class of the dataset.
    pub const DATASET: &str = "dataset";
    /// Type of an optimizer's first parameters: `float32`.
    pub const PARAMETER_DTYPE: &str = "parameter_dtype";
    /// How many parameters an optimizer has in its first group.
    pub const PARAMETERS: &str = "parameters";
    /// Torch's version.
    pub const TORCH: &str = "torch";
    /// The CUDA version that torch was built for.
    pub const TORCH_CUDA: &str = "torch_cuda";
    /// The quota of the process's cgroups, in CPUs.
    pub const CPU_QUOTA: &str = "cpu_quota";
    /// How many CPUs the process may run on.
    pub const AFFINITY: &str = "affinity_cpus";
    /// The type of an autocast that was on the stack: `bfloat16`.
    pub const AUTOCAST: &str = "autocast";
}

/// A reading of a counter that gave another value than the one before, or the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressPoint {
    /// The counter.
    pub counter: CounterId,
    /// The thread with whose sample it was read.
    pub thread: ThreadId,
    /// When it was last read before, with the old value, CLOCK_MONOTONIC; equal to `time_ns` at the
    /// first reading.
    pub before_ns: u64,
    /// When it was read.
    pub time_ns: u64,
    /// What it was.
    pub value: u64,
}

/// Something that a process runs under, and that is no counter's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Condition {
    /// The process.
    pub process: ProcessId,
    /// One of [`facts`].
    pub name: String,
    /// Its value, as text.
    pub value: String,
}
