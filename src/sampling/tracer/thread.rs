//! State of a thread between polls.

use super::account::{Charged, Deferred, KeptState, Ledger, TimePoint};
use super::by_kernel::ThreadSampler;
use crate::model::ids::ThreadId;
use crate::model::sample::{Capture, Gil, Sample, ThreadState};
use crate::os::threads::{SchedStat, ThreadFiles, Whereabouts};
use crate::sampling::budget::Claim;
use crate::sampling::call_history::CallHistory;
use crate::sampling::capture::ReadPlan;
use crate::sampling::raw::ThreadShared;
use crate::sampling::session::IdleThreads;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Result of the last poll of a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LastPoll {
    /// Not polled yet, or its stack is not known.
    Unknown,
    /// Running: its stack is reused only where a read shows that it has not moved.
    Running,
    /// Asleep, and its stack is known.
    Asleep(Whereabouts),
}

#[derive(Debug)]
pub(super) struct TracedThread {
    pub(super) id: ThreadId,
    pub(super) tid: i32,
    pub(super) inner_tid: i32,
    pub(super) files: ThreadFiles,
    pub(super) shared: Arc<ThreadShared>,
    pub(super) plan: ReadPlan,
    pub(super) sampler: ThreadSampler,
    pub(super) last: SchedStat,
    pub(super) last_poll: LastPoll,
    pub(super) state: ThreadState,
    pub(super) stack_pointer: u64,
    /// torchspy stopped it in its current sleep: it has run since then only because of that stop.
    pub(super) stopped_by_us: bool,
    /// Its kernel name (`comm`) when that was last read.
    pub(super) name: String,
    /// It ran since then, so it may have set another name.
    pub(super) may_be_renamed: bool,
    /// Its name in Python, read where `--thread-name` is given and the kernel's name does not
    /// match; empty where it has none.
    pub(super) python_name: Option<String>,
    /// Whether it matches `--thread-name`.
    pub(super) is_selected: bool,
    pub(super) ledger: Ledger,
    /// It blocked before the last stop landed, and that was not recorded.
    pub(super) blocked: bool,
    pub(super) calls: CallHistory,
    /// It is the first thread of its process.
    pub(super) is_first: bool,
    /// Dead at the last poll while other threads live: a first thread stays in /proc then.
    pub(super) is_dead: bool,
    /// Another tracer held it at the last refusal.
    pub(super) was_traced: bool,
    pub(super) captures: u32,
    /// When it was last captured, CLOCK_MONOTONIC.
    pub(super) captured_ns: u64,
}

/// In which ticks a thread is polled. Kept apart from the threads, which are large: most are not
/// polled in most ticks.
///
/// A thread that has long been asleep is polled in every second tick, later in every fourth,
/// eighth, …; one that keeps waking, each time for a moment, in every second tick, or in every
/// sixteenth where idle threads are followed loosely ([`IdleThreads`]). The choice of
/// ticks does not depend on what the thread does, and a poll stands for the ticks before it, so
/// shares stay unbiased; polling 160 threads then costs a fifth. A process's first thread, which
/// usually is the one that trains, is polled in every tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    /// Spreads the polls of threads over the ticks.
    number: u32,
    pub(super) is_first: bool,
    /// Successive polls that found it in the same sleep.
    pub(super) quiet_polls: u32,
    /// Successive polls that found it asleep, and to have run for a moment at most since the poll
    /// before.
    idle_polls: u32,
}

impl Backoff {
    pub(super) fn new(thread: &TracedThread) -> Self {
        Self {
            number: thread.id.index() as u32,
            is_first: thread.is_first,
            quiet_polls: 0,
            idle_polls: 0,
        }
    }

