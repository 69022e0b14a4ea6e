//! The head of a dump: time, target, and how ranks differ.

use crate::analysis::dump::places::{parallel, shared};
use crate::analysis::dump::verdict::{RankGroup, because, is_for_thread, lock_words, verdict};
use crate::analysis::job::parallel::Parallel;
use crate::model::dump::{Dump, DumpedProcess, Place};
use crate::model::profile::Role;
use crate::model::text::printable;
use crate::model::wait::WaitKind;
use crate::report::command::shown_command;
use crate::report::label::ranges;
use crate::report::label::{counted, shown_file};
use std::fmt::Write as _;

/// Width of a command line.
const COMMAND: usize = 70;

/// What was captured, at what cost.
pub(super) fn captured(out: &mut String, dump: &Dump) {
    let threads: usize = dump
        .processes
        .iter()
        .map(|process| process.threads.len())
        .sum();
    let _ = write!(out, "{}", counted(threads as u64, "thread"));
    if dump.processes.len() > 1 {
        let _ = write!(
            out,
            " of {}",
            counted(dump.processes.len() as u64, "process")
        );
    }
    if let Some(skew_ns) = dump.skew_ns {
        let _ = write!(out, ", read within {:.1} ms", skew_ns as f64 / 1e6);
    }
    let _ = match dump.stopped {
        0 => writeln!(out, "; none was stopped"),
        stopped => writeln!(
            out,
            "; {}, {} {} us",
            match stopped {
                1 => "one was stopped".to_owned(),
                // Some threads were captured twice.
                more if more > threads as u64 => format!("{more} stops"),
                more => format!("{more} were stopped"),
            },
            match stopped {
                1 => "for",
                _ => "none for longer than",
            },
            dump.longest_stop_ns.div_ceil(1000)
        ),
    };
}

/// Each process in one or two lines.
pub(super) fn processes(out: &mut String, dump: &Dump) {
    out.push('\n');
    for process in &dump.processes {
        one(out, process);
    }
}

fn one(out: &mut String, process: &DumpedProcess) {
    let mut versions = Vec::new();
    if !process.python.is_empty() {
        versions.push(format!("Python {}", process.python));
    }
    if !process.torch.is_empty() {
        versions.push(format!("torch {}", process.torch));
    }
    let _ = writeln!(
        out,
        "{} pid {}{}: {}{}",
        title(process.role),
        process.pid,
        process
            .trainer_pid
            .map(|pid| format!(" of {pid}"))
            .unwrap_or_default(),
        printable(&shown_command(&process.command, COMMAND)),
        match versions.is_empty() {
            true => String::new(),
            false => format!(" ({})", printable(&versions.join(", "))),
        }
    );
    let progress: Vec<String> = process
        .progress
        .iter()
        .map(|each| match each.source.is_empty() {
            true => format!("{} {}", each.what, each.value),
            false => format!("{} {} ({})", each.what, each.value, each.source),
        })
        .collect();
    if !progress.is_empty() {
        let _ = writeln!(out, "  progress: {}", printable(&progress.join(", ")));
    }
    if let Some(holder) = process.gil_holder {
        let thread = process.threads.iter().find(|each| each.tid == holder);
        let leaf = thread
            .and_then(|thread| thread.frames.first())
            .filter(|frame| !frame.is_python)
            .map(|frame| format!(", in {}", printable(&frame.short_name)));
        let _ = writeln!(
            out,
            "  GIL: held by {}{}",
            thread_words(process, holder),
            leaf.unwrap_or_default()
        );
    }
    if !process.note.is_empty() {
        let _ = writeln!(out, "  note: {}", printable(&process.note));
    }
}

/// `thread 4243 "loader"`, and its line.
pub(super) fn thread_words(process: &DumpedProcess, tid: i32) -> String {
    let thread = process.threads.iter().find(|thread| thread.tid == tid);
    let at = thread.and_then(|thread| thread.at.as_ref());
    let at = at.map(|at| format!(" at {}", place(at)));
    format!("{}{}", thread_name(process, tid), at.unwrap_or_default())
}

/// `thread 4243 "loader"`.
pub(super) fn thread_name(process: &DumpedProcess, tid: i32) -> String {
    match process.threads.iter().find(|thread| thread.tid == tid) {
        Some(thread) => {
            let name = thread.python_name.as_ref().unwrap_or(&thread.name);
            format!("thread {tid} \"{}\"", printable(name))
        }
        None => format!("thread {tid}"),
    }
}

/// Deadlocks.
pub(super) fn deadlocks(out: &mut String, dump: &Dump) {
    for deadlock in crate::analysis::dump::deadlocks::deadlocks(dump) {
        let Some(process) = dump.processes.get(deadlock.process) else {
            continue;
        };
        let _ = writeln!(
            out,
            "\nDEADLOCK of {} in pid {}",
            counted(deadlock.tids.len() as u64, "thread"),
            process.pid
        );
        for (index, &tid) in deadlock.tids.iter().enumerate() {
            let next = deadlock.tids.get(index + 1).or(deadlock.tids.first());
            let thread = process.threads.iter().find(|thread| thread.tid == tid);
            let Some(wait) = thread.and_then(|thread| thread.wait.as_ref()) else {
                continue;
            };
            let next = next.copied().unwrap_or(tid);
            let held = match (wait.kind, is_for_thread(wait)) {
                (_, true) => format!("that is thread {next}"),
                _ => format!("which thread {next} holds"),
            };
            let what = match wait.kind {
                WaitKind::Gil => "the GIL".to_owned(),
                _ => lock_words(wait),
            };
            let _ = writeln!(
                out,
                "  {} waits for {}, {held}",
                thread_words(process, tid),
                printable(&what),
            );
        }
    }
}

