//! The verdict: what a run is bound by, with the figures that show it, the maximum gain, and one
//! next step.
//!
//! A cause that needs a missing figure gets no verdict; the missing figure is reported.
//!
//! | file | content |
//! |---|---|
//! | [`figures`] | the figures that rules use |
//! | [`rules`] | which figures imply which cause |
//! | [`next_step`] | advice for each cause, based on the present settings |

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
use next_step::{Cost, after_it, costs, next_step};
use rules::{CompetingCost, Finding, RULES};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

pub const VERDICT_RULES_VERSION: u32 = 3;
/// With fewer ticks there is no verdict, and no verdict with confidence.
const FEW_TICKS: u64 = 100;
const MANY_TICKS: u64 = 500;
/// A cause must weigh this much more than the next to be the only one.
pub const STANDS_OUT: f64 = 1.3;
/// A rank must be the last one for this part of the wait in collectives, percent, to be the rank
/// that the others wait for.
const STRAGGLES: u32 = 50;

/// The figure of the evidence that others wait in collectives for the rank of the verdict: a share
/// of the first rank's time between start-up and exit.
pub const OTHERS_WAIT: &str = "others_wait_for_it";

/// The condition of the bound where one rank arrives last.
const AS_FAST: &str = "this rank as fast as the others";

/// What a training run is bound by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Making batches.
    InputWork,
    /// Storage that batches are read from.
    InputStorage,
    /// The host's launches of kernels.
    Launch,
    /// Torch's work around operators that compute on the host.
    Dispatch,
    Python,
    /// The GPU's multiprocessors.
    GpuCompute,
    /// The GPU's memory.
    GpuMemory,
    /// Collectives.
    Communication,
    /// Collectives that all other ranks enter before this one.
    LateRank,
    /// Waits for the GPU that leave it without work.
    Sync,
    /// Copies to and from the GPU.
    Copy,
    CpuStarved,
    /// Reduced clocks.
    Throttled,
    /// Operators on the host, where no GPU is used.
    HostCompute,
    /// OpenMP barriers: more threads than CPUs.
    BarrierThreads,
    /// OpenMP barriers: some threads have more work than others.
    BarrierUneven,
    /// OpenMP barriers: parallel regions that end before all threads have begun them.
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
            Self::Communication | Self::LateRank => "communication-bound",
            Self::Sync => "sync-bound",
            Self::Copy => "copy-bound",
            Self::CpuStarved => "CPU-starved",
            Self::Throttled => "throttled",
            Self::Dispatch => "dispatch-bound",
            Self::HostCompute => "host-compute-bound",
            Self::BarrierThreads | Self::BarrierUneven | Self::BarrierShort => "barrier-bound",
        }
    }

    /// Distinguishes two causes with the same name.
    pub fn detail(self) -> Option<&'static str> {
        match self {
            Self::InputWork => Some("batch work"),
            Self::InputStorage => Some("storage"),
            Self::GpuCompute => Some("compute"),
            Self::GpuMemory => Some("DRAM"),
            Self::LateRank => Some("one rank arrives last"),
            Self::BarrierThreads => Some("more OpenMP threads than CPUs"),
            Self::BarrierUneven => Some("uneven OpenMP work"),
            Self::BarrierShort => Some("short parallel regions"),
            _ => None,
        }
    }

    /// What would be removed or free for the upper bound.
    fn without(self) -> &'static str {
        match self {
            Self::InputWork | Self::InputStorage => "free input",
            // Fewer launches for the same work are fewer and larger kernels, which a device
            // executes in less time: that gain is not bounded.
            Self::Launch => "free Python and launches, and the same kernels",
            Self::Dispatch => "free dispatch",
            Self::Python => "free Python",
            Self::GpuCompute | Self::GpuMemory => "a host that costs nothing",
            Self::Communication => "free communication",
            Self::LateRank => AS_FAST,
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
    /// How certain a verdict is.
    Confidence {
        /// It fits, but evidence against it may exist that was not measured, or it is near its
        /// thresholds.
        Low = "low",
        /// Some of the figures that could contradict it were not measured.
        Medium = "medium",
        /// All figures that could contradict it were measured, and do not.
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
    /// Lower threshold.
    pub at_least: Option<f64>,
    /// Upper threshold.
    pub at_most: Option<f64>,
}

/// The maximum gain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// The condition of the bound.
    pub without: &'static str,
    /// Maximum speedup, a factor.
    pub speedup: f64,
    /// Length of a step now, and its lower bound, ns; `None` if no steps are known, or if the time
    /// that they do not take is a notable part of that which the speedup is of.
    pub step_ns: Option<(f64, f64)>,
    /// Whether the speedup is of notably more than the steps that were timed.
    pub of_more: bool,
}

