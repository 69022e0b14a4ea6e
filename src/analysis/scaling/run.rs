//! One run: what its ranks measured, as figures of all of it.

use super::mean::{Estimate, Mean};
use crate::analysis::intervals::Share;
use crate::analysis::job::Job;
use crate::analysis::job::ranks::{BinTimes, Class, Rank};
use crate::model::reduction::{EpochPace, Pace};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Of so many epochs, and the last one, which is not timed, the first does not count: it warms up.
const WARMS_UP: usize = 3;

/// Energy of the devices of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Energy {
    /// Devices whose energy was measured, and ranks that have none: no device, or no counter.
    pub devices: usize,
    pub ranks_without: usize,
    /// During the recordings, J.
    pub joules: f64,
    /// Of an epoch, J.
    pub epoch: Option<Mean>,
}

/// A run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// As the user named it.
    pub name: String,
    /// Ranks of the job, and those with a recording.
    pub ranks: u32,
    pub recorded: usize,
    /// What divides the work; `None` where no such code was seen.
    pub strategy: Option<String>,
    /// Seconds, of the lowest rank that has them.
    pub epoch_s: Option<Mean>,
    pub epochs: usize,
    pub step_s: Option<Mean>,
    pub steps: u64,
    pub steps_an_epoch: Option<f64>,
    /// Samples of the data set, of all ranks.
    pub samples_an_epoch: Option<f64>,
    pub samples_a_step: Option<f64>,
    /// `None` where no energy was measured.
    pub energy: Option<Energy>,
    /// Mean over devices, 0 to 1, in steps.
    pub utilization: Option<Mean>,
    /// Mean over ranks of the training threads' time in steps.
    pub computation: Option<Estimate>,
    /// Likewise; `None` with NCCL, where devices communicate and hosts do not see it.
    pub communication: Option<Estimate>,
    /// Communication of communication and computation.
    pub communication_of_both: Option<Estimate>,
    pub nccl: bool,
}

impl Run {
    /// From the recordings of a job.
    pub fn new(name: String, job: &Job) -> Self {
        let paces = || job.ranks.iter().map(|rank| &rank.facts.pace);
        let ranks = job.world_size.unwrap_or(job.ranks.len() as u32).max(1);
        let epochs = paces().map(counted).find(|epochs| !epochs.is_empty());
        let epochs = epochs.unwrap_or_default();
        let lengths: Vec<f64> = epochs.iter().map(length_s).collect();
        let stepping = paces().find(|pace| !pace.parts.is_empty());
        let mean_of = |value: fn(&EpochPace) -> Option<u64>| {
            let all: Option<Vec<u64>> = epochs.iter().map(value).collect();
            let all = all.filter(|all| !all.is_empty())?;
            Some(all.iter().sum::<u64>() as f64 / all.len() as f64)
        };
        let times = f64::from(ranks);
        let nccl = job.ranks.iter().any(|rank| rank.facts.nccl);
        let computation = share(job, |times| times.of(Class::Computation));
        let communication = share(job, communication).filter(|_| !nccl);
        Self {
            name,
            ranks,
            recorded: job.ranks.len(),
            strategy: strategy(paces()),
            epoch_s: Mean::of(&lengths),
            epochs: epochs.len(),
            step_s: stepping.map(step_s),
            steps: stepping.map_or(0, |pace| {
                pace.parts.iter().map(|part| u64::from(part.steps)).sum()
            }),
            steps_an_epoch: mean_of(|epoch| Some(epoch.steps).filter(|&steps| steps > 0)),
            samples_an_epoch: mean_of(|epoch| epoch.samples).map(|samples| samples * times),
            samples_a_step: paces()
                .find_map(|pace| pace.samples_a_step)
                .map(|samples| samples as f64 * times),
            energy: energy(job),
            utilization: utilization(job),
            computation,
            communication,
            communication_of_both: communication.zip(computation).map(of_both),
            nccl,
        }
    }

    /// What divides the work, for people.
    pub fn strategy_name(&self) -> &str {
        match &self.strategy {
            Some(strategy) => strategy,
            None if self.ranks == 1 => super::ALONE,
            None => super::UNKNOWN,
        }
    }
}

fn length_s(epoch: &EpochPace) -> f64 {
    epoch.end_ns.saturating_sub(epoch.start_ns) as f64 / 1e9
}

/// The epochs of a rank that count.
fn counted(pace: &Pace) -> Vec<EpochPace> {
    let first = usize::from(pace.epochs.len() >= WARMS_UP);
    pace.epochs.get(first..).unwrap_or_default().to_vec()
}

