//! Backward: nodes of autograd's graph, under the line that called it, and their modules.

use super::format::{column_seconds, count, cut, place, printable, share};
use super::{WIDTH, line, sentence};
use crate::analysis::backward::{BackwardTable, NodeTime};
use crate::analysis::forward::{Home, of_nets};
use crate::analysis::intervals::Share;
use crate::analysis::summary::ProcessSummary;
use crate::model::profile::Profile;

/// Lines that called backward, and modules, that are listed.
const LINES: usize = 3;
const MODULES: usize = 6;
/// Time below which what is left over is not worth a line: part of the phase.
const WORTH_A_LINE: f64 = 0.005;

pub(super) fn backward(out: &mut String, profile: &Profile, process: &ProcessSummary, rows: usize) {
    let table = &process.backward;
    if table.total_ns == 0 && table.recompute.is_empty() {
        return;
    }
    let whose = if process.cuda {
        "host time under the lines that called it (not GPU time)"
    } else {
        "wall time under the lines that called it"
    };
    line(out, &[format!("\nBACKWARD, {whose}")]);
    lines(out, profile, table);
    let nodes: Vec<&NodeTime> = table.nodes.iter().filter(|node| node.self_ns > 0).collect();
    if !nodes.is_empty() {
        out.push_str("   self s  total s   self %        node, and whose forward made it\n");
    }
    for node in nodes.iter().take(rows) {
        row(out, profile, node);
    }
    let rest = nodes.get(rows..).unwrap_or_default();
    if !rest.is_empty() {
        let rest_ns: u64 = rest.iter().map(|node| node.self_ns).sum();
        let text = format!(
            "{:>9}{:>24}… {} more",
            column_seconds(rest_ns),
            "",
            count(rest.len() as u64)
        );
        line(out, &[text]);
    }
    let is_worth = |ns: u64| ns as f64 >= table.total_ns as f64 * WORTH_A_LINE && ns > 0;
    if is_worth(table.outside_ns) {
        let text = format!(
            "{:>9}{:>24}in no node (the engine, and waiting for it)",
            column_seconds(table.outside_ns),
            ""
        );
        line(out, &[text]);
    }
    modules(out, profile, table);
    if is_worth(table.unmatched_ns) && !nodes.is_empty() {
        let part = table.unmatched_ns as f64 / table.total_ns.max(1) as f64;
        let text = format!(
            "  of no module that can be told: {} s, {:.0} % of backward",
            column_seconds(table.unmatched_ns),
            part * 100.0
        );
        line(out, &[text]);
    }
    recompute(out, table);
}

fn tenths(of_wall: &Share) -> u32 {
    (of_wall.value * 1000.0).round() as u32
}

fn lines(out: &mut String, profile: &Profile, table: &BackwardTable) {
    for each in table.lines.iter().take(LINES) {
        let at = each.line.and_then(|(function, line)| {
            let function = profile.functions.get(function.index())?;
            Some(format!(
                "{} {}",
                place(function, line),
                printable(&function.name)
            ))
        });
        let text = format!(
            "{:>18}  {:<13} {}",
            column_seconds(each.ns),
            share(&each.share, tenths(&each.share)),
            at.unwrap_or_else(|| "no line of your code".to_owned())
        );
        line(out, &[cut(&text, WIDTH)]);
    }
    let more = table.lines.len().saturating_sub(LINES);
    if more > 0 {
        line(
            out,
            &[format!("{:>33}… {} more lines", "", count(more as u64))],
        );
    }
}

fn row(out: &mut String, profile: &Profile, node: &NodeTime) {
    let home = match &node.home {
        Home::Module { id, .. } => {
            let info = profile.nn_modules.get(id.index());
            let label = info.map_or(String::new(), |info| info.label());
            format!(" < {}", printable(&label))
        }
        Home::Class(class) => format!(" < {}", printable(class)),
        Home::Nets(nets) => format!(" < {}", printable(&of_nets(nets))),
        Home::Several(classes) => {
            let names: Vec<_> = classes.iter().map(|class| printable(class)).collect();
            match names.len() {
                0 | 1 => format!(" < {} and outside", names.join("")),
                _ => format!(" < {}", names.join(" or ")),
            }
        }
        Home::Outside => " < no module".to_owned(),
        Home::Seldom | Home::NotSeen => String::new(),
    };
    let text = format!(
        "{:>9}{:>9}  {:<13} {}{home}",
        column_seconds(node.self_ns),
        column_seconds(node.total_ns),
        share(&node.share, tenths(&node.share)),
        printable(&node.name),
    );
    line(out, &[cut(&text, WIDTH)]);
}

fn modules(out: &mut String, profile: &Profile, table: &BackwardTable) {
    for each in table.modules.iter().take(MODULES) {
        let info = each
            .module
            .and_then(|id| profile.nn_modules.get(id.index()));
        let name = match info {
            Some(info) => info.label(),
            None => format!("all {}", each.class),
        };
        let text = format!(
            "{:>9}{:>9}  {:<13} of {}",
            column_seconds(each.ns),
            "",
            share(&each.share, tenths(&each.share)),
            printable(&name)
        );
        line(out, &[cut(&text, WIDTH)]);
    }
    let more = table.modules.len().saturating_sub(MODULES);
    if more > 0 {
        line(out, &[format!("{:>33}… {} more", "", count(more as u64))]);
    }
}

/// `forward computed again 1.20 s: Block 0.80 s, Linear 0.40 s`.
fn recompute(out: &mut String, table: &BackwardTable) {
    let all_ns: u64 = table.recompute.iter().map(|each| each.ns).sum();
    if all_ns == 0 {
        return;
    }
    let parts: Vec<String> = table
        .recompute
        .iter()
        .take(MODULES)
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
