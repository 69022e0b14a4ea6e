//! The figures that the rules use: of one trainer's training thread from the end of start-up on, of
//! its workers, and of its device over the same time. A figure that was not measured is absent.

use super::Cause;
use crate::analysis::conditions::{Conditions, conditions};
use crate::analysis::gpu_overlay::device_of;
use crate::analysis::input_queue::{WorkerActivity, worker_threads};
use crate::analysis::intervals::{Share, Shares};
use crate::analysis::of_thread;
use crate::analysis::summary::{ProcessSummary, trained};
use crate::analysis::threads::OPENMP_WORKER;
use crate::analysis::timeline::Timeline;
use crate::analysis::tracks::{Device, Span, TrackSummary, spans};
use crate::analysis::waits::ProcessWaits;
use crate::model::category::{Activity, ActivityGroup, Phase, SummaryRow};
use crate::model::compile::CompileMark;
use crate::model::facts::Line;
use crate::model::ids::{NameId, ProcessId, ThreadId};
use crate::model::input::InputTask;
use crate::model::profile::{Function, Profile, ProfileSample, Role};
use crate::model::sample::ThreadState;
use crate::model::text::file_name;
use crate::model::track::{THROTTLE_SLOWS, TrackKind};
use crate::model::wait::WaitKind;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::ops::Range;

/// Another process with at least this share of a device's memory is assumed to compute on it: a
/// desktop has less.
const OTHERS_MEMORY: f64 = 0.02;

/// What a sample of the training thread was doing, in the categories of verdicts.
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
    /// Waited for other OpenMP threads at the end of a parallel region.
    Barrier,
    /// torch.compile at work, not the compiled code.
    Compile,
    /// Anything else.
    Other,
}

impl Part {
    pub const ALL: [Self; 12] = [
        Self::InputWait,
        Self::InputOwn,
        Self::Sync,
        Self::Copy,
        Self::Communication,
        Self::NoCpu,
        Self::Dispatch,
        Self::Python,
        Self::Compute,
        Self::Barrier,
        Self::Compile,
        Self::Other,
    ];
}

/// Activity of the device, as means over the time that the shares are of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceFigures {
    /// Share of time with any kernel of any process.
    pub busy: Option<f64>,
    /// The same over the windows of each part of the training thread's time, in the order of
    /// [`Part::ALL`]. Parts shorter than a window share it with their neighbours, and have the
    /// mean; long ones have their own.
    pub busy_during: Vec<Option<f64>>,
    /// Share of the training thread's time in windows in which the device had no spare time.
    pub saturated: f64,
    /// Share of multiprocessors with an active warp.
    pub sm: Option<f64>,
    /// The same in windows in which it is least, and most: one of fifty has less, and one more.
    pub sm_range: Option<(f64, f64)>,
    /// Share of memory bandwidth.
    pub dram: Option<f64>,
    /// Power as a share of the limit.
    pub power: Option<f64>,
    /// Share of time in which heat or the power supply held clocks down.
    pub hot: Option<f64>,
    /// The same for the power limit.
    pub capped: Option<f64>,
    /// Whether other processes have a notable part of its memory: its activity need not be this
    /// run's.
    pub shared: bool,
}

/// What OpenMP's other threads did while the training thread waited for them at a barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BarrierFigures {
    /// Mean number of them that computed.
    pub computing: f64,
    /// Share of their time in which they were runnable without a CPU.
    pub without_cpu: f64,
}

/// Use of CPUs by the recorded processes, mean over the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuFigures {
    /// CPU time of all of them, in CPUs; `None` if it was not read.
    pub used: Option<f64>,
    /// Their threads that were running or runnable.
    pub wanted: f64,
    /// The same while the training thread or its workers waited for a CPU; `None` if they did not.
    pub wanted_in_waits: Option<f64>,
    /// Share of the time that these threads wanted a CPU in which they had none.
    pub lacking: f64,
    /// Their threads that spun at OpenMP barriers.
    pub spinning: f64,
    /// Share of the time in which the cgroup's quota throttled them.
    pub throttled: f64,
}

