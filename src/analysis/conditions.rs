//! The conditions under which a process was measured. An unknown value is absent, never guessed.

use super::summary::ProcessSummary;
use crate::model::as_json::name_or_null;
use crate::model::category::Phase;
use crate::model::named::named;
use crate::model::profile::Profile;
use crate::model::progress::{CounterInfo, CounterKind, facts};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;

/// Version of the JSON of conditions. Keys are only ever added within a version.
pub const VERSION: u32 = 1;

named!(
    /// Whether modules ran in training or in evaluation mode.
    Mode {
        /// All of forward was in training mode.
        Train = "train",
        /// All of it was in evaluation mode.
        Evaluate = "eval",
        /// Some of forward was in either mode.
        Both = "train and eval",
    }
);

/// Conditions of the process.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
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
    /// Type of an autocast that was active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autocast: Option<String>,
    /// `train`, `eval`, or `train and eval`.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "name_or_null"
    )]
    #[schemars(with = "Option<String>")]
    pub mode: Option<Mode>,
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

pub fn conditions(profile: &Profile, summary: &ProcessSummary) -> Conditions {
    let loaders = loaders(profile, summary);
    let of_loaders = |name: &str| agreed(loaders.iter().map(|loader| loader.fact(name)));
    let optimizers = |name: &str| {
        let own = counters(profile, summary, CounterKind::ParameterVersion);
        agreed(own.map(|counter| counter.fact(name)))
    };
    let classes = counters(profile, summary, CounterKind::ParameterVersion);
    let said = |name: &str| {
        let mut own = profile.sideband.conditions.iter().rev();
        own.find(|each| each.process == summary.process && each.name == name)
            .map(|each| each.value.clone())
    };
    let info = profile
        .process(summary.process)
        .map(|process| &process.info);
    let text = |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned();
    let environment = |name: &str| {
        let mut all = info?.environment.iter();
        all.find(|(each, _)| each == name)
            .map(|(_, value)| value.clone())
    };
    Conditions {
        version: VERSION,
        batch_size: number(of_loaders(facts::BATCH_SIZE)),
        workers: number(of_loaders(facts::WORKERS)),
        pin_memory: of_loaders(facts::PIN_MEMORY).and_then(|text| text.parse().ok()),
        prefetch: number(of_loaders(facts::PREFETCH)),
        dataset: of_loaders(facts::DATASET),
        optimizer: agreed(classes.map(|counter| Some(counter.class.as_str()))),
        parameter_dtype: optimizers(facts::PARAMETER_DTYPE),
        autocast: said(facts::AUTOCAST),
        mode: mode(summary),
        torch: text(info.map(|info| &info.torch)),
        torch_cuda: said(facts::TORCH_CUDA),
        python: text(info.map(|info| &info.python)),
        world_size: summary.role.world_size(),
        omp_num_threads: number(environment("OMP_NUM_THREADS")),
        cpu_quota: said(facts::CPU_QUOTA)
            .and_then(|text| text.parse().ok())
            .filter(|cpus: &f64| cpus.is_finite() && *cpus > 0.0),
        affinity_cpus: number(said(facts::AFFINITY)),
    }
}

fn number(text: Option<String>) -> Option<u64> {
    text?.trim().parse().ok()
}

/// The value, if all that have one agree.
fn agreed<'a>(values: impl Iterator<Item = Option<&'a str>>) -> Option<String> {
    let distinct: BTreeSet<Option<&str>> = values.collect();
    match distinct.into_iter().collect::<Vec<_>>().as_slice() {
        [Some(value)] => Some((*value).to_owned()),
        _ => None,
    }
}

fn counters<'p>(
    profile: &'p Profile,
    summary: &'p ProcessSummary,
    kind: CounterKind,
) -> impl Iterator<Item = &'p CounterInfo> {
    profile
        .counters
        .iter()
        .filter(move |counter| counter.process == summary.process && counter.kind == kind)
}

/// The loaders that trained, or all if none did.
fn loaders<'p>(profile: &'p Profile, summary: &'p ProcessSummary) -> Vec<&'p CounterInfo> {
    let all: Vec<&CounterInfo> = counters(profile, summary, CounterKind::Batches).collect();
    let trained = summary.progress.as_ref().map(|progress| &progress.trained);
    let training: Vec<&CounterInfo> = all
        .iter()
        .copied()
        .filter(|counter| trained.is_some_and(|trained| trained.contains(&counter.number)))
        .collect();
    if training.is_empty() { all } else { training }
}

/// The mode of forward's modules; `None` without forward, or if too little of it was read.
fn mode(summary: &ProcessSummary) -> Option<Mode> {
    let tree = &summary.modules;
    let known_ns = tree.forward_ns.saturating_sub(tree.unknown_ns);
    let evaluated: u64 = tree
        .modules
        .iter()
        .filter(|module| module.depth == 0)
        .map(|module| module.eval_ns)
        .sum();
    let forward = summary
        .phases
        .iter()
        .find(|(phase, _)| *phase == Phase::Forward);
    if known_ns == 0 || forward.is_none_or(|(_, share)| share.is_uncertain()) {
        return None;
    }
    Some(match evaluated {
        0 => Mode::Train,
        all if all >= known_ns => Mode::Evaluate,
        _ => Mode::Both,
    })
}
