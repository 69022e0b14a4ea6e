//! What the tracer keeps of each thread between polls.

use super::account::{Charged, Deferred, KeptIn, Ledger, Reached};
use crate::model::ids::ThreadId;
use crate::model::sample::{Capture, Gil, Sample, ThreadState};
use crate::os::threads::{SchedStat, ThreadFiles, Whereabouts};
use crate::sampling::budget::Claim;
use crate::sampling::calls::Calls;
use crate::sampling::capture::ReadPlan;
use crate::sampling::raw::ThreadShared;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where a thread was found at the last poll.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Seen {
    /// Not polled yet, or its stack is not known.
    Unknown,
    /// Running: never taken as unchanged.
    Running,
    /// Asleep, and its stack is known.
    Asleep(Whereabouts),
}

/// A thread.
#[derive(Debug)]
pub(super) struct TracedThread {
    pub(super) id: ThreadId,
    pub(super) tid: i32,
    pub(super) inner_tid: i32,
    pub(super) files: ThreadFiles,
    pub(super) shared: Arc<ThreadShared>,
    pub(super) plan: ReadPlan,
    pub(super) last: SchedStat,
    pub(super) seen: Seen,
    pub(super) state: ThreadState,
    pub(super) stack_pointer: u64,
    /// We stopped it in the sleep that it is in: what it ran since then, it ran because of us.
    pub(super) own_stop: bool,
    /// Its name when that was last read.
    pub(super) name: String,
    /// It ran since then: a thread takes a name by itself.
    pub(super) may_be_renamed: bool,
    /// Its name in Python, read where `--threads` goes by names and the kernel's does not match; empty where it has none.
    pub(super) python_name: Option<String>,
    /// Whether `--threads` lets it in.
    pub(super) wanted: bool,
    /// What samples stand for.
    pub(super) ledger: Ledger,
    /// Stops in a row before which it blocked.
    pub(super) blocked: u32,
    /// What a stop would do to its system calls.
    pub(super) calls: Calls,
    /// The process's first thread.
    pub(super) is_first: bool,
    /// Dead while others live, at the last poll: a first thread stays listed then.
    pub(super) is_dead: bool,
    /// How often it was captured, and when it was last.
    pub(super) captures: u32,
    /// See `captures`; CLOCK_MONOTONIC.
    pub(super) captured_ns: u64,
}

/// In which ticks a thread is polled. Kept apart from the threads, which are large: most are not polled in most ticks.
///
/// A thread that has long been asleep is polled in every second tick, later in every fourth, eighth, … Which ticks those are
/// does not depend on what it does, and a poll stands for the ticks before it, so shares stay unbiased; 160 threads then cost a
/// fifth. A process's first thread, which usually is the one that trains, is polled in every tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    /// The thread's number, by which polls are spread over the ticks.
    number: u32,
    pub(super) is_first: bool,
    /// Polls in a row that found it in the same sleep.
    pub(super) quiet_polls: u32,
}

impl Backoff {
    pub(super) fn new(thread: &TracedThread) -> Self {
        Self {
            number: thread.id.index() as u32,
            is_first: thread.is_first,
            quiet_polls: 0,
        }
    }

    /// Whether the thread is polled in `tick`, counted from the start, of `weight_ns`.
    pub(super) fn is_due(self, tick: u64, weight_ns: u64) -> bool {
        let doublings = (self.quiet_polls / POLLS_PER_STRIDE).min(MAX_DOUBLINGS);
        if doublings == 0 || self.is_first {
            return true;
        }
        let longest = MAX_UNPOLLED_NS / weight_ns.max(1);
        let stride = (1 << doublings).min(longest.checked_ilog2().map_or(1, |log| 1 << log));
        (tick + u64::from(self.number)).is_multiple_of(stride)
    }

    /// It was found in the sleep that it was in.
    pub(super) fn slept_on(&mut self) {
        self.quiet_polls = self.quiet_polls.saturating_add(1);
    }

    /// It is polled in every tick again.
    pub(super) fn reset(&mut self) {
        self.quiet_polls = 0;
    }
}

