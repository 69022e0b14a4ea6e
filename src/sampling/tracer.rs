//! The thread that traces, and does nothing else: at each tick it asks the kernel which threads ran, reads sleepers as they
//! are, stops what runs for one read, and hands the copies on.

use super::budget::Budget;
use super::capture::{Buffers, Subject, capture, capture_unstopped};
use super::control::Control;
use super::keeper::KeeperEvent;
use super::outbox::Outbox;
use super::raw::{FlushFacts, Message, NamedStack, RawSample, Stretch};
use super::schedule::{Schedule, Tick};
use super::session::SessionOptions;
use super::stops::{LateStops, Outcome, Request, stop_all};
use super::traced::{Passed, Seen, TracedProcess, TracedThread};
use crate::memory::{ReadError, SnapshotMemory};
use crate::model::frame::Partial;
use crate::model::ids::{ProcessId, ThreadId};
use crate::model::process::ThreadInfo;
use crate::model::quality::Quality;
use crate::model::sample::{Capture, Gil, ThreadState};
use crate::os::clock::{monotonic_ns, own_cpu_ns, process_cpu_ns, sleep_until, wake_precisely};
use crate::os::priority::run_ahead;
use crate::os::stop::{StopError, block_child_signals, wait_for_any_stop};
use crate::os::threads::{SchedStat, ThreadFiles, Whereabouts};
use crate::python::frames::PythonStack;
use crate::python::threads::{GilState, read_gil_holder};
use crossbeam_channel::Receiver;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;

/// Length of a segment.
const SEGMENT_NS: u64 = 1_000_000_000;
/// Longest sleep between looks at what the rest of torchspy wants.
const NAP_NS: u64 = 20_000_000;
/// How often Python's thread states are read again even if no thread came or went: a C++ thread takes and drops a state
/// whenever it likes (PyGILState_Ensure).
const PYTHON_THREADS_NS: u64 = 100_000_000;
/// Threads of one process past which its CPU clock is asked first. The clock of a thread that just woke does not move
/// before the scheduler's tick, so it may miss the first milliseconds of a burst, while asking every thread never does:
/// up to here exactness is cheaper than what it costs.
const GATED_THREADS: usize = 400;

