//! One tick: poll, decide, capture, account.

use super::account::Deferred;
use super::capture::Asleep;
use super::crowd::{running_threads, trainers};
use super::decide::{How, Who};
use super::gil::{GilHolder, gil_holders, is_among};
use super::poll::{Candidate, Found};
use super::precedence::Event;
use super::thread::Seen;
use super::{TracedProcess, Tracer};
use crate::model::sample::{Capture as Method, ThreadState};
use crate::os::clock::{monotonic_ns, process_cpu_ns};
use crate::os::fault::{Point, reach};
use crate::os::threads::{SchedStat, Whereabouts};
use crate::sampling::schedule::Tick;
use rustc_hash::FxHashMap;

/// Threads of one process past which its CPU clock is asked first. The clock of a thread that just woke does not move
/// before the scheduler's tick, so it may miss the first milliseconds of a burst, while asking every thread never does:
/// up to here exactness is cheaper than what it costs.
const GATED_THREADS: usize = 400;
/// How often it is asked whether there are new Python thread states: a C++ thread takes and drops one whenever it likes
/// (PyGILState_Ensure), and a thread that was just started has none for a moment.
const PYTHON_THREADS_NS: u64 = 5_000_000;
/// Sleeps that ended while they were read, and whose ticks wait for one that does not: after so many the thread is stopped.
const MAX_WOKEN: u32 = 4;
/// How much of a period may pass before no further sleeper is stopped for its registers: the rest waits for the next tick.
const SLEEPERS_SHARE: u64 = 5;

/// Who holds the GIL of each process with candidates.
pub(super) type Holders = FxHashMap<usize, Vec<GilHolder>>;

