//! Sums of the last seconds and of the session, and the state of the run.

use super::chunk::{ChunkProcess, ChunkThread, chunk};
use super::sums::ThreadSums;
use crate::analysis::progress::StepUnit;
use crate::analysis::{Analysis, analyze};
use crate::model::ids::GpuId;
use crate::model::process::ProcessInfo;
use crate::model::profile::{Profile, Role};
use crate::model::progress::CounterKind;
use crate::model::run::RunInfo;
use crate::model::segment::Segment;
use crate::model::track::{CounterTracks, GpuInfo, SHARE_ONE, TrackKind};
use crate::recording::{Recording, recording_of};
use crate::report::text::verdict_line;
use crate::torch::rules::RuleSet;
use std::collections::{BTreeMap, VecDeque};

pub const NOW_NS: u64 = 5_000_000_000;
/// Length of the recent past that is kept: for a flame graph, and for figures that need more than
/// the last seconds.
pub const KEPT_NS: u64 = 60_000_000_000;
/// Length of the interval of the outlook, and how often it is computed.
const OUTLOOK_NS: u64 = 30_000_000_000;
const OUTLOOK_EVERY_NS: u64 = 3_000_000_000;
/// Threads and processes that were not seen for this long are dropped.
const GONE_NS: u64 = 3_000_000_000;
/// Maximum number of processes and counters: pids are reused without end.
const MOST_PROCESSES: usize = 4096;
const MOST_COUNTERS: usize = 64;

/// Names and classifies a recording.
pub type Resolve = fn(&Recording, &'static RuleSet) -> Profile;

/// Steps of a process, over the last half minute.
#[derive(Clone, Debug, PartialEq)]
pub struct Pace {
    pub unit: StepUnit,
    pub steps_per_s: f64,
    /// 95th percentile of a step's length, ns, where steps are long enough.
    pub p95_ns: Option<u64>,
    /// Samples of the dataset a second, in this process.
    pub samples_per_s: Option<f64>,
}

/// A counter of the target at its last reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    pub value: u64,
    /// When it last changed, CLOCK_MONOTONIC.
    pub changed_ns: u64,
}

#[derive(Clone, Debug)]
pub struct LiveProcess {
    pub info: ProcessInfo,
    pub role: Role,
    /// The tid of the thread that trains.
    pub training_tid: Option<i32>,
    /// Times of that thread in the last seconds.
    pub now: ThreadSums,
    /// Times since the start, or since the last reset.
    pub since: ThreadSums,
    /// Its threads, by tid, and when each was last seen.
    pub threads: BTreeMap<i32, (ChunkThread, u64)>,
    /// Counters by kind and number.
    pub counters: BTreeMap<(CounterKind, u32), Counter>,
    pub pace: Option<Pace>,
    /// CPUs in use.
    pub cpus: Option<f64>,
    /// Resident memory, bytes.
    pub resident: Option<u64>,
    /// When it was last seen, CLOCK_MONOTONIC.
    pub seen_ns: u64,
}

/// A value of a device's counter track: the end of its window, and a figure in the counter track's
/// unit.
pub type Value = (u64, u64);

#[derive(Clone, Debug)]
pub struct LiveDevice {
    pub info: GpuInfo,
    /// Utilization, millionths, over the last minute.
    pub utilization: VecDeque<Value>,
    pub power_mw: Option<u64>,
    /// Memory in use, bytes.
    pub memory: Option<u64>,
}

/// Figures that need more than the last seconds.
#[derive(Clone, Debug, Default)]
pub struct Outlook {
    pub verdict: Option<String>,
    /// torchspy's own CPU time, as a share of one CPU.
    pub own_cpu: f64,
    /// Ticks per second that were carried out.
    pub rate_hz: f64,
    /// Stopped time over the time in which sampled threads ran.
    pub stopped: f64,
}

/// A session in progress.
#[derive(Clone, Debug)]
pub struct Live {
    pub run: RunInfo,
    pub processes: BTreeMap<i32, LiveProcess>,
    pub devices: Vec<LiveDevice>,
    /// Why there is no device.
    pub no_device: Option<String>,
    pub outlook: Outlook,
    /// The pid that represents the job: the first rank, or the process that trains.
    pub primary: Option<i32>,
    /// Start and end, CLOCK_MONOTONIC.
    pub start_ns: u64,
    pub end_ns: u64,
    resolve: Resolve,
    rules: &'static RuleSet,
    segments: VecDeque<Segment>,
    /// Parts of `now`: the end of each segment, and the times of each pid in it.
    recent: VecDeque<(u64, Vec<(i32, ThreadSums)>)>,
    looked_ahead_ns: u64,
}

