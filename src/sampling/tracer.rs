//! The thread that traces, and does nothing else: at each tick it asks the kernel which threads ran, reads sleepers as they
//! are, stops what runs for one read, and hands the copies on.

mod crowd;
mod events;
mod listing;
mod look;
mod once;
mod stopping;

use super::budget::Budget;
use super::capture::Buffers;
use super::control::Control;
use super::keeper::KeeperEvent;
use super::outbox::Outbox;
use super::raw::{FlushFacts, Message, NamedStack, RawSample, Stretch};
use super::schedule::{Schedule, Tick};
use super::session::{SEGMENT, SessionOptions};
use super::stops::{LateStops, NAP};
use super::traced::{Passed, Reached, Seen, TracedProcess, TracedThread};
use crate::memory::SnapshotMemory;
use crate::model::frame::Partial;
use crate::model::quality::Quality;
use crate::model::sample::{Capture, Gil, ThreadState};
use crate::os::clock::{monotonic_ns, own_cpu_ns, sleep_until, wake_precisely};
use crate::os::new_pids::NewestPid;
use crate::os::placement::Placement;
use crate::os::priority::{Ahead, InFront};
use crate::os::stop::{block_child_signals, wait_for_any_stop};
use crate::os::threads::{SchedStat, ThreadFiles, Whereabouts};
use crate::python::frames::PythonStack;
use crossbeam_channel::Receiver;
use crowd::{Crowd, running_threads};
use std::sync::Arc;
use std::time::Duration;

/// The first segment, where somebody watches.
const FIRST_NS: u64 = 150_000_000;
/// Longest sleep between looks at what the rest of torchspy wants.
const NAP_NS: u64 = 20_000_000;

/// How long the first tick waits for the interpreters of a program that runs already.
const ATTACH_NS: u64 = 500_000_000;
/// How long, at the end, threads are waited for that were asked to stop and have not yet.
const LATE_STOPS_NS: u64 = 500_000_000;

/// A running thread of this tick.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    process: usize,
    thread: usize,
    run_ns: u64,
    queue_ns: u64,
    slices: u64,
    /// A sleeper whose registers are needed, and not a running thread.
    asleep: Option<Whereabouts>,
    /// It runs, and a stop would likely cut its system call short.
    keeps_running: bool,
}

/// The tracer's state.
pub(super) struct Tracer {
    options: SessionOptions,
    control: Arc<Control>,
    events: Receiver<KeeperEvent>,
    outbox: Outbox,
    processes: Vec<TracedProcess>,
    next_process: usize,
    next_thread: usize,
    buffers: Buffers,
    // Boxes travel to the worker and back as they are.
    #[expect(clippy::vec_box)]
    spare: Vec<Box<RawSample>>,
    late: LateStops,
    budget: Budget,
    schedule: Schedule,
    /// Up to where the looks so far, and the stops of theirs, account for time.
    reached: Reached,
    quality: Quality,
    segment_start_ns: u64,
    /// When the segment ends.
    flush_ns: u64,
    own_cpu_ns: u64,
    own_queue: (ThreadFiles, SchedStat),
    ahead: Ahead,
    /// While threads are stopped, or asked to stop.
    in_front: Option<InFront>,
    placement: Placement,
    crowd: Crowd,
    launched_pid: Option<i32>,
    /// The newest pid of the machine, and what it was at the last tick.
    newest: (NewestPid, Option<u64>),
}

