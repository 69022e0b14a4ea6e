//! One snapshot of every thread: each is read once, and again only where the first read lacked
//! something.

use super::Tracer;
use super::account::TimePoint;
use super::decide::CandidateGroup;
use super::process::TracedProcess;
use super::thread::{LastPoll, TracedThread};
use crate::os::clock::{monotonic_ns, sleep_until, wake_precisely};
use crate::os::stop::{block_child_signals, wait_for_any_stop};
use crate::sampling::schedule::Tick;
use crate::sampling::snapshot::{SnapshotFacts, SnapshotProcess, SnapshotThread};
use crate::sampling::stops::SHORT_NAP;
use crossbeam_channel::Sender;
use std::sync::atomic::Ordering;

/// How long interpreter discovery may take before threads are read without it, ns.
const DISCOVERY_NS: u64 = 4_000_000_000;
/// How long the worker may take to unwind the captures, ns.
const WORKER_NS: u64 = 2_000_000_000;
/// Most rounds over all threads, and for how long rounds continue where a thread has not been
/// captured, ns: on a loaded machine a runnable thread may wait long for a CPU before it stops.
const MAX_ROUNDS: u32 = 12;
const MAX_NS: u64 = 1_000_000_000;
/// How long rounds continue whatever is missing, ns: each may wait [`WORKER_NS`] for a worker that
/// gets no CPU.
const ROUNDS_NS: u64 = 8_000_000_000;
/// Most captures of one thread.
const MAX_CAPTURES: u32 = 3;
/// Nominal length of a snapshot's sample, ns: a sample has a length.
pub(super) const SNAPSHOT_NS: u64 = 1_000_000;
/// Sleep between two checks for another thread of torchspy, ns.
const NAP_NS: u64 = 500_000;
/// How long to do nothing but wait for late stops, ns: where all CPUs are busy, a thread stops as
/// soon as it gets one, and should not stay stopped while others are polled.
const LATE_NS: u64 = 100_000_000;

impl TracedThread {
    /// Whether the snapshot has to capture this thread, for the first time or again.
    pub(super) fn begin_snapshot(&mut self) -> bool {
        let again = self.captures > 0 && self.lacks_something();
        if again {
            self.last_poll = LastPoll::Unknown;
        }
        again || self.captures == 0
    }

    /// Whether the captures so far lacked something that another may provide.
    fn lacks_something(&self) -> bool {
        if self.captures >= MAX_CAPTURES {
            return false;
        }
        let is_asleep = matches!(self.last_poll, LastPoll::Asleep(_));
        let lacks_registers = is_asleep
            && !self.stopped_by_us
            && self.shared.registers_wanted.load(Ordering::Relaxed) != 0;
        let lacks_stack = self.shared.stack_wanted.load(Ordering::Relaxed) != 0;
        lacks_registers || lacks_stack || self.plan.is_behind(&self.shared)
    }
}

impl Tracer {
    /// Captures every thread, sends the facts to `facts`, and ends.
    pub(crate) fn snapshot(mut self, facts: &Sender<SnapshotFacts>) {
        block_child_signals();
        wake_precisely();
        self.capture.prepare();
        self.wait_for(DISCOVERY_NS, Self::interpreters_known);
        let begun_ns = monotonic_ns();
        for round in 0.. {
            let now_ns = monotonic_ns();
            let spent_ns = now_ns.saturating_sub(begun_ns);
            let late = spent_ns > MAX_NS || self.has_exec_storm(now_ns);
            let enough = round >= MAX_ROUNDS && (late || !self.has_uncaptured());
            if enough || spent_ns > ROUNDS_NS || self.control.stop_requested() {
                break;
            }
            self.snapshot_round();
            self.wait_for(WORKER_NS, |tracer| {
                tracer.take_recycled();
                tracer.outbox.is_idle()
            });
            self.take_events();
            let now_ns = monotonic_ns();
            for process in &mut self.processes {
                // Some Python versions name no OS thread in a thread state: only now, with the
                // stack pointers, can states be matched to threads.
                process.match_python_threads(now_ns);
            }
            if !self.lacks_anything() {
                break;
            }
        }
        // The fallback delivers the stacks of older Pythons.
        self.wait_for(DISCOVERY_NS, |tracer| {
            tracer.take_events();
            let mut others = tracer
                .processes
                .iter()
                .filter(|process| process.by_fallback);
            others.all(|process| {
                process.exited || process.threads.iter().any(|thread| thread.captures > 0)
            })
        });
        self.wait_for(WORKER_NS, |tracer| tracer.outbox.is_idle());
        self.release_late_stops();
        let found = self.facts(begun_ns);
        self.flush(monotonic_ns(), true);
        self.outbox.finish(|| self.control.worker_is_abandoned());
        // The receiver is gone where the snapshot took too long.
        let _ = facts.try_send(found);
    }

