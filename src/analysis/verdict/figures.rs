//! The figures that rules look at: of one trainer's training thread from the end of start-up on, of its workers, and of its device
//! over the same time. What was not seen is absent.

use crate::analysis::conditions::{Conditions, conditions};
use crate::analysis::gpu_overlay::device_of;
use crate::analysis::input_queue::Meanwhile;
use crate::analysis::intervals::{Share, Shares};
use crate::analysis::lanes::{Device, LaneSummary, spans};
use crate::analysis::of_thread;
use crate::analysis::stack_facts::{Line, StackFacts};
use crate::analysis::summary::ProcessSummary;
use crate::model::category::{Activity, Phase};
use crate::model::ids::ProcessId;
use crate::model::lane::{LaneKind, THROTTLE_SLOWS};
use crate::model::profile::{Profile, ProfileSample};
use crate::model::wait::WaitKind;
use crate::torch::rules::input::InputTask;
use rustc_hash::FxHashMap;

/// Share of a device's memory from which on another process is taken to compute on it: a desktop has less.
const OTHERS_MEMORY: f64 = 0.02;

/// What a moment of the training thread was, as far as verdicts go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// Waited for the next batch of the workers.
    InputWait,
    /// Made the next batch itself.
    InputOwn,
    /// Waited for work on the GPU.
    Sync,
    /// Waited for a copy to or from the GPU.
    Copy,
    /// Issued collectives, or waited in one.
    Communication,
    /// Could run, and had no CPU.
    NoCpu,
    /// Handed work to the GPU, or ran torch's machinery around operators.
    Dispatch,
    /// The interpreter, and waits for its lock.
    Python,
    /// Operators that computed on the host.
    Compute,
    /// Anything else.
    Other,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::InputWait,
        Self::InputOwn,
        Self::Sync,
        Self::Copy,
        Self::Communication,
        Self::NoCpu,
        Self::Dispatch,
        Self::Python,
        Self::Compute,
        Self::Other,
    ];
}

/// What the device did, mean over the time that the shares are of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceFigures {
    /// Share of time with any kernel, whoever's.
    pub busy: Option<f64>,
    /// The same over the windows of each part of the training thread's time, in the order of [`Part::ALL`]. Parts that are shorter
    /// than a window share it with their neighbours, and have the mean; long ones have their own.
    pub busy_meanwhile: Vec<Option<f64>>,
    /// Share of the training thread's time in windows in which the device had no time to spare.
    pub saturated: f64,
    /// Multiprocessors with a warp.
    pub sm: Option<f64>,
    /// Memory bandwidth, of what there is.
    pub dram: Option<f64>,
    /// Power, of the limit.
    pub power: Option<f64>,
    /// Share of time in which heat or the power supply held clocks down.
    pub hot: Option<f64>,
    /// The same of the power limit.
    pub capped: Option<f64>,
    /// Whether other processes have memory of it that is worth speaking of: what it did need not be this run's.
    pub shared: bool,
}

/// Ranks of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranks {
    /// Ranks in the job; 1 where there is no job.
    pub world: u32,
    /// Of these on this node; `None` where the environment does not say.
    pub node: Option<u32>,
    /// Ranks whose training thread was sampled.
    pub seen: u32,
}

impl Ranks {
    /// Whether all ranks of the job are in the recording.
    pub fn all_seen(self) -> bool {
        self.world <= 1 || self.seen >= self.world
    }

    /// Whether all ranks of this node are in the recording.
    pub fn node_seen(self) -> bool {
        self.world <= 1 || self.seen >= self.node.unwrap_or(self.world)
    }
}

/// The rank that the others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastRank {
    /// The process.
    pub process: ProcessId,
    /// Where it was meanwhile.
    pub at: Option<Line>,
    /// For how long it was waited for, in percent of the wait in collectives.
    pub percent: u32,
}

