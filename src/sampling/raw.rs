//! What the tracer hands on: copies of memory, and facts about threads, with nothing worked out yet.

use super::watched::Watched;
use crate::memory::SnapshotMemory;
use crate::model::code::PythonVersion;
use crate::model::frame::Partial;
use crate::model::ids::{ProcessId, ThreadId};
use crate::model::process::{ProcessInfo, ThreadInfo};
use crate::model::quality::Quality;
use crate::model::registers::Registers;
use crate::model::run::Loss;
use crate::model::sample::{Gil, Sample, ThreadState};
use crate::os::threads::SchedStat;
use crate::python::discover::Interpreter;
use crate::python::frames::PythonStack;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What the tracer and the worker both know of a thread.
#[derive(Debug, Default)]
pub(super) struct ThreadShared {
    /// Where its stacks end.
    pub(super) roots: Roots,
    /// Time slices of the sleep in which unwinding lacked a register that only a stop can give. 0: none.
    pub(super) registers_wanted: AtomicU64,
    /// Time slices of the sleep in which the copied stack did not reach its root. 0: none.
    pub(super) stack_wanted: AtomicU64,
    /// What is read along with it.
    pub(super) watched: Watched,
}

/// Most stack that is copied of a thread that was never seen to use more.
const USUAL_STACK_BYTES: usize = 1 << 20;
/// Most that is ever copied, some 3 ms of a stop: deeper stacks are cut, and say so. A main thread's stack may take as much by
/// default (`ulimit -s`), and so may those of others.
pub(super) const MAX_STACK_BYTES: usize = 8 << 20;
/// Stands for a root that is further away than was read.
const DEEPER: u64 = u64::MAX;

/// The highest addresses that unwinding needed of a thread's stack, and of another that it runs on now and then: a fiber's,
/// or an alternate signal stack. 0: not known. The worker finds them out, the tracer reads up to them.
#[derive(Debug, Default)]
pub(super) struct Roots {
    of: [AtomicU64; 2],
    /// The usual was not enough.
    is_deep: AtomicBool,
}

/// How much of a stack to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// As many bytes, to the root.
    Known(usize),
    /// As much as a first look takes.
    Unknown,
    /// As much as this: a first look was not enough.
    Deeper(usize),
}

impl Roots {
    /// How much there is of the stack that is used from `stack_pointer` on.
    pub(super) fn extent(&self, stack_pointer: u64) -> Extent {
        let roots = [0, 1].map(|at: usize| self.of[at].load(Ordering::Relaxed));
        let reach = self.reach();
        let known = roots
            .into_iter()
            .filter_map(|root| root.checked_sub(stack_pointer))
            .filter(|&length| length <= reach)
            .min();
        match known {
            Some(length) => Extent::Known(length as usize),
            None if roots[0] == DEEPER => Extent::Deeper(reach as usize),
            None => Extent::Unknown,
        }
    }

    /// How far from its stack pointer a thread's root may be. What is further off is of another stack.
    pub(super) fn reach(&self) -> u64 {
        match self.is_deep() {
            false => USUAL_STACK_BYTES as u64,
            true => MAX_STACK_BYTES as u64,
        }
    }

    /// Whether it took more stack at times than is usual.
    pub(super) fn is_deep(&self) -> bool {
        self.is_deep.load(Ordering::Relaxed)
    }

    /// Whether nothing is known yet.
    pub(super) fn is_unknown(&self) -> bool {
        self.of[0].load(Ordering::Relaxed) == 0
    }

    /// Takes in that unwinding needed the stack up to `root`.
    pub(super) fn learn(&self, root: u64) {
        let reach = self.reach();
        let is_of = |known: u64| known.abs_diff(root) <= reach;
        let [own, other] = &self.of;
        let known = own.load(Ordering::Relaxed);
        if matches!(known, 0 | DEEPER) || is_of(known) {
            let known = if known == DEEPER { 0 } else { known };
            own.store(known.max(root), Ordering::Relaxed);
            return;
        }
        let known = other.load(Ordering::Relaxed);
        let known = if is_of(known) { known } else { 0 };
        other.store(known.max(root), Ordering::Relaxed);
    }

    /// Takes in that more was needed than was copied. Tells whether that is new.
    pub(super) fn deepen(&self) -> bool {
        let is_new = self.of[0].swap(DEEPER, Ordering::Relaxed) != DEEPER;
        is_new || !self.is_deep.swap(true, Ordering::Relaxed)
    }

    /// Forgets everything: another program runs.
    pub(super) fn forget(&self) {
        self.is_deep.store(false, Ordering::Relaxed);
        self.of
            .iter()
            .for_each(|root| root.store(0, Ordering::Relaxed));
    }
}