    /// Whether the thread is polled in tick number `tick`, which is `weight_ns` long.
    pub(super) fn is_due(self, tick: u64, weight_ns: u64, how: IdleThreads) -> bool {
        let (most_idle, unpolled_ns) = match how {
            IdleThreads::Close => (1, MAX_UNPOLLED_NS),
            IdleThreads::Loose => (4, 10 * MAX_UNPOLLED_NS),
        };
        let doublings = (self.quiet_polls / POLLS_PER_STRIDE).min(MAX_DOUBLINGS);
        let doublings = doublings.max((self.idle_polls / POLLS_PER_STRIDE).min(most_idle));
        if doublings == 0 || self.is_first {
            return true;
        }
        let longest = (unpolled_ns / weight_ns.max(1)).max(1);
        let stride = (1 << doublings).min(longest);
        (tick + u64::from(self.number)).is_multiple_of(stride)
    }

    /// A poll found it in the same sleep as before.
    pub(super) fn record_same_sleep(&mut self) {
        self.quiet_polls = self.quiet_polls.saturating_add(1);
        self.idle_polls = self.idle_polls.saturating_add(1);
    }

    /// Polls it in every tick again.
    pub(super) fn reset(&mut self) {
        (self.quiet_polls, self.idle_polls) = (0, 0);
    }

    /// A poll found that it was active for `active_ns` of the `elapsed_ns` since the poll before,
    /// and whether it seems idle now.
    pub(super) fn record_activity(&mut self, active_ns: u64, elapsed_ns: u64, seems_idle: bool) {
        self.quiet_polls = 0;
        let is_idle = seems_idle && active_ns < elapsed_ns / IDLE_SHARE;
        self.idle_polls = if is_idle {
            self.idle_polls.saturating_add(1)
        } else {
            0
        };
    }
}

/// Polls in the same sleep after which a thread is polled half as often.
const POLLS_PER_STRIDE: u32 = 16;
/// A thread that runs for less than this part of its time, as its divisor, only wakes for moments.
const IDLE_SHARE: u64 = 20;
/// Most halvings of the poll rate.
const MAX_DOUBLINGS: u32 = 7;
/// Longest time between two polls of a sleeper that is followed closely, ns: the latest that a
/// wake-up is noticed.
const MAX_UNPOLLED_NS: u64 = 170_000_000;

impl TracedThread {
    pub(super) fn new(pid: i32, tid: i32, id: ThreadId, accounted_to: TimePoint) -> Self {
        let files = ThreadFiles::open(pid, tid);
        Self {
            id,
            tid,
            is_first: tid == pid,
            is_dead: false,
            was_traced: false,
            inner_tid: files.inner_tid().unwrap_or(tid),
            shared: Arc::default(),
            plan: ReadPlan::default(),
            sampler: ThreadSampler::default(),
            last: files.schedstat().unwrap_or_default(),
            files,
            last_poll: LastPoll::Unknown,
            state: ThreadState::Unknown,
            stack_pointer: 0,
            stopped_by_us: false,
            name: String::new(),
            may_be_renamed: false,
            python_name: None,
            is_selected: true,
            ledger: Ledger::new(accounted_to),
            blocked: false,
            calls: CallHistory::default(),
            captures: 0,
            captured_ns: 0,
        }
    }

    /// Whether its time is recorded.
    pub(super) fn is_recorded(&self) -> bool {
        self.is_selected && !self.is_dead
    }

    /// Its claim to a stop of this tick's budget.
    pub(super) fn claim(&self) -> Claim {
        Claim {
            is_first: self.is_first,
            deferred: self.ledger.deferred_running().ticks,
        }
    }

    /// Whether unwinding lacked registers in the sleep that the thread is still in.
    pub(super) fn wants_registers(&self, now: &SchedStat) -> bool {
        !self.stopped_by_us
            && now.slices != 0
            && self.shared.registers_wanted.load(Ordering::Relaxed) == now.slices
    }

    /// Whether unwinding lacked stack bytes in the sleep that the thread is still in. True once per
    /// request.
    pub(super) fn wants_stack(&self, now: &SchedStat) -> bool {
        let wanted = &self.shared.stack_wanted;
        let wants = now.slices != 0 && wanted.load(Ordering::Relaxed) == now.slices;
        if wants {
            wanted.store(0, Ordering::Relaxed);
        }
        wants
    }

