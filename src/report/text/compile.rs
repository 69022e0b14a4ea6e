//! torch.compile: the time of compiling and of compiled code.

use super::format::{column_seconds, counted, cut, place_of, printable, share_of};
use super::table::table;
use super::{WIDTH, line};
use crate::analysis::compile::CompileTable;
use crate::analysis::intervals::Share;
use crate::analysis::summary::ProcessSummary;
use crate::model::compile::CompileStage;
use crate::report::tables::compile::FUNCTIONS;

/// Compiling without a known function gets no table below this share of wall time.
const WORTH_A_TABLE: f64 = 0.01;

pub(super) fn compile(out: &mut String, process: &ProcessSummary, rows: usize) {
    let found = &process.compile;
    let silent = found.functions.is_empty()
        && found.graph_breaks.is_empty()
        && found.compile_share.value < WORTH_A_TABLE;
    if found.is_empty() || silent {
        return;
    }
    out.push_str("\nTORCH.COMPILE, wall time of the training thread\n");
    sum(out, "compiling", found.compile_ns, &found.compile_share);
    let stages = stages(found);
    if !stages.is_empty() {
        line(out, &cut(&format!("    {stages}"), WIDTH));
    }
    sum(out, "compiled code", found.run_ns, &found.run_share);
    if !found.functions.is_empty() {
        table(out, FUNCTIONS, &found.functions, rows);
    }
    notes(out, found, rows);
}

fn sum(out: &mut String, label: &str, ns: u64, of_wall: &Share) {
    let text = format!(
        "  {label:<14}{:>9} s {}",
        column_seconds(ns),
        share_of(of_wall)
    );
    line(out, &cut(&text, WIDTH));
}

/// `dynamo 3.1 s, inductor 4.2 s`, the largest first.
fn stages(table: &CompileTable) -> String {
    let mut stages = table.stages.clone();
    stages.sort_by_key(|&(stage, ns)| (std::cmp::Reverse(ns), stage));
    let words: Vec<String> = stages
        .iter()
        .filter(|(_, ns)| *ns >= 50_000_000)
        .map(|&(stage, ns)| format!("{} {:.1} s", word(stage), ns as f64 / 1e9))
        .collect();
    words.join(", ")
}

fn word(stage: CompileStage) -> &'static str {
    match stage {
        CompileStage::Dynamo => "dynamo",
        CompileStage::AotAutograd => "AOT",
        CompileStage::Inductor => "inductor",
        CompileStage::Build => "C++/Triton",
        CompileStage::Other => "other",
    }
}

fn notes(out: &mut String, table: &CompileTable, rows: usize) {
    let again: u32 = table.functions.iter().map(|each| each.recompilations).sum();
    if again > 0 {
        let text = format!(
            "  recompiled: seen {} at least (TORCH_LOGS=recompiles says why)",
            times(again)
        );
        line(out, &cut(&text, WIDTH));
    }
    for site in table.graph_breaks.iter().take(rows) {
        let text = format!(
            "  graph break at {} in {}",
            place_of(&site.file, site.at.line),
            printable(&site.at.function)
        );
        line(out, &cut(&text, WIDTH));
    }
    let more = table.graph_breaks.len().saturating_sub(rows);
    if more > 0 {
        line(
            out,
            &format!("  … {}", counted(more as u64, "more graph break")),
        );
    }
    let unknown = [
        (table.unknown_ns, "compiling"),
        (table.backward_ns, "compiled code in backward"),
    ];
    for (ns, what) in unknown {
        if ns >= 50_000_000 {
            let text = format!("  of an unknown function: {what}, {} s", column_seconds(ns));
            line(out, &text);
        }
    }
}

fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        more => format!("{more} times"),
    }
}
