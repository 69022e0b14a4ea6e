//! Backward: nodes of autograd's graph, the lines that called it, and their modules.

use super::format::{column_seconds, printable};
use super::table::{body, table};
use super::{line, sentence};
use crate::analysis::Analysis;
use crate::analysis::backward::BackwardTable;
use crate::model::profile::Profile;
use crate::report::tables::backward as rows_of;
use crate::report::tables::backward::{LINES, MODULES, NODES};

/// Maximum number of listed lines and modules.
const MOST_LINES: usize = 3;
const MOST_MODULES: usize = 6;
/// Unlisted time below this share of the phase gets no line.
const WORTH_A_LINE: f64 = 0.005;

pub(super) fn backward(out: &mut String, profile: &Profile, analysis: &Analysis, rows: usize) {
    let Some(process) = analysis.primary() else {
        return;
    };
    let found = &process.backward;
    if found.total_ns == 0 && found.recompute.is_empty() {
        return;
    }
    let whose = if process.cuda {
        "host time under the lines that called it (not GPU time)"
    } else {
        "wall time under the lines that called it"
    };
    line(out, &format!("\nBACKWARD, {whose}"));
    body(
        out,
        LINES,
        &rows_of::lines(profile, analysis, usize::MAX),
        MOST_LINES,
    );
    let mut nodes = rows_of::nodes(profile, analysis, usize::MAX);
    nodes.retain(|node| node.self_s > 0.0);
    if !nodes.is_empty() {
        table(out, NODES, &nodes, rows);
    }
    let is_worth = |ns: u64| ns as f64 >= found.total_ns as f64 * WORTH_A_LINE && ns > 0;
    if is_worth(found.outside_ns) {
        let text = format!(
            "{:>9}{:>24}in no node (the engine, and waiting for it)",
            column_seconds(found.outside_ns),
            ""
        );
        line(out, &text);
    }
    body(
        out,
        MODULES,
        &rows_of::modules(profile, analysis, usize::MAX),
        MOST_MODULES,
    );
    if is_worth(found.unmatched_ns) && !nodes.is_empty() {
        let part = found.unmatched_ns as f64 / found.total_ns.max(1) as f64;
        let text = format!(
            "  of unknown modules: {} s, {:.0} % of backward",
            column_seconds(found.unmatched_ns),
            part * 100.0
        );
        line(out, &text);
    }
    recompute(out, found);
}

/// `forward recomputed 1.20 s: Block 0.80 s, Linear 0.40 s`.
fn recompute(out: &mut String, table: &BackwardTable) {
    let all_ns: u64 = table.recompute.iter().map(|each| each.ns).sum();
    if all_ns == 0 {
        return;
    }
    let parts: Vec<String> = table
        .recompute
        .iter()
        .take(MOST_MODULES)
        .map(|each| {
            let class = each.class.as_deref().unwrap_or("module not known");
            format!("{} {} s", printable(class), column_seconds(each.ns))
        })
        .collect();
    let text = format!(
        "and {} s of recompute (activation checkpointing): {}",
        column_seconds(all_ns),
        parts.join(", ")
    );
    sentence(out, "  ", &text);
}
