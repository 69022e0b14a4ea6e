//! A thread's Python frames, leaf first, in one run per native evaluation.
//!
//! `_PyEval_EvalFrameDefault` runs one or more Python frames. Each of its activations leaves a mark
//! on the C stack: a `CFrame` in 3.10 to 3.12, and the shim frame below its first Python frame from
//! 3.12 on. The mark's address shows which native frame a run of Python frames belongs to, without
//! any symbol.

mod chains;

use super::discover::Interpreter;
use super::layout::FrameChain;
use super::objects::u64_at;
use crate::memory::{Memory, ReadError};
use chains::Walk;

/// Maximum number of frames per thread. CPython's own limit is 1,000 by default. A stop that reads
/// so many takes some 3 ms.
pub const MAX_FRAMES: usize = 32_768;
/// How often the stack of a running thread is read until it is whole. One read takes microseconds,
/// and is torn where a call returns within it.
const ATTEMPTS: usize = 16;
/// Maximum number of frames whose buffers are kept for the next stack.
const KEPT_FRAMES: usize = 8192;
/// Maximum bytes of a data-stack chunk that are copied in advance (a chunk has 16 KiB unless a
/// frame is larger).
const MAX_CHUNK: u64 = 1 << 20;

/// A Python frame as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonFrame {
    /// Its `_PyInterpreterFrame`, or its `PyFrameObject` in 3.10.
    pub frame_address: u64,
    pub code_address: u64,
    /// Byte offset of the last started instruction from the start of the bytecode;
    /// [`NO_INSTRUCTION`](crate::model::frame::Frame::NO_INSTRUCTION) if the frame has not started.
    pub instruction: u32,
    /// The object in its first local variable, a method's `self`; 0 if it has none. A variable that
    /// an inner function uses is a cell.
    pub first_local: u64,
}

/// The Python frames of one native evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonRun {
    /// An address within the evaluation's own part of the C stack, if one is known.
    pub stack_address: Option<u64>,
    /// Index of its first frame in [`PythonStack::frames`].
    pub first: u32,
    /// Number of its frames; 0 if the evaluation has just begun or is about to end.
    pub length: u32,
}

impl PythonRun {
    /// Its frames' indices in [`PythonStack::frames`].
    pub fn range(&self) -> std::ops::Range<usize> {
        let first = self.first as usize;
        first..first.saturating_add(self.length as usize)
    }
}

/// A thread's Python frames. Its buffers are reused for the next stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PythonStack {
    /// Leaf first.
    pub frames: Vec<PythonFrame>,
    /// Leaf first; together they cover all frames.
    pub runs: Vec<PythonRun>,
    /// 3.10: the evaluation of the leaf is about to end and has unlinked its `CFrame`, which points
    /// to the one at this address. The first run then has no `stack_address`.
    pub ending_inside: Option<u64>,
    /// 3.11 and 3.12: the `CFrame` of the leaf's evaluation led to no frames. Unless the evaluation
    /// has just begun, its frames are missing.
    pub leaf_is_unfilled: bool,
    /// 3.10: addresses of `CFrame`s, before they are matched with frames.
    evaluations: Vec<u64>,
    /// Frames whose instruction is in a thread's own copy of the bytecode, until those are found.
    copied: Vec<CopiedFrame>,
}

/// A frame that runs a thread's own copy of its code's bytecode (free-threaded, 3.14 on).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CopiedFrame {
    /// Its index in [`PythonStack::frames`].
    frame: usize,
    code: u64,
    /// Which copy it is.
    copy: u32,
    /// Address of the instruction.
    instruction: u64,
}

