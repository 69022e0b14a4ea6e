//! Memory that grows for as long as the recording lasts: a list that is never emptied.
//!
//! Start-up and the first quarter of what follows are left out: caches and arenas fill then. The
//! rest is cut into parts of equal length. Memory grows if the medians of the parts do (Mann 1945,
//! Kendall 1975), along a straight line, by more than allocators take by chance, and in the second
//! half, too: what levels off is no leak. The rate is the median of the slopes of all pairs of
//! parts, its interval that of Sen (1968).
//!
//! Device memory of tensors rises and falls within each step, by much more than what stays: there
//! the least reading of each part is taken, which is what no step gives back.

use super::functions::user_lines_by;
use super::memory_code::ProcessMemory;
use super::of_thread;
use super::progress::{Progress, epochs, steps};
use super::slopes::{middle, slopes as all_slopes};
use super::summary::ProcessSummary;
use super::tracks::{HostProcess, TrackSummary, of_pid, points};
use crate::model::containers::{GrowingContainer, KeptContainers};
use crate::model::facts::Line;
use crate::model::ids::ProcessId;
use crate::model::profile::{Profile, Role};
use crate::model::progress::facts;
use crate::model::track::{TrackKind, TrackPoint};
use schemars::JsonSchema;
use serde::Serialize;

/// Parts that are compared.
const PARTS: usize = 12;
/// Shortest time that all parts may be of, ns.
const SHORTEST_NS: u64 = 20_000_000_000;
/// Of the time after start-up this part is left out at its beginning, as its divisor.
const WARM_UP: u64 = 4;
/// Least sum of signs over the 66 pairs of parts: by chance it is reached in one of 2,000 series
/// (standard deviation 14.6).
const SIGNS: i32 = 48;
/// Pairs of parts within which, of the 66 in order, the interval of 95 % ends.
const INTERVAL: (usize, usize) = (18, 47);
/// Least growth, bytes, and as a part of the memory that there was.
const LEAST_BYTES: f64 = 4e6;
const LEAST_SHARE: f64 = 0.005;
/// Least part of the variance that a straight line explains.
const STRAIGHT: f64 = 0.9;
/// Least rate in the second half, as a part of the whole.
const GOES_ON: f64 = 0.4;

/// A value with its 95 % interval.
#[derive(Clone, Copy, Debug, JsonSchema, PartialEq, Serialize)]
pub struct Rate {
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Rate {
    fn times(self, factor: f64) -> Self {
        Self {
            value: self.value * factor,
            low: self.low * factor,
            high: self.high * factor,
        }
    }
}

/// A process whose memory grows.
#[derive(Clone, Debug, PartialEq)]
pub struct Growth {
    pub process: ProcessId,
    pub pid: i32,
    /// By how much, bytes, in the time that was looked at.
    pub bytes: f64,
    /// That time, ns.
    pub length_ns: u64,
    /// Bytes a second.
    pub per_second: Rate,
    /// Bytes for each step of the trainer, or of the trainer that the worker feeds; `None` where
    /// steps were not timed.
    pub per_step: Option<Rate>,
    /// Bytes for each epoch, by the lengths of those that began in that time, or else of the last
    /// one; `None` where none was complete.
    pub per_epoch: Option<Rate>,
    /// What holds it, or raised it, as far as that is known.
    pub cause: Option<Cause>,
    /// A container that gets tensors which keep their graphs, unless the cause is a container: how
    /// much the graphs have is not known.
    pub graphs: Option<GrowingContainer>,
}

/// Where memory that stays comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// A container grows; its items have this share of the growth.
    Container(GrowingContainer, f64),
    /// It was shared with its parent, and is copied when it is touched: the line of the user's code
    /// that its main thread ran for longest, and its share of the time in such lines.
    Copied(Option<(Line, f64)>),
    /// Code of this line raised this share of all that was raised, and little fell.
    Line(Line, f64),
}

/// A cause explains at least this share of the growth.
const LEAST_EXPLAINED: f64 = 0.5;
/// Items of more than this multiple of the growth share their memory, or are freed.
const MOST_EXPLAINED: f64 = 2.0;
/// If more than this part of what was raised fell again, what stayed cannot be told from what fell.
const MOST_FALLEN: f64 = 0.3;
/// Least part of a line's rises that came between two samples in it.
const LEAST_CERTAIN: f64 = 0.25;

