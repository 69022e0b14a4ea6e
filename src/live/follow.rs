//! What each rank of a session does, as parts that add up: for counters that only grow.
//!
//! A segment is resolved together with those before it, which readings and waits at its start refer
//! to. Each part of a training thread's time is counted once.

use super::store::Resolve;
use crate::analysis::energy::curve::Curve;
use crate::analysis::energy::energy;
use crate::analysis::gpu_overlay::{self, GpuIdle, Subject, device_of};
use crate::analysis::progress::running::{EndedSteps, RunningSteps};
use crate::analysis::progress::window::restrict_to;
use crate::analysis::summary::parts;
use crate::analysis::tracks::{Device, summarize};
use crate::model::category::{Phase, SummaryRow};
use crate::model::ids::{ProcessId, ThreadId};
use crate::model::process::ProcessInfo;
use crate::model::profile::{Profile, ProfileSample, Role};
use crate::model::run::RunInfo;
use crate::model::segment::Segment;
use crate::model::track::{CounterTracks, GpuInfo, TrackKind};
use crate::model::wait::WaitKind;
use crate::recording::recording_of;
use crate::torch::rules::RuleSet;
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};

/// How many segments before the newest are kept at least.
const BEFORE: usize = 1;
/// Length of the past that is kept until it is known what counts the steps.
const LONGEST_PAST_NS: u64 = 300_000_000_000;
/// Readings of devices come later than samples: the last of a segment count with the next.
const DEVICES_LATE_NS: u64 = 2_000_000_000;
/// Maximum number of processes that are followed: pids are reused without end.
const MOST_PROCESSES: usize = 4096;
/// The share of a device's time or energy that no phase can be named for.
pub const UNRESOLVED: &str = "unresolved";

/// What a segment adds to the figures of a rank. What was not measured is `None` or missing.
#[derive(Clone, Debug)]
pub struct RankPart {
    pub info: ProcessInfo,
    pub role: Role,
    /// Wall time of the training thread by phase, ns.
    pub phases: BTreeMap<String, u64>,
    /// The part of it in which the thread waited, by what for, ns.
    pub waits: BTreeMap<WaitKind, u64>,
    /// The part of it that no rule classified, ns.
    pub unclassified_ns: u64,
    /// Steps of the optimizer; `None` as long as no counter of them is known.
    pub steps: Option<Vec<EndedSteps>>,
    pub gpu: Option<GpuPart>,
    /// What torch's allocator holds of each device, by the process's name of it (`cuda:0`): levels
    /// as last read, counts of the segment.
    pub allocators: Allocators,
    /// Since when the training thread is at the same line, CLOCK_MONOTONIC.
    pub at_one_line_since_ns: u64,
}

/// What a segment adds to the figures of a rank's device.
#[derive(Clone, Debug)]
pub struct GpuPart {
    pub info: GpuInfo,
    /// Energy by phase of the host, J.
    pub energy: BTreeMap<String, f64>,
    /// Time without a kernel by phase of the host, ns.
    pub idle: BTreeMap<String, f64>,
}

/// A session that is followed.
pub struct Follower {
    run: RunInfo,
    resolve: Resolve,
    rules: &'static RuleSet,
    segments: VecDeque<Segment>,
    /// By pid, with what names the process.
    ranks: BTreeMap<i32, Rank>,
    /// Until when figures of devices were taken.
    devices_ns: u64,
    /// What torch's allocators hold of processes that were no trainers yet, by pid.
    allocators: BTreeMap<i32, Allocators>,
}

#[derive(Clone, Debug, Default)]
struct Rank {
    start_ticks: u64,
    training_tid: Option<i32>,
    /// Until when its samples were taken.
    taken_ns: u64,
    steps: RunningSteps,
    /// The lines of its stack, and since when it has been there.
    line: Option<(u64, u64)>,
}

impl Follower {
    pub fn new(run: RunInfo, resolve: Resolve, rules: &'static RuleSet) -> Self {
        Self {
            run,
            resolve,
            rules,
            segments: VecDeque::new(),
            ranks: BTreeMap::new(),
            devices_ns: 0,
            allocators: BTreeMap::new(),
        }
    }

    /// The head of the session.
    pub fn run(&self) -> &RunInfo {
        &self.run
    }

    /// Adds a segment; returns what it adds to the figures of each trainer.
    pub fn add(&mut self, segment: Segment) -> Vec<RankPart> {
        let (end_ns, is_last) = (segment.end_ns, segment.last);
        let holders = take_allocators(&mut self.allocators, &segment.sideband.tracks);
        // Of one that has ended, or is no trainer for long, nothing is kept.
        self.allocators.retain(|pid, _| holders.contains(pid));
        if self.devices_ns == 0 {
            self.devices_ns = segment.start_ns;
        }
        self.segments.push_back(segment);
        let recording = recording_of(self.run.clone(), self.segments.iter().cloned().collect());
        let mut profile = (self.resolve)(&recording, self.rules);
        let mut trainers = Vec::new();
        let mut found = Vec::new();
        for at in 0..profile.processes.len() {
            let id = ProcessId::from_index(at);
            if let Some((thread, mut part)) = self.rank(&profile, id, end_ns) {
                part.allocators = self.allocators.remove(&part.info.pid).unwrap_or_default();
                trainers.push((id, thread));
                found.push(part);
            }
        }
        self.devices(&mut profile, &trainers, &mut found, end_ns, is_last);
        self.forget(end_ns);
        found
    }