    /// Whether interpreter discovery has ended in every process. A process that execs again and
    /// again counts as done: none of its programs lives long enough.
    pub(super) fn interpreters_known(&mut self) -> bool {
        self.take_events();
        let now_ns = monotonic_ns();
        let mut processes = self.processes.iter();
        processes.len() > 0
            && processes.all(|process| {
                process.discovery_done || process.exited || process.execs.is_storm(now_ns)
            })
    }

    /// Whether a process execs again and again: it always has threads that were not captured.
    fn has_exec_storm(&self, now_ns: u64) -> bool {
        let mut processes = self.processes.iter();
        processes.any(|process| process.execs.is_storm(now_ns))
    }

    pub(super) fn wait_for(&mut self, longest_ns: u64, mut is_over: impl FnMut(&mut Self) -> bool) {
        let deadline_ns = monotonic_ns() + longest_ns;
        while !is_over(self) && !self.control.stop_requested() {
            let now_ns = monotonic_ns();
            if now_ns >= deadline_ns {
                return;
            }
            if !self.capture.is_outstanding() {
                sleep_until(now_ns + NAP_NS);
            } else {
                wait_for_any_stop(SHORT_NAP);
                self.collect_late_stops();
            }
        }
    }

    /// Waits for outstanding stops, for at most [`LATE_NS`], and captures each thread as soon as it
    /// stops.
    pub(super) fn wait_for_late(&mut self) {
        let deadline_ns = monotonic_ns() + LATE_NS;
        while self.capture.is_outstanding()
            && monotonic_ns() < deadline_ns
            && !self.control.stop_requested()
        {
            wait_for_any_stop(SHORT_NAP);
            self.collect_late_stops();
        }
    }

    fn snapshot_round(&mut self) {
        self.quality.ticks += 1;
        self.collect_late_stops();
        let start_ns = monotonic_ns();
        self.accounted_to.ns = start_ns;
        let tick = Tick {
            start_ns,
            end_ns: start_ns + SNAPSHOT_NS,
            late: false,
            missed: 0,
        };
        let mut candidates = Vec::new();
        for index in 0..self.processes.len() {
            self.processes[index].prime();
            self.processes[index].restart(self.accounted_to);
            self.poll_process(index, tick, &mut candidates);
        }
        self.accounted_to = self.accounted_to.after(tick);
        for candidate in &candidates {
            self.processes[candidate.process].prime_thread(candidate.thread);
        }
        self.capture_candidates(candidates, tick, CandidateGroup::Others);
        self.charge_longest_stop();
        self.remove_exited();
        self.show_tick(false);
    }

    fn recorded(&self) -> impl Iterator<Item = &TracedThread> {
        let threads = self
            .processes
            .iter()
            .filter(|process| !process.by_fallback)
            .flat_map(|process| &process.threads);
        threads.filter(|thread| thread.is_recorded())
    }

    fn has_uncaptured(&self) -> bool {
        self.recorded().any(|thread| thread.captures == 0)
    }

    fn lacks_anything(&self) -> bool {
        self.has_uncaptured() || self.recorded().any(TracedThread::lacks_something)
    }

    fn facts(&self, begun_ns: u64) -> SnapshotFacts {
        let processes = self.processes.iter().map(|process| SnapshotProcess {
            pid: process.pid,
            interpreter: process.interpreter.clone(),
            execs: process.execs.count(),
            threads: process
                .threads
                .iter()
                .map(|thread| SnapshotThread {
                    tid: thread.tid,
                    python_state: thread.plan.state_address,
                    captured_ns: thread.captured_ns,
                    asleep: match thread.last_poll {
                        LastPoll::Asleep(whereabouts) => Some(whereabouts),
                        _ => None,
                    },
                })
                .collect(),
        });
        SnapshotFacts {
            begun_ns,
            processes: processes.collect(),
        }
    }
}

impl TracedProcess {
    /// The last capture has the latest start: a snapshot stands for no time before it.
    fn restart(&mut self, now: TimePoint) {
        for thread in &mut self.threads {
            thread.ledger.restart(now);
        }
    }

    fn prime(&mut self) {
        for at in 0..self.threads.len() {
            self.prime_thread(at);
        }
    }

    fn prime_thread(&mut self, at: usize) {
        if let (Some(interpreter), Some(thread)) = (&self.interpreter, self.threads.get_mut(at)) {
            thread.plan.prime(interpreter, &self.memory);
        }
    }
}
