//! Compares two runs, or two sets of runs: what differs between them beyond noise.
//!
//! | file | content |
//! |---|---|
//! | [`keys`] | the parts that are compared, and the names that match them between runs |
//! | [`units`] | the unit, steps or seconds, and how a run is cut into blocks |
//! | [`measure`] | the time of every part in every block of one run |
//! | [`noise`] | how certain a difference is, with a correction for hundreds of comparisons |
//! | [`student`] | Student's distribution |
//! | [`nodes`] | the same for groups of stacks, such as the boxes of a flame graph |
//! | [`steps`] | the steps of a run |
//! | [`subject`] | which process of a recording is compared |
//! | [`carrier`] | which part the difference of the step comes from |
//! | [`conditions`] | what else differs between the runs |

pub mod carrier;
pub mod conditions;
pub mod keys;
mod measure;
pub mod nodes;
pub mod noise;
pub mod steps;
pub(crate) mod student;
pub mod subject;
pub mod units;

#[cfg(test)]
mod simulation;

use crate::analysis::intervals::Share;
use crate::model::as_json;
use crate::model::category::Phase;
use crate::model::ids::{ProcessId, StackId};
use crate::model::profile::Profile;
use crate::model::seconds;
use carrier::Carrier;
use conditions::Discrepancy;
use keys::{About, FileNames, Key, Keys};
use measure::Scan;
use noise::{Comparison, Difference, Estimate, FAMILY_ERROR, RunToRun, STEP_ERROR, beyond_chance};
use schemars::JsonSchema;
use serde::Serialize;
use steps::BetweenSteps;
use units::{Unit, Units};

/// Relative standard deviation of a run's mean from one run to the next on one machine, assumed
/// where it cannot be measured: the value of quiet machines.
pub const RUN_TO_RUN: f64 = 0.01;

/// One run: a process of a recording, and its steps.
#[derive(Clone, Debug)]
pub struct Run<'p> {
    /// File name of the recording.
    pub name: String,
    pub profile: &'p Profile,
    pub process: ProcessId,
    /// Its steps.
    pub units: Units,
    /// The evaluation between them.
    pub evaluation: BetweenSteps,
}

/// How to compare.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Relative standard deviation of a run's mean from one run to the next; used where no side has
    /// several runs.
    pub run_to_run: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            run_to_run: RUN_TO_RUN,
        }
    }
}

/// Why runs were not compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiffError {
    /// A run has too few samples.
    #[error("{0}: too short to compare: its training thread has fewer than 50 samples")]
    TooShort(String),
    /// A side has no run.
    #[error("there is nothing to compare with")]
    NoRun,
}

/// Result for a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// B takes more time, beyond noise.
    Slower,
    /// B takes less time, beyond noise.
    Faster,
    /// No difference beyond noise.
    Noise,
}

impl Verdict {
    /// The name for people and in JSON. A share of wall time grows or shrinks; it is neither slower
    /// nor faster.
    pub fn name(self, unit: Unit) -> &'static str {
        match (self, unit) {
            (Verdict::Slower, Unit::Step) => "slower",
            (Verdict::Faster, Unit::Step) => "faster",
            (Verdict::Slower, Unit::Second) => "larger share",
            (Verdict::Faster, Unit::Second) => "smaller share",
            (Verdict::Noise, _) => "no difference beyond noise",
        }
    }
}

/// Figures of a part on one side.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Serialize)]
#[schemars(rename = "Side")]
pub struct Figure {
    /// Time per unit; the mean over the side's runs.
    #[serde(rename = "mean_s", serialize_with = "as_json::seconds")]
    pub mean_ns: f64,
    /// Half of its 95 % interval.
    #[serde(rename = "half_s", serialize_with = "as_json::seconds")]
    pub half_ns: f64,
    /// Ticks in which it was seen; below 30 the mean should not be quoted.
    pub samples: u64,
}

