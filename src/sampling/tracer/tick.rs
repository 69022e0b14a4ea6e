//! One tick: poll, decide, capture, account.

use super::account::Deferred;
use super::capture::Asleep;
use super::decide::{CandidateGroup, CaptureMode};
use super::gil::{Gils, NOT_ASKED, gils_of};
use super::poll::{Candidate, Found};
use super::priority::PriorityEvent;
use super::thread::LastPoll;
use super::wake_cpu::{running_threads, trainers};
use super::{TracedProcess, Tracer};
use crate::model::sample::{Capture as Method, ThreadState};
use crate::os::clock::{monotonic_ns, process_cpu_ns};
use crate::os::fault::{Point, reach};
use crate::os::resident::RECENT_NS;
use crate::os::threads::{SchedStat, Whereabouts};
use crate::sampling::schedule::Tick;
use crate::sampling::session::{Engine, IdleThreads};
use rustc_hash::FxHashMap;
use std::time::Duration;

/// Number of threads above which a process's CPU clock is read before its threads. The clock of a
/// thread that just woke does not advance before the scheduler's tick, so this may miss the first
/// milliseconds of a burst; polling every thread never does. Up to this number polling is cheap
/// enough.
const GATED_THREADS: usize = 400;
/// How often new Python thread states are searched for, ns: a C++ thread may create and delete one
/// at any time (PyGILState_Ensure), and a thread that was just started has none at first.
const PYTHON_THREADS_NS: u64 = 5_000_000;
/// Shortest time between two looks for new processes and threads, and at the memory of processes,
/// ns: at very high rates they would take most of the time.
const LOOKS_NS: u64 = 500_000;
/// Shortest time between two lists of threads, and between two searches for Python thread states,
/// where idle threads are followed loosely, ns.
const LOOSE_LIST_NS: u64 = 2_000_000_000;
/// How long a page that was present counts as present while no thread is stopped, ns.
const PAGES_NS: u64 = 100_000_000;
/// The same where idle threads are followed loosely, ns.
const LOOSE_PAGES_NS: u64 = 10_000_000_000;
/// Deferred ticks of sleeps that ended during the read after which the thread is stopped.
const MAX_WOKEN: u32 = 4;
/// How often a sleeper that woke during a read is looked at again, and read where it sleeps by
/// then. In front of a full queue of launches a thread sleeps for some hundred microseconds at a
/// time: its next sleep is of the same code, unlike one at a later tick that lasts long enough to
/// be read.
const MAX_READ_AGAIN: u32 = 8;
/// Sleeps in a row that end during a read after which the thread is stopped instead: the first that
/// lasts may be of other code.
const BRIEF_SLEEPS: u32 = 2;
/// The pause before the next look at a thread that runs.
const UNTIL_ASLEEP: Duration = Duration::from_micros(50);
/// Divisor of the period: sleepers are stopped for their registers only in the first part of it.
/// The others wait for the next tick.
const SLEEPERS_SHARE: u64 = 5;

/// GIL holders by index of the process, for processes with candidates.
pub(super) type Holders = FxHashMap<usize, Gils>;

impl Tracer {
    pub(super) fn tick(&mut self, tick: Tick) {
        self.quality.ticks += 1;
        let is_close = self.options.idle_threads == IdleThreads::Close;
        self.looks = tick.start_ns >= self.looked_ns + LOOKS_NS;
        if self.looks {
            self.looked_ns = tick.start_ns;
        }
        // Otherwise the keeper wakes by itself.
        if is_close && self.looks {
            self.wake_keeper();
        }
        self.quality.late_ticks += u64::from(tick.late);
        self.quality.missed_ticks += tick.missed;
        self.take_recycled();
        self.drop_unneeded(tick.start_ns);
        self.collect_late_stops();
        self.trust_pages();
        let mut running = self.capture_trainers(tick);
        let mut candidates = Vec::new();
        for index in 0..self.processes.len() {
            self.poll_process(index, tick, &mut candidates);
        }
        self.accounted_to = self.accounted_to.after(tick);
        running.extend(running_threads(&candidates));
        self.capture_candidates(candidates, tick, CandidateGroup::Others);
        self.read_memory(tick);
        self.charge_longest_stop();
        let wake_cpu = &mut self.decide.wake_cpu;
        if wake_cpu.choose_cpu(&self.processes, &running, tick) {
            self.capture
                .update_priority(PriorityEvent::WillWakeOnTrainer);
        }
        self.remove_exited();
        self.show_tick(self.decide.is_limiting());
        reach(Point::Ticked, std::process::id() as i32);
    }

