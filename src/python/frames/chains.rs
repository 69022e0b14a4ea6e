//! The chains of frames, with one traversal for each way that CPython has linked them.

use super::{CopiedFrame, FrameError, MAX_FRAMES, PythonFrame, PythonRun, PythonStack};
use crate::memory::{Memory, ReadRequest};
use crate::model::frame::Frame;
use crate::python::discover::Interpreter;
use crate::python::layout::{CFrameLayout, FrameChain, Layout, MAX_FRAME};
use crate::python::objects::{u32_at, u64_at};

/// No bytecode is this long: a pointer beyond it is invalid, and gets this offset, for which no
/// line table has a line.
const MAX_INSTRUCTION: u64 = 1 << 28;
/// `FRAME_OWNED_BY_CSTACK` of 3.12 and 3.13, `FRAME_OWNED_BY_INTERPRETER` from 3.14 on: an
/// evaluation's shim.
const OWNED_BY_EVALUATION: u8 = 3;
/// `FRAME_OWNED_BY_GENERATOR` of 3.11 on.
const OWNED_BY_GENERATOR: u8 = 1;
/// LOAD_CONST and YIELD_FROM of 3.10 (Include/opcode.h).
const DELEGATES: (u8, u8) = (100, 72);
/// Offset of the bytes of a bytes object (`PyBytesObject.ob_sval`).
const BYTES_DATA: u64 = 32;
/// `FRAME_OWNED_BY_CSTACK` of 3.14.
const OWNED_BY_C_STACK: u8 = 4;

/// One frame's own fields.
struct FrameHead {
    previous: u64,
    code: u64,
    function: Option<u64>,
    /// The eight bytes around it if it is an int.
    instruction: u64,
    first_local: u64,
    owner: u8,
    /// 3.11: `owner`, after `is_entry`.
    kind: u8,
    /// Which of the code's copies it runs; 0 is the code's own.
    copy: u32,
}

/// The inputs of every traversal.
pub(super) struct Walk<'a> {
    layout: &'a Layout,
    none: Option<u64>,
    memory: &'a dyn Memory,
}

impl<'a> Walk<'a> {
    pub(super) fn new(interpreter: &'a Interpreter, memory: &'a dyn Memory) -> Self {
        Self {
            layout: &interpreter.layout,
            none: interpreter.none,
            memory,
        }
    }

    /// The code that the frame at this address runs, and the frame that called it.
    pub(super) fn links(&self, frame: &PythonFrame) -> Option<(u64, u64)> {
        let head = self.head(frame.frame_address).ok()?;
        Some((head.code, head.previous))
    }

