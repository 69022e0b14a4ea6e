//! Capture: threads are read as they sleep or run, or are stopped for it, one after the other; what stops late is read then.
//!
//! What is to be captured was decided before, and what a capture stands for is charged afterwards.

use super::gil::{GilHolder, gil_holders, holds_gil, other_holder};
use super::poll::Candidate;
use super::precedence::{Event, Precedence};
use super::process::TracedProcess;
use super::spare::{MAX_SPARE, SpareSamples};
use super::thread::{Seen, TracedThread};
use crate::arch::system_calls::{Sysno, number};
use crate::memory::ReadError;
use crate::model::frame::Partial;
use crate::model::registers::Registers;
use crate::model::sample::{Gil, ThreadState};
use crate::os::clock::monotonic_ns;
use crate::os::priority::{Ahead, InFront};
use crate::os::stop::{StoppedThread, wait_for_any_stop};
use crate::os::syscalls::{Ending, sleeps_interruptibly};
use crate::os::threads::{FUTEX, SchedStat, ThreadFiles, Whereabouts};
use crate::sampling::capture::{
    Buffers, Subject, capture, capture_stopped, capture_unstopped, look_up,
};
use crate::sampling::raw::RawSample;
use crate::sampling::session::SessionOptions;
use crate::sampling::stops::{LateStops, NAP, Outcome, Request, SHORT_NAP, Wait};
use std::time::Duration;

/// System calls during which a thread may hold its process's mmap lock for writing: reading memory would block.
const MMAP_LOCKERS: [u32; 7] = [
    number(Sysno::mmap),
    number(Sysno::mprotect),
    number(Sysno::munmap),
    number(Sysno::brk),
    number(Sysno::mremap),
    number(Sysno::madvise),
    number(Sysno::remap_file_pages),
];

/// Stops, reads and resumes.
#[derive(Debug)]
pub(super) struct Capture {
    native: bool,
    once: bool,
    buffers: Buffers,
    spare: SpareSamples,
    late: LateStops,
    ahead: Ahead,
    precedence: Precedence<InFront>,
}

/// What came of reading a sleeper.
pub(super) enum Asleep {
    /// It was read, and slept on.
    Read(Box<RawSample>),
    /// It woke while it was read.
    Woke,
    /// A first thread that is dead while others live.
    Dead,
    NotRead(Partial),
}

/// What came of one stop.
pub(super) struct Attempt {
    pub(super) candidate: Candidate,
    pub(super) outcome: Outcome,
    /// What was read; nothing unless the outcome is that it was resumed.
    pub(super) sample: Box<RawSample>,
    /// The buffer for its stack.
    stack: Vec<u8>,
    /// For how long the thread was dealt with, ns: stopped, or waiting for a CPU or in the kernel to be.
    pub(super) took_ns: u64,
    pub(super) ending: Option<Ending>,
    /// Who held the GIL while it was stopped, where each thread is read once: stacks and holders are shown side by side then.
    pub(super) holders: Option<Vec<GilHolder>>,
}

/// A stop that was asked for in an earlier tick, and its thread, which runs again.
pub(super) struct LateCapture {
    pub(super) sample: Box<RawSample>,
    /// Who held the GIL while it was stopped.
    pub(super) holders: Vec<GilHolder>,
    pub(super) ending: Option<Ending>,
    pub(super) stop_ns: u64,
}

impl Capture {
    pub(super) fn new(options: &SessionOptions) -> Self {
        Self {
            native: options.native,
            once: options.once,
            buffers: Buffers::default(),
            spare: SpareSamples::default(),
            late: LateStops::default(),
            ahead: Ahead::default(),
            precedence: Precedence::default(),
        }
    }

    /// Finds out what priority the calling thread, which is the one that traces, may have.
    pub(super) fn prepare(&mut self) {
        self.ahead = Ahead::prepare();
    }

    /// Runs before all others, or as they do, as what happens requires.
    pub(super) fn precede(&mut self, event: Event) {
        self.precedence.on(event, || self.ahead.stand_in_front());
    }