/// A program that the training script or its launcher started.
#[derive(Clone, Debug, PartialEq)]
pub struct Helper {
    /// Its file name.
    pub name: String,
    /// Number of its processes.
    pub processes: u64,
    /// CPU time of all of them, in CPUs, mean over the recording.
    pub cpus: f64,
}

/// Ranks of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranks {
    /// Ranks in the job; 1 without a job.
    pub world: u32,
    /// Ranks of the job on this node; `None` if the environment does not say.
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
    pub process: ProcessId,
    /// Its line at that time.
    pub at: Option<Line>,
    /// How long it was waited for, ns, and in percent of the wait in collectives.
    pub ns: u64,
    pub percent: u32,
}

/// All figures of one trainer.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Shares of the training thread's time after start-up, in the order of [`Part::ALL`].
    pub shares: Vec<Share>,
    /// The share of that time in which the thread had no CPU for each part, in the same order; all
    /// of it is [`Part::NoCpu`].
    pub queued: Vec<f64>,
    /// The line with most of each part, and its share of the part.
    pub lines: FxHashMap<usize, (Line, f64)>,
    /// For waits for the GPU the label of the wait at that line.
    pub labels: FxHashMap<usize, String>,
    /// Ticks that the shares are of.
    pub ticks: u64,
    /// Whether the process has CUDA.
    pub cuda: bool,
    /// Whether the training thread was seen to use the GPU; without native frames, whether it has
    /// CUDA.
    pub gpu_used: bool,
    /// Whether NCCL was seen.
    pub nccl: bool,
    /// Whether native frames of running threads were recorded. Without them all of torch counts as
    /// the Python that called it.
    pub native: bool,
    /// The device; `None` if none is known that the process uses.
    pub device: Option<DeviceFigures>,
    /// What workers did while the trainer waited for them: busy, reading, without a CPU, as shares
    /// of their time.
    pub workers_busy: Option<f64>,
    pub workers_read: f64,
    pub workers_queue: f64,
    /// The workers' tasks, as shares of their time, descending.
    pub tasks: Vec<(InputTask, f64)>,
    /// The share of all of their time in which workers make batches, with a CPU.
    pub workers_work: Option<f64>,
    /// The line at which workers are busy most, and its share of the time in which they are.
    pub workers_line: Option<(Line, f64)>,
    /// Share of the time in which the thread waited for the GIL, part of [`Part::Python`].
    pub gil: f64,
    /// Where the thread that held it most did so.
    pub gil_holder: Option<Line>,
    /// Whether code that torch.compile made was seen.
    pub compiled: bool,
    /// Share of the training thread's own input time in which it waited for a file or a socket.
    pub own_reads: f64,
    /// CPUs of all sampled processes.
    pub cpus: CpuFigures,
    /// Recorded programs that are neither trainers nor their workers, with the CPU time of their
    /// processes; descending.
    pub helpers: Vec<Helper>,
    /// CPUs of the machine that the recording was made on; 0 if unknown.
    pub host_cpus: u32,
    /// OpenMP threads that were seen in the process, including its training thread; `None` without
    /// native frames.
    pub omp_threads: Option<u64>,
    /// `None` if the training thread waited at no barrier, or no other OpenMP thread was sampled at
    /// the same time.
    pub barrier: Option<BarrierFigures>,
    /// Present settings.
    pub conditions: Conditions,
    /// Mean step, ns.
    pub step_ns: Option<f64>,
    /// Time of the steps that the mean is of, as a part of the time that the shares are of.
    pub in_steps: f64,
    /// Ranks of the node.
    pub ranks: Ranks,
    /// The rank that this rank waits for in collectives.
    pub last_rank: Option<LastRank>,
}

