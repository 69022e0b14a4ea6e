//! Capture: reads threads while they sleep or run, or stops them one after the other; a thread that
//! stops late is read when it does.
//!
//! [`super::decide`] chooses what to capture, and [`super::account`] charges time to the captures.

use super::gil::{Gils, gils_in, gils_of};
use super::poll::Candidate;
use super::priority::{PriorityEvent, TracerPriority};
use super::process::TracedProcess;
use super::spare::{MAX_SPARE, SamplePool};
use super::thread::{LastPoll, TracedThread};
use crate::arch::system_calls::{Sysno, number};
use crate::memory::{ReadError, Unnoted};
use crate::model::frame::Partial;
use crate::model::registers::Registers;
use crate::model::sample::{Gil, ThreadState};
use crate::os::clock::monotonic_ns;
use crate::os::priority::{Ahead, RaisedPriority};
use crate::os::resident::RECENT_NS;
use crate::os::stop::{StoppedThread, wait_for_any_stop};
use crate::os::syscalls::{Ending, sleeps_interruptibly};
use crate::os::threads::{FUTEX, SchedStat, ThreadFiles, Whereabouts, keeps_schedstat};
use crate::sampling::capture::{
    Buffers, Subject, capture, capture_asleep, capture_stopped, capture_unstopped, look_up,
};
use crate::sampling::kept_sleeps::KeptSleep;
use crate::sampling::raw::RawSample;
use crate::sampling::session::SessionOptions;
use crate::sampling::stops::{BLOCKED_NAP, LateStops, NAP, Outcome, Request, SHORT_NAP, Wait};
use std::time::Duration;

/// System calls during which a thread may hold its process's mmap lock for writing: a read of its
/// memory would block.
const MMAP_LOCKERS: [u32; 7] = [
    number(Sysno::mmap),
    number(Sysno::mprotect),
    number(Sysno::munmap),
    number(Sysno::brk),
    number(Sysno::mremap),
    number(Sysno::madvise),
    number(Sysno::remap_file_pages),
];

/// Rate from which on a thread that is read while it runs is first compared with its last read, Hz.
const FOLLOWED_HZ: f64 = 1000.0;

/// Stops, reads and resumes.
#[derive(Debug)]
pub(super) struct Capture {
    native: bool,
    once: bool,
    /// The rate is so high that running threads are often found as they were.
    follows: bool,
    /// Whether a sleep that follows another one at the same place is compared with that first.
    keeps_sleeps: bool,
    pub(super) buffers: Buffers,
    pub(super) spare: SamplePool,
    late: LateStops,
    ahead: Ahead,
    priority: TracerPriority<RaisedPriority>,
}

/// Result of reading a sleeper.
pub(super) enum Asleep {
    /// It slept during the whole read.
    Read(Box<RawSample>, KeptSleep),
    /// It has the stack of its last capture, an earlier sleep's, and slept on.
    AsBefore,
    /// It woke during the read.
    Woke,
    /// It is a dead first thread of a process with living threads.
    Dead,
    NotCaptured(Partial),
}

/// Result of one stop.
pub(super) struct StopAttempt {
    pub(super) candidate: Candidate,
    pub(super) outcome: Outcome,
    /// Empty unless the outcome is [`Outcome::Resumed`].
    pub(super) sample: Box<RawSample>,
    /// The buffer for its stack.
    stack: Vec<u8>,
    /// Time from the request to the resume or the timeout, ns.
    pub(super) took_ns: u64,
    pub(super) ending: Option<Ending>,
    /// The system call that the stop hit.
    pub(super) syscall: Option<u32>,
    /// GIL holders while it was stopped, in a snapshot: that shows stacks and holders together.
    pub(super) gils: Option<Gils>,
}

/// A capture from a stop that was requested in an earlier tick; its thread runs again.
pub(super) struct LateCapture {
    pub(super) sample: Box<RawSample>,
    /// GIL holders while it was stopped.
    pub(super) gils: Gils,
    pub(super) ending: Option<Ending>,
    pub(super) stop_ns: u64,
}