#[derive(Clone, Debug)]
pub struct Verdict {
    /// The process of the verdict: the primary one, or the rank that the others wait for.
    pub process: ProcessId,
    /// The cause; `None` if there is no single one.
    pub cause: Option<Cause>,
    /// The confidence in that cause.
    pub confidence: Option<Confidence>,
    /// All findings, by descending weight.
    pub findings: Vec<Finding>,
    /// The line with most of the cause's time.
    pub at: Option<Line>,
    /// The maximum gain.
    pub bound: Option<Bound>,
    pub next_step: Option<String>,
    /// Without a single cause: what takes the most time, each with a next step.
    pub costs: Vec<Cost>,
    /// Why there is no cause, or what could not be judged, for people.
    pub missing: Vec<String>,
    /// The figures of that process.
    pub figures: Figures,
    /// The largest competing cost of the weightiest finding, with its weight.
    pub competing: Option<(CompetingCost, f64)>,
    /// If the primary process waits for another rank: how that is known.
    pub waits_for: Option<WaitedFor>,
}

/// The evidence that other ranks wait for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitedFor {
    /// It was the last to enter collectives for this percentage of the others' wait in them.
    Host(u32),
    /// The others' devices are busy with kernels that do nearly nothing, and its own device is not.
    Device,
    /// The others wait for their devices, and it works on the host for this percentage of that
    /// time.
    OnDevices(u32),
}

/// The verdict on the primary process; `None` if it is not a trainer.
pub fn verdict(profile: &Profile, analysis: &Analysis) -> Option<Verdict> {
    let primary = analysis.primary()?;
    if !matches!(primary.role, Role::Trainer { .. }) {
        return None;
    }
    let ranks = ranks(profile, analysis, primary);
    let last_rank = last_rank_of(analysis, primary);
    let own = of_process(profile, analysis, primary, ranks, last_rank);
    if let Some(verdict) = of_slow_rank(profile, analysis, ranks) {
        return Some(verdict);
    }
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
    // The cause is in the rank that is waited for, not in the one that waits.
    if let Some((other, last)) = other.zip(straggler) {
        let figures = of_process(profile, analysis, other, ranks, None);
        let mut verdict = judge(profile, analysis, other, figures);
        verdict.waits_for = Some(WaitedFor::Host(last.percent));
        verdict.at = last.at.or(verdict.at);
        let trained_ns = primary
            .wall_ns
            .saturating_sub(primary.startup_ns)
            .saturating_sub(primary.shutdown_ns);
        // Ranks that are late in turns wait for each other.
        let more = own.of(Part::Communication) - verdict.figures.of(Part::Communication);
        let late = (last.ns as f64 / trained_ns.max(1) as f64).min(more);
        if verdict.cause.is_none() && verdict.figures.ticks >= FEW_TICKS && late >= rules::WORTH {
            arrives_last(&mut verdict, profile, late);
        }
        return Some(verdict);
    }
    if rules::may_spin(&own)
        && let Some(verdict) = not_spinning(profile, analysis, primary, &own)
    {
        return Some(verdict);
    }
    Some(judge(profile, analysis, primary, own))
}