/// Polls that a sleeper's state must outlast before it is polled half as often.
const POLLS_PER_STRIDE: u32 = 16;
/// Past this many times half is rare enough at any rate.
const MAX_DOUBLINGS: u32 = 7;
/// Longest time between two polls of a sleeper, ns: a wake-up is noticed this late at most.
const MAX_UNPOLLED_NS: u64 = 170_000_000;

impl TracedThread {
    pub(super) fn new(pid: i32, tid: i32, id: ThreadId, reached: Reached) -> Self {
        let files = ThreadFiles::open(pid, tid);
        Self {
            id,
            tid,
            is_first: tid == pid,
            is_dead: false,
            inner_tid: files.inner_tid().unwrap_or(tid),
            shared: Arc::default(),
            plan: ReadPlan::default(),
            last: files.schedstat().unwrap_or_default(),
            files,
            seen: Seen::Unknown,
            state: ThreadState::Unknown,
            stack_pointer: 0,
            own_stop: false,
            name: String::new(),
            may_be_renamed: false,
            python_name: None,
            wanted: true,
            ledger: Ledger::new(reached),
            blocked: 0,
            calls: Calls::default(),
            captures: 0,
            captured_ns: 0,
        }
    }

    /// Whether its time is recorded at all.
    pub(super) fn is_recorded(&self) -> bool {
        self.wanted && !self.is_dead
    }

    /// What it has to say for a stop while it runs.
    pub(super) fn claim(&self) -> Claim {
        Claim {
            is_first: self.is_first,
            deferred: self.ledger.deferred_running().ticks,
        }
    }

    /// Whether the worker lacked registers in the sleep that the thread is still in.
    pub(super) fn wants_registers(&self, now: &SchedStat) -> bool {
        !self.own_stop
            && now.slices != 0
            && self.shared.registers_wanted.load(Ordering::Relaxed) == now.slices
    }

    /// Whether the worker had too little of the stack of the sleep that the thread is still in. Says so once.
    pub(super) fn wants_stack(&self, now: &SchedStat) -> bool {
        let wanted = &self.shared.stack_wanted;
        let wants = now.slices != 0 && wanted.load(Ordering::Relaxed) == now.slices;
        if wants {
            wanted.store(0, Ordering::Relaxed);
        }
        wants
    }

    /// CPU and queue time since the poll before, which this one takes over.
    pub(super) fn advance(&mut self, now: SchedStat) -> (u64, u64) {
        let run_ns = now.run_ns.saturating_sub(self.last.run_ns);
        let queue_ns = now.queue_ns.saturating_sub(self.last.queue_ns);
        self.last = now;
        (run_ns, queue_ns)
    }

    fn kept_in(&self) -> KeptIn {
        let syscall = match self.seen {
            Seen::Asleep(whereabouts) => whereabouts.syscall(),
            _ => None,
        };
        KeptIn {
            state: self.state,
            syscall,
        }
    }

    /// It kept its stack in the polled tick.
    pub(super) fn reuse(&mut self) {
        let kept = self.kept_in();
        self.ledger.reuse(kept);
    }

    /// The reused sample, up to `end` if no poll will follow.
    pub(super) fn take_reused(&mut self, end: Option<Reached>) -> Option<Sample> {
        if let Some(end) = end {
            let kept = self.kept_in();
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

    /// The polled tick is `sample`'s, with what was not captured before while the thread did the same: ran, or slept.
    pub(super) fn charge(&mut self, sample: &mut Sample, capture: Capture) {
        let deferred = capture.is_fresh().then(|| self.deferred_kind());
        let charged = self.ledger.charge(deferred);
        self.fill(sample, charged, capture);
    }

    /// `sample` is of a stop that was asked for in an earlier tick.
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

    /// What a capture knows of the call and the lock stays.
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
            stack: None,
            start_ns: charged.start_ns,
            weight_ns: charge.weight_ns,
            ticks: charge.ticks,
            capture,
            state: self.state,
            syscall: None,
            gil: Gil::Unknown,
            gil_holder: None,
            run_ns: charge.run_ns,
            queue_ns: charge.queue_ns,
        }
    }
}