impl Live {
    pub fn new(run: RunInfo, resolve: Resolve, rules: &'static RuleSet) -> Self {
        Self {
            run,
            processes: BTreeMap::new(),
            devices: Vec::new(),
            no_device: None,
            outlook: Outlook::default(),
            primary: None,
            start_ns: 0,
            end_ns: 0,
            resolve,
            rules,
            segments: VecDeque::new(),
            recent: VecDeque::new(),
            looked_ahead_ns: 0,
        }
    }

    /// Adds a segment.
    pub fn add(&mut self, segment: Segment) {
        if self.start_ns == 0 {
            self.start_ns = segment.start_ns;
        }
        self.end_ns = self.end_ns.max(segment.end_ns);
        let recording = recording_of(self.run.clone(), vec![segment.clone()]);
        self.segments.push_back(segment);
        let oldest_ns = self.end_ns.saturating_sub(KEPT_NS);
        let older = self
            .segments
            .partition_point(|segment| segment.end_ns < oldest_ns);
        self.segments.drain(..older);
        let profile = (self.resolve)(&recording, self.rules);
        if self.end_ns >= self.looked_ahead_ns + OUTLOOK_EVERY_NS || self.primary.is_none() {
            self.look_ahead();
        }
        self.take_processes(&profile);
        self.take_counters(&profile);
        self.take_tracks(&profile);
        self.forget();
    }

    /// Resets the sums since the start.
    pub fn reset(&mut self) {
        for process in self.processes.values_mut() {
            process.since = ThreadSums::default();
        }
    }

    pub fn last_minute(&self) -> Recording {
        recording_of(self.run.clone(), self.segments.iter().cloned().collect())
    }

    /// The process whose figures are shown: `chosen`, or the one that represents the job.
    pub fn shown(&self, chosen: Option<i32>) -> Option<&LiveProcess> {
        let pid = chosen.filter(|pid| self.processes.contains_key(pid));
        self.processes.get(&pid.or(self.primary)?)
    }

    fn look_ahead(&mut self) {
        self.looked_ahead_ns = self.end_ns;
        let from_ns = self.end_ns.saturating_sub(OUTLOOK_NS);
        let segments = self.segments.iter();
        let recent = segments
            .filter(|segment| segment.end_ns > from_ns)
            .cloned()
            .collect();
        let profile = (self.resolve)(&recording_of(self.run.clone(), recent), self.rules);
        let analysis = analyze(&profile);
        self.take_analysis(&profile, &analysis);
    }

    fn take_analysis(&mut self, profile: &Profile, analysis: &Analysis) {
        for summary in &analysis.processes {
            let Some(process) = profile.process(summary.process) else {
                continue;
            };
            let training = summary.training_thread;
            let training = training.and_then(|thread| Some(profile.thread(thread)?.tid));
            let live = self.process(&process.info);
            live.role = summary.role;
            live.training_tid = training.or(live.training_tid);
            live.pace = summary.progress.as_ref().and_then(|progress| {
                Some(Pace {
                    unit: progress.unit,
                    steps_per_s: progress.steps_per_s()?,
                    p95_ns: progress
                        .times
                        .as_ref()?
                        .spread
                        .as_ref()
                        .map(|spread| spread.p95_ns),
                    samples_per_s: progress.samples_per_s(),
                })
            });
        }
        let primary = analysis.primary();
        self.primary = primary.and_then(|found| Some(profile.process(found.process)?.info.pid));
        self.outlook = Outlook {
            verdict: analysis
                .verdict
                .as_ref()
                .map(|verdict| verdict_line(profile, verdict)),
            own_cpu: analysis.quality.own_cpu,
            rate_hz: analysis.quality.rate_hz,
            stopped: analysis.quality.stopped_share,
        };
    }

    /// The process with these facts; a new one if the pid was reused.
    fn process(&mut self, info: &ProcessInfo) -> &mut LiveProcess {
        let seen_ns = self.end_ns;
        let known = self.processes.get(&info.pid);
        if known.is_none_or(|known| known.info.start_ticks != info.start_ticks) {
            let fresh = LiveProcess {
                info: info.clone(),
                role: Role::Other,
                training_tid: None,
                now: ThreadSums::default(),
                since: ThreadSums::default(),
                threads: BTreeMap::new(),
                counters: BTreeMap::new(),
                pace: None,
                cpus: None,
                resident: None,
                seen_ns,
            };
            self.processes.insert(info.pid, fresh);
        }
        // Inserted above if it was missing.
        #[expect(clippy::unwrap_used)]
        self.processes.get_mut(&info.pid).unwrap()
    }

