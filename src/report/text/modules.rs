//! The tree of modules of the training thread's forward passes.

use super::format::{column_seconds, count, cut, milliseconds, percent, printable, share};
use super::{WIDTH, line};
use crate::analysis::modules::ModuleGroup;
use crate::analysis::progress::StepUnit;
use crate::analysis::summary::ProcessSummary;
use std::cmp::Reverse;

pub(super) fn modules(out: &mut String, process: &ProcessSummary, rows: usize) {
    let tree = &process.modules;
    if tree.modules.is_empty() {
        return;
    }
    let whose = if process.cuda {
        "host time of forward (not GPU time)"
    } else {
        "time of forward"
    };
    line(out, &[format!("\nMODULES, {whose} on the training thread")]);
    let steps = process.progress.as_ref();
    let per_step = if steps.is_some() { "  ms/step" } else { "" };
    line(
        out,
        &[format!(
            "   self s  total s{per_step}  total %        module"
        )],
    );
    let shown = most(&tree.groups, rows);
    for group in &shown {
        row(out, group, process);
    }
    let left_out = tree.groups.len() - shown.len();
    if left_out > 0 {
        let text = format!(
            "{:>33}{:>width$}… {} more",
            "",
            "",
            count(left_out as u64),
            width = per_step.len()
        );
        line(out, &[text]);
    }
    if let Some(progress) = steps {
        let text = format!(
            "  ms/step: {} over all {} steps recorded",
            if progress.unit == StepUnit::Batch {
                "total"
            } else {
                "total less eval"
            },
            count(progress.steps)
        );
        line(out, &[text]);
    }
    let share = |ns: u64| percent(ns as f64 / process.wall_ns.max(1) as f64);
    let mut text = format!(
        "  in forward   {:>7} s{:>8}",
        column_seconds(tree.forward_ns),
        share(tree.forward_ns)
    );
    if tree.unread_ns > 0 {
        text.push_str(&format!(
            ", its module not read in {:.2} s",
            tree.unread_ns as f64 / 1e9
        ));
    }
    line(out, &[cut(&text, WIDTH)]);
}

/// The `count` groups with the most total time, in their order. What stands above one of them is among them: it has no less
/// time, and comes first.
fn most(groups: &[ModuleGroup], count: usize) -> Vec<&ModuleGroup> {
    let mut ranked: Vec<(usize, &ModuleGroup)> = groups.iter().enumerate().collect();
    ranked.sort_by_key(|&(at, group)| (Reverse(group.time.total_ns), at));
    ranked.truncate(count);
    ranked.sort_by_key(|&(at, _)| at);
    ranked.into_iter().map(|(_, group)| group).collect()
}

fn row(out: &mut String, group: &ModuleGroup, process: &ProcessSummary) {
    let (module, wall_ns) = (&group.time, process.wall_ns);
    let tenths = (module.total_ns as f64 * 1000.0 / wall_ns.max(1) as f64).round() as u32;
    let mut about = Vec::new();
    let class = printable(&module.class);
    match (module.depth > 0 && !class.is_empty(), group.count) {
        (true, 1) => about.push(class.into_owned()),
        (true, many) => about.push(format!("{} x {class}", count(many as u64))),
        (false, 1) => {}
        (false, many) => about.push(count(many as u64)),
    }
    if module.depth == 0 && module.number > 0 {
        about.push(format!("#{}", u64::from(module.number) + 1));
    }
    match module.eval_ns {
        0 => {}
        all if all >= module.total_ns => about.push("eval".to_owned()),
        part => {
            let share = part as f64 / module.total_ns.max(1) as f64;
            about.push(format!("{:.0} % eval", share * 100.0));
        }
    }
    let about = match about.is_empty() {
        true => String::new(),
        false => format!(" ({})", about.join(", ")),
    };
    let per_step = process.per_step_ns(module);
    let per_step = per_step.map_or(String::new(), |ns| format!("{:>9}", milliseconds(ns / 1e6)));
    let text = format!(
        "{:>9}{:>9}{per_step}  {:<13} {:indent$}{}{about}",
        column_seconds(module.self_ns),
        column_seconds(module.total_ns),
        share(&module.total_share, tenths),
        "",
        printable(&group.name),
        indent = 2 * module.depth.min(12),
    );
    line(out, &[cut(&text, WIDTH)]);
}
