//! Stacks of threads as nested slices, for viewers of traces.
//!
//! A slice is a function for as long as each sample finds it at the same position of the stack:
//! what happened between two samples is not known.

use super::view::{Shown, View};
use std::io;

/// Maximum number of slices; further ones are dropped: a recording is untrusted input.
const MAX_SLICES: usize = 4_000_000;
/// Maximum number of drawn frames per stack.
const MAX_DEPTH: usize = 256;

/// Begin or end of a slice of a thread, CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    /// Index into [`View::roots`].
    pub(super) root: usize,
    pub(super) ns: u64,
    /// What begins; `None` for the end of the innermost slice.
    pub(super) begins: Option<Shown>,
}

/// Calls `write` with all edges: by thread, in the order of time.
///
/// # Errors
/// Those of `write`.
pub(super) fn slices(
    view: &View<'_>,
    mut write: impl FnMut(Edge) -> io::Result<()>,
) -> io::Result<()> {
    let mut open: Vec<Open> = view.roots().iter().map(|_| Open::default()).collect();
    let mut left = MAX_SLICES;
    for interval in view.intervals() {
        let root = interval.root;
        let Some(own) = open.get_mut(root) else {
            continue;
        };
        let frames = view.frames(interval.stack, interval.queued);
        let frames: Vec<Shown> = frames
            .iter()
            .take(MAX_DEPTH)
            .map(|frame| frame.shown)
            .collect();
        let same = own.same(&frames, interval.start_ns);
        own.end(root, same, &mut write)?;
        for &shown in &frames[same..] {
            if left == 0 {
                break;
            }
            left -= 1;
            write(Edge {
                root,
                ns: interval.start_ns,
                begins: Some(shown),
            })?;
            own.frames.push(shown);
        }
        own.end_ns = interval.start_ns.saturating_add(interval.weight_ns);
    }
    for (root, own) in open.iter_mut().enumerate() {
        own.end(root, 0, &mut write)?;
    }
    Ok(())
}

/// Open slices of a thread.
#[derive(Clone, Debug, Default)]
struct Open {
    frames: Vec<Shown>,
    end_ns: u64,
}

impl Open {
    /// How many of its frames continue in a stack that begins then.
    fn same(&self, frames: &[Shown], start_ns: u64) -> usize {
        if start_ns != self.end_ns {
            return 0;
        }
        let pairs = self.frames.iter().zip(frames);
        pairs.take_while(|(one, other)| one == other).count()
    }

    /// Ends all but the outermost ones.
    fn end(
        &mut self,
        root: usize,
        but: usize,
        write: &mut impl FnMut(Edge) -> io::Result<()>,
    ) -> io::Result<()> {
        for _ in but..self.frames.len() {
            write(Edge {
                root,
                ns: self.end_ns,
                begins: None,
            })?;
        }
        self.frames.truncate(but);
        Ok(())
    }
}