impl Tracer {
    pub(super) fn new(
        options: SessionOptions,
        control: Arc<Control>,
        events: Receiver<KeeperEvent>,
        outbox: Outbox,
        launched_pid: Option<i32>,
    ) -> Self {
        let now_ns = monotonic_ns();
        let schedule = Schedule::new(options.rate_hz, now_ns, now_ns ^ 0x9e37_79b9_7f4a_7c15);
        let budget = Budget::new(options.max_stopped, schedule.period_ns());
        let first_ns = match options.segment < SEGMENT {
            true => FIRST_NS,
            false => SEGMENT.as_nanos() as u64,
        };
        let own_pid = std::process::id() as i32;
        let own_files = ThreadFiles::open(own_pid, nix::unistd::gettid().as_raw());
        let own_stat = own_files.schedstat().unwrap_or_default();
        Self {
            options,
            control,
            events,
            outbox,
            processes: Vec::new(),
            next_process: 0,
            next_thread: 0,
            buffers: Buffers::default(),
            spare: Vec::new(),
            late: LateStops::default(),
            budget,
            schedule,
            reached: Reached {
                ns: now_ns,
                ticks: 0,
            },
            quality: Quality::default(),
            segment_start_ns: now_ns,
            flush_ns: now_ns + first_ns,
            own_cpu_ns: own_cpu_ns(),
            own_queue: (own_files, own_stat),
            ahead: Ahead::default(),
            in_front: None,
            placement: Placement::default(),
            crowd: Crowd::default(),
            launched_pid,
            newest: (NewestPid::open(), None),
        }
    }

    /// Samples until it is told to stop or every process is gone.
    pub(super) fn run(mut self) {
        block_child_signals();
        wake_precisely();
        self.ahead = Ahead::prepare();
        self.placement = Placement::of_this_thread();
        self.wait_for_interpreters();
        let mut ever = false;
        while !self.control.stop_requested() {
            self.take_events();
            ever |= !self.processes.is_empty();
            if ever && self.processes.is_empty() && self.control.tree_is_gone() {
                break;
            }
            if self.control.pause_requested() {
                self.pause();
                continue;
            }
            let now_ns = monotonic_ns();
            if now_ns >= self.schedule.next_ns() {
                let tick = self.schedule.take(now_ns);
                self.tick(tick);
            } else {
                self.rest(now_ns);
            }
            let now_ns = monotonic_ns();
            if now_ns >= self.flush_ns {
                self.flush(now_ns, false);
                self.flush_later(now_ns);
            }
        }
        // What is waited for below is no time that was sampled.
        let end_ns = monotonic_ns();
        self.release_late_stops();
        self.flush(end_ns, true);
        self.outbox.finish();
    }

    fn rest(&mut self, now_ns: u64) {
        let until = self.schedule.next_ns().min(now_ns + NAP_NS);
        if self.late.is_empty() {
            sleep_until(until);
        } else {
            // Short naps, for the same reason as within a tick.
            wait_for_any_stop(Duration::from_nanos((until - now_ns).max(1)).min(NAP));
            self.take_late();
        }
    }

    /// Lets go of everything and stands still until the session goes on.
    fn pause(&mut self) {
        let end_ns = monotonic_ns();
        self.release_late_stops();
        self.flush(end_ns, false);
        self.control.confirm_pause();
        while self.control.pause_requested() && !self.control.stop_requested() {
            sleep_until(monotonic_ns() + NAP_NS);
        }
        let now_ns = self.begin_again();
        self.flush_later(now_ns);
    }

    /// Sampling goes on now: the time since it was last done is nobody's.
    fn begin_again(&mut self) -> u64 {
        let now_ns = monotonic_ns();
        let paused_ns = now_ns.saturating_sub(self.reached.ns);
        for process in &mut self.processes {
            process.named_ns = now_ns;
            process.put_off(paused_ns);
        }
        self.schedule.restart(now_ns);
        self.reached.ns += paused_ns;
        self.segment_start_ns = now_ns;
        now_ns
    }

    /// A program that runs already is sampled once its interpreter is known, or after a while.
    fn wait_for_interpreters(&mut self) {
        if self.launched_pid.is_none() {
            let begun_ns = monotonic_ns();
            self.wait_for(ATTACH_NS, Self::are_settled);
            self.flush_ns += self.begin_again().saturating_sub(begun_ns);
        }
    }

