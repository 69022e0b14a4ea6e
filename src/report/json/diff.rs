//! A comparison for machines: JSON of a schema of its own. Times are seconds per unit, shares are 0
//! to 1.

use crate::analysis::diff::conditions::Discrepancy;
use crate::analysis::diff::noise::RunToRun;
use crate::analysis::diff::{Diff, RunFacts};
use crate::model::text::printable_json;
use crate::report::part::part_name;
use crate::report::tables::diff::{Part, part, parts};
use crate::torch::rules::RuleSet;
use schemars::JsonSchema;
use serde::Serialize;

/// Version of the schema. Keys are only ever added within a version.
pub const SCHEMA: u32 = 1;

/// A comparison.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct DiffReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of the rules that determined phases and activities.
    pub rules: u32,
    /// Version of the torchspy that compared.
    pub torchspy: &'static str,
    /// Unit of figures: `step`, or `second` of wall time if no steps are known.
    pub unit: &'static str,
    /// Runs of A.
    pub a: Vec<RunFacts>,
    /// Runs of B.
    pub b: Vec<RunFacts>,
    /// The complete step; null per second.
    pub step: Option<Part>,
    /// The step of each rank, if all recordings have the same ranks; empty otherwise.
    pub ranks: Vec<Rank>,
    /// The part that most of the step's difference comes from; null if it is spread, or there is
    /// none.
    pub carrier: Option<Carrier>,
    /// All parts that were compared, by kind, then by difference.
    pub parts: Vec<Part>,
    /// Number of parts that were not compared: seen in fewer than 30 samples on both sides.
    pub too_seldom: usize,
    /// Variation from one run to the next.
    pub run_to_run: Scatter,
    /// Other differences between the runs.
    pub differs: Vec<Discrepancy>,
}

/// The step of a rank.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Rank {
    /// Its number.
    pub rank: u32,
    /// Its step.
    pub step: Part,
}

/// The part that carries the difference.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Carrier {
    /// As in [`Part`].
    pub kind: &'static str,
    /// As in [`Part`].
    pub name: String,
    /// Its difference.
    pub difference_s: f64,
    /// As a share of the step's difference.
    pub share: f64,
}

/// Variation between runs of one side.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
pub struct Scatter {
    /// Whether it was measured from several runs of a side, or assumed.
    pub measured: bool,
    /// Relative standard deviation of a run's mean, beyond what varies within a run.
    pub relative: f64,
    /// Runs less sides; 0 where it was not measured.
    pub freedom: usize,
}

/// The report of a comparison.
pub fn diff_report(diff: &Diff) -> DiffReport {
    DiffReport {
        schema: SCHEMA,
        rules: RuleSet::built_in().version,
        torchspy: env!("CARGO_PKG_VERSION"),
        unit: diff.unit.name(),
        a: diff.a.clone(),
        b: diff.b.clone(),
        step: diff.step.as_ref().map(|row| part(diff, row)),
        ranks: diff
            .ranks
            .iter()
            .map(|(rank, row)| Rank {
                rank: *rank,
                step: part(diff, row),
            })
            .collect(),
        carrier: diff.carrier.as_ref().and_then(|carrier| {
            let row = diff.rows.get(carrier.row)?;
            Some(Carrier {
                kind: row.key.kind(),
                name: part_name(&row.key, &row.about),
                difference_s: row.difference_ns / 1e9,
                share: carrier.share,
            })
        }),
        parts: parts(diff, &diff.rows),
        too_seldom: diff.too_seldom,
        run_to_run: match diff.run_to_run {
            RunToRun::Assumed(relative) => Scatter {
                measured: false,
                relative,
                freedom: 0,
            },
            RunToRun::Measured { scatter, freedom } => Scatter {
                measured: true,
                relative: scatter,
                freedom,
            },
        },
        differs: diff.discrepancies.clone(),
    }
}

/// The JSON schema of what [`render_diff_json`].
pub fn diff_schema() -> schemars::Schema {
    schemars::schema_for!(DiffReport)
}

/// [`diff_report`] as JSON text, indented, with a line feed at its end.
///
/// # Errors
/// None in practice: all values can be written as JSON.
pub fn render_diff_json(diff: &Diff) -> Result<String, serde_json::Error> {
    let mut text = printable_json(&serde_json::to_string_pretty(&diff_report(diff))?);
    text.push('\n');
    Ok(text)
}
