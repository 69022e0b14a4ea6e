//! Stops a thread: request, wait, read, resume. Keeps the requests that are still outstanding.

use crate::os::clock::monotonic_ns;
use crate::os::stop::{Collected, Interrupting, StopError, StoppedThread, wait_for_any_stop};
use std::sync::LazyLock;
use std::time::Duration;

/// How long to spin before sleeping for the stop, ns: a wake-up costs more than most stops last. On
/// a virtual machine the interrupt alone takes 35 to 100 us to arrive (mean of some 600, at 100
/// Hz).
const SPIN_NS: u64 = 200_000;
/// The same where as many threads run as there are CPUs, ns.
const CROWDED_SPIN_NS: u64 = 5_000;
/// How long to wait for a stop, ns. A thread that waits for a CPU stops when it gets one, and is
/// read then.
const DEADLINE_NS: u64 = 2_000_000;
/// Longest sleep between two checks. It bounds by how much the measured stop may exceed the true
/// one.
pub(super) const NAP: Duration = Duration::from_micros(250);
/// The same in a snapshot, which stops each thread once.
pub(super) const SHORT_NAP: Duration = Duration::from_micros(40);
/// Longest sleep where all outstanding stops are of threads that are blocked in the kernel: a wait
/// for a disk or a server may last for minutes. (A stop wakes the tracer.)
pub(super) const BLOCKED_NAP: Duration = Duration::from_millis(5);
/// A thread that has not stopped for this long is blocked, ns: one that waits for a CPU gets it.
const BLOCKED_NS: u64 = 20_000_000;

/// CPUs that torchspy may run on.
static CPUS: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

/// Outstanding stop requests, and threads that were killed while stopped and are not reaped yet.
///
/// No other thread of a process is seized while it has one. PTRACE_SEIZE waits for the process's
/// cred_guard_mutex (ptrace_attach, kernel/ptrace.c). An exec holds that mutex until all other
/// threads are gone, and a traced thread is gone only when its tracer has waited for it: a tracer
/// that waits for the mutex instead would hang together with its target. Without an outstanding
/// request that wait is harmless.
#[derive(Debug, Default)]
pub(super) struct LateStops {
    pending: Vec<Interrupting>,
}

impl LateStops {
    /// Whether all of them are blocked in the kernel, by the time that they have not stopped for.
    pub(super) fn are_blocked(&self, now_ns: u64) -> bool {
        let mut pending = self.pending.iter();
        pending.all(|each| now_ns.saturating_sub(each.asked_ns()) >= BLOCKED_NS)
    }

    /// Takes the late threads that are stopped by now.
    pub(super) fn stopped_late(&mut self) -> Vec<StoppedThread> {
        let mut stopped_late = Vec::new();
        for interrupting in std::mem::take(&mut self.pending) {
            match interrupting.collect() {
                Collected::Pending(interrupting) | Collected::Replaced(interrupting) => {
                    interrupting.ask_again();
                    self.pending.push(interrupting);
                }
                Collected::Stopped(stopped) => stopped_late.push(stopped),
                Collected::Gone => {}
            }
        }
        stopped_late
    }

    /// Resumes a thread; returns an upper bound of its stop, ns.
    pub(super) fn resume(&mut self, stopped: StoppedThread) -> u64 {
        let resumed = stopped.resume();
        self.pending.extend(resumed.dying);
        resumed.stopped_ns
    }

    /// Requests a stop, calls `read` on the stopped thread, and resumes it. Returns the outcome,
    /// and the time from the request to the end, ns.
    pub(super) fn stop(
        &mut self,
        request: Request,
        wait: Wait,
        read: impl FnOnce(&StoppedThread),
    ) -> (Outcome, u64) {
        let begun_ns = monotonic_ns();
        if self.has_process(request.leader)
            || (request.is_asleep && begun_ns > wait.sleepers_until_ns)
        {
            return (Outcome::NotRequested, 0);
        }
        let asked = Interrupting::request(request.tid, request.leader, request.is_own_child);
        let outcome = match asked {
            Ok(interrupting) => self.await_stop(interrupting, wait, read),
            Err(error) => Outcome::Failed(error),
        };
        (outcome, monotonic_ns() - begun_ns)
    }

    fn await_stop(
        &mut self,
        mut interrupting: Interrupting,
        wait: Wait,
        read: impl FnOnce(&StoppedThread),
    ) -> Outcome {
        let begun_ns = monotonic_ns();
        loop {
            match interrupting.collect() {
                Collected::Stopped(stopped) => {
                    read(&stopped);
                    return Outcome::Resumed(self.resume(stopped));
                }
                Collected::Pending(pending) => interrupting = pending,
                Collected::Gone => return Outcome::Gone,
                Collected::Replaced(replaced) => {
                    self.pending.push(replaced);
                    return Outcome::Gone;
                }
            }
            let now_ns = monotonic_ns();
            if now_ns > begun_ns + DEADLINE_NS {
                self.pending.push(interrupting);
                return Outcome::TimedOut;
            }
            if now_ns > begun_ns + wait.spin_ns {
                wait_for_any_stop(wait.nap);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether a request is outstanding in the process whose first thread is `leader`.
    pub(super) fn has_process(&self, leader: i32) -> bool {
        self.pending
            .iter()
            .any(|interrupting| interrupting.leader() == leader)
    }

    /// Whether a request to this thread is outstanding or not collected yet.
    pub(super) fn contains(&self, tid: i32) -> bool {
        self.pending
            .iter()
            .any(|interrupting| interrupting.tid() == tid)
    }
}

/// Outcome of one request.
pub(super) enum Outcome {
    /// It was read and resumed; it was stopped for at most this long, ns.
    Resumed(u64),
    /// It had not stopped by the deadline.
    TimedOut,
    /// No request was made: another request of its process is outstanding, or the time for sleepers
    /// was used up.
    NotRequested,
    /// The request failed.
    Failed(StopError),
    /// The thread exited.
    Gone,
}

/// A thread to stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) tid: i32,
    /// Tid of the first thread of its process.
    pub(super) leader: i32,
    /// It belongs to a process that torchspy started.
    pub(super) is_own_child: bool,
    /// It sleeps, so the request can be deferred.
    pub(super) is_asleep: bool,
}

/// How to wait for stops.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// How long to spin, ns, and the longest sleep between two checks afterwards.
    pub(super) spin_ns: u64,
    nap: Duration,
    sleepers_until_ns: u64,
}

impl Wait {
    /// Whether a thread may have to wait for its CPU.
    pub(super) fn is_crowded(&self) -> bool {
        self.spin_ns < SPIN_NS
    }

    /// For the `requests` stops of a tick. Sleepers are stopped only until `sleepers_until_ns`
    /// (CLOCK_MONOTONIC). `yields_cpu`: a thread may wait for the CPU that the caller runs on.
    pub(super) fn new(
        requests: usize,
        nap: Duration,
        yields_cpu: bool,
        sleepers_until_ns: u64,
    ) -> Self {
        // With as many threads as CPUs, the thread may wait for the CPU that the tracer spins on.
        let spin_ns = if yields_cpu {
            0
        } else if requests < *CPUS {
            SPIN_NS
        } else {
            CROWDED_SPIN_NS
        };
        Self {
            spin_ns,
            nap,
            sleepers_until_ns,
        }
    }
}