impl Tracer {
    pub(super) fn tick(&mut self, tick: Tick) {
        self.quality.ticks += 1;
        self.call_keeper();
        self.quality.late_ticks += u64::from(tick.late);
        self.quality.missed_ticks += tick.missed;
        self.take_recycled();
        self.take_late();
        let mut running = self.take_trainers(tick);
        let mut candidates = Vec::new();
        for index in 0..self.processes.len() {
            self.poll_process(index, tick, &mut candidates);
        }
        self.reached = self.reached.after(tick);
        running.extend(running_threads(&candidates));
        self.take_candidates(candidates, tick, Who::Others);
        self.charge_longest_stop();
        let crowd = &mut self.decide.crowd;
        if crowd.choose_cpu(&self.processes, &running, tick) {
            self.capture.precede(Event::WillWakeOnTrainer);
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

    /// Polls the threads that train, stops those that run, and steps back: nobody waits for what comes after. Process and place of those
    /// that ran.
    fn take_trainers(&mut self, tick: Tick) -> Vec<(usize, usize)> {
        let mut candidates = Vec::new();
        for (index, at) in trainers(&self.processes) {
            let process = &mut self.processes[index];
            if self.decide.crowd.is_left(process) {
                self.quality.skipped_for_turn += 1;
                continue;
            }
            // Whether it is in a group stop is asked again in each tick.
            process.stopped = None;
            if !self.poll_thread(index, at, tick, &mut candidates) {
                self.processes[index].link_count = 0;
            }
        }
        let running = running_threads(&candidates);
        self.take_candidates(candidates, tick, Who::Trainers);
        if self.decide.crowd.is_crowded() {
            self.capture.precede(Event::HasWoken);
            self.decide.crowd.step_back();
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
        let process = &mut self.processes[index];
        let Ok(link_count) = process.tasks.link_count() else {
            process.exited = true;
            return;
        };
        let is_unchanged = has_not_run(process);
        if link_count != process.link_count {
            self.list_threads(index, link_count);
        }
        let process = &mut self.processes[index];
        if process.by_fallback {
            return;
        }
        if process.interpreter.is_some()
            && tick.start_ns >= process.python_read_ns + PYTHON_THREADS_NS
        {
            process.match_python_threads(tick.start_ns);
            self.take_python_names(index);
        }
        let process = &mut self.processes[index];
        process.stopped = None;
        if is_unchanged {
            for thread in &mut process.threads {
                thread.ledger.poll(self.reached, tick);
                thread.reuse();
            }
            return;
        }
        let (ticks, weight_ns) = (self.reached.ticks, tick.weight_ns());
        let mut gone = false;
        for at in 0..self.processes[index].backoffs.len() {
            let is_due = self.processes[index].backoffs[at].is_due(ticks, weight_ns);
            if is_due && !self.is_taken_or_left(index, at) {
                gone |= !self.poll_thread(index, at, tick, candidates);
            }
            // One that was asked to stop is not to be stopped for as long as all the others are polled.
            self.take_late();
        }
        if gone {
            self.processes[index].link_count = 0;
        }
    }

    /// Whether a thread was polled in this tick already, or is left to a later one.
    fn is_taken_or_left(&self, index: usize, at: usize) -> bool {
        let process = &self.processes[index];
        let thread = &process.threads[at];
        let is_left = || thread.is_first && self.decide.crowd.is_left(process);
        thread.ledger.reached().ticks > self.reached.ticks || is_left()
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
        let is_awaited = |tid| self.capture.awaits(tid);
        let now = (self.reached, tick);
        match self
            .poll
            .thread(process, (index, at), now, is_awaited, may_stop)
        {
            Found::Accounted => {}
            Found::Candidate(candidate) => candidates.push(candidate),
            Found::Asleep(candidate, whereabouts, scheduled) => {
                candidates.extend(self.read_asleep(candidate, whereabouts, scheduled));
            }
            Found::Unreadable(why) => self.not_read(index, at, why),
            Found::Gone => return false,
        }
        true
    }

    /// Reads a sleeper as it is. It is a candidate for a stop where that has not come about too often.
    fn read_asleep(
        &mut self,
        candidate: Candidate,
        whereabouts: Whereabouts,
        scheduled: SchedStat,
    ) -> Option<Candidate> {
        let (index, at) = (candidate.process, candidate.thread);
        let process = &mut self.processes[index];
        match self.capture.asleep(process, at, whereabouts, scheduled) {
            Asleep::Read(mut sample) => {
                process.threads[at].charge(&mut sample.recorded, Method::Asleep);
                self.hand_on(index, at, sample);
            }
            Asleep::Woke => {
                self.quality.torn_retries += 1;
                let thread = &mut process.threads[at];
                if thread.ledger.deferred_sleeps() >= MAX_WOKEN {
                    return Some(candidate);
                }
                // To stop it where it runs by now would take as much from every sleep, and give it to what follows.
                thread.seen = Seen::Unknown;
                thread.ledger.defer_tick(Deferred::Asleep);
            }
            Asleep::Dead => {
                process.threads[at].ledger.leave_out();
                self.flush_reused(index, at, true);
                self.processes[index].threads[at].is_dead = true;
            }
            Asleep::NotRead(why) => self.not_read(index, at, why),
        }
        None
    }

    /// Captures candidates as is decided. What does not fit into the budget is deferred.
    pub(super) fn take_candidates(&mut self, candidates: Vec<Candidate>, tick: Tick, who: Who) {
        let weight_ns = tick.weight_ns();
        let mut gil = Holders::default();
        for candidate in &candidates {
            let process = &self.processes[candidate.process];
            gil.entry(candidate.process)
                .or_insert_with(|| gil_holders(process));
        }
        let (mut stoppable, mut sleepers, mut left_running) = (Vec::new(), Vec::new(), 0);
        for candidate in candidates {
            let (index, at) = (candidate.process, candidate.thread);
            let process = &mut self.processes[index];
            let holders = gil.get(&index).map_or(&[][..], Vec::as_slice);
            let holds_gil = is_among(&process.threads[at].plan, holders);
            let how = self.decide.how(candidate, process, holds_gil);
            if matches!(how, How::Unstopped | How::NotRead(_)) {
                left_running += u64::from(self.decide.leaves_running(candidate, process));
                self.quality.calls_left_running +=
                    u64::from(candidate.keeps_running && self.decide.may_stop(process));
            }
            let thread = &mut process.threads[at];
            if how != How::StoppedAsleep {
                thread.state = ThreadState::Running;
            }
            match how {
                How::StoppedAsleep => sleepers.push(candidate),
                How::Stopped => stoppable.push(candidate),
                How::Unstopped => self.read_unstopped(candidate),
                How::NotRead(why) => {
                    self.not_read(index, at, why);
                    self.processes[index].threads[at].seen = Seen::Running;
                }
                How::LeftOut => {
                    thread.seen = Seen::Running;
                    thread.ledger.leave_out();
                }
            }
        }
        // Of all the time that they ran and were not polled, too: stops may take a share of that.
        let running_ns = |candidate: &Candidate| {
            let thread = &self.processes[candidate.process].threads[candidate.thread];
            weight_ns + thread.ledger.unpolled_ns()
        };
        let running_ns: u64 = stoppable.iter().map(running_ns).sum();
        let chosen = self.decide.within_budget(&stoppable, &self.processes, who);
        // Those that run come first: a sleeper stays where it is.
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

    /// Stops, reads and resumes; gives for how long threads were stopped in all, ns.
    fn stop(&mut self, candidates: &[Candidate], gil: &Holders) -> u64 {
        // Where threads are read once not only for each of the stops: the CPU is given back a slice later, and a thread that was
        // awaited may be stopped by then.
        if !candidates.is_empty() {
            self.capture.precede(Event::Asking);
        }
        let once = self.options.once;
        let mut stopped_ns = 0;
        // Where each thread is read once nothing is deferred: they are stopped one by one, and those that come late are awaited.
        let together = if once { 1 } else { candidates.len().max(1) };
        for part in candidates.chunks(together) {
            let sleepers_until_ns = monotonic_ns() + self.schedule.period_ns() / SLEEPERS_SHARE;
            let gives_way = self.decide.crowd.is_crowded();
            let attempts =
                self.capture
                    .stop(&mut self.processes, part, gives_way, sleepers_until_ns);
            if !once {
                self.end_of_stops();
            }
            for attempt in attempts {
                let candidate = attempt.candidate;
                self.longest_stop_ns = self.longest_stop_ns.max(attempt.took_ns);
                let thread = &mut self.processes[candidate.process].threads[candidate.thread];
                thread.ledger.stopped_for(attempt.took_ns);
                stopped_ns += self.settle(attempt, gil);
            }
            if once {
                self.wait_for_late();
            }
        }
        self.end_of_stops();
        stopped_ns
    }

    fn end_of_stops(&mut self) {
        let outstanding = self.capture.is_outstanding();
        self.capture.precede(Event::Asked { outstanding });
    }

    /// Leaves out a stop that the budget has no room for, or that has to wait for another.
    pub(super) fn skip(&mut self, candidate: Candidate) {
        let process = &self.processes[candidate.process];
        let is_outstanding = self.capture.is_outstanding_of(process.pid);
        let decide = &self.decide;
        if decide.reads_unstopped(process, candidate.thread, is_outstanding) {
            self.read_unstopped(candidate);
        } else {
            self.defer(candidate);
        }
    }

    /// Defers the tick to the next capture of the thread.
    pub(super) fn defer(&mut self, candidate: Candidate) {
        let thread = &mut self.processes[candidate.process].threads[candidate.thread];
        thread.seen = Seen::Running;
        thread.ledger.defer(match candidate.asleep {
            None => Deferred::Running,
            Some(_) => Deferred::Asleep,
        });
    }

    fn read_unstopped(&mut self, candidate: Candidate) {
        let (index, at) = (candidate.process, candidate.thread);
        let process = &mut self.processes[index];
        process.threads[at].seen = Seen::Running;
        let read = self.capture.unstopped(process, at, candidate.slices);
        if let Some((mut sample, is_torn)) = read {
            self.quality.torn_retries += u64::from(is_torn);
            process.threads[at].charge(&mut sample.recorded, Method::Unstopped);
            self.hand_on(index, at, sample);
        }
    }
}

/// Whether all of a large process's threads slept and none has run since the tick before, by its CPU clock.
fn has_not_run(process: &mut TracedProcess) -> bool {
    let mut threads = process.threads.iter();
    let is_gated = process.threads.len() > GATED_THREADS
        && threads.all(|thread| matches!(thread.seen, Seen::Asleep(_)));
    let cpu_ns = match is_gated {
        true => process_cpu_ns(process.pid).unwrap_or(0),
        false => 0,
    };
    let last_ns = std::mem::replace(&mut process.last_cpu_ns, cpu_ns);
    is_gated && cpu_ns == last_ns
}