    pub(super) fn show_tick(&self, is_limiting: bool) {
        let threads = self.processes.iter().map(|process| process.threads.len());
        self.control
            .show_tick(self.processes.len(), threads.sum(), is_limiting);
    }

    /// Polls the training threads, captures those that run, and leaves the trainer's CPU: the rest
    /// of the tick is not urgent. Returns process and thread index of those that ran.
    fn capture_trainers(&mut self, tick: Tick) -> Vec<(usize, usize)> {
        let mut candidates = Vec::new();
        for (index, at) in trainers(&self.processes) {
            let process = &mut self.processes[index];
            if self.decide.wake_cpu.skips_turn(process) {
                self.quality.skipped_for_turn += 1;
                continue;
            }
            // The group stop is read again in each tick.
            process.stopped = None;
            if !self.poll_thread(index, at, tick, &mut candidates) {
                self.processes[index].link_count = 0;
            }
        }
        let running = running_threads(&candidates);
        self.capture_candidates(candidates, tick, CandidateGroup::Trainers);
        self.read_memory(tick);
        if self.decide.wake_cpu.shares_trainer_cpu() {
            self.capture.update_priority(PriorityEvent::TrainersRead);
            self.decide.wake_cpu.leave_trainer_cpu();
        }
        running
    }

    /// Polls the threads of a process that are due.
    pub(super) fn poll_process(
        &mut self,
        index: usize,
        tick: Tick,
        candidates: &mut Vec<Candidate>,
    ) {
        let looks = self.looks;
        let process = &mut self.processes[index];
        let link_count = match looks {
            true => process.tasks.link_count().ok(),
            false => Some(process.link_count),
        };
        let Some(link_count) = link_count else {
            process.exited = true;
            return;
        };
        let is_unchanged = has_not_run(process);
        let (list_ns, states_ns) = match self.options.idle_threads {
            IdleThreads::Close => (0, PYTHON_THREADS_NS),
            IdleThreads::Loose => (LOOSE_LIST_NS, LOOSE_LIST_NS),
        };
        let is_listing_due = tick.start_ns >= process.listed_ns + list_ns;
        if link_count != process.link_count && is_listing_due {
            process.listed_ns = tick.start_ns;
            self.list_threads(index, link_count);
        }
        let process = &mut self.processes[index];
        if process.by_fallback {
            return;
        }
        if process.interpreter.is_some() && tick.start_ns >= process.python_read_ns + states_ns {
            process.match_python_threads(tick.start_ns);
            self.select_by_python_name(index);
        }
        let process = &mut self.processes[index];
        process.stopped = None;
        if is_unchanged {
            for thread in &mut process.threads {
                thread.ledger.poll(self.accounted_to, tick);
                thread.reuse();
            }
            return;
        }
        let (ticks, weight_ns) = (self.accounted_to.ticks, tick.weight_ns());
        let mut gone = false;
        for at in 0..self.processes[index].backoffs.len() {
            let backoff = self.processes[index].backoffs[at];
            let is_due = backoff.is_due(ticks, weight_ns, self.options.idle_threads);
            if is_due && !self.needs_no_poll(index, at) {
                gone |= !self.poll_thread(index, at, tick, candidates);
            }
            // A thread whose stop lands late must not stay stopped until all others are polled.
            self.collect_late_stops();
        }
        if gone {
            self.processes[index].link_count = 0;
        }
    }

