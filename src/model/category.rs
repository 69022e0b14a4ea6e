//! The two axes of attribution, and the summary's row, with their stable names.

use super::named::named;

named!(
    /// The part of training that a sample belongs to.
    #[derive(Default)]
    Phase {
        /// Getting the next batch.
        Input = "input",
        /// nn.Module calls.
        Forward = "forward",
        /// The autograd engine.
        Backward = "backward",
        /// A forward that is recomputed for backward: activation checkpointing.
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
        /// Code of trainers built upon torch around all that: hooks, callbacks, logging of
        /// Lightning, the Transformers Trainer, Accelerate.
        Framework = "framework",
        /// None of the above: the script's own code.
        #[default]
        User = "user",
        /// The first region that the user named. Its name is in the recording:
        /// [`Profile::phase_name`](super::profile::Profile::phase_name).
        Region1 = "region_1",
        Region2 = "region_2",
        Region3 = "region_3",
        Region4 = "region_4",
        Region5 = "region_5",
        Region6 = "region_6",
        Region7 = "region_7",
        Region8 = "region_8",
        Region9 = "region_9",
        Region10 = "region_10",
        Region11 = "region_11",
        Region12 = "region_12",
    }
);

impl Phase {
    /// The phases that torchspy defines, in the order of reports.
    pub const BUILT_IN: &'static [Phase] = Phase::ALL.split_at(Phase::Region1 as usize).0;
    /// Phases for regions that the user names.
    pub const REGIONS: &'static [Phase] = Phase::ALL.split_at(Phase::Region1 as usize).1;

    /// Index of the user's region, from 0; `None` for a phase that torchspy defines.
    pub fn region(self) -> Option<usize> {
        (self as usize).checked_sub(Self::BUILT_IN.len())
    }
}

/// Defines the activities: the name of each, its label in a column of eight characters, and its
/// group.
macro_rules! activities {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $label:literal, $group:ident;)+) => {
        named!(
            /// What a thread did in a sample.
            #[derive(Default)]
            Activity { $($(#[$doc])* $variant = $text,)+ }
        );

        impl Activity {
            /// Its name in a column of eight characters.
            pub fn label(self) -> &'static str {
                match self {
                    $(Activity::$variant => $label,)+
                }
            }

            /// Its group in the summary and the verdict.
            pub fn group(self) -> ActivityGroup {
                match self {
                    $(Activity::$variant => ActivityGroup::$group,)+
                }
            }
        }
    };
}

/// Groups of activities that the summary and the verdict treat alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivityGroup {
    /// Operators' own work on the CPU.
    Compute,
    /// torch's machinery around operators.
    Dispatch,
    /// The host's side of the GPU.
    Gpu,
    /// Collectives.
    Collective,
    /// The interpreter, waits, and unknown activities: each is a group of its own.
    Alone,
}

activities!(
    /// ATen kernels on the CPU.
    AtenCompute = "aten_compute", "aten", Compute;
    /// Matrix products and oneDNN primitives on the CPU.
    Gemm = "gemm_onednn", "gemm", Compute;
    /// Copies of tensors in the host's memory: contiguous(), clone(), cat(), changes of type and
    /// layout.
    TensorCopy = "tensor_copy", "copy", Compute;
    /// Dispatcher, Python bindings and wrappers around operators.
    Dispatch = "dispatch", "dispatch", Dispatch;
    /// The autograd engine's own work.
    Autograd = "autograd", "autograd", Dispatch;
    /// CUDA kernel launches.
    GpuLaunch = "gpu_launch", "launch", Gpu;
    /// Waiting for the GPU.
    GpuSync = "gpu_sync", "gpu sync", Gpu;
    /// Copies to, from and on the GPU, as the host sees them.
    GpuCopy = "gpu_copy", "gpu copy", Gpu;
    /// Device memory allocation.
    GpuAlloc = "gpu_alloc", "gpu mem", Gpu;
    /// A collective being issued.
    CollectiveCall = "collective_call", "coll", Collective;
    /// Waiting for a collective on the host.
    CollectiveWait = "collective_wait", "collwait", Collective;
    /// The interpreter itself, and C code of Python's own library.
    Python = "python", "python", Alone;
    /// Waiting for the GIL.
    GilWait = "gil_wait", "gil wait", Alone;
    /// Waiting for a lock, condition, queue or thread.
    LockWait = "lock_wait", "lock", Alone;
    /// Files, pipes and sockets.
    Io = "io", "io", Alone;
    /// OpenMP workers and barriers that wait for work.
    OmpIdle = "omp_idle", "omp idle", Alone;
    /// Runnable, but without a CPU.
    CpuWait = "cpu_wait", "cpu wait", Alone;
    /// Asleep by its own call, or waiting for events.
    Sleep = "sleep", "sleep", Alone;
    /// Native code without a rule.
    NativeOther = "native_other", "native", Alone;
    /// No frame decides.
    #[default]
    Unclassified = "unclassified", "unknown", Alone;
);

named!(
    /// The summary's rows: one word for what the training thread did.
    #[derive(Default)]
    SummaryRow {
        /// The host computes, or dispatches work to a device.
        HostComputation = "host_computation",
        /// Waiting for other OpenMP threads at the end of a parallel region.
        OmpBarrier = "omp_barrier",
        /// Collectives.
        Communication = "communication",
        /// Waiting for, or making, the next batch.
        Input = "input",
        GpuWait = "gpu_wait",
        /// Python code outside operators, and waits for the interpreter's lock.
        Python = "python",
        /// Runnable, but without a CPU.
        CpuWait = "cpu_wait",
        /// torch.compile at work, not the compiled code.
        Compile = "compile",
        /// Interpreter start and imports.
        Startup = "startup",
        /// Interpreter exit.
        Shutdown = "shutdown",
        /// Known, and none of the above: locks, I/O, sleep, checkpoints.
        Other = "other",
        /// Not known.
        #[default]
        Unclassified = "unclassified",
    }
);

named!(
    /// What kind of code one frame is: the colour of a flamegraph.
    #[derive(Default)]
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
        #[default]
        Marker = "marker",
    }
);
