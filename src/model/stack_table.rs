//! Stacks as integers: each stack is its parent stack, nearer to the root, and one frame.

use super::ids::{FrameId, Id, StackId};
use super::interner::Interner;
use std::hash::Hash;

/// A stack: its parent, `None` for a root, and its frame. A parent has a smaller id than its
/// children.
pub type Stack<S = StackId> = (Option<S>, FrameId);

/// Interned frames of type `F` and the stacks made of them, with ids of type `S`.
#[derive(Clone, Debug, PartialEq)]
pub struct StackTable<F, S = StackId> {
    frames: Interner<FrameId, F>,
    stacks: Interner<S, Stack<S>>,
}

impl<F, S> Default for StackTable<F, S> {
    fn default() -> Self {
        Self::from_parts(Vec::new(), Vec::new())
    }
}

impl<F, S> StackTable<F, S> {
    /// Frames and stacks by id.
    pub fn from_parts(frames: Vec<F>, stacks: Vec<Stack<S>>) -> Self {
        Self {
            frames: frames.into(),
            stacks: stacks.into(),
        }
    }
}

impl<F, S: Id> StackTable<F, S> {
    pub fn frames(&self) -> &[F] {
        &self.frames
    }

    pub fn stacks(&self) -> &[Stack<S>] {
        &self.stacks
    }

    pub fn frame(&self, id: FrameId) -> &F {
        &self.frames[id.index()]
    }

    /// The stack below the leaf of `stack`.
    pub fn parent(&self, stack: S) -> Option<S> {
        self.stacks[stack.index()].0
    }

    /// The leaf of `stack`.
    pub fn leaf(&self, stack: S) -> &F {
        self.frame(self.stacks[stack.index()].1)
    }

    /// The frames of `stack`, leaf first.
    pub fn leaf_to_root(&self, stack: Option<S>) -> impl Iterator<Item = FrameId> + '_ {
        let mut next = stack;
        std::iter::from_fn(move || {
            let (parent, frame) = self.stacks[next?.index()];
            next = parent;
            Some(frame)
        })
    }

    /// The frames of `stack`, root first.
    pub fn root_to_leaf(&self, stack: Option<S>) -> Vec<FrameId> {
        let mut frames: Vec<FrameId> = self.leaf_to_root(stack).collect();
        frames.reverse();
        frames
    }
}

impl<F: Clone + Eq + Hash, S: Id + Hash> StackTable<F, S> {
    /// The id of `frame`, new or known.
    pub fn intern_frame(&mut self, frame: F) -> FrameId {
        self.frames.intern(&frame)
    }

    /// The id of the stack that has `frame` above `parent`; `None` as parent makes a root.
    pub fn intern_stack(&mut self, parent: Option<S>, frame: FrameId) -> S {
        // A stack's first child usually comes right after it; checking there avoids the index's
        // cache misses.
        if let Some(next) = parent.map(|parent| parent.index() + 1)
            && self.stacks.get(next) == Some(&(parent, frame))
        {
            return S::from_index(next);
        }
        self.stacks.intern(&(parent, frame))
    }

    /// Adds a frame with the next id even if it is known. Returns the id that represents it: the
    /// first one's.
    pub fn push_frame(&mut self, frame: F) -> FrameId {
        self.frames.push(frame)
    }

    /// The same for a stack.
    pub fn push_stack(&mut self, parent: Option<S>, frame: FrameId) -> S {
        self.stacks.push((parent, frame))
    }

    /// The id of the stack of `frames`, root first; `None` for an empty stack.
    pub fn intern(&mut self, frames: impl IntoIterator<Item = F>) -> Option<S> {
        let mut stack = None;
        for frame in frames {
            let frame = self.intern_frame(frame);
            stack = Some(self.intern_stack(stack, frame));
        }
        stack
    }
}