    /// Whether a sleep that began after the poll is left out: the first in a row, of a thread that
    /// does not sleep briefly.
    pub(super) fn leaves_out_sleep(&mut self, sleeps_briefly: bool) -> bool {
        !sleeps_briefly && !std::mem::replace(&mut self.blocked, true)
    }

    /// Takes over `now`; returns CPU and run queue time since the previous poll, ns.
    pub(super) fn advance(&mut self, now: SchedStat) -> (u64, u64) {
        let run_ns = now.run_ns.saturating_sub(self.last.run_ns);
        let queue_ns = now.queue_ns.saturating_sub(self.last.queue_ns);
        self.last = now;
        (run_ns, queue_ns)
    }

    /// Where it sleeps by now, after it woke during a read; `None` if it runs.
    pub(super) fn sleeps_again(&mut self) -> Option<(Whereabouts, SchedStat)> {
        let now = self.files.schedstat().ok()?;
        let ran = self.advance(now);
        self.ledger.add_scheduled(ran);
        let whereabouts = self.files.whereabouts().ok()?;
        (whereabouts != Whereabouts::Running).then_some((whereabouts, now))
    }

    fn kept_state(&self) -> KeptState {
        let syscall = match self.last_poll {
            LastPoll::Asleep(whereabouts) => whereabouts.syscall(),
            _ => None,
        };
        KeptState {
            state: self.state,
            syscall,
        }
    }

    /// Charges the polled tick to the stack that the thread kept.
    pub(super) fn reuse(&mut self) {
        let kept = self.kept_state();
        self.ledger.reuse(kept);
    }

    /// Takes the reused sample, extended to `end` if no poll will follow.
    pub(super) fn take_reused(&mut self, end: Option<TimePoint>) -> Option<Sample> {
        if let Some(end) = end {
            let kept = self.kept_state();
            self.ledger.finish(end, kept);
        }
        let (kept, charged) = self.ledger.take_reused()?;
        Some(Sample {
            state: kept.state,
            syscall: kept.syscall,
            gil: Gil::NotHeld,
            ..self.sample(charged, Capture::Reused)
        })
    }

    /// Charges the polled tick to `sample`, with the time deferred while the thread was in the same
    /// state (running or asleep).
    pub(super) fn charge(&mut self, sample: &mut Sample, capture: Capture) {
        let deferred = capture.is_fresh().then(|| self.deferred_kind());
        let charged = self.ledger.charge(deferred);
        self.fill(sample, charged, capture);
    }

    /// Charges deferred time to `sample`, which comes from a stop requested in an earlier tick.
    pub(super) fn charge_late(&mut self, sample: &mut Sample, now_ns: u64) {
        let charged = self.ledger.charge_late(self.deferred_kind(), now_ns);
        self.fill(sample, charged, Capture::Stopped);
    }

    fn deferred_kind(&self) -> Deferred {
        match self.state {
            ThreadState::Running => Deferred::Running,
            _ => Deferred::Asleep,
        }
    }

    /// Fills in all but the system call and the GIL, which the capture has set.
    fn fill(&self, sample: &mut Sample, charged: Charged, capture: Capture) {
        *sample = Sample {
            syscall: sample.syscall,
            gil: sample.gil,
            gil_holder: sample.gil_holder,
            ..self.sample(charged, capture)
        };
    }

    /// A sample that stands for `charged`.
    pub(super) fn sample(&self, charged: Charged, capture: Capture) -> Sample {
        let charge = charged.charge;
        Sample {
            thread: self.id,
            start_ns: charged.start_ns,
            weight_ns: charge.weight_ns,
            ticks: charge.ticks,
            capture,
            state: self.state,
            run_ns: charge.run_ns,
            queue_ns: charge.queue_ns,
            ..Sample::default()
        }
    }
}