/// All of one trainer.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Shares of the training thread's time after start-up, in the order of [`Part::ALL`].
    pub shares: Vec<Share>,
    /// The line with most of each part, and how much of the part it has.
    pub lines: FxHashMap<usize, (Line, f64)>,
    /// The words for what was waited for there, of waits for the GPU.
    pub words: FxHashMap<usize, String>,
    /// Ticks that the shares are of.
    pub ticks: u64,
    /// Whether the process has CUDA.
    pub cuda: bool,
    /// Whether NCCL was seen.
    pub nccl: bool,
    /// Whether native frames were recorded. Without them all of torch is the Python that called it.
    pub native: bool,
    /// The device; `None` where none was recorded that the process is known to use.
    pub device: Option<DeviceFigures>,
    /// What workers did while they were waited for: busy, reading, without a CPU, as shares of their time.
    pub workers_busy: Option<f64>,
    /// See `workers_busy`.
    pub workers_read: f64,
    /// See `workers_busy`.
    pub workers_queue: f64,
    /// The workers' tasks, as shares of their time, most first.
    pub tasks: Vec<(InputTask, f64)>,
    /// Share of the training thread's time in input of its own in which it waited for a file or a socket.
    pub own_reads: f64,
    /// CPUs that all sampled processes used.
    pub cpus_used: Option<f64>,
    /// Present settings.
    pub conditions: Conditions,
    /// Mean step, ns.
    pub step_ns: Option<f64>,
    /// Ranks of the node.
    pub ranks: Ranks,
    /// Whom this rank waits for in collectives.
    pub last_rank: Option<LastRank>,
}

impl Figures {
    /// The share of a part.
    pub fn share(&self, part: Part) -> Share {
        self.shares.get(part as usize).copied().unwrap_or_default()
    }

    /// The value of a part's share.
    pub fn of(&self, part: Part) -> f64 {
        self.share(part).value
    }

    /// The line that most of the largest of these parts stands under, if it has a fifth of it.
    pub fn line(&self, parts: &[Part]) -> Option<Line> {
        const WORTH: f64 = 0.2;
        let largest = parts
            .iter()
            .max_by(|a, b| self.of(**a).total_cmp(&self.of(**b)))?;
        let &(line, share) = self.lines.get(&(*largest as usize))?;
        (share >= WORTH).then_some(line)
    }

    /// How busy the device was while the thread did this; `None` where that is not known.
    pub fn busy_meanwhile(&self, part: Part) -> Option<f64> {
        let busy = &self.device.as_ref()?.busy_meanwhile;
        busy.get(part as usize).copied().flatten()
    }

    /// CPUs that the process may use: what quota and affinity allow.
    pub fn cpus_allowed(&self) -> Option<f64> {
        let affinity = self.conditions.affinity_cpus.map(|cpus| cpus as f64);
        let least = |a: f64, b: f64| a.min(b);
        match (self.conditions.cpu_quota, affinity) {
            (Some(quota), Some(cpus)) => Some(least(quota, cpus)),
            (quota, cpus) => quota.or(cpus),
        }
    }
}

/// What the training thread of `summary` did, with what else there is.
pub fn figures(
    facts: &mut StackFacts<'_>,
    lanes: &LaneSummary,
    summary: &ProcessSummary,
    meanwhile: Option<&Meanwhile>,
) -> Figures {
    let profile = facts.profile();
    let mut figures = Figures {
        cuda: summary.cuda,
        nccl: summary.nccl,
        native: profile.run.native,
        conditions: conditions(profile, summary),
        step_ns: step_ns(summary),
        cpus_used: cpus_used(lanes),
        ..Figures::default()
    };
    let own = match summary.training_thread {
        Some(thread) => of_thread(profile, thread),
        None => Vec::new(),
    };
    let own = own.get(started(&own)..).unwrap_or_default();
    sum(facts, own, &mut figures);
    if let Some(first) = own.first() {
        figures.device = device_of(lanes, summary.process).ok().map(|device| {
            let mut found = device_figures(profile, device, summary.process, first.start_ns);
            meanwhile_of(facts, own, device, &mut found);
            found
        });
    }
    if let Some(meanwhile) = meanwhile {
        let share = |task| {
            let mut tasks = meanwhile.tasks.iter();
            tasks
                .find(|each| each.task == task)
                .map_or(0.0, |each| each.share.value)
        };
        figures.workers_busy = Some(meanwhile.busy.value);
        figures.workers_read = share(InputTask::Read);
        figures.workers_queue = share(InputTask::CpuWait);
        let tasks = meanwhile.tasks.iter();
        figures.tasks = tasks.map(|task| (task.task, task.share.value)).collect();
    }
    figures
}