impl Figures {
    pub fn share(&self, part: Part) -> Share {
        self.shares.get(part as usize).copied().unwrap_or_default()
    }

    /// The value of a part's share.
    pub fn of(&self, part: Part) -> f64 {
        self.share(part).value
    }

    /// The share of the time that would go if these parts went: theirs, and that in which the
    /// thread had no CPU for them.
    pub fn gained(&self, parts: &[Part]) -> f64 {
        let queued = |part: &Part| self.queued.get(*part as usize).copied().unwrap_or(0.0);
        parts.iter().map(|part| self.of(*part) + queued(part)).sum()
    }

    /// The share of the time that remains without `cause`, since workers need it to make batches;
    /// `None` if the cause is theirs, or there are none.
    pub fn workers_limit(&self, cause: Cause) -> Option<f64> {
        let is_theirs = matches!(
            cause,
            Cause::InputWork | Cause::InputStorage | Cause::CpuStarved
        );
        self.workers_work.filter(|_| !is_theirs)
    }

    /// The line with most of the largest of these parts, if it has a fifth of it.
    pub fn line(&self, parts: &[Part]) -> Option<Line> {
        const WORTH: f64 = 0.2;
        let largest = parts
            .iter()
            .max_by(|a, b| self.of(**a).total_cmp(&self.of(**b)))?;
        let &(line, share) = self.lines.get(&(*largest as usize))?;
        (share >= WORTH).then_some(line)
    }

    /// How busy the device was during this part; `None` if unknown.
    pub fn busy_during(&self, part: Part) -> Option<f64> {
        let busy = &self.device.as_ref()?.busy_during;
        busy.get(part as usize).copied().flatten()
    }

    /// CPUs that the process may use: the minimum of quota, affinity and CPUs of the machine.
    pub fn cpus_allowed(&self) -> Option<f64> {
        let affinity = self.conditions.affinity_cpus.map(|cpus| cpus as f64);
        let machine = Some(f64::from(self.host_cpus)).filter(|&cpus| cpus > 0.0);
        let affinity = affinity.or(machine);
        let least = |a: f64, b: f64| a.min(b);
        match (self.conditions.cpu_quota, affinity) {
            (Some(quota), Some(cpus)) => Some(least(quota, cpus)),
            (quota, cpus) => quota.or(cpus),
        }
    }

    /// CPUs used and allowed. `None` if either is unknown, or if more are used than allowed: the
    /// processes may then run on other CPUs than this one.
    pub fn cpus_of_allowed(&self) -> Option<(f64, f64)> {
        /// Tolerance between two clocks.
        const CLOCKS: f64 = 1.02;
        let (used, allowed) = (self.cpus.used?, self.cpus_allowed()?);
        (used <= CLOCKS * allowed).then_some((used.min(allowed), allowed))
    }

    /// CPUs that more threads could use. None are left where the present threads lack some, however
    /// few are in use: others take them.
    pub fn cpus_free(&self) -> Option<f64> {
        let (used, allowed) = self.cpus_of_allowed()?;
        Some(match self.cpus.lacking >= super::rules::NO_CPU {
            true => 0.0,
            false => allowed - used,
        })
    }

    /// Whether the thread's time in Python is, for the most part, waits for the GIL.
    pub fn is_of_gil(&self) -> bool {
        self.gil > 0.5 * self.of(Part::Python)
    }

    /// Whether the recorded processes leave no CPU for the sampler, which then preempts them.
    pub fn every_cpu_is_wanted(&self) -> bool {
        /// Of as many threads as CPUs some sleep now and then.
        const NEARLY_ALL: f64 = 0.85;
        let allowed = self.cpus_allowed();
        allowed.is_some_and(|allowed| allowed > 0.0 && self.cpus.wanted >= NEARLY_ALL * allowed)
    }

