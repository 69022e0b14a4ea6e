//! The part of the schema about what a run is bound by.

use crate::analysis::Analysis;
use crate::analysis::verdict::next_step::Cost;
use crate::analysis::verdict::rules::Finding;
use crate::analysis::verdict::{Evidence, VERDICT_RULES_VERSION, Verdict as Analysed, WaitedFor};
use crate::model::profile::Profile;
use crate::report::tables::waits::{At, at};
use schemars::JsonSchema;
use serde::Serialize;

/// The verdict.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Verdict {
    /// Version of the rules.
    pub rules: u32,
    /// The process of the verdict.
    pub pid: i32,
    /// Its rank.
    pub rank: Option<u32>,
    /// `input-bound`, …; null if there is no single one, or the decisive figures were not measured.
    pub cause: Option<&'static str>,
    /// Detail of the cause: `storage`, `DRAM`, ….
    pub detail: Option<&'static str>,
    /// `low`, `medium`, `high`.
    pub confidence: Option<&'static str>,
    /// The figures of the cause, with the thresholds that they passed.
    pub evidence: Vec<Evidence>,
    /// The line with most of the cause's time.
    pub at: Option<At>,
    /// One next step, for people.
    pub next_step: Option<String>,
    /// The maximum gain.
    pub at_most: Option<AtMost>,
    /// Without a single cause: what takes the most time, each with a next step.
    pub costs: Vec<Cost>,
    /// All causes that were found, by descending weight.
    pub found: Vec<Found>,
    /// The largest competing cost of the weightiest cause; null if there is none.
    #[serde(rename = "beside")]
    pub competing: Option<CompetingCost>,
    /// What could not be judged, and why.
    pub missing: Vec<String>,
    /// Share of the others' wait in collectives, or for their GPUs, in which they wait for this
    /// rank, in percent; null if they do not.
    pub waited_for_percent: Option<u32>,
    /// Whether the others' GPUs spin in collectives while the GPU of this rank does not.
    pub others_gpus_spin: bool,
}

/// What else takes time, whether or not it is a cause.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
#[schemars(rename = "WeighsBeside")]
pub struct CompetingCost {
    /// Description.
    pub what: &'static str,
    /// Weight, a share of time.
    pub weight: f64,
}

/// An upper bound.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
pub struct AtMost {
    /// The condition of the bound.
    pub without: &'static str,
    /// Maximum speedup of the time after start-up, a factor.
    pub speedup: f64,
    /// Mean length of a step now, as in `progress.step_ms`; null if steps were not timed, or if
    /// those that were take less than nine tenths of the time that the speedup is of.
    pub step_ms: Option<f64>,
    /// Lower bound of the length of a step under the condition.
    pub step_ms_then: Option<f64>,
}

/// A cause that was found.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Found {
    /// Its name.
    pub cause: &'static str,
    /// Detail of the cause.
    pub detail: Option<&'static str>,
    /// Weight, a share of time.
    pub weight: f64,
    pub evidence: Vec<Evidence>,
}

/// Null if the process is not a trainer.
pub(super) fn verdict(profile: &Profile, analysis: &Analysis) -> Option<Verdict> {
    Some(shaped(profile, analysis.verdict.as_ref()?))
}

fn shaped(profile: &Profile, verdict: &Analysed) -> Verdict {
    let (pid, rank) = profile.pid_and_rank(verdict.process);
    let first = verdict.findings.first().filter(|_| verdict.cause.is_some());
    Verdict {
        rules: VERDICT_RULES_VERSION,
        pid,
        rank,
        cause: verdict.cause.map(|cause| cause.name()),
        detail: verdict.cause.and_then(|cause| cause.detail()),
        confidence: verdict.confidence.map(|confidence| confidence.name()),
        evidence: first.map_or_else(Vec::new, |first| first.evidence.clone()),
        at: at(profile, verdict.at),
        next_step: verdict.next_step.clone(),
        at_most: verdict.bound.map(|bound| AtMost {
            without: bound.without,
            speedup: bound.speedup,
            step_ms: bound.step_ns.map(|(now, _)| now / 1e6),
            step_ms_then: bound.step_ns.map(|(_, then)| then / 1e6),
        }),
        costs: verdict.costs.clone(),
        found: verdict.findings.iter().map(found).collect(),
        competing: verdict.competing.map(|(what, weight)| CompetingCost {
            what: what.name(),
            weight,
        }),
        missing: verdict.missing.clone(),
        waited_for_percent: verdict.waits_for.and_then(|waited| match waited {
            WaitedFor::Host(percent) | WaitedFor::OnDevices(percent) => Some(percent),
            WaitedFor::Device => None,
        }),
        others_gpus_spin: matches!(
            verdict.waits_for,
            Some(WaitedFor::Device | WaitedFor::OnDevices(_))
        ),
    }
}

fn found(finding: &Finding) -> Found {
    Found {
        cause: finding.cause.name(),
        detail: finding.cause.detail(),
        weight: finding.weight,
        evidence: finding.evidence.clone(),
    }
}
