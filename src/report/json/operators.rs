//! The part of the schema that is about operators.

use super::Interval;
use super::build::{interval, seconds};
use crate::analysis::operators::{OperatorTime, Site};
use crate::analysis::summary::ProcessSummary;
use crate::model::category::Activity;
use crate::model::profile::Profile;
use crate::torch::rules::operators::OPERATOR_RULES_VERSION;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Version of this part. Keys are only ever added within a version.
pub const VERSION: u32 = 1;

/// Operators that are listed, and places of each.
const MOST: usize = 200;
const MOST_SITES: usize = 20;

/// Time in operators, all together.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Operators {
    /// [`VERSION`].
    pub version: u32,
    /// Version of the rules and names that told operators.
    pub rules: u32,
    /// Time in any operator, by activity.
    pub inside_s: BTreeMap<&'static str, f64>,
    /// Time in none, by activity.
    pub outside_s: BTreeMap<&'static str, f64>,
    /// Operators that are not listed.
    pub left_out: usize,
    /// Their own time.
    pub left_out_self_s: f64,
}

/// One operator.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Operator {
    /// `aten::add`, as torch.profiler calls it.
    pub name: String,
    /// `schema`; `kernel` where no symbol holds the operator's name, and its kernel's stands for it.
    pub named_by: &'static str,
    /// Time in which it was the innermost operator.
    pub self_s: f64,
    /// Time in which it was on the stack.
    pub total_s: f64,
    /// Own time as a share of the thread's wall time.
    pub share: Interval,
    /// The phase with the most of its own time.
    pub phase: String,
    /// Own time by phase.
    pub phases: BTreeMap<String, f64>,
    /// Where it was called from, most time first.
    pub sites: Vec<OperatorSite>,
    /// Places that are not listed.
    pub sites_left_out: usize,
}

/// A place that an operator was called from.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct OperatorSite {
    /// The phase.
    pub phase: String,
    /// The node of autograd's graph.
    pub node: Option<String>,
    /// The class of the innermost module.
    pub module: Option<String>,
    /// The nearest file of the user's own code.
    pub file: Option<String>,
    /// The function there.
    pub function: Option<String>,
    /// The line.
    pub line: Option<u32>,
    /// As of [`Operator`].
    pub self_s: f64,
    /// As of [`Operator`].
    pub total_s: f64,
}

/// Time in the operators of a process; `None` where none was seen.
pub(super) fn operators(process: &ProcessSummary) -> Option<Operators> {
    let table = &process.operators;
    if table.operators.is_empty() {
        return None;
    }
    let left_out = table.operators.get(MOST..).unwrap_or_default();
    Some(Operators {
        version: VERSION,
        rules: OPERATOR_RULES_VERSION,
        inside_s: by_activity(&table.inside),
        outside_s: by_activity(&table.outside),
        left_out: left_out.len(),
        left_out_self_s: seconds(left_out.iter().map(|each| each.self_ns).sum()),
    })
}

/// The operators of a process, those with the most own time first.
pub(super) fn ops(profile: &Profile, process: &ProcessSummary) -> Vec<Operator> {
    let operators = process.operators.operators.iter();
    operators
        .take(MOST)
        .map(|each| operator(profile, each))
        .collect()
}

fn by_activity(times: &[(Activity, u64)]) -> BTreeMap<&'static str, f64> {
    times
        .iter()
        .map(|&(activity, ns)| (activity.name(), seconds(ns)))
        .collect()
}

fn operator(profile: &Profile, time: &OperatorTime) -> Operator {
    let mut phases: BTreeMap<&str, u64> = BTreeMap::new();
    for site in &time.sites {
        let name = profile.phase_name(site.place.phase);
        *phases.entry(name).or_default() += site.self_ns;
    }
    let main = phases.iter().max_by_key(|&(_, &ns)| ns);
    let main_phase = main.map_or("unknown", |(name, _)| *name);
    Operator {
        name: time.name.clone(),
        named_by: time.named_by.name(),
        self_s: seconds(time.self_ns),
        total_s: seconds(time.total_ns),
        share: interval(&time.share),
        phase: main_phase.to_owned(),
        phases: phases
            .into_iter()
            .filter(|&(_, ns)| ns > 0)
            .map(|(phase, ns)| (phase.to_owned(), seconds(ns)))
            .collect(),
        sites: time
            .sites
            .iter()
            .take(MOST_SITES)
            .map(|each| site(profile, each))
            .collect(),
        sites_left_out: time.sites.len().saturating_sub(MOST_SITES),
    }
}

fn site(profile: &Profile, site: &Site) -> OperatorSite {
    let at = site.place.line.and_then(|(function, line)| {
        let function = profile.functions.get(function.index())?;
        Some((function, line))
    });
    OperatorSite {
        phase: profile.phase_name(site.place.phase).to_owned(),
        node: site.place.node.clone(),
        module: site.place.module.clone(),
        file: at.map(|(function, _)| function.file.clone()),
        function: at.map(|(function, _)| function.name.clone()),
        line: at.map(|(_, line)| line),
        self_s: seconds(site.self_ns),
        total_s: seconds(site.total_ns),
    }
}
