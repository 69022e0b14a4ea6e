//! Which rank the others wait for where collectives run on devices.
//!
//! NCCL's host side enqueues a collective and returns. So hosts do not wait for the rank that
//! arrives last, devices do: they spin in the collective's kernel until it has launched it too, and
//! their hosts wait for them later, wherever they next need a result. Of ranks that step alike, the
//! one that waits clearly less than all others is the one that arrives last, and what it does on
//! the host in the rest of a step is what the others wait for.
//!
//! Host work that a busy device hides delays nobody. So the rank's own device must be idle while
//! those of the others spin; where their utilization is not known, its host must hardly wait at
//! all, as one that everything waits for.
//!
//! A rank with a slow *device* waits for its own device as long as the others wait for it in the
//! collective, and all devices seem busy. It is found only where multiprocessors or power are
//! measured: those that spin hardly use them.

use super::collectives::{Job, job};
use super::gpu_overlay::device_of;
use super::intervals::{Share, Shares};
use super::progress::{Step, steps};
use super::summary::ProcessSummary;
use super::timeline::{Piece, Timeline};
use super::tracks::{Device, TrackSummary};
use super::verdict::rules::BUSY;
use crate::model::category::{Activity, Phase};
use crate::model::facts::Line;
use crate::model::ids::{FunctionId, ProcessId};
use crate::model::profile::{Profile, ProfileSample};
use crate::model::track::TrackKind;
use crate::model::wait::WaitKind;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// Minimum difference between the waits of two ranks, as a share of the time.
const NOTABLE: f64 = 0.05;
/// Ranks step alike if their numbers of steps over the same time differ by no more than this share,
/// and [`SLACK`] steps: counters are not read at the same moments.
const ALIKE: f64 = 0.02;
const SLACK: u64 = 2;
/// Fewer steps of the same time show nothing.
const FEW_STEPS: u64 = 10;
/// This part of the difference must be idle time of its device.
const IDLE: f64 = 0.5;
/// A host that waits for less than this share of the time is what a step waits for.
const HARDLY: f64 = 0.05;
/// Lines with less than this part of the difference are not listed.
const WORTH: f64 = 0.1;
const MOST_LINES: usize = 5;

/// The rank that arrives last at collectives that run on devices.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowRank {
    pub process: ProcessId,
    /// Its waits for its device, and for other ranks, as a share of the time in which all ranks
    /// step.
    pub waits: Share,
    /// The rank that waits least of the others.
    pub other: ProcessId,
    /// The same share of that one.
    pub other_waits: Share,
    /// The difference: what each step lasts longer than with a rank as fast as the others, at most.
    pub less: Share,
    /// Mean length of a step, ns; `None` if steps are not counted.
    pub step_ns: Option<f64>,
    /// How much less its device is busy than that of the other one; `None` if not known of both.
    pub device_idles: Option<f64>,
    /// Where it spends more time on the host than the median of the others, in descending order;
    /// lines of the same function follow each other.
    pub lines: Vec<SlowLine>,
}

impl SlowRank {
    /// The line at which the others wait for it most.
    pub fn at(&self) -> Option<Line> {
        self.lines.first()?.at
    }

    /// The difference as a part of the others' waits, in percent.
    pub fn percent(&self) -> u32 {
        let part = self.less.value / self.other_waits.value.max(f64::MIN_POSITIVE);
        (100.0 * part).round() as u32
    }
}

/// A line at which a rank spends more time on the host than the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowLine {
    pub phase: Phase,
    pub at: Option<Line>,
    /// How much more, as a share of the time.
    pub share: f64,
}

/// A rank, and its training thread.
struct Rank<'p> {
    process: ProcessId,
    own: Vec<&'p ProfileSample>,
    steps: Vec<Step>,
}

/// What a rank does, as shares of the time in which all step.
struct Times {
    process: ProcessId,
    /// Waits for its device or for other ranks.
    waits: Share,
    /// The same with launches, which wait, too, where the launch queue is full.
    waits_or_launches: Share,
    /// The rest by phase and line.
    host: FxHashMap<Place, f64>,
}

/// A phase and a line.
type Place = (Phase, Option<Line>);

/// The categories of a rank's time.
const WAITS: usize = 0;
const WAITS_OR_LAUNCHES: usize = 1;

