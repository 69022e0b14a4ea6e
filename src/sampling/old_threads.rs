//! OS threads by `pthread_self()`, the only thread id in thread states of Python before 3.11.

use crate::arch::{Architecture, Machine};
use crate::memory::{Memory, ReadRequest};
use crate::os::threads::{TaskDirectory, ThreadFiles};
use crate::os::vm_read::ProcessMemory;
use rustc_hash::{FxHashMap, FxHashSet};

/// Offsets of a thread's tid from `pthread_self()`. Values are checked against the listed tids.
const TID_OFFSETS: &[u64] = Machine::TID_OFFSETS;

/// A process's threads.
#[derive(Debug)]
pub(super) struct OldThreads {
    pid: i32,
    memory: ProcessMemory,
    tasks: TaskDirectory,
    /// Tids in torchspy's pid namespace, by tids in the pid namespace of the process.
    by_inner: FxHashMap<i32, i32>,
    files: FxHashMap<i32, ThreadFiles>,
    /// Link count of the task directory at the last listing.
    link_count: u64,
}

impl OldThreads {
    pub(super) fn new(pid: i32) -> Self {
        Self {
            pid,
            memory: ProcessMemory::new(pid),
            tasks: TaskDirectory::new(pid),
            by_inner: FxHashMap::default(),
            files: FxHashMap::default(),
            link_count: 0,
        }
    }

    /// The tid of each thread, in torchspy's pid namespace; `None` where it is not known.
    pub(super) fn tids(&mut self, pthreads: &[u64]) -> Vec<Option<i32>> {
        let words = read_words(&self.memory, pthreads);
        if self.tasks.link_count().ok() != Some(self.link_count) {
            self.list();
        }
        let mut tids = self.known(&words);
        if tids.contains(&None) {
            // A new thread may have replaced one that exited: the link count is then the same.
            self.list();
            tids = self.known(&words);
        }
        // With an unknown libc, a single Python thread is taken for the main thread.
        if let [None] = tids[..] {
            tids = vec![Some(self.pid)];
        }
        tids
    }

    fn known(&self, words: &[[i32; TID_OFFSETS.len()]]) -> Vec<Option<i32>> {
        let mut taken = FxHashSet::default();
        words
            .iter()
            .map(|words| {
                let tid = words.iter().find_map(|word| self.by_inner.get(word))?;
                taken.insert(*tid).then_some(*tid)
            })
            .collect()
    }

    /// The /proc files of a thread that [`OldThreads::tids`] returned.
    pub(super) fn files(&mut self, tid: i32) -> &ThreadFiles {
        let pid = self.pid;
        self.files
            .entry(tid)
            .or_insert_with(|| ThreadFiles::open(pid, tid))
    }

    fn list(&mut self) {
        self.link_count = self.tasks.link_count().unwrap_or(0);
        let tids = self.tasks.list().unwrap_or_default();
        self.files.retain(|tid, _| tids.contains(tid));
        self.by_inner.clear();
        for tid in tids {
            let inner = self.files(tid).inner_tid().unwrap_or(tid);
            self.by_inner.insert(inner, tid);
        }
    }
}

/// The words at each of [`TID_OFFSETS`]; 0 where memory is not readable.
pub(super) fn read_words(memory: &impl Memory, pthreads: &[u64]) -> Vec<[i32; TID_OFFSETS.len()]> {
    let mut buffers = vec![[[0; 4]; TID_OFFSETS.len()]; pthreads.len()];
    let mut requests: Vec<ReadRequest<'_>> = Vec::new();
    for (&pthread, buffers) in pthreads.iter().zip(&mut buffers) {
        for (offset, buffer) in TID_OFFSETS.iter().zip(buffers.iter_mut()) {
            requests.push(ReadRequest {
                address: pthread.wrapping_add(*offset),
                buffer: buffer.as_mut_slice(),
                result: Ok(()),
            });
        }
    }
    memory.read_many(&mut requests);
    let readable: Vec<bool> = requests.iter().map(|read| read.result.is_ok()).collect();
    let words = buffers.iter().zip(readable.chunks(TID_OFFSETS.len()));
    words
        .map(|(buffers, readable)| {
            std::array::from_fn(|at| match readable.get(at) {
                Some(true) => i32::from_le_bytes(buffers[at]),
                _ => 0,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::thread::JoinHandleExt;

    #[test]
    fn threads_are_found_by_their_handles() {
        let (sender, tids) = std::sync::mpsc::channel();
        let started = [0, 1].map(|_| {
            let (release, wait) = std::sync::mpsc::channel::<()>();
            let sender = sender.clone();
            let thread = std::thread::spawn(move || {
                sender.send(nix::unistd::gettid().as_raw()).unwrap();
                wait.recv().ok();
            });
            (thread, release, tids.recv().unwrap())
        });
        let mut threads = OldThreads::new(std::process::id() as i32);
        let [first, second] = &started;
        let handles = [second.0.as_pthread_t(), 0xdead_0000, first.0.as_pthread_t()];
        assert_eq!(
            threads.tids(&handles),
            [Some(second.2), None, Some(first.2)]
        );
        for (thread, release, _) in started {
            drop(release);
            thread.join().unwrap();
        }
    }
}
