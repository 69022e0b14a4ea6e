//! Decide: how each candidate is captured, and which of them may be stopped within the budget.

use super::crowd::Crowd;
use super::poll::Candidate;
use super::process::TracedProcess;
use crate::model::frame::Partial;
use crate::sampling::budget::{Budget, Claim};
use crate::sampling::session::SessionOptions;

/// How long a thread's time may be deferred before its Python frames are read without a stop, ns: where stops wait for a CPU, few fit
/// into the budget, and a thread that the kernel holds may be awaited for long.
const MAX_DEFERRED_NS: u64 = 250_000_000;

/// Which candidates these are: a tick takes both, in this order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Who {
    Trainers,
    Others,
}

/// How one candidate is captured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum How {
    /// Stopped, if the budget has room for it.
    Stopped,
    /// Stopped in its sleep, if there is time for it.
    StoppedAsleep,
    /// Its Python frames alone, while it runs.
    Unstopped,
    NotRead(Partial),
    /// Only threads that hold the GIL are recorded.
    LeftOut,
}

/// Decides on captures.
#[derive(Debug)]
pub(super) struct Decide {
    native: bool,
    once: bool,
    nonblocking: bool,
    gil_only: bool,
    stop_any_child: bool,
    budget: Budget,
    pub(super) crowd: Crowd,
}

impl Decide {
    pub(super) fn new(options: &SessionOptions, period_ns: u64) -> Self {
        Self {
            native: options.native,
            once: options.once,
            nonblocking: options.nonblocking,
            gil_only: options.gil_only,
            stop_any_child: options.stop_any_child,
            budget: Budget::new(options.max_stopped, period_ns),
            crowd: Crowd::default(),
        }
    }

    /// Whether threads of a process may be stopped. A thread that execs a setuid program while it is seized runs it without its
    /// privileges, so whoever may be about to is not seized: children that run no Python (shells, sudo), and those that have just been
    /// forked or have just begun a program.
    pub(super) fn may_stop(&self, process: &TracedProcess) -> bool {
        if process.is_root() || self.once {
            return true;
        }
        !process.is_beginning() && (self.stop_any_child || process.interpreter.is_some())
    }

    /// Whether a running candidate is not stopped although stops are allowed.
    pub(super) fn leaves_running(&self, candidate: Candidate, process: &TracedProcess) -> bool {
        !self.nonblocking && (candidate.keeps_running || !self.may_stop(process))
    }

    /// How a candidate is captured that does or does not hold the GIL.
    pub(super) fn how(
        &self,
        candidate: Candidate,
        process: &TracedProcess,
        holds_gil: bool,
    ) -> How {
        if candidate.asleep.is_some() {
            return How::StoppedAsleep;
        }
        if self.gil_only && !holds_gil {
            return How::LeftOut;
        }
        let unstopped = self.nonblocking || self.leaves_running(candidate, process);
        let has_state = process.threads[candidate.thread]
            .plan
            .state_address
            .is_some();
        match (has_state, unstopped) {
            (false, true) if candidate.keeps_running => How::NotRead(Partial::Spared),
            (false, true) => How::NotRead(process.why_no_python()),
            (false, false) if !self.native => How::NotRead(process.why_no_python()),
            (true, true) => How::Unstopped,
            (_, false) => How::Stopped,
        }
    }

    /// Which of the candidates that would be stopped are stopped now: their indices, the first one first.
    pub(super) fn within_budget(
        &mut self,
        candidates: &[Candidate],
        processes: &[TracedProcess],
        who: Who,
    ) -> Vec<usize> {
        let claims: Vec<Claim> = candidates
            .iter()
            .map(|candidate| processes[candidate.process].threads[candidate.thread].claim())
            .collect();
        match who {
            Who::Trainers => self.budget.choose_trainers(&claims),
            Who::Others => self.budget.choose(&claims),
        }
    }

    /// Whether a thread that is not stopped now has been deferred for so long that its Python frames are read as it runs.
    /// `is_outstanding` whether another stop of its process is.
    pub(super) fn reads_unstopped(
        &self,
        process: &TracedProcess,
        at: usize,
        is_outstanding: bool,
    ) -> bool {
        let thread = &process.threads[at];
        let can_be_read = process.interpreter.is_some() && thread.plan.state_address.is_some();
        let is_held_back = self.budget.is_overdrawn() || is_outstanding;
        can_be_read && is_held_back && thread.ledger.deferred_running().weight_ns > MAX_DEFERRED_NS
    }

    /// Charges the budget with the time of stops, of so much time of running threads.
    pub(super) fn account(&mut self, stopped_ns: u64, run_ns: u64) {
        self.budget.account(stopped_ns, run_ns);
    }

    /// Whether fewer threads are stopped than run.
    pub(super) fn is_limiting(&self) -> bool {
        self.budget.is_limiting()
    }
}