/// The rank of the first job in `processes` that arrives last; `None` if there is none, or that
/// cannot be told.
pub fn slow_rank(
    profile: &Profile,
    tracks: &TrackSummary,
    processes: &[ProcessSummary],
) -> Option<SlowRank> {
    let Together {
        ranks,
        from_ns,
        to_ns,
        steps,
    } = together(profile, processes)?;
    let mut times: Vec<Times> = ranks
        .iter()
        .map(|rank| times(profile, rank, from_ns, to_ns))
        .collect();
    times.sort_by(|a, b| a.waits.value.total_cmp(&b.waits.value));
    let (slow, others) = times.split_first()?;
    let other = others.first()?;
    let less = other.waits.minus(&slow.waits);
    // A rank whose script never asks for a result waits where the launch queue is full, and seems
    // to launch.
    let surely = others
        .iter()
        .map(|other| other.waits_or_launches.minus(&slow.waits_or_launches))
        .all(|less| less.low > 0.0);
    if less.value < NOTABLE || less.low <= 0.0 || !surely {
        return None;
    }
    let busy = |process| {
        let device = device_of(tracks, process).ok()?;
        device.mean(profile, TrackKind::Utilization, from_ns..to_ns)
    };
    let device_idles =
        (busy(other.process).zip(busy(slow.process))).map(|(other, slow)| other - slow);
    let is_late = match device_idles {
        Some(idles) => idles >= IDLE * less.value,
        None => slow.waits.value <= HARDLY,
    };
    if !is_late {
        return None;
    }
    Some(SlowRank {
        process: slow.process,
        waits: slow.waits,
        other: other.process,
        other_waits: other.waits,
        less,
        step_ns: steps.map(|steps| (to_ns - from_ns) as f64 / steps as f64),
        device_idles,
        lines: lines(slow, others, less.value),
    })
}

/// A device that computes while those of all other ranks are busy with kernels that use less of
/// them: they spin in a collective until it comes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowDevice {
    pub process: ProcessId,
    /// What was measured: [`TrackKind::SmActive`], or [`TrackKind::Power`] as a share of the limit.
    pub kind: TrackKind,
    /// Its figure, 0 to 1, and the largest of the others.
    pub value: f64,
    pub others: f64,
}

/// The slow device of the first job in `processes`; `None` if there is none, or that cannot be
/// told.
pub fn slow_device(
    profile: &Profile,
    tracks: &TrackSummary,
    processes: &[ProcessSummary],
) -> Option<SlowDevice> {
    /// The slow one must have this much more than the others.
    const MORE: f64 = 0.2;
    let all = together(profile, processes)?;
    let mean = |device: &Device, kind| device.mean(profile, kind, all.from_ns..all.to_ns);
    let mut devices = Vec::with_capacity(all.ranks.len());
    for rank in &all.ranks {
        let device = device_of(tracks, rank.process).ok()?;
        if mean(device, TrackKind::Utilization)? < BUSY {
            return None;
        }
        devices.push((rank.process, device));
    }
    let of_limit = |device: &Device| {
        let limit_w = device.info.power_limit_mw as f64 / 1e3;
        let watts = mean(device, TrackKind::Energy).or(mean(device, TrackKind::Power))?;
        (limit_w > 0.0).then(|| watts / limit_w)
    };
    let measured = |kind| -> Option<Vec<(ProcessId, f64)>> {
        let figures = devices.iter().map(|&(process, device)| {
            let figure = match kind {
                TrackKind::Power => of_limit(device),
                kind => mean(device, kind),
            };
            Some((process, figure?))
        });
        figures.collect()
    };
    let mut kinds = [TrackKind::SmActive, TrackKind::Power].into_iter();
    let (kind, mut figures) = kinds.find_map(|kind| Some((kind, measured(kind)?)))?;
    figures.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (&(process, value), others) = figures.split_first()?;
    let others = others.first()?.1;
    (value >= others + MORE).then_some(SlowDevice {
        process,
        kind,
        value,
        others,
    })
}

/// Ranks that step alike, and the time in which all of them do.
struct Together<'p> {
    ranks: Vec<Rank<'p>>,
    from_ns: u64,
    to_ns: u64,
    /// Steps of a rank in that time; `None` if those of a rank are not counted.
    steps: Option<u64>,
}

/// The ranks of the first job, if they step alike. Where steps are not counted, collectives keep
/// ranks together; they step from the first backward to the last.
fn together<'p>(profile: &'p Profile, processes: &'p [ProcessSummary]) -> Option<Together<'p>> {
    let ranks = ranks(profile, processes)?;
    let counted = ranks.iter().all(|rank| !rank.steps.is_empty());
    let span = |rank: &Rank<'_>| match counted {
        true => Some((rank.steps.first()?.start_ns, rank.steps.last()?.end_ns)),
        false => {
            let is_backward = |sample: &&&ProfileSample| sample.phase == Phase::Backward;
            let first = rank.own.iter().find(is_backward)?;
            let last = rank.own.iter().rfind(is_backward)?;
            Some((first.start_ns, last.start_ns + last.weight_ns))
        }
    };
    let spans: Vec<(u64, u64)> = ranks.iter().map(span).collect::<Option<_>>()?;
    let from_ns = spans.iter().map(|span| span.0).max()?;
    let to_ns = spans.iter().map(|span| span.1).min()?;
    let mut steps = None;
    if counted {
        let counts = ranks.iter().map(|rank| {
            let within = |step: &&Step| from_ns < step.end_ns && step.end_ns <= to_ns;
            rank.steps.iter().filter(within).count() as u64
        });
        let (least, most) = (counts.clone().min()?, counts.max()?);
        let alike = (most - least) as f64 <= SLACK as f64 + ALIKE * least as f64;
        steps = Some(most).filter(|_| least >= FEW_STEPS && alike);
    }
    (from_ns < to_ns && steps.is_some() == counted).then_some(Together {
        ranks,
        from_ns,
        to_ns,
        steps,
    })
}