    /// Again a segment from now.
    fn flush_later(&mut self, now_ns: u64) {
        self.flush_ns = now_ns + self.options.segment.as_nanos() as u64;
    }

    /// Waits, a bounded time, for threads that were asked to stop and have not yet: none may be left behind stopped. If
    /// torchspy ends before they stop, the kernel lets them go.
    fn release_late_stops(&mut self) {
        // By the clock: on a loaded machine a short nap takes long.
        let deadline_ns = monotonic_ns() + LATE_STOPS_NS;
        while !self.late.is_empty() && monotonic_ns() < deadline_ns {
            wait_for_any_stop(Duration::from_millis(5));
            for stopped in self.late.arrived() {
                self.late.resume(stopped);
            }
        }
        self.in_front = None;
    }

    fn tick(&mut self, tick: Tick) {
        self.quality.ticks += 1;
        self.call_keeper();
        self.quality.late_ticks += u64::from(tick.late);
        self.quality.missed_ticks += tick.missed;
        self.take_recycled();
        self.take_late();
        let mut candidates = Vec::new();
        for index in 0..self.processes.len() {
            self.look_at_process(index, tick, &mut candidates);
        }
        self.reached = self.reached_after(tick);
        let running = running_threads(&candidates);
        self.take_candidates(candidates, tick);
        self.choose_cpu(&running, tick);
        self.remove_exited();
        let threads = self
            .processes
            .iter()
            .map(|process| process.threads.len())
            .sum();
        self.control
            .show_tick(self.processes.len(), threads, self.budget.is_limiting());
    }

    fn take_recycled(&mut self) {
        while let Some(mut sample) = self.outbox.recycled() {
            self.buffers.reclaim(&mut sample);
            self.spare.push(sample);
        }
    }

    /// Up to where time is accounted for once every thread was looked at in `tick`.
    fn reached_after(&self, tick: Tick) -> Reached {
        Reached {
            ns: tick.end_ns,
            ticks: self.reached.ticks + 1,
        }
    }

    /// Tells the keeper if a process may have been started since the last tick.
    fn call_keeper(&mut self) {
        let newest = self.newest.0.read();
        if newest.is_none() || newest != self.newest.1 {
            self.newest.1 = newest;
            self.control.keeper_bell().ring();
        }
    }

    /// A stretch of this tick, with what was passed over before while the thread did the same: ran, or slept.
    fn stretch(
        &mut self,
        index: usize,
        at: usize,
        tick: Tick,
        (run_ns, queue_ns): (u64, u64),
        capture: Capture,
    ) -> Stretch {
        let thread = &mut self.processes[index].threads[at];
        let deferred = match (capture.is_fresh(), thread.state) {
            (true, ThreadState::Running) => std::mem::take(&mut thread.deferred),
            (true, _) => std::mem::take(&mut thread.deferred_sleep),
            (false, _) => Passed::default(),
        };
        let skipped = std::mem::take(&mut thread.skipped);
        let earlier_ns = deferred.weight_ns + skipped.weight_ns;
        Stretch {
            thread: thread.id,
            start_ns: tick.start_ns.saturating_sub(earlier_ns),
            weight_ns: tick.weight_ns() + earlier_ns,
            ticks: 1 + deferred.ticks + skipped.ticks,
            capture,
            state: thread.state,
            syscall: None,
            gil: Gil::Unknown,
            gil_holder: None,
            run_ns: run_ns + deferred.run_ns,
            queue_ns: queue_ns + deferred.queue_ns,
        }
    }