    /// Threads that wanted a CPU while the training thread or its workers waited for one. If they
    /// are no more than the CPUs that the recorded processes may use, other processes have the
    /// missing CPUs. `None` if they want more, or are throttled.
    pub fn wanted_where_others_take_cpus(&self) -> Option<f64> {
        /// Tolerance for threads that are runnable only briefly.
        const SLACK: f64 = 0.05;
        let held = self.cpus.throttled >= super::rules::THROTTLED_CGROUP;
        let allowed = self.cpus_allowed();
        let wanted = self.cpus.wanted_in_waits.filter(|_| !held)?;
        (wanted <= allowed? + SLACK).then_some(wanted)
    }
}

/// The figures of the training thread of `summary`.
pub fn figures(
    profile: &Profile,
    tracks: &TrackSummary,
    summary: &ProcessSummary,
    waits: Option<&ProcessWaits>,
) -> Figures {
    let mut figures = Figures {
        cuda: summary.cuda,
        nccl: summary.nccl,
        native: profile.run.reads_running_native(),
        conditions: conditions(profile, summary),
        step_ns: step_ns(summary),
        cpus: cpus(profile, tracks),
        helpers: helpers(profile),
        host_cpus: profile.run.cpus,
        ..Figures::default()
    };
    let openmp: Vec<ThreadId> = summary
        .threads
        .iter()
        .filter(|thread| thread.role == OPENMP_WORKER)
        .map(|thread| thread.thread)
        .collect();
    figures.omp_threads = figures.native.then_some(openmp.len() as u64 + 1);
    let own = match summary.training_thread {
        Some(thread) => of_thread(profile, thread),
        None => Vec::new(),
    };
    let own = own.get(trained(&own)).unwrap_or_default();
    sum(profile, own, &mut figures);
    figures.in_steps = in_steps(summary, own);
    figures.gpu_used =
        figures.cuda && (!figures.native || own.iter().any(|sample| uses_gpu(sample)));
    figures.barrier = barrier(profile, own, &openmp);
    let workers_own: Vec<&ProfileSample> = worker_threads(profile, summary.process)
        .into_iter()
        .flat_map(|thread| of_thread(profile, thread))
        .collect();
    let all_own = own.iter().chain(&workers_own).copied();
    figures.cpus.wanted_in_waits = wanted_in_waits(profile, all_own);
    if let (Some(first), Some(last)) = (own.first(), own.last()) {
        figures.workers_work = work(&workers_own, first.start_ns);
        // The interpreter's exit, in which the device has nothing to do, is no training.
        let trained = first.start_ns..last.start_ns.saturating_add(last.weight_ns);
        figures.device = device_of(tracks, summary.process).ok().map(|device| {
            let mut found = device_figures(profile, device, summary.process, &trained);
            busy_of_parts(profile, own, device, &mut found);
            found
        });
    }
    figures.gil_holder = waits.and_then(gil_holder);
    let is_compiled = |function: &Function| function.compile == CompileMark::Generated;
    figures.compiled = profile.functions.iter().any(is_compiled);
    if let Some(workers) = waits.and_then(|waits| waits.worker_activity.as_ref()) {
        let share = |task| {
            let mut tasks = workers.tasks.iter();
            tasks
                .find(|each| each.task == task)
                .map_or(0.0, |each| each.share.value)
        };
        figures.workers_busy = Some(workers.busy.value);
        figures.workers_read = share(InputTask::Read);
        figures.workers_queue = share(InputTask::CpuWait);
        let tasks = workers.tasks.iter();
        figures.tasks = tasks.map(|task| (task.task, task.share.value)).collect();
        figures.workers_line = workers_line(workers);
    }
    figures
}

/// The share of the time from `from_ns` on in which `workers` make batches, with a CPU.
fn work(workers: &[&ProfileSample], from_ns: u64) -> Option<f64> {
    let (mut work_ns, mut all_ns) = (0_u64, 0_u64);
    for sample in workers.iter().filter(|sample| sample.start_ns >= from_ns) {
        all_ns = all_ns.saturating_add(sample.weight_ns);
        if sample.task.is_work() && sample.task != InputTask::Other {
            let own_ns = sample.weight_ns.saturating_sub(sample.queue_ns);
            work_ns = work_ns.saturating_add(own_ns);
        }
    }
    (all_ns > 0).then(|| work_ns as f64 / all_ns as f64)
}

