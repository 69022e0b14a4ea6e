//! What a thread may wait for, with the stable names of each.

use super::named::named;

named!(
    /// What a thread waits for.
    WaitKind {
        /// For work that was queued on the GPU earlier.
        GpuSync = "gpu_sync",
        /// For a copy from or to the GPU, and for the work queued before it.
        GpuCopy = "gpu_copy",
        /// For other ranks, in a collective.
        Collective = "collective",
        /// For the next batch of a DataLoader's workers.
        Input = "input_queue",
        /// For the interpreter's lock, which another thread holds.
        Gil = "gil",
        /// For autograd's threads, in `backward()`.
        Autograd = "autograd",
        /// For other OpenMP threads, at the end of a parallel region.
        Barrier = "omp_barrier",
        /// For a lock, condition, queue or thread.
        Lock = "lock",
        /// For a file.
        Disk = "disk",
        Socket = "socket",
        /// In a read or write of an unknown descriptor: a file, a pipe, a terminal or a socket.
        Io = "io",
        /// For a child process.
        Child = "child",
        /// For any of several events: an event loop.
        Events = "events",
        /// For time to pass.
        Sleep = "sleep",
        /// For a CPU: runnable, but not running.
        Cpu = "cpu",
        /// For the end of a SIGSTOP, or for a debugger.
        Stopped = "stopped",
    }
);

impl WaitKind {
    /// Whether the time is that of work that was queued on the GPU earlier, and not the waiting
    /// line's own.
    pub fn is_for_earlier_work(self) -> bool {
        matches!(self, WaitKind::GpuSync | WaitKind::GpuCopy)
    }
}

/// What a function's rules define for waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WaitPart {
    #[default]
    None,
    /// The call that waits for the GPU, as it is written.
    Gpu(&'static str),
    /// The same, whichever of its parts waits.
    GpuWhole(&'static str),
    /// A method of tensors, by its name in Python.
    Method,
    /// A call of the CUDA runtime or driver that blocks.
    Runtime,
    /// A copy between devices.
    Copies,
    /// A copy from the host to the GPU, according to the driver's call.
    ToDevice,
    /// A copy from the GPU to the host, according to the driver's call.
    ToHost,
    /// A copy from a GPU to itself or to another.
    OnDevice,
    /// The engine of backward, called by a thread that waits for it.
    Engine,
    /// The queue on which a DataLoader's iterator waits for its workers.
    Loader,
    /// A child process.
    Child,
    Socket,
    /// An event loop.
    Events,
    /// `time.sleep`.
    Sleep,
}
