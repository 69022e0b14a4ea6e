//! What the threads of a job did since a time, by the kernel's counters alone: no process is read
//! or stopped for it.

use super::process_tree::{ProcessEvent, ProcessWatch};
use super::process_usage::storage_bytes;
use super::threads::{SchedStat, TaskDirectory, ThreadFiles};
use rustc_hash::{FxHashMap, FxHashSet};
use std::io;
use std::time::{Duration, Instant};

/// Share of the time that a thread uses a CPU from which on it works. Watchdogs and progress bars
/// that wake some times a second use less.
const BUSY: f64 = 0.03;
/// Bytes from or to storage from which on a process transfers data: a log is less.
const TRANSFER: u64 = 1 << 20;

/// The counters of a job at one time.
#[derive(Clone, Debug)]
pub struct JobCounters {
    at: Instant,
    threads: FxHashMap<(i32, i32), SchedStat>,
    storage: FxHashMap<i32, u64>,
    /// Processes that have been started so far.
    started: u64,
}

/// Reads the counters of some processes and of what descends from them.
#[derive(Debug)]
pub struct JobActivity {
    watch: ProcessWatch,
    pids: FxHashSet<i32>,
    started: u64,
}

impl JobActivity {
    /// Of `roots` and what descends from them.
    ///
    /// # Errors
    /// `NotFound` where there is no such process.
    pub fn new(roots: &[i32]) -> io::Result<Self> {
        let (&first, more) = roots.split_first().ok_or(io::ErrorKind::NotFound)?;
        let mut watch = ProcessWatch::new(first)?;
        for &root in more {
            watch.add_root(root)?;
        }
        Ok(Self {
            watch,
            pids: FxHashSet::default(),
            started: 0,
        })
    }

    /// The counters now. Empty once all processes have ended.
    pub fn read(&mut self) -> JobCounters {
        for event in self.watch.poll() {
            match event {
                ProcessEvent::Started { pid, .. } => {
                    self.pids.insert(pid);
                    self.started += 1;
                }
                ProcessEvent::Exited { pid, .. } => {
                    self.pids.remove(&pid);
                }
                ProcessEvent::TooMany { .. } => {}
            }
        }
        let mut counters = JobCounters {
            at: Instant::now(),
            threads: FxHashMap::default(),
            storage: FxHashMap::default(),
            started: self.started,
        };
        for &pid in &self.pids {
            for tid in TaskDirectory::new(pid).list().unwrap_or_default() {
                if let Ok(stat) = ThreadFiles::open(pid, tid).schedstat() {
                    counters.threads.insert((pid, tid), stat);
                }
            }
            if let Some((read, written)) = storage_bytes(pid) {
                counters.storage.insert(pid, read.saturating_add(written));
            }
        }
        counters
    }
}

impl JobCounters {
    /// Whether there is no process any more.
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// Whether a process was started since `before`.
    pub fn has_started(&self, before: &JobCounters) -> bool {
        self.started != before.started
    }

    /// Whether a thread was put on a CPU since `before`; true where that is not known.
    pub fn has_run(&self, before: &JobCounters, pid: i32, tid: i32) -> bool {
        let of = |counters: &JobCounters| counters.threads.get(&(pid, tid)).copied();
        match (of(before), of(self)) {
            (Some(before), Some(now)) => before != now || !now.is_kept(),
            _ => true,
        }
    }

    /// Threads that worked for a good part of the time since `before`: pid and tid. Those that
    /// started in it count from their start.
    pub fn busy(&self, before: &JobCounters) -> FxHashSet<(i32, i32)> {
        let length = self.at.saturating_duration_since(before.at);
        let most = length.max(Duration::from_millis(1)).as_nanos() as f64 * BUSY;
        let is_busy = |(of, now): (&(i32, i32), &SchedStat)| {
            let before = before.threads.get(of).map_or(0, |stat| stat.run_ns);
            (now.run_ns.saturating_sub(before) as f64 > most).then_some(*of)
        };
        self.threads.iter().filter_map(is_busy).collect()
    }

    /// Threads that were put on a CPU since `before`: pid and tid.
    pub fn ran(&self, before: &JobCounters) -> FxHashSet<(i32, i32)> {
        let all = self.threads.keys().copied();
        all.filter(|&(pid, tid)| self.has_run(before, pid, tid))
            .collect()
    }

    /// Processes that transferred data from or to storage since `before`.
    pub fn transfers(&self, before: &JobCounters) -> FxHashSet<i32> {
        let moved = |(pid, now): (&i32, &u64)| {
            let before = before.storage.get(pid).copied().unwrap_or(0);
            (now.saturating_sub(before) >= TRANSFER).then_some(*pid)
        };
        self.storage.iter().filter_map(moved).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(seconds: u64, run_ns: u64, slices: u64, bytes: u64) -> JobCounters {
        let stat = SchedStat {
            run_ns,
            queue_ns: 0,
            slices,
        };
        JobCounters {
            at: Instant::now() + Duration::from_secs(seconds),
            threads: std::iter::once(((7, 8), stat)).collect(),
            storage: std::iter::once((7, bytes)).collect(),
            started: 1,
        }
    }

    #[test]
    fn who_works_and_who_only_wakes() {
        let before = counters(0, 1_000, 1, 0);
        let wakes = counters(100, 1_000_000_000, 1000, 4096);
        assert!(wakes.busy(&before).is_empty() && wakes.transfers(&before).is_empty());
        assert!(wakes.has_run(&before, 7, 8) && wakes.ran(&before).contains(&(7, 8)));
        let works = counters(100, 10_000_000_000, 1000, 8 << 20);
        assert!(works.busy(&before).contains(&(7, 8)) && works.transfers(&before).contains(&7));
        let sleeps = counters(100, 1_000, 1, 0);
        assert!(sleeps.ran(&before).is_empty());
        assert!(!sleeps.has_run(&before, 7, 8) && !sleeps.has_started(&before));
        assert!(sleeps.has_run(&before, 7, 9), "it is not known");
    }
}
