//! Functions and lines of the training thread.

use crate::analysis::Analysis;
use crate::analysis::functions::{FunctionTime, LineTime};
use crate::analysis::intervals::Share;
use crate::analysis::summary::ProcessSummary;
use crate::model::ids::FunctionId;
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use crate::report::table::{Column, Cut, In, Kind, Value};
use schemars::JsonSchema;
use serde::Serialize;

/// A function or line.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct FunctionRow {
    /// Its name.
    pub name: String,
    /// Its file, or a native function's module.
    pub file: String,
    /// The line; a function's first; null for native functions.
    pub line: Option<u32>,
    /// Own time; of a Python function or line with the native code that it calls, of a line of the
    /// user's code with all libraries that it calls.
    pub self_s: f64,
    /// Own time as a share of the training thread's wall time; for lines only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_share: Option<Share>,
    /// Time on the stack; of a line of the user's code its own time.
    pub total_s: f64,
    /// Own time as a share without an interval.
    #[serde(skip)]
    self_part: f64,
    /// The name without parameters and nested namespaces.
    #[serde(skip)]
    short_name: String,
}

type Col = Column<FunctionRow>;

const SELF: Col = Col::new(Kind::Seconds, "self_s", "self s", |row| row.self_s.into()).adds_up();
const PART: Col = Col::new(Kind::Percent, "self_share", "self %", |row| {
    row.self_part.into()
});
const SHARE: Col = Col::new(Kind::Share, "self_share", "self %", |row| {
    row.self_share.map_or(row.self_part.into(), Value::Share)
});
const TOTAL: Col = Col::new(Kind::Seconds, "total_s", "total s", |row| {
    row.total_s.into()
});

/// Python functions: the end of a name is the most specific part.
pub const FUNCTIONS: &[Col] = &[
    SELF,
    PART,
    TOTAL,
    Col::new(Kind::Text, "name", "function", |row| (&row.name).into()).cut(Cut::Front),
    Col::new(Kind::Place, "at", "", place),
];
/// Lines of any Python code.
pub const LINES: &[Col] = &[
    SELF,
    SHARE,
    TOTAL,
    Col::new(Kind::Place, "at", "line", place),
    NAME,
];
/// Lines of the user's own code, each with the time in which it is the innermost of them.
pub const USER_LINES: &[Col] = &[
    SELF.named("s"),
    SHARE.named("% of all"),
    Col::new(Kind::Place, "at", INNERMOST, place),
    NAME,
    TOTAL.only(In::Data),
];
/// What the time of such a line is: a stack has a single one.
pub const INNERMOST: &str = "innermost line of your code, with the libraries that it calls";
/// Native functions.
pub const NATIVE: &[Col] = &[
    SELF,
    PART,
    TOTAL,
    Col::words("function", |row| (&row.short_name).into()).cut(Cut::End),
    Col::data(Kind::Text, "name", |row| (&row.name).into()),
    Col::data(Kind::Text, "file", |row| (&row.file).into()),
];
const NAME: Col = Col::new(Kind::Text, "name", "", |row| (&row.name).into()).cut(Cut::End);

fn place(row: &FunctionRow) -> Value {
    Value::Place(row.file.clone(), row.line.unwrap_or(0))
}

/// The first `most` Python functions of the training thread, by descending own time.
pub fn functions(profile: &Profile, analysis: &Analysis, most: usize) -> Vec<FunctionRow> {
    let Some(process) = analysis.primary() else {
        return Vec::new();
    };
    of_functions(profile, process, &process.hot.python, most)
}

/// The same for native functions.
pub fn native(profile: &Profile, analysis: &Analysis, most: usize) -> Vec<FunctionRow> {
    let Some(process) = analysis.primary() else {
        return Vec::new();
    };
    of_functions(profile, process, &process.hot.native, most)
}

/// The same for lines of Python code.
pub fn lines(profile: &Profile, analysis: &Analysis, most: usize) -> Vec<FunctionRow> {
    let Some(process) = analysis.primary() else {
        return Vec::new();
    };
    let known = (process.hot.lines.as_slice(), process.line_shares.as_slice());
    of_lines(profile, process, known, most)
}

/// The same for lines of the user's own code, with the time of the libraries that they call: a
/// line that calls other code of the user's does not have the time of that.
pub fn user_lines(profile: &Profile, analysis: &Analysis, most: usize) -> Vec<FunctionRow> {
    let Some(process) = analysis.primary() else {
        return Vec::new();
    };
    let known = (
        process.user_lines.as_slice(),
        process.user_line_shares.as_slice(),
    );
    of_lines(profile, process, known, most)
}

fn row(
    profile: &Profile,
    process: &ProcessSummary,
    (function, line): (FunctionId, Option<u32>),
    (self_ns, total_ns): (u64, u64),
    share: Option<Share>,
) -> Option<FunctionRow> {
    let function = profile.function(function)?;
    let first_line = function.is_python.then_some(function.first_line);
    Some(FunctionRow {
        name: function.name.clone(),
        file: function.file.clone(),
        line: line.or(first_line),
        self_s: seconds(self_ns),
        self_share: share,
        total_s: seconds(total_ns),
        self_part: process.part(self_ns),
        short_name: function.short_name.clone(),
    })
}

fn of_functions(
    profile: &Profile,
    process: &ProcessSummary,
    times: &[FunctionTime],
    most: usize,
) -> Vec<FunctionRow> {
    let times = times.iter().take(most);
    let row = |time: &FunctionTime| {
        let ns = (time.self_ns, time.total_ns);
        row(profile, process, (time.function, None), ns, None)
    };
    times.filter_map(row).collect()
}

fn of_lines(
    profile: &Profile,
    process: &ProcessSummary,
    (times, shares): (&[LineTime], &[Share]),
    most: usize,
) -> Vec<FunctionRow> {
    let times = times.iter().take(most).enumerate();
    let row = |(at, time): (usize, &LineTime)| {
        let ns = (time.self_ns, time.total_ns);
        let line = (time.function, Some(time.line));
        row(profile, process, line, ns, shares.get(at).copied())
    };
    times.filter_map(row).collect()
}
