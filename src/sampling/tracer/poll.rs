//! Poll: which threads ran since the last tick, and where those sleep that did not.

use super::account::Reached;
use super::gil::holds_gil;
use super::process::TracedProcess;
use super::thread::{Seen, TracedThread};
use crate::model::frame::Partial;
use crate::model::sample::ThreadState;
use crate::os::syscalls::is_restarted;
use crate::os::threads::{SchedStat, Whereabouts};
use crate::sampling::schedule::Tick;
use crate::sampling::session::SessionOptions;

/// How many ticks pass before a dead first thread is polled again: another thread's exec gives its tid a new life.
const DEAD_TICKS: u64 = 10;

/// A thread that runs at this tick, or a sleeper whose registers are needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// Places of its process and, in that, of the thread.
    pub(super) process: usize,
    pub(super) thread: usize,
    /// How often it was put on a CPU.
    pub(super) slices: u64,
    /// A sleeper whose registers are needed, and not a running thread.
    pub(super) asleep: Option<Whereabouts>,
    /// It runs, and a stop would likely cut its system call short.
    pub(super) keeps_running: bool,
}

/// What a poll found.
pub(super) enum Found {
    /// Its tick is accounted for already: it kept its stack, or is not recorded.
    Accounted,
    /// It runs, or its registers are needed.
    Candidate(Candidate),
    /// It sleeps, and is to be read as it is.
    Asleep(Candidate, Whereabouts, SchedStat),
    /// The kernel does not say where it is.
    Unreadable(Partial),
    Gone,
}

/// How threads are polled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Poll {
    once: bool,
    gil_only: bool,
    nonblocking: bool,
}

impl Poll {
    pub(super) fn new(options: &SessionOptions) -> Self {
        Self {
            once: options.once,
            gil_only: options.gil_only,
            nonblocking: options.nonblocking,
        }
    }

    /// Polls the thread at `(index, at)`, which is of `process`, in `tick`, which begins at `before`. `is_awaited` whether a thread was
    /// asked to stop by an earlier tick, `may_stop` whether those of the process may be stopped at all.
    pub(super) fn thread(
        self,
        process: &mut TracedProcess,
        (index, at): (usize, usize),
        (before, tick): (Reached, Tick),
        is_awaited: impl Fn(i32) -> bool,
        may_stop: bool,
    ) -> Found {
        let (thread, backoff) = (&mut process.threads[at], &mut process.backoffs[at]);
        let stays_dead = thread.is_dead && !before.ticks.is_multiple_of(DEAD_TICKS);
        if !thread.wanted || stays_dead {
            thread.ledger.leave_out_to(before.after(tick));
            return Found::Accounted;
        }
        if self.once && !thread.begin_snapshot() {
            return Found::Accounted;
        }
        if std::mem::take(&mut thread.is_dead) {
            thread.ledger.leave_out_to(before);
        }
        thread.ledger.poll(before, tick);
        let Ok(now) = thread.files.schedstat() else {
            return Found::Gone;
        };
        let unscheduled = now.is_kept() && now == thread.last;
        let wants_stack = thread.wants_stack(&now);
        let wants_registers = unscheduled && thread.wants_registers(&now);
        if unscheduled
            && matches!(thread.seen, Seen::Asleep(_))
            && !(wants_registers || wants_stack)
        {
            backoff.slept_on();
            thread.reuse();
            return Found::Accounted;
        }
        backoff.reset();
        let previous = thread.last;
        let ran = thread.advance(now);
        thread.ledger.ran(ran);
        thread.may_be_renamed = true;
        let whereabouts = match thread.files.whereabouts() {
            Ok(whereabouts) => whereabouts,
            Err(error) => return unreadable(&error),
        };
        let mut candidate = Candidate {
            process: index,
            thread: at,
            slices: now.slices,
            asleep: None,
            keeps_running: thread.calls.would_be_cut(
                (ran.0, tick.weight_ns()),
                now.slices != previous.slices,
                || thread.files.voluntary_switches(),
                tick.start_ns,
            ),
        };
        // What an earlier tick asked to stop, and is stopped by now, is no sleeper: it is taken with the next of those. One that the stop
        // cannot reach is: the parent of a vfork, or a thread whose file system does not answer.
        let is_stopped = || {
            is_awaited(thread.tid)
                && !matches!(thread.files.stat(), Ok((ThreadState::Uninterruptible, _)))
        };
        if whereabouts == Whereabouts::Running || is_stopped() {
            process.stopped = Some(false);
            return Found::Candidate(candidate);
        }
        thread.calls.slept(&whereabouts, tick.start_ns);
        if self.gil_only && !holds_gil(process, at) {
            let thread = &mut process.threads[at];
            thread.seen = Seen::Unknown;
            thread.ledger.leave_out();
            return Found::Accounted;
        }
        let thread = &mut process.threads[at];
        if is_back_in_its_sleep(thread, &whereabouts, &previous, &now)
            && !(wants_registers || wants_stack)
        {
            thread.reuse();
            return Found::Accounted;
        }
        if self.needs_stop(thread, &whereabouts, wants_registers) && may_stop {
            candidate.asleep = Some(whereabouts);
            return Found::Candidate(candidate);
        }
        Found::Asleep(candidate, whereabouts, now)
    }

    /// Whether a sleeper has to be stopped for its registers, and a stop interrupts nothing in it.
    fn needs_stop(
        self,
        thread: &mut TracedThread,
        whereabouts: &Whereabouts,
        wants_registers: bool,
    ) -> bool {
        // The kernel refused the last stop: the thread is read as it is, and asked again at the next poll.
        let was_refused =
            std::mem::take(&mut thread.own_stop) && matches!(thread.seen, Seen::Running);
        // SIGSTOP holds a thread at any instruction of its code, where only its registers say who called it.
        let stopped_in_code = matches!(whereabouts, Whereabouts::Blocked { .. })
            && matches!(thread.files.stat(), Ok((ThreadState::Stopped, _)));
        if stopped_in_code {
            thread.state = ThreadState::Stopped;
        }
        // A stop interrupts nothing in a thread that SIGSTOP stopped already: it goes from one stop to the other and back.
        let undisturbed = stopped_in_code
            || thread.state == ThreadState::Stopped
            || whereabouts.syscall().is_some_and(is_restarted);
        let wants_registers = wants_registers || (stopped_in_code && !was_refused);
        wants_registers && undisturbed && !self.nonblocking
    }
}

fn unreadable(error: &std::io::Error) -> Found {
    match error.raw_os_error() {
        Some(nix::libc::ESRCH | nix::libc::ENOENT) => Found::Gone,
        Some(nix::libc::EPERM | nix::libc::EACCES) => Found::Unreadable(Partial::PermissionDenied),
        _ => Found::Unreadable(Partial::StackUnreadable),
    }
}

/// Whether a thread that ran a little is back in the very sleep that we stopped it in.
fn is_back_in_its_sleep(
    thread: &TracedThread,
    now: &Whereabouts,
    before: &SchedStat,
    after: &SchedStat,
) -> bool {
    let Seen::Asleep(then) = thread.seen else {
        return false;
    };
    thread.own_stop && then.is_same_sleep(*now) && after.slices.saturating_sub(before.slices) <= 3
}
