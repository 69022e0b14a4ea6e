//! A job of many ranks: its ranks, its clocks, and the ranks that the others wait for.

use crate::analysis::intervals::Share;
use crate::analysis::job::Job;
use crate::analysis::job::arrivals::Arrival;
use crate::analysis::job::clocks::{Alignment, Clock};
use crate::analysis::job::ranks::{Class, Doing, Names, Rank};
use crate::analysis::job::stragglers::Straggler;
use crate::model::named::Named;
use crate::report::table::{Column, Kind, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use schemars::JsonSchema;
use serde::Serialize;

/// One rank. Shares are of its training thread's time in steps; of all of its time where no steps
/// are known.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct RankRow {
    /// Null if its environment names none.
    pub rank: Option<u32>,
    pub pid: i32,
    pub host: String,
    /// Where it is in its parallel groups: `dp=1, tp=0`; empty if that is not known.
    pub groups: String,
    /// Its recording.
    pub file: String,
    /// Steps whose length is known, and their mean length.
    pub steps: u64,
    pub step_ms: Option<f64>,
    pub computation: f64,
    pub communication_call: f64,
    pub communication_wait: f64,
    /// The part of `communication_wait` in which it waits for ranks that arrive later, at least:
    /// what it waits longer than the rank of its group that waits least at that time. Null if the
    /// rank was compared with no other, and with NCCL, where devices wait and not hosts.
    pub synchronizing: Option<f64>,
    /// The rest of `communication_wait`, which all ranks wait: transferring, at most.
    pub transferring: Option<f64>,
    pub input: f64,
    pub gpu_wait: f64,
    pub python: f64,
    pub cpu_wait: f64,
    pub other: f64,
    /// Waits for other ranks and for its device.
    pub waits: Option<Share>,
    /// The device's utilization in steps, 0 to 1, and its energy; null if they were not recorded.
    pub gpu_utilization: Option<f64>,
    pub energy_j: Option<f64>,
    /// It communicates over NCCL: collectives run on its device, and how much they overlap with
    /// computation there is not visible from outside.
    pub nccl: bool,
    /// The others wait for it.
    pub arrives_last: bool,
    /// The part of its bins of steps in which it waited least of its group, for others or for its
    /// device; null if it was compared with no other.
    pub last_in: Option<f64>,
    /// It is the row of [`all_ranks`].
    #[serde(skip)]
    pub is_all: bool,
}

/// Rows by rank.
pub fn ranks(job: &Job) -> Vec<RankRow> {
    let arrivals = job.groups.iter().flat_map(|(_, found)| &found.arrivals);
    let arrivals: FxHashMap<usize, &Arrival> = arrivals.map(|each| (each.rank, each)).collect();
    let rows = job.ranks.iter().enumerate();
    rows.map(|(at, rank)| rank_row(job, at, rank, arrivals.get(&at).copied()))
        .collect()
}

fn rank_row(job: &Job, at: usize, rank: &Rank, arrival: Option<&Arrival>) -> RankRow {
    let all: f64 = rank.totals.iter().sum();
    let part = |seconds: f64| seconds / all.max(f64::MIN_POSITIVE);
    let share = |class: Class| part(rank.totals[class as usize]);
    let communication_wait = share(Class::CommunicationWait);
    let synchronizing = arrival.filter(|_| !rank.facts.nccl);
    let synchronizing = synchronizing.map(|it| part(it.for_others_s).min(communication_wait));
    let has_steps = rank.facts.steps > 0;
    let step_ms = rank.seconds() * 1e3 / rank.facts.steps.max(1) as f64;
    let file = job.recordings.get(rank.recording);
    RankRow {
        rank: rank.facts.rank,
        pid: rank.facts.pid,
        host: rank.host.clone(),
        groups: job.parallel.place(rank.facts.rank),
        file: file.map_or(String::new(), |recording| recording.file.clone()),
        steps: rank.facts.steps,
        step_ms: has_steps.then_some(step_ms),
        computation: share(Class::Computation),
        communication_call: share(Class::CommunicationCall),
        communication_wait,
        synchronizing,
        transferring: synchronizing.map(|share| communication_wait - share),
        input: share(Class::Input),
        gpu_wait: share(Class::GpuWait),
        python: share(Class::Python),
        cpu_wait: share(Class::CpuWait),
        other: share(Class::Other),
        waits: has_steps.then(|| rank.share(|_| true, |times| times.waits)),
        gpu_utilization: rank.facts.utilization,
        energy_j: rank.facts.energy_j,
        nccl: rank.facts.nccl,
        arrives_last: job.stragglers().any(|(_, each)| each.rank == at),
        last_in: arrival.map(|it| it.last_in),
        is_all: false,
    }
}