/// Where start-up is over, which is paid once and no part of a step: the end of the first stretch that is mostly start-up. Modules
/// that are imported later do not count.
fn started(own: &[&ProfileSample]) -> usize {
    /// A moment of something else ends a stretch of as many of start-up.
    const OTHERS: i128 = 4;
    let (mut sum, mut best, mut until) = (0_i128, 0, 0);
    for (at, sample) in own.iter().enumerate() {
        let ns = i128::from(sample.weight_ns);
        sum += match sample.phase {
            Phase::Startup => ns,
            _ => -OTHERS * ns,
        };
        if sum > best {
            (best, until) = (sum, at + 1);
        }
    }
    until
}

fn step_ns(summary: &ProcessSummary) -> Option<f64> {
    let times = summary.progress.as_ref()?.times.as_ref()?;
    Some(times.mean_ns)
}

fn cpus_used(lanes: &LaneSummary) -> Option<f64> {
    let figures = lanes.processes.iter().flat_map(|process| &process.figures);
    let cpu = figures.filter(|figure| figure.kind == LaneKind::Cpu);
    let all: Vec<f64> = cpu.map(|figure| figure.mean).collect();
    (!all.is_empty()).then(|| all.iter().sum())
}

fn sum(facts: &mut StackFacts<'_>, own: &[&ProfileSample], figures: &mut Figures) {
    let wall_ns = own.iter().map(|sample| sample.weight_ns).sum();
    figures.ticks = own.iter().map(|sample| u64::from(sample.ticks)).sum();
    let mut shares = Shares::new(wall_ns, figures.ticks, Part::ALL.len());
    let mut lines: FxHashMap<(usize, Line), (u64, Option<usize>)> = FxHashMap::default();
    let mut totals = [0_u64; Part::ALL.len()];
    let mut reads_ns = 0_u64;
    for sample in own {
        let queue_ns = sample.queue_ns.min(sample.weight_ns);
        let wait = facts.wait(sample);
        let part = part(sample, wait.map(|(kind, _)| kind)) as usize;
        let own_ns = sample.weight_ns - queue_ns;
        shares.add(
            sample.weight_ns,
            sample.ticks,
            &[(part, own_ns), (Part::NoCpu as usize, queue_ns)],
        );
        totals[part] = totals[part].saturating_add(own_ns);
        let reads = sample.activity == Activity::Io
            || matches!(wait, Some((WaitKind::Disk | WaitKind::Socket, _)));
        if part == Part::InputOwn as usize && reads {
            reads_ns = reads_ns.saturating_add(own_ns);
        }
        if let Some(line) = facts.line(sample.stack) {
            let (ns, words) = lines.entry((part, line)).or_default();
            *ns = ns.saturating_add(own_ns);
            *words = words.or(wait.map(|(_, words)| words));
        }
    }
    let own_input_ns = totals[Part::InputOwn as usize];
    figures.own_reads = reads_ns as f64 / own_input_ns.max(1) as f64;
    figures.shares = (0..Part::ALL.len())
        .map(|part| shares.share(part))
        .collect();
    let mut lines: Vec<_> = lines.into_iter().collect();
    lines.sort_by_key(|&((part, line), (ns, _))| (part, std::cmp::Reverse(ns), line));
    for ((part, line), (ns, words)) in lines {
        if figures.lines.contains_key(&part) {
            continue;
        }
        let share = ns as f64 / totals[part].max(1) as f64;
        figures.lines.insert(part, (line, share));
        if let Some(words) = words {
            figures.words.insert(part, facts.words(words).to_owned());
        }
    }
}