/// The line at which workers are busy most, and its share of the time in which they are.
fn workers_line(workers: &WorkerActivity) -> Option<(Line, f64)> {
    let (mut lines, mut all_ns) = (FxHashMap::<Line, u64>::default(), 0_u64);
    let busy = workers.tasks.iter().filter(|task| task.task.is_work());
    for (line, ns) in busy.flat_map(|task| &task.lines) {
        all_ns = all_ns.saturating_add(*ns);
        if let Some(line) = line {
            let sum = lines.entry(*line).or_default();
            *sum = sum.saturating_add(*ns);
        }
    }
    let (line, ns) = lines
        .into_iter()
        .max_by_key(|&(line, ns)| (ns, std::cmp::Reverse(line)))?;
    Some((line, ns as f64 / all_ns as f64))
}

fn step_ns(summary: &ProcessSummary) -> Option<f64> {
    let times = summary.progress.as_ref()?.times.as_ref()?;
    Some(times.mean_ns)
}

fn in_steps(summary: &ProcessSummary, own: &[&ProfileSample]) -> f64 {
    let times = summary
        .progress
        .as_ref()
        .and_then(|known| known.times.as_ref());
    let own_ns: u64 = own.iter().map(|sample| sample.weight_ns).sum();
    times.map_or(0.0, |times| times.ns as f64 / own_ns.max(1) as f64)
}

fn uses_gpu(sample: &ProfileSample) -> bool {
    sample.activity.group() == ActivityGroup::Gpu
}

/// CPU time is that of all processes over all the time in which any was read: a process that lived
/// for one second of a minute counts with a sixtieth of its use.
fn cpus(profile: &Profile, tracks: &TrackSummary) -> CpuFigures {
    let length_ns = profile.end_ns.saturating_sub(profile.start_ns).max(1) as f64;
    let figures = tracks.processes.iter().flat_map(|process| &process.figures);
    let (mut from_ns, mut to_ns, mut used_s) = (u64::MAX, 0, 0.0);
    for figure in figures.filter(|figure| figure.kind == TrackKind::Cpu) {
        used_s += figure.total;
        for span in spans(profile, figure.track) {
            from_ns = from_ns.min(span.start_ns);
            to_ns = to_ns.max(span.end_ns);
        }
    }
    let (mut wanted_ns, mut lacking_ns, mut spinning_ns) = (0.0, 0.0, 0.0);
    for sample in profile
        .samples
        .iter()
        .filter(|sample| sample.state == ThreadState::Running)
    {
        wanted_ns += sample.weight_ns as f64;
        lacking_ns += sample.queue_ns as f64;
        if sample.activity == Activity::OmpIdle {
            spinning_ns += sample.weight_ns.saturating_sub(sample.queue_ns) as f64;
        }
    }
    CpuFigures {
        used: (from_ns < to_ns).then(|| used_s * 1e9 / (to_ns - from_ns) as f64),
        wanted: wanted_ns / length_ns,
        wanted_in_waits: None,
        lacking: if wanted_ns > 0.0 {
            lacking_ns / wanted_ns
        } else {
            0.0
        },
        spinning: spinning_ns / length_ns,
        throttled: profile.sideband.quality.throttled_ns as f64
            / profile.recorded_ns().max(1) as f64,
    }
}

