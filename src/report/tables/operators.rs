//! Operators of the training thread, and their call sites.

use super::named_line;
use crate::analysis::Analysis;
use crate::analysis::intervals::Share;
use crate::analysis::operators::{OperatorTime, Site};
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use crate::report::table::{Column, In, Kind, Value};
use crate::report::tables::trace::operators::{TracedOperator, operators as traced_operators};
use crate::report::text::format::{place_of, printable};
use schemars::JsonSchema;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// One operator.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Operator {
    /// `aten::add`, as torch.profiler calls it.
    pub name: String,
    /// `schema`; `kernel` if no symbol has the operator's name, and the name is that of its kernel.
    pub named_by: &'static str,
    /// Time in which it was the innermost operator.
    pub self_s: f64,
    /// Time in which it was on the stack.
    pub total_s: f64,
    /// Own time as a share of the thread's wall time.
    pub share: Share,
    /// Calls per whole step in a trace of torch.profiler of the same process and time
    /// (--trace-file); absent without one: samples do not count calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_per_step: Option<f64>,
    /// The phase with the most of its own time.
    pub phase: String,
    /// Own time by phase.
    pub phases: BTreeMap<String, f64>,
    /// Call sites, by descending time.
    pub sites: Vec<OperatorSite>,
    /// Number of call sites that are not listed.
    pub sites_left_out: usize,
}

/// A call site of an operator.
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
    pub function: Option<String>,
    pub line: Option<u32>,
    /// As in [`Operator`].
    pub self_s: f64,
    /// As in [`Operator`].
    pub total_s: f64,
}

type Col = Column<Operator>;
type SiteCol = Column<(String, OperatorSite)>;

const SELF: Col = Col::new(Kind::Seconds, "self_s", "self s", |row| row.self_s.into()).adds_up();
const SHARE: Col = Col::new(Kind::Share, "share", "self %", |row| row.share.into()).adds_up();
const SHOWN: Col = Col::words("operator (sampled: calls are not counted)", shown_name);

const TOTAL: Col = Col::new(Kind::Seconds, "total_s", "total s", |row| {
    row.total_s.into()
});

/// Text, beside a trace.
pub const TRACED: &[Col] = &[
    SELF,
    TOTAL,
    SHARE,
    Col::new(Kind::Number, "calls_per_step", "calls/step", |row| {
        row.calls_per_step.into()
    })
    .width(11),
    SHOWN.named("operator (times sampled, calls traced)"),
];
pub const OPERATORS: &[Col] = &[
    SELF,
    TOTAL,
    SHARE,
    SHOWN,
    Col::data(Kind::Number, "calls_per_step", |row| {
        row.calls_per_step.into()
    }),
    Col::data(Kind::Text, "name", |row| (&row.name).into()),
    Col::data(Kind::Text, "named_by", |row| row.named_by.into()),
    Col::data(Kind::Text, "phase", |row| (&row.phase).into()),
];
/// The columns of a list with one line per operator and its main call site.
pub const BRIEF: &[Col] = &[
    SELF,
    SHARE,
    SHOWN,
    Col::words("", |row| {
        row.by_time()
            .first()
            .map(|site| format!(" {}", site.shown()))
            .into()
    }),
];
/// Call sites of all operators.
pub const SITES: &[SiteCol] = &[
    SiteCol::new(Kind::Text, "operator", "operator", |(name, _)| name.into()),
    SiteCol::new(Kind::Text, "phase", "phase", |(_, site)| {
        (&site.phase).into()
    }),
    SiteCol::new(Kind::Text, "node", "node", |(_, site)| {
        site.node.as_ref().into()
    }),
    SiteCol::new(Kind::Text, "module", "module", |(_, site)| {
        site.module.as_ref().into()
    }),
    SiteCol::new(Kind::Text, "function", "", |(_, site)| {
        site.function.as_ref().into()
    }),
    SiteCol::new(Kind::Place, "at", "at", |(_, site)| {
        Value::place(site.file.as_ref(), site.line)
    }),
    SiteCol::new(Kind::Seconds, "self_s", "self s", |(_, site)| {
        site.self_s.into()
    })
    .adds_up(),
    SiteCol::new(Kind::Seconds, "total_s", "total s", |(_, site)| {
        site.total_s.into()
    })
    .only(In::Data),
];

