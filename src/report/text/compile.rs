//! torch.compile: what compiling cost, and what ran of it.

use super::format::{column_seconds, count, cut, place_of, printable, share};
use super::{WIDTH, line};
use crate::analysis::compile::{CompileTable, CompiledFunction};
use crate::analysis::intervals::Share;
use crate::analysis::summary::ProcessSummary;
use crate::model::compile::CompileStage;

/// The share of wall time below which compiling without a function that is known is not worth a table.
const WORTH_A_TABLE: f64 = 0.01;

pub(super) fn compile(out: &mut String, process: &ProcessSummary, rows: usize) {
    let table = &process.compile;
    let silent = table.functions.is_empty()
        && table.graph_breaks.is_empty()
        && table.compile_share.value < WORTH_A_TABLE;
    if table.is_empty() || silent {
        return;
    }
    out.push_str("\nTORCH.COMPILE, wall time of the training thread\n");
    sum(out, "compiling", table.compile_ns, &table.compile_share);
    let stages = stages(table);
    if !stages.is_empty() {
        line(out, &[cut(&format!("    {stages}"), WIDTH)]);
    }
    sum(out, "compiled code", table.run_ns, &table.run_share);
    if !table.functions.is_empty() {
        out.push_str("  compile s     run s  run %         times  function\n");
    }
    for function in table.functions.iter().take(rows) {
        row(out, function);
    }
    let rest = table.functions.get(rows..).unwrap_or_default();
    if !rest.is_empty() {
        let compile_ns = rest.iter().map(|each| each.compile_ns).sum();
        let run_ns = rest.iter().map(|each| each.run_ns).sum();
        let text = format!(
            "{:>11}{:>10}  {:<21}… {} more",
            column_seconds(compile_ns),
            column_seconds(run_ns),
            "",
            count(rest.len() as u64)
        );
        line(out, &[text]);
    }
    notes(out, table, rows);
}

fn sum(out: &mut String, label: &str, ns: u64, of_wall: &Share) {
    let text = format!(
        "  {label:<14}{:>9} s {}",
        column_seconds(ns),
        share(of_wall, tenths(of_wall))
    );
    line(out, &[cut(&text, WIDTH)]);
}

fn tenths(of_wall: &Share) -> u32 {
    (of_wall.value * 1000.0).round() as u32
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

fn row(out: &mut String, function: &CompiledFunction) {
    let at = match function.file.is_empty() {
        true => String::new(),
        false => format!(" ({})", place_of(&function.file, function.line)),
    };
    let times = match function.compilations {
        0 => "-".to_owned(),
        seen => format!(">={}", count(u64::from(seen))),
    };
    let text = format!(
        "{:>11}{:>10}  {:<13} {times:>5}  {}{at}",
        column_seconds(function.compile_ns),
        column_seconds(function.run_ns),
        share(&function.run_share, tenths(&function.run_share)),
        printable(&function.name),
    );
    line(out, &[cut(&text, WIDTH)]);
}

fn notes(out: &mut String, table: &CompileTable, rows: usize) {
    let again: u32 = table.functions.iter().map(|each| each.recompilations).sum();
    if again > 0 {
        let text = format!(
            "  recompiled: seen {} at least (TORCH_LOGS=recompiles says why)",
            times(again)
        );
        line(out, &[cut(&text, WIDTH)]);
    }
    for site in table.graph_breaks.iter().take(rows) {
        let text = format!(
            "  graph break at {} in {}",
            place_of(&site.file, site.at.line),
            printable(&site.at.function)
        );
        line(out, &[cut(&text, WIDTH)]);
    }
    let more = table.graph_breaks.len().saturating_sub(rows);
    if more > 0 {
        line(
            out,
            &[format!("  … {} more graph breaks", count(more as u64))],
        );
    }
    let unknown = [
        (table.unknown_ns, "compiling"),
        (table.backward_ns, "compiled code in backward"),
    ];
    for (ns, what) in unknown {
        if ns >= 50_000_000 {
            let text = format!(
                "  of which function is not known: {what}, {} s",
                column_seconds(ns)
            );
            line(out, &[text]);
        }
    }
}

fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        more => format!("{more} times"),
    }
}