impl Capture {
    pub(super) fn new(options: &SessionOptions) -> Self {
        Self {
            native: options.native,
            once: options.once,
            // With --gil parts of a thread's time are left out.
            follows: options.rate_hz >= FOLLOWED_HZ && !options.gil_only,
            keeps_sleeps: !options.once && keeps_schedstat(),
            buffers: Buffers::default(),
            spare: SamplePool::default(),
            late: LateStops::default(),
            ahead: Ahead::default(),
            priority: TracerPriority::default(),
        }
    }

    /// Finds out which priority the calling thread, the tracer, may take.
    pub(super) fn prepare(&mut self) {
        self.ahead = Ahead::prepare();
    }

    /// Raises or restores the tracer's priority as `event` requires.
    pub(super) fn update_priority(&mut self, event: PriorityEvent) {
        self.priority.on(event, || self.ahead.raise());
    }

    /// Whether a stop request has not been answered or collected.
    pub(super) fn is_outstanding(&self) -> bool {
        !self.late.is_empty()
    }

    /// The same for one process. None of its threads is seized then.
    pub(super) fn is_outstanding_of(&self, leader: i32) -> bool {
        self.late.has_process(leader)
    }

    /// Whether a stop request to this thread has not been answered or collected.
    pub(super) fn awaits_stop(&self, tid: i32) -> bool {
        self.late.contains(tid)
    }

    /// Waits up to `left_ns`, and at most [`NAP`], for outstanding stops, or [`BLOCKED_NAP`] where
    /// none is near. The limit bounds by how much the measured stop may exceed the true one.
    pub(super) fn nap(&self, left_ns: u64) {
        let most = if self.may_stop_soon() {
            NAP
        } else {
            BLOCKED_NAP
        };
        wait_for_any_stop(Duration::from_nanos(left_ns.max(1)).min(most));
    }

    /// Whether a thread that has not answered a request may do so at any time. One that is blocked
    /// in the kernel is not waited for with a raised priority: that may take minutes.
    pub(super) fn may_stop_soon(&self) -> bool {
        self.is_outstanding() && !self.late.are_blocked(monotonic_ns())
    }

    /// Threads that were asked to stop in an earlier tick and are stopped by now.
    pub(super) fn stopped_late(&mut self) -> Vec<StoppedThread> {
        self.late.stopped_late()
    }

    /// Resumes a thread that need not be read.
    pub(super) fn resume(&mut self, stopped: StoppedThread) {
        self.late.resume(stopped);
    }

    /// Waits up to `deadline_ns` for outstanding stops: no thread may stay stopped. If torchspy
    /// ends before they stop, the kernel releases them.
    pub(super) fn release(&mut self, deadline_ns: u64) {
        while self.is_outstanding() && monotonic_ns() < deadline_ns {
            wait_for_any_stop(Duration::from_millis(5));
            for stopped in self.late.stopped_late() {
                self.late.resume(stopped);
            }
        }
        self.update_priority(PriorityEvent::Released);
    }

    /// Reclaims a sample that the worker has finished with.
    pub(super) fn recycle(&mut self, mut sample: Box<RawSample>) {
        self.buffers.reclaim(&mut sample);
        self.spare.0.push(sample);
    }

    /// Drops samples and buffers that were not needed since the last call.
    pub(super) fn drop_unneeded(&mut self) {
        self.buffers.drop_unneeded();
        self.spare.0.drop_unneeded();
    }

    /// Reclaims an unused sample.
    pub(super) fn put_back(&mut self, mut sample: Box<RawSample>) {
        self.buffers.reclaim(&mut sample);
        if self.spare.0.len() < MAX_SPARE {
            self.spare.0.push(sample);
        }
    }

