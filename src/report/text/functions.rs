//! The training thread's functions and lines, and all threads.

use super::line;
use super::table::{body, table};
use crate::analysis::Analysis;
use crate::model::profile::Profile;
use crate::report::table::Column;
use crate::report::tables::functions::{
    self as rows, FUNCTIONS, FunctionRow, LINES, NATIVE, USER_LINES,
};
use crate::report::tables::threads::{THREADS, threads as threads_of};

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

/// Lines of the user's own code: where an investigation begins.
pub(super) fn user_lines(out: &mut String, profile: &Profile, analysis: &Analysis, rows: usize) {
    let found = rows::user_lines(profile, analysis, rows);
    if !found.is_empty() {
        out.push_str(
            "\nLINES OF YOUR CODE: the innermost of a stack, with the libraries it calls\n",
        );
        body(out, USER_LINES, &found, rows);
    }
}

/// Rows with own time.
fn own(
    out: &mut String,
    title: &str,
    columns: &'static [Column<FunctionRow>],
    mut found: Vec<FunctionRow>,
) {
    found.retain(|row| row.self_s > 0.0);
    if !found.is_empty() {
        line(out, &format!("\n{title}"));
        table(out, columns, &found, usize::MAX);
    }
}

/// All threads of the process.
pub(super) fn threads(out: &mut String, analysis: &Analysis, rows: usize) {
    let found = threads_of(analysis);
    if !found.is_empty() {
        out.push_str("\nTHREADS\n");
        table(out, THREADS, found, rows);
    }
}