/// The ranks of the first job; `None` if there are not several, or if one of them does not
/// communicate over NCCL.
fn ranks<'p>(profile: &'p Profile, processes: &'p [ProcessSummary]) -> Option<Vec<Rank<'p>>> {
    let mut of_job: Option<Job<'_>> = None;
    let mut ranks = Vec::new();
    for process in processes.iter().filter(|process| process.wall_ns > 0) {
        let Some(own_job) = job(profile, process.process) else {
            continue;
        };
        if *of_job.get_or_insert_with(|| own_job.clone()) != own_job {
            continue;
        }
        if !process.nccl || !profile.run.reads_running_native() {
            return None;
        }
        ranks.push(Rank {
            process: process.process,
            own: super::of_thread(profile, process.training_thread?),
            steps: steps(profile, process.process),
        });
    }
    (ranks.len() > 1).then_some(ranks)
}

fn times(profile: &Profile, rank: &Rank<'_>, from_ns: u64, to_ns: u64) -> Times {
    let timeline = Timeline::new(rank.own.iter().copied());
    let pieces: Vec<Piece<'_>> = timeline.within(from_ns, to_ns).collect();
    let wall_ns: u64 = pieces.iter().map(Piece::length_ns).sum();
    let ticks = pieces.iter().map(|piece| u64::from(piece.ticks())).sum();
    let mut shares = Shares::new(wall_ns, ticks, 2);
    let mut host: FxHashMap<Place, f64> = FxHashMap::default();
    for piece in &pieces {
        // A thread that spins for its device and lacks a CPU meanwhile waits all the same.
        let ns = piece.length_ns();
        let kind = piece.sample.wait.map(|wait| wait.kind);
        let waits = matches!(
            kind,
            Some(WaitKind::GpuSync | WaitKind::GpuCopy | WaitKind::Collective)
        );
        let launches = matches!(
            piece.sample.activity,
            Activity::GpuLaunch | Activity::GpuAlloc
        );
        let parts: &[(usize, u64)] = match (waits, launches) {
            (true, _) => &[(WAITS, ns), (WAITS_OR_LAUNCHES, ns)],
            (false, true) => &[(WAITS_OR_LAUNCHES, ns)],
            (false, false) => &[],
        };
        shares.add(ns, piece.ticks(), parts);
        if !waits {
            let line = profile.facts.line(piece.sample.stack);
            let part = ns as f64 / wall_ns.max(1) as f64;
            *host.entry((piece.sample.phase, line)).or_default() += part;
        }
    }
    Times {
        process: rank.process,
        waits: shares.share(WAITS),
        waits_or_launches: shares.share(WAITS_OR_LAUNCHES),
        host,
    }
}

fn lines(slow: &Times, others: &[Times], less: f64) -> Vec<SlowLine> {
    let median = |place: &Place| {
        let of = |other: &Times| other.host.get(place).copied().unwrap_or(0.0);
        let mut all: Vec<f64> = others.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(0.0)
    };
    let more: Vec<SlowLine> = (slow.host.iter())
        .map(|(place, share)| SlowLine {
            phase: place.0,
            at: place.1,
            share: share - median(place),
        })
        .filter(|line| line.share > 0.0)
        .collect();
    let mut of_function: FxHashMap<Option<FunctionId>, f64> = FxHashMap::default();
    for line in &more {
        *of_function.entry(line.at.map(|at| at.0)).or_default() += line.share;
    }
    let order = |share: f64| Reverse((share * 1e9) as u64);
    let mut listed: Vec<SlowLine> = more
        .into_iter()
        .filter(|line| line.share >= WORTH * less)
        .collect();
    listed.sort_by_key(|line| {
        let function = line.at.map(|at| at.0);
        let whole = of_function.get(&function).copied().unwrap_or(0.0);
        (order(whole), function, order(line.share), line.at)
    });
    listed.truncate(MOST_LINES);
    listed
}
