//! One stack of a dump, with all threads that have it.

use super::head::{place, rank_list, thread_words, title};
use crate::analysis::dump::groups::{Group, ThreadPlace, thread};
use crate::analysis::dump::verdict::{is_for_thread, is_idle_worker, lock_words};
use crate::model::category::FrameKind;
use crate::model::dump::{Dump, DumpedFrame, DumpedThread, DumpedWait};
use crate::model::profile::Role;
use crate::model::sample::{Gil, ThreadState};
use crate::model::text::{notebook_cell, package_path, printable};
use crate::model::wait::WaitKind;
use crate::report::label::{counted, file_name, is_start};
use std::fmt::Write as _;

/// Maximum number of threads of a group that are named.
const NAMED: usize = 6;

/// A stack and its threads.
pub(super) fn group(out: &mut String, dump: &Dump, group: &Group) {
    let Some(&first) = group.members.first() else {
        return;
    };
    let (Some(process), Some(it)) = (dump.processes.get(first.0), thread(dump, first)) else {
        return;
    };
    let _ = writeln!(out, "\n{}: {}", who(dump, group), state(it));
    if let Some(wait) = &it.wait {
        let what = match is_idle_worker(it) {
            true => "its trainer to ask for a batch".to_owned(),
            false => wait_words(wait),
        };
        let _ = writeln!(out, "  waits for {what}");
        if let Some(owner) = &wait.owner {
            let _ = writeln!(
                out,
                "  {} {} (known by {})",
                match is_for_thread(wait) {
                    true => "that is",
                    false => "which is held by",
                },
                thread_words(process, owner.tid),
                owner.by
            );
        }
    }
    if let Some(at) = &it.at {
        let _ = writeln!(out, "  at {} in {}", place(at), printable(&at.function));
    }
    if let Some(module) = &it.module {
        let _ = writeln!(out, "  in module {}", printable(module));
    }
    if it.moved_frames > 0 {
        let _ = writeln!(
            out,
            "  it had moved when variables were read: those of its {} are not shown",
            match it.moved_frames {
                1 => "innermost function".to_owned(),
                more => format!("{more} innermost functions"),
            }
        );
    }
    if let Some(wchan) = &it.wchan {
        let _ = writeln!(out, "  in the kernel: {}", printable(wchan));
    }
    for frame in &it.kernel_stack {
        let _ = writeln!(out, "    [kernel] {}", printable(frame));
    }
    // Native frames between two Python functions are the interpreter's and show nothing; those
    // above the first Python function show what it is doing.
    let leaf = it.frames.iter().position(|frame| frame.is_python);
    let root = it
        .frames
        .iter()
        .rposition(|frame| frame.is_python || !is_start(&frame.file, &frame.name));
    let frames = it.frames.iter().take(root.map_or(0, |root| root + 1));
    let shown = frames
        .enumerate()
        .filter(|(index, frame)| !frame.is_plumbing || leaf.is_none_or(|leaf| *index < leaf))
        .map(|(_, frame)| words(frame));
    stack(out, shown);
    let has_root = it
        .frames
        .iter()
        .any(|frame| frame.kind == FrameKind::Marker);
    if let Some(partial) = it.partial.filter(|_| !has_root) {
        let _ = writeln!(out, "    … not read any further: {partial}");
    }
}

/// `rank 3: thread 4242 "python", training`; several: `ranks 0-2: training threads`.
fn who(dump: &Dump, group: &Group) -> String {
    let several_processes = dump.processes.len() > 1;
    if let [only] = group.members[..] {
        let words = name(dump, only);
        return match (several_processes, dump.processes.get(only.0)) {
            (true, Some(process)) => {
                format!("{} pid {}, {words}", title(process.role), process.pid)
            }
            _ => words,
        };
    }
    let mut words = counted(group.members.len() as u64, "thread");
    let mut of: Vec<usize> = group.members.iter().map(|member| member.0).collect();
    of.dedup();
    if several_processes {
        let ranks: Vec<usize> = of
            .iter()
            .copied()
            .filter(|&index| {
                dump.processes
                    .get(index)
                    .is_some_and(|process| matches!(process.role, Role::Trainer { .. }))
            })
            .collect();
        let others = of.iter().filter(|index| !ranks.contains(index));
        let mut owners: Vec<String> = Vec::new();
        if !ranks.is_empty() {
            owners.push(rank_list(dump, &ranks));
        }
        for process in others.filter_map(|&index| dump.processes.get(index)) {
            owners.push(format!("{} pid {}", title(process.role), process.pid));
        }
        let _ = write!(words, " of {}", owners.join(", "));
    }
    let names: Vec<String> = group
        .members
        .iter()
        .take(NAMED)
        .map(|&member| match thread(dump, member) {
            Some(thread) => format!("{} \"{}\"", thread.tid, printable(shown_name(thread))),
            None => String::new(),
        })
        .collect();
    let more = match group.members.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    format!("{words}, {}{more}", names.join(", "))
}

fn shown_name(thread: &DumpedThread) -> &str {
    thread.python_name.as_ref().unwrap_or(&thread.name)
}

fn name(dump: &Dump, place: ThreadPlace) -> String {
    match thread(dump, place) {
        Some(thread) => format!(
            "thread {} \"{}\"{}",
            thread.tid,
            printable(shown_name(thread)),
            if thread.trains { ", the main one" } else { "" }
        ),
        None => String::new(),
    }
}

