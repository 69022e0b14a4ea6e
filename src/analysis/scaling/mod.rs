//! How much faster a job gets with more ranks: runs of the same training on different numbers of
//! ranks, compared.
//!
//! | file | content |
//! |---|---|
//! | [`run`] | one run, from the recordings of its ranks |
//! | [`mean`] | means, their errors, quotients |
//! | [`same_work`] | which runs do the same work |
//! | [`fit`] | models of the time by the number of ranks |

pub mod fit;
pub mod mean;
pub mod run;
mod same_work;

use fit::{Division, Fit, Measured, Model, NoFit, fit};
use mean::{Estimate, Mean};
use run::{Energy, Run};
use same_work::{Groups, SAME, groups, has_batch_of, other_work};

/// The strategy of a run of one rank that divides nothing, and of one whose strategy is not seen.
pub const ALONE: &str = "none";
pub const UNKNOWN: &str = "unknown";

/// What is timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    #[default]
    Epoch,
    Step,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::Epoch => "epoch",
            Unit::Step => "step",
        }
    }
}

/// How the work of two runs is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// An epoch is the same work in all runs: they have as many samples, or it is not known.
    Epoch { counted: bool },
    /// By samples of the data set, which were counted.
    Samples,
    /// By what the user says of batches.
    Stated(Division),
    /// Not known: no speed-up is shown.
    Unknown,
}

/// What the user says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// `None`: epochs if all runs have them.
    pub per: Option<Unit>,
    /// What stays the same, whatever was counted: each rank's batch, or that of all.
    pub batch: Option<Division>,
    /// Standard deviation from run to run, as a share, where no runs are repeated.
    pub run_to_run: f64,
}

/// How much runs of the same size differ, as a standard deviation relative to their mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunToRun {
    pub share: f64,
    /// Degrees of freedom, where it was measured; else it is what the user says.
    pub measured: Option<f64>,
}

/// All runs of one strategy and number of ranks that do the same work.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub strategy: String,
    pub ranks: u32,
    /// Never empty.
    pub runs: Vec<Run>,
    /// Seconds per epoch or step.
    pub time_s: Mean,
    /// With respect to the least ranks of the same strategy.
    pub relative_time: Estimate,
    pub speed_up: Option<Estimate>,
    /// Speed-up by how many times as many ranks.
    pub efficiency: Option<Estimate>,
    /// Work in a unit, relative to that of the least ranks.
    work: Option<f64>,
    /// Steps for the same work, likewise.
    steps: Option<f64>,
    least: u32,
    /// Whether it is known to differ from the least ranks by its number of ranks alone: where runs
    /// of one size do other work, only a batch that is that of the least ranks, of each rank or of
    /// all together, says so.
    pub is_comparable: bool,
}

/// What was fitted to the points of a strategy.
#[derive(Clone, Debug, PartialEq)]
pub struct Fits {
    pub strategy: String,
    /// How the steps of the same work depend on the number of ranks; `None`: not known.
    pub division: Option<Division>,
    /// By [`Model::ALL`].
    pub models: Vec<(Model, Result<Fit, NoFit>)>,
    pub least: u32,
}

/// The answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    pub unit: Unit,
    pub work: Work,
    pub run_to_run: RunToRun,
    /// By strategy, number of ranks and work; a rank alone comes first.
    pub points: Vec<Point>,
    pub fits: Vec<Fits>,
    /// Runs without what is compared, and why.
    pub left_out: Vec<(String, String)>,
}

impl Run {
    fn time(&self, unit: Unit) -> Option<Mean> {
        match unit {
            Unit::Epoch => self.epoch_s,
            Unit::Step => self.step_s,
        }
    }

    fn samples(&self, unit: Unit) -> Option<f64> {
        match unit {
            Unit::Epoch => self.samples_an_epoch,
            Unit::Step => self.samples_a_step,
        }
    }
}

/// Compares runs.
pub fn scaling(runs: Vec<Run>, options: &Options) -> Scaling {
    let all_have_epochs = runs.iter().all(|run| run.epoch_s.is_some());
    let by_default = if all_have_epochs {
        Unit::Epoch
    } else {
        Unit::Step
    };
    let unit = options.per.unwrap_or(by_default);
    let (timed, others): (Vec<Run>, Vec<Run>) =
        runs.into_iter().partition(|run| run.time(unit).is_some());
    let why = match unit {
        Unit::Epoch => "no epoch in it is followed by another one",
        Unit::Step => "fewer than two steps were seen in it",
    };
    let left_out = others.into_iter().map(|run| (run.name, why.to_owned()));
    let left_out = left_out.collect();
    let groups = groups(timed, unit);
    let run_to_run = run_to_run(&groups, unit, options.run_to_run);
    let mut points: Vec<Point> = Vec::new();
    for ((strategy, ranks, _), runs) in groups {
        points.extend(point(strategy, ranks, runs, unit, run_to_run));
    }
    // What the others are compared with.
    points.sort_by_key(|point| point.strategy != ALONE);
    let work = work(&points, unit, options.batch);
    let bases: Vec<Option<Point>> = points
        .iter()
        .map(|each| base(&points, &each.strategy))
        .collect();
    let mixed: Vec<String> = other_work(&points)
        .map(|(point, _)| point.strategy.clone())
        .collect();
    for (point, base) in points.iter_mut().zip(&bases) {
        if let Some(base) = base {
            let is_mixed = mixed.contains(&point.strategy) || mixed.contains(&base.strategy);
            point.is_comparable = !is_mixed || has_batch_of(point, base);
            relate(point, base, unit, work, options.batch);
        }
    }
    let fits = fits(&points, options.batch, run_to_run.share);
    Scaling {
        unit,
        work,
        run_to_run,
        points,
        fits,
        left_out,
    }
}

