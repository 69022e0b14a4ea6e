//! The training thread's functions and lines, and all threads.

use super::format::{column_seconds, count, cut, printable};
use super::line;
use super::table::{body, table};
use super::tables::column;
use crate::analysis::Analysis;
use crate::analysis::summary::ProcessSummary;
use crate::model::profile::Profile;
use crate::report::table::Column;
use crate::report::tables::functions::{
    self as rows, FUNCTIONS, FunctionRow, LINES, NATIVE, USER_LINES,
};

/// Lines and functions, `rows` of each.
pub(super) fn functions(out: &mut String, profile: &Profile, analysis: &Analysis, rows: usize) {
    user_lines(out, profile, analysis, rows);
    let of_python = "PYTHON FUNCTIONS (self: with the native code they call)";
    let found = rows::functions(profile, analysis, rows);
    own(out, of_python, FUNCTIONS, found);
    own(
        out,
        "PYTHON LINES",
        LINES,
        rows::lines(profile, analysis, rows),
    );
    own(
        out,
        "NATIVE FUNCTIONS",
        NATIVE,
        rows::native(profile, analysis, rows),
    );
}

/// Lines of the user's own code: where to begin.
pub(super) fn user_lines(out: &mut String, profile: &Profile, analysis: &Analysis, rows: usize) {
    let found = rows::user_lines(profile, analysis, rows);
    if !found.is_empty() {
        out.push_str("\nLINES OF YOUR CODE, with all that they call\n");
        body(out, USER_LINES, &found, rows);
    }
}

/// Those with time of their own.
fn own(
    out: &mut String,
    title: &str,
    columns: &'static [Column<FunctionRow>],
    mut found: Vec<FunctionRow>,
) {
    found.retain(|row| row.self_s > 0.0);
    if !found.is_empty() {
        line(out, &[format!("\n{title}")]);
        table(out, columns, &found, usize::MAX);
    }
}

pub(super) fn threads(out: &mut String, profile: &Profile, process: &ProcessSummary, rows: usize) {
    if process.threads.is_empty() {
        return;
    }
    out.push_str("\nTHREADS\n");
    line(
        out,
        &[format!(
            "  {:<38}{:>9}{:>9}  {}",
            "thread", "wall s", "cpu s", "mostly"
        )],
    );
    for thread in process.threads.iter().take(rows) {
        let Some(info) = profile.threads.get(thread.thread.index()) else {
            continue;
        };
        let name = cut(
            &format!("{} {} ({})", info.tid, printable(&info.name), thread.role),
            38,
        );
        line(
            out,
            &[format!(
                "  {name:<38}{:>9}{:>9}  {} {:.0} %",
                column_seconds(thread.wall_ns),
                column_seconds(thread.cpu_ns),
                column(thread.main_activity),
                thread.main_share * 100.0
            )],
        );
    }
    let left = process.threads.len().saturating_sub(rows);
    if left > 0 {
        let cpu_ns: u64 = process
            .threads
            .iter()
            .skip(rows)
            .map(|thread| thread.cpu_ns)
            .sum();
        line(
            out,
            &[format!(
                "  {:<38}{:>9}{:>9}",
                format!("{} more", count(left as u64)),
                "",
                column_seconds(cpu_ns)
            )],
        );
    }
}