/// All ranks in one row: the means of those of which a value is known, but the steps of the rank
/// with the most, and the sum of the energy of all devices. `None` of fewer than two ranks.
pub fn all_ranks(job: &Job, rows: &[RankRow]) -> Option<RankRow> {
    if rows.len() < 2 {
        return None;
    }
    let known = |value: fn(&RankRow) -> Option<f64>| {
        let values: Vec<f64> = rows.iter().filter_map(value).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let mean = |value: fn(&RankRow) -> f64| rows.iter().map(value).sum::<f64>() / rows.len() as f64;
    // Ranks may share a device.
    let mut devices = FxHashSet::default();
    let energy_j: Vec<f64> = job
        .ranks
        .iter()
        .filter_map(|rank| Some((rank.facts.device.as_ref(), rank.facts.energy_j?)))
        .filter(|(device, _)| device.is_none_or(|device| devices.insert(device)))
        .map(|(_, energy_j)| energy_j)
        .collect();
    Some(RankRow {
        rank: None,
        pid: 0,
        host: String::new(),
        groups: String::new(),
        file: String::new(),
        steps: rows.iter().map(|row| row.steps).max().unwrap_or(0),
        step_ms: known(|row| row.step_ms),
        computation: mean(|row| row.computation),
        communication_call: mean(|row| row.communication_call),
        communication_wait: mean(|row| row.communication_wait),
        synchronizing: known(|row| row.synchronizing),
        transferring: known(|row| row.transferring),
        input: mean(|row| row.input),
        gpu_wait: mean(|row| row.gpu_wait),
        python: mean(|row| row.python),
        cpu_wait: mean(|row| row.cpu_wait),
        other: mean(|row| row.other),
        waits: None,
        gpu_utilization: known(|row| row.gpu_utilization),
        energy_j: (!energy_j.is_empty()).then(|| energy_j.iter().sum()),
        nccl: rows.iter().any(|row| row.nccl),
        arrives_last: false,
        last_in: None,
        is_all: true,
    })
}

pub(super) fn number(value: Option<f64>) -> Value {
    value.map_or(Value::None, Value::Number)
}

fn id(value: Option<u32>) -> Value {
    value.map_or(Value::None, |value| Value::Count(i64::from(value)))
}

pub(super) const fn class<R>(
    key: &'static str,
    label: &'static str,
    value: fn(&R) -> Value,
) -> Column<R> {
    Column::new(Kind::Points, key, label, value).width(7)
}

pub const RANKS: &[Column<RankRow>] = &[
    Column::new(Kind::Id, "rank", "rank", |row: &RankRow| match row.is_all {
        true => Value::text("all"),
        false => id(row.rank),
    })
    .width(6),
    Column::data(Kind::Id, "pid", |row| match row.is_all {
        true => Value::None,
        false => row.pid.into(),
    }),
    Column::data(Kind::Text, "host", |row| Value::text(&row.host)),
    Column::data(Kind::Text, "file", |row| Value::text(&row.file)),
    Column::data(Kind::Count, "steps", |row| Value::Count(row.steps as i64)),
    Column::new(Kind::Milliseconds, "step_ms", "ms/step", |row| {
        number(row.step_ms)
    }),
    class("computation", "comput", |row| {
        Value::Number(row.computation)
    }),
    class("communication_call", "coll", |row| {
        Value::Number(row.communication_call)
    }),
    class("communication_wait", "waits", |row| {
        Value::Number(row.communication_wait)
    }),
    class("synchronizing", "(sync)", |row| number(row.synchronizing)),
    Column::data(Kind::Points, "transferring", |row| number(row.transferring)),
    class("input", "input", |row| Value::Number(row.input)),
    class("gpu_wait", "gpu wt", |row| Value::Number(row.gpu_wait)),
    class("python", "python", |row| Value::Number(row.python)),
    class("cpu_wait", "cpu wt", |row| Value::Number(row.cpu_wait)),
    class("other", "other", |row| Value::Number(row.other)),
    Column::data(Kind::Share, "waits", |row| {
        row.waits.map_or(Value::None, Value::Share)
    }),
    Column::data(Kind::Number, "gpu_utilization", |row| {
        number(row.gpu_utilization)
    }),
    Column::data(Kind::Number, "energy_j", |row| number(row.energy_j)),
    Column::data(Kind::Count, "arrives_last", |row| match row.is_all {
        true => Value::None,
        false => Value::Flag(row.arrives_last),
    }),
    Column::data(Kind::Text, "groups", |row| Value::text(&row.groups)),
    Column::data(Kind::Points, "last_in", |row| number(row.last_in)),
    Column::data(Kind::Count, "nccl", |row| Value::Flag(row.nccl)),
];

/// A line at which a rank spends more time than the others, or all ranks of a group spend much.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct DoingRow {
    pub phase: &'static str,
    /// What it waits for there; null if it does not wait.
    pub wait: Option<String>,
    pub function: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
    /// How much more than the median of the others, as a share of the time in which it is slow. For
    /// what a group has in common: all of it.
    pub share: f64,
    /// The same in each step.
    pub ms: f64,
}

