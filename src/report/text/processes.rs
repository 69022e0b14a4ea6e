//! Several processes: ranks next to each other, workers in one line.

use super::format::{count, cut, percent, seconds};
use super::table::table;
use super::{WIDTH, line, role, sentence};
use crate::analysis::Analysis;
use crate::analysis::summary::ProcessSummary;
use crate::model::category::Activity;
use crate::model::ids::ProcessId;
use crate::model::profile::{Profile, Role};
use crate::report::command::shown_command;
use crate::report::tables::processes::{PROCESSES, ranks as rows_of};

/// All ranks, one line each, if there are several; the first `most` of them.
pub(super) fn ranks(out: &mut String, profile: &Profile, analysis: &Analysis, most: usize) {
    let ranks = rows_of(profile, analysis);
    if ranks.len() < 2 {
        return;
    }
    out.push_str("\nRANKS, % of each training thread's wall time (host time, not GPU time)\n");
    table(out, PROCESSES, &ranks, most);
}

/// Other processes: workers by their trainer, then launchers and helpers.
pub(super) fn others(out: &mut String, profile: &Profile, analysis: &Analysis) {
    let mut text = String::new();
    let mut owners: Vec<Option<ProcessId>> = Vec::new();
    for process in &analysis.processes {
        if let Role::DataLoaderWorker { trainer, .. } = process.role
            && !owners.contains(&trainer)
        {
            owners.push(trainer);
            workers(&mut text, profile, analysis, trainer);
        }
    }
    for process in &analysis.processes {
        let shown = matches!(process.role, Role::Launcher | Role::Other);
        if shown && analysis.primary().map(|primary| primary.process) != Some(process.process) {
            helper(&mut text, profile, process);
        }
    }
    if !text.is_empty() {
        out.push_str("\nOTHER PROCESSES (never part of the times above)\n");
        out.push_str(&text);
    }
}

fn workers(out: &mut String, profile: &Profile, analysis: &Analysis, of: Option<ProcessId>) {
    let workers: Vec<&ProcessSummary> = analysis
        .processes
        .iter()
        .filter(|process| matches!(process.role, Role::DataLoaderWorker { trainer, .. } if trainer == of))
        .collect();
    let owner = of.and_then(|id| {
        analysis
            .processes
            .iter()
            .find(|process| process.process == id)
    });
    let owner = owner.map_or(String::new(), |owner| {
        format!(
            " of {} pid {}",
            role(owner.role),
            profile.pid_and_rank(owner.process).0
        )
    });
    let wall_ns: u64 = workers.iter().map(|worker| worker.wall_ns).sum();
    let cpu_ns: u64 = workers.iter().map(|worker| worker.cpu_ns).sum();
    line(
        out,
        &format!(
            "  {} DataLoader {}{owner}: cpu {}",
            count(workers.len() as u64),
            if workers.len() == 1 {
                "worker process"
            } else {
                "worker processes"
            },
            seconds(cpu_ns)
        ),
    );
    if wall_ns == 0 {
        return;
    }
    let busy_ns: u64 = workers.iter().map(|worker| busy_ns(worker)).sum();
    let mut activities: Vec<(u64, Activity)> = Activity::ALL
        .iter()
        .map(|&activity| {
            (
                workers
                    .iter()
                    .map(|worker| worker.matrix.activity(activity))
                    .sum(),
                activity,
            )
        })
        .filter(|&(ns, _)| ns > 0)
        .collect();
    activities.sort_by_key(|&(ns, activity)| (std::cmp::Reverse(ns), activity));
    let mostly: Vec<String> = activities
        .iter()
        .take(4)
        .map(|&(ns, activity)| {
            format!(
                "{} {}",
                activity.name(),
                percent(ns as f64 / wall_ns as f64)
            )
        })
        .collect();
    let text = format!(
        "    busy {}: {}",
        percent(busy_ns as f64 / wall_ns as f64),
        mostly.join(", ")
    );
    line(out, &cut(&text, WIDTH));
}

/// Time in which a worker did not wait for work.
fn busy_ns(worker: &ProcessSummary) -> u64 {
    let idle: u64 = [Activity::LockWait, Activity::Sleep]
        .iter()
        .map(|&activity| worker.matrix.activity(activity))
        .sum();
    worker.wall_ns.saturating_sub(idle)
}

fn helper(out: &mut String, profile: &Profile, process: &ProcessSummary) {
    let Some(info) = profile
        .process(process.process)
        .map(|process| &process.info)
    else {
        return;
    };
    let text = format!(
        "  {} pid {}: cpu {}  ",
        role(process.role),
        info.pid,
        seconds(info.cpu_ns),
    );
    let left = WIDTH.saturating_sub(text.chars().count());
    let command = if info.command.is_empty() {
        shown_command(std::slice::from_ref(&info.exe), left)
    } else {
        shown_command(&info.command, left)
    };
    line(out, &format!("{text}{command}"));
    if !info.note.is_empty() {
        sentence(out, "    ", &info.note);
    }
}