    /// Reads a sleeper without a stop and checks that it slept on: its `scheduled` is the same
    /// before and after.
    pub(super) fn asleep(
        &mut self,
        process: &mut TracedProcess,
        at: usize,
        whereabouts: Whereabouts,
        scheduled: SchedStat,
    ) -> Asleep {
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
        if is_dead(state, &whereabouts) {
            return Asleep::Dead;
        }
        if !self.native && thread.plan.state_address.is_none() {
            thread.last_poll = LastPoll::Asleep(whereabouts);
            return Asleep::NotCaptured(process.why_no_python());
        }
        let syscall = whereabouts.syscall();
        // The last poll was of an earlier sleep: it is not valid for this one.
        thread.last_poll = LastPoll::Unknown;
        if state == ThreadState::Uninterruptible
            && syscall.is_some_and(|number| MMAP_LOCKERS.contains(&number))
        {
            return Asleep::NotCaptured(Partial::Uninterruptible);
        }
        // A wait for the GIL is recorded with who holds it, each time.
        let mut sleep = thread.plan.sleeps.begin(whereabouts, state);
        let may_be_as_before = self.keeps_sleeps && !process.may_await_gil(at, &whereabouts);
        let thread = &mut process.threads[at];
        if may_be_as_before
            && thread.ledger.deferred_sleeps() == 0
            && thread
                .plan
                .sleeps_as_before(&sleep, &process.memory, &thread.shared)
        {
            if !slept_on(&thread.files, &scheduled, &whereabouts) {
                return Asleep::Woke;
            }
            thread.last_poll = LastPoll::Asleep(whereabouts);
            return Asleep::AsBefore;
        }
        let mut sample = self.spare.blank(process, at, scheduled.slices);
        sample.registers = registers.filter(|_| self.native);
        // With its stack, so that holder and stack are of the same time. A thread that waits for
        // the GIL sleeps in a futex: only then is the holder read.
        let wants_holder = syscall == Some(FUTEX);
        let wants_gils = self.once || wants_holder;
        let thread = &mut process.threads[at];
        if wants_gils {
            let ranges = process.gils.iter();
            let ranges = ranges.map(|(_, range)| (range.address, range.length));
            thread.plan.gils.extend(ranges);
        }
        let stack = self.buffers.prepare(&mut thread.plan, &thread.shared);
        if thread.plan.sleeps.continue_in(&mut sleep) && may_be_as_before {
            sample.snapshot.note_reads();
            sample.sleep = sleep.number();
        }
        let files = &thread.files;
        let read = capture_asleep(
            Subject {
                memory: &process.memory,
                interpreter: process.interpreter.as_deref(),
                stack_pointer: sample.registers.as_ref().and_then(Registers::stack_pointer),
            },
            &mut thread.plan,
            stack,
            &mut self.buffers,
            &mut sample,
            || slept_on(files, &scheduled, &whereabouts),
        );
        thread.plan.gils.clear();
        if matches!(read, Ok(false)) {
            self.put_back(sample);
            return Asleep::Woke;
        }
        process.copy_codes(&mut self.buffers, &mut sample);
        let gils = wants_gils.then(|| gils_in(process, &Unnoted(&sample.snapshot)));
        let thread = &mut process.threads[at];
        let gil = match &gils {
            Some(gils) if self.once || gils.of(&thread.plan) == Gil::Unknown => {
                gils.of(&thread.plan)
            }
            _ => Gil::NotHeld,
        };
        let gil_holder = gils
            .filter(|_| wants_holder)
            .and_then(|gils| gils.other_holder(&thread.plan, thread.id));
        if matches!(read, Err(ReadError::Gone)) {
            // An exiting process releases its memory before its threads are gone.
            self.put_back(sample);
            return Asleep::NotCaptured(Partial::Exited);
        }
        thread.last_poll = match scheduled.is_kept() {
            true => LastPoll::Asleep(whereabouts),
            false => LastPoll::Unknown,
        };
        sample.recorded.syscall = syscall;
        sample.recorded.gil = gil;
        sample.recorded.gil_holder = gil_holder;
        sample.failure = read.err().map(|_| Partial::StackUnreadable);
        Asleep::Read(sample, sleep)
    }