/// A rank that the others wait for.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct StragglerRow {
    pub rank: Option<u32>,
    pub pid: i32,
    pub host: String,
    /// Where it is in its parallel groups: `dp=1, tp=0`; empty if that is not known.
    pub groups: String,
    /// Its waits for others, and those of the median of the others, as shares of the time in which
    /// it is slow.
    pub waits: Share,
    pub others_wait: Share,
    /// The difference: how much longer each step is for it.
    pub late: Share,
    pub late_ms: f64,
    /// How much longer it waits for a CPU than the others, in each step.
    pub cpu_wait_ms: f64,
    /// Mean length of a step in the time in which it is slow.
    pub slow_step_ms: f64,
    /// Bins of steps in which it is slow, and those in which it waited least of all.
    pub slow_bins: usize,
    pub last_in_bins: usize,
    /// How much less its GPU is busy than the median of the others; null if not known.
    pub gpu_idles: Option<f64>,
    /// When it became slow, and when it stopped being slow; empty if it was slow all the time.
    pub changes: Vec<ChangeRow>,
    pub lines: Vec<DoingRow>,
}

/// When a rank became slow, or stopped being slow.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct ChangeRow {
    /// It became slow then; else it stopped being slow.
    pub began: bool,
    /// The step, with its 95 % interval.
    pub step: u64,
    pub step_low: u64,
    pub step_high: u64,
    /// Its start by the aligned clock, ns since 1970.
    pub wall_ns: i64,
    /// How probable such a change is by chance.
    pub chance: f64,
}

pub fn straggler(job: &Job, found: &Straggler) -> Option<StragglerRow> {
    let rank = job.ranks.get(found.rank)?;
    let step_ms = found.slow_step_s * 1e3;
    // Bins of ranks that lack other numbers of steps are compared.
    let uncounted = job.ranks.iter().map(|each| each.facts.uncounted).max();
    let changes = found.changes.iter().filter_map(|since| {
        let bin = |at: usize| rank.facts.bins.get(at);
        let step = |at: usize| Some(bin(at)?.first_step(rank.facts.shift));
        // The change is within the bin before or after the split.
        let last = rank.facts.bins.len().saturating_sub(1);
        let high = since.change.high.saturating_add(1).min(last);
        let at = bin(since.change.at)?;
        Some(ChangeRow {
            began: since.began,
            step: step(since.change.at)?,
            step_low: step(since.change.low.saturating_sub(1))?,
            step_high: step(high)?.saturating_add(uncounted.unwrap_or(0)),
            wall_ns: job.clock(rank.recording)?.reference_ns(at.start_ns),
            chance: since.chance,
        })
    });
    let doing = found.doing.iter();
    Some(StragglerRow {
        rank: rank.facts.rank,
        pid: rank.facts.pid,
        host: rank.host.clone(),
        groups: job.parallel.place(rank.facts.rank),
        waits: found.waits,
        others_wait: found.others_waits,
        late: found.less,
        late_ms: found.per_step_s * 1e3,
        cpu_wait_ms: found.without_cpu * step_ms,
        slow_step_ms: step_ms,
        slow_bins: found.bins,
        last_in_bins: found.last_in,
        gpu_idles: found.device_idles,
        changes: changes.collect(),
        lines: doing
            .map(|&(doing, share)| doing_row(&job.names, &doing, share, step_ms))
            .collect(),
    })
}

