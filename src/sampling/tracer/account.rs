//! The account of each thread's time. A ledger knows no process and no clock: it is given what happened, and gives what a sample
//! stands for.
//!
//! Every tick of a thread, and the time that stops add to it, is charged exactly once: to the capture of that tick, to a later capture
//! (deferred), or to the stack that the thread keeps (reused). What is not recorded is left out explicitly.

use crate::model::sample::ThreadState;
use crate::sampling::schedule::Tick;

/// Up to where time is accounted for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reached {
    /// CLOCK_MONOTONIC, ns.
    pub(super) ns: u64,
    /// Ticks up to then.
    pub(super) ticks: u64,
}

impl Reached {
    /// The end of `tick`, which begins here.
    pub(super) fn after(self, tick: Tick) -> Self {
        Self {
            ns: tick.end_ns,
            ticks: self.ticks + 1,
        }
    }

    /// What lies between here and `earlier`.
    fn since(self, earlier: Reached) -> Charge {
        Charge {
            weight_ns: self.ns.saturating_sub(earlier.ns),
            ticks: self.ticks.saturating_sub(earlier.ticks) as u32,
            ..Charge::default()
        }
    }
}

/// Time of a thread in ticks, and what the scheduler gave it in them.
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

/// Deferred time is kept apart by what the thread did in it: a capture of a running thread says nothing about a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deferred {
    Running,
    Asleep,
}

/// Where a thread was that keeps its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptIn {
    pub(super) state: ThreadState,
    /// The number of the system call.
    pub(super) syscall: Option<u32>,
}

/// The account of one thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ledger {
    reached: Reached,
    /// The polled tick that is not charged yet, and its start.
    open: Charge,
    open_ns: u64,
    /// Time since the poll before in which the thread was not polled: the next sample stands for it, too.
    unpolled: Charge,
    running: Charge,
    asleep: Charge,
    reused: Option<(KeptIn, Charged)>,
}

impl Ledger {
    /// Of a thread whose time counts from `reached` on.
    pub(super) fn new(reached: Reached) -> Self {
        Self {
            reached,
            ..Self::default()
        }
    }

    /// Up to where time is accounted for.
    pub(super) fn reached(&self) -> Reached {
        self.reached
    }

    /// The thread is polled in `tick`, which begins at `from`.
    pub(super) fn poll(&mut self, from: Reached, tick: Tick) {
        // A poll that failed has charged nothing.
        self.unpolled += std::mem::take(&mut self.open);
        self.unpolled += from.since(self.reached);
        self.reached = from.after(tick);
        self.open_ns = tick.start_ns;
        self.open = Charge {
            weight_ns: tick.weight_ns(),
            ticks: 1,
            ..Charge::default()
        };
    }

    /// CPU and queue time since the poll before.
    pub(super) fn ran(&mut self, (run_ns, queue_ns): (u64, u64)) {
        self.open.run_ns += run_ns;
        self.open.queue_ns += queue_ns;
    }

    /// A stop took `took_ns` in which the thread did nothing else: its tick is longer by that.
    pub(super) fn stopped_for(&mut self, took_ns: u64) {
        self.open.weight_ns += took_ns;
        self.reached.ns += took_ns;
    }

    /// The polled tick is not recorded.
    pub(super) fn leave_out(&mut self) {
        self.open = Charge::default();
    }

    /// Nothing is recorded from where the account stands up to `to`.
    pub(super) fn leave_out_to(&mut self, to: Reached) {
        self.reached = to;
    }

    /// `by_ns` after `from` are not recorded. A thread that was stopped after `from` has taken its part of them already.
    pub(super) fn postpone(&mut self, from: Reached, by_ns: u64) {
        self.reached.ns = self.reached.ns.min(from.ns) + by_ns;
    }

    /// Defers the polled tick, and what was not polled before it, to the next capture of the same kind.
    pub(super) fn defer(&mut self, kind: Deferred) {
        let unpolled = std::mem::take(&mut self.unpolled);
        self.defer_tick(kind);
        *self.deferred(kind) += unpolled;
    }

    /// Defers the polled tick alone. What was not polled before it goes to whatever is recorded next.
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

    /// The thread kept its stack in the polled tick, and in what was not polled before it.
    pub(super) fn reuse(&mut self, kept: KeptIn) {
        let open = std::mem::take(&mut self.open);
        self.reuse_from(self.open_ns, open, kept);
    }

    fn reuse_from(&mut self, start_ns: u64, charge: Charge, kept: KeptIn) {
        let unpolled = std::mem::take(&mut self.unpolled);
        let begins = Charged {
            start_ns: start_ns.saturating_sub(unpolled.weight_ns),
            charge: Charge::default(),
        };
        let (_, reused) = self.reused.get_or_insert((kept, begins));
        reused.charge += charge;
        reused.charge += unpolled;
    }

    /// Charges the polled tick to a sample, with the time that was not polled before it and, where the sample has a stack, all that was
    /// deferred to one of its kind.
    pub(super) fn charge(&mut self, deferred: Option<Deferred>) -> Charged {
        let start_ns = self.open_ns;
        let open = std::mem::take(&mut self.open);
        self.charge_from(start_ns, open, deferred)
    }

    /// Charges what was deferred to a capture at `now_ns`, which was asked for in an earlier tick.
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

    /// Ends the reused sample, if there is one.
    pub(super) fn take_reused(&mut self) -> Option<(KeptIn, Charged)> {
        self.reused.take()
    }

    /// No poll will follow: the thread is taken to have kept its stack up to `end`.
    pub(super) fn finish(&mut self, end: Reached, kept: KeptIn) {
        self.unpolled += std::mem::take(&mut self.open);
        if end.ns > self.reached.ns {
            self.unpolled += end.since(self.reached);
            self.reached = end;
        }
        if self.unpolled.weight_ns > 0 {
            self.reuse_from(end.ns, Charge::default(), kept);
        }
    }

    /// What was deferred, which no capture will stand for.
    pub(super) fn take_deferred(&mut self) -> Charge {
        let mut deferred = std::mem::take(&mut self.running);
        deferred += std::mem::take(&mut self.asleep);
        deferred
    }

    /// Whether time is deferred.
    pub(super) fn has_deferred(&self) -> bool {
        self.running.weight_ns + self.asleep.weight_ns > 0
    }

    /// Ticks and time in which the thread ran and was not captured.
    pub(super) fn deferred_running(&self) -> Charge {
        self.running
    }

    /// Ticks in which it slept and could not be read.
    pub(super) fn deferred_sleeps(&self) -> u32 {
        self.asleep.ticks
    }

    /// Time before the polled tick in which it was not polled, ns.
    pub(super) fn unpolled_ns(&self) -> u64 {
        self.unpolled.weight_ns
    }

    /// Begins anew at `now`, for a snapshot: no sample stands for the time before it.
    pub(super) fn restart(&mut self, now: Reached) {
        self.reached = now;
        self.unpolled = Charge::default();
        for deferred in [&mut self.running, &mut self.asleep] {
            deferred.weight_ns = deferred.weight_ns.min(1);
        }
    }
}

#[cfg(test)]
mod tests;