impl Figure {
    /// Whether it was seen in too few ticks to be reported.
    pub fn is_uncertain(&self) -> bool {
        self.samples < Share::FEW
    }
}

/// A part, compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub key: Key,
    /// Other facts about it.
    pub about: About,
    pub a: Figure,
    pub b: Figure,
    /// B less A, ns per unit.
    pub difference_ns: f64,
    /// Half of its 95 % interval.
    pub half_ns: f64,
    /// B relative to A, minus one, and half of its 95 % interval; `None` if A has no time in it.
    pub relative: Option<(f64, f64)>,
    /// Probability of a difference at least as large by chance, for this part alone.
    pub chance: f64,
    /// The verdict with all parts taken into account.
    pub verdict: Verdict,
}

impl Row {
    /// Whether its own interval excludes zero. By chance alone that happens once in twenty parts.
    pub fn excludes_zero(&self) -> bool {
        self.difference_ns.abs() > self.half_ns
    }
}

/// A run.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
#[schemars(rename = "Run")]
pub struct RunFacts {
    /// The recording.
    #[serde(rename = "file")]
    pub name: String,
    /// Its command line.
    pub command: Vec<String>,
    /// Steps, or seconds, that were counted.
    pub units: f64,
    /// Wall time of the training thread.
    #[serde(rename = "wall_s", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub wall_ns: u64,
    /// The part of it outside of every step.
    #[serde(rename = "outside_s", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub outside_ns: u64,
    /// Evaluation between the steps, which is a part of that; null if there was none, or per
    /// second.
    pub evaluation: Option<BetweenSteps>,
    /// Steps that are left out, since torch.profiler slowed them down (`record --trace`); 0 per
    /// second.
    pub profiled_steps: u64,
}

/// Two sides, compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Diff {
    /// Per what.
    pub unit: Unit,
    /// Whether both sides have steps, but one has too few for blocks; the unit is then the second.
    pub few_steps: bool,
    pub a: Vec<RunFacts>,
    pub b: Vec<RunFacts>,
    /// The complete step; `None` if no steps are known.
    pub step: Option<Row>,
    /// All other parts that were seen often enough, by kind, then by difference.
    pub rows: Vec<Row>,
    /// Parts that were seen in fewer than 30 ticks on both sides.
    pub too_seldom: usize,
    /// The part that the step's difference comes from.
    pub carrier: Option<Carrier>,
    /// Variation from one run to the next.
    pub run_to_run: RunToRun,
    /// Other differences between the runs.
    pub discrepancies: Vec<Discrepancy>,
    /// The step of each rank, where recordings have several; set by the caller.
    pub ranks: Vec<(u32, Row)>,
}

impl Diff {
    /// Parts that differ beyond noise, by difference.
    pub fn beyond_noise(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self
            .rows
            .iter()
            .filter(|row| row.verdict != Verdict::Noise)
            .collect();
        rows.sort_by(|one, other| {
            other
                .difference_ns
                .abs()
                .total_cmp(&one.difference_ns.abs())
        });
        rows
    }
}

/// Compares the runs of two sides.
///
/// # Errors
/// A side without a run, or a run that is too short.
pub fn compare(a: &[Run<'_>], b: &[Run<'_>], options: &Options) -> Result<Diff, DiffError> {
    if a.is_empty() || b.is_empty() {
        return Err(DiffError::NoRun);
    }
    let all_steps = [a, b]
        .iter()
        .flat_map(|side| side.iter())
        .all(|run| matches!(run.units, Units::Steps(_)));
    if all_steps && let Ok(diff) = compare_per(Unit::Step, a, b, options) {
        return Ok(diff);
    }
    let mut diff = compare_per(Unit::Second, a, b, options)?;
    diff.few_steps = all_steps;
    Ok(diff)
}