pub(super) fn doing_row(names: &Names, doing: &Doing, share: f64, step_ms: f64) -> DoingRow {
    let place = names.place(doing);
    DoingRow {
        phase: doing.phase.stable_name(),
        wait: names.wait(doing).map(str::to_owned),
        function: place.map(|place| place.function.clone()),
        file: place.map(|place| place.file.clone()),
        line: place.map(|place| place.line),
        share,
        ms: share * step_ms,
    }
}

/// The clock of a host.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct ClockRow {
    pub host: String,
    /// Its ranks.
    pub ranks: Vec<u32>,
    /// `reference`, `ends` of collectives, or `wall_clock`: not aligned.
    pub aligned_by: &'static str,
    /// Why it is not aligned.
    pub why: Option<&'static str>,
    /// How far its wall clock is ahead of the reference's in the middle of the run, with its 95 %
    /// interval at the run's ends; null if it is not known.
    pub ahead_ms: Option<f64>,
    pub error_ms: Option<f64>,
    /// By how much more each second, parts per million.
    pub drift_ppm: Option<f64>,
    /// The middle of the run by its own wall clock, ns since 1970.
    pub middle_ns: Option<i64>,
    /// Steps whose ends were compared.
    pub steps: usize,
}

/// Rows by host.
pub fn clocks(job: &Job) -> Vec<ClockRow> {
    job.clocks
        .iter()
        .map(|clock| clock_row(job, clock))
        .collect()
}

fn clock_row(job: &Job, clock: &Clock) -> ClockRow {
    let own = job
        .ranks
        .iter()
        .filter(|rank| clock.recordings.contains(&rank.recording));
    let (aligned_by, why, error_ms, steps) = match clock.alignment {
        Alignment::Reference => ("reference", None, None, 0),
        Alignment::Ends { error_s, steps, .. } => ("ends", None, Some(error_s * 1e3), steps),
        Alignment::WallClock(why) => ("wall_clock", Some(why), None, 0),
    };
    ClockRow {
        host: clock.host.clone(),
        ranks: own.filter_map(|rank| rank.facts.rank).collect(),
        aligned_by,
        why,
        ahead_ms: error_ms.map(|_| clock.ahead_s * 1e3),
        error_ms,
        drift_ppm: error_ms.map(|_| clock.drift * 1e6),
        middle_ns: error_ms.map(|_| clock.middle_ns),
        steps,
    }
}

pub const CLOCKS: &[Column<ClockRow>] = &[
    Column::data(Kind::Text, "host", |row| Value::text(&row.host)),
    Column::data(Kind::Text, "aligned_by", |row| Value::text(row.aligned_by)),
    Column::data(Kind::Text, "why", |row| {
        Value::text(row.why.unwrap_or_default())
    }),
    Column::data(Kind::Number, "ahead_ms", |row| number(row.ahead_ms)),
    Column::data(Kind::Number, "error_ms", |row| number(row.error_ms)),
    Column::data(Kind::Number, "drift_ppm", |row| number(row.drift_ppm)),
    Column::data(Kind::Id, "middle_ns", |row| {
        row.middle_ns.map_or(Value::None, Value::Count)
    }),
    Column::data(Kind::Count, "steps", |row| Value::Count(row.steps as i64)),
];