/// Makes it the cause that others wait for this rank, for `late` of their time, where nothing that
/// it does is a single one.
fn arrives_last(verdict: &mut Verdict, profile: &Profile, late: f64) {
    let evidence = Evidence {
        figure: OTHERS_WAIT,
        value: late,
        at_least: Some(rules::WORTH),
        at_most: None,
    };
    let finding = Finding {
        cause: Cause::LateRank,
        gain: Some(late),
        weight: late,
        parts: &[],
        evidence: vec![evidence],
        complete: true,
    };
    (verdict.costs, verdict.competing) = (Vec::new(), None);
    verdict.cause = Some(Cause::LateRank);
    verdict.confidence = Some(confidence(&finding, &verdict.figures));
    verdict.bound = bound(&finding, &verdict.figures);
    verdict.findings.insert(0, finding);
    let step = next_step(profile, Cause::LateRank, verdict.at, &verdict.figures);
    verdict.next_step = Some(step);
}

/// The verdict on the rank that arrives last at collectives that run on devices: its own cause if
/// that is what it does more of than the others, else that it arrives last.
fn of_slow_rank(profile: &Profile, analysis: &Analysis, ranks: Ranks) -> Option<Verdict> {
    /// A cause explains the difference if it takes this part of it more than with the others.
    const EXPLAINS: f64 = 0.5;
    const MOST: f64 = 0.95;
    let slow = analysis.slow_rank.as_ref()?;
    let late = slow.less.value;
    if late < rules::WORTH || slow.percent() < STRAGGLES || !ranks.node_seen() {
        return None;
    }
    let summary = |process: ProcessId| {
        let mut processes = analysis.processes.iter();
        processes.find(|each| each.process == process)
    };
    let (process, other) = (summary(slow.process)?, summary(slow.other)?);
    let other = of_process(profile, analysis, other, ranks, None);
    let figures = of_process(profile, analysis, process, ranks, None);
    if figures.ticks < FEW_TICKS {
        return None;
    }
    let mut verdict = judge(profile, analysis, process, figures);
    let explains = verdict.cause.is_some()
        && verdict.findings.first().is_some_and(|first| {
            let more = |part: &Part| verdict.figures.of(*part) - other.of(*part);
            first.parts.iter().map(more).sum::<f64>() >= EXPLAINS * late
        });
    let certain = match slow.less.low >= 0.7 * late {
        true if slow.device_idles.is_some() && verdict.figures.ticks >= MANY_TICKS => {
            Confidence::High
        }
        true => Confidence::Medium,
        false => Confidence::Low,
    };
    verdict.at = slow.at().or(verdict.at);
    if explains {
        verdict.confidence = verdict.confidence.map(|own| own.min(certain));
    } else {
        let evidence = Evidence {
            figure: "waits_less_than_the_others",
            value: late,
            at_least: Some(rules::WORTH),
            at_most: None,
        };
        verdict.findings.insert(
            0,
            Finding {
                cause: Cause::LateRank,
                gain: Some(late),
                weight: late,
                parts: &[],
                evidence: vec![evidence],
                complete: slow.device_idles.is_some(),
            },
        );
        (verdict.costs, verdict.competing) = (Vec::new(), None);
        verdict.cause = Some(Cause::LateRank);
        verdict.confidence = Some(certain);
        let step = next_step(profile, Cause::LateRank, verdict.at, &verdict.figures);
        verdict.next_step = Some(step);
    }
    // No rank can gain more than it is behind, the next one being as slow as that, nor than its
    // device is idle.
    let busy = verdict.figures.device.as_ref().and_then(|own| own.busy);
    let gain = busy.map_or(late, |busy| late.min(1.0 - busy));
    verdict.bound = (gain < MOST).then(|| Bound {
        without: AS_FAST,
        speedup: 1.0 / (1.0 - gain),
        step_ns: slow.step_ns.map(|ns| (ns, ns * (1.0 - gain))),
        of_more: false,
    });
    verdict.waits_for = Some(WaitedFor::OnDevices(slow.percent()));
    Some(verdict)
}

