//! The part of the schema that says what a run is bound by.

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
    /// The process that it is of.
    pub pid: i32,
    /// Its rank.
    pub rank: Option<u32>,
    /// `input-bound`, …; null where there is no single one, or what would tell was not seen.
    pub cause: Option<&'static str>,
    /// What of it: `storage`, `DRAM`, ….
    pub detail: Option<&'static str>,
    /// `low`, `medium`, `high`.
    pub confidence: Option<&'static str>,
    /// The figures of the cause, with the thresholds that they passed.
    pub evidence: Vec<Evidence>,
    /// The line that carries most of it.
    pub at: Option<At>,
    /// One next step, for people.
    pub next_step: Option<String>,
    /// What would be gained at most.
    pub at_most: Option<AtMost>,
    /// Where there is no one cause: what takes the most time, each with a next step.
    pub costs: Vec<Cost>,
    /// All causes that were found, the weightiest first.
    pub found: Vec<Found>,
    /// What takes the most time beside the weightiest of these; null where nothing does.
    #[serde(rename = "beside")]
    pub competing: Option<CompetingCost>,
    /// What could not be judged, and why.
    pub missing: Vec<String>,
    /// Share of the others' wait in collectives in which they wait for this rank, in percent; null
    /// where they do not.
    pub waited_for_percent: Option<u32>,
    /// Whether the others' GPUs spin in collectives, and the one of this rank does not.
    pub others_gpus_spin: bool,
}

/// What takes time, whether or not it is a cause.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
#[schemars(rename = "WeighsBeside")]
pub struct CompetingCost {
    /// What, in words.
    pub what: &'static str,
    /// How much it weighs.
    pub weight: f64,
}

/// An upper bound.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
pub struct AtMost {
    /// What would have to be so.
    pub without: &'static str,
    /// So many times as fast.
    pub speedup: f64,
    /// A step now.
    pub step_ms: Option<f64>,
    /// A step then, at least.
    pub step_ms_then: Option<f64>,
}

/// A cause that was found.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Found {
    /// Its name.
    pub cause: &'static str,
    /// What of it.
    pub detail: Option<&'static str>,
    /// How much it weighs.
    pub weight: f64,
    /// Its figures.
    pub evidence: Vec<Evidence>,
}

/// Null where the process is no trainer.
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
            WaitedFor::Host(percent) => Some(percent),
            WaitedFor::Device => None,
        }),
        others_gpus_spin: verdict.waits_for == Some(WaitedFor::Device),
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
