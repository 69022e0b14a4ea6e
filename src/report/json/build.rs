//! Fills the schema from an analysis.

use super::backward::backward;
use super::compile::compile;
use super::memory::{allocated, memory};
use super::modules::{MOST as MOST_MODULES, forward};
use super::operators::{MOST as MOST_OPERATORS, MOST_SITES, operators};
use super::progress::progress;
use super::tracks::{gpus, gpus_missing, host};
use super::verdict::verdict;
use super::{Intervals, Itwinai, Report, SCHEMA};
use crate::analysis::Analysis;
use crate::analysis::conditions::conditions;
use crate::analysis::dump::ras::kept;
use crate::analysis::intervals::Share;
use crate::analysis::summary::ProcessSummary;
use crate::model::category::{Activity, Phase, SummaryRow};
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use crate::model::text::printable_json;
use crate::report::tables::processes::{activity_shares, phase_shares, summary_shares};
use crate::report::tables::{self, functions};
use crate::torch::rules::RuleSet;
use std::collections::BTreeMap;

/// Maximum number of listed functions and lines.
const MOST: usize = 100;
/// Maximum number of listed waits.
const MOST_WAITS: usize = 500;

pub fn report(profile: &Profile, analysis: &Analysis) -> Report {
    let primary = analysis.primary();
    let empty = BTreeMap::new();
    let shares = |each: fn(&ProcessSummary) -> BTreeMap<&'static str, f64>| {
        primary.map_or(empty.clone(), each)
    };
    Report {
        schema: SCHEMA,
        rules: RuleSet::built_in().version,
        added_rules: profile.added_rules,
        torchspy: profile.run.torchspy.clone(),
        command: profile.run.command.clone(),
        host: profile.run.host.clone(),
        started_wall_ns: profile.run.started_wall_ns,
        duration_s: seconds(profile.end_ns.saturating_sub(profile.start_ns)),
        native: profile.run.native,
        processes: tables::processes::processes(profile, analysis),
        primary: analysis.primary,
        wall_s: primary.map_or(0.0, |process| seconds(process.wall_ns)),
        computation_label: primary.map_or("host computation", ProcessSummary::computation_label),
        verdict: verdict(profile, analysis),
        summary: shares(summary_shares),
        after_startup: shares(after_startup),
        intervals: primary
            .map(|process| intervals(profile, process))
            .unwrap_or_default(),
        phases: primary.map_or(BTreeMap::new(), |process| phase_shares(profile, process)),
        activities: shares(activity_shares),
        matrix: primary
            .map(|process| matrix(profile, process))
            .unwrap_or_default(),
        itwinai: primary.map(itwinai).unwrap_or_default(),
        operators: primary.and_then(operators),
        ops: tables::operators::operators(profile, analysis, MOST_OPERATORS, MOST_SITES),
        forward: forward(analysis),
        modules: tables::modules::modules(analysis, MOST_MODULES),
        backward: backward(profile, analysis),
        compile: compile(analysis),
        progress: primary.and_then(|process| progress(profile, process)),
        nccl_ras: primary.and_then(|process| {
            let progress = process.progress.as_ref();
            kept(profile, progress.map(|progress| progress.standstill))
        }),
        conditions: primary.map(|process| conditions(profile, process)),
        wait_rules: RuleSet::built_in().version,
        waits: tables::waits::waits(profile, analysis, MOST_WAITS),
        input: tables::input::input(profile, analysis),
        collectives: tables::collectives::collectives(profile, analysis, MOST),
        slow_rank: tables::collectives::slow_rank(profile, analysis),
        functions: functions::functions(profile, analysis, MOST),
        lines: functions::lines(profile, analysis, MOST),
        user_lines: functions::user_lines(profile, analysis, MOST),
        native_functions: functions::native(profile, analysis, MOST),
        threads: tables::threads::threads(analysis).to_vec(),
        gpus: gpus(profile, analysis),
        gpus_missing: gpus_missing(&analysis.tracks),
        gpu_idle: tables::gpu_idle::gpu_idle(profile, analysis),
        gpu_idle_missing: tables::gpu_idle::gpu_idle_missing(profile, analysis),
        energy: Some(&analysis.energy)
            .filter(|energy| !energy.devices.is_empty())
            .cloned(),
        traced: super::trace::beside(profile, analysis),
        traced_ranks: analysis.traced_ranks.clone(),
        without_trace: super::trace::without(profile, analysis),
        memory: memory(profile, analysis),
        device_memory: analysis.device_memory.clone(),
        device_memory_by_code: allocated(profile, analysis),
        host_use: host(profile, analysis),
        quality: analysis.quality.clone(),
        missing: profile.missing.clone(),
        growing: profile.growing_until_ns.is_some(),
    }
}

/// The report as JSON text, indented, with a line feed at its end.
///
/// # Errors
/// None in practice: all values can be written as JSON.
pub fn render_json(profile: &Profile, analysis: &Analysis) -> Result<String, serde_json::Error> {
    let mut text = printable_json(&serde_json::to_string_pretty(&report(profile, analysis))?);
    text.push('\n');
    Ok(text)
}

/// The JSON schema of what [`render_json`] writes, with a description of every key.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(Report)
}

fn after_startup(process: &ProcessSummary) -> BTreeMap<&'static str, f64> {
    let rows = process.rows.iter().zip(&process.after_startup);
    rows.map(|((row, ..), share)| (row.name(), share.value))
        .collect()
}

fn intervals(profile: &Profile, process: &ProcessSummary) -> Intervals {
    let rows = process
        .rows
        .iter()
        .map(|(row, _, share): &(SummaryRow, u64, Share)| (row.name(), *share));
    let phases = process.phases.iter().map(|(phase, share)| {
        let name = profile.phase_name(*phase).to_owned();
        (name, *share)
    });
    let activities = process
        .activities
        .iter()
        .map(|(activity, share)| (activity.name(), *share));
    Intervals {
        summary: rows.collect(),
        phases: phases.collect(),
        activities: activities.collect(),
    }
}

fn matrix(
    profile: &Profile,
    process: &ProcessSummary,
) -> BTreeMap<String, BTreeMap<&'static str, f64>> {
    let total = process.matrix.total().max(1) as f64;
    let cells = |phase: Phase| -> BTreeMap<&'static str, f64> {
        Activity::ALL
            .iter()
            .map(|&activity| (activity.name(), process.matrix.cell(phase, activity)))
            .filter(|&(_, ns)| ns > 0)
            .map(|(name, ns)| (name, ns as f64 / total))
            .collect()
    };
    profile
        .phases()
        .map(|phase| (profile.phase_name(phase).to_owned(), cells(phase)))
        .filter(|(_, cells)| !cells.is_empty())
        .collect()
}

fn itwinai(process: &ProcessSummary) -> Itwinai {
    let counts = process.itwinai;
    let total = (counts.computation_ns + counts.other_ns).max(1) as f64;
    Itwinai {
        computation: counts.computation_ns as f64 / total,
        other: counts.other_ns as f64 / total,
    }
}
