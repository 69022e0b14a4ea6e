//! The tracer thread. Each tick has four stages, one module each:
//!
//! - [`poll`]: asks the kernel which threads ran since the last tick, and where the others sleep;
//! - [`decide`]: chooses which threads are captured and how, so that stops stay within their
//!   budget;
//! - [`capture`]: reads sleeping threads without a stop; stops, reads and resumes running threads;
//! - [`account`]: a ledger per thread that charges each tick to exactly one sample.

mod account;
mod by_kernel;
mod capture;
mod decide;
mod events;
mod gil;
mod listing;
mod memory;
mod once;
mod outcomes;
mod poll;
mod priority;
mod process;
mod spare;
mod thread;
mod tick;
mod wake_cpu;

use super::control::Control;
use super::keeper::KeeperEvent;
use super::outbox::Outbox;
use super::raw::{Message, RawSample};
use super::schedule::Schedule;
use super::session::{IdleThreads, SEGMENT, SessionOptions};
use crate::model::frame::Partial;
use crate::model::quality::Quality;
use crate::model::sample::Capture as Method;
use crate::model::segment::Segment;
use crate::model::sideband::Sideband;
use crate::model::track::CounterTracks;
use crate::os::clock::{monotonic_ns, own_cpu_ns, sleep_until, wake_precisely};
use crate::os::new_pids::NewestPid;
use crate::os::stop::block_child_signals;
use crate::os::threads::{SchedStat, ThreadFiles};
use account::{Charged, TimePoint};
use capture::Capture;
use crossbeam_channel::Receiver;
use decide::Decide;
use poll::Poll;
use priority::PriorityEvent;
use process::TracedProcess;
use std::sync::Arc;
use thread::LastPoll;

/// Length of the first segment of a live view, ns.
const FIRST_NS: u64 = 150_000_000;
/// Longest sleep before events and requests of the other threads are handled, ns.
const NAP_NS: u64 = 100_000_000;

/// A wait that is shorter than this is no sleep, ns: to wake takes as long.
const NO_SLEEP_NS: u64 = 50_000;

/// How long the first tick waits for interpreter discovery in a program that already runs, ns.
const ATTACH_NS: u64 = 500_000_000;
/// How long to wait at the end for outstanding stop requests, ns.
const LATE_STOPS_NS: u64 = 500_000_000;
/// How often buffers are dropped that were not needed, where idle threads are followed loosely.
const KEPT_NS: u64 = 60_000_000_000;