fn helpers(profile: &Profile) -> Vec<Helper> {
    let recorded_ns = profile.recorded_ns().max(1) as f64;
    let mut helpers: Vec<Helper> = Vec::new();
    let processes = profile.processes.iter();
    for process in processes.filter(|process| process.role == Role::Other) {
        let info = &process.info;
        let name = file_name(info.command.first().unwrap_or(&info.exe));
        let cpus = info.cpu_ns as f64 / recorded_ns;
        match helpers.iter_mut().find(|helper| helper.name == name) {
            Some(helper) => {
                helper.processes += 1;
                helper.cpus += cpus;
            }
            None => helpers.push(Helper {
                name: name.to_owned(),
                processes: 1,
                cpus,
            }),
        }
    }
    helpers.sort_by(|a, b| b.cpus.total_cmp(&a.cpus));
    helpers
}

/// How many threads of the recorded processes were running or runnable while the threads with the
/// samples `own` waited for a CPU.
fn wanted_in_waits<'p>(
    profile: &Profile,
    own: impl Iterator<Item = &'p ProfileSample>,
) -> Option<f64> {
    let running = profile.samples.iter();
    let running = Timeline::new(running.filter(|sample| sample.state == ThreadState::Running));
    let (mut wanted_ns, mut waited_ns) = (0.0, 0.0);
    for sample in own.filter(|sample| sample.queue_ns > 0) {
        let end_ns = sample.start_ns.saturating_add(sample.weight_ns);
        let pieces = running.within(sample.start_ns, end_ns);
        let all_ns: u64 = pieces.map(|piece| piece.length_ns()).sum();
        let waited = sample.queue_ns.min(sample.weight_ns) as f64;
        wanted_ns += all_ns as f64 / sample.weight_ns as f64 * waited;
        waited_ns += waited;
    }
    (waited_ns > 0.0).then(|| wanted_ns / waited_ns)
}

/// What `workers` did while the training thread, with the samples `own`, waited for them.
fn barrier(
    profile: &Profile,
    own: &[&ProfileSample],
    workers: &[ThreadId],
) -> Option<BarrierFigures> {
    let workers = workers
        .iter()
        .flat_map(|&thread| of_thread(profile, thread));
    let timeline = Timeline::new(workers);
    let (mut computing_ns, mut queue_ns, mut all_ns, mut barrier_ns) = (0_u64, 0_u64, 0_u64, 0_u64);
    for sample in own
        .iter()
        .filter(|sample| sample.activity == Activity::OmpIdle)
    {
        barrier_ns = barrier_ns.saturating_add(sample.weight_ns);
        let end_ns = sample.start_ns.saturating_add(sample.weight_ns);
        for piece in timeline.within(sample.start_ns, end_ns) {
            all_ns = all_ns.saturating_add(piece.length_ns());
            queue_ns = queue_ns.saturating_add(piece.queue_ns());
            let runs = piece.sample.state == ThreadState::Running;
            if runs && piece.sample.activity != Activity::OmpIdle {
                computing_ns = computing_ns.saturating_add(piece.length_ns() - piece.queue_ns());
            }
        }
    }
    (all_ns > 0 && barrier_ns > 0).then(|| BarrierFigures {
        computing: computing_ns as f64 / barrier_ns as f64,
        without_cpu: queue_ns as f64 / all_ns as f64,
    })
}

