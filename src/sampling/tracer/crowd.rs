//! On which CPU the tracer wakes.
//!
//! Where a CPU is idle it takes that one, and nobody notices. Where each of them runs a thread of the target, whoever it takes the CPU
//! from stops computing at that moment, and those who wait for that thread (at an OpenMP barrier, in a collective) soon wait: what
//! is looked at some tens of microseconds later is a wait that the look has caused. So the tracer wakes on the CPU of the thread that
//! trains: what that one did when it lost the CPU is what it did at the timer's moment, however long it is until it is read.

use super::{Candidate, Tick, TracedProcess, Tracer};
use crate::os::priority::InFront;
use crate::sampling::traced::TracedThread;

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

/// Whether a CPU is left for the tracer, and whose it takes where none is.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// When it was last found out where threads run, CLOCK_MONOTONIC.
    placed_ns: u64,
    crowded_until_ns: u64,
    /// In which share of the latest ticks as many threads ran as there are CPUs.
    full_share: f64,
    /// The process whose first thread is to lose its CPU at the next wake-up.
    turn: usize,
    in_front: Option<InFront>,
}

impl Crowd {
    /// Runs as others do until the next tick.
    pub(super) fn step_back(&mut self) {
        self.in_front = None;
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

impl Tracer {
    /// Chooses the CPU to sleep on, by which threads ran at this tick.
    pub(super) fn choose_cpu(&mut self, running: &[(usize, usize)], tick: Tick) {
        // Elsewhere a real-time priority is for as long as somebody stands stopped.
        self.crowd.step_back();
        let now_ns = tick.start_ns;
        let is_due = now_ns >= self.crowd.placed_ns + PLACE_NS;
        let is_full = running.len() >= self.placement.cpus();
        let is_full_mostly = self.crowd.is_full_mostly(is_full, tick.weight_ns());
        let may_be_all = is_full && is_full_mostly;
        if is_due && (may_be_all || !self.crowd.is_crowded()) {
            self.crowd.placed_ns = now_ns;
            let cpus = self.cpus_of(running);
            if may_be_all && self.placement.is_all(&cpus) {
                self.crowd.crowded_until_ns = now_ns + CROWDED_NS;
            } else if !self.crowd.is_crowded() {
                self.placement.keep_off(&cpus);
            }
        }
        if now_ns >= self.crowd.crowded_until_ns {
            if std::mem::take(&mut self.crowd.crowded_until_ns) > 0 {
                self.placement.keep_off(&self.cpus_of(running));
            }
            return;
        }
        self.wake_on_a_trainer();
    }

    /// Sees to it that the next wake-up takes the CPU from a first thread: of each process in turn.
    fn wake_on_a_trainer(&mut self) {
        let trainers = self.processes.iter();
        let trainers: Vec<&TracedThread> = trainers
            .filter_map(TracedProcess::active_first_thread)
            .collect();
        self.crowd.turn = self.crowd.turn.wrapping_add(1);
        let Some(subject) = trainers.get(self.crowd.turn % trainers.len().max(1)) else {
            return;
        };
        if let Ok(Some(cpu)) = subject.files.cpu() {
            self.placement.keep_to(cpu);
        }
        self.crowd.in_front = Some(self.ahead.stand_in_front());
    }

    /// Where threads run, those first that train.
    fn cpus_of(&self, running: &[(usize, usize)]) -> Vec<usize> {
        let threads = |first: bool| {
            running.iter().filter_map(move |&(process, at)| {
                let thread = self.processes.get(process)?.threads.get(at)?;
                (thread.is_first() == first).then_some(thread)
            })
        };
        let threads = threads(true).chain(threads(false)).take(MAX_PLACED);
        threads
            .filter_map(|thread| thread.files.cpu().ok().flatten())
            .collect()
    }
}
