//! What the training thread waited for, and what its DataLoader workers did at the same time.

use super::format::{column_seconds, cut, printable, share_of};
use super::table::TextTable;
use super::{WIDTH, line};
use crate::analysis::Analysis;
use crate::analysis::waits::{ProcessWaits, WaitTime};
use crate::model::input::InputTask;
use crate::model::profile::Profile;
use crate::model::wait::WaitKind;
use crate::report::tables::input::{OwnInput, Task, Workers, input};
use crate::report::tables::waits::{At, GilHolder, WAITS, Wait, wait};

/// Maximum number of listed holders of the GIL, and of lines of a task.
const MOST: usize = 2;
/// A task below this share is not listed.
const WORTH_A_LINE: f64 = 0.01;

pub(super) fn waits(out: &mut String, profile: &Profile, analysis: &Analysis, rows: usize) {
    let Some(waits) = analysis.primary_waits() else {
        return;
    };
    let input = input(profile, analysis);
    if waits.ns > 0 {
        let workers = input.as_ref().and_then(|input| input.workers.as_ref());
        table(out, profile, waits, workers, rows);
    }
    if let Some(own) = input.and_then(|input| input.own) {
        own_input(out, &own);
    }
}

fn table(
    out: &mut String,
    profile: &Profile,
    waits: &ProcessWaits,
    workers: Option<&Workers>,
    rows: usize,
) {
    out.push_str("\nWAITS of the training thread (host time)\n");
    let list = without_cpu_lines(waits);
    // Without a limit on rows everything is listed.
    let least_ns = if rows == usize::MAX {
        0
    } else {
        waits.wall_ns / 1000
    };
    let is_long = |wait: &&WaitTime| wait.ns >= least_ns;
    let shown = list.iter().take(rows).take_while(is_long).count();
    let list: Vec<Wait> = list.iter().map(|each| wait(profile, each)).collect();
    let table = TextTable::new(WAITS, &list);
    table.head(out);
    let (listed, rest) = list.split_at(shown);
    let mut workers = workers;
    for wait in listed {
        table.row(out, wait);
        for holder in wait.holders.iter().take(MOST) {
            line(out, &cut(&held(holder), WIDTH));
        }
        if wait.kind == WaitKind::Input
            && let Some(workers) = workers.take()
        {
            worker_activity(out, workers);
        }
    }
    table.rest(out, rest);
    let text = format!(
        "{:>9}  {:<14} waits together",
        column_seconds(waits.ns),
        share_of(&waits.share),
    );
    line(out, &text);
    if listed.iter().any(|wait| wait.earlier_work) {
        out.push_str(
            "  * waits for work that the GPU was given earlier: this is not the line's own\n    \
             cost, and leaving the line out moves the wait elsewhere.\n",
        );
    }
}

/// The waits, with those for a CPU merged: they depend on the machine, not on a line. The merged
/// wait has the line with the most of them.
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

fn held(holder: &GilHolder) -> String {
    format!(
        "{:>13}held {:.2} s by thread {} ({}): {}",
        "",
        holder.seconds,
        holder.tid,
        printable(&holder.thread),
        At::named(holder.at.as_ref())
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

fn worker_activity(out: &mut String, workers: &Workers) {
    let text = format!(
        "{:>13}{:.1} of {:.1} workers were busy, {} of their time:",
        "",
        workers.workers * workers.busy.value,
        workers.workers,
        share_of(&workers.busy).trim()
    );
    line(out, &cut(&text, WIDTH));
    tasks(out, &workers.tasks);
}

fn tasks(out: &mut String, tasks: &[Task]) {
    let is_worth = |task: &&Task| task.share.value >= WORTH_A_LINE;
    for task in tasks.iter().filter(is_worth) {
        let known = task.lines.iter().filter(|line| line.at.is_some());
        let lines: Vec<String> = known
            .take(MOST)
            .map(|line| {
                let part = line.seconds / task.seconds.max(1e-9);
                format!("{:.0} % at {}", part * 100.0, At::shown(line.at.as_ref()))
            })
            .collect();
        let lines = match task.task {
            InputTask::Idle | InputTask::Other => String::new(),
            _ => lines.join(", "),
        };
        let text = format!(
            "{:>13}{:<14} {:<13} {lines}",
            "",
            share_of(&task.share),
            task_name(task.task),
        );
        line(out, &cut(&text, WIDTH));
    }
}

fn own_input(out: &mut String, own: &OwnInput) {
    // Even with workers the training thread does a little of the loader's work.
    if own.share.is_uncertain() || own.share.value < WORTH_A_LINE {
        return;
    }
    out.push_str("\nINPUT of the training thread itself, % of all (with its waits for a CPU)\n");
    let text = format!("{:>9.2}  {:<14}", own.seconds, share_of(&own.share));
    line(out, &text);
    tasks(out, &own.tasks);
}