fn compare_per<'r, 'p>(
    unit: Unit,
    a: &'r [Run<'p>],
    b: &'r [Run<'p>],
    options: &Options,
) -> Result<Diff, DiffError> {
    let names = FileNames::new(
        a.iter().map(|run| run.profile),
        b.iter().map(|run| run.profile),
    );
    let mut keys = Keys::new();
    let mut scan = |runs: &'r [Run<'p>]| -> Result<Vec<Scanned<'p>>, DiffError> {
        runs.iter()
            .map(|run| {
                Scanned::new(unit, run, &mut |stack, phase| {
                    keys.of_stack(run.profile, &names, stack, phase)
                })
            })
            .collect()
    };
    let sides = [scan(a)?, scan(b)?];
    let kept = kept(&sides, keys.list.len());
    let figures = measured(&sides, &kept);
    let numbers: Vec<usize> = figures.iter().map(|part| part.number).collect();
    let samples: Vec<[u64; 2]> = figures.iter().map(|part| part.samples).collect();
    let estimates = figures.into_iter().map(|part| part.estimates).collect();
    let comparison = Comparison::new(estimates, options.run_to_run);
    let differences: Vec<Difference> = (0..numbers.len())
        .filter_map(|part| comparison.difference(part, numbers[part] == Keys::STEP))
        .collect();
    let mut rows: Vec<Row> = numbers
        .iter()
        .zip(&samples)
        .zip(&differences)
        .filter_map(|((&number, &samples), difference)| {
            let (key, about) = keys.list.get(number)?;
            Some(row(key, about, samples, difference))
        })
        .collect();
    let step = (unit == Unit::Step && !rows.is_empty()).then(|| rows.remove(0));
    let step = step.map(|row| judged(row, STEP_ERROR));
    if unit == Unit::Second && !rows.is_empty() {
        rows.remove(0);
    }
    judge_all(&mut rows);
    in_order(&mut rows);
    let carrier = step.as_ref().and_then(|step| carrier::carrier(step, &rows));
    let unseen = kept[Keys::fixed()..].iter().filter(|kept| !**kept).count();
    let [a_facts, b_facts] = sides.map(|side| side.into_iter().map(Scanned::facts).collect());
    Ok(Diff {
        unit,
        few_steps: false,
        a: a_facts,
        b: b_facts,
        step,
        rows,
        too_seldom: unseen,
        carrier,
        run_to_run: comparison.run_to_run,
        discrepancies: conditions::discrepancies(a, b),
        ranks: Vec::new(),
    })
}

/// A run after the scan.
struct Scanned<'p> {
    name: String,
    command: Vec<String>,
    evaluation: Option<BetweenSteps>,
    profiled_steps: u64,
    scan: Scan<'p>,
}

impl<'p> Scanned<'p> {
    fn new(
        unit: Unit,
        run: &Run<'p>,
        parts_of: &mut dyn FnMut(StackId, Phase) -> Vec<usize>,
    ) -> Result<Self, DiffError> {
        let units = match unit {
            Unit::Step => &run.units,
            Unit::Second => &Units::Seconds,
        };
        Scan::new(run.profile, run.process, units, parts_of)
            .map(|scan| Self {
                name: run.name.clone(),
                command: run.profile.run.command.clone(),
                evaluation: Some(run.evaluation)
                    .filter(|evaluation| unit == Unit::Step && evaluation.passes > 0),
                profiled_steps: match unit {
                    Unit::Step => steps::profiled(run.profile, run.process),
                    Unit::Second => 0,
                },
                scan,
            })
            .ok_or_else(|| DiffError::TooShort(run.name.clone()))
    }

    fn facts(self) -> RunFacts {
        let inside_ns = self.scan.blocks.all_ns() as u64;
        RunFacts {
            name: self.name,
            command: self.command,
            units: self.scan.blocks.unit_count(),
            wall_ns: self.scan.wall_ns,
            outside_ns: self.scan.wall_ns.saturating_sub(inside_ns),
            evaluation: self.evaluation,
            profiled_steps: self.profiled_steps,
        }
    }
}

