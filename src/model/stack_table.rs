//! Stacks as integers: each stack is its parent stack, nearer to the root, and one frame.

use super::ids::{FrameId, StackId};
use super::interner::Interner;
use std::hash::Hash;

/// A stack: its parent, `None` for a root, and its frame. A parent has a smaller id than its
/// children.
pub type Stack = (Option<StackId>, FrameId);

/// Interned frames of type `F` and the stacks made of them.
#[derive(Clone, Debug, PartialEq)]
pub struct StackTable<F> {
    frames: Interner<FrameId, F>,
    stacks: Interner<StackId, Stack>,
}

impl<F> Default for StackTable<F> {
    fn default() -> Self {
        Self::from_parts(Vec::new(), Vec::new())
    }
}

impl<F> StackTable<F> {
    /// Frames by [`FrameId`], and stacks by [`StackId`].
    pub fn from_parts(frames: Vec<F>, stacks: Vec<Stack>) -> Self {
        Self {
            frames: frames.into(),
            stacks: stacks.into(),
        }
    }

    /// Frames by id.
    pub fn frames(&self) -> &[F] {
        &self.frames
    }

    /// Stacks by id.
    pub fn stacks(&self) -> &[Stack] {
        &self.stacks
    }

    /// The frame with this id.
    pub fn frame(&self, id: FrameId) -> &F {
        &self.frames[id.index()]
    }

    /// The stack that the leaf of `stack` stands on.
    pub fn parent(&self, stack: StackId) -> Option<StackId> {
        self.stacks[stack.index()].0
    }

    /// The leaf of `stack`.
    pub fn leaf(&self, stack: StackId) -> &F {
        self.frame(self.stacks[stack.index()].1)
    }

    /// The frames of `stack`, leaf first.
    pub fn leaf_to_root(&self, stack: Option<StackId>) -> impl Iterator<Item = FrameId> + '_ {
        let mut next = stack;
        std::iter::from_fn(move || {
            let (parent, frame) = self.stacks[next?.index()];
            next = parent;
            Some(frame)
        })
    }

    /// The frames of `stack`, root first.
    pub fn root_to_leaf(&self, stack: Option<StackId>) -> Vec<FrameId> {
        let mut frames: Vec<FrameId> = self.leaf_to_root(stack).collect();
        frames.reverse();
        frames
    }
}

impl<F: Clone + Eq + Hash> StackTable<F> {
    /// The id of `frame`, new or known.
    pub fn intern_frame(&mut self, frame: F) -> FrameId {
        self.frames.intern(&frame)
    }

    /// The id of the stack that has `frame` above `parent`; `None` as parent makes a root.
    pub fn intern_stack(&mut self, parent: Option<StackId>, frame: FrameId) -> StackId {
        // A stack's first child most often came right after it; looking there spares the index's
        // cache misses.
        if let Some(StackId(parent_id)) = parent
            && let Some(next) = parent_id.checked_add(1)
            && self.stacks.get(next as usize) == Some(&(parent, frame))
        {
            return StackId(next);
        }
        self.stacks.intern(&(parent, frame))
    }

    /// The id of the stack of `frames`, root first; `None` for an empty stack.
    pub fn intern(&mut self, frames: impl IntoIterator<Item = F>) -> Option<StackId> {
        let mut stack = None;
        for frame in frames {
            let frame = self.intern_frame(frame);
            stack = Some(self.intern_stack(stack, frame));
        }
        stack
    }
}
