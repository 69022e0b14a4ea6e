//! A comparison for machines: JSON of a schema of its own. Times are seconds per unit, shares are 0
//! to 1.

use crate::analysis::diff::keys::Key;
use crate::analysis::diff::noise::RunToRun;
use crate::analysis::diff::{Diff, Figure, Row, RunFacts, Verdict};
use crate::model::text::printable_json;
use crate::report::part::part_name;
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
    pub a: Vec<Run>,
    /// Runs of B.
    pub b: Vec<Run>,
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
    pub differs: Vec<Differs>,
}

/// A run.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Run {
    /// The recording.
    pub file: String,
    /// Its command line.
    pub command: Vec<String>,
    /// Steps, or seconds, that count.
    pub units: f64,
    /// Wall time of the training thread.
    pub wall_s: f64,
    /// The part of it outside of every step.
    pub outside_s: f64,
}

/// The step of a rank.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Rank {
    /// Its number.
    pub rank: u32,
    /// Its step.
    pub step: Part,
}

/// A part, compared.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Part {
    /// `row`, `phase`, `activity`, `module`, `module_self`, `operator`, `line`, `function`,
    /// `native`; `step`.
    pub kind: &'static str,
    /// Its name: `Net.layers.2`, `train.py:88`.
    pub name: String,
    /// Class of a module; null for others.
    pub class: Option<String>,
    /// Source file, or library; null where it has none.
    pub file: Option<String>,
    /// Function that a line is in; null for others.
    pub function: Option<String>,
    /// Source line in B, or in A if B has it not; null where it has none.
    pub line: Option<u32>,
    /// In A.
    pub a: Side,
    /// In B.
    pub b: Side,
    /// B less A.
    pub difference_s: f64,
    /// Half of its 95 % interval.
    pub half_s: f64,
    /// B over A, less one; null where A has nothing of it.
    pub relative: Option<f64>,
    /// Half of its 95 % interval.
    pub relative_half: Option<f64>,
    /// How likely a difference at least as large is by chance, for this part alone.
    pub chance: f64,
    /// `slower`, `faster`, or `no difference beyond noise`, all parts taken together. Per second:
    /// `larger share`, `smaller share`.
    pub verdict: &'static str,
    /// Whether it differs beyond noise.
    pub beyond_noise: bool,
}

/// A part in one side.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
pub struct Side {
    /// Time per unit; the mean over the side's runs.
    pub mean_s: f64,
    /// Half of its 95 % interval.
    pub half_s: f64,
    /// Ticks in which it was seen; below 30 the mean should not be quoted.
    pub samples: u64,
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

/// Something that is not the same in all runs.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Differs {
    /// What.
    pub what: String,
    /// Values of A's runs.
    pub a: Vec<String>,
    /// Values of B's.
    pub b: Vec<String>,
}

/// The report of a comparison.
pub fn diff_report(diff: &Diff) -> DiffReport {
    let parts = |rows: &[Row]| rows.iter().map(|row| part(row, diff)).collect();
    DiffReport {
        schema: SCHEMA,
        rules: RuleSet::built_in().version,
        torchspy: env!("CARGO_PKG_VERSION"),
        unit: diff.unit.name(),
        a: diff.a.iter().map(run).collect(),
        b: diff.b.iter().map(run).collect(),
        step: diff.step.as_ref().map(|row| part(row, diff)),
        ranks: diff
            .ranks
            .iter()
            .map(|(rank, row)| Rank {
                rank: *rank,
                step: part(row, diff),
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
        parts: parts(&diff.rows),
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
        differs: diff
            .discrepancies
            .iter()
            .map(|each| Differs {
                what: each.what.clone(),
                a: each.a.clone(),
                b: each.b.clone(),
            })
            .collect(),
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

fn run(facts: &RunFacts) -> Run {
    Run {
        file: facts.name.clone(),
        command: facts.command.clone(),
        units: facts.units,
        wall_s: facts.wall_ns as f64 / 1e9,
        outside_s: facts.outside_ns as f64 / 1e9,
    }
}

fn part(row: &Row, diff: &Diff) -> Part {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Part {
        kind: row.key.kind(),
        name: part_name(&row.key, &row.about),
        class: some(&row.about.class),
        file: some(&row.about.file),
        function: match &row.key {
            Key::Line { function, .. } => Some(function.clone()),
            _ => None,
        },
        line: (row.about.line > 0).then_some(row.about.line),
        a: side(&row.a),
        b: side(&row.b),
        difference_s: row.difference_ns / 1e9,
        half_s: row.half_ns / 1e9,
        relative: row.relative.map(|(value, _)| value),
        relative_half: row.relative.map(|(_, half)| half),
        chance: row.chance,
        verdict: row.verdict.name(diff.unit),
        beyond_noise: row.verdict != Verdict::Noise,
    }
}

fn side(figure: &Figure) -> Side {
    Side {
        mean_s: figure.mean_ns / 1e9,
        half_s: figure.half_ns / 1e9,
        samples: figure.samples,
    }
}
