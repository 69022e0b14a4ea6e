//! Samples: what one thread did over an interval.

use super::ids::{StackId, ThreadId};
use super::named::named;

named!(
    /// Capture method of a sample's stack.
    #[derive(Default)]
    Capture {
        /// The thread was stopped for it.
        Stopped = "stopped",
        /// Read, without a stop, while the thread slept in a system call; the read was checked.
        Asleep = "asleep",
        /// Read without a stop from a thread that may run (`--nonblocking`); validated against torn
        /// reads.
        Unstopped = "unstopped",
        /// The thread has not been scheduled since its last fresh capture, or was found as it was
        /// then: it keeps the stack that it had.
        Reused = "reused",
        /// The kernel copied registers and stack while the thread ran (`--engine perf`); its Python
        /// frames were read at once.
        Sampled = "sampled",
        /// Its stack was not captured; its state was.
        #[default]
        NotCaptured = "unread",
    }
);

impl Capture {
    /// Whether the stack was captured for this sample, and not reused from an earlier one.
    pub fn is_fresh(self) -> bool {
        !matches!(self, Capture::Reused | Capture::NotCaptured)
    }
}

named!(
    /// A thread's state as in `/proc/PID/task/TID/stat` (proc_pid_stat(5)).
    #[derive(Default)]
    ThreadState {
        /// R: on a CPU, or waiting for one.
        Running = "running",
        /// S: asleep, may be woken by a signal.
        Sleeping = "sleeping",
        /// D: asleep in the kernel, not interruptible.
        Uninterruptible = "uninterruptible",
        /// T or t: stopped by a signal or a tracer.
        Stopped = "stopped",
        /// Not read, or another letter.
        #[default]
        Unknown = "unknown",
    }
);

/// Relation of a thread to its interpreter's global lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Gil {
    /// Not read, or no Python thread.
    #[default]
    Unknown,
    NotHeld,
    Held,
}

/// One thread over one interval. Ticks without a change are merged into one sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    pub thread: ThreadId,
    /// Its stack; `None` only if nothing at all was captured.
    pub stack: Option<StackId>,
    /// Start of the interval, CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// Length of the interval: the true time since the thread's previous sample, not the nominal
    /// period.
    pub weight_ns: u64,
    /// Ticks that it stands for.
    pub ticks: u32,
    pub capture: Capture,
    pub state: ThreadState,
    /// The system call that it was in, by number.
    pub syscall: Option<u32>,
    pub gil: Gil,
    /// The thread that held the lock at that time, if it is known and another one.
    pub gil_holder: Option<ThreadId>,
    /// CPU time of the thread over the interval (schedstat, first field).
    pub run_ns: u64,
    /// Time in which it was runnable but waited for a CPU (schedstat, second field): run queue and
    /// cgroup throttling.
    pub queue_ns: u64,
}
