//! Lines that take the next batch: what the interpreter itself does there is input.
//!
//! `for x, y in loader` does not end when the loader returns the batch. The interpreter unpacks it
//! and stores it in `x` and `y`, which frees the tensors of the previous batch, which may be large.
//! The loader has no frame on the stack then. Such a line is known from other samples of the
//! recording, in which it called the loader.

use crate::model::category::Phase;
use crate::model::ids::{FunctionId, StackId};
use crate::model::operator::OperatorMark;
use crate::model::profile::{Function, ProfileFrame};
use crate::model::stack_table::StackTable;
use crate::torch::classify::FunctionClass;
use crate::torch::rules::{FrameRole, PhaseMark, last_part};
use rustc_hash::FxHashSet;

/// The lines of a recording that take batches.
pub(super) struct BatchLines<'a> {
    classes: &'a [FunctionClass],
    functions: &'a [Function],
    stacks: &'a StackTable<ProfileFrame>,
    lines: FxHashSet<(FunctionId, u32)>,
}

impl<'a> BatchLines<'a> {
    pub(super) fn new(
        classes: &'a [FunctionClass],
        functions: &'a [Function],
        stacks: &'a StackTable<ProfileFrame>,
    ) -> Self {
        let mut found = Self {
            classes,
            functions,
            stacks,
            lines: FxHashSet::default(),
        };
        for &(parent, frame) in stacks.stacks() {
            let callee = stacks.frame(frame).function;
            if found.hands_over(callee) {
                found.add_callers(parent);
            }
        }
        found
    }

    fn function(&self, id: FunctionId) -> Option<&'a Function> {
        self.functions.get(id.index())
    }

    /// Whether the value of this function is a batch.
    fn hands_over(&self, id: FunctionId) -> bool {
        let class = self.classes.get(id.index());
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
                || self.function(id).is_some_and(is_iteration))
    }

    /// The line that called, and where that is an iterator around the loader (tqdm's `__iter__`),
    /// the line that called it.
    fn add_callers(&mut self, caller: Option<StackId>) {
        let stacks = self.stacks;
        for frame in stacks.leaf_to_root(caller) {
            let &ProfileFrame { function, line, .. } = stacks.frame(frame);
            let Some(info) = self.function(function).filter(|info| info.is_python) else {
                continue;
            };
            self.lines.insert((function, line));
            if !is_iteration(info) {
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
        for frame in self.stacks.leaf_to_root(Some(stack)) {
            let &ProfileFrame { function, line, .. } = self.stacks.frame(frame);
            let (Some(info), Some(class)) =
                (self.function(function), self.classes.get(function.index()))
            else {
                return false;
            };
            if info.is_python {
                return line != 0 && self.lines.contains(&(function, line));
            }
            if info.operator != OperatorMark::None || class.role == FrameRole::Foreign {
                return false;
            }
        }
        false
    }
}

fn is_iteration(function: &Function) -> bool {
    matches!(last_part(&function.name), "__next__" | "__iter__")
}
