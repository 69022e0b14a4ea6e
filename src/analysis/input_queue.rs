//! What the DataLoader's workers did while the training thread waited for them; without workers,
//! what the training thread did to make batches.
//!
//! Workers are sampled on the same clock as their trainer. For each interval in which the training
//! thread waits for the queue, the overlapping samples of its workers are counted. A worker's time
//! is that of the thread that runs its loop.

use super::intervals::{Share, Shares};
use super::timeline::{Piece, Timeline};
use crate::model::category::Phase;
use crate::model::facts::Line;
use crate::model::ids::{ProcessId, ThreadId};
use crate::model::input::InputTask;
use crate::model::profile::{Profile, ProfileSample, Role};
use crate::model::wait::WaitKind;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

#[derive(Clone, Debug, PartialEq)]
pub struct TaskTime {
    pub task: InputTask,
    pub ns: u64,
    /// As a share of the time that it is part of.
    pub share: Share,
    /// Lines, by descending time.
    pub lines: Vec<(Option<Line>, u64)>,
}

/// What workers did while their trainer waited.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerActivity {
    /// Time that the training thread waited.
    pub waited_ns: u64,
    /// The workers' time in these intervals, summed over all workers.
    pub worker_ns: u64,
    /// Mean number of live workers in these intervals.
    pub workers: f64,
    /// The share of the workers' time in which they did not wait for the trainer.
    pub busy: Share,
    /// By task, by descending time, as shares of the workers' time.
    pub tasks: Vec<TaskTime>,
}

/// What the training thread did to make batches itself (`num_workers=0`).
#[derive(Clone, Debug, PartialEq)]
pub struct InlineInput {
    pub ns: u64,
    /// As a share of the thread's wall time.
    pub share: Share,
    /// By task, by descending time, as shares of the thread's wall time.
    pub tasks: Vec<TaskTime>,
}

/// Sums by task and line.
struct Tasks {
    shares: Shares,
    sums: FxHashMap<(InputTask, Option<Line>), u64>,
}

/// The category after the tasks: busy with any of them.
const BUSY: usize = InputTask::ALL.len();

impl Tasks {
    fn new(total_ns: u64, ticks: u64) -> Self {
        Self {
            shares: Shares::new(total_ns, ticks, InputTask::ALL.len() + 1),
            sums: FxHashMap::default(),
        }
    }

    /// Adds an interval of `length_ns`, of which `queue_ns` in the run queue. `None`: the time is
    /// not input.
    fn add(
        &mut self,
        length_ns: u64,
        queue_ns: u64,
        ticks: u32,
        task: Option<(InputTask, Option<Line>)>,
    ) {
        let Some((task, line)) = task else {
            self.shares.add(length_ns, ticks, &[]);
            return;
        };
        let own_ns = length_ns.saturating_sub(queue_ns);
        let busy_ns = match task {
            InputTask::Idle => queue_ns,
            _ => length_ns,
        };
        let parts = [
            (task as usize, own_ns),
            (InputTask::CpuWait as usize, queue_ns),
            (BUSY, busy_ns),
        ];
        self.shares.add(length_ns, ticks, &parts);
        for (task, ns) in [(task, own_ns), (InputTask::CpuWait, queue_ns)] {
            if ns > 0 {
                let sum = self.sums.entry((task, line)).or_default();
                *sum = sum.saturating_add(ns);
            }
        }
    }

    fn finish(self) -> Vec<TaskTime> {
        let mut tasks: Vec<TaskTime> = InputTask::ALL
            .iter()
            .map(|&task| {
                let mut lines: Vec<(Option<Line>, u64)> = self
                    .sums
                    .iter()
                    .filter(|((each, _), _)| *each == task)
                    .map(|(&(_, line), &ns)| (line, ns))
                    .collect();
                lines.sort_by_key(|&(line, ns)| (Reverse(ns), line));
                TaskTime {
                    task,
                    ns: lines.iter().map(|&(_, ns)| ns).sum(),
                    share: self.shares.share(task as usize),
                    lines,
                }
            })
            .filter(|task| task.ns > 0)
            .collect();
        tasks.sort_by_key(|task| (Reverse(task.ns), task.task));
        tasks
    }
}

/// What the workers of `trainer` did while its training thread, with the samples `own`, waited for
/// them. `None` without workers, or without such waits.
pub fn worker_activity(
    profile: &Profile,
    trainer: ProcessId,
    own: &[&ProfileSample],
) -> Option<WorkerActivity> {
    let waits: Vec<(u64, u64)> = own
        .iter()
        .filter(|sample| sample.wait.is_some_and(|wait| wait.kind == WaitKind::Input))
        .map(|sample| {
            (
                sample.start_ns,
                sample.start_ns.saturating_add(sample.weight_ns),
            )
        })
        .collect();
    let waited_ns: u64 = waits.iter().map(|(from, to)| to - from).sum();
    let mut pieces: Vec<Piece<'_>> = Vec::new();
    for thread in worker_threads(profile, trainer) {
        let timeline = Timeline::new(super::of_thread(profile, thread).into_iter());
        for &(from, to) in &waits {
            pieces.extend(timeline.within(from, to));
        }
    }
    let worker_ns: u64 = pieces.iter().map(Piece::length_ns).sum();
    if worker_ns == 0 || waited_ns == 0 {
        return None;
    }
    let ticks = pieces.iter().map(|piece| u64::from(piece.ticks())).sum();
    let mut tasks = Tasks::new(worker_ns, ticks);
    for piece in &pieces {
        let task = piece.sample.task;
        let line = profile.facts.line(piece.sample.stack);
        tasks.add(
            piece.length_ns(),
            piece.queue_ns(),
            piece.ticks(),
            Some((task, line)),
        );
    }
    Some(WorkerActivity {
        waited_ns,
        worker_ns,
        workers: worker_ns as f64 / waited_ns as f64,
        busy: tasks.shares.share(BUSY),
        tasks: tasks.finish(),
    })
}

/// The threads that run the loops of a trainer's workers.
pub fn worker_threads(profile: &Profile, trainer: ProcessId) -> Vec<ThreadId> {
    let of_trainer = |role: Role| matches!(role, Role::DataLoaderWorker { trainer: Some(of), .. } if of == trainer);
    profile
        .processes
        .iter()
        .filter(|process| of_trainer(process.role))
        .filter_map(|process| process.training_thread)
        .collect()
}

/// What the training thread did to make batches itself; `None` if it made none.
pub fn inline(
    profile: &Profile,
    own: &[&ProfileSample],
    wall_ns: u64,
    ticks: u64,
) -> Option<InlineInput> {
    let mut tasks = Tasks::new(wall_ns, ticks);
    let mut ns = 0_u64;
    for sample in own {
        let inline =
            sample.phase == Phase::Input && !profile.facts.of(sample.stack).is_in_loader_queue;
        let task = inline.then(|| (sample.task, profile.facts.line(sample.stack)));
        if inline {
            ns = ns.saturating_add(sample.weight_ns);
        }
        let queue_ns = sample.queue_ns.min(sample.weight_ns);
        tasks.add(sample.weight_ns, queue_ns, sample.ticks, task);
    }
    let share = tasks.shares.share(BUSY);
    (ns > 0).then(|| InlineInput {
        ns,
        share,
        tasks: tasks.finish(),
    })
}
