//! Results of stops: samples, deferred ticks, and charged time.

use super::Tracer;
use super::capture::{StopAttempt, refusal, stack_pointer};
use super::gil::NOT_ASKED;
use super::poll::Candidate;
use super::priority::PriorityEvent;
use super::thread::LastPoll;
use super::tick::Holders;
use crate::model::frame::Partial;
use crate::model::sample::{Capture as Method, ThreadState};
use crate::os::clock::monotonic_ns;
use crate::os::stop::{StopError, StoppedThread};
use crate::os::syscalls::Ending;
use crate::sampling::stops::Outcome;

impl Tracer {
    /// Records the result of one stop; returns for how long the thread was stopped, ns.
    pub(super) fn finish_stop(&mut self, attempt: StopAttempt, gil: &Holders) -> u64 {
        let StopAttempt {
            candidate,
            outcome,
            mut sample,
            ending,
            syscall,
            gils,
            ..
        } = attempt;
        let (index, at) = (candidate.process, candidate.thread);
        self.record_syscall_ending(index, at, ending);
        let thread = &mut self.processes[index].threads[at];
        thread.last_poll = LastPoll::Running;
        let Outcome::Resumed(stop_ns) = outcome else {
            self.capture.put_back(sample);
            self.finish_failed_stop(candidate, &outcome);
            return 0;
        };
        thread.calls.record_own_stop();
        self.quality.stops.record(stop_ns);
        thread.stack_pointer = stack_pointer(&sample);
        let waits = matches!(ending, Some(Ending::Waits | Ending::Interrupted));
        // A thread that ran when it was polled may have blocked before the stop landed, some tens
        // of microseconds later. Recording that sleep would overstate every sleep at the cost of
        // the code before it; so the tick is deferred to the next stop that finds the thread
        // running, like ticks over the budget. If the next one finds it blocked, too, the sleep is
        // recorded: the thread hardly ever runs for longer, and the next stop that finds it running
        // may be in another phase of the step. So it is at once of a thread that sleeps briefly,
        // and of one that slept when it was polled.
        if candidate.asleep.is_none() && waits {
            if candidate.woke {
                thread.state = ThreadState::Sleeping;
                sample.recorded.syscall = syscall;
            } else if thread.leaves_out_sleep(candidate.sleeps_briefly) {
                self.capture.put_back(sample);
                self.defer(candidate);
                return stop_ns;
            }
        }
        thread.blocked = false;
        if let Some(whereabouts) = candidate.asleep {
            thread.last_poll = LastPoll::Asleep(whereabouts);
            thread.stopped_by_us = true;
            sample.recorded.syscall = whereabouts.syscall();
        }
        thread.charge(&mut sample.recorded, Method::Stopped);
        let of_tick = gil.get(&index).unwrap_or(NOT_ASKED);
        let gils = gils.as_ref().unwrap_or(of_tick);
        gils.set(&mut sample.recorded, &thread.plan);
        self.forward(index, at, sample);
        stop_ns
    }

    /// Records the result of a stop that captured nothing.
    fn finish_failed_stop(&mut self, candidate: Candidate, outcome: &Outcome) {
        let (index, at) = (candidate.process, candidate.thread);
        let is_asleep = candidate.asleep.is_some();
        let thread = &mut self.processes[index].threads[at];
        // A sleeper that cannot be stopped is read without a stop at the next poll, and stopped at
        // the one after it.
        thread.stopped_by_us = is_asleep && !matches!(outcome, Outcome::NotRequested);
        match outcome {
            Outcome::TimedOut => {
                self.quality.stop_timeouts += 1;
                self.defer(candidate);
            }
            Outcome::NotRequested if !is_asleep => {
                self.quality.skipped_for_late_stop += 1;
                self.skip(candidate);
            }
            Outcome::Failed(StopError::Refused) if !is_asleep => {
                let why = refusal(thread);
                self.record_without_stack(index, at, why);
            }
            Outcome::NotRequested | Outcome::Failed(StopError::Refused) => self.defer(candidate),
            _ => self.record_without_stack(index, at, Partial::Exited),
        }
    }

    /// Records how a stop affected the system call that the thread was in.
    fn record_syscall_ending(&mut self, index: usize, at: usize, ending: Option<Ending>) {
        let Some(ending) = ending else { return };
        match ending {
            Ending::Interrupted | Ending::CutShort => self.quality.calls_cut_short += 1,
            Ending::Exec {
                privileges_lost: true,
            } => self.quality.privileges_lost += 1,
            Ending::Waits | Ending::Exec { .. } => {}
        }
        let thread = &mut self.processes[index].threads[at];
        thread.calls.record_interruption(ending, monotonic_ns());
    }

    /// Reads and resumes threads that were asked to stop in an earlier tick and are stopped now.
    pub(super) fn collect_late_stops(&mut self) {
        if !self.capture.is_outstanding() {
            return;
        }
        for stopped in self.capture.stopped_late() {
            let tid = stopped.tid();
            let mut processes = self.processes.iter().enumerate();
            let found = processes.find_map(|(index, process)| {
                let mut threads = process.threads.iter();
                let at = threads.position(|thread| thread.tid == tid)?;
                process.threads[at]
                    .ledger
                    .has_deferred()
                    .then_some((index, at))
            });
            match found {
                Some((index, at)) => self.capture_late(index, at, stopped),
                None => self.capture.resume(stopped),
            }
        }
        let outstanding = self.capture.may_stop_soon();
        self.capture
            .update_priority(PriorityEvent::Collected { outstanding });
    }

    fn capture_late(&mut self, index: usize, at: usize, stopped: StoppedThread) {
        let late = self.capture.late(&mut self.processes[index], at, stopped);
        let (mut sample, stop_ns) = (late.sample, late.stop_ns);
        self.record_syscall_ending(index, at, late.ending);
        self.quality.stops.record(stop_ns);
        // Its running time was accounted for in the tick that asked for the stop.
        self.decide.account(stop_ns, 0);
        self.control.show_stops(stop_ns, 0);
        // All of its time was deferred to now. In a snapshot the last capture has the latest start.
        let now_ns = match self.options.once {
            true => monotonic_ns(),
            false => self.schedule.stratum_ns(),
        };
        let thread = &mut self.processes[index].threads[at];
        thread.calls.record_own_stop();
        thread.charge_late(&mut sample.recorded, now_ns);
        late.gils.set(&mut sample.recorded, &thread.plan);
        self.forward(index, at, sample);
    }

    /// Delays the schedule by the longest stop of the tick.
    pub(super) fn charge_longest_stop(&mut self) {
        let longest_ns = std::mem::take(&mut self.longest_stop_ns);
        self.schedule.delay(longest_ns);
        self.quality.missed_ticks += self.schedule.take_missed_periods();
        let before = self.accounted_to;
        self.accounted_to.ns += longest_ns;
        if self.options.gil_only {
            // Only the GIL holder is recorded, and the holder during the stop is not known.
            for process in &mut self.processes {
                process.exclude(before, longest_ns);
            }
        }
    }
}
