//! Texts of boxes.

use super::tree::Node;
use crate::analysis::gpu_overlay::account::Part;
use crate::model::category::{Activity, Phase};
use crate::report::label::{self, LONG, SHORT};
use crate::report::view::{Root, Shown, View};
use std::fmt::Write;

/// The text of a box: the tooltip's first line.
pub(super) fn caption(view: &View<'_>, node: &Node) -> String {
    match node.shown {
        Some(shown) => view.label(shown),
        None => {
            let root = &view.roots()[node.root];
            let drawn = label::duration(root.drawn_ns);
            match (root.training, root.drawn_ns < root.wall_ns) {
                (true, _) => format!("{} · training thread, {drawn} wall time", root.label),
                (false, true) => format!(
                    "{} · {drawn} active of {}",
                    root.label,
                    label::duration(root.wall_ns)
                ),
                (false, false) => format!("{} · {drawn}", root.label),
            }
        }
    }
}

/// The tooltip: names first, then a blank line, then figures. Search looks at the names only.
pub(super) fn tooltip(view: &View<'_>, node: &Node) -> String {
    let root = &view.roots()[node.root];
    let mut text = caption(view, node);
    match node.shown {
        Some(shown) => describe_frame(&mut text, view, shown),
        None => describe_root(&mut text, root),
    }
    let _ = write!(
        text,
        "\n\n{} = {} of the {} wall time of {}",
        label::duration(node.total_ns),
        label::percent(node.total_ns, root.wall_ns),
        label::duration(root.wall_ns),
        root.label
    );
    if node.shown.is_some() {
        let _ = write!(text, "\nself: {}", label::duration(node.self_ns));
    }
    let profile = view.profile();
    let names = Phase::ALL.iter().map(|&phase| profile.phase_name(phase));
    let phases = names.zip(node.phases);
    write_shares(&mut text, "phase", phases.collect(), node.total_ns);
    let activities = Activity::ALL
        .iter()
        .map(|activity| activity.name())
        .zip(node.activities);
    write_shares(&mut text, "activity", activities.collect(), node.total_ns);
    if let Some(part) = &node.gpu_idle {
        text.push_str(&gpu(part));
    }
    if node.guessed_ns > 0 {
        let share = label::percent(node.guessed_ns, node.total_ns);
        let _ = write!(
            text,
            "\nguessed: in {share} of this time a checked guess, not unwind information, led here"
        );
    }
    text
}

/// Idle time of the GPU at the same time: an estimate with its bounds, or a note that it is not
/// resolved.
fn gpu(part: &Part) -> String {
    let Some(share) = part.share() else {
        return "\nGPU at the same time: not resolved (shorter than 2 windows of the driver each time)"
            .to_owned();
    };
    let of_all = |ns: f64| (ns / part.host_ns.max(1) as f64 * 100.0).clamp(0.0, 100.0);
    format!(
        "\nGPU at the same time: idle {:.0} % (estimate, {:.0} to {:.0} %)",
        share * 100.0,
        of_all(part.low).floor(),
        of_all(part.high).ceil()
    )
}

fn describe_frame(text: &mut String, view: &View<'_>, shown: Shown) {
    let category = view.kind(shown).name();
    let Shown::Code { line, .. } = shown else {
        let meaning = match shown {
            Shown::Partial(_) => "towards the root, this stack was not read",
            Shown::Module(_) => "nn.Module: its calls, and what they called",
            Shown::CpuWait => "could run, but had no CPU (run queue or cgroup throttling)",
            _ => "no stack was read",
        };
        let _ = write!(text, "\n{meaning}\ncategory: {category}");
        return;
    };
    if let Some(function) = view.function(shown) {
        if function.name != function.short_name {
            let _ = write!(text, "\n{}", label::clean(&function.name, LONG));
        }
        let file = label::clean(&function.file, SHORT * 2);
        match (file.is_empty(), function.is_python && line > 0) {
            (true, _) => {}
            (false, true) => {
                let _ = write!(text, "\n{file}:{line}");
            }
            (false, false) => {
                let _ = write!(text, "\n{file}");
            }
        }
    }
    let _ = write!(text, "\ncategory: {category}");
}

fn describe_root(text: &mut String, root: &Root) {
    let _ = write!(text, "\npid {}, tid {}", root.pid, root.tid);
    let hidden = root.wall_ns.saturating_sub(root.drawn_ns);
    if hidden > 0 {
        let _ = write!(
            text,
            "\n{} of waiting without work not drawn (--idle draws it)",
            label::duration(hidden)
        );
    }
}

/// The three largest shares: `phase: forward 80.0 %, backward 20.0 %`.
fn write_shares(text: &mut String, what: &str, mut parts: Vec<(&str, u64)>, whole: u64) {
    parts.retain(|&(_, ns)| ns > 0);
    parts.sort_by_key(|&(_, ns)| std::cmp::Reverse(ns));
    let shares: Vec<String> = parts
        .iter()
        .take(3)
        .map(|&(name, ns)| {
            if ns == whole {
                name.to_owned()
            } else {
                format!("{name} {}", label::percent(ns, whole))
            }
        })
        .collect();
    let more = if parts.len() > 3 { ", …" } else { "" };
    if !shares.is_empty() {
        let _ = write!(text, "\n{what}: {}{more}", shares.join(", "));
    }
}
