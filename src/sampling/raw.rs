//! Messages from the tracer to the worker: copies of memory and facts about threads, not resolved
//! yet.

use super::footprint::Footprint;
use super::watched::Watched;
use crate::memory::SnapshotMemory;
use crate::model::code::PythonVersion;
use crate::model::frame::Partial;
use crate::model::ids::{ProcessId, ThreadId};
use crate::model::process::{ProcessInfo, ThreadInfo};
use crate::model::registers::Registers;
use crate::model::sample::{Gil, Sample, ThreadState};
use crate::model::segment::Segment;
use crate::os::resident::ResidentMemory;
use crate::os::threads::SchedStat;
use crate::python::discover::Interpreter;
use crate::python::frames::PythonStack;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// State of a thread that the tracer and the worker share.
#[derive(Debug, Default)]
pub(super) struct ThreadShared {
    /// The root ends of its stacks.
    pub(super) roots: Roots,
    /// Time slice count (schedstat) of the sleep in which unwinding lacked a register that only a
    /// stop can give. 0: none.
    pub(super) registers_wanted: AtomicU64,
    /// Time slice count of the sleep in which the copied stack did not reach its root. 0: none.
    pub(super) stack_wanted: AtomicU64,
    /// Further memory that is read with each capture.
    pub(super) watched: Watched,
    /// What the stack of its last sleep was found in, where the tracer has asked for it.
    pub(super) footprint: SleepFootprint,
}

/// The memory that the stack of a sleep was found in, and the number of that sleep. The worker
/// publishes it; the tracer need not read the stack again where it is found unchanged.
#[derive(Debug, Default)]
pub(super) struct SleepFootprint(Mutex<Option<(u64, Footprint)>>);

impl SleepFootprint {
    /// Publishes what the stack of this sleep was found in.
    pub(super) fn set(&self, sleep: u64, mut footprint: Footprint) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, earlier)) = &*known {
            footprint.leave_out_changing(earlier);
        }
        *known = footprint.seal_stack().then_some((sleep, footprint));
    }

    /// Whether the stack of that sleep was found in what is in memory now. `None` if it is not
    /// known, or not yet.
    pub(super) fn is_unchanged(&self, sleep: u64, memory: &ResidentMemory) -> Option<bool> {
        match self.0.try_lock().ok()?.as_mut() {
            Some((of, footprint)) if *of == sleep => footprint.is_unchanged(memory),
            _ => None,
        }
    }
}

/// Most stack that is copied of a thread that is not known to use more, bytes.
const USUAL_STACK_BYTES: usize = 1 << 20;
/// Most stack that is ever copied, bytes; that takes about 3 ms of a stop. Deeper stacks are
/// truncated and marked. It is the default limit of a main thread's stack (`ulimit -s`), and of
/// others.
pub(super) const MAX_STACK_BYTES: usize = 8 << 20;
/// Marks a root that is further away than was copied.
const DEEPER: u64 = u64::MAX;

/// The highest addresses that unwinding needed of a thread's stack, and of another stack that it
/// uses at times: a fiber's, or an alternate signal stack. 0: not known. The worker publishes them,
/// the tracer copies up to them.
#[derive(Debug, Default)]
pub(super) struct Roots {
    of: [AtomicU64; 2],
    /// [`USUAL_STACK_BYTES`] was not enough.
    is_deep: AtomicBool,
}

/// How much of a stack to copy, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Up to the known root.
    Known(usize),
    /// The root is not known: the default of a first capture.
    Unknown,
    /// A first capture was not enough.
    Deeper(usize),
}

impl Roots {
    /// How much to copy of the stack from `stack_pointer` on.
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

    /// Largest distance between a stack pointer and the root of its stack. An address further away
    /// belongs to another stack.
    pub(super) fn reach(&self) -> u64 {
        match self.is_deep() {
            false => USUAL_STACK_BYTES as u64,
            true => MAX_STACK_BYTES as u64,
        }
    }

    /// Whether the thread has used more than [`USUAL_STACK_BYTES`].
    pub(super) fn is_deep(&self) -> bool {
        self.is_deep.load(Ordering::Relaxed)
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.of[0].load(Ordering::Relaxed) == 0
    }

