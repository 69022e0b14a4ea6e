//! Stopping the chosen threads of a tick: all are asked first, then each is read and let go as soon as it stands.

use crate::os::clock::monotonic_ns;
use crate::os::stop::{Collected, Interrupting, StopError, StoppedThread, wait_for_any_stop};
use std::sync::LazyLock;
use std::time::Duration;

/// How long to look again and again before going to sleep for the stop: waking up costs more than most stops last. On a virtual
/// machine the interrupt alone takes 35 to 100 us to arrive (mean of some 600, at 100 Hz).
const SPIN_NS: u64 = 200_000;
/// The same where threads are asked to stop on every CPU, ours too: one that we keep from running cannot stop.
const CROWDED_SPIN_NS: u64 = 5_000;
/// How long to wait for threads that do not stop: a thread that waits for a CPU stops when it gets one, and is read then.
const DEADLINE_NS: u64 = 2_000_000;
/// Longest sleep between two looks. It bounds by how much the measured stop may exceed the true one.
pub(super) const NAP: Duration = Duration::from_micros(250);
/// The same where each thread is read once, and not a hundred times a second.
pub(super) const SHORT_NAP: Duration = Duration::from_micros(40);

/// CPUs that torchspy may run on.
static CPUS: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

/// Threads that were asked to stop and had not by the deadline: read and let go the moment they do.
#[derive(Debug, Default)]
pub(super) struct LateStops {
    pending: Vec<Interrupting>,
}

impl LateStops {
    /// Every late thread that stands by now. Dropping one resumes it, with its signal.
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

    /// Whether any thread may still stop for us.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether this thread may still stop for us, or stands and was not collected yet.
    pub(super) fn contains(&self, tid: i32) -> bool {
        self.pending
            .iter()
            .any(|interrupting| interrupting.tid() == tid)
    }
}

/// What became of one request.
pub(super) enum Outcome {
    /// It was read and runs on; it stood for at most so long, ns.
    Resumed(u64),
    /// It had not stopped by the deadline, or is still awaited from an earlier tick.
    TimedOut,
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
}

/// Asks all of `requests` to stop, calls `read` with each that stands and lets it go. `done` is told what became of each. `nap` is the
/// longest sleep between two looks.
pub(super) fn stop_all(
    requests: &[Request],
    nap: Duration,
    late: &mut LateStops,
    mut read: impl FnMut(usize, &StoppedThread),
    mut done: impl FnMut(usize, Outcome),
) {
    let mut pending = Vec::with_capacity(requests.len());
    for (index, request) in requests.iter().enumerate() {
        if late.contains(request.tid) {
            done(index, Outcome::TimedOut);
            continue;
        }
        match Interrupting::request(request.tid, request.leader, request.is_own_child) {
            Ok(interrupting) => pending.push((index, interrupting)),
            Err(error) => done(index, Outcome::Failed(error)),
        }
    }
    let spin_ns = if pending.len() < *CPUS {
        SPIN_NS
    } else {
        CROWDED_SPIN_NS
    };
    let begun_ns = monotonic_ns();
    let mut progress_ns = begun_ns;
    while !pending.is_empty() {
        let mut still = Vec::with_capacity(pending.len());
        for (index, interrupting) in pending {
            match interrupting.collect() {
                Collected::Stopped(stopped) => {
                    read(index, &stopped);
                    done(index, Outcome::Resumed(stopped.resume()));
                    progress_ns = monotonic_ns();
                }
                Collected::Pending(interrupting) => still.push((index, interrupting)),
                Collected::Gone => done(index, Outcome::Gone),
                Collected::Replaced(interrupting) => {
                    late.pending.push(interrupting);
                    done(index, Outcome::Gone);
                }
            }
        }
        pending = still;
        if pending.is_empty() {
            break;
        }
        let now_ns = monotonic_ns();
        if now_ns > begun_ns + DEADLINE_NS {
            for (index, interrupting) in pending {
                late.pending.push(interrupting);
                done(index, Outcome::TimedOut);
            }
            return;
        }
        if now_ns > progress_ns + spin_ns {
            wait_for_any_stop(nap);
        } else {
            std::hint::spin_loop();
        }
    }
}
