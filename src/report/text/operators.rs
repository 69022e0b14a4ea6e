//! The operators of the training thread.

use super::format::{column_seconds, cut, percent};
use super::table::{TextTable, body};
use super::{WIDTH, line};
use crate::analysis::Analysis;
use crate::analysis::summary::ProcessSummary;
use crate::model::profile::Profile;
use crate::report::tables::operators::operators as rows_of;
use crate::report::tables::operators::{BRIEF, OPERATORS, Operator, TRACED};

/// Maximum number of call sites listed per operator.
const MOST_SITES: usize = 2;
/// Below this share of an operator's time only its main call site is listed.
const WORTH_A_LINE: f64 = 0.2;
/// Maximum number of activities listed for the time in operators, and outside of them.
const MOSTLY: usize = 3;

pub(super) fn operators(out: &mut String, profile: &Profile, analysis: &Analysis, rows: usize) {
    let Some(process) = analysis.primary() else {
        return;
    };
    let shown = sampled(profile, analysis);
    if shown.is_empty() {
        none(out, profile, analysis);
        return;
    }
    let whose = if process.cuda {
        "host op dispatch of the training thread (not GPU time)"
    } else {
        "wall time of the training thread"
    };
    line(out, &format!("\nOPERATORS, {whose}"));
    let has_calls = shown.iter().any(|row| row.calls_per_step.is_some());
    let columns = if has_calls { TRACED } else { OPERATORS };
    let table = TextTable::new(columns, &shown);
    table.head(out);
    for operator in shown.iter().take(rows) {
        table.row(out, operator);
        call_sites(out, operator);
    }
    table.rest(out, shown.get(rows..).unwrap_or_default());
    sum(out, process);
}

/// Why there are no operators to show, in a process with torch.
pub(super) fn none(out: &mut String, profile: &Profile, analysis: &Analysis) {
    let process = analysis.primary();
    let process = process.and_then(|process| profile.process(process.process));
    if !process.is_some_and(|process| process.info.has_torch) {
        return;
    }
    let why = match profile.run.reads_running_native() {
        true => "none seen: no sample of the training thread is in an operator of torch",
        false => "not known: native stacks of what runs were not recorded",
    };
    line(out, &format!("\nOPERATORS {why}"));
}

/// The operators with the most time, one line each, with their main call sites.
pub(super) fn brief(out: &mut String, shown: &[Operator], rows: usize) {
    if shown.is_empty() || rows == 0 {
        return;
    }
    out.push_str("\nOPERATORS, and where most of each is\n");
    body(out, BRIEF, shown.get(..rows).unwrap_or(shown), rows);
}

/// Operators with own time.
pub(super) fn sampled(profile: &Profile, analysis: &Analysis) -> Vec<Operator> {
    let mut found = rows_of(profile, analysis, usize::MAX, usize::MAX);
    found.retain(|operator| operator.self_s > 0.0);
    found
}

/// The call sites with most of an operator's own time.
fn call_sites(out: &mut String, operator: &Operator) {
    let sites = operator.by_time();
    let part = |self_s: f64| self_s / operator.self_s.max(1e-9);
    let listed = sites
        .iter()
        .take(MOST_SITES)
        .enumerate()
        .filter(|(index, site)| *index == 0 || part(site.self_s) >= WORTH_A_LINE)
        .count();
    for (index, site) in sites.iter().take(listed).enumerate() {
        let more = match sites.len() - listed {
            0 => String::new(),
            _ if index + 1 < listed => String::new(),
            left => format!(", … {left} more"),
        };
        let share = match sites.len() {
            1 => String::new(),
            _ => format!("{:.0} % ", part(site.self_s) * 100.0),
        };
        let text = format!("{:>12}{share}{}", "", site.shown());
        let kept = WIDTH.saturating_sub(more.chars().count());
        line(out, &format!("{}{more}", cut(&text, kept)));
    }
}

/// How much of the thread's time the table covers, and what the rest was.
fn sum(out: &mut String, process: &ProcessSummary) {
    let share = |ns: u64| percent(ns as f64 / process.wall_ns.max(1) as f64);
    let table = &process.operators;
    for (label, ns, activities) in [
        ("in operators", table.inside_ns(), &table.inside),
        ("in none", table.outside_ns(), &table.outside),
    ] {
        let mostly: Vec<String> = activities
            .iter()
            .take(MOSTLY)
            .filter(|&&(_, ns)| ns.saturating_mul(100) >= process.wall_ns)
            .map(|&(activity, ns)| format!("{} {}", activity.label(), share(ns)))
            .collect();
        let text = format!(
            "  {label:<13}{:>7} s{:>8}  {}",
            column_seconds(ns),
            share(ns),
            mostly.join(", ")
        );
        line(out, &cut(text.trim_end(), WIDTH));
    }
}
