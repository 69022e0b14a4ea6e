//! What the training thread waited for.

use super::named_line;
use crate::analysis::Analysis;
use crate::analysis::intervals::Share;
use crate::analysis::waits::{Holder, WaitTime};
use crate::model::as_json::name;
use crate::model::facts::Line;
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use crate::model::wait::WaitKind;
use crate::report::table::{Column, Cut, Kind, Value};
use crate::report::text::format::{place_of, printable};
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
    #[serde(serialize_with = "name")]
    #[schemars(with = "String")]
    pub kind: WaitKind,
    /// The call, the collective or the system call.
    pub what: String,
    pub seconds: f64,
    /// As a share of the training thread's wall time.
    pub share: f64,
    /// The same with its interval.
    pub interval: Share,
    /// The line; null if no Python frame was read.
    pub at: Option<At>,
    /// Whether the time is that of work that was queued on the GPU earlier, and not the line's own.
    pub earlier_work: bool,
    /// For waits for the GIL: who held it, by descending time.
    pub holders: Vec<GilHolder>,
}

/// The thread that held the GIL.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct GilHolder {
    /// The thread.
    pub tid: i32,
    /// Its name.
    pub thread: String,
    /// How long the training thread waited for it.
    pub seconds: f64,
    /// Its line; null if its stack was not read at that time.
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

pub const WAITS: &[Col] = &[
    Col::new(Kind::Seconds, "seconds", "seconds", |row| {
        row.seconds.into()
    })
    .adds_up(),
    Col::new(Kind::Share, "share", "    % of all", |row| {
        row.interval.into()
    })
    .width(16)
    .adds_up(),
    Col::words("for what, at", |row| row.words().into()).cut(Cut::End),
    Col::words("", |row| {
        let most = match row.kind {
            WaitKind::Cpu => "most at ",
            _ => "",
        };
        format!(" {most}{}", At::shown(row.at.as_ref())).into()
    }),
    Col::data(Kind::Text, "kind", |row| row.kind.name().into()),
    Col::data(Kind::Text, "what", |row| (&row.what).into()),
    Col::data(Kind::Text, "function", |row| At::function(row.at.as_ref())),
    Col::data(Kind::Place, "at", |row| At::place(row.at.as_ref())),
    Col::data(Kind::Text, "earlier_work", |row| row.earlier_work.into()),
];

impl Wait {
    /// A wait as text: `GPU sync: cudaStreamSynchronize *`.
    fn words(&self) -> String {
        let kind = match self.kind {
            WaitKind::GpuSync => "GPU sync",
            WaitKind::GpuCopy => "GPU copy",
            WaitKind::Input => "input",
            WaitKind::Io => "I/O",
            WaitKind::Gil
            | WaitKind::Cpu
            | WaitKind::Autograd
            | WaitKind::Barrier
            | WaitKind::Stopped => return self.what.clone(),
            kind => kind.name(),
        };
        let mark = if self.earlier_work { " *" } else { "" };
        format!("{kind}: {}{mark}", self.what)
    }
}

impl At {
    /// `train.py:41 slow_transform`.
    pub(crate) fn named(at: Option<&At>) -> String {
        let function = at.map_or(String::new(), |at| format!(" {}", printable(&at.function)));
        format!("{}{function}", At::shown(at))
    }

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

/// A wait with its names.
pub fn wait(profile: &Profile, row: &WaitTime) -> Wait {
    Wait {
        kind: row.kind,
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
    let thread = profile.thread(holder.thread)?;
    Some(GilHolder {
        tid: thread.tid,
        thread: thread.name.clone(),
        seconds: seconds(holder.ns),
        at: at(profile, holder.at),
    })
}