    /// Whether a running thread has the Python frames that it had when it was last read.
    pub(super) fn is_unchanged(&self, process: &mut TracedProcess, at: usize) -> bool {
        let thread = &mut process.threads[at];
        self.follows && thread.plan.is_unchanged(&process.memory, &thread.shared)
    }

    /// Reads the Python frames of a running thread. The flag is true if they changed during the
    /// read. `None` without an interpreter.
    pub(super) fn unstopped(
        &mut self,
        process: &mut TracedProcess,
        at: usize,
        slices: u64,
    ) -> Option<(Box<RawSample>, bool)> {
        let interpreter = process.interpreter.clone()?;
        let mut sample = self.spare.blank(process, at, slices);
        let read = capture_unstopped(
            &process.memory,
            &interpreter,
            &mut process.threads[at].plan,
            &mut self.buffers,
            &mut sample,
            self.follows,
        );
        process.copy_codes(&mut self.buffers, &mut sample);
        let is_torn = matches!(read, Ok(false));
        sample.failure = read.err().map(|_| Partial::PythonUnreadable);
        Some((sample, is_torn))
    }

    /// Stops, reads and resumes each of `candidates`, one after the other. Sleepers are stopped
    /// only until `sleepers_until_ns` (CLOCK_MONOTONIC). `yields_cpu`: a candidate may wait for the
    /// CPU that the caller runs on.
    pub(super) fn stop(
        &mut self,
        processes: &mut [TracedProcess],
        candidates: &[Candidate],
        yields_cpu: bool,
        sleepers_until_ns: u64,
    ) -> Vec<StopAttempt> {
        let mut attempts = Vec::with_capacity(candidates.len());
        for process in processes.iter() {
            process.memory.trust_pages_for(RECENT_NS);
        }
        for &candidate in candidates {
            attempts.push(self.prepare_stop(&mut processes[candidate.process], candidate));
        }
        let nap = if self.once { SHORT_NAP } else { NAP };
        let wait = Wait::new(candidates.len(), nap, yields_cpu, sleepers_until_ns);
        let Self {
            native,
            once,
            buffers,
            late,
            ..
        } = self;
        for attempt in &mut attempts {
            let candidate = attempt.candidate;
            let process = &mut processes[candidate.process];
            let request = Request {
                tid: process.threads[candidate.thread].tid,
                leader: process.pid,
                is_own_child: process.is_own_child,
                is_asleep: candidate.asleep.is_some(),
            };
            let stack = std::mem::take(&mut attempt.stack);
            let (sample, ending) = (&mut attempt.sample, &mut attempt.ending);
            let syscall = &mut attempt.syscall;
            let gils = &mut attempt.gils;
            (attempt.outcome, attempt.took_ns) = late.stop(request, wait, |stopped| {
                let at = candidate.thread;
                read_stopped(process, at, stopped, *native, stack, buffers, sample);
                *ending = stopped.ending();
                *syscall = stopped.syscall();
                *gils = once.then(|| gils_of(process));
            });
        }
        for attempt in &mut attempts {
            if matches!(attempt.outcome, Outcome::Resumed(_)) {
                let process = &mut processes[attempt.candidate.process];
                process.copy_codes(buffers, &mut attempt.sample);
            }
        }
        for candidate in candidates {
            processes[candidate.process].memory.forget();
        }
        attempts
    }

    /// Prepares everything that a stop needs, so that the stop is short.
    fn prepare_stop(&mut self, process: &mut TracedProcess, candidate: Candidate) -> StopAttempt {
        let sample = self
            .spare
            .blank(process, candidate.thread, candidate.slices);
        let thread = &mut process.threads[candidate.thread];
        let stack = self.buffers.prepare(&mut thread.plan, &thread.shared);
        look_up(
            &process.memory,
            process.interpreter.as_deref(),
            &thread.plan,
            &thread.shared,
        );
        StopAttempt {
            candidate,
            outcome: Outcome::NotRequested,
            sample,
            stack,
            took_ns: 0,
            ending: None,
            syscall: None,
            gils: None,
        }
    }