/// The verdict on the rank that the others' devices spin for: where collectives run on the device,
/// hosts do not wait in them, and the last rank to arrive is the one whose kernels do not wait.
fn not_spinning(
    profile: &Profile,
    analysis: &Analysis,
    primary: &ProcessSummary,
    own: &Figures,
) -> Option<Verdict> {
    /// Its device must be this much less busy than the waiting one.
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
    // Its arrival was not seen.
    verdict.confidence = verdict
        .confidence
        .map(|confidence| confidence.min(Confidence::Medium));
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
    let mut figures = figures::figures(profile, &analysis.tracks, process, waits);
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
    let mut late: BTreeMap<ProcessId, u64> = BTreeMap::new();
    for each in collectives.rows.iter().flat_map(|row| &row.late) {
        let ns = late.entry(each.process).or_default();
        *ns = ns.saturating_add(each.ns);
    }
    let (process, ns) = late.into_iter().rev().max_by_key(|&(_, ns)| ns)?;
    let own = collectives.rows.iter().filter_map(last_rank);
    let own = own.filter(|&(of, ..)| of == process);
    let at = own.max_by_key(|&(_, ns, _)| ns).and_then(|(.., at)| at);
    let percent = u128::from(ns) * 100 / u128::from(wait_ns.max(1));
    Some(LastRank {
        process,
        at,
        ns,
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
    // The same cause by two rules counts once.
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
    let step = found.as_ref().map(|found| {
        next_step(profile, found.cause, at, &figures) + &after_it(found.cause, &figures)
    });
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

/// Amdahl's law: the speedup if the share `gain` took no time.
fn bound(found: &Finding, figures: &Figures) -> Option<Bound> {
    const MOST: f64 = 0.95;
    /// What gains over so much of the time gains as much over the steps, nearly.
    const NEARLY_ALL: f64 = 0.9;
    // A gain of nearly all of the time is meaningless, and steps need their batches.
    let limit = figures.workers_limit(found.cause).unwrap_or(0.0);
    let gain = found.gain?.min(1.0 - limit);
    let gain = Some(gain).filter(|&gain| gain < MOST)?.max(0.0);
    let is_of_steps = figures.in_steps >= NEARLY_ALL;
    let step_ns = figures.step_ns.filter(|_| is_of_steps);
    Some(Bound {
        without: found.cause.without(),
        speedup: 1.0 / (1.0 - gain),
        step_ns: step_ns.map(|ns| (ns, ns * (1.0 - gain))),
        of_more: figures.step_ns.is_some() && !is_of_steps,
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
            "{} of {} ranks of this node are in the recording: waiting and slow ranks cannot be distinguished; record \
             them all (the launcher's --pid, or -- torchrun …), or read their recordings together (torchspy report DIR)",
            figures.ranks.seen,
            figures.ranks.node.unwrap_or(figures.ranks.world)
        ));
    }
    if !figures.native {
        missing.push(
            "native frames of running threads were not recorded: Python's time includes what it calls, and launch-, Python-, sync-, copy-, barrier- and \
             host-compute-bound cannot be distinguished".to_owned(),
        );
    }
    if figures.device.as_ref().is_some_and(|device| device.shared) {
        missing.push(
            "other processes use memory of this GPU: its busy time need not be this run's"
                .to_owned(),
        );
    }
    let busy = figures.device.as_ref().map(|device| device.busy);
    match busy {
        Some(Some(_)) => {}
        Some(None) => missing.push(
            "the GPU's utilization was not measured: launch-, sync-, copy- and GPU-bound cannot be distinguished".to_owned(),
        ),
        None if figures.gpu_used => {
            let why = match analysis.gpu_idle.iter().find(|(id, _)| *id == process.process) {
                _ if !analysis.tracks.missing.is_empty() => analysis.tracks.missing.join("; "),
                Some((_, Err(error))) => error.to_string(),
                _ => "this recording has no counter tracks of GPUs".to_owned(),
            };
            missing.push(format!(
                "the GPU's activity was not recorded ({why}): launch-, sync-, copy- and GPU-bound cannot be distinguished"
            ));
        }
        None => {}
    }
    missing
}
