//! Samples: what one thread did over a stretch of time.

use super::ids::{StackId, ThreadId};

/// How a sample's stack was come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Capture {
    /// The thread was stopped for it.
    Stopped,
    /// Read, without a stop, while the thread slept in a system call; the read was checked.
    Asleep,
    /// Read without a stop from a thread that may run (`--nonblocking`); validated against torn
    /// reads.
    Unstopped,
    /// The thread has not been scheduled since its last fresh capture: it keeps the stack that it
    /// had then.
    Reused,
    /// Its stack was not read; what is known of its state was.
    Unread,
}

impl Capture {
    /// Whether the stack was read for this sample, and not taken over from an earlier one.
    pub fn is_fresh(self) -> bool {
        !matches!(self, Capture::Reused | Capture::Unread)
    }
}

/// A thread's state as `/proc/PID/task/TID/stat` names it (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ThreadState {
    /// R: on a CPU, or waiting for one.
    Running,
    /// S: asleep, may be woken by a signal.
    Sleeping,
    /// D: asleep in the kernel, not to be woken.
    Uninterruptible,
    /// T or t: stopped by a signal or a tracer.
    Stopped,
    /// Not read, or another letter.
    Unknown,
}

impl ThreadState {
    /// Every state, in the order of declaration.
    pub const ALL: [ThreadState; 5] = [
        ThreadState::Running,
        ThreadState::Sleeping,
        ThreadState::Uninterruptible,
        ThreadState::Stopped,
        ThreadState::Unknown,
    ];

    /// The stable name, as it stands in outputs for machines.
    pub fn name(self) -> &'static str {
        match self {
            ThreadState::Running => "running",
            ThreadState::Sleeping => "sleeping",
            ThreadState::Uninterruptible => "uninterruptible",
            ThreadState::Stopped => "stopped",
            ThreadState::Unknown => "unknown",
        }
    }
}

/// What a thread had to do with its interpreter's global lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Gil {
    /// Not read, or no Python thread.
    Unknown,
    /// It does not hold the lock.
    NotHeld,
    /// It holds the lock.
    Held,
}

/// One thread over one stretch of time. Ticks in which nothing changed are one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The thread.
    pub thread: ThreadId,
    /// Its stack; `None` only where nothing at all was read.
    pub stack: Option<StackId>,
    /// Start of the stretch, CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// Length of the stretch: the true time since the thread's sample before, not the nominal
    /// period.
    pub weight_ns: u64,
    /// Ticks that it stands for.
    pub ticks: u32,
    /// How the stack was come by.
    pub capture: Capture,
    /// The thread's state.
    pub state: ThreadState,
    /// The system call that it was in, by number.
    pub syscall: Option<u32>,
    /// Whether it held its interpreter's lock.
    pub gil: Gil,
    /// The thread that held the lock at that moment, where it is known and another.
    pub gil_holder: Option<ThreadId>,
    /// CPU time of the thread over the stretch (schedstat, first field).
    pub run_ns: u64,
    /// Time in which it could have run but waited for a CPU (schedstat, second field): run queue
    /// and cgroup throttling.
    pub queue_ns: u64,
}