    fn take_processes(&mut self, profile: &Profile) {
        let end_ns = self.end_ns;
        let known = &self.processes;
        let training = |pid: i32| known.get(&pid)?.training_tid;
        let chunks = chunk(profile, training);
        let mut by_pid = Vec::new();
        for ChunkProcess {
            info,
            role,
            training_tid,
            sums,
            threads,
        } in chunks
        {
            let live = self.process(&info);
            if live.training_tid.is_none() {
                (live.role, live.training_tid) = (role, training_tid);
            }
            let has_samples = !threads.is_empty();
            live.info = info;
            if has_samples {
                live.seen_ns = end_ns;
            }
            for thread in threads {
                live.threads.insert(thread.tid, (thread, end_ns));
            }
            live.threads
                .retain(|_, (_, seen_ns)| *seen_ns + GONE_NS >= end_ns);
            live.now.add(&sums);
            live.since.add(&sums);
            by_pid.push((live.info.pid, sums));
        }
        self.recent.push_back((end_ns, by_pid));
        let past = self
            .recent
            .partition_point(|(then_ns, _)| then_ns + NOW_NS <= end_ns);
        for (pid, sums) in self.recent.drain(..past).flat_map(|(_, by_pid)| by_pid) {
            if let Some(process) = self.processes.get_mut(&pid) {
                process.now.take(&sums);
            }
        }
    }

    fn take_counters(&mut self, profile: &Profile) {
        for point in &profile.sideband.points {
            let Some(info) = profile.counters.get(point.counter.index()) else {
                continue;
            };
            let process = profile.process(info.process);
            let Some(live) = process.and_then(|process| self.processes.get_mut(&process.info.pid))
            else {
                continue;
            };
            if live.counters.len() >= MOST_COUNTERS {
                let oldest = live.counters.iter().min_by_key(|(_, each)| each.changed_ns);
                if let Some((&key, _)) = oldest {
                    live.counters.remove(&key);
                }
            }
            let counter = Counter {
                value: point.value,
                changed_ns: point.time_ns,
            };
            live.counters.insert((info.kind, info.number), counter);
        }
    }

    fn take_tracks(&mut self, profile: &Profile) {
        let CounterTracks {
            gpus,
            tracks,
            points,
            gaps,
            ..
        } = &profile.sideband.tracks;
        for info in gpus.iter().filter(|info| info.recorded) {
            if !self.devices.iter().any(|device| device.info == *info) {
                self.devices.push(LiveDevice {
                    info: info.clone(),
                    utilization: VecDeque::new(),
                    power_mw: None,
                    memory: None,
                });
            }
        }
        if let Some(gap) = gaps.iter().find(|gap| gap.gpu.is_none()) {
            self.no_device = Some(gap.reason.clone());
        }
        for point in points {
            let Some(track) = tracks.get(point.track.index()) else {
                continue;
            };
            match (track.gpu, self.processes.get_mut(&track.pid)) {
                (Some(gpu), _) => {
                    self.take_device(gpus, gpu, track.kind, (point.end_ns, point.value))
                }
                (None, Some(process)) => match track.kind {
                    TrackKind::Cpu if point.end_ns > point.start_ns => {
                        let window_ns = (point.end_ns - point.start_ns) as f64;
                        process.cpus = Some(point.value as f64 / window_ns);
                    }
                    TrackKind::Resident => process.resident = Some(point.value),
                    _ => {}
                },
                (None, None) => {}
            }
        }
        let oldest_ns = self.end_ns.saturating_sub(KEPT_NS);
        for device in &mut self.devices {
            let values = &mut device.utilization;
            values.drain(..values.partition_point(|(end_ns, _)| *end_ns < oldest_ns));
        }
    }

    fn take_device(&mut self, gpus: &[GpuInfo], gpu: GpuId, kind: TrackKind, value: Value) {
        let info = gpus.get(gpu.index());
        let mut devices = self.devices.iter_mut();
        let Some(device) = devices.find(|device| Some(&device.info) == info) else {
            return;
        };
        match kind {
            TrackKind::Utilization => {
                device
                    .utilization
                    .push_back((value.0, value.1.min(SHARE_ONE)));
            }
            TrackKind::Power => device.power_mw = Some(value.1),
            TrackKind::MemoryUsed => device.memory = Some(value.1),
            _ => {}
        }
    }

    /// Drops processes that have ended, and all but the newest if there are too many.
    fn forget(&mut self) {
        let (end_ns, root, primary) = (self.end_ns, self.run.pid, self.primary);
        self.processes.retain(|&pid, process| {
            let is_gone = process.info.exited && process.seen_ns + GONE_NS < end_ns;
            !is_gone || pid == root || Some(pid) == primary
        });
        while self.processes.len() > MOST_PROCESSES {
            let oldest = self
                .processes
                .iter()
                .filter(|(pid, _)| **pid != root && Some(**pid) != primary)
                .min_by_key(|(_, process)| process.seen_ns);
            match oldest.map(|(&pid, _)| pid) {
                Some(pid) => self.processes.remove(&pid),
                None => break,
            };
        }
    }
}
