//! The asyncio tasks of a process.

use super::head::{thread_name, title};
use super::json::place as place_json;
use super::thread::{python_frame, stack};
use crate::analysis::dump::tasks::{TaskGroup, task_groups};
use crate::model::dump::{Dump, DumpedProcess};
use crate::model::tasks::{AsyncTask, TaskState};
use crate::model::text::printable;
use crate::report::label::{count, counted, ranges};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Names of tasks, or ranges of them, that are shown.
const NAMED: usize = 6;
/// Longest list of numbers in names, bytes.
const NUMBERS: usize = 100;
/// Groups of tasks of a process that are shown; JSON has all.
const GROUPS: usize = 50;

/// The tasks of each process that has any.
pub(super) fn tasks(out: &mut String, dump: &Dump) {
    for process in dump.processes.iter().filter(|each| !each.tasks.is_empty()) {
        of_process(out, process, dump.processes.len() > 1);
    }
}

fn of_process(out: &mut String, process: &DumpedProcess, is_named: bool) {
    out.push_str("\nASYNCIO TASKS");
    if is_named {
        let _ = write!(out, " of {} pid {}", title(process.role), process.pid);
    }
    let _ = write!(out, ": {}", count(process.tasks.len() as u64));
    let mut loops: Vec<Option<i32>> = process.tasks.iter().map(|task| task.tid).collect();
    loops.sort_unstable();
    loops.dedup();
    if let [Some(tid)] = loops[..] {
        let _ = write!(out, ", event loop in {}", thread_name(process, tid));
    }
    out.push('\n');
    let groups = task_groups(&process.tasks);
    for group in groups.iter().take(GROUPS) {
        let Some(first) = group.first() else { continue };
        let _ = write!(
            out,
            "  {}",
            names(group.tasks.iter().map(|task| &*task.name))
        );
        if let (Some(tid), true) = (first.tid, loops.len() > 1) {
            let _ = write!(out, " of the event loop in {}", thread_name(process, tid));
        }
        let _ = writeln!(out, ": {}", state(group, first));
        let frames = first.frames.iter();
        stack(
            out,
            frames.map(|frame| python_frame(&frame.function, &frame.file, frame.line) + "\n"),
        );
    }
    let more = groups.len().saturating_sub(GROUPS);
    if more > 0 {
        let _ = writeln!(
            out,
            "  and {} of tasks elsewhere; --json has all",
            counted(more as u64, "more group")
        );
    }
}

fn state(group: &TaskGroup<'_>, first: &AsyncTask) -> String {
    let others = || names(first.awaits.iter().map(String::as_str));
    match (first.state, group.tasks.len()) {
        (TaskState::Running, 1) => "runs, on the stack of its thread".to_owned(),
        (TaskState::Running, _) => "run, on the stacks of their threads".to_owned(),
        (TaskState::NotStarted, 1) => "has not started yet".to_owned(),
        (TaskState::NotStarted, _) => "have not started yet".to_owned(),
        (TaskState::Ready, 1) => "goes on when the event loop gets to it".to_owned(),
        (TaskState::Ready, _) => "go on when the event loop gets to them".to_owned(),
        (TaskState::Waiting, 1) if first.awaits.is_empty() => "waits".to_owned(),
        (TaskState::Waiting, _) if first.awaits.is_empty() => "wait".to_owned(),
        (TaskState::Waiting, 1) => format!("waits for {}", others()),
        (TaskState::Waiting, _) => match group.tasks.iter().all(|task| task.awaits == first.awaits)
        {
            true => format!("wait for {}", others()),
            false => format!(
                "each waits for {}",
                counted(first.awaits.len() as u64, "task")
            ),
        },
    }
}

/// `task main`, `3 tasks, main, rollout-[0-1]`.
fn names<'t>(all: impl Iterator<Item = &'t str>) -> String {
    let mut parts: Vec<(&str, Vec<u32>)> = Vec::new();
    let mut numbered: FxHashMap<&str, usize> = FxHashMap::default();
    let mut seen: FxHashSet<&str> = FxHashSet::default();
    let mut all_count = 0;
    for name in all {
        all_count += 1;
        let text = name.trim_end_matches(|each: char| each.is_ascii_digit());
        let digits = &name[text.len()..];
        // A number that is not written as numbers are would be shown as another name.
        let number = digits.parse::<u32>().ok();
        match number.filter(|number| number.to_string() == digits) {
            None if seen.insert(name) => parts.push((name, Vec::new())),
            None => {}
            Some(number) => {
                let at = *numbered.entry(text).or_insert(parts.len());
                match parts.get_mut(at) {
                    Some(part) => part.1.push(number),
                    None => parts.push((text, vec![number])),
                }
            }
        }
    }
    let more = parts.len().saturating_sub(NAMED);
    let shown = parts.iter_mut().take(NAMED).map(|(text, numbers)| {
        let text = printable(text);
        numbers.sort_unstable();
        numbers.dedup();
        match numbers[..] {
            [] if text.is_empty() => "without a name".to_owned(),
            [] => text.into_owned(),
            [only] => format!("{text}{only}"),
            _ => format!("{text}[{}]", cut(&ranges(numbers).replace(", ", ","))),
        }
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    let words = match all_count {
        1 => format!("task {shown}"),
        _ => format!("{}, {shown}", counted(all_count, "task")),
    };
    match more {
        0 => words,
        _ => format!("{words}, and {}", counted(more as u64, "more name")),
    }
}

/// Of a long list what fits.
fn cut(numbers: &str) -> String {
    match numbers.get(..NUMBERS).and_then(|start| start.rfind(',')) {
        Some(end) if numbers.len() > NUMBERS => format!("{}..", &numbers[..=end]),
        _ => numbers.to_owned(),
    }
}

/// The tasks of a process, as JSON.
pub(super) fn tasks_json(process: &DumpedProcess) -> Value {
    let tasks = process.tasks.iter().map(|task| {
        json!({
            "name": task.name,
            "tid": task.tid,
            "state": task.state.name(),
            "awaits": task.awaits,
            "frames": task.frames.iter().map(place_json).collect::<Vec<_>>(),
        })
    });
    tasks.collect()
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn names_that_differ_by_their_numbers_are_one() {
        let is = |all: &[&str], wanted: &str| assert_eq!(names(all.iter().copied()), wanted);
        is(&["main"], "task main");
        is(&["Task-7"], "task Task-7");
        is(&["w-0", "w-1", "w-3", "main"], "4 tasks, w-[0-1,3], main");
        is(&["w-007", "w-08"], "2 tasks, w-007, w-08");
        is(&[""], "task without a name");
        is(&["w", "w", "w-1", "w-1"], "4 tasks, w, w-1");
        let odd: Vec<String> = (0..50).map(|number| format!("w-{}", 2 * number)).collect();
        let odd: Vec<&str> = odd.iter().map(String::as_str).collect();
        assert!(names(odd.into_iter()).ends_with(",66,68,..]"));
        is(
            &["a", "b", "c", "d", "e", "f", "g"],
            "7 tasks, a, b, c, d, e, f, and 1 more name",
        );
    }
}
