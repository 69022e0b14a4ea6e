//! The tree of modules of the training thread's forward passes.

use super::format::{column_seconds, counted, cut, percent};
use super::table::TextTable;
use super::{WIDTH, line};
use crate::analysis::Analysis;
use crate::analysis::progress::StepUnit;
use crate::report::tables::modules::{MODULES, groups};

pub(super) fn modules(out: &mut String, analysis: &Analysis, rows: usize) {
    let Some(process) = analysis.primary() else {
        return;
    };
    let tree = &process.modules;
    if tree.modules.is_empty() {
        return;
    }
    let whose = if process.cuda {
        "host time of forward (not GPU time)"
    } else {
        "time of forward"
    };
    line(out, &format!("\nMODULES, {whose} on the training thread"));
    let shown = groups(analysis, rows);
    let table = TextTable::new(MODULES, &shown);
    table.head(out);
    for group in &shown {
        table.row(out, group);
    }
    table.more(out, tree.groups.len() - shown.len());
    let are_known = tree
        .groups
        .iter()
        .any(|group| group.time.per_step_ms.is_some());
    if let Some(progress) = process.progress.as_ref().filter(|_| are_known) {
        let text = format!(
            "  ms/step: {} over {} recorded",
            if progress.unit == StepUnit::Batch {
                "total"
            } else {
                "total less eval"
            },
            counted(progress.steps, "step")
        );
        line(out, &text);
    }
    let mut text = format!(
        "  in forward   {:>7} s{:>8}",
        column_seconds(tree.forward_ns),
        percent(process.part(tree.forward_ns))
    );
    if tree.unknown_ns > 0 {
        text.push_str(&format!(
            ", its module not read in {:.2} s",
            tree.unknown_ns as f64 / 1e9
        ));
    }
    line(out, &cut(&text, WIDTH));
}