fn sum(profile: &Profile, own: &[&ProfileSample], figures: &mut Figures) {
    let wall_ns: u64 = own.iter().map(|sample| sample.weight_ns).sum();
    figures.ticks = own.iter().map(|sample| u64::from(sample.ticks)).sum();
    let mut shares = Shares::new(wall_ns, figures.ticks, Part::ALL.len());
    let mut lines: FxHashMap<(usize, Line), (u64, Option<NameId>)> = FxHashMap::default();
    let mut totals = [0_u64; Part::ALL.len()];
    let mut queued = [0_u64; Part::ALL.len()];
    let (mut reads_ns, mut gil_ns) = (0_u64, 0_u64);
    for sample in own {
        let queue_ns = sample.queue_ns.min(sample.weight_ns);
        let wait = sample.wait;
        let part = part(sample, wait.map(|wait| wait.kind)) as usize;
        let own_ns = sample.weight_ns - queue_ns;
        shares.add(
            sample.weight_ns,
            sample.ticks,
            &[(part, own_ns), (Part::NoCpu as usize, queue_ns)],
        );
        totals[part] = totals[part].saturating_add(own_ns);
        queued[part] = queued[part].saturating_add(queue_ns);
        let reads = sample.activity == Activity::Io
            || matches!(
                wait.map(|wait| wait.kind),
                Some(WaitKind::Disk | WaitKind::Socket)
            );
        if part == Part::InputOwn as usize && reads {
            reads_ns = reads_ns.saturating_add(own_ns);
        }
        if wait.is_some_and(|wait| wait.kind == WaitKind::Gil) {
            gil_ns = gil_ns.saturating_add(own_ns);
        }
        if let Some(line) = profile.facts.line(sample.stack) {
            let (ns, label) = lines.entry((part, line)).or_default();
            *ns = ns.saturating_add(own_ns);
            *label = label.or(wait.map(|wait| wait.label));
        }
    }
    let wall_ns = wall_ns.max(1) as f64;
    figures.queued = queued.iter().map(|&ns| ns as f64 / wall_ns).collect();
    figures.gil = gil_ns as f64 / wall_ns;
    let own_input_ns = totals[Part::InputOwn as usize];
    figures.own_reads = reads_ns as f64 / own_input_ns.max(1) as f64;
    figures.shares = (0..Part::ALL.len())
        .map(|part| shares.share(part))
        .collect();
    let mut lines: Vec<_> = lines.into_iter().collect();
    lines.sort_by_key(|&((part, line), (ns, _))| (part, Reverse(ns), line));
    for ((part, line), (ns, label)) in lines {
        if figures.lines.contains_key(&part) {
            continue;
        }
        let share = ns as f64 / totals[part].max(1) as f64;
        figures.lines.insert(part, (line, share));
        if let Some(label) = label {
            figures
                .labels
                .insert(part, profile.facts.names.get(label).to_owned());
        }
    }
}

/// Where another thread held the GIL for longest.
fn gil_holder(waits: &ProcessWaits) -> Option<Line> {
    let rows = waits.rows.iter().filter(|row| row.kind == WaitKind::Gil);
    let holders = rows.flat_map(|row| &row.holders);
    holders.max_by_key(|holder| holder.ns)?.at
}

fn part(sample: &ProfileSample, wait: Option<WaitKind>) -> Part {
    match wait {
        _ if sample.phase == Phase::Compile => return Part::Compile,
        Some(WaitKind::Input) => return Part::InputWait,
        Some(WaitKind::GpuSync) => return Part::Sync,
        Some(WaitKind::GpuCopy) => return Part::Copy,
        Some(WaitKind::Collective) => return Part::Communication,
        Some(WaitKind::Gil) => return Part::Python,
        // Autograd's threads dispatch the backward pass to the GPU.
        Some(WaitKind::Autograd) => return Part::Dispatch,
        _ => {}
    }
    if sample.phase == Phase::Input {
        // A queue that a thread or process of the script's own fills.
        return match wait {
            Some(WaitKind::Lock) => Part::InputWait,
            _ => Part::InputOwn,
        };
    }
    match sample.activity {
        // Allocating memory from the driver and freeing it wait for the device (CUDA runtime,
        // cudaFree, cudaMalloc).
        Activity::GpuSync | Activity::GpuAlloc => Part::Sync,
        Activity::GpuCopy => Part::Copy,
        _ if sample.row == SummaryRow::Communication => Part::Communication,
        Activity::CpuWait => Part::NoCpu,
        _ if matches!(
            sample.phase,
            Phase::Startup | Phase::Shutdown | Phase::Checkpoint
        ) =>
        {
            Part::Other
        }
        Activity::Python | Activity::GilWait => Part::Python,
        Activity::OmpIdle => Part::Barrier,
        activity => match activity.group() {
            ActivityGroup::Compute => Part::Compute,
            ActivityGroup::Dispatch | ActivityGroup::Gpu => Part::Dispatch,
            ActivityGroup::Collective | ActivityGroup::Alone => Part::Other,
        },
    }
}

