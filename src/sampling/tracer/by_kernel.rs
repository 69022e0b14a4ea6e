//! Running threads that the kernel samples on request (`--engine perf`): nothing is stopped, and
//! what the kernel does not copy, the Python frames above all, is read right after.

use super::Tracer;
use super::capture::{Capture, stack_pointer};
use super::gil::NOT_ASKED;
use super::poll::{Candidate, Poll};
use super::process::TracedProcess;
use super::thread::LastPoll;
use super::tick::Holders;
use crate::model::frame::Partial;
use crate::model::sample::{Capture as Method, ThreadState};
use crate::os::clock::monotonic_ns;
use crate::os::perf_event::{self, KernelSample, KernelSampler, MAX_STACK_COPY, Scope};
use crate::python::frames::PythonStack;
use crate::sampling::capture::{Subject, capture, capture_sampled};
use crate::sampling::raw::{Extent, RawSample};
use crate::sampling::session::Engine;
use crate::sampling::stops::{NAP, Wait};
use nix::libc;
use std::io;
use std::time::Duration;

/// Part of the period, as its divisor, that samples of a tick may take; the other threads wait for
/// the next tick.
const SAMPLES_SHARE: u64 = 2;
/// How long to wait for a sample, ns. A thread that went to sleep would be sampled where it wakes.
const DEADLINE_NS: u64 = 300_000;
/// The same where as many threads run as there are CPUs, ns: the thread may wait for one.
const CROWDED_DEADLINE_NS: u64 = 2_000_000;
/// Shortest copy of a stack, bytes.
const LEAST_COPY: usize = 4096;
/// A copy is shortened where the last ones needed less than this part of it, as a divisor.
const MUCH_TOO_LONG: usize = 4;

/// After the kernel had nothing left for another sampler, none is opened for this long, ns.
const EXHAUSTED_NS: u64 = 1_000_000_000;
/// A sampler that was not used for this long is closed where the kernel has nothing left, ns.
const UNUSED_NS: u64 = 1_000_000_000;

/// The kernel's sampler of a thread.
#[derive(Debug, Default)]
pub(super) enum ThreadSampler {
    #[default]
    Unopened,
    Open {
        sampler: Box<KernelSampler>,
        /// When it was last asked for a sample.
        used_ns: u64,
    },
    /// The kernel does not let torchspy sample this thread.
    Refused,
}

/// Why a thread has no sampler.
enum NoSampler {
    /// The kernel does not let torchspy sample this one.
    Refused,
    /// It has no descriptor or memory left for it, or lets torchspy sample no thread any more.
    Exhausted,
}

impl ThreadSampler {
    /// The sampler, with copies that hold `wanted` bytes of the stack.
    fn of(
        &mut self,
        tid: i32,
        wanted: usize,
        scope: Scope,
    ) -> Result<&mut KernelSampler, NoSampler> {
        let wanted = wanted.max(LEAST_COPY).next_power_of_two();
        let wanted = wanted.min(MAX_STACK_COPY);
        let fits = match self {
            Self::Open { sampler, .. } => {
                let now = sampler.stack_bytes();
                now >= wanted && now / MUCH_TOO_LONG < wanted
            }
            Self::Unopened => false,
            Self::Refused => return Err(NoSampler::Refused),
        };
        if !fits {
            // The old one first: the kernel bounds the memory of all of a user's rings.
            *self = Self::Unopened;
            *self = match KernelSampler::open(tid, wanted, scope) {
                Ok(sampler) => Self::Open {
                    sampler: Box::new(sampler),
                    used_ns: 0,
                },
                Err(error) if is_exhausted(&error, scope) => return Err(NoSampler::Exhausted),
                Err(_) => Self::Refused,
            };
        }
        match self {
            Self::Open { sampler, used_ns } => {
                *used_ns = monotonic_ns();
                Ok(sampler)
            }
            _ => Err(NoSampler::Refused),
        }
    }

    /// Closes a sampler that was not used for long. Returns whether it was open.
    fn close_unused(&mut self, now_ns: u64) -> bool {
        match self {
            Self::Open { used_ns, .. } if now_ns >= *used_ns + UNUSED_NS => {
                *self = Self::Unopened;
                true
            }
            _ => false,
        }
    }
}

/// Whether an error is not about the thread that was to be sampled.
fn is_exhausted(error: &io::Error, scope: Scope) -> bool {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => true,
        Some(libc::ESRCH) => false,
        _ => perf_event::scope().ok() != Some(scope),
    }
}

