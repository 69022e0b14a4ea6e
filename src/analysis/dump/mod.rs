//! A snapshot of a job: each thread's state, wait and position, and each rank's progress.

pub mod attach;
#[cfg(test)]
mod built;
pub mod deadlocks;
pub mod flight;
pub mod groups;
pub mod hang;
pub mod hang_job;
pub mod held;
pub mod job;
pub mod jobs;
pub mod moved;
mod odd_ranks;
pub mod places;
pub mod ras;
pub mod tasks;
pub mod tree;
pub mod verdict;
mod wakers;

use super::job::reduce::groups as parallel_groups;
use super::of_thread;
use crate::model::category::FrameKind;
use crate::model::depth::MAX_DEPTH;
use crate::model::dump::{
    Dump, DumpedFrame, DumpedProcess, DumpedThread, DumpedWait, JobKey, Owner, Place, Progress,
};
use crate::model::ids::{ProcessId, StackId, ThreadId};
use crate::model::profile::{Profile, ProfileProcess, ProfileSample, Role};
use crate::model::progress::CounterKind;
use crate::model::quality::DurationHistogram;
use crate::model::sample::{Capture, Gil, ThreadState};
use crate::model::wait::WaitKind;
use rustc_hash::FxHashMap;

/// Processes between a rank and what started it.
const MOST_ANCESTORS: usize = 64;

/// Evaluates `profile`, which holds one snapshot. The caller sets the times.
pub fn dump(profile: &Profile) -> Dump {
    let samples = last_samples(profile);
    let mut processes: Vec<DumpedProcess> = profile
        .processes
        .iter()
        .enumerate()
        .map(|(index, process)| {
            of_process(profile, ProcessId::from_index(index), process, &samples)
        })
        .collect();
    processes.sort_by_key(|process| role_order(process.role));
    Dump {
        stopped: profile.sideband.quality.stops.count(),
        longest_stop_ns: profile.sideband.quality.stops.max_ns(),
        stops_ns: stops_ns(&profile.sideband.quality.stops),
        processes,
        missing: profile.missing.clone(),
        ..Dump::default()
    }
}

/// The length of every stop, ascending.
fn stops_ns(stops: &DurationHistogram) -> Vec<u64> {
    const MOST: u64 = 4096;
    let count = stops.count();
    (1..=count.min(MOST))
        .filter_map(|number| stops.quantile_ns(number as f64 / count as f64))
        .collect()
}

/// Launchers, ranks by number, workers, others.
fn role_order(role: Role) -> (u8, u32) {
    match role {
        Role::Launcher => (0, 0),
        Role::Trainer { rank, .. } => (1, rank.unwrap_or(0)),
        Role::DataLoaderWorker { number, .. } => (2, number),
        Role::Other => (3, 0),
    }
}

/// For each thread the last sample with a stack, or the last sample if none has one.
fn last_samples(profile: &Profile) -> FxHashMap<ThreadId, &ProfileSample> {
    let mut last: FxHashMap<ThreadId, &ProfileSample> = FxHashMap::default();
    for index in 0..profile.threads.len() {
        let id = ThreadId::from_index(index);
        let own = of_thread(profile, id);
        let fresh = own.iter().rev().find(|sample| sample.capture.is_fresh());
        if let Some(&sample) = fresh.or(own.last()) {
            last.insert(id, sample);
        }
    }
    last
}