    /// Whether a thread was already polled in this tick, or is polled in a later one.
    fn needs_no_poll(&self, index: usize, at: usize) -> bool {
        let process = &self.processes[index];
        let thread = &process.threads[at];
        let skips_turn = || thread.is_first && self.decide.wake_cpu.skips_turn(process);
        thread.ledger.accounted_to().ticks > self.accounted_to.ticks || skips_turn()
    }

    /// Polls one thread: reused, read asleep, or a candidate. `false` if it is gone.
    fn poll_thread(
        &mut self,
        index: usize,
        at: usize,
        tick: Tick,
        candidates: &mut Vec<Candidate>,
    ) -> bool {
        let process = &mut self.processes[index];
        let may_stop = self.decide.may_stop(process);
        let is_awaited = |tid| self.capture.awaits_stop(tid);
        let now = (self.accounted_to, tick);
        match self
            .poll
            .thread(process, (index, at), now, is_awaited, may_stop)
        {
            Found::Accounted => {}
            Found::Candidate(candidate) => candidates.push(candidate),
            Found::Asleep(candidate, whereabouts, scheduled) => {
                candidates.extend(self.read_asleep(candidate, whereabouts, scheduled));
            }
            Found::Unreadable(why) => self.record_without_stack(index, at, why),
            Found::Gone => {
                if self.options.idle_threads == IdleThreads::Loose {
                    // The list that no longer has it may come two seconds later.
                    self.close_dead(index, at);
                }
                return false;
            }
        }
        true
    }

    /// A thread has ended, and may stay listed: no time is charged to it any more.
    fn close_dead(&mut self, index: usize, at: usize) {
        self.processes[index].threads[at].ledger.discard();
        self.flush_reused(index, at, true);
        self.processes[index].threads[at].is_dead = true;
    }

    /// Reads a sleeper without a stop. Returns it as a candidate for a stop where such reads failed
    /// too often.
    fn read_asleep(
        &mut self,
        mut candidate: Candidate,
        whereabouts: Whereabouts,
        scheduled: SchedStat,
    ) -> Option<Candidate> {
        let (index, at) = (candidate.process, candidate.thread);
        let process = &mut self.processes[index];
        let mut read = self.capture.asleep(process, at, whereabouts, scheduled);
        let woke = matches!(read, Asleep::Woke);
        let (mut brief_sleeps, mut left) = (0, MAX_READ_AGAIN);
        if candidate.sleeps_briefly {
            (brief_sleeps, left) = (BRIEF_SLEEPS, 0);
        }
        if woke {
            // A thread that wakes on the tracer's CPU would preempt each read.
            self.capture.update_priority(PriorityEvent::RequestingStops);
        }
        for _ in 0..left {
            if !matches!(read, Asleep::Woke) {
                break;
            }
            let process = &mut self.processes[index];
            let Some((whereabouts, scheduled)) = process.threads[at].sleeps_again() else {
                std::thread::sleep(UNTIL_ASLEEP);
                continue;
            };
            self.quality.torn_retries += 1;
            brief_sleeps += 1;
            read = self.capture.asleep(process, at, whereabouts, scheduled);
        }
        if woke {
            self.end_of_stops();
        }
        let process = &mut self.processes[index];
        let thread = &mut process.threads[at];
        match read {
            Asleep::Read(mut sample, sleep) => {
                thread.charge(&mut sample.recorded, Method::Asleep);
                thread.plan.sleeps.keep(sleep);
                self.forward(index, at, sample);
            }
            Asleep::AsBefore => thread.reuse(),
            Asleep::Woke => {
                self.quality.torn_retries += 1;
                if brief_sleeps >= BRIEF_SLEEPS || thread.ledger.deferred_sleeps() >= MAX_WOKEN {
                    candidate.woke = true;
                    return Some(candidate);
                }
                // A stop where it runs by now would charge time of every sleep to the code after
                // it.
                thread.last_poll = LastPoll::Unknown;
                thread.ledger.defer_tick(Deferred::Asleep);
            }
            Asleep::Dead => self.close_dead(index, at),
            Asleep::NotCaptured(why) => self.record_without_stack(index, at, why),
        }
        None
    }