impl PythonStack {
    /// Clears the frames, and keeps the buffers.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.runs.clear();
        self.ending_inside = None;
        self.leaf_is_unfilled = false;
        self.evaluations.clear();
        self.copied.clear();
        if self.frames.capacity() > KEPT_FRAMES {
            self.frames.shrink_to(KEPT_FRAMES);
            self.runs.shrink_to(KEPT_FRAMES);
            self.evaluations.shrink_to(KEPT_FRAMES);
            self.copied.shrink_to(KEPT_FRAMES);
        }
    }

    /// Inserts the runs of another interpreter's thread state between those of this one, by their
    /// addresses on the common stack. Returns whether the other's is at the leaf now.
    pub fn join(&mut self, other: &PythonStack) -> bool {
        let own = self.runs.iter().map(|run| (run, &self.frames, false));
        let others = other.runs.iter().map(|run| (run, &other.frames, true));
        let mut runs: Vec<_> = own.chain(others).collect();
        runs.sort_by_key(|(run, ..)| run.stack_address.unwrap_or(u64::MAX));
        let is_leaf = runs.first().is_some_and(|&(_, _, is_other)| is_other);
        let mut joined = PythonStack {
            leaf_is_unfilled: self.leaf_is_unfilled || other.leaf_is_unfilled,
            ..PythonStack::default()
        };
        for (run, frames, _) in runs {
            let frames = frames.get(run.range()).unwrap_or_default();
            joined.frames.extend_from_slice(frames);
            joined.end_run(run.stack_address);
        }
        *self = joined;
        is_leaf
    }

    /// Drops the runs at the leaf whose evaluations lie below `stack_pointer`: they began after the
    /// thread had that stack pointer.
    pub fn drop_runs_below(&mut self, stack_pointer: u64) {
        let began_later = |run: &&PythonRun| {
            run.stack_address
                .is_some_and(|address| address < stack_pointer)
        };
        let count = self.runs.iter().take_while(began_later).count();
        let frames = self.runs[..count].last().map_or(0, |run| run.range().end);
        self.leaf_is_unfilled &= count == 0;
        self.runs.drain(..count);
        self.frames.drain(..frames.min(self.frames.len()));
        for run in &mut self.runs {
            run.first -= frames as u32;
        }
    }

    /// Keeps this many frames, from the root on.
    pub fn keep_root(&mut self, count: usize) {
        let dropped = self.frames.len().saturating_sub(count);
        self.frames.drain(..dropped);
        self.runs.retain_mut(|run| {
            let range = run.range();
            run.first = range.start.saturating_sub(dropped) as u32;
            run.length = range.end.saturating_sub(dropped.max(range.start)) as u32;
            run.length > 0
        });
    }

    /// Address of the innermost evaluation; `u64::MAX` if it is not known.
    pub fn innermost(&self) -> u64 {
        let first = self.runs.first();
        first.and_then(|run| run.stack_address).unwrap_or(u64::MAX)
    }

    /// Ends the run of the frames that no run covers yet.
    fn end_run(&mut self, stack_address: Option<u64>) {
        let first = self.runs.last().map_or(0, |run| run.range().end);
        self.runs.push(PythonRun {
            stack_address,
            first: first as u32,
            length: (self.frames.len() - first) as u32,
        });
    }

    /// Ends the root's run, if it has any frame.
    fn end_last_run(&mut self) {
        if self.runs.last().map_or(0, |run| run.range().end) < self.frames.len() {
            self.end_run(None);
        }
    }
}

/// Why a stack was not read to its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A frame leads back to one nearer to the leaf.
    #[error("the frames run in a circle")]
    Cycle,
    /// The chain ends at the frame of a suspended generator: it belongs to an evaluation that has
    /// ended.
    #[error("the frames end at a suspended generator's, {0:#x}")]
    Suspended(u64),
    /// More than [`MAX_FRAMES`].
    #[error("more frames than are followed")]
    TooDeep,
    /// There is no frame at this address.
    #[error("no frame at {0:#x}")]
    Invalid(u64),
}

/// Address and length of the bytes of a thread state that [`read_stack`] and [`data_stack_range`]
/// need.
pub fn state_range(interpreter: &Interpreter, state_address: u64) -> (u64, usize) {
    (state_address, interpreter.layout.thread_head() as usize)
}

