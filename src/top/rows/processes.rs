//! Processes and ranks.

use super::{Row, Table, column, percent, rate};
use crate::live::Live;
use crate::live::store::LiveProcess;
use crate::model::category::Phase;
use crate::report::command::shown_command;
use crate::report::text::format::printable;
use crate::report::text::role;
use crate::report::text::tracks::bytes;
use crate::top::state::{RowKey, State};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// Characters of a command line.
const COMMAND: usize = 200;

/// By role, then by pid.
pub(super) fn table(live: &Live, state: &State) -> Table {
    let shown = live.shown(state.process).map(|process| process.info.pid);
    let mut processes: Vec<&LiveProcess> = live.processes.values().collect();
    processes.sort_by_key(|process| (process.role, process.info.pid));
    let rows = processes.into_iter().map(|process| {
        let info = &process.info;
        let step = process.pace.as_ref().map(|pace| rate(pace.steps_per_s));
        let mut main: Option<(Phase, u64)> = None;
        let mut by_phase: FxHashMap<Phase, u64> = FxHashMap::default();
        for (&(phase, _), &ns) in &process.now.matrix {
            *by_phase.entry(phase).or_default() += ns;
        }
        for (phase, ns) in by_phase {
            if main.is_none_or(|(best, most)| (ns, Reverse(phase)) > (most, Reverse(best))) {
                main = Some((phase, ns));
            }
        }
        let main = main
            .map(|(phase, ns)| format!("{} {}", percent(ns, process.now.wall_ns), phase.name()));
        let ended = if info.exited { ", ended" } else { "" };
        let what = match (&main, info.note.is_empty()) {
            (Some(main), _) => format!(": {main}"),
            (None, false) => format!(": {}", printable(&info.note)),
            (None, true) => String::new(),
        };
        Row {
            cells: vec![
                info.pid.to_string(),
                process
                    .cpus
                    .map_or_else(String::new, |cpus| format!("{:.0}%", cpus * 100.0)),
                process
                    .resident
                    .map_or_else(String::new, |size| bytes(size as f64)),
                process.threads.len().to_string(),
                step.unwrap_or_default(),
                format!(
                    "{}{ended}{what} | {}",
                    role(process.role),
                    shown_command(&info.command, COMMAND)
                ),
            ],
            key: RowKey::Process(info.pid),
            bold: shown == Some(info.pid),
        }
    });
    Table {
        columns: vec![
            column("PID", 8),
            column("CPU%", 6),
            column("RES", 8),
            column("THR", 5),
            column("steps/s", 8),
            column("Process: most of its time (Enter shows it)", 0),
        ],
        rows: rows.collect(),
        empty: "no process seen yet".to_owned(),
    }
}