    fn rank(
        &mut self,
        profile: &Profile,
        id: ProcessId,
        end_ns: u64,
    ) -> Option<(ThreadId, RankPart)> {
        let process = profile.process(id)?;
        if !matches!(process.role, Role::Trainer { .. }) {
            return None;
        }
        let info = &process.info;
        if self.ranks.len() >= MOST_PROCESSES && !self.ranks.contains_key(&info.pid) {
            return None;
        }
        let rank = self.ranks.entry(info.pid).or_default();
        if rank.start_ticks != info.start_ticks {
            *rank = Rank {
                start_ticks: info.start_ticks,
                ..Rank::default()
            };
        }
        let thread = rank.training_thread(profile, id)?;
        let mut part = RankPart {
            info: info.clone(),
            role: process.role,
            phases: BTreeMap::new(),
            waits: BTreeMap::new(),
            unclassified_ns: 0,
            steps: None,
            gpu: None,
            allocators: BTreeMap::new(),
            at_one_line_since_ns: end_ns,
        };
        let own = crate::analysis::of_thread(profile, thread);
        rank.take(profile, &own, &mut part);
        let steps = rank.steps.add(profile, id);
        part.steps = rank.steps.is_counting().then_some(steps);
        if let Some((_, since_ns)) = rank.line {
            part.at_one_line_since_ns = since_ns;
        }
        Some((thread, part))
    }

    /// Adds the figures of devices, as far as their readings have come.
    fn devices(
        &mut self,
        profile: &mut Profile,
        trainers: &[(ProcessId, ThreadId)],
        found: &mut [RankPart],
        end_ns: u64,
        is_last: bool,
    ) {
        let gpus = &profile.sideband.tracks.gpus;
        if !gpus.iter().any(|gpu| gpu.recorded) {
            self.devices_ns = end_ns;
            return;
        }
        let late_ns = if is_last { 0 } else { DEVICES_LATE_NS };
        let (from_ns, to_ns) = (self.devices_ns, end_ns.saturating_sub(late_ns));
        let since = |ns: u64| ns.saturating_sub(profile.start_ns);
        let (from, to) = (since(from_ns), since(to_ns));
        if from >= to || restrict_to(profile, from, to).is_err() {
            return;
        }
        self.devices_ns = to_ns;
        let tracks = summarize(profile);
        let energies = energy(profile, &tracks, trainers);
        let idle = gpu_overlay::all(profile, &tracks, trainers);
        for ((id, _), part) in trainers.iter().zip(found) {
            let Ok(device) = device_of(&tracks, *id) else {
                continue;
            };
            let of_phases = energies.ranks.iter().find(|rank| rank.process == *id);
            let phases = of_phases.map_or(&[][..], |rank| &rank.phases);
            let resolved = phases.iter().filter_map(|phase| {
                let joules = phase.energy.as_ref()?.joules;
                Some((phase.phase.clone(), joules))
            });
            let all = energy_of(profile, device, from_ns, to_ns);
            let idle = idle.iter().find(|(process, _)| process == id);
            let idle = idle.and_then(|(_, idle)| idle.as_ref().ok());
            part.gpu = Some(GpuPart {
                info: device.info.clone(),
                energy: with_rest(resolved.collect(), all),
                idle: idle.map_or_else(BTreeMap::new, |idle| idle_of(profile, idle)),
            });
        }
    }

    /// Drops segments that nothing refers to any more, and processes that have ended.
    fn forget(&mut self, end_ns: u64) {
        let is_counting = self.ranks.values().all(|rank| rank.steps.is_counting());
        let oldest_ns = match is_counting {
            true => end_ns,
            false => end_ns.saturating_sub(LONGEST_PAST_NS),
        };
        while self.segments.len() > BEFORE
            && self
                .segments
                .front()
                .is_some_and(|front| front.end_ns <= oldest_ns)
        {
            self.segments.pop_front();
        }
        self.ranks
            .retain(|_, rank| rank.taken_ns.saturating_add(LONGEST_PAST_NS) > end_ns);
    }
}