/// How much runs of the same size differ: the pooled relative deviation where some are repeated.
fn run_to_run(groups: &Groups, unit: Unit, stated: f64) -> RunToRun {
    let (mut squares, mut freedom) = (0.0, 0.0);
    for runs in groups.values().filter(|runs| runs.len() > 1) {
        let times: Vec<f64> = runs
            .iter()
            .filter_map(|run| run.time(unit))
            .map(|it| it.value)
            .collect();
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        squares += times
            .iter()
            .map(|time| (time / mean - 1.0).powi(2))
            .sum::<f64>();
        freedom += times.len() as f64 - 1.0;
    }
    match freedom > 0.0 {
        true => RunToRun {
            share: (squares / freedom).sqrt(),
            measured: Some(freedom),
        },
        false => RunToRun {
            share: stated,
            measured: None,
        },
    }
}

fn point(
    strategy: String,
    ranks: u32,
    runs: Vec<Run>,
    unit: Unit,
    run_to_run: RunToRun,
) -> Option<Point> {
    let times: Vec<Mean> = runs.iter().filter_map(|run| run.time(unit)).collect();
    let count = times.len() as f64;
    let value = times.iter().map(|time| time.value).sum::<f64>() / count;
    let within: Option<f64> = times.iter().map(|time| Some(time.error?.powi(2))).sum();
    let within = within.map(|sum| sum.sqrt() / count);
    let freedom = times
        .iter()
        .map(|time| time.freedom)
        .fold(f64::MAX, f64::min);
    let between = run_to_run.share * value / count.sqrt();
    let own = Mean {
        value,
        error: within,
        freedom,
    };
    let time_s = match run_to_run.measured {
        // It contains the variation within the runs.
        Some(freedom) => Mean {
            value,
            error: Some(between.max(within.unwrap_or(0.0))),
            freedom,
        },
        // As stated, so with no error of its own.
        None => own.with(between, f64::MAX),
    };
    (!runs.is_empty()).then_some(Point {
        strategy,
        ranks,
        runs,
        time_s,
        relative_time: Estimate::default(),
        speed_up: None,
        efficiency: None,
        work: None,
        steps: None,
        least: ranks,
        is_comparable: true,
    })
}

/// What a strategy is compared with: its smallest run, or one of a single rank that divides
/// nothing.
fn base(points: &[Point], strategy: &str) -> Option<Point> {
    let own = points.iter().filter(|point| point.strategy == strategy);
    let alone = points.iter().filter(|point| point.strategy == ALONE);
    own.chain(alone).min_by_key(|point| point.ranks).cloned()
}

fn work(points: &[Point], unit: Unit, batch: Option<Division>) -> Work {
    let samples = points
        .iter()
        .map(|point| mean_of_runs(&point.runs, |run| run.samples(unit)));
    let samples: Option<Vec<f64>> = samples.collect();
    match (unit, samples, batch) {
        // Whoever says so knows better: ranks may share batches.
        (Unit::Step, _, Some(batch)) => Work::Stated(batch),
        (Unit::Epoch, Some(samples), None) => {
            let most = samples.iter().copied().fold(0.0, f64::max);
            let is_same = samples.iter().all(|each| most - each <= SAME * most);
            if is_same {
                Work::Epoch { counted: true }
            } else {
                Work::Samples
            }
        }
        (Unit::Epoch, _, _) if other_work(points).next().is_some() => Work::Unknown,
        (Unit::Epoch, _, _) => Work::Epoch { counted: false },
        (Unit::Step, Some(_), None) => Work::Samples,
        (Unit::Step, None, None) => Work::Unknown,
    }
}

/// The mean of a figure that all runs have.
pub fn mean_of_runs(runs: &[Run], of: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
    let all: Option<Vec<f64>> = runs.iter().map(of).collect();
    let all = all.filter(|all| !all.is_empty())?;
    Some(all.iter().sum::<f64>() / all.len() as f64)
}

