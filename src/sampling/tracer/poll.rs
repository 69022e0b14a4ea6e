//! Poll: which threads ran since the last tick, and where the others sleep.

use super::account::TimePoint;
use super::gil::gils_of;
use super::process::TracedProcess;
use super::thread::{LastPoll, TracedThread};
use crate::model::frame::Partial;
use crate::model::sample::ThreadState;
use crate::os::sockets;
use crate::os::syscalls::is_restarted;
use crate::os::threads::{SchedStat, Whereabouts};
use crate::sampling::schedule::Tick;
use crate::sampling::session::{IdleThreads, SessionOptions};

/// Ticks between polls of a dead first thread: an exec of another thread reuses its tid.
const DEAD_TICKS: u64 = 10;

/// A thread that runs at this tick, or a sleeper whose registers are needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// Index of the process, and of the thread in it.
    pub(super) process: usize,
    pub(super) thread: usize,
    /// Time slices so far (schedstat).
    pub(super) slices: u64,
    /// Where it sleeps, if it is a sleeper whose registers are needed; `None` if it runs.
    pub(super) asleep: Option<Whereabouts>,
    /// It runs, and a stop would probably end its system call early.
    pub(super) stop_would_interrupt: bool,
    /// It has slept so often since the last poll that few of its sleeps last for a read, or it runs
    /// for less time than a stop takes to land: it is stopped wherever it is by then.
    pub(super) sleeps_briefly: bool,
    /// It slept when it was polled, and woke while it was read.
    pub(super) woke: bool,
}

/// Sleeps a millisecond from which on a thread sleeps briefly. A stop is one, too: at 1,000 Hz
/// there is one in each.
const BRIEF_PER_MS: u64 = 2;

/// Result of a poll.
pub(super) enum Found {
    /// Its tick is already accounted for: it kept its stack, or is not recorded.
    Accounted,
    /// It is to be captured as [`super::decide`] chooses.
    Candidate(Candidate),
    /// It sleeps and is read without a stop.
    Asleep(Candidate, Whereabouts, SchedStat),
    /// The kernel does not report its state.
    Unreadable(Partial),
    Gone,
}

/// How threads are polled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Poll {
    once: bool,
    gil_only: bool,
    nonblocking: bool,
    idle_threads: IdleThreads,
}

impl Poll {
    pub(super) fn new(options: &SessionOptions) -> Self {
        Self {
            once: options.once,
            gil_only: options.gil_only,
            nonblocking: options.never_stops(),
            idle_threads: options.idle_threads,
        }
    }

    /// Polls thread `at` of `process`, which has index `index`, in `tick`, which begins at
    /// `before`. `is_awaited`: an earlier tick asked the thread to stop. `may_stop`: threads of the
    /// process may be stopped at all.
    pub(super) fn thread(
        self,
        process: &mut TracedProcess,
        (index, at): (usize, usize),
        (before, tick): (TimePoint, Tick),
        is_awaited: impl Fn(i32) -> bool,
        may_stop: bool,
    ) -> Found {
        let (thread, backoff) = (&mut process.threads[at], &mut process.backoffs[at]);
        let stays_dead = thread.is_dead && !before.ticks.is_multiple_of(DEAD_TICKS);
        if !thread.is_selected || stays_dead {
            thread.ledger.discard_to(before.after(tick));
            return Found::Accounted;
        }
        if self.once && !thread.begin_snapshot() {
            return Found::Accounted;
        }
        if std::mem::take(&mut thread.is_dead) {
            thread.ledger.discard_to(before);
        }
        thread.ledger.poll(before, tick);
        let now = match thread.files.schedstat() {
            Ok(now) => now,
            Err(error) => return unreadable(thread, &error),
        };
        let unscheduled = now.is_kept() && now == thread.last;
        let wants_stack = thread.wants_stack(&now);
        let wants_registers = unscheduled && thread.wants_registers(&now);
        if unscheduled
            && matches!(thread.last_poll, LastPoll::Asleep(_))
            && !(wants_registers || wants_stack)
        {
            backoff.record_same_sleep();
            thread.reuse();
            return Found::Accounted;
        }
        let running = Candidate {
            process: index,
            thread: at,
            slices: now.slices,
            asleep: None,
            stop_would_interrupt: false,
            sleeps_briefly: false,
            woke: false,
        };
        if unscheduled && self.runs_on(thread) {
            process.stopped = Some(false);
            return Found::Candidate(running);
        }
        let previous = thread.last;
        let ran = thread.advance(now);
        thread.ledger.add_scheduled(ran);
        thread.may_be_renamed = true;
        let whereabouts = match thread.files.whereabouts() {
            Ok(whereabouts) => whereabouts,
            Err(error) => return unreadable(thread, &error),
        };
        let elapsed_ns = tick.weight_ns() + thread.ledger.unpolled_ns();
        let sleeps = whereabouts != Whereabouts::Running;
        // Loosely, what has work and no CPU is idle, too.
        let (active_ns, seems_idle) = match self.idle_threads {
            IdleThreads::Close => (ran.0 + ran.1, sleeps),
            IdleThreads::Loose => (ran.0, true),
        };
        backoff.record_activity(active_ns, elapsed_ns, seems_idle);
        let mut candidate = Candidate {
            sleeps_briefly: (now.slices.saturating_sub(previous.slices)) * 1_000_000
                > BRIEF_PER_MS * elapsed_ns,
            stop_would_interrupt: thread.calls.stop_would_interrupt(
                (ran.0, tick.weight_ns()),
                now.slices != previous.slices,
                || thread.files.voluntary_switches(),
                tick.start_ns,
            ),
            ..running
        };
        // A thread that an earlier tick asked to stop, and that is stopped by now, is not a
        // sleeper: it is captured with the late stops. A thread that the stop cannot reach is one:
        // the parent of a vfork, or a thread whose file system does not answer.
        let is_stopped = || {
            is_awaited(thread.tid)
                && !matches!(thread.files.stat(), Ok((ThreadState::Uninterruptible, _)))
        };
        if !sleeps || is_stopped() {
            process.stopped = Some(false);
            return Found::Candidate(candidate);
        }
        let pid = process.pid;
        let has_timeout = |socket| sockets::has_timeout(pid, socket).unwrap_or(true);
        thread
            .calls
            .record_sleep(&whereabouts, tick.start_ns, has_timeout);
        if self.gil_only && !gils_of(process).lets_run(&process.threads[at].plan) {
            let thread = &mut process.threads[at];
            thread.last_poll = LastPoll::Unknown;
            thread.ledger.discard_poll();
            return Found::Accounted;
        }
        let thread = &mut process.threads[at];
        if is_back_in_same_sleep(thread, &whereabouts, &previous, &now)
            && !(wants_registers || wants_stack)
        {
            // Where it wakes once more, that was not the stop's doing.
            thread.stopped_by_us = false;
            thread.reuse();
            return Found::Accounted;
        }
        if self.needs_stop(thread, &whereabouts, wants_registers) && may_stop {
            candidate.asleep = Some(whereabouts);
            return Found::Candidate(candidate);
        }
        Found::Asleep(candidate, whereabouts, now)
    }