/// Names what holds memory that grows, or the line that raised it, where the evidence suffices.
/// `on_devices`: it is that of devices.
pub fn explain(
    profile: &Profile,
    growing: &mut [Growth],
    memory: &[ProcessMemory],
    on_devices: bool,
) {
    for growth in growing {
        let own = memory
            .iter()
            .find(|memory| memory.process == growth.process);
        let containers = containers(profile, growth.process);
        growth.cause = match &growth.cause {
            Some(Cause::Copied(_)) => Some(Cause::Copied(longest(profile, growth.process))),
            _ => container(&containers, growth, on_devices).or_else(|| line(own?)),
        };
        if !matches!(growth.cause, Some(Cause::Container(..))) {
            growth.graphs = graphs(containers, growth, on_devices);
        }
    }
}

/// The containers of a process that grew, by the last reading.
fn containers(profile: &Profile, process: ProcessId) -> Vec<GrowingContainer> {
    let mut conditions = profile.sideband.conditions.iter().rev();
    let kept =
        conditions.find(|each| each.process == process && each.name == facts::GROWING_CONTAINERS);
    let kept = kept.and_then(|kept| KeptContainers::parse(&kept.value));
    kept.map_or(Vec::new(), |kept| kept.growing)
}

fn container(containers: &[GrowingContainer], growth: &Growth, on_devices: bool) -> Option<Cause> {
    let known = containers.iter().map(|each| {
        let share = each.bytes_per_s(on_devices) / growth.per_second.value;
        (each, share)
    });
    known
        .filter(|(_, share)| (LEAST_EXPLAINED..=MOST_EXPLAINED).contains(share))
        .min_by(|a, b| (a.1 - 1.0).abs().total_cmp(&(b.1 - 1.0).abs()))
        .map(|(each, share)| Cause::Container(each.clone(), share))
}

/// The container that gets most tensors which keep their graphs, at least one in two steps; on
/// devices, if it is there that they are.
fn graphs(
    containers: Vec<GrowingContainer>,
    growth: &Growth,
    on_devices: bool,
) -> Option<GrowingContainer> {
    let steps_per_s = growth
        .per_step
        .map_or(0.0, |each| growth.per_second.value / each.value);
    containers
        .into_iter()
        .filter(|each| each.items_keep_graphs && 2.0 * each.items_per_s() >= steps_per_s)
        .filter(|each| !on_devices || each.bytes_of_item(true) > 0)
        .max_by(|a, b| a.items_per_s().total_cmp(&b.items_per_s()))
}

/// The user's line in which a process's training thread, a worker's first, was for longest while it
/// ran, with its share of the time in all such lines.
fn longest(profile: &Profile, process: ProcessId) -> Option<(Line, f64)> {
    let thread = profile.process(process)?.training_thread?;
    let samples = of_thread(profile, thread);
    let ran = samples.into_iter().map(|sample| (sample, sample.awake_ns));
    let lines = user_lines_by(profile, ran);
    let first = *lines.first()?;
    let all: u64 = lines.iter().map(|line| line.self_ns).sum();
    let share = first.self_ns as f64 / all.max(1) as f64;
    (share >= LEAST_EXPLAINED / 2.0).then_some(((first.function, first.line), share))
}

fn line(memory: &ProcessMemory) -> Option<Cause> {
    let first = memory.lines.first()?;
    let share = first.raised / memory.raised;
    let is_sure = share >= LEAST_EXPLAINED
        && first.certain >= LEAST_CERTAIN * first.raised
        && memory.fell <= MOST_FALLEN * memory.raised;
    first
        .key
        .filter(|_| is_sure)
        .map(|line| Cause::Line(line, share))
}

/// Processes whose memory grows, fastest first.
pub fn growing(
    profile: &Profile,
    tracks: &TrackSummary,
    processes: &[ProcessSummary],
) -> Vec<Growth> {
    let mut all: Vec<Growth> = tracks
        .processes
        .iter()
        .filter_map(|process| growth(profile, process, processes))
        .collect();
    all.sort_by(|a, b| b.per_second.value.total_cmp(&a.per_second.value));
    all
}

/// Processes whose tensors take more and more memory of devices, fastest first.
pub fn growing_on_devices(
    profile: &Profile,
    tracks: &TrackSummary,
    processes: &[ProcessSummary],
) -> Vec<Growth> {
    let of = |host: &HostProcess| {
        let process = host.process?;
        let own = processes.iter().find(|each| each.process == process)?;
        let readings = of_pid(profile, TrackKind::SampledAllocated, host.pid)?;
        let trend = trend(readings, own.startup_ns, least)?;
        let trainer = own.progress.as_ref().map(|progress| (process, progress));
        Some(of_trend(profile, (host.pid, process), trainer, &trend))
    };
    let mut all: Vec<Growth> = tracks.processes.iter().filter_map(of).collect();
    all.sort_by(|a, b| b.per_second.value.total_cmp(&a.per_second.value));
    all
}

