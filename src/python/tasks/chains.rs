//! A coroutine, and what it awaits, down to what the event loop runs.
//!
//! The frame of a coroutine that waits is in it, or on its heap, and the evaluation stack of that
//! frame holds what it awaits: another coroutine, or a future (Objects/genobject.c, `_PyGen_yf`).

use super::{FIRST, Reader};
use crate::python::frames::{PythonFrame, read_frame};
use crate::python::layout::generators::{Delegates, StackTop, StatePlace};

/// Maximum number of coroutines that one awaits through the others. CPython's own limit is 1,000 by
/// default.
const MAX_AWAITS: usize = 4096;

/// What an object is to a chain of awaits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaitable {
    /// It has a frame, and awaits what that holds.
    Coroutine,
    /// It has a frame, and awaits what that holds only where it delegates.
    Generator,
    /// It stands for its first field.
    Wrapper,
    Other,
}

/// How far a coroutine got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Created,
    Suspended,
    Executing,
    Ended,
}

impl Reader<'_> {
    pub(super) fn awaitable(&mut self, object: u64) -> Awaitable {
        // Others of these names are classes of extensions, with layouts of their own.
        let class = self.class(object).filter(|class| class.is_static());
        match class.as_ref().map_or("", |class| class.name.as_str()) {
            "coroutine" | "async_generator" => Awaitable::Coroutine,
            "generator" => Awaitable::Generator,
            "coroutine_wrapper"
            | "async_generator_asend"
            | "async_generator_athrow"
            | "anext_awaitable" => Awaitable::Wrapper,
            _ => Awaitable::Other,
        }
    }

    /// How far a coroutine got, and its frame and those of what it awaits, innermost first, as far
    /// as they can be read; `None` if it is no coroutine of the interpreter's.
    pub(super) fn chain(&mut self, coroutine: u64) -> (Option<Progress>, Vec<PythonFrame>) {
        let mut frames = Vec::new();
        let mut first = None;
        let mut object = Some(coroutine);
        for _ in 0..MAX_AWAITS {
            let Some(awaitable) = object else {
                break;
            };
            object = match self.awaitable(awaitable) {
                Awaitable::Other => None,
                Awaitable::Wrapper => self.word(awaitable, FIRST),
                kind => {
                    let Some((address, state)) = self.frame(awaitable) else {
                        break;
                    };
                    let progress = self.progress(state);
                    first.get_or_insert(progress);
                    if matches!(progress, Progress::Executing | Progress::Ended) {
                        break;
                    }
                    let Ok(frame) = read_frame(self.interpreter, address, self.memory) else {
                        break;
                    };
                    frames.push(frame);
                    let awaits = progress == Progress::Suspended
                        && (kind == Awaitable::Coroutine || self.delegates(&frame, state));
                    awaits.then(|| self.awaited(address)).flatten()
                }
            };
        }
        frames.reverse();
        (first, frames)
    }

    /// The address of a generator's frame, and its state; address 0 if it has none any more.
    fn frame(&self, generator: u64) -> Option<(u64, i8)> {
        let layout = &self.generators;
        let at = self.interpreter.layout.objects.at(layout.frame);
        let mut frame = generator.wrapping_add(at);
        if layout.is_pointer {
            frame = self.memory.read_u64(frame).ok()?;
            if frame == 0 {
                return Some((0, layout.states.ended));
            }
        }
        let state = match layout.state {
            StatePlace::Frame(offset) => frame.wrapping_add(offset.into()),
            StatePlace::Generator(offset) => {
                generator.wrapping_add(self.interpreter.layout.objects.at(offset))
            }
        };
        Some((frame, self.memory.read_u8(state).ok()? as i8))
    }

    fn progress(&self, state: i8) -> Progress {
        let states = &self.generators.states;
        match state {
            _ if state == states.created => Progress::Created,
            _ if state == states.executing => Progress::Executing,
            _ if state >= states.ended => Progress::Ended,
            _ => Progress::Suspended,
        }
    }

    /// Whether a suspended generator waits for another one, and does not just yield: then its
    /// evaluation stack may hold what it iterates over.
    fn delegates(&self, frame: &PythonFrame, state: i8) -> bool {
        let wanted = match self.generators.delegates {
            Delegates::States(first, last) => return (first..=last).contains(&state),
            Delegates::Bytecode(wanted) => wanted,
        };
        let code = &self.interpreter.layout.code;
        let mut start = frame.code_address.wrapping_add(code.bytecode.into());
        if self.generators.is_pointer {
            // 3.10: `co_code`, a `bytes`.
            let Ok(bytes) = self.memory.read_u64(start) else {
                return false;
            };
            start = bytes.wrapping_add(self.interpreter.layout.bytes.data.into());
        }
        let mut bytes = [0; 4];
        let at = start.wrapping_add(frame.instruction.into());
        self.memory.read_exact(at, &mut bytes).is_ok()
            && wanted.iter().all(|&(offset, least, greatest)| {
                let byte = bytes.get(offset);
                byte.is_some_and(|byte| (least..=greatest).contains(byte))
            })
    }

    /// What a suspended coroutine with this frame awaits.
    fn awaited(&self, frame: u64) -> Option<u64> {
        let word = |offset: u32| self.memory.read_u64(frame.wrapping_add(offset.into())).ok();
        let count = |offset: u32| {
            let count = self.memory.read_i32(frame.wrapping_add(offset.into())).ok();
            u64::try_from(count?).ok()
        };
        let layout = &self.interpreter.layout.frame;
        let end = match self.generators.top {
            StackTop::Depth { values, depth } => word(values)?.wrapping_add(count(depth)? * 8),
            StackTop::Count(offset) => frame
                .wrapping_add(layout.localsplus.into())
                .wrapping_add(count(offset)? * 8),
            StackTop::Pointer(offset) => word(offset)?,
        };
        let place = end.wrapping_sub(8 * self.generators.awaited);
        let value = self.memory.read_u64(place).ok()? & !layout.tag_mask;
        (value != 0 && value.is_multiple_of(8)).then_some(value)
    }
}