impl Rank {
    /// The thread that trains. A short part of a run may not show it: the one of the part before
    /// stays until another one trains.
    fn training_thread(&mut self, profile: &Profile, id: ProcessId) -> Option<ThreadId> {
        let found = profile.process(id)?.training_thread;
        let known = self.training_tid.and_then(|tid| {
            let mut threads = profile.threads.iter();
            let at = threads.position(|thread| thread.process == id && thread.tid == tid)?;
            Some(ThreadId::from_index(at))
        });
        let trains = |thread: &ThreadId| {
            let own = crate::analysis::of_thread(profile, *thread);
            own.iter().any(|sample| {
                matches!(
                    sample.phase,
                    Phase::Forward | Phase::Backward | Phase::Optimizer
                )
            })
        };
        let thread = match known {
            Some(known) => found.filter(trains).or(Some(known)),
            None => found,
        }?;
        self.training_tid = profile.thread(thread).map(|thread| thread.tid);
        Some(thread)
    }

    /// Takes what was sampled since the last part.
    fn take(&mut self, profile: &Profile, own: &[&ProfileSample], part: &mut RankPart) {
        let mut lines = FxHashMap::default();
        for sample in own {
            let end_ns = sample.start_ns.saturating_add(sample.weight_ns);
            if end_ns <= self.taken_ns {
                continue;
            }
            let from_ns = sample.start_ns.max(self.taken_ns);
            let share = |ns: u64| match from_ns == sample.start_ns {
                true => ns,
                false => {
                    let left = u128::from(end_ns - from_ns) * u128::from(ns);
                    (left / u128::from(sample.weight_ns.max(1))) as u64
                }
            };
            let phase = profile.phase_name(sample.phase);
            let waits = [sample.wait.map(|wait| wait.kind), Some(WaitKind::Cpu)];
            for ((_, _, row, ns), wait) in parts(sample).into_iter().zip(waits) {
                let ns = share(ns);
                if ns == 0 {
                    continue;
                }
                *part.phases.entry(phase.to_owned()).or_default() += ns;
                if let Some(kind) = wait {
                    *part.waits.entry(kind).or_default() += ns;
                }
                if row == SummaryRow::Unclassified {
                    part.unclassified_ns += ns;
                }
            }
            let stack = sample.stack;
            let line = *lines.entry(stack).or_insert_with(|| {
                let mut hasher = FxHasher::default();
                for frame in profile.stacks.leaf_to_root(stack) {
                    let frame = profile.stacks.frame(frame);
                    let function = profile.function(frame.function);
                    if let Some(function) = function.filter(|function| function.is_python) {
                        (&function.name, &function.file, frame.line).hash(&mut hasher);
                    }
                }
                hasher.finish()
            });
            if self.line.is_none_or(|(known, _)| known != line) {
                self.line = Some((line, from_ns));
            }
            self.taken_ns = end_ns;
        }
    }
}

/// What allocators hold, by device and kind.
type Allocators = BTreeMap<(String, TrackKind), u64>;

/// Adds what torch's allocators hold to what was not taken yet, by pid. Returns whose they are.
fn take_allocators(all: &mut BTreeMap<i32, Allocators>, tracks: &CounterTracks) -> FxHashSet<i32> {
    let mut holders = FxHashSet::default();
    for point in &tracks.points {
        let info = tracks.tracks.get(point.track.index());
        let Some((info, (_, device))) =
            info.and_then(|info| Some((info, info.process.rsplit_once(' ')?)))
        else {
            continue;
        };
        if !info.kind.is_of_allocator() || holders.len() >= MOST_PROCESSES {
            continue;
        }
        holders.insert(info.pid);
        let is_count = matches!(
            info.kind,
            TrackKind::AllocatorRetries | TrackKind::AllocatorFailures
        );
        let of_process = all.entry(info.pid).or_default();
        let value = of_process
            .entry((device.to_owned(), info.kind))
            .or_default();
        *value = match is_count {
            true => value.saturating_add(point.value),
            false => point.value,
        };
    }
    holders
}

/// The energy of a device in an interval, J.
fn energy_of(profile: &Profile, device: &Device, from_ns: u64, to_ns: u64) -> Option<f64> {
    let figure = device.figure(TrackKind::Energy)?;
    let curve = Curve::new(profile, figure.track)?;
    Some(curve.between(from_ns, to_ns)?.joules)
}

/// What phases cannot be named for is what they leave of `all`.
fn with_rest(mut resolved: BTreeMap<String, f64>, all: Option<f64>) -> BTreeMap<String, f64> {
    let sum: f64 = resolved.values().sum();
    if let Some(rest) = all.map(|all| all - sum).filter(|rest| *rest > 0.0) {
        resolved.insert(UNRESOLVED.to_owned(), rest);
    }
    resolved
}

fn idle_of(profile: &Profile, idle: &GpuIdle) -> BTreeMap<String, f64> {
    let resolved = idle.rows.iter().filter_map(|row| match row.subject {
        Subject::Phase(phase) => Some((profile.phase_name(phase).to_owned(), row.part.amount)),
        Subject::Line(_) | Subject::Module(_) => None,
    });
    with_rest(
        resolved.collect(),
        idle.all.resolved.then_some(idle.all.amount),
    )
}
