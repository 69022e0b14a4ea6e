//! What code did to the memory of processes: by line, operator and phase.

use crate::analysis::memory_code::{ProcessMemory, Raised};
use crate::analysis::memory_growth::Rate;
use crate::model::facts::Line;
use crate::model::profile::Profile;
use crate::report::table::{Column, Cut, In, Kind, Value};
use crate::report::text::tracks::bytes;
use schemars::JsonSchema;
use serde::Serialize;

/// What one line, operator or phase raised: an estimate from readings with samples.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct RaisedRow {
    /// The process.
    pub pid: i32,
    pub rank: Option<u32>,
    /// The operator or the phase; of a line the function that it is in.
    pub name: String,
    /// File of a line; empty for others.
    pub file: String,
    /// The line; null for others.
    pub line: Option<u32>,
    /// Sum of the rises of memory that it caused.
    pub raised_bytes: f64,
    /// The part of it that came between two samples in it: no estimate.
    pub certain_bytes: f64,
    /// All rises next to a sample in it: an estimate cannot be higher.
    pub possible_bytes: f64,
    /// Sum of the falls of memory that it caused.
    pub fell_bytes: f64,
    /// Rises each step, with the 95 % interval of the mean over the run; null where no step was
    /// timed.
    pub per_step_bytes: Option<Rate>,
}

/// Code between two samples of a thread that sleeps at both.
const UNSEEN: &str = "not seen in a sample";

type Col = Column<RaisedRow>;

const fn size(label: &'static str, value: fn(&RaisedRow) -> Value) -> Col {
    Col::new(Kind::Number, "", label, value).only(In::Text)
}

const RAISED: Col = size("raised", |row| shown(row.raised_bytes));
const CERTAIN: Col = size("certain", |row| shown(row.certain_bytes));
const FELL: Col = size("fell", |row| shown(row.fell_bytes));
const PER_STEP: Col = size("a step", |row| {
    row.per_step_bytes
        .map_or(Value::None, |rate| shown(rate.value))
});
const RANGE: Col = size("95 %", |row| {
    let rate = row.per_step_bytes.filter(|_| row.raised_bytes >= 0.5);
    let text = rate.map(|rate| format!("{} to {}", bytes(rate.low), bytes(rate.high)));
    text.into()
})
.width(18);
const NAME: Col = Col::new(Kind::Text, "name", "", |row| (&row.name).into()).cut(Cut::End);

/// Columns of data, in CSV.
macro_rules! columns {
    ($($own:expr),+) => {
        &[
            RAISED,
            CERTAIN,
            FELL,
            PER_STEP,
            RANGE,
            $($own,)+
            Col::data(Kind::Id, "pid", |row| row.pid.into()),
            Col::data(Kind::Count, "rank", |row| row.rank.into()),
            Col::data(Kind::Number, "raised_bytes", |row| row.raised_bytes.into()),
            Col::data(Kind::Number, "certain_bytes", |row| row.certain_bytes.into()),
            Col::data(Kind::Number, "possible_bytes", |row| row.possible_bytes.into()),
            Col::data(Kind::Number, "fell_bytes", |row| row.fell_bytes.into()),
            Col::data(Kind::Number, "per_step_bytes", |row| rate(row, |rate| rate.value)),
            Col::data(Kind::Number, "per_step_low", |row| rate(row, |rate| rate.low)),
            Col::data(Kind::Number, "per_step_high", |row| rate(row, |rate| rate.high)),
        ]
    };
}

pub const LINES: &[Col] = columns!(
    Col::new(Kind::Place, "at", "line", |row| {
        Value::place(Some(&row.file), row.line)
    }),
    NAME
);
pub const OPERATORS: &[Col] = columns!(NAME.named("operator"));
pub const PHASES: &[Col] = columns!(NAME.named("phase"));

fn shown(value: f64) -> Value {
    match value {
        ..0.5 => "-".into(),
        value => bytes(value).into(),
    }
}

fn rate(row: &RaisedRow, part: fn(&Rate) -> f64) -> Value {
    row.per_step_bytes.as_ref().map(part).into()
}

/// Lines of all processes.
pub fn lines(profile: &Profile, all: &[ProcessMemory]) -> Vec<RaisedRow> {
    let rows = all.iter().flat_map(|memory| lines_of(profile, memory));
    rows.collect()
}

/// Operators of all processes.
pub fn operators(profile: &Profile, all: &[ProcessMemory]) -> Vec<RaisedRow> {
    let rows = all.iter().flat_map(|memory| operators_of(profile, memory));
    rows.collect()
}

/// Phases of all processes.
pub fn phases(profile: &Profile, all: &[ProcessMemory]) -> Vec<RaisedRow> {
    let rows = all.iter().flat_map(|memory| phases_of(profile, memory));
    rows.collect()
}

pub fn lines_of(profile: &Profile, memory: &ProcessMemory) -> Vec<RaisedRow> {
    let row = |raised: &Raised<Line>| {
        let named = raised.key.and_then(|(function, line)| {
            let function = profile.function(function)?;
            Some((function.name.clone(), function.file.clone(), line))
        });
        let unknown = || (UNSEEN.to_owned(), String::new(), 0);
        let (name, file, line) = named.unwrap_or_else(unknown);
        RaisedRow {
            file,
            line: (line > 0).then_some(line),
            ..row(profile, memory, raised, name)
        }
    };
    memory.lines.iter().map(row).collect()
}

pub fn operators_of(profile: &Profile, memory: &ProcessMemory) -> Vec<RaisedRow> {
    let all = memory.operators.iter();
    all.map(|raised| {
        let name = raised.key.map(|name| profile.facts.names.get(name));
        row(
            profile,
            memory,
            raised,
            name.unwrap_or("no operator, or not seen").to_owned(),
        )
    })
    .collect()
}

pub fn phases_of(profile: &Profile, memory: &ProcessMemory) -> Vec<RaisedRow> {
    let all = memory.phases.iter();
    all.map(|raised| {
        let name = raised.key.map(|phase| profile.phase_name(phase));
        row(profile, memory, raised, name.unwrap_or(UNSEEN).to_owned())
    })
    .collect()
}

fn row<K>(
    profile: &Profile,
    memory: &ProcessMemory,
    raised: &Raised<K>,
    name: String,
) -> RaisedRow {
    let (pid, rank) = profile.pid_and_rank(memory.process);
    RaisedRow {
        pid,
        rank,
        name,
        file: String::new(),
        line: None,
        raised_bytes: raised.raised,
        certain_bytes: raised.certain,
        possible_bytes: raised.possible,
        fell_bytes: raised.fell,
        per_step_bytes: raised.per_step,
    }
}