    /// Whether a thread that ran at the last poll, and was not scheduled since, is still on its
    /// CPU, or still waits for one: to fall asleep it leaves it, which shows in its scheduling
    /// statistics. After a stop it may be elsewhere.
    fn runs_on(self, thread: &TracedThread) -> bool {
        self.nonblocking
            && matches!(thread.last_poll, LastPoll::Running)
            && thread.plan.state_address.is_some()
    }

    /// Whether a sleeper has to be stopped for its registers, and a stop does not end its system
    /// call.
    fn needs_stop(
        self,
        thread: &mut TracedThread,
        whereabouts: &Whereabouts,
        wants_registers: bool,
    ) -> bool {
        // The kernel refused the last stop: the thread is read without one, and stopped at the next
        // poll.
        let was_refused = std::mem::take(&mut thread.stopped_by_us)
            && matches!(thread.last_poll, LastPoll::Running);
        // SIGSTOP stops a thread at any instruction of its code, where its caller can be found only
        // from its registers.
        let stopped_in_code = matches!(whereabouts, Whereabouts::Blocked { .. })
            && matches!(thread.files.stat(), Ok((ThreadState::Stopped, _)));
        if stopped_in_code {
            thread.state = ThreadState::Stopped;
        }
        // A stop ends no system call of a thread that SIGSTOP has already stopped: it goes from one
        // stop to the other and back.
        let is_harmless = stopped_in_code
            || thread.state == ThreadState::Stopped
            || whereabouts.syscall().is_some_and(is_restarted);
        let wants_registers = wants_registers || (stopped_in_code && !was_refused);
        wants_registers && is_harmless && !self.nonblocking
    }
}

fn unreadable(thread: &mut TracedThread, error: &std::io::Error) -> Found {
    // The next poll must not reuse the stack of an earlier sleep.
    thread.last_poll = LastPoll::Unknown;
    match error.raw_os_error() {
        Some(nix::libc::ESRCH | nix::libc::ENOENT) => Found::Gone,
        Some(nix::libc::EPERM | nix::libc::EACCES) => Found::Unreadable(Partial::PermissionDenied),
        _ => Found::Unreadable(Partial::StackUnreadable),
    }
}

/// Whether a thread that ran a little is back in the same sleep in which we stopped it.
fn is_back_in_same_sleep(
    thread: &TracedThread,
    now: &Whereabouts,
    before: &SchedStat,
    after: &SchedStat,
) -> bool {
    let LastPoll::Asleep(then) = thread.last_poll else {
        return false;
    };
    thread.stopped_by_us
        && then.is_same_sleep(*now)
        && after.slices.saturating_sub(before.slices) <= 3
}