    /// Records that unwinding needed the stack up to `root`.
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

    /// Records that unwinding needed more than was copied. Returns whether that is new.
    pub(super) fn deepen(&self) -> bool {
        let is_new = self.of[0].swap(DEEPER, Ordering::Relaxed) != DEEPER;
        is_new || !self.is_deep.swap(true, Ordering::Relaxed)
    }

    /// Forgets all roots after an exec.
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
    /// What is recorded of it; the worker adds its stack.
    pub(super) recorded: Sample,
    pub(super) process: ProcessId,
    pub(super) shared: Arc<ThreadShared>,
    /// Time slices of the thread so far (schedstat).
    pub(super) slices: u64,
    /// Number of the sleep whose footprint is asked for; 0 if it is not.
    pub(super) sleep: u64,
    /// When watched memory was read, CLOCK_MONOTONIC; 0 if none was.
    pub(super) read_ns: u64,
    /// Address of its Python thread state; 0 if it has none.
    pub(super) python_state: u64,
    /// All registers if it was stopped, two if it slept, none if native frames are not read.
    pub(super) registers: Option<Registers>,
    /// Copied memory: native stack and Python state.
    pub(super) snapshot: SnapshotMemory,
    /// Python frames, leaf first, as addresses.
    pub(super) python: PythonStack,
    /// Copied code objects of those frames.
    pub(super) codes: SnapshotMemory,
    /// When it was captured, CLOCK_MONOTONIC, if the interpreter was not known then; else 0.
    pub(super) python_pending_ns: u64,
    /// Why the Python frames are truncated, if they are.
    pub(super) python_partial: Option<Partial>,
    /// Why the capture failed, if it did.
    pub(super) failure: Option<Partial>,
}

impl RawSample {
    /// A capture of which nothing was read yet.
    pub(super) fn new(
        recorded: Sample,
        process: ProcessId,
        shared: Arc<ThreadShared>,
        slices: u64,
    ) -> Self {
        Self {
            recorded,
            process,
            shared,
            slices,
            sleep: 0,
            read_ns: 0,
            python_state: 0,
            registers: None,
            snapshot: SnapshotMemory::default(),
            python: PythonStack::default(),
            codes: SnapshotMemory::default(),
            python_pending_ns: 0,
            python_partial: None,
            failure: None,
        }
    }
}

/// A Python stack with resolved names, from the fallback for Pythons older than 3.10.
#[derive(Debug)]
pub(super) struct NamedStack {
    /// Function, file and line, leaf first.
    pub(super) frames: Vec<(String, String, u32)>,
    pub(super) version: PythonVersion,
    pub(super) gil: Gil,
    /// The thread's schedstat when the stack was read.
    pub(super) scheduled: SchedStat,
    pub(super) state: ThreadState,
    /// Number of the system call that it was in.
    pub(super) syscall: Option<u32>,
}

/// From the tracer to the worker, in order.
#[derive(Debug)]
pub(super) enum Message {
    /// A new process, or changed facts about a known one. Ids count up from 0.
    Process(ProcessId, Box<ProcessInfo>),
    /// The process has called exec, or its interpreter was found: caches about it are invalid.
    Image(ProcessId, Option<Arc<Interpreter>>),
    /// A new thread, or changed facts about a known one. Ids count up from 0.
    Thread(ThreadId, Box<ThreadInfo>),
    /// A fresh capture.
    Sample(Box<RawSample>),
    /// A stack of the fallback, without native frames.
    Named(Sample, Box<NamedStack>),
    /// Time in which the thread kept the stack of its last capture (`None`), or was not captured.
    Span(Sample, Option<Partial>),
    /// The thread has exited: its last stack is not needed any more.
    ThreadGone(ThreadId),
    ProcessGone(ProcessId),
    /// The process is not sampled any more, because of its rank; with the note that says so.
    LeftOut(ProcessId, String),
    /// The end of a segment: write it, with what the worker has.
    Flush(Box<Segment>),
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
