//! The verdict: who is waiting for whom, with the figures that say so, what it would buy at most,
//! and one next step.
//!
//! What was not seen is not claimed. Where a cause needs a figure that is missing, there is no
//! verdict of that cause, and what is missing is said.
//!
//! | file | says |
//! |---|---|
//! | [`figures`] | what rules look at |
//! | [`rules`] | which figures make which cause |
//! | [`next_step`] | what to do about it, by the present settings |

pub mod figures;
pub mod next_step;
pub mod rules;

use super::Analysis;
use super::late_ranks::last_rank;
use super::summary::ProcessSummary;
use crate::model::facts::Line;
use crate::model::ids::ProcessId;
use crate::model::named::named;
use crate::model::profile::{Profile, Role};
use figures::{Figures, LastRank, Part, Ranks};
use next_step::{Cost, costs, next_step};
use rules::{CompetingCost, Finding, RULES};
use schemars::JsonSchema;
use serde::Serialize;

pub const VERDICT_RULES_VERSION: u32 = 3;
/// Ticks below which nothing is said, and below which nothing is said with confidence.
const FEW_TICKS: u64 = 100;
const MANY_TICKS: u64 = 500;
/// A cause must weigh this much more than the next to be the one.
pub const STANDS_OUT: f64 = 1.3;
/// The part of the wait in collectives for which one rank must be the last to be whom the others
/// wait for.
const STRAGGLES: u32 = 50;

/// What a training run is bound by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// By the work of making batches.
    InputWork,
    /// By storage that batches are read from.
    InputStorage,
    /// By the host's launches of kernels.
    Launch,
    /// By torch's work around operators that compute on the host.
    Dispatch,
    Python,
    /// By the GPU's multiprocessors.
    GpuCompute,
    /// By the GPU's memory.
    GpuMemory,
    /// By collectives.
    Communication,
    /// By waits for the GPU that leave it without work.
    Sync,
    /// By copies to and from the GPU.
    Copy,
    CpuStarved,
    /// By clocks that are held down.
    Throttled,
    /// By operators on the host, where no GPU is used.
    HostCompute,
    /// By OpenMP's barriers: more threads than CPUs.
    BarrierThreads,
    /// By OpenMP's barriers: some threads have more to do than others.
    BarrierUneven,
    /// By OpenMP's barriers: parallel regions that end before all threads have begun them.
    BarrierShort,
}

impl Cause {
    /// The stable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::InputWork | Self::InputStorage => "input-bound",
            Self::Launch => "launch-bound",
            Self::Python => "Python-bound",
            Self::GpuCompute | Self::GpuMemory => "GPU-bound",
            Self::Communication => "communication-bound",
            Self::Sync => "sync-bound",
            Self::Copy => "copy-bound",
            Self::CpuStarved => "CPU-starved",
            Self::Throttled => "throttled",
            Self::Dispatch => "dispatch-bound",
            Self::HostCompute => "host-compute-bound",
            Self::BarrierThreads | Self::BarrierUneven | Self::BarrierShort => "barrier-bound",
        }
    }

    /// What of it, where the name covers two.
    pub fn detail(self) -> Option<&'static str> {
        match self {
            Self::InputWork => Some("batch work"),
            Self::InputStorage => Some("storage"),
            Self::GpuCompute => Some("compute"),
            Self::GpuMemory => Some("DRAM"),
            Self::BarrierThreads => Some("more OpenMP threads than CPUs"),
            Self::BarrierUneven => Some("uneven OpenMP work"),
            Self::BarrierShort => Some("short parallel regions"),
            _ => None,
        }
    }

    /// What would have to be gone or free, for the upper bound.
    fn without(self) -> &'static str {
        match self {
            Self::InputWork | Self::InputStorage => "free input",
            Self::Launch => "free Python and launches",
            Self::Dispatch => "free dispatch",
            Self::Python => "free Python",
            Self::GpuCompute | Self::GpuMemory => "a host that costs nothing",
            Self::Communication => "free communication",
            Self::Sync => "no such waits",
            Self::Copy => "free copies",
            Self::CpuStarved => "as many CPUs as wanted",
            Self::Throttled | Self::HostCompute => "it gone",
            Self::BarrierThreads | Self::BarrierUneven | Self::BarrierShort => {
                "no waits at OpenMP barriers"
            }
        }
    }
}

named!(
    /// How sure a verdict is.
    Confidence {
        /// It fits, and other things were not seen that could speak against it, or it is near its
        /// thresholds.
        Low = "low",
        /// Some of what could speak against it was not seen.
        Medium = "medium",
        /// All that could speak against it was seen, and does not.
        High = "high",
    }
);