    /// A candidate's sample, with nothing in it yet.
    fn sample(&mut self, candidate: Candidate) -> Box<RawSample> {
        let process = &self.processes[candidate.process];
        let thread = &process.threads[candidate.thread];
        let stretch = Stretch {
            thread: thread.id,
            start_ns: 0,
            weight_ns: 0,
            ticks: 0,
            capture: Capture::Unread,
            state: thread.state,
            syscall: None,
            gil: Gil::Unknown,
            gil_holder: None,
            run_ns: 0,
            queue_ns: 0,
        };
        let (shared, process, slices) = (thread.shared.clone(), process.id, candidate.slices);
        if let Some(mut sample) = self.spare.pop() {
            sample.stretch = stretch;
            sample.process = process;
            sample.shared = shared;
            sample.slices = slices;
            sample.read_ns = 0;
            sample.python_state = 0;
            sample.registers = None;
            sample.python.clear();
            sample.python_pending_ns = 0;
            sample.python_partial = None;
            sample.failure = None;
            return sample;
        }
        Box::new(RawSample {
            stretch,
            process,
            shared,
            slices,
            read_ns: 0,
            python_state: 0,
            registers: None,
            snapshot: SnapshotMemory::default(),
            python: PythonStack::default(),
            codes: SnapshotMemory::default(),
            python_pending_ns: 0,
            python_partial: None,
            failure: None,
        })
    }

    fn put_back(&mut self, mut sample: Box<RawSample>) {
        self.buffers.reclaim(&mut sample);
        if self.spare.len() < 64 {
            self.spare.push(sample);
        }
    }

    fn hand_on(&mut self, index: usize, at: usize, mut sample: Box<RawSample>) {
        sample.registers = sample.registers.filter(|_| self.options.native);
        self.flush_reused(index, at, false);
        self.control.show_sample();
        if self.processes[index].is_python_pending() {
            sample.python_pending_ns = monotonic_ns();
        }
        let thread = &mut self.processes[index].threads[at];
        if self.options.once {
            thread.captures = thread.captures.saturating_add(1);
            thread.captured_ns = monotonic_ns();
        }
        if let Some(dropped) = self.outbox.send(Message::Sample(sample)) {
            self.put_back(dropped);
            // What it sleeps on with is not known.
            self.processes[index].threads[at].seen = Seen::Unknown;
            self.processes[index].threads[at].captures = 0;
        }
    }

    fn unread(&mut self, index: usize, at: usize, tick: Tick, ran: (u64, u64), why: Partial) {
        self.flush_reused(index, at, false);
        let stretch = self.stretch(index, at, tick, ran, Capture::Unread);
        self.outbox.span(stretch, Some(why));
    }

    fn flush_reused(&mut self, index: usize, at: usize, no_look_follows: bool) {
        let process = &mut self.processes[index];
        let thread = &mut process.threads[at];
        let was_looked_at = thread.is_looked_at() && !process.by_fallback;
        let end = (no_look_follows && was_looked_at).then_some(self.reached);
        if let Some(stretch) = thread.take_reused(end) {
            self.outbox.span(stretch, None);
        }
    }

    /// Hands on what there is of the time up to `end_ns`.
    fn flush(&mut self, end_ns: u64, last: bool) {
        self.crowd.step_back();
        for index in 0..self.processes.len() {
            self.rename_threads(index, false);
            for at in 0..self.processes[index].threads.len() {
                self.flush_reused(index, at, last);
                if last {
                    self.flush_deferred(index, at, Partial::StopTimeout);
                }
            }
        }
        let cpu_ns = own_cpu_ns();
        self.quality.own_cpu_ns = cpu_ns.saturating_sub(self.own_cpu_ns);
        self.own_cpu_ns = cpu_ns;
        if let Ok(stat) = self.own_queue.0.schedstat() {
            self.quality.own_queue_ns = stat.queue_ns.saturating_sub(self.own_queue.1.queue_ns);
            self.own_queue.1 = stat;
        }
        let facts = FlushFacts {
            start_ns: self.segment_start_ns,
            end_ns,
            quality: std::mem::take(&mut self.quality),
            losses: self.outbox.take_losses(),
            last,
        };
        self.segment_start_ns = end_ns;
        self.outbox.send(Message::Flush(Box::new(facts)));
    }
}