fn growth(profile: &Profile, host: &HostProcess, processes: &[ProcessSummary]) -> Option<Growth> {
    let process = host.process?;
    let role = profile.process(process)?.role;
    let own = processes.iter().find(|each| each.process == process);
    let startup_ns = own.map_or(0, |own| own.startup_ns);
    let of_kind = |kind: TrackKind| {
        let mut figures = host.figures.iter();
        let figure = figures.find(|figure| figure.kind == kind)?;
        trend(points(profile, figure.track), startup_ns, median)
    };
    let own = of_kind(TrackKind::Anonymous);
    let is_copied = own.is_none();
    // What it copies of its parent's memory was in its own before.
    let trend = own.or_else(|| match role {
        Role::DataLoaderWorker { .. } => of_kind(TrackKind::Private),
        _ => None,
    })?;
    let trainer = match role {
        Role::DataLoaderWorker { trainer, .. } => trainer,
        _ => Some(process),
    };
    let summary = processes.iter().find(|each| Some(each.process) == trainer);
    let trainer = summary.and_then(|each| Some((each.process, each.progress.as_ref()?)));
    Some(Growth {
        cause: is_copied.then_some(Cause::Copied(None)),
        ..of_trend(profile, (host.pid, process), trainer, &trend)
    })
}

/// `trainer`: the process whose steps count, and its progress.
fn of_trend(
    profile: &Profile,
    (pid, process): (i32, ProcessId),
    trainer: Option<(ProcessId, &Progress)>,
    trend: &Trend,
) -> Growth {
    let length_s = trend.length_ns as f64 / 1e9;
    let timed = trainer.filter(|(_, progress)| progress.times.is_some());
    let step_s = timed.and_then(|(trainer, _)| {
        // What is between steps, an evaluation or a checkpoint, is in the trend, too.
        let times = trend.from_ns..=trend.from_ns.saturating_add(trend.length_ns);
        let ends = steps(profile, trainer).into_iter();
        let count = ends.filter(|step| times.contains(&step.end_ns)).count();
        (count > 0).then(|| length_s / count as f64)
    });
    let epoch_s = trainer.and_then(|(trainer, _)| {
        let mut all = epochs(profile, trainer);
        all.retain(|pass| pass.is_followed);
        // The first one may be slow, as it is before the trend; of long ones none may begin in it.
        let late = all.partition_point(|pass| pass.start_ns < trend.from_ns);
        let late = all.get(late.min(all.len().saturating_sub(1))..)?;
        let lengths = late
            .iter()
            .map(|pass| pass.end_ns.saturating_sub(pass.start_ns));
        let sum: u64 = lengths.sum();
        (!late.is_empty()).then(|| sum as f64 / 1e9 / late.len() as f64)
    });
    Growth {
        process,
        pid,
        bytes: trend.rise,
        length_ns: trend.length_ns,
        per_second: trend.rate,
        per_step: step_s.map(|length| trend.rate.times(length)),
        per_epoch: epoch_s.map(|length| trend.rate.times(length)),
        cause: None,
        graphs: None,
    }
}

struct Trend {
    /// When it begins, CLOCK_MONOTONIC.
    from_ns: u64,
    /// Bytes a second.
    rate: Rate,
    /// Bytes.
    rise: f64,
    length_ns: u64,
}

/// `level`: what a part is compared by.
fn trend(
    points: &[TrackPoint],
    startup_ns: u64,
    level: impl Fn(&mut [u64]) -> f64,
) -> Option<Trend> {
    let (first, last) = (points.first()?.end_ns, points.last()?.end_ns);
    let started = first.saturating_add(startup_ns);
    let from = started.saturating_add(last.saturating_sub(started) / WARM_UP);
    let length_ns = last.saturating_sub(from);
    if length_ns < SHORTEST_NS {
        return None;
    }
    let mut parts: Vec<Vec<u64>> = vec![Vec::new(); PARTS];
    for point in points.iter().filter(|point| point.end_ns >= from) {
        let at = (point.end_ns - from) as u128 * PARTS as u128 / u128::from(length_ns);
        parts[(at as usize).min(PARTS - 1)].push(point.value);
    }
    if parts.iter().any(Vec::is_empty) {
        return None;
    }
    let levels = parts.iter_mut().map(|part| level(part)).enumerate();
    let levels: Vec<(f64, f64)> = levels.map(|(at, level)| (at as f64, level)).collect();
    let part_s = length_ns as f64 / 1e9 / PARTS as f64;
    let slopes = all_slopes(&levels);
    let signs: i32 = slopes.iter().map(|slope| sign(*slope)).sum();
    let rate = Rate {
        value: middle(&slopes) / part_s,
        low: slopes.get(INTERVAL.0)? / part_s,
        high: slopes.get(INTERVAL.1)? / part_s,
    };
    let rise = rate.value * length_ns as f64 / 1e9;
    let late = middle(&all_slopes(&levels[PARTS / 2..])) / part_s;
    let is_leak = signs >= SIGNS
        && rise >= LEAST_BYTES.max(LEAST_SHARE * levels[0].1)
        && late >= GOES_ON * rate.value
        && straightness(&levels) >= STRAIGHT;
    is_leak.then_some(Trend {
        from_ns: from,
        rate,
        rise,
        length_ns,
    })
}

