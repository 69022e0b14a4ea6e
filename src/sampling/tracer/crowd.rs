//! On which CPU the tracer wakes, and which threads it polls first.
//!
//! Where a CPU is idle it takes that one, and nobody notices. Where each of them runs a thread of the target, whoever it takes the CPU
//! from stops computing at that moment, and those who wait for that thread (at an OpenMP barrier, in a collective) soon wait: what
//! is polled some tens of microseconds later is a wait that the poll has caused. So the tracer wakes on the CPU of the thread that
//! trains: what that one did when it lost the CPU is what it did at the timer's moment, however long it is until it is read. Of
//! several processes that train only one loses its CPU, and the others soon wait for it: they take turns.
//!
//! Threads that train are polled, and stopped, before anything else is done in a tick. To poll all the others takes longer, on a
//! CPU that a thread may want whose work the trainer waits for.

use super::poll::Candidate;
use super::process::TracedProcess;
use crate::model::ids::ProcessId;
use crate::os::placement::Placement;
use crate::sampling::schedule::Tick;

/// How often it is found out where the running threads run, ns, and of how many at most.
const PLACE_NS: u64 = 100_000_000;
const MAX_PLACED: usize = 64;
/// For how long all CPUs are taken to be busy after they were seen to be, ns.
const CROWDED_NS: u64 = 500_000_000;
/// Over how long it is averaged in how many ticks as many threads ran as there are CPUs, ns.
const AVERAGED_NS: f64 = 1e9;
/// From which share on a CPU that is idle now will hardly be at the next tick. Below it, taking the CPU from the thread that trains would
/// cost it more than it tells.
const CROWDED_SHARE: f64 = 0.5;

/// Each trainer is polled in every so many ticks at the least.
const MAX_TURNS: usize = 4;

/// Whether a CPU is left for the tracer, and whose it takes where none is.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    placement: Placement,
    /// When it was last found out where threads run, CLOCK_MONOTONIC.
    placed_ns: u64,
    crowded_until_ns: u64,
    /// In which share of the latest ticks as many threads ran as there are CPUs.
    full_share: f64,
    /// Counts wake-ups on a trainer's CPU.
    turn: usize,
    /// Processes whose first thread is not polled in the next tick: it is the turn of others.
    left: Vec<ProcessId>,
}

impl Crowd {
    /// Finds out where the calling thread, which is the one that traces, may run.
    pub(super) fn prepare(&mut self) {
        self.placement = Placement::of_this_thread();
    }

    /// Whether the tracer wakes, and works, on a CPU of a thread that it samples.
    pub(super) fn is_crowded(&self) -> bool {
        self.crowded_until_ns > 0
    }

    /// Takes in whether a tick of `weight_ns` found as many threads running as there are CPUs. Whether most did lately.
    fn is_full_mostly(&mut self, is_full: bool, weight_ns: u64) -> bool {
        let part = (weight_ns as f64 / AVERAGED_NS).min(1.0);
        self.full_share += (f64::from(u8::from(is_full)) - self.full_share) * part;
        self.full_share > CROWDED_SHARE
    }

    /// Chooses the CPU to sleep on, by which threads ran at this tick. Whether the tracer will wake on a trainer's CPU.
    pub(super) fn choose_cpu(
        &mut self,
        processes: &[TracedProcess],
        running: &[(usize, usize)],
        tick: Tick,
    ) -> bool {
        self.left.clear();
        let now_ns = tick.start_ns;
        let is_due = now_ns >= self.placed_ns + PLACE_NS;
        let is_full = running.len() >= self.placement.cpus();
        let is_full_mostly = self.is_full_mostly(is_full, tick.weight_ns());
        let may_be_all = is_full && is_full_mostly;
        if is_due && (may_be_all || !self.is_crowded()) {
            self.placed_ns = now_ns;
            let cpus = cpus_of(processes, running);
            if may_be_all && self.placement.is_all(&cpus) {
                self.crowded_until_ns = now_ns + CROWDED_NS;
            } else if !self.is_crowded() {
                self.placement.keep_off(&cpus);
            }
        }
        if now_ns >= self.crowded_until_ns {
            if std::mem::take(&mut self.crowded_until_ns) > 0 {
                self.placement.keep_off(&cpus_of(processes, running));
            }
            return false;
        }
        self.wake_on_a_trainer(processes)
    }

    /// Sees to it that the next wake-up takes the CPU from a thread that trains: of each process in turn.
    fn wake_on_a_trainer(&mut self, processes: &[TracedProcess]) -> bool {
        let trainers = trainers(processes);
        let turns = trainers.len().clamp(1, MAX_TURNS);
        let turn = self.turn.wrapping_add(1);
        self.turn = turn;
        let (mut now, mut left) = (Vec::new(), Vec::new());
        for (number, &(index, at)) in trainers.iter().enumerate() {
            match number % turns == turn % turns {
                true => now.push((index, at)),
                false => left.push(processes[index].id),
            }
        }
        self.left = left;
        let Some(&(index, at)) = now.get(turn / turns % now.len().max(1)) else {
            return false;
        };
        if let Ok(Some(cpu)) = processes[index].threads[at].files.cpu() {
            self.placement.keep_to(cpu);
        }
        true
    }

    /// Gives the trainer's CPU back: nobody waits for what comes next.
    pub(super) fn step_back(&mut self) {
        self.placement.keep_off(&[]);
    }

    /// Whether it is the turn of other trainers than that of `process`.
    pub(super) fn is_left(&self, process: &TracedProcess) -> bool {
        self.left.contains(&process.id)
    }
}

/// Process and place of each of `candidates` that runs.
pub(super) fn running_threads(candidates: &[Candidate]) -> Vec<(usize, usize)> {
    let running = candidates
        .iter()
        .filter(|candidate| candidate.asleep.is_none());
    running
        .map(|candidate| (candidate.process, candidate.thread))
        .collect()
}

/// Process and place of each thread that trains, as far as that can be told: the active first threads of Python processes, but not of
/// children of such a process, which are its workers.
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

/// Where threads run, those first that train.
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
