//! What the training thread waited for.

use super::named_line;
use crate::analysis::Analysis;
use crate::analysis::intervals::Share;
use crate::analysis::waits::{Holder, WaitTime};
use crate::model::facts::Line;
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use crate::report::table::{Column, Kind, Value};
use crate::report::text::format::place_of;
use schemars::JsonSchema;
use serde::Serialize;

/// A source line.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct At {
    /// The file.
    pub file: String,
    /// The function.
    pub function: String,
    /// The line.
    pub line: u32,
}

/// One thing that the training thread waited for, at one line.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Wait {
    /// `gpu_sync`, `gpu_copy`, `collective`, `input_queue`, `gil`, `autograd`, `lock`, `disk`,
    /// `socket`, `io`, `child`, `events`, `sleep`, `cpu`, `stopped`.
    pub kind: &'static str,
    /// What exactly: the call, the collective, the system call.
    pub what: String,
    /// How long.
    pub seconds: f64,
    /// As a share of the training thread's wall time.
    pub share: f64,
    /// The same with its interval.
    pub interval: Share,
    /// The line; null where no Python frame was read.
    pub at: Option<At>,
    /// Whether the time is that of work which was queued on the GPU earlier, and not the line's
    /// own.
    pub earlier_work: bool,
    /// Of waits for the GIL: who held it, most time first.
    pub holders: Vec<GilHolder>,
}

/// Who held the GIL.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct GilHolder {
    /// The thread.
    pub tid: i32,
    /// Its name.
    pub thread: String,
    /// How long it was waited for.
    pub seconds: f64,
    /// Where it was; null where its stack was not read at that time.
    pub at: Option<At>,
}

/// A line with its names.
pub(crate) fn at(profile: &Profile, line: Option<Line>) -> Option<At> {
    let (function, line) = named_line(profile, line?)?;
    Some(At {
        file: function.file.clone(),
        function: function.name.clone(),
        line,
    })
}

type Col = Column<Wait>;

/// Waits.
pub const WAITS: &[Col] = &[
    Col::new(Kind::Seconds, "seconds", "seconds", |row| {
        row.seconds.into()
    })
    .adds_up(),
    Col::new(Kind::Share, "share", "% of all", |row| row.interval.into()).adds_up(),
    Col::new(Kind::Text, "kind", "kind", |row| row.kind.into()),
    Col::new(Kind::Text, "what", "for what", |row| (&row.what).into()),
    Col::new(Kind::Text, "function", "in", |row| {
        At::function(row.at.as_ref())
    }),
    Col::new(Kind::Place, "at", "at", |row| At::place(row.at.as_ref())),
    Col::data(Kind::Text, "earlier_work", |row| row.earlier_work.into()),
];

impl At {
    /// `train.py:41`.
    pub(crate) fn shown(at: Option<&At>) -> String {
        at.map_or_else(
            || "a line that was not read".to_owned(),
            |at| place_of(&at.file, at.line),
        )
    }

    /// The function, for a column.
    pub(super) fn function(at: Option<&At>) -> Value {
        at.map(|at| &at.function).into()
    }

    /// File and line, for a column.
    pub(super) fn place(at: Option<&At>) -> Value {
        at.map_or(Value::None, |at| Value::Place(at.file.clone(), at.line))
    }
}

/// The first `most` waits of the primary process.
pub fn waits(profile: &Profile, analysis: &Analysis, most: usize) -> Vec<Wait> {
    let rows = analysis.primary_waits().into_iter();
    let rows = rows.flat_map(|waits| &waits.rows).take(most);
    rows.map(|row| wait(profile, row)).collect()
}

fn wait(profile: &Profile, row: &WaitTime) -> Wait {
    Wait {
        kind: row.kind.name(),
        what: row.what.clone(),
        seconds: seconds(row.ns),
        share: row.share.value,
        interval: row.share,
        at: at(profile, row.at),
        earlier_work: row.kind.is_for_earlier_work(),
        holders: row
            .holders
            .iter()
            .filter_map(|each| holder(profile, each))
            .collect(),
    }
}

fn holder(profile: &Profile, holder: &Holder) -> Option<GilHolder> {
    let thread = profile.threads.get(holder.thread.index())?;
    Some(GilHolder {
        tid: thread.tid,
        thread: thread.name.clone(),
        seconds: seconds(holder.ns),
        at: at(profile, holder.at),
    })
}