/// What came of a request.
enum Sampled {
    Read {
        sample: Box<RawSample>,
        /// The Python frames changed meanwhile.
        moved: bool,
        /// The thread slept between the request and the sample.
        slept: bool,
    },
    /// No sample by the deadline.
    Missed,
    /// The kernel has no sampler for the thread.
    NotOpened(NoSampler),
}

impl Tracer {
    /// Has the kernel sample running threads. Those for which the tick has no time are deferred.
    pub(super) fn sample_by_kernel(
        &mut self,
        candidates: &[Candidate],
        order: &[usize],
        scope: Scope,
        gil: &Holders,
    ) {
        let until_ns = monotonic_ns() + self.schedule.period_ns() / SAMPLES_SHARE;
        let yields_cpu = self.decide.wake_cpu.shares_trainer_cpu();
        let wait = Wait::new(candidates.len(), NAP, yields_cpu, until_ns);
        let mut is_exhausted = false;
        for &index in order {
            let candidate = candidates[index];
            if monotonic_ns() > until_ns {
                self.quality.skipped_for_budget += 1;
                self.defer_or_read(candidate, true);
                continue;
            }
            let mut sampled = self.request(candidate, scope, wait);
            if matches!(sampled, Sampled::NotOpened(NoSampler::Exhausted))
                && self.close_unused_samplers()
            {
                sampled = self.request(candidate, scope, wait);
            }
            match sampled {
                Sampled::Read {
                    sample,
                    moved,
                    slept,
                } => {
                    self.quality.python_later += u64::from(moved);
                    self.take_sampled(candidate, sample, slept, gil);
                }
                Sampled::Missed => {
                    self.quality.samples_missed += 1;
                    match scope {
                        Scope::All => self.defer_or_read(candidate, true),
                        // It probably is in the kernel: the next sample would show what comes after
                        // that.
                        Scope::UserCode => self.read_without_sample(candidate),
                    }
                }
                Sampled::NotOpened(why) => {
                    self.quality.samples_refused += 1;
                    is_exhausted |= matches!(why, NoSampler::Exhausted);
                    self.read_without_sample(candidate);
                }
            }
        }
        if is_exhausted {
            self.exhausted_ns = monotonic_ns();
            if matches!(self.options.engine, Engine::Perf { or_stops: true, .. }) {
                self.fall_back();
            }
        }
    }

    /// Asks for a sample, unless a sampler would have to be opened that there is no room for.
    fn request(&mut self, candidate: Candidate, scope: Scope, wait: Wait) -> Sampled {
        let process = &mut self.processes[candidate.process];
        let is_open = matches!(
            process.threads[candidate.thread].sampler,
            ThreadSampler::Open { .. }
        );
        let since_ns = monotonic_ns().saturating_sub(self.exhausted_ns);
        if !is_open && self.exhausted_ns > 0 && since_ns < EXHAUSTED_NS {
            return Sampled::NotOpened(NoSampler::Refused);
        }
        self.capture.sampled(process, candidate, scope, wait)
    }

    /// Closes the samplers of threads that have not run for long. Returns whether there were any.
    fn close_unused_samplers(&mut self) -> bool {
        let now_ns = monotonic_ns();
        let threads = self.processes.iter_mut();
        let threads = threads.flat_map(|process| &mut process.threads);
        threads
            .filter_map(|thread| thread.sampler.close_unused(now_ns).then_some(()))
            .count()
            > 0
    }

    /// From now on running threads are stopped.
    fn fall_back(&mut self) {
        self.options.engine = Engine::Ptrace;
        self.poll = Poll::new(&self.options);
        self.decide.follow(&self.options, self.schedule.period_ns());
        for process in &mut self.processes {
            for thread in &mut process.threads {
                thread.sampler = ThreadSampler::Unopened;
            }
        }
    }

    fn take_sampled(
        &mut self,
        candidate: Candidate,
        mut sample: Box<RawSample>,
        slept: bool,
        gil: &Holders,
    ) {
        let (index, at) = (candidate.process, candidate.thread);
        let thread = &mut self.processes[index].threads[at];
        thread.last_poll = LastPoll::Running;
        thread.stack_pointer = stack_pointer(&sample);
        // As of a stop that finds the thread blocked: a sample where it has just woken would
        // overstate the code after the sleep.
        if slept && thread.leaves_out_sleep(candidate.sleeps_briefly) {
            self.capture.put_back(sample);
            self.defer(candidate);
            return;
        }
        thread.blocked = false;
        thread.charge(&mut sample.recorded, Method::Sampled);
        let gils = gil.get(&index).unwrap_or(NOT_ASKED);
        gils.set(&mut sample.recorded, &thread.plan);
        self.forward(index, at, sample);
    }