/// A figure with the thresholds that it passed.
#[derive(Clone, Copy, Debug, JsonSchema, PartialEq, Serialize)]
pub struct Evidence {
    /// Its name.
    pub figure: &'static str,
    /// Its value, a share of one.
    pub value: f64,
    /// It had to be as much.
    pub at_least: Option<f64>,
    /// It had to be no more.
    pub at_most: Option<f64>,
}

/// What would be gained at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// If this were so.
    pub without: &'static str,
    /// So many times as fast, at most.
    pub speedup: f64,
    /// A step now, and then at least, ns; `None` where no steps are known.
    pub step_ns: Option<(f64, f64)>,
}

#[derive(Clone, Debug)]
pub struct Verdict {
    /// The process that it is of: the primary one, or the rank that the others wait for.
    pub process: ProcessId,
    /// The one cause; `None` where there is no single one.
    pub cause: Option<Cause>,
    /// Of the one cause.
    pub confidence: Option<Confidence>,
    /// What was found, the weightiest first.
    pub findings: Vec<Finding>,
    /// The line that carries most of it.
    pub at: Option<Line>,
    /// What it would buy at most.
    pub bound: Option<Bound>,
    pub next_step: Option<String>,
    /// Where there is no one cause: what takes the most time, each with a next step.
    pub costs: Vec<Cost>,
    /// Why there is no cause, or what could not be judged, for people.
    pub missing: Vec<String>,
    /// The figures of that process.
    pub figures: Figures,
    /// The largest competing cost of the weightiest finding, with its weight.
    pub competing: Option<(CompetingCost, f64)>,
    /// Where the primary process waits for another rank: how that is known.
    pub waits_for: Option<WaitedFor>,
}

/// How it is known that other ranks wait for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitedFor {
    /// It was the last to enter collectives for so many percent of the others' wait in them.
    Host(u32),
    /// The others' devices are busy with kernels that do next to nothing, and its own device is
    /// not.
    Device,
}

/// The verdict on the primary process; `None` where it is no trainer.
pub fn verdict(profile: &Profile, analysis: &Analysis) -> Option<Verdict> {
    let primary = analysis.primary()?;
    if !matches!(primary.role, Role::Trainer { .. }) {
        return None;
    }
    let ranks = ranks(profile, analysis, primary);
    let last_rank = last_rank_of(analysis, primary);
    let own = of_process(profile, analysis, primary, ranks, last_rank);
    let straggler = last_rank.filter(|last| {
        last.percent >= STRAGGLES
            && own.of(Part::Communication) >= rules::WORTH
            && ranks.node_seen()
            && last.process != primary.process
    });
    let other = straggler.and_then(|last| {
        let mut processes = analysis.processes.iter();
        processes.find(|process| process.process == last.process)
    });
    // Who waits is a victim: the rank that it waits for has the cause.
    if let Some((other, last)) = other.zip(straggler) {
        let figures = of_process(profile, analysis, other, ranks, None);
        let mut verdict = judge(profile, analysis, other, figures);
        verdict.waits_for = Some(WaitedFor::Host(last.percent));
        verdict.at = last.at.or(verdict.at);
        return Some(verdict);
    }
    if rules::may_spin(&own)
        && let Some(verdict) = not_spinning(profile, analysis, primary, &own)
    {
        return Some(verdict);
    }
    Some(judge(profile, analysis, primary, own))
}

/// The verdict on the rank for which the others' devices spin: where collectives run on the device,
/// hosts do not wait in them, and the last to arrive is the one whose kernels do not wait.
fn not_spinning(
    profile: &Profile,
    analysis: &Analysis,
    primary: &ProcessSummary,
    own: &Figures,
) -> Option<Verdict> {
    /// Its device must be this much less busy than the one that waits.
    const LESS: f64 = 0.15;
    if !own.ranks.node_seen() {
        return None;
    }
    let others = analysis.processes.iter().filter(|process| {
        matches!(process.role, Role::Trainer { rank: Some(_), .. })
            && process.process != primary.process
            && process.wall_ns > 0
    });
    let busy = own.device.as_ref()?.busy?;
    let mut found: Option<Verdict> = None;
    for other in others {
        let figures = of_process(profile, analysis, other, own.ranks, None);
        let is_less = figures
            .device
            .as_ref()
            .and_then(|device| device.busy)
            .is_some_and(|other| other <= busy - LESS);
        let verdict = judge(profile, analysis, other, figures);
        let is_slow = match verdict.cause {
            Some(Cause::Throttled) => true,
            Some(Cause::Communication) | None => false,
            Some(_) => is_less,
        };
        let weight = |verdict: &Verdict| verdict.findings.first().map_or(0.0, |first| first.weight);
        if is_slow
            && found
                .as_ref()
                .is_none_or(|best| weight(&verdict) > weight(best))
        {
            found = Some(verdict);
        }
    }
    let mut verdict = found?;
    verdict.waits_for = Some(WaitedFor::Device);
    // When it arrived was not seen.
    verdict.confidence = verdict.confidence.map(|told| told.min(Confidence::Medium));
    Some(verdict)
}

