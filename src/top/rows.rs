//! The table of each view. Text that comes from the target has no control characters here.

mod modules;
mod phases;
mod processes;
mod threads;

use super::state::{RowKey, Sort, State, View};
use crate::live::Live;
use crate::live::store::LiveProcess;
use crate::live::sums::{CodeKey, Sums, ThreadSums, Times};
use crate::report::text::format::{place_of, printable};
use rustc_hash::FxHashSet;
use std::cmp::Reverse;
use std::hash::Hash;

/// Maximum number of rows of a table: nobody scrolls further.
const MAX_ROWS: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub title: String,
    /// Its width; 0 for the remaining width.
    pub width: u16,
    /// Whether rows are sorted by it.
    pub sorted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// As many as there are columns.
    pub cells: Vec<String>,
    /// The target of Enter, `+` and `-`.
    pub key: RowKey,
    pub bold: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Columns: numbers are right-aligned, the last one is text.
    pub columns: Vec<Column>,
    pub rows: Vec<Row>,
    /// Shown if there are no rows.
    pub empty: String,
}

/// Why there is nothing to show, if known.
fn nothing_yet(live: &Live) -> String {
    let mut notes = live.processes.values().map(|process| &process.info.note);
    match notes.find(|note| !note.is_empty()) {
        Some(note) => format!("nothing sampled yet: {}", printable(note)),
        None => "nothing sampled yet".to_owned(),
    }
}

/// The table of the selected view, for a body of `width` columns.
pub fn table(live: &Live, state: &State, width: u16) -> Table {
    let process = live.shown(state.process);
    let mut table = match (state.view, process) {
        (View::Processes, _) => processes::table(live, state),
        (_, None) => Table {
            empty: nothing_yet(live),
            ..Table::default()
        },
        (View::Functions, Some(process)) => code(process, state, |tables| &tables.functions),
        (View::Lines, Some(process)) => code(process, state, |tables| &tables.lines),
        (View::Native, Some(process)) => code(process, state, |tables| &tables.native),
        (View::Operators, Some(process)) => operators(process, state),
        (View::Modules, Some(process)) => modules::table(process, state),
        (View::Phases, Some(process)) => phases::table(process, state, width, &live.run),
        (View::Threads, Some(process)) => threads::table(process),
    };
    let wanted = state.filter.to_lowercase();
    if !wanted.is_empty() {
        table.rows.retain(|row| {
            let mut cells = row.cells.iter();
            cells.any(|cell| cell.to_lowercase().contains(&wanted))
        });
        table.empty = format!("nothing here has \"{}\" in it; Esc shows all", state.filter);
    }
    table.rows.truncate(MAX_ROWS);
    table
}

fn column(title: &str, width: u16) -> Column {
    Column {
        title: title.to_owned(),
        width,
        sorted: false,
    }
}

/// py-spy's four columns, and the text.
fn time_columns(sort: Sort, text: &str) -> Vec<Column> {
    let titles = ["%Own", "%Total", "OwnTime", "TotalTime"];
    let widths = [7, 7, 9, 10];
    let mut columns: Vec<Column> = titles
        .into_iter()
        .zip(widths)
        .map(|(title, width)| column(title, width))
        .collect();
    if let Some(column) = columns.get_mut(sort.at()) {
        column.sorted = true;
    }
    columns.push(column(text, 0));
    columns
}

/// Times of one key: now, and since the start.
type Both = (Times, Times);

fn both<K: Eq + Hash + Clone>(now: &Sums<K>, since: &Sums<K>) -> Vec<(K, Both)> {
    let keys: FxHashSet<&K> = now.times.keys().chain(since.times.keys()).collect();
    let of = |sums: &Sums<K>, key: &K| sums.times.get(key).copied().unwrap_or_default();
    keys.into_iter()
        .map(|key| (key.clone(), (of(now, key), of(since, key))))
        .collect()
}

fn weight(sort: Sort, (now, since): &Both) -> (u64, u64, u64) {
    match sort {
        Sort::OwnNow => (now.self_ns, now.total_ns, since.self_ns),
        Sort::TotalNow => (now.total_ns, now.self_ns, since.total_ns),
        Sort::OwnSince => (since.self_ns, since.total_ns, now.self_ns),
        Sort::TotalSince => (since.total_ns, since.self_ns, now.total_ns),
    }
}

fn time_cells(process: &LiveProcess, (now, since): &Both) -> Vec<String> {
    let share = |ns: u64| percent(ns, process.now.wall_ns);
    vec![
        share(now.self_ns),
        share(now.total_ns),
        seconds(since.self_ns),
        seconds(since.total_ns),
    ]
}

/// `12.3%`, as in py-spy; empty for 0.
fn percent(ns: u64, of_ns: u64) -> String {
    if ns == 0 || of_ns == 0 {
        return String::new();
    }
    format!("{:.1}%", ns as f64 / of_ns as f64 * 100.0)
}

/// `12.34s`.
fn seconds(ns: u64) -> String {
    match ns {
        0 => String::new(),
        1..1_000_000_000_000 => format!("{:.2}s", ns as f64 / 1e9),
        _ => format!("{:.0}s", ns as f64 / 1e9),
    }
}

fn code(process: &LiveProcess, state: &State, of: impl Fn(&ThreadSums) -> &Sums<CodeKey>) -> Table {
    let title = match state.view {
        View::Native => "Native function (library)",
        View::Lines => "Line",
        _ => "Function (file:line)",
    };
    let mut rows = both(of(&process.now), of(&process.since));
    rows.sort_by(|left, right| {
        let order = |row: &(CodeKey, Both)| Reverse(weight(state.sort, &row.1));
        (order(left), &left.0).cmp(&(order(right), &right.0))
    });
    let rows = rows.into_iter().map(|(key, both)| {
        let mut cells = time_cells(process, &both);
        cells.push(code_text(&key));
        Row {
            cells,
            key: RowKey::None,
            bold: false,
        }
    });
    Table {
        columns: time_columns(state.sort, title),
        rows: rows.collect(),
        empty: match state.view {
            View::Native => {
                "no native function seen yet; names of a large library take some seconds"
            }
            _ => "no Python function of the training thread seen yet",
        }
        .to_owned(),
    }
}

/// `step (train.py:88)`.
fn code_text(key: &CodeKey) -> String {
    let name = printable(&key.name);
    if key.file.is_empty() {
        return name.into_owned();
    }
    format!("{name} ({})", place_of(&key.file, key.line))
}

fn operators(process: &LiveProcess, state: &State) -> Table {
    let mut rows = both(&process.now.operators, &process.since.operators);
    rows.sort_by(|left, right| {
        let order = |row: &(String, Both)| Reverse(weight(state.sort, &row.1));
        (order(left), &left.0).cmp(&(order(right), &right.0))
    });
    let rows = rows.into_iter().map(|(name, both)| {
        let mut cells = time_cells(process, &both);
        cells.push(printable(&name).into_owned());
        Row {
            cells,
            key: RowKey::None,
            bold: false,
        }
    });
    Table {
        columns: time_columns(state.sort, "Operator (host time of the training thread)"),
        rows: rows.collect(),
        empty: "no operator seen on the training thread yet".to_owned(),
    }
}

/// Three digits: `8.31`, `120`.
pub(super) fn rate(per_s: f64) -> String {
    match per_s {
        ..10.0 => format!("{per_s:.2}"),
        10.0..100.0 => format!("{per_s:.1}"),
        _ => format!("{per_s:.0}"),
    }
}
