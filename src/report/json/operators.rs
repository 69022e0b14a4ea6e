//! The part of the schema that is about operators.

use crate::analysis::summary::ProcessSummary;
use crate::model::category::Activity;
use crate::model::seconds::of as seconds;
use crate::torch::rules::RuleSet;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Version of this part. Keys are only ever added within a version.
pub const VERSION: u32 = 1;

/// Maximum number of listed operators, and of call sites of each.
pub(super) const MOST: usize = 200;
pub(super) const MOST_SITES: usize = 20;

/// Totals of all operators.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Operators {
    /// [`VERSION`].
    pub version: u32,
    /// Version of the rules and names that identified operators.
    pub rules: u32,
    /// Time in any operator, by activity.
    pub inside_s: BTreeMap<&'static str, f64>,
    /// Time in no operator, by activity.
    pub outside_s: BTreeMap<&'static str, f64>,
    /// Number of operators that are not listed.
    pub left_out: usize,
    /// Their own time.
    pub left_out_self_s: f64,
}

/// Totals of the operators of a process; `None` if none was seen.
pub(super) fn operators(process: &ProcessSummary) -> Option<Operators> {
    let table = &process.operators;
    if table.operators.is_empty() {
        return None;
    }
    let left_out = table.operators.get(MOST..).unwrap_or_default();
    Some(Operators {
        version: VERSION,
        rules: RuleSet::built_in().version,
        inside_s: by_activity(&table.inside),
        outside_s: by_activity(&table.outside),
        left_out: left_out.len(),
        left_out_self_s: seconds(left_out.iter().map(|each| each.self_ns).sum()),
    })
}

fn by_activity(times: &[(Activity, u64)]) -> BTreeMap<&'static str, f64> {
    times
        .iter()
        .map(|&(activity, ns)| (activity.name(), seconds(ns)))
        .collect()
}