/// System calls on x86-64 during which a thread may hold its process's mmap lock for writing: reading memory would block.
const MMAP_LOCKERS: [u32; 7] = [9, 10, 11, 12, 25, 28, 216];
/// System calls that a stop does not disturb: they are restarted, with what is left of their timeout (signal(7), ptrace(2)):
/// poll, select, nanosleep, wait4, futex, clock_nanosleep, waitid, pselect6, ppoll, restart_syscall.
const RESTARTABLE: [u32; 10] = [7, 23, 35, 61, 202, 230, 247, 270, 271, 219];
/// epoll_wait, epoll_pwait, epoll_pwait2 on x86-64: like those above they sleep interruptibly, unlike them they end with EINTR.
const EPOLL_WAITS: [u32; 3] = [232, 281, 441];
/// restart_syscall: what a restarted sleep is called.
const RESTART_SYSCALL: u32 = 219;

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
    /// Ticks since the start.
    looks: u64,
    quality: Quality,
    segment_start_ns: u64,
    own_cpu_ns: u64,
    own_queue: (ThreadFiles, SchedStat),
    launched_pid: Option<i32>,
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
            looks: 0,
            quality: Quality::default(),
            segment_start_ns: now_ns,
            own_cpu_ns: own_cpu_ns(),
            own_queue: (own_files, own_stat),
            launched_pid,
        }
    }

    /// Samples until it is told to stop or every process is gone.
    pub(super) fn run(mut self) {
        block_child_signals();
        wake_precisely();
        run_ahead();
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
            if monotonic_ns() >= self.segment_start_ns + SEGMENT_NS {
                self.flush(false);
            }
        }
        self.release_late_stops();
        self.flush(true);
        self.outbox.finish();
    }

    fn rest(&mut self, now_ns: u64) {
        let until = self.schedule.next_ns().min(now_ns + NAP_NS);
        if self.late.is_empty() {
            sleep_until(until);
        } else {
            wait_for_any_stop(Duration::from_nanos((until - now_ns).max(1)));
            self.late.release();
        }
    }

    /// Lets go of everything and stands still until the session goes on.
    fn pause(&mut self) {
        self.release_late_stops();
        self.flush(false);
        self.control.confirm_pause();
        while self.control.pause_requested() && !self.control.stop_requested() {
            sleep_until(monotonic_ns() + NAP_NS);
        }
        let now_ns = monotonic_ns();
        for process in &mut self.processes {
            process.named_ns = now_ns;
        }
        self.schedule.restart(now_ns);
        self.segment_start_ns = now_ns;
    }

    /// Waits, a bounded time, for threads that were asked to stop and have not yet: none may be left behind stopped. If
    /// torchspy ends before they stop, the kernel lets them go.
    fn release_late_stops(&mut self) {
        for _ in 0..200 {
            if self.late.is_empty() {
                return;
            }
            wait_for_any_stop(Duration::from_millis(5));
            self.late.release();
        }
    }

    fn take_events(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            match event {
                KeeperEvent::Started { pid, info } => {
                    let id = ProcessId::from_index(self.next_process);
                    self.next_process += 1;
                    self.outbox.send(Message::Process(id, info));
                    let is_own_child = self.launched_pid == Some(pid);
                    self.processes
                        .push(TracedProcess::new(id, pid, is_own_child));
                }
                KeeperEvent::Info { pid, info } => {
                    if let Some(process) = self.processes.iter().find(|process| process.pid == pid)
                    {
                        self.outbox.send(Message::Process(process.id, info));
                    }
                }
                KeeperEvent::Image {
                    pid,
                    interpreter,
                    exec,
                } => {
                    if let Some(process) =
                        self.processes.iter_mut().find(|process| process.pid == pid)
                    {
                        process.set_interpreter(interpreter.clone(), exec);
                        if exec {
                            rename_threads(process, &mut self.outbox);
                        }
                        self.outbox.send(Message::Image(process.id, interpreter));
                    }
                }
                KeeperEvent::Fallback { pid, reads } => {
                    if let Some(process) =
                        self.processes.iter_mut().find(|process| process.pid == pid)
                    {
                        process.set_fallback(reads, monotonic_ns());
                    }
                }
                KeeperEvent::Named {
                    pid,
                    time_ns,
                    stacks,
                } => self.take_named(pid, time_ns, stacks),
                KeeperEvent::Gone { pid } => {
                    if let Some(process) =
                        self.processes.iter_mut().find(|process| process.pid == pid)
                    {
                        process.exited = true;
                    }
                }
            }
        }
    }

    /// Stacks of a Python that only the fallback reads: each stands for the time since the one before.
    fn take_named(&mut self, pid: i32, now_ns: u64, stacks: Vec<(i32, NamedStack)>) {
        let Some(process) = self.processes.iter_mut().find(|process| process.pid == pid) else {
            return;
        };
        if !process.by_fallback || now_ns <= process.named_ns {
            return;
        }
        let since_ns = std::mem::replace(&mut process.named_ns, now_ns);
        let gil_holder = stacks
            .iter()
            .find(|(_, stack)| stack.gil == Gil::Held)
            .and_then(|(tid, _)| process.threads.iter().find(|thread| thread.tid == *tid))
            .map(|thread| thread.id);
        for (tid, stack) in stacks {
            let Some(thread) = process
                .threads
                .iter_mut()
                .find(|thread| thread.tid == tid && thread.wanted)
            else {
                continue;
            };
            let (run_ns, queue_ns) = thread.advance(stack.scheduled);
            let stretch = Stretch {
                thread: thread.id,
                start_ns: since_ns,
                weight_ns: now_ns - since_ns,
                ticks: 1,
                capture: Capture::Unstopped,
                state: stack.state,
                syscall: stack.syscall,
                gil: stack.gil,
                gil_holder: gil_holder.filter(|_| stack.gil == Gil::NotHeld),
                run_ns,
                queue_ns,
            };
            self.outbox.send(Message::Named(stretch, Box::new(stack)));
            self.control.show_sample();
        }
    }

    fn tick(&mut self, tick: Tick) {
        self.quality.ticks += 1;
        self.looks += 1;
        self.quality.late_ticks += u64::from(tick.late);
        self.quality.missed_ticks += tick.missed;
        while let Some(mut sample) = self.outbox.recycled() {
            self.buffers.reclaim(&mut sample);
            self.spare.push(sample);
        }
        let mut candidates = Vec::new();
        for index in 0..self.processes.len() {
            self.look_at_process(index, tick, &mut candidates);
        }
        self.take_candidates(candidates, tick);
        self.remove_exited();
        let threads = self
            .processes
            .iter()
            .map(|process| process.threads.len())
            .sum();
        self.control
            .show_tick(self.processes.len(), threads, self.budget.is_limiting());
    }

    fn look_at_process(&mut self, index: usize, tick: Tick, candidates: &mut Vec<Candidate>) {
        let process = &mut self.processes[index];
        let Ok(link_count) = process.tasks.link_count() else {
            process.exited = true;
            return;
        };
        let all_asleep = || {
            process
                .threads
                .iter()
                .all(|thread| matches!(thread.seen, Seen::Asleep(_)))
        };
        let gated = process.threads.len() > GATED_THREADS && all_asleep();
        let cpu_ns = if gated {
            process_cpu_ns(process.pid).unwrap_or(0)
        } else {
            0
        };
        let unchanged = gated && cpu_ns == process.last_cpu_ns;
        process.last_cpu_ns = cpu_ns;
        if link_count != process.link_count {
            self.list_threads(index, link_count);
        }
        if self.processes[index].by_fallback {
            return;
        }
        let process = &mut self.processes[index];
        if process.interpreter.is_some()
            && tick.start_ns >= process.python_read_ns + PYTHON_THREADS_NS
        {
            process.match_python_threads(tick.start_ns);
        }
        process.stopped = None;
        let mut gone = false;
        for thread in 0..self.processes[index].threads.len() {
            if unchanged {
                let passed = Passed {
                    weight_ns: tick.weight_ns(),
                    ticks: 1,
                    ..Passed::default()
                };
                self.processes[index].threads[thread].reuse(tick.start_ns, passed);
                continue;
            }
            gone |= !self.look_at_thread(index, thread, tick, candidates);
        }
        if gone {
            self.processes[index].link_count = 0;
        }
    }

    /// Looks at one thread: reused, read asleep, or a candidate for a stop. `false` if it is gone.
    fn look_at_thread(
        &mut self,
        index: usize,
        at: usize,
        tick: Tick,
        candidates: &mut Vec<Candidate>,
    ) -> bool {
        let process = &mut self.processes[index];
        let thread = &mut process.threads[at];
        if !thread.wanted || thread.pass_over(self.looks, tick.weight_ns()) {
            return true;
        }
        let Ok(now) = thread.files.schedstat() else {
            return false;
        };
        let passed = Passed {
            weight_ns: tick.weight_ns(),
            ticks: 1,
            ..Passed::default()
        };
        let unscheduled = now.is_kept() && now == thread.last;
        let wants_stack = thread.wants_stack(&now);
        let wants_registers = unscheduled && thread.wants_registers(&now);
        if unscheduled
            && matches!(thread.seen, Seen::Asleep(_))
            && !(wants_registers || wants_stack)
        {
            thread.quiet_looks = thread.quiet_looks.saturating_add(1);
            thread.reuse(tick.start_ns, passed);
            return true;
        }
        thread.quiet_looks = 0;
        let slices = now.slices;
        let previous = thread.last;
        let (run_ns, queue_ns) = thread.advance(now);
        self.quality.target_run_ns += run_ns;
        let whereabouts = match thread.files.whereabouts() {
            Ok(whereabouts) => whereabouts,
            Err(error) => return self.unreadable(index, at, tick, (run_ns, queue_ns), &error),
        };
        let mut candidate = Candidate {
            process: index,
            thread: at,
            run_ns,
            queue_ns,
            slices,
            asleep: None,
        };
        if whereabouts == Whereabouts::Running {
            candidates.push(candidate);
            return true;
        }
        if is_same_sleep(thread, &whereabouts, &previous, &now) && !(wants_registers || wants_stack)
        {
            let passed = Passed {
                run_ns,
                queue_ns,
                ..passed
            };
            thread.reuse(tick.start_ns, passed);
            return true;
        }
        thread.own_stop = false;
        // What SIGSTOP stopped already has nothing to be disturbed in.
        let undisturbed = thread.state == ThreadState::Stopped
            || whereabouts
                .syscall()
                .is_some_and(|number| RESTARTABLE.contains(&number));
        if wants_registers && undisturbed && !self.options.nonblocking {
            candidate.asleep = Some(whereabouts);
            candidates.push(candidate);
            return true;
        }
        if !self.read_asleep(candidate, whereabouts, now, tick) {
            // It woke while it was being read: it runs.
            self.quality.torn_retries += 1;
            candidates.push(candidate);
        }
        true
    }

    fn unreadable(
        &mut self,
        index: usize,
        at: usize,
        tick: Tick,
        ran: (u64, u64),
        error: &std::io::Error,
    ) -> bool {
        let why = match error.raw_os_error() {
            Some(nix::libc::ESRCH | nix::libc::ENOENT) => return false,
            Some(nix::libc::EPERM | nix::libc::EACCES) => Partial::PermissionDenied,
            _ => Partial::StackUnreadable,
        };
        let stretch = self.stretch(index, at, tick, ran, Capture::Unread);
        self.flush_reused(index, at, false);
        self.outbox.span(stretch, Some(why));
        true
    }

    /// A stretch of this tick, with what was passed over before if `capture` is that of a running thread.
    fn stretch(
        &mut self,
        index: usize,
        at: usize,
        tick: Tick,
        (run_ns, queue_ns): (u64, u64),
        capture: Capture,
    ) -> Stretch {
        let thread = &mut self.processes[index].threads[at];
        let deferred = if matches!(capture, Capture::Stopped | Capture::Unstopped) {
            std::mem::take(&mut thread.deferred)
        } else {
            Passed::default()
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

    /// Reads a sleeper as it is and checks that it slept on. `false` if it did not.
    fn read_asleep(
        &mut self,
        candidate: Candidate,
        whereabouts: Whereabouts,
        now: SchedStat,
        tick: Tick,
    ) -> bool {
        let (index, at) = (candidate.process, candidate.thread);
        let process = &mut self.processes[index];
        let is_stopped = process.is_stopped();
        let thread = &mut process.threads[at];
        let state = if is_stopped {
            ThreadState::Stopped
        } else {
            sleep_state(&thread.files, &whereabouts)
        };
        thread.state = state;
        let registers = whereabouts.registers();
        thread.stack_pointer = registers
            .and_then(|registers| registers.stack_pointer())
            .unwrap_or(0);
        let ran = (candidate.run_ns, candidate.queue_ns);
        if is_dead(state, &whereabouts) {
            self.flush_reused(index, at, true);
            self.processes[index].threads[at].wanted = false;
            return true;
        }
        if !self.options.native
            && self.processes[index].threads[at]
                .plan
                .state_address
                .is_none()
        {
            self.unread(index, at, tick, ran, Partial::NativeNotRead);
            self.processes[index].threads[at].seen = Seen::Asleep(whereabouts);
            return true;
        }
        let syscall = whereabouts.syscall();
        if state == ThreadState::Uninterruptible
            && syscall.is_some_and(|number| MMAP_LOCKERS.contains(&number))
        {
            self.unread(index, at, tick, ran, Partial::Uninterruptible);
            return true;
        }
        let mut sample = self.sample(candidate);
        sample.registers = registers.filter(|_| self.options.native);
        let process = &mut self.processes[index];
        let thread = &mut process.threads[at];
        thread.learn_from_worker();
        let stack = self.buffers.prepare(&thread.plan);
        let read = capture(
            Subject {
                memory: &process.memory,
                interpreter: process.interpreter.as_deref(),
                registers: sample.registers.clone().as_ref(),
            },
            &mut thread.plan,
            stack,
            &mut self.buffers,
            &mut sample,
        );
        let slept_on = match thread.files.schedstat() {
            Ok(after) if now.is_kept() => after == now,
            Ok(_) => thread
                .files
                .whereabouts()
                .is_ok_and(|after| after == whereabouts),
            Err(_) => true,
        };
        if !slept_on {
            self.put_back(sample);
            return false;
        }
        if matches!(read, Err(ReadError::Gone)) {
            // A process on its way out gives up its memory before its threads are gone.
            self.put_back(sample);
            self.unread(index, at, tick, ran, Partial::Exited);
            return true;
        }
        thread.seen = if now.is_kept() {
            Seen::Asleep(whereabouts)
        } else {
            Seen::Unknown
        };
        sample.stretch = self.stretch(index, at, tick, ran, Capture::Asleep);
        sample.stretch.syscall = syscall;
        sample.stretch.gil = Gil::NotHeld;
        sample.failure = read.err().map(|_| Partial::StackUnreadable);
        self.hand_on(index, at, sample);
        true
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
            sample.registers = None;
            sample.python.clear();
            sample.python_partial = None;
            sample.failure = None;
            return sample;
        }
        Box::new(RawSample {
            stretch,
            process,
            shared,
            slices,
            registers: None,
            snapshot: SnapshotMemory::default(),
            python: PythonStack::default(),
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

    fn hand_on(&mut self, index: usize, at: usize, sample: Box<RawSample>) {
        self.flush_reused(index, at, false);
        self.control.show_sample();
        if let Some(dropped) = self.outbox.send(Message::Sample(sample)) {
            self.put_back(dropped);
        }
    }

    fn unread(&mut self, index: usize, at: usize, tick: Tick, ran: (u64, u64), why: Partial) {
        self.flush_reused(index, at, false);
        let stretch = self.stretch(index, at, tick, ran, Capture::Unread);
        self.outbox.span(stretch, Some(why));
    }

    fn flush_reused(&mut self, index: usize, at: usize, no_look_follows: bool) {
        let thread = &mut self.processes[index].threads[at];
        if let Some(stretch) = thread.take_reused(no_look_follows, self.schedule.stratum_ns()) {
            self.outbox.span(stretch, None);
        }
    }

    /// Stops, or in nonblocking mode only reads, what runs; the rest of it waits for its turn.
    fn take_candidates(&mut self, candidates: Vec<Candidate>, tick: Tick) {
        let weight_ns = tick.weight_ns();
        let mut gil = FxHashMap::default();
        for candidate in &candidates {
            let process = &self.processes[candidate.process];
            gil.entry(candidate.process)
                .or_insert_with(|| gil_holders(process));
        }
        let (mut stoppable, mut sleepers) = (Vec::new(), Vec::new());
        for candidate in candidates {
            let (index, at) = (candidate.process, candidate.thread);
            let state_address = self.processes[index].threads[at].plan.state_address;
            let holds = state_address.is_some_and(|state| {
                gil.get(&index)
                    .is_some_and(|holders| holders.iter().any(|(holder, _)| *holder == state))
            });
            if candidate.asleep.is_some() {
                sleepers.push(candidate);
                continue;
            }
            self.processes[index].threads[at].state = ThreadState::Running;
            if self.options.gil_only && !holds {
                continue;
            }
            if state_address.is_none() && (!self.options.native || self.options.nonblocking) {
                self.unread(
                    index,
                    at,
                    tick,
                    (candidate.run_ns, candidate.queue_ns),
                    Partial::NativeNotRead,
                );
                self.processes[index].threads[at].seen = Seen::Running;
            } else if self.options.nonblocking {
                self.read_unstopped(candidate, tick);
            } else {
                stoppable.push(candidate);
            }
        }
        let running = stoppable.len();
        let mut chosen = vec![false; running];
        for index in self.budget.choose(running) {
            chosen[index] = true;
        }
        let mut to_stop = sleepers;
        for (candidate, chosen) in stoppable.into_iter().zip(chosen) {
            if chosen {
                to_stop.push(candidate);
                continue;
            }
            self.quality.skipped_for_budget += 1;
            let thread = &mut self.processes[candidate.process].threads[candidate.thread];
            thread.seen = Seen::Running;
            thread.deferred.weight_ns += weight_ns;
            thread.deferred.ticks += 1;
            thread.deferred.run_ns += candidate.run_ns;
            thread.deferred.queue_ns += candidate.queue_ns;
        }
        let stopped_ns = self.stop_candidates(&to_stop, tick, &gil);
        self.budget.account(stopped_ns, running as u64 * weight_ns);
        self.control
            .show_stops(stopped_ns, running as u64 * weight_ns);
    }

    fn read_unstopped(&mut self, candidate: Candidate, tick: Tick) {
        let (index, at) = (candidate.process, candidate.thread);
        let mut sample = self.sample(candidate);
        let process = &mut self.processes[index];
        let thread = &mut process.threads[at];
        thread.seen = Seen::Running;
        let Some(interpreter) = process.interpreter.clone() else {
            self.put_back(sample);
            return;
        };
        let read = capture_unstopped(
            &process.memory,
            &interpreter,
            &mut thread.plan,
            &mut self.buffers,
            &mut sample,
        );
        self.quality.torn_retries += u64::from(matches!(read, Ok(false)));
        sample.stretch = self.stretch(
            index,
            at,
            tick,
            (candidate.run_ns, candidate.queue_ns),
            Capture::Unstopped,
        );
        sample.failure = read.err().map(|_| Partial::PythonUnreadable);
        self.hand_on(index, at, sample);
    }

    /// Stops, reads and resumes; gives for how long threads stood in all.
    fn stop_candidates(
        &mut self,
        candidates: &[Candidate],
        tick: Tick,
        gil: &FxHashMap<usize, Vec<(u64, Option<ThreadId>)>>,
    ) -> u64 {
        let mut prepared: Vec<Option<(Box<RawSample>, Vec<u8>)>> =
            Vec::with_capacity(candidates.len());
        let mut requests = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let sample = self.sample(*candidate);
            let process = &mut self.processes[candidate.process];
            let thread = &mut process.threads[candidate.thread];
            thread.learn_from_worker();
            requests.push(Request {
                tid: thread.tid,
                leader: process.pid,
                is_own_child: process.is_own_child,
            });
            prepared.push(Some((sample, self.buffers.prepare(&thread.plan))));
        }
        let mut late = std::mem::take(&mut self.late);
        let mut outcomes: Vec<Option<Outcome>> = Vec::new();
        outcomes.resize_with(candidates.len(), || None);
        let mut samples: Vec<Option<Box<RawSample>>> = Vec::new();
        samples.resize_with(candidates.len(), || None);
        let (processes, buffers, native) =
            (&mut self.processes, &mut self.buffers, self.options.native);
        stop_all(
            &requests,
            &mut late,
            |at, stopped| {
                let Some((mut sample, stack)) = prepared[at].take() else {
                    return;
                };
                let process = &mut processes[candidates[at].process];
                let thread = &mut process.threads[candidates[at].thread];
                let registers = stopped.registers();
                let read = capture(
                    Subject {
                        memory: &process.memory,
                        interpreter: process.interpreter.as_deref(),
                        registers: registers.as_ref().filter(|_| native),
                    },
                    &mut thread.plan,
                    stack,
                    buffers,
                    &mut sample,
                );
                sample.registers = registers.filter(|_| native);
                sample.failure = read.err().map(|_| Partial::StackUnreadable);
                samples[at] = Some(sample);
            },
            |at, outcome| outcomes[at] = Some(outcome),
        );
        self.late = late;
        let mut stopped_ns = 0;
        for (at, candidate) in candidates.iter().enumerate() {
            let outcome = outcomes[at].take();
            if let Some((sample, _)) = prepared[at].take() {
                self.put_back(sample);
            }
            stopped_ns += self.settle(*candidate, outcome, samples[at].take(), tick, gil);
        }
        stopped_ns
    }

    /// Records what became of one stop.
    fn settle(
        &mut self,
        candidate: Candidate,
        outcome: Option<Outcome>,
        sample: Option<Box<RawSample>>,
        tick: Tick,
        gil: &FxHashMap<usize, Vec<(u64, Option<ThreadId>)>>,
    ) -> u64 {
        let (index, at) = (candidate.process, candidate.thread);
        let ran = (candidate.run_ns, candidate.queue_ns);
        let thread = &mut self.processes[index].threads[at];
        thread.seen = Seen::Running;
        match (outcome, sample) {
            (Some(Outcome::Resumed(stop_ns)), Some(mut sample)) => {
                self.quality.stops.record(stop_ns);
                thread.stack_pointer = sample
                    .registers
                    .and_then(|registers| registers.stack_pointer())
                    .unwrap_or(0);
                let state_address = thread.plan.state_address;
                if let Some(whereabouts) = candidate.asleep {
                    thread.seen = Seen::Asleep(whereabouts);
                    thread.own_stop = true;
                }
                sample.stretch = self.stretch(index, at, tick, ran, Capture::Stopped);
                sample.stretch.syscall = candidate
                    .asleep
                    .and_then(|whereabouts| whereabouts.syscall());
                let holders = gil.get(&index).map_or(&[][..], Vec::as_slice);
                set_gil(&mut sample.stretch, state_address, holders);
                self.hand_on(index, at, sample);
                stop_ns
            }
            (outcome, sample) => {
                if let Some(sample) = sample {
                    self.put_back(sample);
                }
                // A sleeper that cannot be stopped is not asked again in this sleep, but read as it is.
                self.processes[index].threads[at].own_stop = candidate.asleep.is_some();
                let why = match outcome {
                    Some(Outcome::TimedOut) => {
                        self.quality.stop_timeouts += 1;
                        Partial::StopTimeout
                    }
                    Some(Outcome::Failed(StopError::Refused)) => {
                        refusal(&self.processes[index].threads[at].files)
                    }
                    _ => Partial::Exited,
                };
                self.unread(index, at, tick, ran, why);
                0
            }
        }
    }

    fn list_threads(&mut self, index: usize, link_count: u64) {
        let Ok(tids) = self.processes[index].tasks.list() else {
            self.processes[index].exited = true;
            return;
        };
        let known: FxHashMap<i32, usize> = self.processes[index]
            .threads
            .iter()
            .enumerate()
            .map(|(at, thread)| (thread.tid, at))
            .collect();
        let alive: rustc_hash::FxHashSet<i32> = tids.iter().copied().collect();
        let gone: Vec<usize> = known
            .iter()
            .filter(|(tid, _)| !alive.contains(tid))
            .map(|(_, &at)| at)
            .collect();
        self.remove_threads(index, gone);
        let now_ns = monotonic_ns();
        for tid in tids {
            if !known.contains_key(&tid) {
                self.add_thread(index, tid, now_ns);
            }
        }
        let process = &mut self.processes[index];
        process.link_count = link_count;
        process.match_python_threads(now_ns);
    }

    fn add_thread(&mut self, index: usize, tid: i32, now_ns: u64) {
        let id = ThreadId::from_index(self.next_thread);
        self.next_thread += 1;
        let process = &mut self.processes[index];
        let mut thread = TracedThread::new(process.pid, tid, id);
        let info = thread_info(process, &thread, now_ns);
        thread.wanted = self
            .options
            .threads
            .as_ref()
            .is_none_or(|wanted| wanted.is_match(&info.name));
        self.outbox.send(Message::Thread(id, Box::new(info)));
        process.threads.push(thread);
    }

    fn remove_threads(&mut self, index: usize, mut gone: Vec<usize>) {
        gone.sort_unstable();
        for at in gone.into_iter().rev() {
            self.close_thread(index, at);
            self.processes[index].threads.swap_remove(at);
        }
    }

    /// Hands on the time of a thread that will not be looked at again.
    fn close_thread(&mut self, index: usize, at: usize) {
        self.flush_reused(index, at, true);
        self.flush_deferred(index, at, Partial::Exited);
        let id = self.processes[index].threads[at].id;
        self.outbox.send(Message::ThreadGone(id));
    }

    fn flush_deferred(&mut self, index: usize, at: usize, why: Partial) {
        let thread = &mut self.processes[index].threads[at];
        let deferred = std::mem::take(&mut thread.deferred);
        if deferred.weight_ns > 0 {
            let end_ns = monotonic_ns();
            let stretch = Stretch {
                thread: thread.id,
                start_ns: end_ns.saturating_sub(deferred.weight_ns),
                weight_ns: deferred.weight_ns,
                ticks: deferred.ticks,
                capture: Capture::Unread,
                state: ThreadState::Running,
                syscall: None,
                gil: Gil::Unknown,
                gil_holder: None,
                run_ns: deferred.run_ns,
                queue_ns: deferred.queue_ns,
            };
            self.outbox.span(stretch, Some(why));
        }
    }

    fn remove_exited(&mut self) {
        let mut index = 0;
        while index < self.processes.len() {
            if !self.processes[index].exited {
                index += 1;
                continue;
            }
            for at in 0..self.processes[index].threads.len() {
                self.close_thread(index, at);
            }
            let process = self.processes.swap_remove(index);
            self.outbox.send(Message::ProcessGone(process.id));
        }
    }

    fn flush(&mut self, last: bool) {
        for index in 0..self.processes.len() {
            for at in 0..self.processes[index].threads.len() {
                self.flush_reused(index, at, last);
                if last {
                    self.flush_deferred(index, at, Partial::StopTimeout);
                }
            }
        }
        let end_ns = monotonic_ns();
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

/// The state of a thread off the CPU. Calls that always sleep interruptibly need no look at `stat`.
fn sleep_state(files: &ThreadFiles, whereabouts: &Whereabouts) -> ThreadState {
    let is_plain = whereabouts
        .syscall()
        .is_some_and(|number| RESTARTABLE.contains(&number) || EPOLL_WAITS.contains(&number));
    if is_plain {
        return ThreadState::Sleeping;
    }
    files
        .stat()
        .map_or(ThreadState::Unknown, |(state, _)| state)
}

/// A first thread that is dead while others live stays in /proc, with neither registers nor memory.
fn is_dead(state: ThreadState, whereabouts: &Whereabouts) -> bool {
    let registers = whereabouts.registers();
    state == ThreadState::Unknown
        && registers.and_then(|registers| registers.stack_pointer()) == Some(0)
}

/// Whether a thread that ran a little is back in the very sleep that we stopped it in.
fn is_same_sleep(
    thread: &TracedThread,
    now: &Whereabouts,
    before: &SchedStat,
    after: &SchedStat,
) -> bool {
    let Seen::Asleep(then) = thread.seen else {
        return false;
    };
    let same_call = match (then, *now) {
        (
            Whereabouts::InSyscall {
                number: a,
                arguments: x,
                stack_pointer: p,
                instruction_pointer: i,
            },
            Whereabouts::InSyscall {
                number: b,
                arguments: y,
                stack_pointer: q,
                instruction_pointer: j,
            },
        ) => (a == b && x == y || b == RESTART_SYSCALL) && p == q && i == j,
        (then @ Whereabouts::Blocked { .. }, now) => then == now,
        _ => false,
    };
    thread.own_stop && same_call && after.slices.saturating_sub(before.slices) <= 3
}

/// Thread states that hold a GIL of the process right now, with their threads.
fn gil_holders(process: &TracedProcess) -> Vec<(u64, Option<ThreadId>)> {
    let Some(interpreter) = &process.interpreter else {
        return Vec::new();
    };
    process
        .interpreter_states
        .iter()
        .filter_map(
            |&state| match read_gil_holder(interpreter, state, &process.memory) {
                GilState::HeldBy(holder) => Some((holder, process.thread_of_state(holder))),
                GilState::Free | GilState::Unknown => None,
            },
        )
        .collect()
}

fn set_gil(stretch: &mut Stretch, state_address: Option<u64>, holders: &[(u64, Option<ThreadId>)]) {
    let Some(state) = state_address else { return };
    let holds = holders.iter().any(|(holder, _)| *holder == state);
    stretch.gil = if holds { Gil::Held } else { Gil::NotHeld };
    stretch.gil_holder = holders
        .iter()
        .find_map(|(_, thread)| *thread)
        .filter(|&thread| !holds && thread != stretch.thread);
}

/// Why the kernel refused to let us trace a thread: it says EPERM for every reason.
fn refusal(files: &ThreadFiles) -> Partial {
    match files.tracer_pid() {
        Some(0) | None => match files.stat() {
            Ok((ThreadState::Unknown, _)) | Err(_) => Partial::Exited,
            Ok(_) => Partial::PermissionDenied,
        },
        Some(_) => Partial::AlreadyTraced,
    }
}

fn thread_info(process: &TracedProcess, thread: &TracedThread, now_ns: u64) -> ThreadInfo {
    ThreadInfo {
        process: process.id,
        tid: thread.tid,
        start_ticks: thread.files.stat().map_or(0, |(_, start)| start),
        name: thread.files.name().unwrap_or_default(),
        is_python: false,
        first_seen_ns: now_ns,
        last_seen_ns: now_ns,
    }
}

/// After an exec the one thread that is left has another name.
fn rename_threads(process: &TracedProcess, outbox: &mut Outbox) {
    let now_ns = monotonic_ns();
    for thread in &process.threads {
        outbox.send(Message::Thread(
            thread.id,
            Box::new(thread_info(process, thread, now_ns)),
        ));
    }
}
