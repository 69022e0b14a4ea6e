//! Runs on different numbers of ranks, and the models that were fitted to them.

use crate::analysis::scaling::fit::{Division, Model};
use crate::analysis::scaling::mean::{Estimate, Mean};
use crate::analysis::scaling::run::{Energy, Run};
use crate::analysis::scaling::{Fits, Point, Scaling, mean_of_runs as mean};
use crate::report::table::{Column, Kind, Value};
use schemars::JsonSchema;
use serde::Serialize;

const WATT_HOUR_J: f64 = 3600.0;

/// All runs of a strategy and number of ranks.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct PointRow {
    /// What divides the work: `DDP`, `FSDP`, …; `none` for a single rank, else `unknown`.
    pub strategy: String,
    pub ranks: u32,
    /// The runs, as they were named.
    pub runs: Vec<String>,
    /// Ranks of these runs that have a recording.
    pub recorded: usize,
    /// Seconds per epoch or step.
    pub time_s: Estimate,
    /// With respect to the least ranks of the strategy.
    pub relative_time: Estimate,
    /// For the same work; null if works cannot be compared.
    pub speed_up: Option<Estimate>,
    /// Speed-up by how many times as many ranks.
    pub efficiency: Option<Estimate>,
    /// Steps and epochs that were timed.
    pub steps: u64,
    pub epochs: usize,
    /// Samples of the data set in an epoch or a step of all ranks; null if not counted.
    pub samples_an_epoch: Option<f64>,
    pub samples_a_step: Option<f64>,
    /// Mean over devices, 0 to 1, in steps; null if not measured.
    pub gpu_utilization: Option<Estimate>,
    /// Energy of a run's devices during its recording, with an interval where there are several
    /// runs; null if not measured.
    pub energy_wh: Option<Estimate>,
    /// Of an epoch.
    pub energy_wh_an_epoch: Option<Estimate>,
    /// Devices of the runs whose energy was measured, and ranks without such a device.
    pub energy_devices: usize,
    pub ranks_without_energy: usize,
    /// Shares of the training threads' time in steps, means over ranks.
    pub computation: Option<Estimate>,
    /// Null with NCCL: devices communicate then, and hosts do not see it.
    pub communication: Option<Estimate>,
    /// All but computation.
    pub other: Option<Estimate>,
    /// Communication of communication and computation.
    pub communication_of_both: Option<Estimate>,
    /// It communicates over NCCL.
    pub nccl: bool,
}

/// Rows by strategy and number of ranks.
pub fn points(scaling: &Scaling) -> Vec<PointRow> {
    scaling.points.iter().map(point).collect()
}

fn point(point: &Point) -> PointRow {
    let sum = |of: fn(&Run) -> usize| point.runs.iter().map(of).sum();
    let energies = point.energies();
    let computation = point.mean_of(|run| run.computation);
    let without = |energy: &Energy| energy.ranks_without;
    PointRow {
        strategy: point.strategy.clone(),
        ranks: point.ranks,
        runs: point.runs.iter().map(|run| run.name.clone()).collect(),
        recorded: sum(|run| run.recorded),
        time_s: point.time_s.estimate(),
        relative_time: point.relative_time,
        speed_up: point.speed_up,
        efficiency: point.efficiency,
        steps: point.runs.iter().map(|run| run.steps).sum(),
        epochs: sum(|run| run.epochs),
        samples_an_epoch: mean(&point.runs, |run| run.samples_an_epoch),
        samples_a_step: mean(&point.runs, |run| run.samples_a_step),
        gpu_utilization: point.mean_of(|run| run.utilization.map(|mean| mean.estimate())),
        energy_wh: energies.as_ref().and_then(|all| {
            let joules: Vec<f64> = all.iter().map(|energy| energy.joules).collect();
            Some(Mean::of(&joules)?.estimate().times(1.0 / WATT_HOUR_J))
        }),
        energy_wh_an_epoch: point
            .mean_of(|run| Some(run.energy?.epoch?.estimate()))
            .map(|joules| joules.times(1.0 / WATT_HOUR_J)),
        energy_devices: sum(|run| run.energy.map_or(0, |energy| energy.devices)),
        ranks_without_energy: sum(|run| run.energy.as_ref().map_or(run.recorded, |_| 0))
            + energies.iter().flatten().map(without).sum::<usize>(),
        other: computation.map(rest),
        computation,
        communication: point.mean_of(|run| run.communication),
        communication_of_both: point.mean_of(|run| run.communication_of_both),
        nccl: point.runs.iter().any(|run| run.nccl),
    }
}

fn rest(share: Estimate) -> Estimate {
    Estimate {
        value: 1.0 - share.value,
        low: share.high.map(|high| 1.0 - high),
        high: share.low.map(|low| 1.0 - low),
    }
}

/// A model of the time by the number of ranks.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct FitRow {
    pub strategy: String,
    /// `amdahl` or `ring_all_reduce`.
    pub model: &'static str,
    /// `rank` or `global`: which batch has the same size in all runs; null if not known.
    pub same_batch: Option<&'static str>,
    /// Why it is not shown; null if it is.
    pub why_not: Option<String>,
    /// Amdahl: the part of the least ranks' time that more ranks do not make shorter. Ring: what
    /// communication takes with very many ranks and as many steps, relative to the least ranks'
    /// computation.
    pub part: Option<Estimate>,
    /// How probable it is by chance that the points are as far from the model.
    pub chance: Option<f64>,
    /// What it predicts of a new run, with respect to the least ranks.
    pub ranks: Option<u32>,
    pub time_s: Option<Estimate>,
    pub speed_up: Option<Estimate>,
    pub efficiency: Option<Estimate>,
}

