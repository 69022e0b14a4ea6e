//! What a process was measured under. What is not known is absent, and never guessed.

use super::summary::ProcessSummary;
use crate::model::category::Phase;
use crate::model::profile::{Profile, Role};
use crate::model::progress::{CounterInfo, CounterKind, facts};
use std::collections::BTreeSet;

/// Whether modules ran in training or in evaluation mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All of forward was in training mode.
    Train,
    /// All of it was in evaluation mode.
    Evaluate,
    /// Some of it was in either.
    Both,
}

impl Mode {
    /// For people and machines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Evaluate => "eval",
            Self::Both => "train and eval",
        }
    }
}

/// The conditions of one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// Samples in a batch, as the loaders' batch samplers say; of several loaders that of those
    /// that trained.
    pub batch_size: Option<u64>,
    /// DataLoader workers, likewise.
    pub workers: Option<u64>,
    /// `pin_memory`.
    pub pin_memory: Option<bool>,
    /// `prefetch_factor`.
    pub prefetch: Option<u64>,
    /// Class of the dataset.
    pub dataset: Option<String>,
    /// The optimizer's class.
    pub optimizer: Option<String>,
    /// Type of its first parameters.
    pub parameter_dtype: Option<String>,
    /// The type of an autocast that was on.
    pub autocast: Option<String>,
    /// Training or evaluation.
    pub mode: Option<Mode>,
    /// Torch's version.
    pub torch: Option<String>,
    /// The CUDA version that it was built for.
    pub torch_cuda: Option<String>,
    /// Python's version.
    pub python: Option<String>,
    /// Ranks in the job.
    pub world_size: Option<u32>,
    /// `OMP_NUM_THREADS` of the environment.
    pub omp_num_threads: Option<u64>,
    /// The quota of the process's cgroups, in CPUs.
    pub cpu_quota: Option<f64>,
    /// CPUs that the process may run on.
    pub affinity_cpus: Option<u64>,
}

/// The conditions of a process.
pub fn conditions(profile: &Profile, summary: &ProcessSummary) -> Conditions {
    let loaders = loaders(profile, summary);
    let of_loaders = |name: &str| agreed(loaders.iter().map(|loader| loader.fact(name)));
    let optimizers = |name: &str| {
        let own = counters(profile, summary, CounterKind::ParameterVersion);
        agreed(own.map(|counter| counter.fact(name)))
    };
    let classes = counters(profile, summary, CounterKind::ParameterVersion);
    let said = |name: &str| {
        let mut own = profile.conditions.iter().rev();
        own.find(|each| each.process == summary.process && each.name == name)
            .map(|each| each.value.clone())
    };
    let info = profile
        .processes
        .get(summary.process.index())
        .map(|process| &process.info);
    let text = |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned();
    let environment = |name: &str| {
        let mut all = info?.environment.iter();
        all.find(|(each, _)| each == name)
            .map(|(_, value)| value.clone())
    };
    Conditions {
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
        world_size: match summary.role {
            Role::Trainer { world_size, .. } => world_size,
            _ => None,
        },
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

/// What all say, where they say the same.
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

/// The loaders that trained; all of them where none did.
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

/// By what forward's modules said; `None` without forward, or where too little of it was read.
fn mode(summary: &ProcessSummary) -> Option<Mode> {
    let tree = &summary.modules;
    let known_ns = tree.forward_ns.saturating_sub(tree.unread_ns);
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
