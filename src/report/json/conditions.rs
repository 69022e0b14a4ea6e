//! The part of the schema that says what was measured. What is not known is absent.

use crate::analysis::conditions::{Conditions as Analysed, conditions as analysed};
use crate::analysis::summary::ProcessSummary;
use crate::model::profile::Profile;
use schemars::JsonSchema;
use serde::Serialize;

/// Version of this part. Keys are only ever added within a version.
pub const VERSION: u32 = 1;

/// Conditions of the process.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Conditions {
    /// [`VERSION`].
    pub version: u32,
    /// Samples in a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<u64>,
    /// DataLoader workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<u64>,
    /// `pin_memory` of the DataLoader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin_memory: Option<bool>,
    /// `prefetch_factor` of the DataLoader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefetch: Option<u64>,
    /// Class of the dataset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// Class of the optimizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<String>,
    /// Type of the optimizer's first parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameter_dtype: Option<String>,
    /// Type of an autocast that was on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autocast: Option<String>,
    /// `train`, `eval`, or `train and eval`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<&'static str>,
    /// Torch's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub torch: Option<String>,
    /// The CUDA version that torch was built for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub torch_cuda: Option<String>,
    /// Python's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Ranks in the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub world_size: Option<u32>,
    /// `OMP_NUM_THREADS` of the environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omp_num_threads: Option<u64>,
    /// The quota of the process's cgroups, in CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_quota: Option<f64>,
    /// CPUs that the process may run on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity_cpus: Option<u64>,
}

/// The conditions of a process.
pub(super) fn conditions(profile: &Profile, process: &ProcessSummary) -> Conditions {
    let Analysed {
        batch_size,
        workers,
        pin_memory,
        prefetch,
        dataset,
        optimizer,
        parameter_dtype,
        autocast,
        mode,
        torch,
        torch_cuda,
        python,
        world_size,
        omp_num_threads,
        cpu_quota,
        affinity_cpus,
    } = analysed(profile, process);
    Conditions {
        version: VERSION,
        batch_size,
        workers,
        pin_memory,
        prefetch,
        dataset,
        optimizer,
        parameter_dtype,
        autocast,
        mode: mode.map(|mode| mode.name()),
        torch,
        torch_cuda,
        python,
        world_size,
        omp_num_threads,
        cpu_quota,
        affinity_cpus,
    }
}