    /// Captures candidates as decided. Stops that do not fit into the budget are deferred.
    pub(super) fn capture_candidates(
        &mut self,
        candidates: Vec<Candidate>,
        tick: Tick,
        who: CandidateGroup,
    ) {
        let weight_ns = tick.weight_ns();
        let mut gil = Holders::default();
        // Samples of running threads that nothing stops do not have it.
        let wants_gil = !self.options.nonblocking || self.options.gil_only;
        for candidate in candidates.iter().filter(|_| wants_gil) {
            let process = &self.processes[candidate.process];
            gil.entry(candidate.process)
                .or_insert_with(|| gils_of(process));
        }
        let (mut stoppable, mut sleepers, mut left_running) = (Vec::new(), Vec::new(), 0);
        let mut by_kernel = Vec::new();
        for candidate in candidates {
            let (index, at) = (candidate.process, candidate.thread);
            let process = &mut self.processes[index];
            let gils = gil.get(&index).unwrap_or(NOT_ASKED);
            let holds_gil = gils.lets_run(&process.threads[at].plan);
            let how = self.decide.capture_mode(candidate, process, holds_gil);
            if matches!(how, CaptureMode::Unstopped | CaptureMode::NotCaptured(_)) {
                left_running += u64::from(self.decide.avoids_stop(candidate, process));
                self.quality.calls_left_running +=
                    u64::from(candidate.stop_would_interrupt && self.decide.may_stop(process));
            }
            let thread = &mut process.threads[at];
            if how != CaptureMode::StoppedAsleep {
                thread.state = ThreadState::Running;
            }
            match how {
                CaptureMode::StoppedAsleep => sleepers.push(candidate),
                CaptureMode::Stopped => stoppable.push(candidate),
                CaptureMode::Sampled => by_kernel.push(candidate),
                CaptureMode::Unstopped => self.read_unstopped(candidate),
                CaptureMode::NotCaptured(why) => {
                    self.record_without_stack(index, at, why);
                    self.processes[index].threads[at].last_poll = LastPoll::Running;
                }
                CaptureMode::Excluded => {
                    thread.last_poll = LastPoll::Running;
                    thread.ledger.discard_poll();
                }
            }
        }
        // Includes the time in which they ran and were not polled: stops may take a share of it,
        // too.
        let running_ns = |candidate: &Candidate| {
            let thread = &self.processes[candidate.process].threads[candidate.thread];
            weight_ns + thread.ledger.unpolled_ns()
        };
        let running_ns: u64 = stoppable.iter().chain(&by_kernel).map(running_ns).sum();
        if let (Engine::Perf { scope, .. }, false) = (self.options.engine, by_kernel.is_empty()) {
            let order = self.decide.within_budget(&by_kernel, &self.processes, who);
            self.sample_by_kernel(&by_kernel, &order, scope, &gil);
        }
        let chosen = self.decide.within_budget(&stoppable, &self.processes, who);
        // Running threads first: a sleeper stays where it is.
        let mut to_stop: Vec<Candidate> = chosen.iter().map(|&index| stoppable[index]).collect();
        for (index, candidate) in stoppable.into_iter().enumerate() {
            if !chosen.contains(&index) {
                self.quality.skipped_for_budget += 1;
                self.skip(candidate);
            }
        }
        to_stop.append(&mut sleepers);
        let stopped_ns = self.stop(&to_stop, &gil);
        let running_ns = running_ns + left_running * weight_ns;
        self.quality.target_run_ns += running_ns + stopped_ns;
        self.decide.account(stopped_ns, running_ns);
        self.control.show_stops(stopped_ns, running_ns + stopped_ns);
    }