/// Which parts were seen often enough on one side to be compared.
fn kept(sides: &[Vec<Scanned<'_>>; 2], keys: usize) -> Vec<bool> {
    let seen = |side: &[Scanned<'_>], key: usize| -> u64 {
        side.iter()
            .map(|run| run.scan.ticks.get(key).copied().unwrap_or(0))
            .sum()
    };
    (0..keys)
        .map(|key| sides.iter().any(|side| seen(side, key) >= Share::FEW))
        .collect()
}

/// A part, measured in every run.
struct Measured {
    number: usize,
    estimates: [Vec<Estimate>; 2],
    samples: [u64; 2],
}

fn measured(sides: &[Vec<Scanned<'_>>; 2], kept: &[bool]) -> Vec<Measured> {
    let series = sides.each_ref().map(|side| {
        side.iter()
            .map(|run| (run, run.scan.measure(kept, true)))
            .collect::<Vec<_>>()
    });
    let is_compared = |number: &usize| {
        let seen = |side: &[(&Scanned<'_>, rustc_hash::FxHashMap<usize, measure::Series>)]| {
            let ticks = side.iter().filter_map(|(_, series)| series.get(number));
            ticks.map(|series| series.ticks).sum::<u64>() >= Share::FEW
        };
        *number == Keys::STEP || series.iter().any(|side| seen(side))
    };
    (0..kept.len())
        .filter(is_compared)
        .map(|number| Measured {
            number,
            estimates: series.each_ref().map(|side| {
                side.iter()
                    .map(|(run, series)| {
                        Estimate::new(series.get(&number), &run.scan.blocks, run.scan.tick_ns)
                    })
                    .collect()
            }),
            samples: series.each_ref().map(|side| {
                side.iter()
                    .filter_map(|(_, series)| series.get(&number))
                    .map(|series| series.ticks)
                    .sum()
            }),
        })
        .collect()
}

fn row(key: &Key, about: &About, samples: [u64; 2], difference: &Difference) -> Row {
    let figure = |side: usize| Figure {
        mean_ns: difference.means[side],
        half_ns: difference.half_of(side),
        samples: samples[side],
    };
    Row {
        key: key.clone(),
        about: about.clone(),
        a: figure(0),
        b: figure(1),
        difference_ns: difference.value(),
        half_ns: difference.half(),
        relative: difference.relative(),
        chance: difference.chance(),
        verdict: Verdict::Noise,
    }
}

fn judged(row: Row, error: f64) -> Row {
    let beyond = row.chance <= error;
    Row {
        verdict: verdict(beyond, row.difference_ns),
        ..row
    }
}

fn verdict(beyond: bool, difference_ns: f64) -> Verdict {
    match (beyond, difference_ns > 0.0) {
        (false, _) => Verdict::Noise,
        (true, true) => Verdict::Slower,
        (true, false) => Verdict::Faster,
    }
}

fn judge_all(rows: &mut [Row]) {
    let chances: Vec<f64> = rows.iter().map(|row| row.chance).collect();
    let beyond = beyond_chance(&chances, FAMILY_ERROR);
    for (row, beyond) in rows.iter_mut().zip(beyond) {
        row.verdict = verdict(beyond, row.difference_ns);
    }
}

fn in_order(rows: &mut [Row]) {
    rows.sort_by(|one, other| {
        kind_order(&one.key)
            .cmp(&kind_order(&other.key))
            .then(
                other
                    .difference_ns
                    .abs()
                    .total_cmp(&one.difference_ns.abs()),
            )
            .then_with(|| one.key.cmp(&other.key))
    });
}

fn kind_order(key: &Key) -> u8 {
    match key {
        Key::Step => 0,
        Key::Row(_) => 1,
        Key::Phase(_) | Key::Region(_) => 2,
        Key::Activity(_) => 3,
        Key::Module { .. } => 4,
        Key::ModuleSelf { .. } => 5,
        Key::Operator(_) => 6,
        Key::Line { .. } => 7,
        Key::Function { .. } => 8,
        Key::Native { .. } => 9,
    }
}
