//! Steps of the primary process that are complete in the recording.

use crate::analysis::Analysis;
use crate::analysis::progress::{Step, Why, timed_steps};
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use crate::report::table::{Column, Kind};

/// A step.
pub struct StepRow {
    step: Step,
    /// Start, seconds since the start of the recording.
    start_s: f64,
    /// Why the mean is not of it.
    left_out: Option<Why>,
}

type Col = Column<StepRow>;

pub const STEPS: &[Col] = &[
    Col::new(Kind::Id, "step", "step", |row| row.step.number.into()).width(9),
    Col::new(Kind::Seconds, "start_s", "at s", |row| row.start_s.into()),
    Col::new(Kind::Milliseconds, "ms", "ms", |row| {
        milliseconds(row.step.end_ns.saturating_sub(row.step.start_ns)).into()
    }),
    // Its end lies between two samples: half of the time between them.
    Col::new(Kind::Milliseconds, "uncertain_ms", "± ms", |row| {
        (milliseconds(row.step.uncertain_ns) / 2.0).into()
    })
    .width(8),
    Col::new(Kind::Text, "left_out", "left out", |row| {
        row.left_out.map_or("", Why::name).into()
    }),
];

/// The steps, in the order in which they ended.
pub fn steps(profile: &Profile, analysis: &Analysis) -> Vec<StepRow> {
    let primary = analysis.primary();
    let steps = primary.map_or(Vec::new(), |process| timed_steps(profile, process.process));
    let rows = steps.into_iter().map(|(step, left_out)| StepRow {
        start_s: seconds(step.start_ns.saturating_sub(profile.start_ns)),
        step,
        left_out,
    });
    rows.collect()
}

fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}
