//! The two axes of attribution, and the summary's row, with their stable names.

use serde::{Deserialize, Serialize};

macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            /// Every value, in the order of reports.
            pub const ALL: &'static [$name] = &[$($name::$variant,)+];

            /// The stable name, as it stands in reports and JSON.
            pub fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)+
                }
            }
        }
    };
}

named!(
    /// What part of training a moment belongs to.
    Phase {
        /// Getting the next batch.
        Input = "input",
        /// nn.Module calls.
        Forward = "forward",
        /// The autograd engine.
        Backward = "backward",
        /// A forward that is computed again for backward: activation checkpointing.
        Recompute = "recompute",
        /// Optimizer step, zero_grad, lr schedulers.
        Optimizer = "optimizer",
        /// Collectives and the wrappers that issue them.
        Communication = "communication",
        /// torch.compile at work, not the compiled code.
        Compile = "compile",
        /// Saving and loading state.
        Checkpoint = "checkpoint",
        /// Interpreter start and imports.
        Startup = "startup",
        /// Interpreter exit: modules are torn down, exit handlers and destructors of libraries run.
        Shutdown = "shutdown",
        /// What a trainer built upon torch does around all that: hooks, callbacks, logging of
        /// Lightning, the Transformers Trainer, Accelerate.
        Framework = "framework",
        /// None of the above: the script's own code.
        User = "user",
        /// The first region that the user named. What it is called is in the recording:
        /// [`Profile::phase_name`](super::profile::Profile::phase_name).
        Region1 = "region_1",
        /// The second, and so on.
        Region2 = "region_2",
        /// A region.
        Region3 = "region_3",
        /// A region.
        Region4 = "region_4",
        /// A region.
        Region5 = "region_5",
        /// A region.
        Region6 = "region_6",
        /// A region.
        Region7 = "region_7",
        /// A region.
        Region8 = "region_8",
        /// A region.
        Region9 = "region_9",
        /// A region.
        Region10 = "region_10",
        /// A region.
        Region11 = "region_11",
        /// A region.
        Region12 = "region_12",
    }
);

impl Phase {
    /// The phases that torchspy knows of itself, in the order of reports.
    pub const BUILT_IN: &'static [Phase] = Phase::ALL.split_at(Phase::Region1 as usize).0;
    /// Places for regions that the user names.
    pub const REGIONS: &'static [Phase] = Phase::ALL.split_at(Phase::Region1 as usize).1;

    /// Which of the user's regions it is, counted from 0; `None` of a phase that torchspy knows of
    /// itself.
    pub fn region(self) -> Option<usize> {
        (self as usize).checked_sub(Self::BUILT_IN.len())
    }
}

named!(
    /// What a thread did in a moment.
    Activity {
        /// ATen kernels on the CPU.
        AtenCompute = "aten_compute",
        /// Matrix products and oneDNN primitives on the CPU.
        Gemm = "gemm_onednn",
        /// Dispatcher, Python bindings and wrappers around operators.
        Dispatch = "dispatch",
        /// The autograd engine's own work.
        Autograd = "autograd",
        /// CUDA kernel launches.
        GpuLaunch = "gpu_launch",
        /// Waiting for the GPU.
        GpuSync = "gpu_sync",
        /// Copies to, from and on the GPU, as the host sees them.
        GpuCopy = "gpu_copy",
        /// Device memory allocation.
        GpuAlloc = "gpu_alloc",
        /// A collective being issued.
        CollectiveCall = "collective_call",
        /// Waiting for a collective on the host.
        CollectiveWait = "collective_wait",
        /// The interpreter itself, and C code of Python's own library.
        Python = "python",
        /// Waiting for the GIL.
        GilWait = "gil_wait",
        /// Waiting for a lock, condition, queue or thread.
        LockWait = "lock_wait",
        /// Files, pipes and sockets.
        Io = "io",
        /// OpenMP workers and barriers that wait for work.
        OmpIdle = "omp_idle",
        /// Runnable, but without a CPU.
        CpuWait = "cpu_wait",
        /// Asleep by its own wish, or waiting for events.
        Sleep = "sleep",
        /// Native code that no rule knows.
        NativeOther = "native_other",
        /// Nothing to go by.
        Unclassified = "unclassified",
    }
);

named!(
    /// The summary's rows: one word for a moment of the training thread.
    SummaryRow {
        /// The host computes, or dispatches work to a device.
        HostComputation = "host_computation",
        /// Waiting for other OpenMP threads at the end of a parallel region.
        OmpBarrier = "omp_barrier",
        /// Collectives.
        Communication = "communication",
        /// Waiting for, or making, the next batch.
        Input = "input",
        /// Waiting for the GPU.
        GpuWait = "gpu_wait",
        /// Python code outside operators, and waits for the interpreter's lock.
        Python = "python",
        /// Runnable, but without a CPU.
        CpuWait = "cpu_wait",
        /// torch.compile at work, not the compiled code.
        Compile = "compile",
        /// Interpreter start and imports.
        Startup = "startup",
        /// Known, and none of the above: locks, I/O, sleep, checkpoints.
        Other = "other",
        /// Not known.
        Unclassified = "unclassified",
    }
);

named!(
    /// What kind of code one frame is: the colour of a flamegraph.
    FrameKind {
        /// The user's Python code.
        PythonUser = "python (your code)",
        /// Python code of torch and its ecosystem.
        PythonTorch = "python (torch)",
        /// Other Python libraries and the standard library.
        PythonLibrary = "python (libraries)",
        /// ATen and C++ kernels of torch.
        Aten = "aten",
        /// oneDNN, MKL, BLAS.
        Gemm = "gemm / oneDNN",
        /// Autograd engine and nodes.
        Autograd = "autograd",
        /// c10d, NCCL, Gloo.
        Communication = "communication",
        /// CUDA runtime, driver, libraries.
        Cuda = "cuda",
        /// DataLoader machinery.
        DataLoader = "dataloader",
        /// Optimizers.
        Optimizer = "optimizer",
        /// OpenMP runtime.
        OpenMp = "openmp",
        /// Waits: locks, system calls, GIL.
        Wait = "wait",
        /// The interpreter's own C code.
        Interpreter = "interpreter",
        /// Dispatcher and binding plumbing.
        Plumbing = "dispatch",
        /// Other native code.
        Native = "native",
        /// Markers: truncated stacks, thread and process roots.
        Marker = "marker",
    }
);