    /// Reads and resumes a thread whose stop was requested in an earlier tick. It waited for a CPU
    /// or in the kernel since then: it has been where it stopped in all ticks in between.
    pub(super) fn late(
        &mut self,
        process: &mut TracedProcess,
        at: usize,
        stopped: StoppedThread,
    ) -> LateCapture {
        let mut sample = self.spare.blank(process, at, 0);
        let (buffers, thread) = (&mut self.buffers, &mut process.threads[at]);
        let stack = buffers.prepare(&mut thread.plan, &thread.shared);
        read_stopped(
            process,
            at,
            &stopped,
            self.native,
            stack,
            buffers,
            &mut sample,
        );
        process.threads[at].stack_pointer = stack_pointer(&sample);
        let gils = gils_of(process);
        let ending = stopped.ending();
        let stop_ns = self.late.resume(stopped);
        process.copy_codes(buffers, &mut sample);
        LateCapture {
            sample,
            gils,
            ending,
            stop_ns,
        }
    }
}

/// Reads a stopped thread into `sample`: its registers, and the memory in its plan.
fn read_stopped(
    process: &mut TracedProcess,
    at: usize,
    stopped: &StoppedThread,
    native: bool,
    stack: Vec<u8>,
    buffers: &mut Buffers,
    sample: &mut RawSample,
) {
    let subject = Subject {
        memory: &process.memory,
        interpreter: process.interpreter.as_deref(),
        stack_pointer: None,
    };
    let plan = &mut process.threads[at].plan;
    let read = if native {
        capture_stopped(subject, plan, stack, buffers, sample, || {
            stopped.registers()
        })
    } else {
        let read = capture(subject, plan, stack, buffers, sample);
        sample.registers = stopped.registers();
        read
    };
    process.copy_new_codes(buffers, sample);
    sample.failure = read.err().map(|_| Partial::StackUnreadable);
}

/// Stack pointer of a captured thread; 0 where it was not read. Thread states of older Pythons are
/// matched to threads by it.
pub(super) fn stack_pointer(sample: &RawSample) -> u64 {
    let registers = sample.registers.as_ref();
    registers.and_then(Registers::stack_pointer).unwrap_or(0)
}

/// Whether a thread that was found asleep has not woken since.
fn slept_on(files: &ThreadFiles, scheduled: &SchedStat, whereabouts: &Whereabouts) -> bool {
    match files.schedstat() {
        Ok(after) if scheduled.is_kept() => after == *scheduled,
        Ok(_) => files.whereabouts().is_ok_and(|after| after == *whereabouts),
        Err(_) => true,
    }
}

/// State of a thread that is off the CPU. Calls that always sleep interruptibly need no read of
/// `stat`.
fn sleep_state(files: &ThreadFiles, whereabouts: &Whereabouts) -> ThreadState {
    let is_plain = whereabouts.syscall().is_some_and(sleeps_interruptibly);
    if is_plain {
        return ThreadState::Sleeping;
    }
    files
        .stat()
        .map_or(ThreadState::Unknown, |(state, _)| state)
}

/// A dead first thread of a process with living threads stays in /proc, without registers or
/// memory.
fn is_dead(state: ThreadState, whereabouts: &Whereabouts) -> bool {
    let registers = whereabouts.registers();
    state == ThreadState::Unknown
        && registers.and_then(|registers| registers.stack_pointer()) == Some(0)
}

/// Why the kernel refused to let torchspy trace a thread: it returns EPERM for every reason.
///
/// A tracer may let go between the refusal and this.
pub(super) fn refusal(thread: &mut TracedThread) -> Partial {
    let was_traced = std::mem::take(&mut thread.was_traced);
    match thread.files.tracer_pid() {
        Some(0) if was_traced => Partial::AlreadyTraced,
        Some(0) | None => match thread.files.stat() {
            Ok((ThreadState::Unknown, _)) | Err(_) => Partial::Exited,
            Ok(_) => Partial::PermissionDenied,
        },
        Some(_) => {
            thread.was_traced = true;
            Partial::AlreadyTraced
        }
    }
}