    /// Reads the Python frames alone.
    fn read_without_sample(&mut self, candidate: Candidate) {
        let (index, at) = (candidate.process, candidate.thread);
        let process = &mut self.processes[index];
        if process.threads[at].plan.state_address.is_some() {
            self.read_unstopped(candidate);
        } else {
            process.threads[at].last_poll = LastPoll::Running;
            let why = process.why_no_python();
            self.record_without_stack(index, at, why);
        }
    }
}

impl Capture {
    /// Has the kernel sample a running thread, and reads what the kernel does not copy.
    fn sampled(
        &mut self,
        process: &mut TracedProcess,
        candidate: Candidate,
        scope: Scope,
        wait: Wait,
    ) -> Sampled {
        let at = candidate.thread;
        let thread = &mut process.threads[at];
        let wanted = match thread.shared.roots.extent(thread.stack_pointer) {
            // The thread may be deeper now; what is not copied is read later.
            Extent::Known(length) => length + length / 2,
            Extent::Unknown | Extent::Deeper(_) => MAX_STACK_COPY,
        };
        let mut sample = self.spare.blank(process, at, candidate.slices);
        let mut earlier = self.spare.blank(process, at, candidate.slices);
        let thread = &mut process.threads[at];
        let switches_before = match wait.is_crowded() {
            true => thread.files.voluntary_switches(),
            false => None,
        };
        let sampler = match thread.sampler.of(thread.tid, wanted, scope) {
            Ok(sampler) => sampler,
            Err(why) => {
                self.put_back(earlier);
                self.put_back(sample);
                return Sampled::NotOpened(why);
            }
        };
        let subject = Subject {
            memory: &process.memory,
            interpreter: process.interpreter.as_deref(),
            stack_pointer: None,
        };
        let buffers = &mut self.buffers;
        let mut stack = buffers.prepare(&mut thread.plan, &thread.shared);
        let has_python = subject.interpreter.is_some() && thread.plan.state_address.is_some();
        if has_python {
            let spare = buffers.take(0);
            let read = capture(subject, &mut thread.plan, spare, buffers, &mut earlier);
            earlier.failure = read.err().map(|_| Partial::PythonUnreadable);
        }
        let Some(taken) = await_sample(sampler, &mut stack, wait) else {
            buffers.put_back(stack);
            self.put_back(earlier);
            self.put_back(sample);
            return Sampled::Missed;
        };
        let pointer = taken.registers.stack_pointer().unwrap_or(0);
        let end = pointer.saturating_add(taken.stack_bytes as u64);
        let rest = match sample.shared.roots.extent(pointer) {
            Extent::Known(length) => length > taken.stack_bytes,
            Extent::Unknown => false,
            Extent::Deeper(_) => true,
        };
        sample.registers = Some(taken.registers);
        let subject = Subject {
            stack_pointer: rest.then_some(end),
            ..subject
        };
        let copied = (pointer, stack, taken.stack_bytes);
        let read = capture_sampled(
            subject,
            &mut thread.plan,
            copied,
            &mut self.buffers,
            &mut sample,
        );
        sample.failure = read.err().map(|_| Partial::StackUnreadable);
        let moved = has_python && settle(&mut earlier, &mut sample, pointer);
        self.put_back(earlier);
        process.copy_codes(&mut self.buffers, &mut sample);
        let thread = &mut process.threads[at];
        thread.state = ThreadState::Running;
        let slept =
            switches_before.is_some() && switches_before != thread.files.voluntary_switches();
        Sampled::Read {
            sample,
            moved,
            slept,
        }
    }
}