fn shown_name(row: &Operator) -> Value {
    match row.named_by {
        "kernel" => format!("{} (kernel)", row.name).into(),
        _ => (&row.name).into(),
    }
}

impl Operator {
    /// Call sites where it was the innermost operator, by descending time.
    pub fn by_time(&self) -> Vec<&OperatorSite> {
        let own = self.sites.iter().filter(|site| site.self_s > 0.0);
        let mut sites: Vec<&OperatorSite> = own.collect();
        sites.sort_by_key(|site| Reverse((site.self_s * 1e9).round() as u64));
        sites
    }
}

impl OperatorSite {
    /// `backward, ConvolutionBackward0, train.py:57`; `forward, Conv2d, train.py:33`.
    pub fn shown(&self) -> String {
        let mut parts = vec![self.phase.clone()];
        let names = [&self.node, &self.module].into_iter().flatten();
        parts.extend(names.map(|name| printable(name).into_owned()));
        let line = self.line.unwrap_or(0);
        parts.extend(self.file.iter().map(|file| place_of(file, line)));
        parts.join(", ")
    }
}

/// The first `most` operators of the training thread, by descending own time, and the first
/// `most_sites` call sites of each.
pub fn operators(
    profile: &Profile,
    analysis: &Analysis,
    most: usize,
    most_sites: usize,
) -> Vec<Operator> {
    let table = analysis.primary().map(|process| &process.operators);
    let operators = table.into_iter().flat_map(|table| &table.operators);
    let calls = calls_per_step(analysis);
    let rows = operators.take(most).map(|each| Operator {
        calls_per_step: calls.get(&each.name).copied(),
        ..operator(profile, each, most_sites)
    });
    rows.collect()
}

/// Calls per step by operator, from a trace of the primary process.
fn calls_per_step(analysis: &Analysis) -> BTreeMap<String, f64> {
    let primary = analysis.primary().map(|process| process.process);
    let traced = analysis.traced.as_ref();
    let traced = traced.filter(|traced| {
        let joined = traced.joined.as_ref();
        joined.is_ok_and(|joined| Some(joined.process) == primary)
    });
    let rows = traced.map_or_else(Vec::new, |traced| traced_operators(&traced.trace));
    let calls = |row: TracedOperator| Some((row.name, row.calls_per_step?));
    rows.into_iter().filter_map(calls).collect()
}

/// The call sites of all operators.
pub fn sites(profile: &Profile, analysis: &Analysis) -> Vec<(String, OperatorSite)> {
    let operators = operators(profile, analysis, usize::MAX, usize::MAX);
    let sites = operators
        .into_iter()
        .flat_map(|Operator { name, sites, .. }| {
            sites.into_iter().map(move |site| (name.clone(), site))
        });
    sites.collect()
}

fn operator(profile: &Profile, time: &OperatorTime, most_sites: usize) -> Operator {
    let mut phases: BTreeMap<&str, u64> = BTreeMap::new();
    for site in &time.sites {
        let name = profile.phase_name(site.call.phase);
        *phases.entry(name).or_default() += site.self_ns;
    }
    let main = phases.iter().max_by_key(|&(_, &ns)| ns);
    let main_phase = main.map_or("unknown", |(name, _)| *name);
    let sites = time.sites.iter().take(most_sites);
    Operator {
        name: time.name.clone(),
        named_by: time.named_by.name(),
        self_s: seconds(time.self_ns),
        total_s: seconds(time.total_ns),
        share: time.share,
        calls_per_step: None,
        phase: main_phase.to_owned(),
        phases: phases
            .into_iter()
            .filter(|&(_, ns)| ns > 0)
            .map(|(phase, ns)| (phase.to_owned(), seconds(ns)))
            .collect(),
        sites: sites.map(|each| site(profile, each)).collect(),
        sites_left_out: time.sites.len().saturating_sub(most_sites),
    }
}

fn site(profile: &Profile, site: &Site) -> OperatorSite {
    let at = site.call.line.and_then(|line| named_line(profile, line));
    OperatorSite {
        phase: profile.phase_name(site.call.phase).to_owned(),
        node: site.call.node.clone(),
        module: site.call.module.clone(),
        file: at.map(|(function, _)| function.file.clone()),
        function: at.map(|(function, _)| function.name.clone()),
        line: at.map(|(_, line)| line),
        self_s: seconds(site.self_ns),
        total_s: seconds(site.total_ns),
    }
}
