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

/// A whole comparison.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct DiffReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of the rules that told phases and activities.
    pub rules: u32,
    /// Version of the torchspy that compared.
    pub torchspy: &'static str,
    /// What figures are per: `step`, or `second` of wall time where no steps are known.
    pub unit: &'static str,
    /// Runs of A.
    pub a: Vec<RunFacts>,
    /// Runs of B.
    pub b: Vec<RunFacts>,
    /// The whole step; null per second.
    pub step: Option<Part>,
    /// The step of each rank, where all recordings hold the same several; empty otherwise.
    pub ranks: Vec<Rank>,
    /// The part that most of the step's difference comes from; null where it is spread, or none.
    pub carrier: Option<Carrier>,
    /// All parts that were compared, by kind, then by difference.
    pub parts: Vec<Part>,
    /// Parts seen in fewer than 30 samples on both sides, which were not.
    pub too_seldom: usize,
    /// How runs of one kind scatter.
    pub run_to_run: Scatter,
    /// What else differs between the runs.
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

/// What carries the difference.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Carrier {
    /// As of [`Part`].
    pub kind: &'static str,
    /// As of [`Part`].
    pub name: String,
    /// Its difference.
    pub difference_s: f64,
    /// The same as a share of the step's.
    pub share: f64,
}

/// How far runs of one kind differ.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
pub struct Scatter {
    /// Whether it was measured on several runs of a side, or taken for granted.
    pub measured: bool,
    /// Relative standard deviation of a run's mean, beyond what shows within a run.
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

/// The JSON schema of what [`render_diff_json`] writes, with a description of every key.
pub fn diff_schema() -> schemars::Schema {
    schemars::schema_for!(DiffReport)
}

/// The same as JSON text, indented, with a line feed at its end.
///
/// # Errors
/// None in practice: the structures hold nothing that JSON cannot.
pub fn render_diff_json(diff: &Diff) -> Result<String, serde_json::Error> {
    let mut text = printable_json(&serde_json::to_string_pretty(&diff_report(diff))?);
    text.push('\n');
    Ok(text)
}
