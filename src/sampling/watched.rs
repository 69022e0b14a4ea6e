//! Words that every read of a thread takes along: counters of progress. The worker finds out which, the tracer reads them.

use crate::torch::probe::progress::WatchList;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What is read of a thread, as the worker last said.
#[derive(Debug, Default)]
pub(super) struct Watched {
    generation: AtomicU64,
    list: Mutex<Arc<WatchList>>,
}

impl Watched {
    /// Says what is to be read from now on.
    pub(super) fn set(&self, list: WatchList) {
        *self.list.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(list);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Another program runs.
    pub(super) fn forget(&self) {
        if self.generation.load(Ordering::Relaxed) != 0 {
            self.set(WatchList::default());
        }
    }
}

/// The tracer's copy, with where each int was when it was last read.
#[derive(Debug, Default)]
pub(super) struct WatchPlan {
    generation: u64,
    list: Arc<WatchList>,
    ints: Vec<u64>,
}

impl WatchPlan {
    /// Takes over what the worker said. Not to be called while the thread stands: it may wait.
    pub(super) fn refresh(&mut self, watched: &Watched) {
        let generation = watched.generation.load(Ordering::Acquire);
        if generation == self.generation {
            return;
        }
        self.generation = generation;
        self.list = watched
            .list
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        self.ints = vec![0; self.list.ints.len()];
    }

    /// Whether the worker has said anything since it was last taken over.
    pub(super) fn is_behind(&self, watched: &Watched) -> bool {
        watched.generation.load(Ordering::Acquire) != self.generation
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.ranges.is_empty()
    }

    /// Fixed ranges.
    pub(super) fn ranges(&self) -> &[(u64, usize)] {
        &self.list.ranges
    }

    /// Where ints were at the last read: most of them still are.
    pub(super) fn last_ints(&self) -> impl Iterator<Item = u64> + '_ {
        self.ints.iter().copied().filter(|&address| address != 0)
    }

    /// Takes in where ints are now: `pointer_at` reads a place. Gives those that were elsewhere before.
    pub(super) fn moved_ints(&mut self, pointer_at: impl Fn(u64) -> Option<u64>) -> Vec<u64> {
        let mut moved = Vec::new();
        for (&place, known) in self.list.ints.iter().zip(&mut self.ints) {
            if let Some(now) = pointer_at(place)
                && now != *known
                && now != 0
                && now.is_multiple_of(8)
            {
                *known = now;
                moved.push(now);
            }
        }
        moved
    }
}
