//! The threads of a process.

use super::{Row, Table, code_text, column, percent};
use crate::live::store::LiveProcess;
use crate::model::sample::ThreadState;
use crate::report::text::format::printable;
use crate::top::state::RowKey;
use std::cmp::Reverse;

/// The training thread first, then those that run most.
pub(super) fn table(process: &LiveProcess) -> Table {
    let mut threads: Vec<_> = process.threads.values().map(|(thread, _)| thread).collect();
    let trains = |tid: i32| Some(tid) == process.training_tid;
    threads.sort_by_key(|thread| {
        let share = thread.cpu_ns.saturating_mul(1000) / thread.wall_ns.max(1);
        (!trains(thread.tid), Reverse(share), thread.tid)
    });
    let rows = threads.into_iter().map(|thread| {
        let state = match thread.state {
            ThreadState::Running => "run",
            ThreadState::Sleeping => "sleep",
            ThreadState::Uninterruptible => "disk",
            ThreadState::Stopped => "stop",
            ThreadState::Unknown => "?",
        };
        let doing = match &thread.wait {
            Some((kind, words)) if words.is_empty() => format!("waits: {}", kind.name()),
            Some((_, words)) => format!("waits: {}", printable(words)),
            None => thread.activity.name().to_owned(),
        };
        let at = thread.at.as_ref().map(|at| format!(", {}", code_text(at)));
        Row {
            cells: vec![
                thread.tid.to_string(),
                percent(thread.cpu_ns, thread.wall_ns),
                state.to_owned(),
                if thread.has_gil { "GIL" } else { "" }.to_owned(),
                format!(
                    "{} [{}]: {doing}{}",
                    printable(&thread.name),
                    thread.role,
                    at.unwrap_or_default()
                ),
            ],
            key: RowKey::None,
            bold: trains(thread.tid),
        }
    });
    Table {
        columns: vec![
            column("TID", 8),
            column("CPU%", 7),
            column("State", 6),
            column("GIL", 4),
            column("Thread: what it does, and where", 0),
        ],
        rows: rows.collect(),
        empty: "no thread seen yet".to_owned(),
    }
}
