//! A snapshot of every thread, and the end: each is read fresh, and read again only where the first read lacked something.

use super::Tracer;
use super::account::Reached;
use super::decide::Who;
use super::process::TracedProcess;
use super::thread::{Seen, TracedThread};
use crate::os::clock::{monotonic_ns, sleep_until, wake_precisely};
use crate::os::stop::{block_child_signals, wait_for_any_stop};
use crate::sampling::look::{LookFacts, LookedProcess, LookedThread};
use crate::sampling::schedule::Tick;
use crate::sampling::stops::SHORT_NAP;
use crossbeam_channel::Sender;
use std::sync::atomic::Ordering;

/// How long the search for interpreters may take before threads are read without.
const SETTLE_NS: u64 = 4_000_000_000;
/// How long the worker may take to unwind what was read.
const WORKER_NS: u64 = 2_000_000_000;
/// How often everything may be gone through, and for how long besides where a thread has not been read: on a loaded machine one that
/// wants to run may wait for long before it stops.
const MAX_ROUNDS: u32 = 12;
const MAX_NS: u64 = 1_000_000_000;
/// How often one thread is read.
const MAX_CAPTURES: u32 = 3;
/// The time that a snapshot's sample stands for, ns: a sample has a length.
pub(super) const SNAPSHOT_NS: u64 = 1_000_000;
/// Pause of a wait for another thread of torchspy.
const NAP_NS: u64 = 500_000;
/// How long to do nothing but wait for threads that were asked to stop and wait for a CPU themselves: where all CPUs are taken, one
/// stops as soon as it gets one, and should not be stopped while others are polled.
const LATE_NS: u64 = 100_000_000;

impl TracedThread {
    /// Whether a snapshot, which reads every thread once, has to read this one, for the first time or again.
    pub(super) fn begin_snapshot(&mut self) -> bool {
        let again = self.captures > 0 && self.lacks_something();
        if again {
            self.seen = Seen::Unknown;
        }
        again || self.captures == 0
    }

    /// Whether the reads so far lacked something that another may give.
    fn lacks_something(&self) -> bool {
        if self.captures >= MAX_CAPTURES {
            return false;
        }
        let is_asleep = matches!(self.seen, Seen::Asleep(_));
        let lacks_registers = is_asleep
            && !self.own_stop
            && self.shared.registers_wanted.load(Ordering::Relaxed) != 0;
        let lacks_stack = self.shared.stack_wanted.load(Ordering::Relaxed) != 0;
        lacks_registers || lacks_stack || self.plan.is_behind(&self.shared)
    }
}

impl Tracer {
    /// Reads every thread, tells `facts` of it, and ends.
    pub(crate) fn snapshot(mut self, facts: &Sender<LookFacts>) {
        block_child_signals();
        wake_precisely();
        self.capture.prepare();
        self.wait_for(SETTLE_NS, Self::are_settled);
        let begun_ns = monotonic_ns();
        for round in 0.. {
            let now_ns = monotonic_ns();
            let late = now_ns.saturating_sub(begun_ns) > MAX_NS || self.has_short_lives(now_ns);
            let enough = round >= MAX_ROUNDS && (late || !self.has_unread());
            if enough || self.control.stop_requested() {
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
                // Of some Pythons it is known only now whose each thread state is: by where the stacks are.
                process.match_python_threads(now_ns);
            }
            if !self.lacks_anything() {
                break;
            }
        }
        // Of an older Python the stacks come from elsewhere.
        self.wait_for(SETTLE_NS, |tracer| {
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
        self.outbox.finish();
        // Nobody waits for it any more where it took too long.
        let _ = facts.try_send(found);
    }

    /// Whether it is known of every process what interpreter it has, if any; or its programs do not live for long enough to find out.
    pub(super) fn are_settled(&mut self) -> bool {
        self.take_events();
        let now_ns = monotonic_ns();
        let mut processes = self.processes.iter();
        processes.len() > 0
            && processes.all(|process| {
                process.is_settled || process.exited || process.execs.are_short_lives(now_ns)
            })
    }

    /// Whether a process execs again and again: there will always be threads that have not been read.
    fn has_short_lives(&self, now_ns: u64) -> bool {
        let mut processes = self.processes.iter();
        processes.any(|process| process.execs.are_short_lives(now_ns))
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
                self.take_late();
            }
        }
    }

    /// Waits, not for long, for threads that were asked to stop and have not yet, and reads them the moment they do.
    pub(super) fn wait_for_late(&mut self) {
        let deadline_ns = monotonic_ns() + LATE_NS;
        while self.capture.is_outstanding()
            && monotonic_ns() < deadline_ns
            && !self.control.stop_requested()
        {
            wait_for_any_stop(SHORT_NAP);
            self.take_late();
        }
    }

    fn snapshot_round(&mut self) {
        self.quality.ticks += 1;
        self.take_late();
        let start_ns = monotonic_ns();
        self.reached.ns = start_ns;
        let tick = Tick {
            start_ns,
            end_ns: start_ns + SNAPSHOT_NS,
            late: false,
            missed: 0,
        };
        let mut candidates = Vec::new();
        for index in 0..self.processes.len() {
            self.processes[index].prime();
            self.processes[index].restart(self.reached);
            self.poll_process(index, tick, &mut candidates);
        }
        self.reached = self.reached.after(tick);
        for candidate in &candidates {
            self.processes[candidate.process].prime_thread(candidate.thread);
        }
        self.take_candidates(candidates, tick, Who::Others);
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

    fn has_unread(&self) -> bool {
        self.recorded().any(|thread| thread.captures == 0)
    }

    fn lacks_anything(&self) -> bool {
        self.has_unread() || self.recorded().any(TracedThread::lacks_something)
    }

    fn facts(&self, begun_ns: u64) -> LookFacts {
        let processes = self.processes.iter().map(|process| LookedProcess {
            pid: process.pid,
            interpreter: process.interpreter.clone(),
            execs: process.execs.count(),
            threads: process
                .threads
                .iter()
                .map(|thread| LookedThread {
                    tid: thread.tid,
                    python_state: thread.plan.state_address,
                    captured_ns: thread.captured_ns,
                    asleep: match thread.seen {
                        Seen::Asleep(whereabouts) => Some(whereabouts),
                        _ => None,
                    },
                })
                .collect(),
        });
        LookFacts {
            begun_ns,
            processes: processes.collect(),
        }
    }
}

impl TracedProcess {
    /// What was read last has the latest start: no snapshot stands for the time before it.
    fn restart(&mut self, now: Reached) {
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