/// Sets what a point has with respect to that with the least ranks.
fn relate(point: &mut Point, base: &Point, unit: Unit, work: Work, batch: Option<Division>) {
    let times = f64::from(point.ranks) / f64::from(base.ranks);
    let of = |value: &dyn Fn(&Run) -> Option<f64>| {
        Some(mean_of_runs(&point.runs, value)? / mean_of_runs(&base.runs, value)?)
    };
    let stated = |batch: Division| 1.0 / batch.steps(f64::from(point.ranks), f64::from(base.ranks));
    point.work = match work {
        Work::Epoch { .. } => Some(1.0),
        Work::Samples => of(&|run| run.samples(unit)),
        Work::Stated(batch) => Some(stated(batch)),
        Work::Unknown => None,
    };
    point.work = point.work.filter(|_| point.is_comparable);
    point.steps = match unit {
        Unit::Step => point.work.map(|work| 1.0 / work),
        Unit::Epoch => batch.map(|batch| 1.0 / stated(batch)).or_else(|| {
            let steps = of(&|run| run.steps_an_epoch);
            steps.zip(point.work).map(|(steps, work)| steps / work)
        }),
    };
    point.least = base.ranks;
    let is_base = point.runs == base.runs;
    let one = Estimate {
        value: 1.0,
        low: None,
        high: None,
    };
    let relative = |work: f64| match is_base {
        true => one,
        false => base.time_s.over(&point.time_s).times(work),
    };
    point.relative_time = if is_base {
        one
    } else {
        point.time_s.over(&base.time_s)
    };
    point.speed_up = point.work.map(relative);
    point.efficiency = point.speed_up.map(|speed_up| speed_up.times(1.0 / times));
}

fn fits(points: &[Point], batch: Option<Division>, run_to_run: f64) -> Vec<Fits> {
    let mut strategies: Vec<&str> = points.iter().map(|point| point.strategy.as_str()).collect();
    strategies.dedup();
    let several = strategies.len() > 1;
    strategies.retain(|&strategy| strategy != ALONE || !several);
    let of = |&strategy: &&str| {
        let base = base(points, strategy)?;
        let own = points.iter().filter(|point| point.strategy == strategy);
        let alone = Some(&base).filter(|base| base.strategy != strategy);
        let own: Vec<&Point> = alone.into_iter().chain(own).collect();
        let division = division(&own).or(batch);
        let measured: Option<Vec<Measured>> = own.iter().map(|point| point.measured()).collect();
        let fit = |model| match &measured {
            Some(measured) => fit(model, measured, division, run_to_run),
            None => Err(NoFit::NoWork),
        };
        Some(Fits {
            strategy: strategy.to_owned(),
            division,
            models: Model::ALL
                .iter()
                .map(|&model| (model, fit(model)))
                .collect(),
            least: base.ranks,
        })
    };
    strategies.iter().filter_map(of).collect()
}

/// The rule that the steps of all points follow.
fn division(points: &[&Point]) -> Option<Division> {
    let follow = |division: &Division| {
        points.iter().all(|point| {
            let wanted = division.steps(f64::from(point.ranks), f64::from(point.least));
            let steps = point.steps.unwrap_or(f64::MAX);
            (steps / wanted - 1.0).abs() <= SAME
        })
    };
    [Division::PerRank, Division::Global]
        .into_iter()
        .find(follow)
}

impl Point {
    /// Time of the same work; without an error where that is not known. `None` if works cannot be
    /// compared.
    fn measured(&self) -> Option<Measured> {
        let work = self.work?;
        Some(Measured {
            ranks: f64::from(self.ranks),
            time_s: self.time_s.value / work,
            error_s: self.time_s.error.unwrap_or(0.0) / work,
            freedom: self.time_s.freedom,
        })
    }

    /// The mean of an estimate of all runs; `None` where one has none.
    pub fn mean_of(&self, of: impl Fn(&Run) -> Option<Estimate>) -> Option<Estimate> {
        let all: Option<Vec<Estimate>> = self.runs.iter().map(of).collect();
        let all = all.filter(|all| !all.is_empty())?;
        let count = all.len() as f64;
        let ends = |of: fn(&Estimate) -> Option<f64>| {
            let ends: Option<f64> = all.iter().map(of).sum();
            ends.map(|sum| sum / count)
        };
        Some(Estimate {
            value: all.iter().map(|each| each.value).sum::<f64>() / count,
            low: ends(|each| each.low),
            high: ends(|each| each.high),
        })
    }

    /// Energy of its runs; `None` where one has none.
    pub fn energies(&self) -> Option<Vec<Energy>> {
        self.runs.iter().map(|run| run.energy).collect()
    }
}

impl Scaling {
    /// Points that differ from the one before them, by what they do and not by their size.
    pub fn other_work(&self) -> impl Iterator<Item = (&Point, &Point)> {
        other_work(&self.points)
    }

    /// Converts a time of the same work, as models have it, to one of an epoch or step.
    pub fn unit_time(&self, fits: &Fits, ranks: f64) -> Option<f64> {
        match self.unit {
            Unit::Epoch => Some(1.0),
            Unit::Step => Some(1.0 / fits.division?.steps(ranks, f64::from(fits.least))),
        }
    }
}
