//! Accounts for each thread's time. A ledger reads no process and no clock: it receives what
//! happened in a tick and returns what a sample stands for.
//!
//! Every tick of a thread, and the time that stops add to it, is charged exactly once: to the
//! capture of that tick, to a later capture (deferred), or to the stack that the thread keeps
//! (reused). Time that is not recorded is discarded explicitly.

use crate::model::sample::ThreadState;
use crate::sampling::schedule::Tick;

/// A point in sampled time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TimePoint {
    /// CLOCK_MONOTONIC, ns.
    pub(super) ns: u64,
    /// Ticks since sampling began.
    pub(super) ticks: u64,
}

impl TimePoint {
    /// The end of `tick`, which begins here.
    pub(super) fn after(self, tick: Tick) -> Self {
        Self {
            ns: tick.end_ns,
            ticks: self.ticks + 1,
        }
    }

    /// Time and ticks from `earlier` to here.
    fn since(self, earlier: TimePoint) -> Charge {
        Charge {
            weight_ns: self.ns.saturating_sub(earlier.ns),
            ticks: self.ticks.saturating_sub(earlier.ticks) as u32,
            ..Charge::default()
        }
    }
}

/// An amount of a thread's time, and the CPU and run queue time in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Charge {
    /// Length, ns.
    pub(super) weight_ns: u64,
    pub(super) ticks: u32,
    /// CPU time, ns.
    pub(super) run_ns: u64,
    /// Time in the run queue, ns.
    pub(super) queue_ns: u64,
}

impl std::ops::AddAssign for Charge {
    fn add_assign(&mut self, more: Self) {
        self.weight_ns += more.weight_ns;
        self.ticks += more.ticks;
        self.run_ns += more.run_ns;
        self.queue_ns += more.queue_ns;
    }
}

/// What one sample stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Charged {
    /// Start, CLOCK_MONOTONIC.
    pub(super) start_ns: u64,
    pub(super) charge: Charge,
}

/// Deferred time is kept apart by thread state: a capture of a running thread does not stand for a
/// sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deferred {
    Running,
    Asleep,
}

/// State of a thread that keeps its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptState {
    pub(super) state: ThreadState,
    /// The number of the system call.
    pub(super) syscall: Option<u32>,
}

/// The account of one thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ledger {
    accounted_to: TimePoint,
    /// The polled tick that is not charged yet, and its start (CLOCK_MONOTONIC).
    open: Charge,
    open_ns: u64,
    /// Time since the previous poll in which the thread was not polled: charged to the next sample.
    unpolled: Charge,
    running: Charge,
    asleep: Charge,
    reused: Option<(KeptState, Charged)>,
}

impl Ledger {
    /// A ledger of a thread whose time counts from `accounted_to` on.
    pub(super) fn new(accounted_to: TimePoint) -> Self {
        Self {
            accounted_to,
            ..Self::default()
        }
    }

    pub(super) fn accounted_to(&self) -> TimePoint {
        self.accounted_to
    }

    /// Opens `tick`, which begins at `from` and in which the thread is polled.
    pub(super) fn poll(&mut self, from: TimePoint, tick: Tick) {
        // The previous tick is still open where its poll failed.
        self.unpolled += std::mem::take(&mut self.open);
        self.unpolled += from.since(self.accounted_to);
        self.accounted_to = from.after(tick);
        self.open_ns = tick.start_ns;
        self.open = Charge {
            weight_ns: tick.weight_ns(),
            ticks: 1,
            ..Charge::default()
        };
    }

    /// Adds CPU and run queue time since the previous poll, ns.
    pub(super) fn add_scheduled(&mut self, (run_ns, queue_ns): (u64, u64)) {
        self.open.run_ns += run_ns;
        self.open.queue_ns += queue_ns;
    }

    /// Extends the thread's tick by a stop of `took_ns`, in which it did nothing else.
    pub(super) fn stopped_for(&mut self, took_ns: u64) {
        self.open.weight_ns += took_ns;
        self.accounted_to.ns += took_ns;
    }

    /// Discards the polled tick: it is not recorded.
    pub(super) fn discard(&mut self) {
        self.open = Charge::default();
    }

    /// Discards the polled tick, and the unpolled time before it, which the poll represents.
    pub(super) fn discard_poll(&mut self) {
        self.discard();
        self.unpolled = Charge::default();
    }

    /// Discards all time up to `to` that is not charged yet.
    pub(super) fn discard_to(&mut self, to: TimePoint) {
        self.accounted_to = to;
    }

