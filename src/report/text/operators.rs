//! The operators of the training thread.

use super::format::{column_seconds, count, cut, percent, place, printable, share};
use super::tables::column;
use super::{WIDTH, line};
use crate::analysis::operators::{OperatorTime, Place, Site};
use crate::analysis::summary::ProcessSummary;
use crate::model::operator::NamedBy;
use crate::model::profile::Profile;

/// Places of one operator that are listed.
const PLACES: usize = 2;
/// The share of an operator's time below which only its main place is listed.
const WORTH_A_LINE: f64 = 0.2;
/// Activities that are listed of the time in operators, and in none.
const MOSTLY: usize = 3;

pub(super) fn operators(
    out: &mut String,
    profile: &Profile,
    process: &ProcessSummary,
    rows: usize,
) {
    let shown = sampled(process);
    let has_torch = profile
        .processes
        .get(process.process.index())
        .is_some_and(|process| process.info.has_torch);
    if shown.is_empty() {
        if has_torch && !profile.run.reads_running_native() {
            out.push_str(
                "\nOPERATORS\n  Not known: native stacks of what runs were not recorded.\n",
            );
        }
        return;
    }
    let whose = if process.cuda {
        "host op dispatch of the training thread (not GPU time)"
    } else {
        "wall time of the training thread"
    };
    line(out, &[format!("\nOPERATORS, {whose}")]);
    out.push_str("   self s  total s   self %        operator (sampled: calls are not counted)\n");
    for operator in shown.iter().take(rows) {
        row(out, profile, operator, process.wall_ns);
    }
    let rest = shown.get(rows..).unwrap_or_default();
    if !rest.is_empty() {
        let rest_ns: u64 = rest.iter().map(|operator| operator.self_ns).sum();
        line(
            out,
            &[format!(
                "{:>9}{:>9}  {:>7}       … {} more",
                column_seconds(rest_ns),
                "",
                percent(rest_ns as f64 / process.wall_ns.max(1) as f64),
                count(rest.len() as u64)
            )],
        );
    }
    sum(out, process);
}

/// The operators that took the most, a line each, with the main place of each.
pub(super) fn brief(out: &mut String, profile: &Profile, process: &ProcessSummary, rows: usize) {
    let shown = sampled(process);
    if shown.is_empty() || rows == 0 {
        return;
    }
    out.push_str("\nOPERATORS, and where most of each is\n");
    for operator in shown.iter().take(rows) {
        let (name, share) = name_and_share(operator, process.wall_ns);
        let sites = by_time(operator);
        let place = sites.first().map(|site| place_text(profile, &site.place));
        let text = format!(
            "{:>9}  {share:<14}{name}  {}",
            column_seconds(operator.self_ns),
            place.unwrap_or_default()
        );
        line(out, &[cut(&text, WIDTH)]);
    }
}

pub(super) fn sampled(process: &ProcessSummary) -> Vec<&OperatorTime> {
    let operators = process.operators.operators.iter();
    operators.filter(|operator| operator.self_ns > 0).collect()
}

fn name_and_share(operator: &OperatorTime, wall_ns: u64) -> (String, String) {
    let tenths = (operator.self_ns as f64 * 1000.0 / wall_ns.max(1) as f64).round() as u32;
    let name = match operator.named_by {
        NamedBy::Schema => printable(&operator.name).into_owned(),
        NamedBy::Kernel => format!("{} (kernel)", printable(&operator.name)),
    };
    (name, share(&operator.share, tenths))
}

/// Where an operator was called, the place with the most time first.
fn by_time(operator: &OperatorTime) -> Vec<&Site> {
    let mut sites: Vec<&Site> = operator
        .sites
        .iter()
        .filter(|site| site.self_ns > 0)
        .collect();
    sites.sort_by_key(|site| std::cmp::Reverse(site.self_ns));
    sites
}

fn row(out: &mut String, profile: &Profile, operator: &OperatorTime, wall_ns: u64) {
    let (name, share) = name_and_share(operator, wall_ns);
    let text = format!(
        "{:>9}{:>9}  {share:<13} {name}",
        column_seconds(operator.self_ns),
        column_seconds(operator.total_ns),
    );
    line(out, &[cut(&text, WIDTH)]);
    let sites = by_time(operator);
    let part = |ns: u64| ns as f64 / operator.self_ns.max(1) as f64;
    let listed = sites
        .iter()
        .take(PLACES)
        .enumerate()
        .filter(|(index, site)| *index == 0 || part(site.self_ns) >= WORTH_A_LINE)
        .count();
    for (index, site) in sites.iter().take(listed).enumerate() {
        let more = match sites.len() - listed {
            0 => String::new(),
            _ if index + 1 < listed => String::new(),
            left => format!(", … {left} more"),
        };
        let share = match sites.len() {
            1 => String::new(),
            _ => format!("{:.0} % ", part(site.self_ns) * 100.0),
        };
        let text = format!("{:>12}{share}{}", "", place_text(profile, &site.place));
        let kept = WIDTH.saturating_sub(more.chars().count());
        line(out, &[cut(&text, kept), more]);
    }
}

/// `backward, ConvolutionBackward0, train.py:57`; `forward, Conv2d, train.py:33`.
fn place_text(profile: &Profile, at: &Place) -> String {
    let mut text = profile.phase_name(at.phase).to_owned();
    for part in [&at.node, &at.module].into_iter().flatten() {
        text.push_str(", ");
        text.push_str(&printable(part));
    }
    let source = at.line.and_then(|(function, line)| {
        let function = profile.functions.get(function.index())?;
        Some(place(function, line))
    });
    if let Some(source) = source {
        text.push_str(", ");
        text.push_str(&source);
    }
    text
}

/// How much of the thread's time the table is of, and what the rest was.
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
            .map(|&(activity, ns)| format!("{} {}", column(activity), share(ns)))
            .collect();
        let text = format!(
            "  {label:<13}{:>7} s{:>8}  {}",
            column_seconds(ns),
            share(ns),
            mostly.join(", ")
        );
        line(out, &[cut(text.trim_end(), WIDTH)]);
    }
}
