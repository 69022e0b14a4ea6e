//! Markdown, for a pull request or an issue: the verdict, the time by row, the most important lines
//! and operators, and, folded below these, the one-screen report.

use super::command::shown_command;
use super::table::{Column, In, Kind, Value};
use super::tables::functions::{USER_LINES, user_lines};
use super::tables::operators::{BRIEF, operators};
use super::tables::trace::kernels::{KERNELS, kernels};
use super::tables::trace::operators::{OPERATORS, operators as traced_operators};
use super::text::table::cell;
use super::text::trace;
use super::text::{Detail, TextOptions, WIDTH, of_recording, row_label, verdict_line};
use crate::analysis::Analysis;
use crate::analysis::intervals::Share;
use crate::analysis::summary::ProcessSummary;
use crate::analysis::traced::Traced;
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use std::io::{self, Write};

/// Maximum number of rows of a table; fewer where the document would have more than [`LINES`].
const ROWS: usize = 5;
/// Maximum number of lines, as far as shorter tables and a shorter report help.
const LINES: usize = 60;
/// Lines around the report.
const AROUND: usize = 7;
/// Rows below this share of the time are omitted.
const SMALL: f64 = 0.01;

/// A row of the summary: its label, its time in ns, and its share.
type TimeRow = (&'static str, u64, Share);
const TIME: &[Column<TimeRow>] = &[
    Column::new(Kind::Seconds, "s", "s", |row| seconds(row.1).into()),
    Column::new(Kind::Share, "share", "% of all", |row| row.2.into()),
    Column::words("host time of the training thread", |row| row.0.into()),
];

/// Writes the report of a profile.
///
/// # Errors
/// Where `out` cannot be written.
pub fn render(profile: &Profile, analysis: &Analysis, out: &mut dyn Write) -> io::Result<()> {
    let screen = summary(profile, analysis, TextOptions::default().lines);
    // Beside the lines of the recording.
    let mut traced = Vec::new();
    if let Some(trace) = &analysis.traced {
        traced_tables(trace, &mut traced)?;
    }
    let most = LINES + lines_of(&traced);
    let mut bytes = Vec::new();
    tables(profile, analysis, (ROWS, &traced), &mut bytes)?;
    report(&screen, &mut bytes)?;
    for rows in (1..=ROWS).rev() {
        if lines_of(&bytes) <= most {
            break;
        }
        bytes.clear();
        tables(profile, analysis, (rows, &traced), &mut bytes)?;
        let left = most.saturating_sub(lines_of(&bytes) + AROUND);
        report(&summary(profile, analysis, left), &mut bytes)?;
    }
    out.write_all(&bytes)
}

fn lines_of(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte == b'\n').count()
}

/// The tables, with those of a trace as they are.
fn tables(
    profile: &Profile,
    analysis: &Analysis,
    (rows, traced): (usize, &[u8]),
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let command = shown_command(&profile.run.command, WIDTH);
    writeln!(out, "### torchspy: {}", code(&command))?;
    if let Some(verdict) = &analysis.verdict {
        writeln!(out, "\n**{}**", plain(&verdict_line(profile, verdict)))?;
    }
    if let Some(process) = analysis.primary() {
        table(out, TIME, &times(profile, process))?;
    }
    table(out, USER_LINES, &user_lines(profile, analysis, rows))?;
    let mut sampled = operators(profile, analysis, rows, usize::MAX);
    sampled.retain(|operator| operator.self_s > 0.0);
    table(out, BRIEF, &sampled)?;
    out.extend_from_slice(traced);
    Ok(())
}

/// Operators and kernels of a trace of torch.profiler.
fn traced_tables(traced: &Traced, out: &mut Vec<u8>) -> io::Result<()> {
    let facts = trace::facts(&traced.trace).join(", ");
    write!(
        out,
        "\n{}. Calls and times are those {}. Disturbed: torch.profiler adds time to every call; never add these times to sampled ones.",
        plain(&facts),
        trace::extent(&traced.trace)
    )?;
    match &traced.joined {
        Ok(_) => writeln!(out)?,
        Err(why) => writeln!(out, " Not of this recording: {}.", why.text())?,
    }
    let first = |count: usize| count.min(ROWS);
    let found = traced_operators(&traced.trace);
    table(out, OPERATORS, &found[..first(found.len())])?;
    let found = kernels(&traced.trace);
    table(out, KERNELS, &found[..first(found.len())])
}

fn summary(profile: &Profile, analysis: &Analysis, lines: usize) -> String {
    let options = TextOptions {
        detail: Detail::Brief,
        lines,
        ..TextOptions::default()
    };
    // What there is of a trace is in the tables.
    of_recording(profile, analysis, options)
}

/// The report, folded below the tables.
fn report(text: &str, out: &mut Vec<u8>) -> io::Result<()> {
    let fence = "`".repeat(longest_run(text).max(2) + 1);
    writeln!(out, "\n<details><summary>The report</summary>\n")?;
    writeln!(out, "{fence}text\n{text}{fence}\n\n</details>")
}

/// Rows that are not small.
fn times(profile: &Profile, process: &ProcessSummary) -> Vec<TimeRow> {
    let rows = process.rows.iter();
    let rows = rows.filter(|(.., share)| share.value >= SMALL);
    rows.map(|&(row, ns, share)| (row_label(row, profile, process), ns, share))
        .collect()
}

/// The columns that text has, with a row of headings; nothing without rows.
fn table<R>(out: &mut dyn Write, columns: &[Column<R>], rows: &[R]) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let shown = || columns.iter().filter(|column| column.shown != In::Data);
    let is_text = |column: &Column<R>| matches!(column.kind, Kind::Text | Kind::Place);
    let heads: Vec<&str> = shown().map(|column| column.label).collect();
    let rules: Vec<&str> = shown()
        .map(|column| if is_text(column) { "---" } else { "---:" })
        .collect();
    writeln!(
        out,
        "\n| {} |\n| {} |",
        heads.join(" | "),
        rules.join(" | ")
    )?;
    for row in rows {
        let cells = shown().map(|column| {
            let value = (column.value)(row);
            let text = cell(column.kind, &value);
            match value {
                Value::Text(_) | Value::Place(..) => code(text.trim()),
                _ => text.trim().to_owned(),
            }
        });
        writeln!(out, "| {} |", cells.collect::<Vec<_>>().join(" | "))?;
    }
    Ok(())
}

/// A span of code for use in a cell: a bar would end the cell there, too.
fn code(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let text = text.replace('|', "\\|");
    let fence = "`".repeat(longest_run(&text) + 1);
    match text.contains('`') {
        true => format!("{fence} {text} {fence}"),
        false => format!("{fence}{text}{fence}"),
    }
}

/// Text in which no character has a meaning in Markdown (CommonMark 0.31.2, 2.4: any punctuation
/// may be escaped).
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if "\\`*_{}[]<>#|~&@!".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// The longest run of backticks.
fn longest_run(text: &str) -> usize {
    let runs = text.split(|c| c != '`').map(str::len);
    runs.max().unwrap_or(0)
}