/// Address and length of the used part of the thread's current data-stack chunk. From 3.11 on most
/// of a thread's frames are there; copied together with the thread state, they are usually all that
/// [`read_stack`] needs.
pub fn data_stack_range(
    interpreter: &Interpreter,
    state_address: u64,
    memory: &dyn Memory,
) -> Option<(u64, usize)> {
    let offset = interpreter.layout.thread.datastack_chunk?;
    // struct _ts: _PyStackChunk *datastack_chunk; PyObject **datastack_top; …
    let mut fields = [0; 16];
    memory
        .read_exact(state_address.wrapping_add(offset.into()), &mut fields)
        .ok()?;
    let (chunk, top) = (u64_at(&fields, 0), u64_at(&fields, 8));
    let used = top
        .checked_sub(chunk)
        .filter(|&used| chunk != 0 && used <= MAX_CHUNK)?;
    Some((chunk, usize::try_from(used).ok()?))
}

/// Whether a frame that was read runs the same code in two memories, and was called by the same
/// frame.
pub fn lasts(
    interpreter: &Interpreter,
    frame: &PythonFrame,
    memory: &dyn Memory,
    other: &dyn Memory,
) -> bool {
    let links = |memory| Walk::new(interpreter, memory).links(frame);
    links(memory).is_some_and(|here| here.0 == frame.code_address && links(other) == Some(here))
}

/// The frame at `address`, whatever called it: that of a generator or a coroutine, for example.
///
/// # Errors
/// [`FrameError`].
pub fn read_frame(
    interpreter: &Interpreter,
    address: u64,
    memory: &dyn Memory,
) -> Result<PythonFrame, FrameError> {
    Walk::new(interpreter, memory).single(address)
}

/// Address and length of what [`lasts`] needs of a frame.
pub fn frame_range(interpreter: &Interpreter, frame: &PythonFrame) -> (u64, usize) {
    (frame.frame_address, interpreter.layout.frame.head as usize)
}

/// Reads the frames of the thread whose `PyThreadState` is at `state_address` into `out`, which is
/// cleared first. Shim frames are omitted. The thread should not run at the same time; if it does,
/// the result may be wrong, but there is no panic or hang.
///
/// # Errors
/// [`FrameError`]; `out` then holds what was read before, leaf first.
pub fn read_stack(
    interpreter: &Interpreter,
    state_address: u64,
    memory: &dyn Memory,
    out: &mut PythonStack,
) -> Result<(), FrameError> {
    out.clear();
    let walk = Walk::new(interpreter, memory);
    let result = match &interpreter.layout.chain {
        FrameChain::Objects { frame, cframe } => walk.objects(state_address, *frame, cframe, out),
        FrameChain::Entries(cframe) => walk.behind_cframe(state_address, cframe, true, out),
        FrameChain::ShimsBehindCFrame(cframe) => {
            walk.behind_cframe(state_address, cframe, false, out)
        }
        FrameChain::Shims {
            current_frame,
            base_frame,
        } => walk.current_frames(state_address, *current_frame, *base_frame, out),
    };
    out.end_last_run();
    result
}

/// [`read_stack`] of a thread that runs at the same time: again until the frames lead to the root,
/// some times at most. Frames near the leaf may have ended meanwhile.
///
/// # Errors
/// [`FrameError`]; `out` then holds the most frames that a read found.
pub fn read_running_stack(
    interpreter: &Interpreter,
    state_address: u64,
    memory: &dyn Memory,
    out: &mut PythonStack,
) -> Result<(), FrameError> {
    let rank = |result: &Result<_, _>, stack: &PythonStack| {
        (result.is_ok(), !stack.leaf_is_unfilled, stack.frames.len())
    };
    let mut result = read_stack(interpreter, state_address, memory, out);
    for _ in 1..ATTEMPTS {
        let is_whole = matches!(rank(&result, out), (true, true, _));
        // Not torn, and long to read.
        let is_too_deep = result == Err(FrameError::TooDeep);
        if is_whole || is_too_deep {
            break;
        }
        let mut stack = PythonStack::default();
        let again = read_stack(interpreter, state_address, memory, &mut stack);
        if rank(&again, &stack) > rank(&result, out) {
            (result, *out) = (again, stack);
        }
    }
    result
}
