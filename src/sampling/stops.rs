//! Stopping a thread: asked, awaited, read, let go; and the stops that are still outstanding.

use crate::os::clock::monotonic_ns;
use crate::os::stop::{Collected, Interrupting, StopError, StoppedThread, wait_for_any_stop};
use std::sync::LazyLock;
use std::time::Duration;

/// How long to poll before going to sleep for the stop: waking up costs more than most stops last. On a virtual
/// machine the interrupt alone takes 35 to 100 us to arrive (mean of some 600, at 100 Hz).
const SPIN_NS: u64 = 200_000;
/// The same where as many threads run as there are CPUs.
const CROWDED_SPIN_NS: u64 = 5_000;
/// How long to wait for threads that do not stop: a thread that waits for a CPU stops when it gets one, and is read then.
const DEADLINE_NS: u64 = 2_000_000;
/// Longest sleep between two polls. It bounds by how much the measured stop may exceed the true one.
pub(super) const NAP: Duration = Duration::from_micros(250);
/// The same where each thread is read once, and not a hundred times a second.
pub(super) const SHORT_NAP: Duration = Duration::from_micros(40);

/// CPUs that torchspy may run on.
static CPUS: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

/// What a thread was asked that has not been answered yet: to stop, or, where it was killed while it was stopped, to be waited for.
///
/// Nothing of its process is seized while there is one. PTRACE_SEIZE waits for the process's cred_guard_mutex (ptrace_attach,
/// kernel/ptrace.c), which an exec holds until all other threads are gone, and a traced one is gone only when its tracer has waited for it:
/// a tracer that waits for the mutex instead hangs with its target. With nothing outstanding there that wait harms nobody.
#[derive(Debug, Default)]
pub(super) struct LateStops {
    pending: Vec<Interrupting>,
}

impl LateStops {
    /// Every late thread that is stopped by now.
    pub(super) fn arrived(&mut self) -> Vec<StoppedThread> {
        let mut arrived = Vec::new();
        for interrupting in std::mem::take(&mut self.pending) {
            match interrupting.collect() {
                Collected::Pending(interrupting) | Collected::Replaced(interrupting) => {
                    interrupting.ask_again();
                    self.pending.push(interrupting);
                }
                Collected::Stopped(stopped) => arrived.push(stopped),
                Collected::Gone => {}
            }
        }
        arrived
    }

    /// Lets a thread run on; gives for how long it was stopped at most, ns.
    pub(super) fn resume(&mut self, stopped: StoppedThread) -> u64 {
        let resumed = stopped.resume();
        self.pending.extend(resumed.dying);
        resumed.stopped_ns
    }

    /// Asks a thread to stop, calls `read` with it when it is stopped, and lets it go. What became of it, and for how long it was dealt
    /// with, ns.
    pub(super) fn stop(
        &mut self,
        request: Request,
        wait: Wait,
        read: impl FnOnce(&StoppedThread),
    ) -> (Outcome, u64) {
        let begun_ns = monotonic_ns();
        if self.has_of(request.leader) || (request.is_asleep && begun_ns > wait.sleepers_until_ns) {
            return (Outcome::NotAsked, 0);
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

    /// Whether nothing is outstanding.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether something is outstanding of the process with this first thread.
    pub(super) fn has_of(&self, leader: i32) -> bool {
        self.pending
            .iter()
            .any(|interrupting| interrupting.leader() == leader)
    }

    /// Whether this thread may still stop for us, or is stopped and was not collected yet.
    pub(super) fn contains(&self, tid: i32) -> bool {
        self.pending
            .iter()
            .any(|interrupting| interrupting.tid() == tid)
    }
}

/// What became of one request.
pub(super) enum Outcome {
    /// It was read and runs on; it was stopped for at most so long, ns.
    Resumed(u64),
    /// It had not stopped by the deadline.
    TimedOut,
    /// It was not asked: another of its process had not answered yet, or others took all the time there was for it.
    NotAsked,
    /// It could not be asked.
    Failed(StopError),
    /// It ended.
    Gone,
}

/// A thread to stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Its tid.
    pub(super) tid: i32,
    /// The first thread of its process.
    pub(super) leader: i32,
    /// Of a process that torchspy started.
    pub(super) is_own_child: bool,
    /// It sleeps: asking it can wait.
    pub(super) is_asleep: bool,
}

/// How stops are awaited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// How long to poll without a sleep, and the longest sleep between two polls afterwards.
    spin_ns: u64,
    nap: Duration,
    sleepers_until_ns: u64,
}

impl Wait {
    /// For `requests` stops of a tick. Sleepers are asked for as long as CLOCK_MONOTONIC shows less than `sleepers_until_ns`. `gives_way`
    /// where one of the threads waits for the very CPU that the caller runs on.
    pub(super) fn new(
        requests: usize,
        nap: Duration,
        gives_way: bool,
        sleepers_until_ns: u64,
    ) -> Self {
        // With as many threads as CPUs the one that is asked may be waiting for the CPU that we spin on.
        let spin_ns = if gives_way {
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
