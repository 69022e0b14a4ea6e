//! Lines that take the next batch: what the interpreter itself does there is input.
//!
//! `for x, y in loader` does not end when the loader returns the batch. The interpreter unpacks it
//! and stores it in `x` and `y`, which frees the tensors of the previous batch, which may be large.
//! The loader has no frame on the stack then. Such a line is known from other samples of the
//! recording, in which it called the loader.

use super::frames::Frames;
use crate::model::category::Phase;
use crate::model::facts::Line;
use crate::model::ids::{FrameId, StackId};
use crate::model::operator::OperatorMark;
use crate::model::profile::Function;
use crate::torch::rules::{FrameRole, PhaseMark, last_part};
use rustc_hash::FxHashSet;

/// The lines of a recording that take batches.
pub(super) struct BatchLines<'a> {
    frames: &'a Frames,
    lines: FxHashSet<Line>,
}

impl<'a> BatchLines<'a> {
    pub(super) fn new(frames: &'a Frames) -> Self {
        let mut found = Self {
            frames,
            lines: FxHashSet::default(),
        };
        for &(parent, frame) in frames.stacks.stacks() {
            if found.hands_over(frame) {
                found.add_callers(parent);
            }
        }
        found
    }

    /// Whether the value of this frame's function is a batch.
    fn hands_over(&self, frame: FrameId) -> bool {
        let class = self.frames.class(frame);
        let mark = class.and_then(|class| class.mark);
        let is_input = matches!(
            mark,
            Some(
                PhaseMark::Whole(Phase::Input)
                    | PhaseMark::Strong(Phase::Input)
                    | PhaseMark::Weak(Phase::Input)
            )
        );
        is_input
            && (class.is_some_and(|class| class.makes_batch)
                || self.frames.function(frame).is_some_and(is_iteration))
    }

    /// The line that called, and where that is an iterator around the loader (tqdm's `__iter__`),
    /// the line that called it.
    fn add_callers(&mut self, caller: Option<StackId>) {
        let frames = self.frames;
        for frame in frames.stacks.leaf_to_root(caller) {
            let Some(function) = frames.function(frame).filter(|info| info.is_python) else {
                continue;
            };
            self.lines.insert(frames.line(frame));
            if !is_iteration(function) {
                break;
            }
        }
    }

    /// Whether the innermost Python frame of a stack is at such a line, and no operator, and no
    /// other library, runs below it.
    pub(super) fn is_taken_at(&self, stack: StackId) -> bool {
        if self.lines.is_empty() {
            return false;
        }
        for frame in self.frames.stacks.leaf_to_root(Some(stack)) {
            let (Some(function), Some(class)) =
                (self.frames.function(frame), self.frames.class(frame))
            else {
                return false;
            };
            if function.is_python {
                let line = self.frames.line(frame);
                return line.1 != 0 && self.lines.contains(&line);
            }
            if function.operator != OperatorMark::None || class.role == FrameRole::Foreign {
                return false;
            }
        }
        false
    }
}

fn is_iteration(function: &Function) -> bool {
    matches!(last_part(&function.name), "__next__" | "__iter__")
}