fn of_process(
    profile: &Profile,
    id: ProcessId,
    process: &ProfileProcess,
    samples: &FxHashMap<ThreadId, &ProfileSample>,
) -> DumpedProcess {
    let mut threads: Vec<DumpedThread> = Vec::new();
    let mut gil_holder = None;
    for (index, info) in profile.threads.iter().enumerate() {
        let thread = ThreadId::from_index(index);
        if info.process != id {
            continue;
        }
        let Some(sample) = samples.get(&thread) else {
            continue;
        };
        if sample.gil == Gil::Held {
            gil_holder = Some(info.tid);
        }
        gil_holder = gil_holder.or(sample.gil_holder.and_then(|holder| tid(profile, holder)));
        let trains = process.training_thread == Some(thread);
        threads.push(of_sample(profile, thread, sample, trains));
    }
    if let Some(holder) = gil_holder
        && released_gil(&threads, holder)
    {
        gil_holder = None;
    }
    for at in 0..threads.len() {
        let owner = threads[at]
            .wait
            .as_ref()
            .filter(|wait| wait.kind == WaitKind::Gil);
        let owner = owner.and_then(|wait| Some(wait.owner.as_ref()?.tid));
        if owner.is_some_and(|owner| released_gil(&threads, owner))
            && let Some(wait) = &mut threads[at].wait
        {
            wait.owner = None;
        }
    }
    threads.sort_by_key(|thread| {
        let is_python = thread.frames.iter().any(|frame| frame.is_python);
        (!thread.trains, !is_python, thread.tid)
    });
    let trainer_pid = match process.role {
        Role::DataLoaderWorker { trainer, .. } => trainer
            .and_then(|trainer| profile.process(trainer))
            .map(|trainer| trainer.info.pid),
        _ => None,
    };
    DumpedProcess {
        pid: process.info.pid,
        role: process.role,
        trainer_pid,
        job: job_of(profile, process),
        groups: process.role.rank().map_or(String::new(), |rank| {
            let environment = &process.info.environment;
            let groups = parallel_groups(profile, id, Some(rank), environment);
            groups.map_or(String::new(), |(_, groups)| groups)
        }),
        command: process.info.command.clone(),
        python: process.info.python.clone(),
        torch: process.info.torch.clone(),
        note: process.info.note.clone(),
        progress: progress(profile, id),
        gil_holder,
        threads,
        tasks: Vec::new(),
    }
}

/// The job of a process: what its environment says, or, of a launcher, that of a rank below it.
fn job_of(profile: &Profile, process: &ProfileProcess) -> Option<JobKey> {
    let own = |process: &ProfileProcess| process.job.clone();
    let is_below = |rank: &&ProfileProcess| {
        let mut at = *rank;
        // Pids of a damaged recording may form a ring.
        for _ in 0..MOST_ANCESTORS {
            if at.info.parent_pid == process.info.pid {
                return true;
            }
            let all = &profile.processes;
            match all.iter().find(|each| each.info.pid == at.info.parent_pid) {
                Some(parent) => at = parent,
                None => return false,
            }
        }
        false
    };
    let ranks = profile.processes.iter();
    let mut ranks = ranks.filter(|each| each.role.rank().is_some());
    match process.role.rank() {
        Some(_) => own(process),
        None => ranks.find(is_below).and_then(own).or_else(|| own(process)),
    }
}

/// Whether a thread that held the interpreter's lock when others were read did not hold it when it
/// was read itself: the lock changes hands, and the thread's stack does not show what it did while
/// it held the lock.
fn released_gil(threads: &[DumpedThread], holder: i32) -> bool {
    let thread = threads.iter().find(|thread| thread.tid == holder);
    thread.is_some_and(|thread| thread.gil == Gil::NotHeld)
}

fn tid(profile: &Profile, thread: ThreadId) -> Option<i32> {
    profile.thread(thread).map(|info| info.tid)
}

fn of_sample(
    profile: &Profile,
    id: ThreadId,
    sample: &ProfileSample,
    trains: bool,
) -> DumpedThread {
    let info = profile.thread(id);
    let wait = sample.wait.map(|wait| DumpedWait {
        kind: wait.kind,
        what: profile.facts.names.get(wait.label).to_owned(),
        owner: owner(profile, wait.kind, sample),
        lock: None,
    });
    let at = profile
        .facts
        .line(sample.stack)
        .and_then(|(function, line)| {
            let function = profile.function(function)?;
            Some(Place {
                function: function.name.clone(),
                file: function.file.clone(),
                line,
            })
        });
    let asleep = sample.state != ThreadState::Running;
    let call = sample.syscall.filter(|_| asleep);
    let (frames, partial) = frames(profile, sample.stack);
    DumpedThread {
        tid: info.map_or(0, |info| info.tid),
        name: info.map(|info| info.name.clone()).unwrap_or_default(),
        python_name: None,
        trains,
        state: sample.state,
        capture: sample.capture,
        syscall: call.map(|number| {
            let known = profile.facts.system_calls.get(&number);
            known.map_or_else(
                || format!("system call {number}"),
                |name| (*name).to_owned(),
            )
        }),
        gil: sample.gil,
        wait: wait.or_else(|| no_cpu(sample)),
        module: frames.iter().find_map(|frame| frame.module.clone()),
        at,
        frames,
        partial,
        moved_frames: 0,
        slices: None,
        wchan: None,
        kernel_stack: Vec::new(),
    }
}