    /// The frame at this address alone.
    pub(super) fn single(&self, address: u64) -> Result<PythonFrame, FrameError> {
        let mut out = PythonStack::default();
        let head = self.head(address)?;
        self.push(address, &head, &mut out);
        self.find_copies(&mut out);
        out.frames.pop().ok_or(FrameError::Invalid(address))
    }

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
        let code = pointer(frame.code);
        if code == 0 || !code.is_multiple_of(8) {
            return Err(FrameError::Invalid(address));
        }
        Ok(FrameHead {
            previous: u64_at(head, frame.previous),
            code,
            function: frame.function.map(pointer),
            instruction: u64_at(head, frame.instruction & !7),
            first_local: pointer(frame.localsplus),
            owner: head.get(frame.owner as usize).copied().unwrap_or(0),
            kind: head.get(frame.owner as usize + 1).copied().unwrap_or(0),
            copy: frame.copy.map_or(0, |offset| u32_at(head, offset)),
        })
    }

    /// 3.13 on.
    pub(super) fn current_frames(
        &self,
        state: u64,
        current_frame: u32,
        base_frame: Option<u32>,
        out: &mut PythonStack,
    ) -> Result<(), FrameError> {
        let base = base_frame.map_or(Ok(0), |offset| self.pointer(state, offset))?;
        let first = self.pointer(state, current_frame)?;
        let result = self.shims(first, base, &mut None, out);
        self.find_copies(out);
        result
    }

    /// 3.11 (whose frames are `entries`) and 3.12.
    pub(super) fn behind_cframe(
        &self,
        state: u64,
        cframe: &CFrameLayout,
        entries: bool,
        out: &mut PythonStack,
    ) -> Result<(), FrameError> {
        let root = state.wrapping_add(cframe.root.into());
        let walk = |from: u64, caller: &mut Option<u64>, out: &mut PythonStack| {
            let first = self.pointer(from, cframe.current_frame)?;
            match entries {
                true => self.entries((from, root), first, cframe, caller, out),
                false => self.shims(first, 0, caller, out),
            }
        };
        let leaf = self.pointer(state, cframe.leaf)?;
        let mut caller = None;
        let result = walk(leaf, &mut caller, out);
        if leaf == root {
            return result;
        }
        let outer = self.pointer(leaf, cframe.previous)?;
        let called_by = self.pointer(outer, cframe.current_frame).ok();
        let is_complete = match result {
            Ok(()) => caller.is_some() && caller == called_by,
            Err(FrameError::Suspended(_)) => false,
            // Memory that cannot be read: what is nearer to the leaf is kept.
            Err(FrameError::Read(_)) => !out.frames.is_empty(),
            Err(_) => caller.is_some(),
        };
        if is_complete {
            return result;
        }
        // An evaluation links its CFrame before it fills it in (Python/ceval.c): for a few
        // instructions, 18 as gcc builds 3.12, its fields have stale values: null, or a frame of an
        // evaluation that has ended, whose run does not end where the next outer evaluation is. The
        // frames are then those of the outer one. Later, an evaluation may link a new frame before
        // that frame's own link: for 9 instructions as gcc builds CALL of 3.11. Only where the
        // thread is in its code tells one from the other.
        let mut below = PythonStack::default();
        below.end_run(Some(leaf));
        // A generator that C code runs outside of all other Python also ends the chain: it is kept,
        // with the error.
        let is_read = walk(outer, &mut None, &mut below).is_ok();
        let is_first = result.is_ok() && outer == root;
        if is_read && (is_first || !below.frames.is_empty()) {
            *out = below;
            out.leaf_is_unfilled = true;
            return Ok(());
        }
        // The outward pointer was not filled in yet either: the frames cannot be found.
        result.and(Err(FrameError::Invalid(leaf)))
    }

    /// 3.12 on: a run ends at a shim, which is on the C stack itself. 3.15 ends the chain with a
    /// `base` frame, which is not. `caller` is set to what the first shim leads to.
    fn shims(
        &self,
        first: u64,
        base: u64,
        caller: &mut Option<u64>,
        out: &mut PythonStack,
    ) -> Result<(), FrameError> {
        let mut frame = first;
        let mut steps = Steps::default();
        while frame != 0 && frame != base {
            steps.step(frame)?;
            let head = self.head(frame)?;
            match head.owner {
                OWNED_BY_EVALUATION => {
                    caller.get_or_insert(head.previous);
                    out.end_run(Some(frame));
                }
                OWNED_BY_C_STACK => {}
                owner if owner > OWNED_BY_C_STACK => return Err(FrameError::Invalid(frame)),
                _ if self.is_trampoline(&head) => {}
                _ => self.push(frame, &head, out),
            }
            is_running(frame, head.owner == OWNED_BY_GENERATOR, head.previous)?;
            frame = head.previous;
        }
        Ok(())
    }

    /// `__init__` called without leaving the evaluation (3.13 on) is called by a frame whose
    /// function is None (`_PyFrame_PushTrampolineUnchecked`); a generator's frame that is being
    /// cleared has None as its code. No Python tool shows either.
    fn is_trampoline(&self, head: &FrameHead) -> bool {
        self.none.is_some() && (head.function == self.none || Some(head.code) == self.none)
    }

    /// 3.11: a run ends at a frame with `is_entry`, and belongs to the next CFrame. `caller` is set
    /// to what the first of these leads to.
    fn entries(
        &self,
        (leaf, root): (u64, u64),
        first: u64,
        layout: &CFrameLayout,
        caller: &mut Option<u64>,
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
            out.frames.push(self.python_frame(frame, &head));
            is_running(frame, head.kind == OWNED_BY_GENERATOR, head.previous)?;
            frame = head.previous;
            if head.owner == 1 {
                let outer = match cframe {
                    Some(inner) if inner != root => self.outer_of(inner, frame, layout)?,
                    _ => None,
                };
                // `throw()` through `yield from` (_gen_throw of Objects/genobject.c) makes the
                // frame of each generator that delegates current in the caller's CFrame, and runs
                // none of them.
                if outer.is_none() && frame != 0 && head.kind == OWNED_BY_GENERATOR {
                    continue;
                }
                caller.get_or_insert(frame);
                out.end_run(cframe.filter(|&cframe| cframe != root));
                cframe = outer;
            }
        }
        Ok(())
    }

    /// The next CFrame outside of `inner`, if it is on the same stack as the frames. Where the two
    /// chains part (a coroutine library switched stacks), frames continue without one.
    fn outer_of(
        &self,
        inner: u64,
        frame: u64,
        layout: &CFrameLayout,
    ) -> Result<Option<u64>, FrameError> {
        if frame == 0 {
            return Ok(None);
        }
        let outer = self.pointer(inner, layout.previous)?;
        let current = self.pointer(outer, layout.current_frame)?;
        Ok((current == frame).then_some(outer))
    }

    /// 3.10: every frame that is evaluated is a run, and corresponds to one CFrame.
    pub(super) fn objects(
        &self,
        state: u64,
        first: u32,
        cframe: &CFrameLayout,
        out: &mut PythonStack,
    ) -> Result<(), FrameError> {
        let result = self.object_frames(self.pointer(state, first)?, out);
        let chain = self.cframes(state, cframe, &mut out.evaluations);
        let (frames, evaluations) = (out.frames.len(), out.evaluations.len());
        let delegates: Vec<bool> = match evaluations < frames {
            true => out
                .frames
                .iter()
                .map(|frame| self.delegates(frame))
                .collect(),
            false => Vec::new(),
        };
        let delegating = delegates.iter().filter(|&&delegates| delegates).count();
        // An evaluation links its CFrame before its frame, and unlinks it before its frame
        // (Python/ceval.c).
        let early = usize::from(evaluations + delegating == frames + 1);
        let late = evaluations + delegating + 1 == frames && !delegates.starts_with(&[true]);
        let is_balanced = evaluations + delegating == frames + early || late;
        let matched = result.is_ok() && chain.is_ok() && is_balanced;
        let root = state.wrapping_add(cframe.root.into());
        let mut evaluations = out.evaluations.iter().copied().peekable();
        if matched && late {
            out.ending_inside = Some(evaluations.peek().copied().unwrap_or(root));
        }
        let mut first = 0;
        for end in 1 - early..=frames {
            if matched && end > 0 && delegates.get(end - 1) == Some(&true) {
                continue;
            }
            let is_ending = late && end == 1;
            out.runs.push(PythonRun {
                stack_address: evaluations.next_if(|_| matched && !is_ending),
                first: first as u32,
                length: (end - first) as u32,
            });
            first = end;
        }
        result.and(chain)
    }

    /// 3.10: whether a frame that called another is a generator's that `throw()` passed through by
    /// its `yield from` (_gen_throw of Objects/genobject.c): it links the frame, but evaluates
    /// nothing. Such a frame is suspended before its YIELD_FROM, while an evaluated one is at an
    /// instruction that can call.
    fn delegates(&self, frame: &PythonFrame) -> bool {
        if frame.instruction == Frame::NO_INSTRUCTION {
            return false;
        }
        let code = self.pointer(frame.code_address, self.layout.code.bytecode);
        let mut units = [0; 4];
        code.is_ok_and(|code| {
            let at = code
                .wrapping_add(BYTES_DATA)
                .wrapping_add(frame.instruction.into());
            self.memory.read_exact(at, &mut units).is_ok() && (units[0], units[2]) == DELEGATES
        })
    }

    fn object_frames(&self, first: u64, out: &mut PythonStack) -> Result<(), FrameError> {
        let mut frame = first;
        let mut steps = Steps::default();
        while frame != 0 {
            steps.step(frame)?;
            let head = self.head(frame)?;
            out.frames.push(self.object_frame(frame, &head));
            frame = head.previous;
        }
        Ok(())
    }

    fn cframes(
        &self,
        state: u64,
        layout: &CFrameLayout,
        evaluations: &mut Vec<u64>,
    ) -> Result<(), FrameError> {
        let root = state.wrapping_add(layout.root.into());
        let mut cframe = self.pointer(state, layout.leaf)?;
        let mut steps = Steps::default();
        while cframe != root && cframe != 0 {
            steps.step(cframe)?;
            evaluations.push(cframe);
            cframe = self.pointer(cframe, layout.previous)?;
        }
        Ok(())
    }

    /// Sets the instructions of frames that run a thread's own copy of the bytecode: the copies of
    /// each code object are an array of their addresses after its length (`_PyCodeArray` in
    /// Include/cpython/code.h). Three reads, however many frames there are.
    fn find_copies(&self, out: &mut PythonStack) {
        let (Some(copies), false) = (self.layout.code.copies, out.copied.is_empty()) else {
            return;
        };
        let code = |frame: &CopiedFrame| frame.code.wrapping_add(copies.into());
        let arrays = self.words(out.copied.iter().map(code));
        let counts = self.words(arrays.iter().copied());
        let place = |(frame, array): (&CopiedFrame, &u64)| {
            array.wrapping_add(8 * (1 + u64::from(frame.copy)))
        };
        let bases = self.words(out.copied.iter().zip(&arrays).map(place));
        for ((copied, count), base) in out.copied.drain(..).zip(counts).zip(bases) {
            if let Some(frame) = out.frames.get_mut(copied.frame) {
                let is_known = base != 0 && u64::from(copied.copy) < count;
                let offset = copied.instruction.wrapping_sub(base);
                frame.instruction = match is_known {
                    true => offset.min(MAX_INSTRUCTION) as u32,
                    false => MAX_INSTRUCTION as u32,
                };
            }
        }
    }

    /// The words at these addresses; 0 for one that cannot be read.
    fn words(&self, addresses: impl Iterator<Item = u64>) -> Vec<u64> {
        let addresses: Vec<u64> = addresses.collect();
        let mut words = vec![[0; 8]; addresses.len()];
        let mut requests: Vec<ReadRequest<'_>> = addresses
            .into_iter()
            .zip(&mut words)
            .map(|(address, word)| ReadRequest {
                address,
                buffer: word,
                result: Ok(()),
            })
            .collect();
        self.memory.read_many(&mut requests);
        let read: Vec<bool> = requests
            .iter()
            .map(|request| request.result.is_ok())
            .collect();
        let words = words.into_iter().map(u64::from_le_bytes).zip(read);
        words
            .map(|(word, read)| if read { word } else { 0 })
            .collect()
    }

    /// Adds a frame, and the copy of the code that it runs.
    fn push(&self, frame: u64, head: &FrameHead, out: &mut PythonStack) {
        if head.copy != 0 {
            out.copied.push(CopiedFrame {
                frame: out.frames.len(),
                code: head.code,
                copy: head.copy,
                instruction: head.instruction,
            });
        }
        out.frames.push(match self.layout.chain {
            FrameChain::Objects { .. } => self.object_frame(frame, head),
            _ => self.python_frame(frame, head),
        });
    }

    /// 3.10.
    fn object_frame(&self, frame: u64, head: &FrameHead) -> PythonFrame {
        let field = head.instruction.to_le_bytes();
        // -1 before the first instruction.
        let units = u32_at(&field, self.layout.frame.instruction % 8) as i32;
        let bytes = u32::try_from(units)
            .ok()
            .and_then(|units| units.checked_mul(2));
        PythonFrame {
            frame_address: frame,
            code_address: head.code,
            instruction: bytes.unwrap_or(Frame::NO_INSTRUCTION),
            first_local: head.first_local,
        }
    }

    fn python_frame(&self, frame: u64, head: &FrameHead) -> PythonFrame {
        let bytecode = head.code.wrapping_add(self.layout.code.bytecode.into());
        // A new frame points one unit before its code (3.11 and 3.12).
        let instruction = match head.instruction.checked_sub(bytecode) {
            Some(offset) => offset.min(MAX_INSTRUCTION) as u32,
            None => Frame::NO_INSTRUCTION,
        };
        PythonFrame {
            frame_address: frame,
            code_address: head.code,
            instruction,
            first_local: head.first_local,
        }
    }
}

/// The frame of a running generator points to its caller's, or to a shim; that of a suspended one
/// points nowhere (`gen_send_ex` of Objects/genobject.c, YIELD_VALUE of Python/ceval.c).
fn is_running(frame: u64, is_generator: bool, previous: u64) -> Result<(), FrameError> {
    match is_generator && previous == 0 {
        true => Err(FrameError::Suspended(frame)),
        false => Ok(()),
    }
}

/// Bounds a chain and detects a cycle in it, without memory (Brent's algorithm).
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