/// The tracer's state.
pub(super) struct Tracer {
    options: SessionOptions,
    control: Arc<Control>,
    events: Receiver<KeeperEvent>,
    outbox: Outbox,
    processes: Vec<TracedProcess>,
    next_process: usize,
    next_thread: usize,
    poll: Poll,
    decide: Decide,
    capture: Capture,
    schedule: Schedule,
    /// The longest stop of the tick, ns.
    longest_stop_ns: u64,
    /// Whether this tick looks for new processes and threads, and at memory; and the start of the
    /// last one that did.
    looks: bool,
    looked_ns: u64,
    /// When buffers that were not needed were last dropped.
    kept_ns: u64,
    /// Polls so far, and their stops, account for the time up to here.
    accounted_to: TimePoint,
    quality: Quality,
    /// Readings of memory since the last flush.
    memory: CounterTracks,
    segment_start_ns: u64,
    /// When the segment ends.
    flush_ns: u64,
    own_cpu_ns: u64,
    own_queue: (ThreadFiles, SchedStat),
    launched_pid: Option<i32>,
    /// The newest pid of the machine, and its value at the last tick.
    newest: (NewestPid, Option<u64>),
    /// When the kernel last had nothing left for the sampler of another thread; 0 if it always had.
    exhausted_ns: u64,
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
        let first_ns = match options.segment < SEGMENT {
            true => FIRST_NS,
            false => SEGMENT.as_nanos() as u64,
        };
        let own_pid = std::process::id() as i32;
        let own_files = ThreadFiles::open(own_pid, nix::unistd::gettid().as_raw());
        let own_stat = own_files.schedstat().unwrap_or_default();
        Self {
            poll: Poll::new(&options),
            decide: Decide::new(&options, schedule.period_ns()),
            capture: Capture::new(&options),
            options,
            control,
            events,
            outbox,
            processes: Vec::new(),
            next_process: 0,
            next_thread: 0,
            schedule,
            longest_stop_ns: 0,
            looks: true,
            looked_ns: 0,
            kept_ns: 0,
            accounted_to: TimePoint {
                ns: now_ns,
                ticks: 0,
            },
            quality: Quality::default(),
            memory: CounterTracks::default(),
            segment_start_ns: now_ns,
            flush_ns: now_ns + first_ns,
            own_cpu_ns: own_cpu_ns(),
            own_queue: (own_files, own_stat),
            launched_pid,
            newest: (NewestPid::open(), None),
            exhausted_ns: 0,
        }
    }

    /// Samples until a stop is requested or every process is gone.
    pub(super) fn run(mut self) {
        block_child_signals();
        wake_precisely();
        self.capture.prepare();
        self.decide.wake_cpu.prepare();
        self.wait_for_interpreters();
        let (mut ever, mut ends) = (false, false);
        while !ends {
            // Polls that are already due are still taken: where torchspy got no CPU, the last one
            // may stand for a long time.
            ends = self.control.stop_requested();
            self.take_events();
            ever |= !self.processes.is_empty();
            if ever && self.processes.is_empty() && self.control.tree_is_gone() {
                break;
            }
            if self.control.pause_requested() && !ends {
                self.pause();
                continue;
            }
            let now_ns = monotonic_ns();
            if now_ns >= self.schedule.next_ns() {
                let tick = self.schedule.take(now_ns);
                self.tick(tick);
            } else if !ends {
                self.wait_for_next_poll(now_ns);
            }
            let now_ns = monotonic_ns();
            if now_ns >= self.flush_ns {
                self.flush(now_ns, false);
                self.schedule_flush(now_ns);
            }
        }
        // The waits below are not part of the sampled time.
        let end_ns = monotonic_ns();
        self.release_late_stops();
        self.flush(end_ns, true);
        self.outbox.finish(|| self.control.worker_is_abandoned());
    }

    fn wait_for_next_poll(&mut self, now_ns: u64) {
        let until = self.schedule.next_ns().min(now_ns + NAP_NS);
        if self.capture.is_outstanding() {
            // Short sleeps, for the same reason as within a tick.
            self.capture.nap(until - now_ns);
            self.collect_late_stops();
        } else if until - now_ns < NO_SLEEP_NS && !self.decide.wake_cpu.shares_trainer_cpu() {
            while monotonic_ns() < until {
                std::hint::spin_loop();
            }
        } else {
            sleep_until(until);
        }
    }

    /// Resumes all threads and waits until the session continues.
    fn pause(&mut self) {
        let end_ns = monotonic_ns();
        self.release_late_stops();
        self.flush(end_ns, false);
        while self.control.pause_requested() && !self.control.stop_requested() {
            if self.capture.is_outstanding() {
                // The thread would stay stopped for as long as torchspy is.
                self.release_late_stops();
            } else {
                self.control.confirm_pause();
                sleep_until(monotonic_ns() + NAP_NS);
            }
        }
        let now_ns = self.restart_sampling();
        self.schedule_flush(now_ns);
    }

    /// Continues sampling now: the time since the last poll is charged to no sample.
    fn restart_sampling(&mut self) -> u64 {
        let now_ns = monotonic_ns();
        let paused_ns = now_ns.saturating_sub(self.accounted_to.ns);
        for process in &mut self.processes {
            process.named_ns = now_ns;
            process.exclude(self.accounted_to, paused_ns);
        }
        self.schedule.restart(now_ns);
        self.accounted_to.ns += paused_ns;
        self.segment_start_ns = now_ns;
        now_ns
    }

    /// In a program that already runs, sampling starts once its interpreters are known, or after
    /// [`ATTACH_NS`].
    fn wait_for_interpreters(&mut self) {
        if self.launched_pid.is_none() {
            let begun_ns = monotonic_ns();
            self.wait_for(ATTACH_NS, Self::interpreters_known);
            self.flush_ns += self.restart_sampling().saturating_sub(begun_ns);
        }
    }

    /// The next flush is one segment length from now.
    fn schedule_flush(&mut self, now_ns: u64) {
        self.flush_ns = now_ns + self.options.segment.as_nanos() as u64;
    }

    /// Waits for outstanding stop requests, for a bounded time.
    fn release_late_stops(&mut self) {
        // Bounded by the clock: on a loaded machine a short sleep takes long.
        self.capture.release(monotonic_ns() + LATE_STOPS_NS);
    }

    fn take_recycled(&mut self) {
        while let Some(sample) = self.outbox.recycled() {
            self.capture.recycle(sample);
        }
    }

    /// Where idle threads are followed loosely, drops what was not needed for a minute: over days
    /// all buffers would become as large as the deepest stack.
    fn drop_unneeded(&mut self, now_ns: u64) {
        let is_loose = self.options.idle_threads == IdleThreads::Loose;
        if is_loose && now_ns >= self.kept_ns + KEPT_NS {
            self.kept_ns = now_ns;
            self.capture.drop_unneeded();
        }
    }

    /// Wakes the keeper if a process may have been started since the last tick.
    fn wake_keeper(&mut self) {
        let newest = self.newest.0.read();
        if newest.is_none() || newest != self.newest.1 {
            self.newest.1 = newest;
            self.control.keeper_bell().ring();
        }
    }

    /// Forwards a capture to the worker.
    fn forward(&mut self, index: usize, at: usize, mut sample: Box<RawSample>) {
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
            self.capture.put_back(dropped);
            // The stack was dropped, so later ticks cannot reuse it.
            let thread = &mut self.processes[index].threads[at];
            thread.last_poll = LastPoll::Unknown;
            thread.captures = 0;
            thread.plan.forget_footprint();
        }
    }

    /// Records the polled tick as a sample without a stack.
    fn record_without_stack(&mut self, index: usize, at: usize, why: Partial) {
        self.flush_reused(index, at, false);
        let thread = &mut self.processes[index].threads[at];
        thread.plan.forget_footprint();
        let mut sample = thread.sample(Charged::default(), Method::NotCaptured);
        thread.charge(&mut sample, Method::NotCaptured);
        self.outbox.span(sample, Some(why));
    }

    /// Sends a thread's reused sample, extended to now if `no_poll_follows`.
    fn flush_reused(&mut self, index: usize, at: usize, no_poll_follows: bool) {
        let process = &mut self.processes[index];
        let thread = &mut process.threads[at];
        let was_polled = thread.is_recorded() && !process.by_fallback;
        let end = (no_poll_follows && was_polled).then_some(self.accounted_to);
        if let Some(sample) = thread.take_reused(end) {
            self.outbox.span(sample, None);
        }
    }

    /// Sends all samples up to `end_ns` and ends the segment.
    fn flush(&mut self, end_ns: u64, last: bool) {
        self.capture.update_priority(PriorityEvent::TrainersRead);
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
        let segment = Segment {
            start_ns: self.segment_start_ns,
            end_ns,
            sideband: Sideband {
                quality: std::mem::take(&mut self.quality),
                losses: self.outbox.take_losses(),
                tracks: std::mem::take(&mut self.memory),
                ..Sideband::default()
            },
            last,
            ..Segment::default()
        };
        self.segment_start_ns = end_ns;
        self.outbox.send(Message::Flush(Box::new(segment)));
    }
}
