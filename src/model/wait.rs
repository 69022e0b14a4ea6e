//! What a thread may wait for, with the stable names of each.

use serde::{Deserialize, Serialize};

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WaitKind {
    /// For work that was queued on the GPU earlier.
    GpuSync,
    /// For a copy from or to the GPU, and for the work queued before it.
    GpuCopy,
    /// For other ranks, in a collective.
    Collective,
    /// For the next batch of a DataLoader's workers.
    Input,
    /// For the interpreter's lock, which another thread holds.
    Gil,
    /// For autograd's threads, in `backward()`.
    Autograd,
    /// For other OpenMP threads, at the end of a parallel region.
    Barrier,
    /// For a lock, condition, queue or thread.
    Lock,
    /// For a file.
    Disk,
    /// For a socket.
    Socket,
    /// In a read or write of which is not known whether it is of a file, a pipe, a terminal or a
    /// socket.
    Io,
    /// For a child process.
    Child,
    /// For any of several events: an event loop.
    Events,
    /// For time to pass.
    Sleep,
    /// For a CPU: runnable, but not run.
    Cpu,
    /// For the end of a SIGSTOP, or for a debugger.
    Stopped,
}

impl WaitKind {
    /// Every kind, in the order of reports.
    pub const ALL: [WaitKind; 16] = [
        WaitKind::GpuSync,
        WaitKind::GpuCopy,
        WaitKind::Collective,
        WaitKind::Input,
        WaitKind::Gil,
        WaitKind::Autograd,
        WaitKind::Barrier,
        WaitKind::Lock,
        WaitKind::Disk,
        WaitKind::Socket,
        WaitKind::Io,
        WaitKind::Child,
        WaitKind::Events,
        WaitKind::Sleep,
        WaitKind::Cpu,
        WaitKind::Stopped,
    ];

    /// The stable name, as it stands in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            WaitKind::GpuSync => "gpu_sync",
            WaitKind::GpuCopy => "gpu_copy",
            WaitKind::Collective => "collective",
            WaitKind::Input => "input_queue",
            WaitKind::Gil => "gil",
            WaitKind::Autograd => "autograd",
            WaitKind::Barrier => "omp_barrier",
            WaitKind::Lock => "lock",
            WaitKind::Disk => "disk",
            WaitKind::Socket => "socket",
            WaitKind::Io => "io",
            WaitKind::Child => "child",
            WaitKind::Events => "events",
            WaitKind::Sleep => "sleep",
            WaitKind::Cpu => "cpu",
            WaitKind::Stopped => "stopped",
        }
    }

    /// Whether the time is that of work which was queued on the GPU earlier, and not the waiting
    /// line's own.
    pub fn is_for_earlier_work(self) -> bool {
        matches!(self, WaitKind::GpuSync | WaitKind::GpuCopy)
    }
}

/// What a function tells of a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WaitPart {
    /// Nothing.
    #[default]
    None,
    /// The call that waits for the GPU, as it is written.
    Gpu(&'static str),
    /// A method of tensors, by its name in Python.
    Method,
    /// A call of the CUDA runtime or driver that blocks.
    Runtime,
    /// A copy between devices.
    Copies,
    /// A copy from the host to the GPU, as the driver's call says.
    ToDevice,
    /// A copy from the GPU to the host, likewise.
    ToHost,
    /// The engine of backward, called by a thread that waits for it.
    Engine,
    /// The queue on which a DataLoader's iterator waits for its workers.
    Loader,
    /// A child process.
    Child,
    /// A socket.
    Socket,
    /// An event loop.
    Events,
    /// `time.sleep`.
    Sleep,
}
