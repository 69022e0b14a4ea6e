//! Tables of a trace of torch.profiler.

pub mod collectives;
pub mod devices;
pub mod kernels;
pub mod operators;

use super::named_line;
use crate::analysis::traced::Joined;
use crate::model::profile::Profile;
use crate::model::seconds;
use crate::report::table::{Column, In, Kind, Sheet, Value};
use crate::trace::TraceSummary;
use schemars::JsonSchema;
use serde::Serialize;

/// Builds a table of a trace.
pub type MakeOfTrace = fn(&TraceSummary) -> Sheet;

/// All tables by name, which is their key in JSON.
pub const TABLES: &[(&str, MakeOfTrace)] = &[
    ("trace_operators", |trace| {
        Sheet::new(operators::OPERATORS, &operators::operators(trace))
    }),
    ("trace_shapes", |trace| {
        Sheet::new(operators::SHAPES, &operators::shapes(trace))
    }),
    ("trace_kernels", |trace| {
        Sheet::new(kernels::KERNELS, &kernels::kernels(trace))
    }),
    ("trace_copies", |trace| {
        Sheet::new(kernels::COPIES, &kernels::copies(trace))
    }),
    ("trace_collectives", |trace| {
        let rows = collectives::collectives(trace);
        Sheet::new(collectives::COLLECTIVES, &rows)
    }),
    ("trace_devices", |trace| {
        Sheet::new(devices::DEVICES, &devices::devices(trace))
    }),
    ("trace_idle", |trace| {
        Sheet::new(devices::IDLE, &devices::idle(trace))
    }),
];

/// Where a device was idle, and the next kernel not launched: what samples of the launching thread
/// show.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct SampledIdle {
    pub phase: String,
    /// The line of the user's own code nearest to the leaf, else of a package's.
    pub file: Option<String>,
    pub line: Option<u32>,
    pub idle_s: f64,
    /// Of the idle time that the recording has, too.
    pub share: f64,
}

type Col = Column<SampledIdle>;

pub const SAMPLED_IDLE: &[Col] = &[
    Col::new(Kind::Milliseconds, "idle_s", "idle ms", |row| {
        (row.idle_s * 1e3).into()
    })
    .only(In::Text)
    .adds_up(),
    Col::new(Kind::Percent, "share", "share", |row| row.share.into()).adds_up(),
    Col::new(Kind::Text, "phase", "phase", |row| (&row.phase).into()).width(13),
    Col::new(Kind::Place, "at", "at", |row| {
        Value::place(row.file.as_ref(), row.line)
    }),
    Col::data(Kind::Seconds, "idle_s", |row| row.idle_s.into()),
];

/// By descending time.
pub fn sampled_idle(profile: &Profile, joined: &Joined) -> Vec<SampledIdle> {
    let rows = joined.at.iter().map(|&(phase, line, ns)| {
        let at = line.and_then(|line| named_line(profile, line));
        SampledIdle {
            phase: profile.phase_name(phase).to_owned(),
            file: at.map(|(function, _)| function.file.clone()),
            line: at.map(|(_, line)| line),
            idle_s: seconds::of(ns),
            share: ns as f64 / joined.idle_ns.max(1) as f64,
        }
    });
    rows.collect()
}

/// What is of whole steps; `None` without steps.
fn in_steps<T>(trace: &TraceSummary, value: T) -> Option<T> {
    are_of_steps(trace).then_some(value)
}

/// Whether text shows calls and times of whole steps, rather than of all of the trace.
pub(crate) fn are_of_steps(trace: &TraceSummary) -> bool {
    trace.has_step_times && !trace.steps.whole.is_empty()
}

/// Calls in whole steps, for each step; `None` without steps.
fn per_step(trace: &TraceSummary, calls: u64) -> Option<f64> {
    let steps = trace.steps.whole.len();
    (steps > 0).then(|| calls as f64 / steps as f64)
}
