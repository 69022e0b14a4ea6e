//! How far a training run is: counters in the target that were read with the samples, and the
//! conditions that it runs under.

use super::ids::{CounterId, ProcessId, ThreadId};
use super::named::named;
use serde::{Deserialize, Serialize};

named!(
    #[derive(Serialize, Deserialize)]
    CounterKind {
        /// Batches that a DataLoader's iterator has given out since it began its pass:
        /// `_num_yielded`.
        Batches = "batches",
        /// In-place changes of one parameter that an optimizer updates: a constant number of them
        /// for each of its steps.
        ParameterVersion = "parameter_version",
        /// Optimizer steps, as the Transformers Trainer counts them: `state.global_step`.
        TrainerSteps = "trainer_steps",
        /// Optimizer steps, as Lightning counts them.
        LightningSteps = "lightning_steps",
        /// Epochs that Lightning has ended.
        LightningEpochs = "lightning_epochs",
        /// Changes of the step count in an optimizer's state: a constant number of them for each of
        /// its steps. Fused optimizers, and those of `fully_shard`, change parameters without
        /// raising their version.
        OptimizerState = "optimizer_state",
    }
);

impl CounterKind {
    /// Whether it counts an optimizer's steps: batches are evaluated, too, and at another pace.
    pub fn counts_steps(self) -> bool {
        match self {
            Self::ParameterVersion
            | Self::OptimizerState
            | Self::TrainerSteps
            | Self::LightningSteps => true,
            Self::Batches | Self::LightningEpochs => false,
        }
    }
}

/// Why means leave out the length of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A pass over the data began in it: it has what lies between two passes.
    NewPass,
    /// It is one of the first of the program, which are slow.
    SlowStart,
    /// torch.compile was at work in it, or is in a later one of the first half.
    Compile,
    /// torch.profiler ran in a part of it (`record --trace`), which slows steps down.
    Profiled,
}

impl Why {
    /// The reason in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::NewPass => "new pass",
            Self::SlowStart => "slow start",
            Self::Compile => "compile",
            Self::Profiled => "torch.profiler",
        }
    }
}

/// A step whose length means leave out. Times are of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOutStep {
    pub process: ProcessId,
    pub start_ns: u64,
    pub end_ns: u64,
    pub why: Why,
}

/// A counter of one object of the target.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CounterInfo {
    pub process: ProcessId,
    /// Counts the objects of the process whose counters were read, from 0: two objects are two
    /// numbers.
    pub number: u32,
    pub kind: CounterKind,
    /// The object's class: `_MultiProcessingDataLoaderIter`, `AdamW`.
    pub class: String,
    /// The file of the user's code that holds the object, and that code's first line; empty and 0
    /// where not known.
    pub file: String,
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
    pub const WORKERS: &str = "workers";
    /// `pin_memory`: `true` or `false`.
    pub const PIN_MEMORY: &str = "pin_memory";
    pub const PREFETCH: &str = "prefetch";
    pub const DATASET: &str = "dataset";
    /// Type of an optimizer's first parameters: `float32`.
    pub const PARAMETER_DTYPE: &str = "parameter_dtype";
    /// How many parameters an optimizer has in its first group.
    pub const PARAMETERS: &str = "parameters";
    pub const TORCH: &str = "torch";
    /// The CUDA version that torch was built for.
    pub const TORCH_CUDA: &str = "torch_cuda";
    /// The quota of the process's cgroups, in CPUs.
    pub const CPU_QUOTA: &str = "cpu_quota";
    /// How many CPUs the process may run on.
    pub const AFFINITY: &str = "affinity_cpus";
    /// The type of an autocast that was on the stack: `bfloat16`.
    pub const AUTOCAST: &str = "autocast";
    /// The rank's groups along each dimension of a device mesh
    /// ([`text_of`](crate::model::parallel::text_of)).
    pub const DEVICE_MESH: &str = "device_mesh";
    /// The same of the groups that Megatron Core keeps.
    pub const PARALLEL_GROUPS: &str = "parallel_groups";
    /// What NCCL reported while no step ended ([`KeptRas`](crate::model::nccl_ras::KeptRas)); the
    /// last one counts.
    pub const NCCL_RAS: &str = "nccl_ras";
    /// Containers that grow (`crate::model::containers`).
    pub const GROWING_CONTAINERS: &str = "growing_containers";
    /// What modules and optimizers hold (`crate::model::held::KeptHeld`).
    pub const HELD: &str = "held";
    /// Why torch's allocator of device memory was not read, if it never was.
    pub const ALLOCATOR_UNREAD: &str = "allocator_unread";
    /// What torch.profiler gave in its window, reduced (`crate::trace::kept`).
    pub const TORCH_TRACE: &str = "torch_trace";
}

/// A reading of a counter that gave another value than the one before, or the first or the last
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressPoint {
    pub counter: CounterId,
    /// The thread with whose sample it was read.
    pub thread: ThreadId,
    /// When it was last read before, with the old value, CLOCK_MONOTONIC; equal to `time_ns` at the
    /// first reading.
    pub before_ns: u64,
    pub time_ns: u64,
    pub value: u64,
}

/// Something that a process runs under, and that is no counter's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Condition {
    pub process: ProcessId,
    /// One of [`facts`].
    pub name: String,
    pub value: String,
}