fn median(values: &mut [u64]) -> f64 {
    values.sort_unstable();
    values[values.len() / 2] as f64
}

fn least(values: &mut [u64]) -> f64 {
    values.iter().min().map_or(0.0, |&least| least as f64)
}

fn sign(value: f64) -> i32 {
    i32::from(value > 0.0) - i32::from(value < 0.0)
}

/// The part of the variance that a straight line explains.
fn straightness(levels: &[(f64, f64)]) -> f64 {
    let count = levels.len() as f64;
    let x = levels.iter().map(|point| point.0).sum::<f64>() / count;
    let y = levels.iter().map(|point| point.1).sum::<f64>() / count;
    let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
    for level in levels {
        let (dx, dy) = (level.0 - x, level.1 - y);
        (xx, xy, yy) = (xx + dx * dx, xy + dx * dy, yy + dy * dy);
    }
    xy * xy / (xx * yy).max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::TrackId;

    /// A minute of readings, two a second, each `noise` off in turns.
    fn readings(level: impl Fn(f64) -> f64) -> Vec<TrackPoint> {
        let at = |index: u64| {
            let end_ns = index * 500_000_000;
            TrackPoint {
                track: TrackId(0),
                start_ns: end_ns,
                end_ns,
                value: (level(end_ns as f64 / 1e9) + [0.0, 3e6, 7e6][index as usize % 3]) as u64,
            }
        };
        (0..120).map(at).collect()
    }

    #[test]
    fn what_grows_along_a_line_is_found_with_its_rate() {
        let trend = trend(&readings(|at| 1e9 + 2e6 * at), 0, median).expect("it grows");
        assert!((trend.rate.value - 2e6).abs() < 1e5, "{}", trend.rate.value);
        assert!(trend.rate.low <= 2e6 && 2e6 <= trend.rate.high);
        // Epochs of five seconds that each leave something.
        assert!(trend_of(|at| 1e9 + 1e7 * (at / 5.0).floor()));
    }

    fn trend_of(level: impl Fn(f64) -> f64) -> bool {
        trend(&readings(level), 0, median).is_some()
    }

    #[test]
    fn what_fills_once_or_varies_does_not_grow() {
        assert!(!trend_of(|_| 1e9));
        // An allocator's arenas fill.
        assert!(!trend_of(|at| 1e9 + 2e8 * (1.0 - (-at / 10.0).exp())));
        // One step, as of a validation pass.
        assert!(!trend_of(|at| if at < 40.0 { 1e9 } else { 1.5e9 }));
        assert!(!trend_of(|at| 1e9 + 1e8 * (at / 9.0).sin()));
        assert!(!trend_of(|at| 1e9 - 2e6 * at));
        // Less than a part of what there is.
        assert!(!trend_of(|at| 1e10 + 3e5 * at));
        // Only while it starts.
        let starts = readings(|at| 1e9 + 2e7 * at.min(25.0));
        assert!(trend(&starts, 25_000_000_000, median).is_none());
        // Too short.
        assert!(trend(&readings(|at| 1e9 + 2e6 * at)[..50], 0, median).is_none());
    }

    /// Steps of 0.7 s whose tensors take and give back a hundred times what stays.
    #[test]
    fn what_stays_of_what_rises_and_falls_in_each_step_is_found() {
        let level = |stays: f64| {
            move |at: f64| {
                let step = (at / 0.7).floor();
                1e9 + stays * step + 2e8 * (at / 0.7 - step)
            }
        };
        let found = trend(&readings(level(2e6)), 0, least).expect("it grows");
        assert!(
            (found.rate.value * 0.7 / 2e6 - 1.0).abs() < 0.15,
            "{}",
            found.rate.value
        );
        assert!(trend(&readings(level(0.0)), 0, least).is_none());
    }
}