    /// Excludes `by_ns` after `from` from the record. A thread that was stopped after `from` has
    /// already been charged with its part of them.
    pub(super) fn exclude(&mut self, from: TimePoint, by_ns: u64) {
        self.accounted_to.ns = self.accounted_to.ns.min(from.ns) + by_ns;
    }

    /// Defers the polled tick, and unpolled time before it, to the next capture of the same kind.
    pub(super) fn defer(&mut self, kind: Deferred) {
        let unpolled = std::mem::take(&mut self.unpolled);
        self.defer_tick(kind);
        *self.deferred(kind) += unpolled;
    }

    /// Defers only the polled tick. Unpolled time before it is charged to the next sample.
    pub(super) fn defer_tick(&mut self, kind: Deferred) {
        let open = std::mem::take(&mut self.open);
        *self.deferred(kind) += open;
    }

    fn deferred(&mut self, kind: Deferred) -> &mut Charge {
        match kind {
            Deferred::Running => &mut self.running,
            Deferred::Asleep => &mut self.asleep,
        }
    }

    /// Charges the polled tick, and unpolled time before it, to the stack that the thread keeps.
    pub(super) fn reuse(&mut self, kept: KeptState) {
        let open = std::mem::take(&mut self.open);
        self.reuse_from(self.open_ns, open, kept);
    }

    fn reuse_from(&mut self, start_ns: u64, charge: Charge, kept: KeptState) {
        let unpolled = std::mem::take(&mut self.unpolled);
        let begins = Charged {
            start_ns: start_ns.saturating_sub(unpolled.weight_ns),
            charge: Charge::default(),
        };
        let (_, reused) = self.reused.get_or_insert((kept, begins));
        reused.charge += charge;
        reused.charge += unpolled;
    }

    /// Charges the polled tick to a sample, with the unpolled time before it and, where the sample
    /// has a stack, all time deferred to its kind.
    pub(super) fn charge(&mut self, deferred: Option<Deferred>) -> Charged {
        let start_ns = self.open_ns;
        let open = std::mem::take(&mut self.open);
        self.charge_from(start_ns, open, deferred)
    }

    /// Charges deferred time to a capture at `now_ns`, whose stop was requested in an earlier tick.
    pub(super) fn charge_late(&mut self, deferred: Deferred, now_ns: u64) -> Charged {
        self.charge_from(now_ns, Charge::default(), Some(deferred))
    }

    fn charge_from(
        &mut self,
        start_ns: u64,
        mut charge: Charge,
        deferred: Option<Deferred>,
    ) -> Charged {
        let mut earlier = std::mem::take(&mut self.unpolled);
        if let Some(kind) = deferred {
            earlier += std::mem::take(self.deferred(kind));
        }
        charge += earlier;
        Charged {
            start_ns: start_ns.saturating_sub(earlier.weight_ns),
            charge,
        }
    }

    /// Takes the reused sample, if there is one.
    pub(super) fn take_reused(&mut self) -> Option<(KeptState, Charged)> {
        self.reused.take()
    }

    /// No poll will follow: assumes that the thread kept its stack up to `end`.
    pub(super) fn finish(&mut self, end: TimePoint, kept: KeptState) {
        self.unpolled += std::mem::take(&mut self.open);
        if end.ns > self.accounted_to.ns {
            self.unpolled += end.since(self.accounted_to);
            self.accounted_to = end;
        }
        if self.unpolled.weight_ns > 0 {
            self.reuse_from(end.ns, Charge::default(), kept);
        }
    }

    /// Takes all deferred time: no capture will stand for it.
    pub(super) fn take_deferred(&mut self) -> Charge {
        let mut deferred = std::mem::take(&mut self.running);
        deferred += std::mem::take(&mut self.asleep);
        deferred
    }

    pub(super) fn has_deferred(&self) -> bool {
        self.running.weight_ns + self.asleep.weight_ns > 0
    }

    /// Deferred time in which the thread ran.
    pub(super) fn deferred_running(&self) -> Charge {
        self.running
    }

    /// Deferred ticks in which the thread slept.
    pub(super) fn deferred_sleeps(&self) -> u32 {
        self.asleep.ticks
    }

    /// Time before the polled tick in which the thread was not polled, ns.
    pub(super) fn unpolled_ns(&self) -> u64 {
        self.unpolled.weight_ns
    }

    /// Restarts at `now`, for a snapshot: no sample stands for the time before.
    pub(super) fn restart(&mut self, now: TimePoint) {
        self.accounted_to = now;
        self.unpolled = Charge::default();
        for deferred in [&mut self.running, &mut self.asleep] {
            deferred.weight_ns = deferred.weight_ns.min(1);
        }
    }
}

#[cfg(test)]
mod tests;