    /// Stops, reads and resumes; returns the total time that threads were stopped, ns.
    fn stop(&mut self, candidates: &[Candidate], gil: &Holders) -> u64 {
        // A snapshot keeps the raised priority over all its stops: a lowered priority takes effect
        // a time slice later, and a late thread may be stopped by then.
        if !candidates.is_empty() {
            self.capture.update_priority(PriorityEvent::RequestingStops);
        }
        let once = self.options.once;
        let mut stopped_ns = 0;
        // A snapshot defers nothing: threads are stopped one by one, and late stops are awaited.
        let together = if once { 1 } else { candidates.len().max(1) };
        for part in candidates.chunks(together) {
            let sleepers_until_ns = monotonic_ns() + self.schedule.period_ns() / SLEEPERS_SHARE;
            let yields_cpu = self.decide.wake_cpu.shares_trainer_cpu();
            let attempts =
                self.capture
                    .stop(&mut self.processes, part, yields_cpu, sleepers_until_ns);
            if !once {
                self.end_of_stops();
            }
            for attempt in attempts {
                let candidate = attempt.candidate;
                self.longest_stop_ns = self.longest_stop_ns.max(attempt.took_ns);
                let thread = &mut self.processes[candidate.process].threads[candidate.thread];
                thread.ledger.stopped_for(attempt.took_ns);
                stopped_ns += self.finish_stop(attempt, gil);
            }
            if once {
                self.wait_for_late();
            }
        }
        self.end_of_stops();
        stopped_ns
    }

    /// Sets how long pages of the processes count as present after they were looked up.
    fn trust_pages(&self) {
        let recent_ns = match self.options.idle_threads {
            _ if self.capture.is_outstanding() => RECENT_NS,
            IdleThreads::Close => PAGES_NS,
            IdleThreads::Loose => LOOSE_PAGES_NS,
        };
        for process in &self.processes {
            process.memory.trust_pages_for(recent_ns);
        }
    }

    fn end_of_stops(&mut self) {
        self.trust_pages();
        let outstanding = self.capture.may_stop_soon();
        self.capture
            .update_priority(PriorityEvent::RequestedStops { outstanding });
    }

    /// Skips a stop to stay in the budget, or because another stop of the process is outstanding.
    pub(super) fn skip(&mut self, candidate: Candidate) {
        let process = &self.processes[candidate.process];
        let is_outstanding = self.capture.is_outstanding_of(process.pid);
        self.defer_or_read(candidate, is_outstanding);
    }

    /// Defers the tick, unless the thread was deferred for so long that its Python frames alone are
    /// better. `waits`: it cannot be captured now, whatever the budget has left.
    pub(super) fn defer_or_read(&mut self, candidate: Candidate, waits: bool) {
        let process = &self.processes[candidate.process];
        let decide = &self.decide;
        if decide.should_read_unstopped(process, candidate.thread, waits) {
            self.read_unstopped(candidate);
        } else {
            self.defer(candidate);
        }
    }

    /// Charges the tick to the next capture of the thread.
    pub(super) fn defer(&mut self, candidate: Candidate) {
        let thread = &mut self.processes[candidate.process].threads[candidate.thread];
        thread.last_poll = LastPoll::Running;
        thread.ledger.defer(match candidate.asleep {
            None => Deferred::Running,
            Some(_) => Deferred::Asleep,
        });
    }

    pub(super) fn read_unstopped(&mut self, candidate: Candidate) {
        let (index, at) = (candidate.process, candidate.thread);
        let process = &mut self.processes[index];
        process.threads[at].last_poll = LastPoll::Running;
        if self.capture.is_unchanged(process, at) {
            process.threads[at].reuse();
            return;
        }
        let read = self.capture.unstopped(process, at, candidate.slices);
        if let Some((mut sample, is_torn)) = read {
            self.quality.torn_retries += u64::from(is_torn);
            process.threads[at].charge(&mut sample.recorded, Method::Unstopped);
            self.forward(index, at, sample);
        }
    }
}

/// Whether all threads of a large process slept, and by its CPU clock none has run since the last
/// tick.
fn has_not_run(process: &mut TracedProcess) -> bool {
    let mut threads = process.threads.iter();
    let is_gated = process.threads.len() > GATED_THREADS
        && threads.all(|thread| matches!(thread.last_poll, LastPoll::Asleep(_)));
    let cpu_ns = match is_gated {
        true => process_cpu_ns(process.pid).unwrap_or(0),
        false => 0,
    };
    let last_ns = std::mem::replace(&mut process.last_cpu_ns, cpu_ns);
    is_gated && cpu_ns == last_ns
}