/// Rows by strategy and model.
pub fn fits(scaling: &Scaling) -> Vec<FitRow> {
    let all = scaling.fits.iter();
    all.flat_map(|fits| {
        Model::ALL
            .iter()
            .filter_map(|&model| row(scaling, fits, model))
    })
    .collect()
}

fn row(scaling: &Scaling, fits: &Fits, model: Model) -> Option<FitRow> {
    let (_, result) = fits.models.iter().find(|(each, _)| *each == model)?;
    let fit = result.as_ref().ok();
    let predicted = fit.map(|fit| fit.predicted);
    Some(FitRow {
        strategy: fits.strategy.clone(),
        model: model.name(),
        same_batch: fits.division.map(|division| match division {
            Division::PerRank => "rank",
            Division::Global => "global",
        }),
        why_not: result.as_ref().err().map(ToString::to_string),
        part: fit.map(|fit| fit.part),
        chance: fit.map(|fit| fit.chance),
        ranks: predicted.map(|predicted| predicted.ranks as u32),
        time_s: predicted.and_then(|predicted| {
            let factor = scaling.unit_time(fits, predicted.ranks)?;
            Some(predicted.time_s.times(factor))
        }),
        speed_up: predicted.map(|predicted| predicted.speed_up),
        efficiency: predicted.map(|predicted| {
            let times = predicted.ranks / f64::from(fits.least);
            predicted.speed_up.times(1.0 / times)
        }),
    })
}

/// The three columns of an estimate.
macro_rules! estimate {
    ($row:ty, $field:ident, |$it:ident| $value:expr) => {
        [
            Column::data(Kind::Number, stringify!($field), |$it: &$row| {
                let value: Option<Estimate> = $value;
                value.map(|it| it.value).into()
            }),
            Column::data(
                Kind::Number,
                concat!(stringify!($field), "_low"),
                |$it: &$row| {
                    let value: Option<Estimate> = $value;
                    value.and_then(|it| it.low).into()
                },
            ),
            Column::data(
                Kind::Number,
                concat!(stringify!($field), "_high"),
                |$it: &$row| {
                    let value: Option<Estimate> = $value;
                    value.and_then(|it| it.high).into()
                },
            ),
        ]
    };
}

/// Columns of CSV.
pub fn point_columns() -> Vec<Column<PointRow>> {
    let mut all = vec![
        Column::data(Kind::Text, "strategy", |row: &PointRow| {
            (&row.strategy).into()
        }),
        Column::data(Kind::Count, "ranks", |row| row.ranks.into()),
        Column::data(Kind::Text, "runs", |row| row.runs.join(" ").into()),
        Column::data(Kind::Count, "recorded", |row| row.recorded.into()),
    ];
    all.extend(estimate!(PointRow, time_s, |row| Some(row.time_s)));
    all.extend(estimate!(PointRow, relative_time, |row| Some(
        row.relative_time
    )));
    all.extend(estimate!(PointRow, speed_up, |row| row.speed_up));
    all.extend(estimate!(PointRow, efficiency, |row| row.efficiency));
    all.extend([
        Column::data(Kind::Count, "steps", |row: &PointRow| row.steps.into()),
        Column::data(Kind::Count, "epochs", |row| row.epochs.into()),
        Column::data(Kind::Number, "samples_an_epoch", |row| {
            row.samples_an_epoch.into()
        }),
        Column::data(Kind::Number, "samples_a_step", |row| {
            row.samples_a_step.into()
        }),
    ]);
    all.extend(estimate!(PointRow, gpu_utilization, |row| row.gpu_utilization));
    all.extend(estimate!(PointRow, energy_wh, |row| row.energy_wh));
    all.extend(estimate!(PointRow, energy_wh_an_epoch, |row| row.energy_wh_an_epoch));
    all.extend([
        Column::data(Kind::Count, "energy_devices", |row: &PointRow| {
            row.energy_devices.into()
        }),
        Column::data(Kind::Count, "ranks_without_energy", |row| {
            row.ranks_without_energy.into()
        }),
    ]);
    all.extend(estimate!(PointRow, computation, |row| row.computation));
    all.extend(estimate!(PointRow, communication, |row| row.communication));
    all.extend(estimate!(PointRow, other, |row| row.other));
    all.extend(estimate!(PointRow, communication_of_both, |row| row
        .communication_of_both));
    all.push(Column::data(Kind::Count, "nccl", |row| row.nccl.into()));
    all
}

/// Columns of CSV.
pub fn fit_columns() -> Vec<Column<FitRow>> {
    let mut all = vec![
        Column::data(Kind::Text, "strategy", |row: &FitRow| {
            (&row.strategy).into()
        }),
        Column::data(Kind::Text, "model", |row| row.model.into()),
        Column::data(Kind::Text, "same_batch", |row| row.same_batch.into()),
        Column::data(Kind::Text, "why_not", |row| match &row.why_not {
            Some(why) => why.into(),
            None => Value::None,
        }),
    ];
    all.extend(estimate!(FitRow, part, |row| row.part));
    all.extend([
        Column::data(Kind::Number, "chance", |row: &FitRow| row.chance.into()),
        Column::data(Kind::Count, "ranks", |row| row.ranks.into()),
    ]);
    all.extend(estimate!(FitRow, time_s, |row| row.time_s));
    all.extend(estimate!(FitRow, speed_up, |row| row.speed_up));
    all.extend(estimate!(FitRow, efficiency, |row| row.efficiency));
    all
}