/// How busy the device was in each part of the thread's time.
fn busy_of_parts(
    profile: &Profile,
    own: &[&ProfileSample],
    device: &Device,
    figures: &mut DeviceFigures,
) {
    figures.busy_during = vec![None; Part::ALL.len()];
    let Some(figure) = device.figure(TrackKind::Utilization) else {
        return;
    };
    let windows = spans(profile, figure.track);
    let mut sums = [(0.0, 0.0); Part::ALL.len()];
    let (mut saturated_ns, mut all_ns) = (0.0, 0.0);
    for sample in own {
        let at_ns = sample.start_ns + sample.weight_ns / 2;
        let next = windows.partition_point(|window| window.end_ns <= at_ns);
        let Some(window) = windows.get(next).filter(|window| window.start_ns <= at_ns) else {
            continue;
        };
        let kind = sample.wait.map(|wait| wait.kind);
        let ns = sample.weight_ns as f64;
        let (sum, length) = &mut sums[part(sample, kind) as usize];
        *sum += window.value * ns;
        *length += ns;
        all_ns += ns;
        if window.value >= super::rules::BUSY {
            saturated_ns += ns;
        }
    }
    for (busy, (sum, length)) in figures.busy_during.iter_mut().zip(sums) {
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
    trained: &Range<u64>,
) -> DeviceFigures {
    let mean = |kind| device.mean(profile, kind, trained.clone());
    let limit_w = device.info.power_limit_mw as f64 / 1e3;
    let watts = mean(TrackKind::Energy).or(mean(TrackKind::Power));
    const CAP: u64 = 0x4;
    let held = |bits: u64| {
        let reasons = device.throttled.as_ref()?.iter();
        let held = reasons.filter(|(bit, _)| bit & bits != 0);
        // Whether two reasons held at the same time or one after the other is unknown.
        Some(held.map(|(_, share)| *share).fold(0.0, f64::max))
    };
    DeviceFigures {
        busy: mean(TrackKind::Utilization),
        sm: mean(TrackKind::SmActive),
        sm_range: device
            .figure(TrackKind::SmActive)
            .and_then(|figure| range(&spans(profile, figure.track), trained)),
        dram: mean(TrackKind::DramActive),
        power: watts.filter(|_| limit_w > 0.0).map(|watts| watts / limit_w),
        hot: held(THROTTLE_SLOWS & !CAP),
        capped: held(CAP),
        shared: is_shared(device, process),
        busy_during: Vec::new(),
        saturated: 0.0,
    }
}

/// What one of fifty windows within a time is below, and what one is above.
fn range(windows: &[Span], within: &Range<u64>) -> Option<(f64, f64)> {
    let inside = |span: &&Span| span.start_ns >= within.start && span.end_ns <= within.end;
    let values = windows.iter().filter(inside).map(|span| span.value);
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    let few = values.len() / 50;
    Some((*values.get(few)?, *values.get(values.len() - 1 - few)?))
}

/// Whether other processes are known to have much memory of the device.
fn is_shared(device: &Device, process: ProcessId) -> bool {
    let is_much = |bytes: u64| bytes as f64 >= OTHERS_MEMORY * device.info.memory_bytes as f64;
    let others = device.processes.iter().filter(|user| {
        user.process != Some(process) && !user.hinted && user.memory_bytes.is_none_or(is_much)
    });
    // In a container the driver reports the host's pids: one of these is the process itself.
    let mut own = device.processes.iter();
    let is_unlisted = own.any(|user| user.process == Some(process) && user.hinted);
    others.count() > usize::from(is_unlisted)
}
