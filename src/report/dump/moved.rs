//! Several snapshots, for people: what did not move comes first.

use super::head::{place, title};
use crate::analysis::dump::moved::{Comparison, Moved, Standstill, ThreadMoves};
use crate::model::dump::Dump;
use crate::model::text::printable;
use crate::report::label::counted;
use std::fmt::Write as _;

/// Maximum number of threads that are listed of each kind.
const LISTED: usize = 24;

/// The result of several snapshots; empty for fewer than two.
pub fn render_moved(comparison: &Comparison) -> String {
    let found = comparison.moved();
    let Some(first) = comparison.first().filter(|_| found.snapshots > 1) else {
        return String::new();
    };
    let mut out = String::new();
    let _ = writeln!(
        out,
        "\nMOVED, {} in {:.1} s",
        counted(found.snapshots as u64, "snapshot"),
        found.length_ns as f64 / 1e9
    );
    let training = || found.threads.iter().filter(|thread| thread.trains);
    let words = match found.standstill() {
        Standstill::Hang => "no training thread moved or ran: a hang".to_owned(),
        Standstill::SamePlace => format!(
            "no training thread was seen elsewhere, but {} of {} ran in between: a loop without end, one long\n  \
             operation, or a line where it often is; more snapshots show it (--repeat 10)",
            training()
                .filter(|thread| thread.ran != Some(false))
                .count(),
            training().count()
        ),
        Standstill::TooShort => {
            "no training thread moved, in too short a time to call it a hang (--every 1s)"
                .to_owned()
        }
        Standstill::No => String::new(),
    };
    if !words.is_empty() {
        let _ = writeln!(out, "  {words}");
    }
    for process in found.ended.iter().filter_map(|&at| first.processes.get(at)) {
        let _ = writeln!(
            out,
            "  {} pid {} ended in between",
            title(process.role),
            process.pid
        );
    }
    for counter in &found.counters {
        let who = first
            .processes
            .get(counter.process)
            .map(|process| title(process.role))
            .unwrap_or_default();
        let _ = match counter.first == counter.last {
            true => writeln!(
                out,
                "  {who}: {} stays at {}",
                printable(&counter.what),
                counter.first
            ),
            false => writeln!(
                out,
                "  {who}: {} went from {} to {}",
                printable(&counter.what),
                counter.first,
                counter.last
            ),
        };
    }
    threads(&mut out, first, &found, "did not move", |each| {
        each.moves == 0
    });
    threads(&mut out, first, &found, "moved", |each| each.moves != 0);
    out
}

fn threads(
    out: &mut String,
    first: &Dump,
    found: &Moved,
    heading: &str,
    is_wanted: impl Fn(&ThreadMoves) -> bool,
) {
    let mut wanted: Vec<&ThreadMoves> = found
        .threads
        .iter()
        .filter(|each| is_wanted(each))
        .collect();
    wanted.sort_by_key(|each| (!each.trains, each.at.is_none()));
    if wanted.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "  {heading}: {}",
        counted(wanted.len() as u64, "thread")
    );
    for each in wanted.iter().take(LISTED) {
        let process = first.processes.get(each.process);
        let at = each
            .at
            .as_ref()
            .map(|at| format!(" at {}", place(at)))
            .unwrap_or_default();
        let ran = match (each.moves, each.ran) {
            (0, Some(false)) => "; has not run since",
            (0, Some(true)) => "; was on a CPU in between",
            _ => "",
        };
        let _ = writeln!(
            out,
            "    {}thread {} \"{}\" {}{at}{ran}",
            process
                .filter(|_| first.processes.len() > 1)
                .map(|process| format!("{} pid {}, ", title(process.role), process.pid))
                .unwrap_or_default(),
            each.tid,
            printable(&each.name),
            printable(&each.doing),
        );
    }
    if wanted.len() > LISTED {
        let _ = writeln!(out, "    and {} more", wanted.len() - LISTED);
    }
}
