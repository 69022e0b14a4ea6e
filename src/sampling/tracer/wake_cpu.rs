//! On which CPU the tracer wakes, and which threads it polls first.
//!
//! Where a CPU is idle, the tracer uses it and disturbs no thread. Where every CPU runs a thread of
//! the target, the tracer preempts one of them, and threads that depend on the preempted one (at an
//! OpenMP barrier, in a collective) soon wait: a poll some tens of microseconds later would find a
//! wait that the tracer itself has caused. So the tracer wakes on the CPU of the training thread:
//! that thread stays where it was when the timer fired, however long it takes until it is read. Of
//! several training processes only one is preempted, and the others soon wait for it, so the
//! processes take turns.
//!
//! Training threads are polled and stopped before anything else in a tick. Polling all other
//! threads takes longer, on a CPU that may be needed by a thread that the trainer waits for.

use super::poll::Candidate;
use super::process::TracedProcess;
use crate::model::ids::ProcessId;
use crate::os::placement::Placement;
use crate::sampling::schedule::Tick;

/// How often the CPUs of running threads are read, ns, and of how many threads at most.
const PLACE_NS: u64 = 100_000_000;
const MAX_PLACED: usize = 64;
/// For how long all CPUs count as busy after they were found busy, ns.
const BUSY_NS: u64 = 500_000_000;
/// Averaging time of `full_share`, ns.
const AVERAGED_NS: f64 = 1e9;
/// Above this share of full ticks, a CPU that is idle now is hardly idle at the next tick. Below
/// it, preempting the training thread would cost more than it improves the samples.
const BUSY_SHARE: f64 = 0.5;

/// A trainer is polled at least once in this many ticks.
const MAX_TURNS: usize = 4;

/// Whether a CPU is free for the tracer, and which thread it preempts where none is.
#[derive(Debug, Default)]
pub(super) struct WakeCpu {
    placement: Placement,
    /// When CPUs of threads were last read, CLOCK_MONOTONIC.
    placed_ns: u64,
    busy_until_ns: u64,
    /// Share of recent ticks in which at least as many threads ran as there are CPUs, 0 to 1.
    full_share: f64,
    /// Counts wake-ups on a trainer's CPU.
    turn: usize,
    /// Processes whose first thread is not polled in the next tick: other processes have their
    /// turn.
    skipped: Vec<ProcessId>,
}

impl WakeCpu {
    /// Reads on which CPUs the calling thread, the tracer, may run.
    pub(super) fn prepare(&mut self) {
        self.placement = Placement::of_this_thread();
    }

    /// Whether the tracer wakes and works on the CPU of a thread that it samples.
    pub(super) fn shares_trainer_cpu(&self) -> bool {
        self.busy_until_ns > 0
    }

    /// Adds a tick of `weight_ns` to the average; returns whether recent ticks were mostly full.
    fn is_full_mostly(&mut self, is_full: bool, weight_ns: u64) -> bool {
        let part = (weight_ns as f64 / AVERAGED_NS).min(1.0);
        self.full_share += (f64::from(u8::from(is_full)) - self.full_share) * part;
        self.full_share > BUSY_SHARE
    }

    /// Chooses the CPU to sleep on, from the threads that ran at this tick. Returns whether the
    /// tracer will wake on a trainer's CPU.
    pub(super) fn choose_cpu(
        &mut self,
        processes: &[TracedProcess],
        running: &[(usize, usize)],
        tick: Tick,
    ) -> bool {
        self.skipped.clear();
        let now_ns = tick.start_ns;
        let is_due = now_ns >= self.placed_ns + PLACE_NS;
        let is_full = running.len() >= self.placement.cpus();
        let is_full_mostly = self.is_full_mostly(is_full, tick.weight_ns());
        let may_be_all = is_full && is_full_mostly;
        if is_due && (may_be_all || !self.shares_trainer_cpu()) {
            self.placed_ns = now_ns;
            let cpus = cpus_of(processes, running);
            if may_be_all && self.placement.is_all(&cpus) {
                self.busy_until_ns = now_ns + BUSY_NS;
            } else if !self.shares_trainer_cpu() {
                self.placement.keep_off(&cpus);
            }
        }
        if now_ns >= self.busy_until_ns {
            if std::mem::take(&mut self.busy_until_ns) > 0 {
                self.placement.keep_off(&cpus_of(processes, running));
            }
            return false;
        }
        self.wake_on_a_trainer(processes)
    }

    /// Makes the next wake-up preempt a training thread, of each process in turn.
    fn wake_on_a_trainer(&mut self, processes: &[TracedProcess]) -> bool {
        let trainers = trainers(processes);
        let turns = trainers.len().clamp(1, MAX_TURNS);
        let turn = self.turn.wrapping_add(1);
        self.turn = turn;
        let (mut now, mut skipped) = (Vec::new(), Vec::new());
        for (number, &(index, at)) in trainers.iter().enumerate() {
            match number % turns == turn % turns {
                true => now.push((index, at)),
                false => skipped.push(processes[index].id),
            }
        }
        self.skipped = skipped;
        let Some(&(index, at)) = now.get(turn / turns % now.len().max(1)) else {
            return false;
        };
        if let Ok(Some(cpu)) = processes[index].threads[at].files.cpu() {
            self.placement.keep_to(cpu);
        }
        true
    }

    /// Leaves the trainer's CPU: the rest of the tick is not urgent.
    pub(super) fn leave_trainer_cpu(&mut self) {
        self.placement.keep_off(&[]);
    }

    /// Whether the trainer of `process` is not polled in this tick, because others have their turn.
    pub(super) fn skips_turn(&self, process: &TracedProcess) -> bool {
        self.skipped.contains(&process.id)
    }
}

/// Process index and thread index of each running candidate.
pub(super) fn running_threads(candidates: &[Candidate]) -> Vec<(usize, usize)> {
    let running = candidates
        .iter()
        .filter(|candidate| candidate.asleep.is_none());
    running
        .map(|candidate| (candidate.process, candidate.thread))
        .collect()
}

/// Process index and thread index of each training thread, by a heuristic: the active first threads
/// of Python processes, except children of such a process, which are its workers.
pub(super) fn trainers(processes: &[TracedProcess]) -> Vec<(usize, usize)> {
    let active = processes.iter().enumerate();
    let active: Vec<(usize, usize)> = active
        .filter_map(|(index, process)| Some((index, process.active_first_thread()?)))
        .collect();
    let is_worker = |index: usize| {
        let parent = processes[index].parent_pid;
        active
            .iter()
            .any(|&(other, _)| processes[other].pid == parent)
    };
    let trainers = active.iter().copied();
    trainers.filter(|&(index, _)| !is_worker(index)).collect()
}

/// CPUs of the running threads, first threads of processes before others.
fn cpus_of(processes: &[TracedProcess], running: &[(usize, usize)]) -> Vec<usize> {
    let threads = |first: bool| {
        running.iter().filter_map(move |&(process, at)| {
            let thread = processes.get(process)?.threads.get(at)?;
            (thread.is_first == first).then_some(thread)
        })
    };
    let threads = threads(true).chain(threads(false)).take(MAX_PLACED);
    threads
        .filter_map(|thread| thread.files.cpu().ok().flatten())
        .collect()
}
