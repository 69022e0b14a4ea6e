//! Memory that every capture of a thread includes: progress counters. The worker finds their
//! addresses, the tracer reads them.

use crate::torch::probe::progress::WatchList;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The memory to read with a thread, as last published by the worker.
#[derive(Debug, Default)]
pub(super) struct Watched {
    generation: AtomicU64,
    list: Mutex<Arc<WatchList>>,
}

impl Watched {
    /// Publishes a new list.
    pub(super) fn set(&self, list: WatchList) {
        *self.list.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(list);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Clears the list after an exec.
    pub(super) fn forget(&self) {
        if self.generation.load(Ordering::Relaxed) != 0 {
            self.set(WatchList::default());
        }
    }
}

/// The tracer's copy of the list, with where each int was at its last read.
#[derive(Debug, Default)]
pub(super) struct WatchPlan {
    generation: u64,
    list: Arc<WatchList>,
    ints: Vec<u64>,
}

impl WatchPlan {
    /// Copies the list if it has changed. Takes a lock, so it is not called while a thread is
    /// stopped.
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

    /// Whether the worker has published a list since the last [`Self::refresh`].
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

    /// Where the ints were at the last read: most of them have not moved.
    pub(super) fn last_ints(&self) -> impl Iterator<Item = u64> + '_ {
        self.ints.iter().copied().filter(|&address| address != 0)
    }

    /// Updates where the ints are: `pointer_at` reads a pointer. Returns the addresses that have
    /// changed.
    pub(super) fn moved_ints(&mut self, pointer_at: impl Fn(u64) -> Option<u64>) -> Vec<u64> {
        let mut moved = Vec::new();
        for (&place, known) in self.list.ints.iter().zip(&mut self.ints) {
            if let Some(now) = pointer_at(place)
                && now != 0
                && now.is_multiple_of(8)
            {
                let read = now.wrapping_add(self.list.int_start);
                if read != *known {
                    *known = read;
                    moved.push(read);
                }
            }
        }
        moved
    }
}
