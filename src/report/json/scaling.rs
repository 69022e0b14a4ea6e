//! Runs on different numbers of ranks, for machines: JSON of a schema of its own.

use crate::analysis::scaling::fit::Division;
use crate::analysis::scaling::{Scaling, Work};
use crate::model::text::printable_json;
use crate::report::json::job::LeftOutRow;
use crate::report::tables::scaling::{FitRow, PointRow, fits, points};
use crate::torch::rules::RuleSet;
use schemars::JsonSchema;
use serde::Serialize;

/// Version of the schema. Keys are only ever added within a version.
pub const SCHEMA: u32 = 2;

/// Runs, compared.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct ScalingReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of the rules that determined phases and activities.
    pub rules: u32,
    /// Version of the torchspy that reports.
    pub torchspy: &'static str,
    /// What `time_s` is of: `epoch` or `step`.
    pub unit: &'static str,
    /// What makes the work of two runs the same: `epoch` (as many samples), `epoch_assumed`
    /// (samples were not counted), `samples`, `batch_rank`, `batch_global` (as the user says), or
    /// `unknown`.
    pub work: &'static str,
    /// Standard deviation from run to run, relative to their mean.
    pub run_to_run: f64,
    /// Its degrees of freedom, where runs are repeated; null if it is what the user says.
    pub run_to_run_freedom: Option<f64>,
    pub points: Vec<PointRow>,
    pub fits: Vec<FitRow>,
    /// Runs and files that are no part of the answer.
    pub left_out: Vec<LeftOutRow>,
}

/// The report of runs.
pub fn scaling_report(scaling: &Scaling) -> ScalingReport {
    ScalingReport {
        schema: SCHEMA,
        rules: RuleSet::built_in().version,
        torchspy: env!("CARGO_PKG_VERSION"),
        unit: scaling.unit.name(),
        work: match scaling.work {
            Work::Epoch { counted: true } => "epoch",
            Work::Epoch { counted: false } => "epoch_assumed",
            Work::Samples => "samples",
            Work::Stated(Division::PerRank) => "batch_rank",
            Work::Stated(Division::Global) => "batch_global",
            Work::Unknown => "unknown",
        },
        run_to_run: scaling.run_to_run.share,
        run_to_run_freedom: scaling.run_to_run.measured,
        points: points(scaling),
        fits: fits(scaling),
        left_out: scaling
            .left_out
            .iter()
            .map(|(file, why)| LeftOutRow {
                file: file.clone(),
                why: why.clone(),
            })
            .collect(),
    }
}

/// The JSON schema of what [`render_scaling_json`] writes.
pub fn scaling_schema() -> schemars::Schema {
    schemars::schema_for!(ScalingReport)
}

/// [`scaling_report`] as JSON text, indented, with a line feed at its end.
///
/// # Errors
/// None in practice: all values can be written as JSON.
pub fn render_scaling_json(scaling: &Scaling) -> Result<String, serde_json::Error> {
    let mut text = printable_json(&serde_json::to_string_pretty(&scaling_report(scaling))?);
    text.push('\n');
    Ok(text)
}