/// How ranks differ.
pub(super) fn ranks(out: &mut String, dump: &Dump) {
    let verdict = verdict(dump);
    if verdict.groups.is_empty() {
        return;
    }
    out.push_str("\nRANKS\n");
    let all_same = verdict.groups.len() == 1;
    let most = verdict
        .groups
        .iter()
        .map(|group| group.processes.len())
        .max()
        .unwrap_or(0);
    let awaited = verdict.awaited();
    let parallel = parallel(dump.processes.iter());
    let rank = |index: &usize| dump.processes.get(*index)?.role.rank();
    for group in &verdict.groups {
        let is_odd = !all_same && (group.processes.len() < most || awaited == group.processes);
        let mut who = rank_list(dump, &group.processes);
        let mesh = mesh(&parallel, group.processes.iter().filter_map(rank));
        if !mesh.is_empty() {
            let _ = write!(who, " ({mesh})");
        }
        let differs = match (is_odd, group.processes.len()) {
            (true, 1) => " differs",
            (true, _) => " differ",
            _ => "",
        };
        let _ = writeln!(out, "  {who}{differs}: {}", words(group));
        for line in reasons(dump, group) {
            let _ = writeln!(out, "    {line}");
        }
    }
    if !awaited.is_empty() {
        let waiting: Vec<usize> = verdict
            .groups
            .iter()
            .filter(|group| group.waits_for_ranks)
            .flat_map(|group| group.processes.clone())
            .collect();
        let verb = if waiting.len() == 1 { "waits" } else { "wait" };
        let _ = writeln!(
            out,
            "  {} {verb} in a collective that {} {} not in",
            rank_list(dump, &waiting),
            rank_list(dump, &awaited),
            if awaited.len() == 1 { "is" } else { "are" }
        );
    }
}

pub(super) fn words(group: &RankGroup) -> String {
    let mut words = printable(&group.what).into_owned();
    if let Some(at) = &group.at {
        let _ = write!(words, " at {}", place(at));
    }
    match &group.step {
        Some((what, low, high)) if low == high => {
            let _ = write!(words, ", {} {low}", printable(what));
        }
        Some((what, low, high)) => {
            let _ = write!(words, ", {} {low} to {high}", printable(what));
        }
        None => {}
    }
    words
}

/// What a group waits for, followed one step further: the thread that holds the lock, or the worker
/// that does not deliver.
fn reasons(dump: &Dump, group: &RankGroup) -> Vec<String> {
    let mut lines = Vec::new();
    for &index in group.processes.iter().take(4) {
        let Some(process) = dump.processes.get(index) else {
            continue;
        };
        lines.extend(because(dump, process).into_iter().map(|because| {
            let holder = dump
                .processes
                .iter()
                .find(|process| process.pid == because.pid)
                .map_or_else(
                    || format!("pid {}", because.pid),
                    |process| thread_words(process, because.tid),
                );
            format!(
                "{} {holder}{}",
                because.words,
                match because.doing.is_empty() {
                    true => String::new(),
                    false => format!(", which {}", printable(&because.doing)),
                }
            )
        }));
    }
    lines
}

/// `ranks 0-2, 4`, or pids where ranks have no numbers.
pub(super) fn rank_list(dump: &Dump, processes: &[usize]) -> String {
    let mut numbers = Vec::new();
    let mut pids = Vec::new();
    for process in processes
        .iter()
        .filter_map(|&index| dump.processes.get(index))
    {
        match process.role.rank() {
            Some(rank) => numbers.push(rank),
            None => pids.push(process.pid.to_string()),
        }
    }
    let mut words = Vec::new();
    if !numbers.is_empty() {
        numbers.sort_unstable();
        numbers.dedup();
        let several = if numbers.len() > 1 { "s" } else { "" };
        words.push(format!("rank{several} {}", ranges(&mut numbers)));
    }
    if !pids.is_empty() {
        words.push(format!("pid {}", pids.join(", ")));
    }
    words.join(", ")
}

/// `pp 1, dp 0`: where all of these ranks are in the job's device mesh; empty where that is
/// nothing.
pub(super) fn mesh(parallel: &Parallel, ranks: impl Iterator<Item = u32>) -> String {
    let shared = shared(parallel, ranks).into_iter();
    let words = shared.map(|(name, index)| format!("{} {index}", printable(name)));
    words.collect::<Vec<_>>().join(", ")
}

/// `rank 3`, `trainer`, `DataLoader worker 1`.
pub(super) fn title(role: Role) -> String {
    match role.rank() {
        Some(rank) => format!("rank {rank}"),
        None => crate::report::text::role(role),
    }
}

/// `data.py:88`, with as many folders as are needed to identify a package.
pub(super) fn place(place: &Place) -> String {
    let short = shown_file(&place.file);
    match place.line {
        0 => format!("{} ({})", printable(&place.function), printable(&short)),
        line => format!("{}:{line}", printable(&short)),
    }
}