fn state(thread: &DumpedThread) -> String {
    let mut words = match (thread.state, &thread.syscall) {
        (ThreadState::Running, _) => "runs".to_owned(),
        (ThreadState::Sleeping, Some(call)) => format!("sleeps in {call}"),
        (ThreadState::Sleeping, None) => "sleeps".to_owned(),
        (ThreadState::Uninterruptible, Some(call)) => {
            format!("in uninterruptible sleep (D) in {call}")
        }
        (ThreadState::Uninterruptible, None) => "in uninterruptible sleep (D)".to_owned(),
        (ThreadState::Stopped, _) => "stopped (SIGSTOP or a debugger)".to_owned(),
        (ThreadState::Unknown, _) => "state not known".to_owned(),
    };
    if thread.gil == Gil::Held {
        words.push_str(", holds the GIL");
    }
    words
}

fn wait_words(wait: &DumpedWait) -> String {
    let mut words = match wait.kind {
        WaitKind::Collective => format!("other ranks: {}", wait.what),
        WaitKind::GpuSync => format!("the GPU: {}", wait.what),
        WaitKind::GpuCopy => format!("a copy from or to the GPU: {}", wait.what),
        WaitKind::Input => format!("the next batch: {}", wait.what),
        WaitKind::Gil => "the GIL".to_owned(),
        WaitKind::Autograd => "autograd's threads".to_owned(),
        WaitKind::Barrier => format!("other OpenMP threads: {}", wait.what),
        WaitKind::Lock if wait.lock.is_some() => lock_words(wait),
        WaitKind::Lock if matches!(wait.what.as_str(), "" | "lock" | "a lock") => {
            "a lock".to_owned()
        }
        WaitKind::Lock => format!("a lock: {}", wait.what),
        WaitKind::Disk => format!("a file: {}", wait.what),
        WaitKind::Socket => format!("a socket: {}", wait.what),
        WaitKind::Io => format!("a read or write: {}", wait.what),
        WaitKind::Child => format!("a child process: {}", wait.what),
        WaitKind::Events => format!("events: {}", wait.what),
        WaitKind::Sleep if matches!(wait.what.as_str(), "pause" | "rt_sigsuspend") => {
            format!("a signal: {}", wait.what)
        }
        WaitKind::Sleep => format!("time to pass: {}", wait.what),
        WaitKind::Cpu => "a CPU".to_owned(),
        WaitKind::Stopped => "the end of a stop".to_owned(),
    };
    if let Some(lock) = wait.lock.as_ref().filter(|_| !is_for_thread(wait)) {
        let _ = write!(words, " at {:#x}", lock.address);
        let says = !matches!(wait.what.as_str(), "" | "lock" | "a lock");
        if says && wait.kind == WaitKind::Lock {
            let _ = write!(words, ", in {}", wait.what);
        }
    }
    if wait.lock.as_ref().is_some_and(|lock| lock.is_timed) {
        words.push_str(", for a time at most");
    }
    printable(&words).into_owned()
}

/// Frames; successive equal ones (a recursion) are shown once with a count.
pub(super) fn stack(out: &mut String, frames: impl Iterator<Item = String>) {
    let mut last = String::new();
    let mut more = 0;
    let tell = |out: &mut String, more: usize| {
        if more > 0 {
            let _ = writeln!(out, "    … and the same {more} more times");
        }
    };
    for frame in frames {
        if frame == last {
            more += 1;
            continue;
        }
        tell(out, std::mem::take(&mut more));
        out.push_str(&frame);
        last = frame;
    }
    tell(out, more);
}

/// A Python function, its file and line (0 if unknown).
pub(super) fn python_frame(name: &str, file: &str, line: u32) -> String {
    let cell = notebook_cell(file);
    let name = printable(name);
    let file = printable(cell.as_deref().unwrap_or_else(|| package_path(file)));
    match line {
        _ if file.is_empty() => format!("    {name}"),
        0 => format!("    {name} ({file})"),
        line => format!("    {name} ({file}:{line})"),
    }
}

/// A frame, followed by its variables, one per line.
fn words(frame: &DumpedFrame) -> String {
    let guess = if frame.is_guess { "~" } else { "" };
    let mut out = match frame.is_python {
        true => python_frame(&frame.name, &frame.file, frame.line),
        false => {
            let name = printable(&frame.short_name);
            match printable(file_name(&frame.file)) {
                file if file.is_empty() => format!("    {guess}{name}"),
                file => format!("    {guess}{name} ({file})"),
            }
        }
    };
    if let Some(module) = &frame.module {
        let _ = write!(out, " [{}]", printable(module));
    }
    out.push('\n');
    for local in frame.locals.iter().flatten() {
        let _ = writeln!(
            out,
            "        {} = {}",
            printable(&local.name),
            printable(&local.value)
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::stack;

    #[test]
    fn a_recursion_is_counted() {
        let mut out = String::new();
        let frames = ["a\n", "b\n", "b\n", "b\n", "a\n"];
        stack(&mut out, frames.into_iter().map(str::to_owned));
        assert_eq!(out, "a\nb\n    … and the same 2 more times\na\n");
    }
}
