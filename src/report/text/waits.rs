//! What the training thread waited for, and what its DataLoader workers did meanwhile.

use super::format::{column_seconds, count, cut, percent, place, printable, share};
use super::{WIDTH, line};
use crate::analysis::Analysis;
use crate::analysis::input_queue::{InlineInput, Meanwhile, TaskTime};
use crate::analysis::waits::{Holder, ProcessWaits, WaitTime, thread_name};
use crate::model::facts::Line;
use crate::model::input::InputTask;
use crate::model::profile::Profile;
use crate::model::wait::WaitKind;

/// Holders of the GIL, and lines of a task, that are listed.
const MOST: usize = 2;
/// The share of a whole below which a task is not listed.
const WORTH_A_WORD: f64 = 0.01;

pub(super) fn waits(out: &mut String, profile: &Profile, analysis: &Analysis, rows: usize) {
    let Some(waits) = analysis.primary_waits() else {
        return;
    };
    if waits.ns > 0 {
        table(out, profile, waits, rows);
    }
    if let Some(inline) = &waits.inline {
        own_input(out, profile, inline, waits.wall_ns);
    }
}

fn tenths(ns: u64, whole_ns: u64) -> u32 {
    (ns as f64 * 1000.0 / whole_ns.max(1) as f64).round() as u32
}

fn table(out: &mut String, profile: &Profile, waits: &ProcessWaits, rows: usize) {
    out.push_str("\nWAITS of the training thread (host time)\n");
    out.push_str("  seconds    % of all     for what, at\n");
    let list = without_cpu_lines(waits);
    // Lists of everything are asked for with no limit on rows.
    let least_ns = if rows == usize::MAX {
        0
    } else {
        waits.wall_ns / 1000
    };
    let shown = list
        .iter()
        .take(rows)
        .take_while(|wait| wait.ns >= least_ns)
        .count();
    let mut told_meanwhile = false;
    for wait in list.iter().take(shown) {
        row(out, profile, wait, waits.wall_ns);
        for holder in wait.holders.iter().take(MOST) {
            line(out, &[cut(&held(profile, holder), WIDTH)]);
        }
        if wait.kind == WaitKind::Input
            && let Some(meanwhile) = waits.meanwhile.as_ref().filter(|_| !told_meanwhile)
        {
            told_meanwhile = true;
            workers(out, profile, meanwhile);
        }
    }
    let rest = list.get(shown..).unwrap_or_default();
    if !rest.is_empty() {
        let ns: u64 = rest.iter().map(|wait| wait.ns).sum();
        let text = format!(
            "{:>9}  {:>7}        … {} more",
            column_seconds(ns),
            percent(ns as f64 / waits.wall_ns.max(1) as f64),
            count(rest.len() as u64)
        );
        line(out, &[text]);
    }
    let text = format!(
        "{:>9}  {:<14} waits together",
        column_seconds(waits.ns),
        share(&waits.share, tenths(waits.ns, waits.wall_ns)),
    );
    line(out, &[text]);
    let mut shown = list.iter().take(shown);
    if shown.any(|wait| wait.kind.is_for_earlier_work()) {
        out.push_str(
            "  * waits for work that the GPU was given earlier: this is not the line's own\n    \
             cost, and leaving the line out moves the wait elsewhere.\n",
        );
    }
}

/// The waits, those for a CPU as one: they are the machine's, not a line's. It stands at the line
/// with the most of them.
fn without_cpu_lines(waits: &ProcessWaits) -> Vec<WaitTime> {
    let (cpu, mut list): (Vec<WaitTime>, Vec<WaitTime>) = waits
        .rows
        .iter()
        .cloned()
        .partition(|wait| wait.kind == WaitKind::Cpu);
    let all = waits
        .kinds
        .iter()
        .find(|(kind, _, _)| *kind == WaitKind::Cpu);
    if let (Some(first), Some(&(_, ns, share))) = (cpu.into_iter().next(), all) {
        let at = list.partition_point(|wait| wait.ns > ns);
        list.insert(at, WaitTime { ns, share, ..first });
    }
    list
}

/// A wait in words.
fn words(wait: &WaitTime) -> String {
    let what = printable(&wait.what);
    let mark = if wait.kind.is_for_earlier_work() {
        " *"
    } else {
        ""
    };
    let kind = match wait.kind {
        WaitKind::GpuSync => "GPU sync",
        WaitKind::GpuCopy => "GPU copy",
        WaitKind::Input => "input",
        WaitKind::Io => "I/O",
        WaitKind::Gil
        | WaitKind::Cpu
        | WaitKind::Autograd
        | WaitKind::Barrier
        | WaitKind::Stopped => {
            return what.into_owned();
        }
        kind => kind.name(),
    };
    format!("{kind}: {what}{mark}")
}