/// A fresh capture.
#[derive(Debug)]
pub(super) struct RawSample {
    /// What is recorded of it; its stack is found out by the worker.
    pub(super) recorded: Sample,
    /// The process.
    pub(super) process: ProcessId,
    /// What it shares with the tracer.
    pub(super) shared: Arc<ThreadShared>,
    /// Time slices that the thread had had (schedstat).
    pub(super) slices: u64,
    /// When its memory was read, CLOCK_MONOTONIC; 0 where nothing was read along with it.
    pub(super) read_ns: u64,
    /// Its Python thread state; 0 where it has none.
    pub(super) python_state: u64,
    /// Registers; all of them where it was stopped, two where it slept, none where native frames were not read.
    pub(super) registers: Option<Registers>,
    /// Copied memory: its stack, and Python state.
    pub(super) snapshot: SnapshotMemory,
    /// Python frames, leaf first, as addresses.
    pub(super) python: PythonStack,
    /// Copied code objects of those frames.
    pub(super) codes: SnapshotMemory,
    /// When it was read, CLOCK_MONOTONIC, if the interpreter was not known then; else 0.
    pub(super) python_pending_ns: u64,
    /// Why the Python frames end early, if they do.
    pub(super) python_partial: Option<Partial>,
    /// Why nothing was read, if nothing was.
    pub(super) failure: Option<Partial>,
}

/// A Python stack that another library read whole: Pythons older than 3.10.
#[derive(Debug)]
pub(super) struct NamedStack {
    /// Function, file and line, leaf first.
    pub(super) frames: Vec<(String, String, u32)>,
    /// The interpreter's version.
    pub(super) version: PythonVersion,
    /// Whether the thread held the GIL.
    pub(super) gil: Gil,
    /// What the kernel said of the thread when the stack was read.
    pub(super) scheduled: SchedStat,
    /// Its state then.
    pub(super) state: ThreadState,
    /// The system call that it was in.
    pub(super) syscall: Option<u32>,
}

/// From the tracer to the worker, in order.
#[derive(Debug)]
pub(super) enum Message {
    /// A process is seen for the first time, or its facts changed. Ids count up from 0.
    Process(ProcessId, Box<ProcessInfo>),
    /// The process runs another program now (exec), or its interpreter was found: caches about it are void.
    Image(ProcessId, Option<Arc<Interpreter>>),
    /// A thread is seen for the first time, or its facts changed. Ids count up from 0.
    Thread(ThreadId, Box<ThreadInfo>),
    /// A fresh capture.
    Sample(Box<RawSample>),
    /// A stack without native frames that was read by name.
    Named(Sample, Box<NamedStack>),
    /// Time in which the thread kept the stack of its last capture, or was not read.
    Span(Sample, Option<Partial>),
    /// The thread is gone: its last stack is not needed any more.
    ThreadGone(ThreadId),
    /// The process is gone.
    ProcessGone(ProcessId),
    /// A second is over: write it down.
    Flush(Box<FlushFacts>),
}

/// What belongs to a segment and is no sample.
#[derive(Debug)]
pub(super) struct FlushFacts {
    /// First moment of the segment.
    pub(super) start_ns: u64,
    /// Last moment of the segment.
    pub(super) end_ns: u64,
    /// The sampler's figures over it.
    pub(super) quality: Quality,
    /// What was lost in it.
    pub(super) losses: Vec<Loss>,
    /// Whether it is the last one.
    pub(super) last: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_may_have_two_stacks() {
        let roots = Roots::default();
        assert!(roots.is_unknown());
        assert_eq!(roots.extent(0x7f00_0000_1000), Extent::Unknown);
        assert!(roots.deepen());
        let deeper = roots.extent(0x7f00_0000_1000);
        assert_eq!(deeper, Extent::Deeper(USUAL_STACK_BYTES));
        roots.learn(0x7f00_0000_8000);
        roots.learn(0x5500_0000_3000);
        roots.learn(0x7f00_0000_7000);
        assert_eq!(roots.extent(0x7f00_0000_1000), Extent::Known(0x7000));
        assert_eq!(roots.extent(0x5500_0000_1000), Extent::Known(0x2000));
        assert_eq!(roots.extent(0x7eff_0000_0000), Extent::Unknown);
        roots.forget();
        assert!(roots.is_unknown());
    }

    #[test]
    fn a_deep_stack_is_read_to_its_root_again() {
        let roots = Roots::default();
        let (root, leaf) = (0x7fff_0080_0000, 0x7fff_0050_0000);
        roots.learn(root);
        assert_eq!(roots.extent(leaf), Extent::Unknown);
        assert!(roots.deepen() && roots.deepen() && !roots.deepen());
        assert_eq!(roots.extent(leaf), Extent::Deeper(MAX_STACK_BYTES));
        roots.learn(root);
        assert_eq!(roots.extent(leaf), Extent::Known(0x30_0000));
        assert_eq!(roots.extent(root - 0x1000), Extent::Known(0x1000));
    }
}