fn part(sample: &ProfileSample, wait: Option<WaitKind>) -> Part {
    match wait {
        Some(WaitKind::Input) => return Part::InputWait,
        Some(WaitKind::GpuSync) => return Part::Sync,
        Some(WaitKind::GpuCopy) => return Part::Copy,
        Some(WaitKind::Collective) => return Part::Communication,
        // Autograd's threads hand the backward pass to the GPU.
        Some(WaitKind::Autograd) => return Part::Dispatch,
        _ => {}
    }
    if sample.phase == Phase::Input {
        return Part::InputOwn;
    }
    match sample.activity {
        // To take memory from the driver or give it back is to wait for the device (CUDA runtime, cudaFree, cudaMalloc).
        Activity::GpuSync | Activity::GpuAlloc => Part::Sync,
        Activity::GpuCopy => Part::Copy,
        Activity::CollectiveCall | Activity::CollectiveWait => Part::Communication,
        Activity::CpuWait => Part::NoCpu,
        Activity::GpuLaunch | Activity::Dispatch | Activity::Autograd => Part::Dispatch,
        Activity::Python | Activity::GilWait => Part::Python,
        Activity::AtenCompute | Activity::Gemm | Activity::OmpIdle => Part::Compute,
        _ => Part::Other,
    }
}

/// How busy the device was in each part of the thread's time.
fn meanwhile_of(
    facts: &mut StackFacts<'_>,
    own: &[&ProfileSample],
    device: &Device,
    figures: &mut DeviceFigures,
) {
    figures.busy_meanwhile = vec![None; Part::ALL.len()];
    let Some(figure) = device.figure(LaneKind::Utilization) else {
        return;
    };
    let windows = spans(facts.profile(), figure.lane);
    let mut sums = [(0.0, 0.0); Part::ALL.len()];
    let (mut saturated_ns, mut all_ns) = (0.0, 0.0);
    for sample in own {
        let at_ns = sample.start_ns + sample.weight_ns / 2;
        let next = windows.partition_point(|window| window.end_ns <= at_ns);
        let Some(window) = windows.get(next).filter(|window| window.start_ns <= at_ns) else {
            continue;
        };
        let kind = facts.wait(sample).map(|(kind, _)| kind);
        let ns = sample.weight_ns as f64;
        let (sum, length) = &mut sums[part(sample, kind) as usize];
        *sum += window.value * ns;
        *length += ns;
        all_ns += ns;
        if window.value >= super::rules::BUSY {
            saturated_ns += ns;
        }
    }
    for (busy, (sum, length)) in figures.busy_meanwhile.iter_mut().zip(sums) {
        *busy = (length > 0.0).then(|| sum / length);
    }
    figures.saturated = if all_ns > 0.0 {
        saturated_ns / all_ns
    } else {
        0.0
    };
}

fn device_figures(
    profile: &Profile,
    device: &Device,
    process: ProcessId,
    from_ns: u64,
) -> DeviceFigures {
    let mean = |kind| {
        let figure = device.figure(kind)?;
        let (mut sum, mut length) = (0.0, 0.0);
        for span in spans(profile, figure.lane) {
            let start_ns = span.start_ns.max(from_ns);
            if start_ns < span.end_ns {
                let ns = (span.end_ns - start_ns) as f64;
                sum += span.value * ns;
                length += ns;
            }
        }
        (length > 0.0).then(|| sum / length)
    };
    let limit_w = device.info.power_limit_mw as f64 / 1e3;
    let watts = mean(LaneKind::Energy).or(mean(LaneKind::Power));
    const CAP: u64 = 0x4;
    let held = |bits: u64| {
        let reasons = device.throttled.as_ref()?.iter();
        let held = reasons.filter(|(bit, _)| bit & bits != 0);
        // Two reasons at a time are not told apart from one after the other.
        Some(held.map(|(_, share)| *share).fold(0.0, f64::max))
    };
    DeviceFigures {
        busy: mean(LaneKind::Utilization),
        sm: mean(LaneKind::SmActive),
        dram: mean(LaneKind::DramActive),
        power: watts.filter(|_| limit_w > 0.0).map(|watts| watts / limit_w),
        hot: held(THROTTLE_SLOWS & !CAP),
        capped: held(CAP),
        shared: device.processes.iter().any(|user| {
            let is_much =
                |bytes: u64| bytes as f64 >= OTHERS_MEMORY * device.info.memory_bytes as f64;
            user.process != Some(process) && !user.hinted && user.memory_bytes.is_none_or(is_much)
        }),
        busy_meanwhile: Vec::new(),
        saturated: 0.0,
    }
}
