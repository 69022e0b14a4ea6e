//! A thread's Python frames, leaf first, in one run per native evaluation.
//!
//! `_PyEval_EvalFrameDefault` runs one or more Python frames. Each of its activations leaves a mark on the C stack: a
//! `CFrame` in 3.10 to 3.12, and the shim frame below its first Python frame from 3.12 on. The mark's address tells
//! which native frame a run of Python frames belongs to, without any symbol.

use super::discover::Interpreter;
use super::layout::{FrameChain, Layout, MAX_FRAME};
use super::objects::{u32_at, u64_at};
use crate::memory::{Memory, ReadError};
use crate::model::frame::Frame;

/// The most frames of one thread that are read. CPython's own limit is 1,000 by default.
pub const MAX_FRAMES: usize = 4096;
/// The most bytes of a data-stack chunk that are worth copying ahead (one is 16 KiB unless a frame is larger).
const MAX_CHUNK: u64 = 1 << 20;
/// An instruction offset past which no bytecode goes: one line table entry a code unit would be larger than is read.
const MAX_INSTRUCTION: u64 = 1 << 28;
/// `FRAME_OWNED_BY_CSTACK` of 3.12 and 3.13, `FRAME_OWNED_BY_INTERPRETER` from 3.14 on: an evaluation's shim.
const OWNED_BY_EVALUATION: u8 = 3;
/// `FRAME_OWNED_BY_CSTACK` of 3.14.
const OWNED_BY_C_STACK: u8 = 4;

/// A Python frame as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonFrame {
    /// Its `_PyInterpreterFrame`, or its `PyFrameObject` in 3.10.
    pub frame_address: u64,
    /// Its code object.
    pub code_address: u64,
    /// Byte offset of the last started instruction from the start of the bytecode; [`Frame::NO_INSTRUCTION`] where the
    /// frame has not started.
    pub instruction: u32,
}

/// The Python frames of one native evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonRun {
    /// An address within the evaluation's own part of the C stack, where one is known.
    pub stack_address: Option<u64>,
    /// Where its frames begin in [`PythonStack::frames`].
    pub first: u32,
    /// How many they are. None, where the evaluation has just begun or is about to end.
    pub length: u32,
}

impl PythonRun {
    /// Its frames' indices in [`PythonStack::frames`].
    pub fn range(&self) -> std::ops::Range<usize> {
        let first = self.first as usize;
        first..first.saturating_add(self.length as usize)
    }
}

/// A thread's Python frames. Its buffers are kept from stack to stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PythonStack {
    /// Leaf first.
    pub frames: Vec<PythonFrame>,
    /// Leaf first; together they cover all frames.
    pub runs: Vec<PythonRun>,
    /// 3.10: addresses of `CFrame`s, before they are matched with frames.
    evaluations: Vec<u64>,
}

impl PythonStack {
    /// Forgets what was read, and keeps the buffers.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.runs.clear();
        self.evaluations.clear();
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

    /// Ends the root's run, if any frame is left for it.
    fn end_last_run(&mut self) {
        if self.runs.last().map_or(0, |run| run.range().end) < self.frames.len() {
            self.end_run(None);
        }
    }
}

/// Why a stack was not read to its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A frame could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A frame leads back to one nearer to the leaf.
    #[error("the frames run in a circle")]
    Cycle,
    /// More than [`MAX_FRAMES`].
    #[error("more frames than are followed")]
    TooDeep,
    /// What lies at this address is no frame.
    #[error("no frame at {0:#x}")]
    Invalid(u64),
}

/// Where a thread state's bytes lie that [`read_stack`] and [`data_stack_range`] need: address and length.
pub fn state_range(interpreter: &Interpreter, state_address: u64) -> (u64, usize) {
    (state_address, interpreter.layout.thread_head() as usize)
}

/// The part of the thread's current data-stack chunk that is in use: address and length. From 3.11 on most of a
/// thread's frames lie there; copied together with the thread state, they are usually all that [`read_stack`] needs.
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

/// Reads the frames of the thread whose `PyThreadState` is at `state_address` into `out`, which is cleared first. Shim
/// frames are left out. The thread should not run meanwhile; if it does, anything may come of it but a panic or a hang.
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
    let walk = Walk {
        layout: &interpreter.layout,
        none: interpreter.none,
        memory,
    };
    let result = match interpreter.layout.chain {
        FrameChain::Objects {
            frame,
            cframe,
            cframe_previous,
        } => walk.objects(state_address, frame, cframe, cframe_previous, out),
        FrameChain::Entries {
            cframe,
            cframe_current_frame,
            cframe_previous,
        }
        | FrameChain::ShimsBehindCFrame {
            cframe,
            cframe_current_frame,
            cframe_previous,
        } => walk.behind_cframe(
            state_address,
            cframe,
            cframe_current_frame,
            cframe_previous,
            out,
        ),
        FrameChain::Shims {
            current_frame,
            base_frame,
        } => walk.from_state(state_address, current_frame, base_frame, out),
    };
    out.end_last_run();
    result
}