fn of_process(
    profile: &Profile,
    analysis: &Analysis,
    process: &ProcessSummary,
    ranks: Ranks,
    last_rank: Option<LastRank>,
) -> Figures {
    let waits = super::waits::of(&analysis.waits, process.process);
    let meanwhile = waits.and_then(|waits| waits.meanwhile.as_ref());
    let mut figures = figures::figures(profile, &analysis.lanes, process, meanwhile);
    figures.ranks = ranks;
    figures.last_rank = last_rank;
    figures
}

fn ranks(profile: &Profile, analysis: &Analysis, primary: &ProcessSummary) -> Ranks {
    let world = primary.role.world_size().unwrap_or(1);
    let info = profile.process(primary.process);
    let node = info.and_then(|process| {
        let mut all = process.info.environment.iter();
        let (_, value) = all.find(|(name, _)| name == "LOCAL_WORLD_SIZE")?;
        value.parse().ok()
    });
    let seen = analysis.processes.iter().filter(|process| {
        matches!(process.role, Role::Trainer { rank: Some(_), .. }) && process.wall_ns > 0
    });
    Ranks {
        world,
        node,
        seen: u32::try_from(seen.count()).unwrap_or(u32::MAX),
    }
}

/// The rank that was the last to enter the collectives that `process` waited in, for most of the
/// wait.
fn last_rank_of(analysis: &Analysis, process: &ProcessSummary) -> Option<LastRank> {
    let collectives = super::collectives::of(&analysis.collectives, process.process)?;
    let wait_ns: u64 = collectives.rows.iter().map(|row| row.wait_ns).sum();
    let last = collectives.rows.iter().filter_map(last_rank);
    let (process, _, at) = last.max_by_key(|&(_, ns, _)| ns)?;
    let late = collectives.rows.iter().flat_map(|row| &row.late);
    let own = late.filter(|late| late.process == process);
    let ns: u64 = own.map(|late| late.ns).fold(0, u64::saturating_add);
    let percent = u128::from(ns) * 100 / u128::from(wait_ns.max(1));
    Some(LastRank {
        process,
        at,
        percent: u32::try_from(percent).unwrap_or(u32::MAX),
    })
}

fn judge(
    profile: &Profile,
    analysis: &Analysis,
    process: &ProcessSummary,
    figures: Figures,
) -> Verdict {
    let mut findings: Vec<Finding> = RULES.iter().filter_map(|rule| rule(&figures)).collect();
    findings.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    // The same cause by two rules is one.
    let mut seen: Vec<Cause> = Vec::new();
    findings.retain(|finding| {
        let is_new = !seen.contains(&finding.cause);
        seen.push(finding.cause);
        is_new
    });
    let missing = missing(analysis, process, &figures);
    let can_tell = figures.ticks >= FEW_TICKS && figures.ranks.node_seen();
    let first = findings.first();
    let competing = first.and_then(|first| rules::competing(&figures, first.parts));
    let next = findings.get(1).map_or(0.0, |second| second.weight);
    let next = competing.map_or(next, |(_, weight)| next.max(weight));
    let is_one = |first: &&Finding| {
        can_tell && first.weight >= rules::ENOUGH && first.weight >= STANDS_OUT * next
    };
    let found = first.filter(is_one).cloned();
    let confidence = found.as_ref().map(|found| confidence(found, &figures));
    let at = found.as_ref().and_then(|found| figures.line(found.parts));
    let step = found
        .as_ref()
        .map(|found| next_step(profile, found.cause, at, &figures));
    let costs = match found.is_none() && can_tell {
        true => costs(profile, &findings, &figures),
        false => Vec::new(),
    };
    Verdict {
        costs,
        process: process.process,
        cause: found.as_ref().map(|found| found.cause),
        confidence,
        bound: found.as_ref().and_then(|found| bound(found, &figures)),
        next_step: step,
        at,
        findings,
        competing,
        missing,
        figures,
        waits_for: None,
    }
}