fn row(out: &mut String, profile: &Profile, wait: &WaitTime, wall_ns: u64) {
    let head = format!(
        "{:>9}  {:<14} {}",
        column_seconds(wait.ns),
        share(&wait.share, tenths(wait.ns, wall_ns)),
        words(wait)
    );
    let at = match wait.kind {
        WaitKind::Cpu => format!("most at {}", line_text(profile, wait.at, false)),
        _ => line_text(profile, wait.at, false),
    };
    if head.chars().count() + 2 + at.chars().count() <= WIDTH {
        line(out, &[head, "  ".to_owned(), at]);
    } else {
        line(out, &[cut(&head, WIDTH)]);
        let before = if wait.kind == WaitKind::Cpu {
            ""
        } else {
            "at "
        };
        line(out, &[cut(&format!("{before:>28}{at}"), WIDTH)]);
    }
}

/// `train.py:41`, or `train.py:41 slow_transform`.
pub(super) fn line_text(profile: &Profile, at: Option<Line>, named: bool) -> String {
    let Some((function, number)) = at else {
        return "a line that was not read".to_owned();
    };
    profile
        .functions
        .get(function.index())
        .map_or(String::new(), |function| {
            let at = place(function, number);
            if named {
                format!("{at} {}", printable(&function.name))
            } else {
                at
            }
        })
}

fn held(profile: &Profile, holder: &Holder) -> String {
    format!(
        "{:>13}held {} s by thread {}: {}",
        "",
        column_seconds(holder.ns),
        printable(&thread_name(profile, holder.thread)),
        line_text(profile, holder.at, true)
    )
}

/// A task for people.
fn task_name(task: InputTask) -> &'static str {
    match task {
        InputTask::Dataset => "dataset code",
        InputTask::Idle => "idle (nothing asked for)",
        InputTask::GilWait => "GIL wait",
        InputTask::CpuWait => "no CPU",
        task => task.name(),
    }
}

fn workers(out: &mut String, profile: &Profile, meanwhile: &Meanwhile) {
    let busy = meanwhile.workers * meanwhile.busy.value;
    let busy_share = share(
        &meanwhile.busy,
        (meanwhile.busy.value * 1000.0).round() as u32,
    );
    let text = format!(
        "{:>13}meanwhile {busy:.1} of {:.1} workers were busy, {} of their time:",
        "",
        meanwhile.workers,
        busy_share.trim()
    );
    line(out, &[cut(&text, WIDTH)]);
    tasks(out, profile, &meanwhile.tasks, meanwhile.worker_ns);
}

fn tasks(out: &mut String, profile: &Profile, tasks: &[TaskTime], whole_ns: u64) {
    let worth = |task: &&TaskTime| task.ns as f64 >= WORTH_A_WORD * whole_ns as f64;
    for task in tasks.iter().filter(worth) {
        let lines: Vec<String> = task
            .lines
            .iter()
            .filter(|(at, _)| at.is_some())
            .take(MOST)
            .map(|&(at, ns)| {
                let part = ns as f64 / task.ns.max(1) as f64;
                format!("{:.0} % at {}", part * 100.0, line_text(profile, at, false))
            })
            .collect();
        let lines = match task.task {
            InputTask::Idle | InputTask::Other => String::new(),
            _ => lines.join(", "),
        };
        let text = format!(
            "{:>13}{:<14} {:<13} {lines}",
            "",
            share(&task.share, tenths(task.ns, whole_ns)),
            task_name(task.task),
        );
        line(out, &[cut(&text, WIDTH)]);
    }
}

fn own_input(out: &mut String, profile: &Profile, inline: &InlineInput, wall_ns: u64) {
    // Even with workers the training thread does a little of the loader's work.
    if inline.share.is_uncertain() || inline.ns.saturating_mul(100) < wall_ns {
        return;
    }
    out.push_str("\nINPUT of the training thread itself, % of all (with its waits for a CPU)\n");
    let text = format!(
        "{:>9}  {:<14}",
        column_seconds(inline.ns),
        share(&inline.share, tenths(inline.ns, wall_ns))
    );
    line(out, &[text]);
    tasks(out, profile, &inline.tasks, wall_ns);
}