    /// Whether a thread was asked to stop and has not been collected.
    pub(super) fn is_outstanding(&self) -> bool {
        !self.late.is_empty()
    }

    /// Whether one of this process was. Nothing of it is seized then.
    pub(super) fn is_outstanding_of(&self, leader: i32) -> bool {
        self.late.has_of(leader)
    }

    /// Whether this thread may still stop for us, or is stopped and was not collected yet.
    pub(super) fn awaits(&self, tid: i32) -> bool {
        self.late.contains(tid)
    }

    /// Waits up to `left_ns` for threads that were asked to stop, but no longer than a nap: it bounds by how much the measured stop may
    /// exceed the true one.
    pub(super) fn nap(left_ns: u64) {
        wait_for_any_stop(Duration::from_nanos(left_ns.max(1)).min(NAP));
    }

    /// Threads that were asked to stop in an earlier tick and are stopped by now.
    pub(super) fn arrived(&mut self) -> Vec<StoppedThread> {
        self.late.arrived()
    }

    /// Lets a thread run on that need not be read.
    pub(super) fn resume(&mut self, stopped: StoppedThread) {
        self.late.resume(stopped);
    }

    /// Waits up to `deadline_ns` for threads that were asked to stop and have not yet: none may be left behind stopped. If torchspy
    /// ends before they stop, the kernel lets them go.
    pub(super) fn release(&mut self, deadline_ns: u64) {
        while self.is_outstanding() && monotonic_ns() < deadline_ns {
            wait_for_any_stop(Duration::from_millis(5));
            for stopped in self.late.arrived() {
                self.late.resume(stopped);
            }
        }
        self.precede(Event::LetGo);
    }

    /// Takes back a sample that the worker is done with.
    pub(super) fn recycle(&mut self, mut sample: Box<RawSample>) {
        self.buffers.reclaim(&mut sample);
        self.spare.0.push(sample);
    }

    /// Takes back a sample that is not used.
    pub(super) fn put_back(&mut self, mut sample: Box<RawSample>) {
        self.buffers.reclaim(&mut sample);
        if self.spare.0.len() < MAX_SPARE {
            self.spare.0.push(sample);
        }
    }