fn confidence(found: &Finding, figures: &Figures) -> Confidence {
    const CLEAR: f64 = 2.0;
    let is_clear = found.evidence.iter().all(|evidence| {
        let above = evidence
            .at_least
            .is_none_or(|least| evidence.value >= (CLEAR * least).min((1.0 + least) / 2.0));
        let below = evidence
            .at_most
            .is_none_or(|most| evidence.value <= most / 1.1);
        above && below
    });
    let surely = found.parts.is_empty()
        || found
            .parts
            .iter()
            .map(|part| figures.share(*part))
            .all(|share| share.is_uncertain() || share.low >= 0.7 * share.value);
    let uses_device = found
        .evidence
        .iter()
        .any(|evidence| evidence.figure.starts_with("gpu_busy"));
    let is_shared = figures.device.as_ref().is_some_and(|device| device.shared);
    let saw_all = figures.native && figures.ranks.all_seen();
    let is_of_device = matches!(
        found.cause,
        Cause::GpuCompute | Cause::GpuMemory | Cause::Throttled
    );
    let most = is_of_device || !rules::host_takes_more(figures, found.parts, STANDS_OUT);
    match (
        found.complete && saw_all && !(uses_device && is_shared),
        is_clear && surely && most,
        figures.ticks >= MANY_TICKS,
    ) {
        (true, true, true) => Confidence::High,
        (false, false, _) | (false, _, false) => Confidence::Low,
        _ => Confidence::Medium,
    }
}

/// Amdahl's law: what takes the share `gain` now takes nothing then.
fn bound(found: &Finding, figures: &Figures) -> Option<Bound> {
    const MOST: f64 = 0.95;
    const COMPILES: f64 = 0.02;
    // That nearly all of the time would be gone says nothing.
    let gain = found.gain.filter(|&gain| gain < MOST)?.max(0.0);
    Some(Bound {
        without: found.cause.without(),
        speedup: 1.0 / (1.0 - gain),
        // Shares are of all time after start-up, steps leave torch.compile's first work out.
        step_ns: figures
            .step_ns
            .filter(|_| figures.of(Part::Compile) < COMPILES)
            .map(|ns| (ns, ns * (1.0 - gain))),
    })
}

/// What could not be judged, and why.
fn missing(analysis: &Analysis, process: &ProcessSummary, figures: &Figures) -> Vec<String> {
    let mut missing = Vec::new();
    if figures.every_cpu_is_wanted() {
        missing.push(
            "every CPU is taken: the sampler takes the training thread's for each sample, and phases and waits may be some points off \
             where steps last a few ms (see Limits in docs)"
                .to_owned(),
        );
    }
    if figures.ticks < FEW_TICKS {
        let samples = match figures.ticks {
            0 => "no samples".to_owned(),
            1 => "only 1 sample".to_owned(),
            ticks => format!("only {ticks} samples"),
        };
        missing.push(format!("{samples} after start-up: record for longer"));
    }
    if !figures.ranks.node_seen() {
        missing.push(format!(
            "{} of {} ranks of this node are in the recording: who waits for another rank cannot be told from who is slow; record \
             them all (the launcher's --pid, or -- torchrun …)",
            figures.ranks.seen,
            figures.ranks.node.unwrap_or(figures.ranks.world)
        ));
    }
    if !figures.native {
        missing.push(
            "native frames of what runs were not recorded: Python's time holds what it calls, and launch-, Python-, sync-, copy-, barrier- and \
             host-compute-bound cannot be told apart".to_owned(),
        );
    }
    if figures.device.as_ref().is_some_and(|device| device.shared) {
        missing.push(
            "other processes have memory of this GPU: how busy it was need not be this run's doing"
                .to_owned(),
        );
    }
    let busy = figures.device.as_ref().map(|device| device.busy);
    match busy {
        Some(Some(_)) => {}
        Some(None) => missing.push(
            "the GPU's utilization was not measured: launch-, sync-, copy- and GPU-bound cannot be told apart".to_owned(),
        ),
        None if figures.gpu_used => {
            let why = match analysis.gpu_idle.iter().find(|(id, _)| *id == process.process) {
                _ if !analysis.lanes.missing.is_empty() => analysis.lanes.missing.join("; "),
                Some((_, Err(error))) => error.to_string(),
                _ => "this recording has no lanes of GPUs".to_owned(),
            };
            missing.push(format!(
                "what the GPU did was not seen ({why}): launch-, sync-, copy- and GPU-bound cannot be told apart"
            ));
        }
        None => {}
    }
    missing
}
