//! Decide: how each candidate is captured, and which of them may be stopped within the budget.

use super::poll::Candidate;
use super::process::TracedProcess;
use super::wake_cpu::WakeCpu;
use crate::model::frame::Partial;
use crate::sampling::budget::{Budget, Claim};
use crate::sampling::session::SessionOptions;

/// How long a running thread may be deferred before its Python frames are read without a stop, ns:
/// where stops wait for a CPU, few fit into the budget, and a thread blocked in the kernel may take
/// long to stop.
const MAX_DEFERRED_NS: u64 = 250_000_000;

/// The two groups of candidates of a tick, captured in this order.
#[derive(Clone, Copy, Debug)]
pub(super) enum CandidateGroup {
    Trainers,
    Others,
}

/// How one candidate is captured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum CaptureMode {
    /// Stopped, if the budget has room for it.
    Stopped,
    /// Stopped while it sleeps, if the tick has time for it.
    StoppedAsleep,
    /// By the kernel, while it runs.
    Sampled,
    /// Only its Python frames, read while it runs.
    Unstopped,
    NotCaptured(Partial),
    /// Only threads that hold the GIL are recorded.
    Excluded,
}

/// Chooses the capture mode of each candidate.
#[derive(Debug)]
pub(super) struct Decide {
    native: bool,
    once: bool,
    nonblocking: bool,
    by_kernel: bool,
    gil_only: bool,
    stop_any_child: bool,
    budget: Budget,
    pub(super) wake_cpu: WakeCpu,
}

impl Decide {
    pub(super) fn new(options: &SessionOptions, period_ns: u64) -> Self {
        Self {
            native: options.native,
            once: options.once,
            nonblocking: options.never_stops(),
            by_kernel: options.samples_by_kernel(),
            gil_only: options.gil_only,
            stop_any_child: options.stop_any_child,
            budget: match options.never_stops() {
                true => Budget::new(f64::INFINITY, period_ns),
                false => Budget::new(options.max_stopped, period_ns),
            },
            wake_cpu: WakeCpu::default(),
        }
    }

    /// Goes by other options from now on.
    pub(super) fn follow(&mut self, options: &SessionOptions, period_ns: u64) {
        let wake_cpu = std::mem::take(&mut self.wake_cpu);
        *self = Self {
            wake_cpu,
            ..Self::new(options, period_ns)
        };
    }

    /// Whether threads of a process may be stopped. A thread that execs a setuid program while it
    /// is seized runs that program without its privileges. So processes that may be about to exec
    /// are not seized: children that run no Python (shells, sudo), and processes that were just
    /// forked or have just started a program.
    pub(super) fn may_stop(&self, process: &TracedProcess) -> bool {
        if process.is_root() || self.once {
            return true;
        }
        !process.may_exec_soon() && (self.stop_any_child || process.interpreter.is_some())
    }

    /// Whether a running candidate is not stopped although the session stops threads.
    pub(super) fn avoids_stop(&self, candidate: Candidate, process: &TracedProcess) -> bool {
        !self.nonblocking && (candidate.stop_would_interrupt || !self.may_stop(process))
    }

    /// How a candidate is captured.
    pub(super) fn capture_mode(
        &self,
        candidate: Candidate,
        process: &TracedProcess,
        holds_gil: bool,
    ) -> CaptureMode {
        if candidate.asleep.is_some() {
            return CaptureMode::StoppedAsleep;
        }
        if self.gil_only && !holds_gil {
            return CaptureMode::Excluded;
        }
        if self.by_kernel {
            return CaptureMode::Sampled;
        }
        let unstopped = self.nonblocking || self.avoids_stop(candidate, process);
        let has_state = process.threads[candidate.thread]
            .plan
            .state_address
            .is_some();
        match (has_state, unstopped) {
            (false, true) if candidate.stop_would_interrupt => {
                CaptureMode::NotCaptured(Partial::Spared)
            }
            (false, true) => CaptureMode::NotCaptured(process.why_no_python()),
            (false, false) if !self.native => CaptureMode::NotCaptured(process.why_no_python()),
            (true, true) => CaptureMode::Unstopped,
            (_, false) => CaptureMode::Stopped,
        }
    }

    /// Indices of the candidates to stop now, in the order of the stops.
    pub(super) fn within_budget(
        &mut self,
        candidates: &[Candidate],
        processes: &[TracedProcess],
        who: CandidateGroup,
    ) -> Vec<usize> {
        let claims: Vec<Claim> = candidates
            .iter()
            .map(|candidate| processes[candidate.process].threads[candidate.thread].claim())
            .collect();
        match who {
            CandidateGroup::Trainers => self.budget.choose_trainers(&claims),
            CandidateGroup::Others => self.budget.choose(&claims),
        }
    }

    /// Whether a thread that is not stopped now was deferred for so long that its Python frames are
    /// read while it runs. `is_outstanding`: another stop request of its process has not been
    /// answered.
    pub(super) fn should_read_unstopped(
        &self,
        process: &TracedProcess,
        at: usize,
        is_outstanding: bool,
    ) -> bool {
        let thread = &process.threads[at];
        let can_be_read = process.interpreter.is_some() && thread.plan.state_address.is_some();
        let cannot_stop_soon = self.budget.is_overdrawn() || is_outstanding;
        can_be_read
            && cannot_stop_soon
            && thread.ledger.deferred_running().weight_ns > MAX_DEFERRED_NS
    }

    /// Charges the budget with `stopped_ns` of stops, in `run_ns` of time of running threads.
    pub(super) fn account(&mut self, stopped_ns: u64, run_ns: u64) {
        self.budget.account(stopped_ns, run_ns);
    }

    /// Whether the budget allows fewer stops than threads run.
    pub(super) fn is_limiting(&self) -> bool {
        self.budget.is_limiting()
    }
}
