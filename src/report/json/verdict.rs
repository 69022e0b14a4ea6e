//! The part of the schema that says what a run is bound by.

use crate::analysis::Analysis;
use crate::analysis::verdict::next_step::Cost as Costs;
use crate::analysis::verdict::rules::Finding;
use crate::analysis::verdict::{VERDICT_RULES_VERSION, Verdict as Told, WaitedFor};
use crate::model::profile::Profile;
use crate::report::tables::gpu_idle::who;
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
    pub beside: Option<WeighsBeside>,
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
pub struct WeighsBeside {
    /// What, in words.
    pub what: &'static str,
    /// How much it weighs.
    pub weight: f64,
}

/// A figure.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
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

/// A line.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct At {
    /// Its file.
    pub file: String,
    /// Its function.
    pub function: String,
    /// Its number.
    pub line: u32,
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

/// What takes much of the time, where no cause stands out.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Cost {
    /// What, in words.
    pub what: &'static str,
    /// Share of the training thread's time after start-up.
    pub share: f64,
    /// What to do about it, for people.
    pub next_step: String,
    /// So many times as fast, at most, without it.
    pub speedup: Option<f64>,
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
    Some(told(profile, analysis.verdict.as_ref()?))
}

fn told(profile: &Profile, verdict: &Told) -> Verdict {
    let (pid, rank) = who(profile, verdict.process);
    let first = verdict.findings.first().filter(|_| verdict.cause.is_some());
    Verdict {
        rules: VERDICT_RULES_VERSION,
        pid,
        rank,
        cause: verdict.cause.map(|cause| cause.name()),
        detail: verdict.cause.and_then(|cause| cause.detail()),
        confidence: verdict.confidence.map(|confidence| confidence.name()),
        evidence: first.map_or_else(Vec::new, evidence),
        at: verdict.at.and_then(|(function, line)| {
            let function = profile.functions.get(function.index())?;
            Some(At {
                file: function.file.clone(),
                function: function.name.clone(),
                line,
            })
        }),
        next_step: verdict.next_step.clone(),
        at_most: verdict.bound.map(|bound| AtMost {
            without: bound.without,
            speedup: bound.speedup,
            step_ms: bound.step_ns.map(|(now, _)| now / 1e6),
            step_ms_then: bound.step_ns.map(|(_, then)| then / 1e6),
        }),
        costs: verdict.costs.iter().map(cost).collect(),
        found: verdict.findings.iter().map(found).collect(),
        beside: verdict.beside.map(|(what, weight)| WeighsBeside {
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

fn cost(cost: &Costs) -> Cost {
    Cost {
        what: cost.what,
        share: cost.share,
        next_step: cost.next_step.clone(),
        speedup: cost.at_most,
    }
}

fn found(finding: &Finding) -> Found {
    Found {
        cause: finding.cause.name(),
        detail: finding.cause.detail(),
        weight: finding.weight,
        evidence: evidence(finding),
    }
}

fn evidence(finding: &Finding) -> Vec<Evidence> {
    let figures = finding.evidence.iter();
    figures
        .map(|evidence| Evidence {
            figure: evidence.figure,
            value: evidence.value,
            at_least: evidence.at_least,
            at_most: evidence.at_most,
        })
        .collect()
}