fn strategy<'p>(paces: impl Iterator<Item = &'p Pace>) -> Option<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for strategy in paces.filter_map(|pace| pace.strategy.as_deref()) {
        *counts.entry(strategy).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|&(_, count)| count);
    most.map(|(name, _)| name.to_owned())
}

fn step_s(pace: &Pace) -> Mean {
    let parts: Vec<f64> = pace
        .parts
        .iter()
        .map(|part| part.ns as f64 / 1e9 / f64::from(part.steps.max(1)))
        .collect();
    let ns: u64 = pace.parts.iter().map(|part| part.ns).sum();
    let steps: u32 = pace.parts.iter().map(|part| part.steps).sum();
    Mean::of_parts(ns as f64 / 1e9 / f64::from(steps.max(1)), &parts)
}

fn communication(times: &BinTimes) -> f32 {
    [Class::CommunicationCall, Class::CommunicationWait]
        .iter()
        .map(|&class| times.of(class))
        .sum()
}

/// The mean share of all ranks with steps. They wait for each other, so their errors are taken as
/// the same error: more ranks do not make it smaller.
fn share(job: &Job, part: fn(&BinTimes) -> f32) -> Option<Estimate> {
    let with_steps = job.ranks.iter().filter(|rank| rank.facts.steps > 0);
    let all: Vec<Share> = with_steps
        .map(|rank: &Rank| rank.share(|_| true, part))
        .collect();
    let mean = |of: fn(&Share) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    (!all.is_empty()).then(|| {
        Estimate::within(
            mean(|share| share.value),
            mean(|share| share.low),
            mean(|share| share.high),
        )
    })
}

fn of_both((communication, computation): (Estimate, Estimate)) -> Estimate {
    let of = |part: f64, other: f64| part / (part + other).max(f64::MIN_POSITIVE);
    let low = communication.low.zip(computation.high);
    let high = communication.high.zip(computation.low);
    Estimate {
        value: of(communication.value, computation.value),
        low: low.map(|(part, other)| of(part, other)),
        high: high.map(|(part, other)| of(part, other)),
    }
}

/// Ranks by device, each device once.
fn devices(job: &Job) -> FxHashMap<(&str, &str), &Rank> {
    let mut devices: FxHashMap<(&str, &str), &Rank> = FxHashMap::default();
    for rank in &job.ranks {
        if let Some(device) = &rank.facts.device {
            devices.entry((&rank.host, device)).or_insert(rank);
        }
    }
    devices
}

fn energy(job: &Job) -> Option<Energy> {
    let devices = devices(job);
    let mut sum = Energy::default();
    let (mut epoch, mut error, mut freedom) = (0.0, Some(0.0), f64::MAX);
    let mut all_have_epochs = true;
    for rank in devices.values() {
        let Some(joules) = rank.facts.energy_j else {
            continue;
        };
        sum.devices += 1;
        sum.joules += joules;
        let epochs = counted(&rank.facts.pace);
        let each: Option<Vec<f64>> = epochs.iter().map(|epoch| epoch.energy_j).collect();
        match each.and_then(|each| Mean::of(&each)) {
            Some(mean) => {
                epoch += mean.value;
                error = error.zip(mean.error).map(|(sum, error)| sum + error);
                freedom = freedom.min(mean.freedom);
            }
            None => all_have_epochs = false,
        }
    }
    let measured = |rank: &&Rank| rank.facts.energy_j.is_some();
    sum.ranks_without = job.ranks.len() - job.ranks.iter().filter(measured).count();
    sum.epoch = all_have_epochs.then_some(Mean {
        value: epoch,
        error,
        freedom,
    });
    (sum.devices > 0).then_some(sum)
}

fn utilization(job: &Job) -> Option<Mean> {
    let means: Vec<Mean> = devices(job)
        .values()
        .filter_map(|rank| {
            let value = rank.facts.utilization?;
            Some(Mean::of_parts(value, &rank.facts.pace.utilization))
        })
        .collect();
    let count = means.len() as f64;
    let errors: Option<Vec<f64>> = means.iter().map(|mean| mean.error).collect();
    (!means.is_empty()).then(|| Mean {
        value: means.iter().map(|mean| mean.value).sum::<f64>() / count,
        error: errors.map(|errors| errors.iter().sum::<f64>() / count),
        freedom: means
            .iter()
            .map(|mean| mean.freedom)
            .fold(f64::MAX, f64::min),
    })
}
