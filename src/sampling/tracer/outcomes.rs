//! What comes of stops: samples, deferred ticks, and time that is charged.

use super::Tracer;
use super::capture::{Attempt, refusal, stack_pointer};
use super::gil::set_gil;
use super::poll::Candidate;
use super::precedence::Event;
use super::thread::Seen;
use super::tick::Holders;
use crate::model::frame::Partial;
use crate::model::sample::Capture as Method;
use crate::os::clock::monotonic_ns;
use crate::os::stop::{StopError, StoppedThread};
use crate::os::syscalls::Ending;
use crate::sampling::stops::Outcome;

/// A thread that ran when it was polled may have blocked before the stop landed, some tens of microseconds later. Taking that for what
/// it did would add as much to every sleep, at the cost of what it ran before; so the tick waits for the next stop that finds it
/// running, as ticks over the budget do. After so many ticks the sleep is taken: it hardly ever runs for longer.
const MAX_BLOCKED: u32 = 4;

impl Tracer {
    /// Records what came of one stop; gives for how long the thread was stopped, ns.
    pub(super) fn settle(&mut self, attempt: Attempt, gil: &Holders) -> u64 {
        let Attempt {
            candidate,
            outcome,
            mut sample,
            ending,
            holders,
            ..
        } = attempt;
        let (index, at) = (candidate.process, candidate.thread);
        self.take_ending(index, at, ending);
        let thread = &mut self.processes[index].threads[at];
        thread.seen = Seen::Running;
        let Outcome::Resumed(stop_ns) = outcome else {
            self.capture.put_back(sample);
            self.settle_failed(candidate, &outcome);
            return 0;
        };
        thread.calls.was_stopped();
        self.quality.stops.record(stop_ns);
        thread.stack_pointer = stack_pointer(&sample);
        let waits = matches!(ending, Some(Ending::Waits | Ending::Interrupted));
        if candidate.asleep.is_none() && waits && thread.blocked < MAX_BLOCKED {
            thread.blocked += 1;
            self.capture.put_back(sample);
            self.defer(candidate);
            return stop_ns;
        }
        thread.blocked = 0;
        if let Some(whereabouts) = candidate.asleep {
            thread.seen = Seen::Asleep(whereabouts);
            thread.own_stop = true;
            sample.recorded.syscall = whereabouts.syscall();
        }
        thread.charge(&mut sample.recorded, Method::Stopped);
        let of_tick = || gil.get(&index).map_or(&[][..], Vec::as_slice);
        let holders = holders.as_deref().unwrap_or_else(of_tick);
        set_gil(&mut sample.recorded, &thread.plan, holders);
        self.hand_on(index, at, sample);
        stop_ns
    }

    /// The same of a thread that was not captured.
    fn settle_failed(&mut self, candidate: Candidate, outcome: &Outcome) {
        let (index, at) = (candidate.process, candidate.thread);
        let is_asleep = candidate.asleep.is_some();
        let thread = &mut self.processes[index].threads[at];
        // A sleeper that cannot be stopped is read as it is at the next poll, and then asked again.
        thread.own_stop = is_asleep && !matches!(outcome, Outcome::NotAsked);
        match outcome {
            Outcome::TimedOut => {
                self.quality.stop_timeouts += 1;
                self.defer(candidate);
            }
            Outcome::NotAsked if !is_asleep => {
                self.quality.skipped_for_late_stop += 1;
                self.skip(candidate);
            }
            Outcome::Failed(StopError::Refused) if !is_asleep => {
                let why = refusal(thread);
                self.not_read(index, at, why);
            }
            Outcome::NotAsked | Outcome::Failed(StopError::Refused) => self.defer(candidate),
            _ => self.not_read(index, at, Partial::Exited),
        }
    }

    /// Takes in what a stop did to the system call that it met.
    fn take_ending(&mut self, index: usize, at: usize, ending: Option<Ending>) {
        let Some(ending) = ending else { return };
        match ending {
            Ending::Interrupted | Ending::CutShort => self.quality.calls_cut_short += 1,
            Ending::Exec {
                privileges_lost: true,
            } => self.quality.privileges_lost += 1,
            Ending::Waits | Ending::Exec { .. } => {}
        }
        let thread = &mut self.processes[index].threads[at];
        thread.calls.stopped(ending, monotonic_ns());
    }

    /// Reads and lets go the threads that were asked to stop in an earlier tick and are stopped now.
    pub(super) fn take_late(&mut self) {
        if !self.capture.is_outstanding() {
            return;
        }
        for stopped in self.capture.arrived() {
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
                Some((index, at)) => self.read_late(index, at, stopped),
                None => self.capture.resume(stopped),
            }
        }
        let outstanding = self.capture.is_outstanding();
        self.capture.precede(Event::Collected { outstanding });
    }

    fn read_late(&mut self, index: usize, at: usize, stopped: StoppedThread) {
        let late = self.capture.late(&mut self.processes[index], at, stopped);
        let (mut sample, stop_ns) = (late.sample, late.stop_ns);
        self.take_ending(index, at, late.ending);
        self.quality.stops.record(stop_ns);
        // Its running time was accounted for in the tick that asked for the stop.
        self.decide.account(stop_ns, 0);
        self.control.show_stops(stop_ns, 0);
        // All of its time was deferred to now. Of a snapshot what was read last has the latest start.
        let now_ns = match self.options.once {
            true => monotonic_ns(),
            false => self.schedule.stratum_ns(),
        };
        let thread = &mut self.processes[index].threads[at];
        thread.calls.was_stopped();
        thread.charge_late(&mut sample.recorded, now_ns);
        set_gil(&mut sample.recorded, &thread.plan, &late.holders);
        self.hand_on(index, at, sample);
    }

    /// Postpones the schedule by the longest stop of the tick.
    pub(super) fn charge_longest_stop(&mut self) {
        let longest_ns = std::mem::take(&mut self.longest_stop_ns);
        self.schedule.put_off(longest_ns);
        self.quality.missed_ticks += self.schedule.take_lost();
        let before = self.reached;
        self.reached.ns += longest_ns;
        if self.options.gil_only {
            // Only who holds the GIL is recorded, and who did during the stop is not known.
            for process in &mut self.processes {
                process.postpone(before, longest_ns);
            }
        }
    }
}