/// One frame's own fields.
struct FrameHead {
    previous: u64,
    code: u64,
    function: Option<u64>,
    instruction: u64,
    owner: u8,
}

struct Walk<'a> {
    layout: &'a Layout,
    none: Option<u64>,
    memory: &'a dyn Memory,
}

impl Walk<'_> {
    fn pointer(&self, base: u64, offset: u32) -> Result<u64, FrameError> {
        Ok(self.memory.read_u64(base.wrapping_add(offset.into()))?)
    }

    fn head(&self, address: u64) -> Result<FrameHead, FrameError> {
        let frame = &self.layout.frame;
        let mut buffer = [0; MAX_FRAME as usize];
        let head = buffer
            .get_mut(..frame.head as usize)
            .ok_or(FrameError::Invalid(address))?;
        if !address.is_multiple_of(8) {
            return Err(FrameError::Invalid(address));
        }
        self.memory.read_exact(address, head)?;
        let pointer = |offset| u64_at(head, offset) & !frame.tag_mask;
        Ok(FrameHead {
            previous: u64_at(head, frame.previous),
            code: pointer(frame.code),
            function: frame.function.map(pointer),
            instruction: u64_at(head, frame.instruction & !7),
            owner: head.get(frame.owner as usize).copied().unwrap_or(0),
        })
    }

    /// 3.13 on.
    fn from_state(
        &self,
        state: u64,
        current_frame: u32,
        base_frame: Option<u32>,
        out: &mut PythonStack,
    ) -> Result<(), FrameError> {
        let base = match base_frame {
            Some(offset) => self.pointer(state, offset)?,
            None => 0,
        };
        let first = self.pointer(state, current_frame)?;
        self.shims(first, base, out)
    }

    /// 3.11 and 3.12.
    fn behind_cframe(
        &self,
        state: u64,
        cframe: u32,
        current_frame: u32,
        previous: u32,
        out: &mut PythonStack,
    ) -> Result<(), FrameError> {
        let entries = matches!(self.layout.chain, FrameChain::Entries { .. });
        let leaf = self.pointer(state, cframe)?;
        let outer = self.pointer(leaf, previous)?;
        let first = self.pointer(leaf, current_frame)?;
        let walk = |cframe, frame, out: &mut PythonStack| match entries {
            true => self.entries(cframe, frame, current_frame, previous, out),
            false => self.shims(frame, 0, out),
        };
        let result = walk(leaf, first, out);
        if result.is_ok() || !out.runs.is_empty() || outer == 0 {
            return result;
        }
        // An evaluation links its CFrame before it says which frame is current (Python/ceval.c): for a few instructions
        // the field holds whatever lay there. The frames below are then those of the evaluation outside of it.
        let mut frames = PythonStack::default();
        let first = self.pointer(outer, current_frame)?;
        if walk(outer, first, &mut frames).is_err() {
            return result;
        }
        out.clear();
        out.end_run(Some(leaf));
        out.frames.append(&mut frames.frames);
        out.runs.append(&mut frames.runs);
        Ok(())
    }

    /// 3.12 on: a run ends at a shim, which lies on the C stack itself. 3.15 ends the chain with a `base` frame, which
    /// does not.
    fn shims(&self, first: u64, base: u64, out: &mut PythonStack) -> Result<(), FrameError> {
        let mut frame = first;
        let mut steps = Steps::default();
        while frame != 0 && frame != base {
            steps.step(frame)?;
            let head = self.head(frame)?;
            match head.owner {
                OWNED_BY_EVALUATION => out.end_run(Some(frame)),
                OWNED_BY_C_STACK => {}
                owner if owner > OWNED_BY_C_STACK => return Err(FrameError::Invalid(frame)),
                // `__init__` called without leaving the evaluation (3.13 on) stands on a trampoline frame whose
                // function is None (_PyFrame_PushTrampolineUnchecked); no Python tool shows it.
                _ if self.none.is_some()
                    && (head.function == self.none || self.none == Some(head.code)) => {}
                _ => out.frames.push(self.python_frame(frame, &head)?),
            }
            frame = head.previous;
        }
        Ok(())
    }

    /// 3.11: a run ends at a frame with `is_entry`, and belongs to the next CFrame.
    fn entries(
        &self,
        leaf: u64,
        first: u64,
        current_frame: u32,
        cframe_previous: u32,
        out: &mut PythonStack,
    ) -> Result<(), FrameError> {
        let mut cframe = Some(leaf);
        let mut frame = first;
        let mut steps = Steps::default();
        while frame != 0 {
            steps.step(frame)?;
            let head = self.head(frame)?;
            if head.owner > 1 {
                return Err(FrameError::Invalid(frame));
            }
            out.frames.push(self.python_frame(frame, &head)?);
            if head.owner == 1 {
                out.end_run(cframe);
                // Where the two chains part (a coroutine library switched stacks), frames go on without an address.
                cframe = match cframe {
                    Some(inner) => {
                        let outer = self.pointer(inner, cframe_previous)?;
                        let current = if outer == 0 {
                            0
                        } else {
                            self.pointer(outer, current_frame)?
                        };
                        (current != 0 && current == head.previous).then_some(outer)
                    }
                    None => None,
                };
            }
            frame = head.previous;
        }
        Ok(())
    }

    /// 3.10: every frame is a run, and the CFrames are counted off against the frames.
    fn objects(
        &self,
        state: u64,
        first: u32,
        cframe: u32,
        cframe_previous: u32,
        out: &mut PythonStack,
    ) -> Result<(), FrameError> {
        let chain = self.cframes(
            self.pointer(state, cframe)?,
            cframe_previous,
            &mut out.evaluations,
        );
        let mut frame = self.pointer(state, first)?;
        let mut steps = Steps::default();
        let mut walked = Ok(());
        while frame != 0 {
            walked = steps.step(frame);
            let head = match walked.and_then(|()| self.head(frame)) {
                Ok(head) => head,
                Err(error) => {
                    walked = Err(error);
                    break;
                }
            };
            let instruction = u32_at(
                &head.instruction.to_le_bytes(),
                self.layout.frame.instruction % 8,
            ) as i32;
            let bytes = u32::try_from(instruction)
                .ok()
                .and_then(|units| units.checked_mul(2));
            if head.code == 0 {
                walked = Err(FrameError::Invalid(frame));
                break;
            }
            out.frames.push(PythonFrame {
                frame_address: frame,
                code_address: head.code,
                instruction: bytes.unwrap_or(Frame::NO_INSTRUCTION),
            });
            frame = head.previous;
        }
        let (frames, evaluations) = (out.frames.len(), out.evaluations.len());
        // An evaluation links its CFrame a moment before its frame.
        let early = usize::from(evaluations == frames + 1);
        let matched = chain.is_ok() && walked.is_ok() && evaluations == frames + early;
        for index in 0..frames + early {
            let stack_address = out.evaluations.get(index).copied().filter(|_| matched);
            out.runs.push(PythonRun {
                stack_address,
                first: index.saturating_sub(early) as u32,
                length: u32::from(index >= early),
            });
        }
        walked.and(chain)
    }

    /// The CFrames on the C stack; the last of the chain lies in the thread state and is left out.
    fn cframes(
        &self,
        first: u64,
        previous: u32,
        evaluations: &mut Vec<u64>,
    ) -> Result<(), FrameError> {
        let mut cframe = first;
        let mut steps = Steps::default();
        while cframe != 0 {
            steps.step(cframe)?;
            let outer = self.pointer(cframe, previous)?;
            if outer != 0 {
                evaluations.push(cframe);
            }
            cframe = outer;
        }
        Ok(())
    }

    fn python_frame(&self, frame: u64, head: &FrameHead) -> Result<PythonFrame, FrameError> {
        if head.code == 0 || !head.code.is_multiple_of(8) {
            return Err(FrameError::Invalid(frame));
        }
        let bytecode = head.code.wrapping_add(self.layout.code.bytecode.into());
        // A new frame points one unit before its code (3.11 and 3.12).
        let instruction = match head.instruction.checked_sub(bytecode) {
            Some(offset) => {
                u32::try_from(offset.min(MAX_INSTRUCTION)).unwrap_or(Frame::NO_INSTRUCTION)
            }
            None => Frame::NO_INSTRUCTION,
        };
        Ok(PythonFrame {
            frame_address: frame,
            code_address: head.code,
            instruction,
        })
    }
}

/// Bounds a chain and notices a circle in it, without memory (Brent's algorithm).
#[derive(Default)]
struct Steps {
    count: usize,
    mark: u64,
}

impl Steps {
    fn step(&mut self, address: u64) -> Result<(), FrameError> {
        if self.count >= MAX_FRAMES {
            return Err(FrameError::TooDeep);
        }
        if self.count > 0 && address == self.mark {
            return Err(FrameError::Cycle);
        }
        self.count += 1;
        if self.count.is_power_of_two() {
            self.mark = address;
        }
        Ok(())
    }
}