/// Asks for a sample and waits for it; its stack is put into `stack`.
fn await_sample(
    sampler: &mut KernelSampler,
    stack: &mut Vec<u8>,
    wait: Wait,
) -> Option<KernelSample> {
    let begun_ns = monotonic_ns();
    let deadline_ns = match wait.is_crowded() {
        true => CROWDED_DEADLINE_NS,
        false => DEADLINE_NS,
    };
    sampler.request().ok()?;
    loop {
        if let Some(sample) = sampler.take(stack) {
            return Some(sample);
        }
        let waited_ns = monotonic_ns() - begun_ns;
        if waited_ns > deadline_ns {
            sampler.withdraw();
            return sampler.take(stack);
        }
        if waited_ns > wait.spin_ns {
            sampler.wait(Duration::from_nanos(deadline_ns - waited_ns + 1));
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Of the Python frames that were read before the sample and those that were read after it, keeps
/// in `later` those that fit the copied stack, which ends at `stack_pointer`. Returns whether they
/// differ.
///
/// An evaluation that began after the sample lies below the stack. One that ended after it is in
/// the earlier frames alone.
fn settle(earlier: &mut RawSample, later: &mut RawSample, stack_pointer: u64) -> bool {
    earlier.python.drop_runs_below(stack_pointer);
    later.python.drop_runs_below(stack_pointer);
    let moved = frames_of(&earlier.python).ne(frames_of(&later.python));
    let is_whole = |sample: &RawSample| sample.python_partial.is_none() && sample.failure.is_none();
    let fits_better = earlier.python.innermost() < later.python.innermost();
    if is_whole(earlier) && (fits_better || !is_whole(later)) {
        std::mem::swap(&mut earlier.python, &mut later.python);
        later.python_partial = None;
        later.python_state = earlier.python_state;
    }
    moved
}

/// Addresses of the frames, and of their code.
fn frames_of(python: &PythonStack) -> impl Iterator<Item = (u64, u64)> {
    let frames = python.frames.iter();
    frames.map(|frame| (frame.frame_address, frame.code_address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::ProcessId;
    use crate::model::sample::Sample;
    use crate::python::frames::{PythonFrame, PythonRun};
    use std::sync::Arc;

    /// A capture with evaluations at these addresses, innermost first, of a frame each, whose
    /// address is the evaluation's plus 1.
    fn read(evaluations: &[u64]) -> RawSample {
        let mut sample = RawSample::new(Sample::default(), ProcessId(0), Arc::default(), 0);
        for (first, &address) in evaluations.iter().enumerate() {
            sample.python.frames.push(PythonFrame {
                frame_address: address + 1,
                code_address: 0,
                instruction: 0,
                first_local: 0,
            });
            sample.python.runs.push(PythonRun {
                stack_address: Some(address),
                first: first as u32,
                length: 1,
            });
        }
        sample
    }

    /// The frames that are kept of both reads, and whether those differed.
    fn settled(earlier: &[u64], later: &[u64]) -> (Vec<u64>, bool) {
        let (mut earlier, mut later) = (read(earlier), read(later));
        let moved = settle(&mut earlier, &mut later, 0x500);
        let runs = &later.python.runs;
        assert!(
            runs.iter()
                .enumerate()
                .all(|(at, run)| run.range() == (at..at + 1))
        );
        (
            frames_of(&later.python).map(|frame| frame.0).collect(),
            moved,
        )
    }

    #[test]
    fn frames_fit_the_copied_stack() {
        assert_eq!(
            settled(&[0x600, 0x900], &[0x600, 0x900]),
            (vec![0x601, 0x901], false)
        );
        // Two evaluations began after the sample, or before it and after the first read.
        assert_eq!(
            settled(&[0x900], &[0x300, 0x400, 0x900]),
            (vec![0x901], false)
        );
        assert_eq!(
            settled(&[0x900], &[0x600, 0x900]),
            (vec![0x601, 0x901], true)
        );
        // One ended after the sample.
        assert_eq!(
            settled(&[0x600, 0x900], &[0x900]),
            (vec![0x601, 0x901], true)
        );
        assert_eq!(settled(&[0x400, 0x900], &[0x900]), (vec![0x901], false));
    }

    #[test]
    fn frames_that_could_not_be_read_again_are_the_earlier_ones() {
        let (mut earlier, mut later) = (read(&[0x600]), read(&[]));
        later.python_partial = Some(Partial::PythonUnreadable);
        assert!(settle(&mut earlier, &mut later, 0x500));
        assert_eq!(later.python.frames.len(), 1);
        assert_eq!(later.python_partial, None);
        let (mut earlier, mut later) = (read(&[0x700]), read(&[0x600]));
        earlier.failure = Some(Partial::PythonUnreadable);
        settle(&mut earlier, &mut later, 0x500);
        assert_eq!(frames_of(&later.python).next(), Some((0x601, 0)));
    }
}