    /// Reads a sleeper as it is and checks that it slept on: its `scheduled` is the same before and after.
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
            thread.seen = Seen::Asleep(whereabouts);
            return Asleep::NotRead(process.why_no_python());
        }
        let syscall = whereabouts.syscall();
        if state == ThreadState::Uninterruptible
            && syscall.is_some_and(|number| MMAP_LOCKERS.contains(&number))
        {
            return Asleep::NotRead(Partial::Uninterruptible);
        }
        let mut sample = self.spare.blank(process, at, scheduled.slices);
        sample.registers = registers.filter(|_| self.native);
        let thread = &mut process.threads[at];
        let stack = self.buffers.prepare(&mut thread.plan, &thread.shared);
        let read = capture(
            Subject {
                memory: &process.memory,
                interpreter: process.interpreter.as_deref(),
                stack_pointer: sample.registers.as_ref().and_then(Registers::stack_pointer),
            },
            &mut thread.plan,
            stack,
            &mut self.buffers,
            &mut sample,
        );
        process.copy_codes(&mut self.buffers, &mut sample);
        // Who has the interpreter's lock is read before it is known that the thread slept on: it is of the same moment.
        let has_gil = self.once && holds_gil(process, at);
        // A thread that waits for that lock sleeps in a futex: who has it is worth a small read.
        let gil_holder = match syscall {
            Some(FUTEX) => other_holder(process, at),
            _ => None,
        };
        let thread = &mut process.threads[at];
        let slept_on = match thread.files.schedstat() {
            Ok(after) if scheduled.is_kept() => after == scheduled,
            Ok(_) => thread
                .files
                .whereabouts()
                .is_ok_and(|after| after == whereabouts),
            Err(_) => true,
        };
        if !slept_on {
            self.put_back(sample);
            return Asleep::Woke;
        }
        if matches!(read, Err(ReadError::Gone)) {
            // A process on its way out gives up its memory before its threads are gone.
            self.put_back(sample);
            return Asleep::NotRead(Partial::Exited);
        }
        thread.seen = match scheduled.is_kept() {
            true => Seen::Asleep(whereabouts),
            false => Seen::Unknown,
        };
        sample.recorded.syscall = syscall;
        sample.recorded.gil = if has_gil { Gil::Held } else { Gil::NotHeld };
        sample.recorded.gil_holder = gil_holder;
        sample.failure = read.err().map(|_| Partial::StackUnreadable);
        Asleep::Read(sample)
    }

    /// Reads the Python frames of a thread that runs, and whether they changed under the read. `None` without an interpreter.
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
        );
        process.copy_codes(&mut self.buffers, &mut sample);
        let is_torn = matches!(read, Ok(false));
        sample.failure = read.err().map(|_| Partial::PythonUnreadable);
        Some((sample, is_torn))
    }

    /// Stops, reads and resumes each of `candidates`, one after the other. Sleepers are asked for as long as CLOCK_MONOTONIC shows less
    /// than `sleepers_until_ns`. `gives_way` where one of them waits for the very CPU that the caller runs on.
    pub(super) fn stop(
        &mut self,
        processes: &mut [TracedProcess],
        candidates: &[Candidate],
        gives_way: bool,
        sleepers_until_ns: u64,
    ) -> Vec<Attempt> {
        let mut attempts = Vec::with_capacity(candidates.len());
        for &candidate in candidates {
            attempts.push(self.prepare_stop(&mut processes[candidate.process], candidate));
        }
        let nap = if self.once { SHORT_NAP } else { NAP };
        let wait = Wait::new(candidates.len(), nap, gives_way, sleepers_until_ns);
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
            let holders = &mut attempt.holders;
            (attempt.outcome, attempt.took_ns) = late.stop(request, wait, |stopped| {
                let at = candidate.thread;
                read_stopped(process, at, stopped, *native, stack, buffers, sample);
                *ending = stopped.ending();
                *holders = once.then(|| gil_holders(process));
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

    /// Has all ready that a stop needs.
    fn prepare_stop(&mut self, process: &mut TracedProcess, candidate: Candidate) -> Attempt {
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
        Attempt {
            candidate,
            outcome: Outcome::NotAsked,
            sample,
            stack,
            took_ns: 0,
            ending: None,
            holders: None,
        }
    }

    /// Reads and resumes a thread that was asked to stop in an earlier tick. It waited for a CPU, or in the kernel: where it stopped is
    /// where it was in all the ticks since.
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
        let holders = gil_holders(process);
        let ending = stopped.ending();
        let stop_ns = self.late.resume(stopped);
        process.copy_codes(buffers, &mut sample);
        LateCapture {
            sample,
            holders,
            ending,
            stop_ns,
        }
    }
}

/// Reads a stopped thread into `sample`: its registers and, as its plan says, its memory.
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

/// Where the stack of a thread that was stopped is: of older Pythons it tells whose each thread state is. 0 where it was not read.
pub(super) fn stack_pointer(sample: &RawSample) -> u64 {
    let registers = sample.registers.as_ref();
    registers.and_then(Registers::stack_pointer).unwrap_or(0)
}

/// The state of a thread off the CPU. Calls that always sleep interruptibly need no read of `stat`.
fn sleep_state(files: &ThreadFiles, whereabouts: &Whereabouts) -> ThreadState {
    let is_plain = whereabouts.syscall().is_some_and(sleeps_interruptibly);
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

/// Why the kernel refused to let us trace a thread: it says EPERM for every reason.
pub(super) fn refusal(thread: &TracedThread) -> Partial {
    match thread.files.tracer_pid() {
        Some(0) | None => match thread.files.stat() {
            Ok((ThreadState::Unknown, _)) | Err(_) => Partial::Exited,
            Ok(_) => Partial::PermissionDenied,
        },
        Some(_) => Partial::AlreadyTraced,
    }
}