fn owner(profile: &Profile, kind: WaitKind, sample: &ProfileSample) -> Option<Owner> {
    let holder = sample.gil_holder.filter(|_| kind == WaitKind::Gil)?;
    Some(Owner {
        tid: tid(profile, holder)?,
        by: "the interpreter",
    })
}

/// A thread that is running according to the kernel, but had no CPU when it was captured.
fn no_cpu(sample: &ProfileSample) -> Option<DumpedWait> {
    let waited = sample.capture == Capture::NotCaptured && sample.queue_ns > 0;
    waited.then(|| DumpedWait {
        kind: WaitKind::Cpu,
        what: "a CPU".to_owned(),
        owner: None,
        lock: None,
    })
}

/// The frames of a stack, leaf first, and why it ends early.
fn frames(profile: &Profile, stack: Option<StackId>) -> (Vec<DumpedFrame>, Option<&'static str>) {
    let mut frames: Vec<DumpedFrame> = Vec::new();
    let mut partial = None;
    let mut ids = profile.stacks.leaf_to_root(stack).peekable();
    while let Some(id) = ids.next() {
        let frame = profile.stacks.frame(id);
        if let Some(why) = frame.partial {
            partial = Some(why.name());
            if ids.peek().is_some() {
                frames.push(between_ends());
            }
            continue;
        }
        let Some(function) = profile.function(frame.function) else {
            continue;
        };
        // The module called the frame above the marker: the call itself is the next frame towards
        // the leaf, or this one.
        if let Some(module) = frame.nn_module.and_then(|id| profile.nn_module(id)) {
            if let Some(last) = frames.last_mut() {
                last.module = Some(module.label());
            }
            continue;
        }
        frames.push(DumpedFrame {
            name: function.name.clone(),
            short_name: function.short_name.clone(),
            file: function.file.clone(),
            line: frame.line,
            is_python: function.is_python,
            is_region: function.is_region,
            kind: function.kind,
            is_plumbing: function.plumbing || function.kind == FrameKind::Interpreter,
            is_guess: frame.trust.is_some_and(|trust| trust.is_guess()),
            module: None,
            locals: None,
        });
    }
    (frames, partial)
}

/// Replaces the frames between the ends of a deep stack.
fn between_ends() -> DumpedFrame {
    let name = format!("[of more than {MAX_DEPTH} frames both ends are shown]");
    DumpedFrame {
        short_name: name.clone(),
        name,
        file: String::new(),
        line: 0,
        is_python: false,
        is_region: false,
        kind: FrameKind::Marker,
        is_guess: false,
        is_plumbing: false,
        module: None,
        locals: None,
    }
}

/// The last value of each counter of a process; of several counters of one kind the one that was
/// read last.
fn progress(profile: &Profile, process: ProcessId) -> Vec<Progress> {
    let mut found = Vec::new();
    for &kind in CounterKind::ALL {
        let of_kind = profile.sideband.points.iter().rev().find_map(|point| {
            let counter = profile.counters.get(point.counter.index())?;
            (counter.process == process && counter.kind == kind).then_some((point, counter))
        });
        if let Some((point, counter)) = of_kind {
            found.push(Progress {
                what: words_of(kind).to_owned(),
                value: point.value,
                source: counter.class.clone(),
            });
        }
    }
    found
}

fn words_of(kind: CounterKind) -> &'static str {
    match kind {
        CounterKind::Batches => "batch",
        CounterKind::ParameterVersion => "parameter version",
        CounterKind::OptimizerState => "version of the optimizer's state",
        CounterKind::TrainerSteps | CounterKind::LightningSteps => "step",
        CounterKind::LightningEpochs => "epoch",
    }
}
