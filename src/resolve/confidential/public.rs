//! Names that stay: they are torch's, Python's, the system's or torchspy's own.

use crate::model::progress::facts;
use crate::torch::rules::SOURCES;
use regex::RegexSet;
use rustc_hash::FxHashSet;
use std::sync::OnceLock;

/// Names that Python or torch gives a function that the user writes. Source: "Data model" of the
/// Python 3.15 reference; torch.autograd.Function; torch.utils.data.Dataset.
pub(super) const FUNCTIONS: &[&str] = &[
    "<module>",
    "<lambda>",
    "<listcomp>",
    "<setcomp>",
    "<dictcomp>",
    "<genexpr>",
    "forward",
    "backward",
    "__aenter__",
    "__aexit__",
    "__aiter__",
    "__anext__",
    "__call__",
    "__contains__",
    "__del__",
    "__delattr__",
    "__delitem__",
    "__enter__",
    "__eq__",
    "__exit__",
    "__format__",
    "__get__",
    "__getattr__",
    "__getattribute__",
    "__getitem__",
    "__getitems__",
    "__getstate__",
    "__hash__",
    "__init__",
    "__init_subclass__",
    "__iter__",
    "__len__",
    "__lt__",
    "__missing__",
    "__new__",
    "__next__",
    "__post_init__",
    "__reduce__",
    "__repr__",
    "__reversed__",
    "__set__",
    "__set_name__",
    "__setattr__",
    "__setitem__",
    "__setstate__",
    "__str__",
    "__torch_dispatch__",
    "__torch_function__",
];

/// What stands for a native function without a name.
pub(super) const MARKERS: &[&str] = &["[anonymous code]"];

/// The kernel's and torchspy's names for memory without a file (proc_pid_maps(5)).
pub(super) const MEMORY: &[&str] = &[
    "[vdso]",
    "[vsyscall]",
    "[heap]",
    "[stack]",
    "[anonymous]",
    "[unknown]",
];

/// What waits are called, besides calls and operators: `torch/waits.rs`; and operators and nodes
/// without a name.
pub(super) const LABELS: &[&str] = &[
    "",
    "GIL",
    "GPU",
    "OpenMP barrier",
    "DataLoader queue",
    "full DataLoader queue",
    "stopped by a signal or a debugger",
    "backward()",
    "time.sleep()",
    "a lock",
    "page fault or driver",
    "a call that was not read",
    "host to GPU",
    "GPU to host",
    "GPU to GPU",
    "pageable memory",
    "not non_blocking",
    "kernel without a name",
    "autograd.Function in Python",
];

/// Values of settings, besides numbers.
pub(super) const VALUES: &[&str] = &[
    "",
    "true",
    "false",
    "True",
    "False",
    "all",
    "none",
    "void",
    "localhost",
    "127.0.0.1",
    "unknown",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
];

/// Facts about counters' objects, and conditions.
pub(super) const FACTS: &[&str] = &[
    facts::FUNCTION,
    facts::BATCH_SIZE,
    facts::WORKERS,
    facts::PIN_MEMORY,
    facts::PREFETCH,
    facts::DATASET,
    facts::PARAMETER_DTYPE,
    facts::PARAMETERS,
    facts::TORCH,
    facts::TORCH_CUDA,
    facts::CPU_QUOTA,
    facts::AFFINITY,
    facts::AUTOCAST,
    facts::DEVICE_MESH,
    facts::PARALLEL_GROUPS,
    facts::NCCL_RAS,
];

/// Usual names of a mesh's dimensions. Source: torchtitan 0.2 (distributed/parallel_dims.py), torch
/// 2.15 (the examples of torch/distributed/device_mesh.py).
pub(super) const DIMENSIONS: &[&str] = &[
    "batch",
    "cp",
    "ddp",
    "dp",
    "dp_replicate",
    "dp_shard",
    "ep",
    "etp",
    "fsdp",
    "pipe",
    "pipeline",
    "pipeline_parallel",
    "pp",
    "replicate",
    "shard",
    "sp",
    "stage",
    "tp",
];

/// Of these, numbers with points.
pub(super) const VERSIONS: &[&str] = &[facts::TORCH, facts::TORCH_CUDA, facts::CPU_QUOTA];

/// Beginnings of threads' names; digits may follow. Sources: strings of the binaries of torch
/// 2.15.0; CUDA driver 570; Lib/threading.py, Lib/multiprocessing/queues.py and
/// Lib/concurrent/futures/thread.py of CPython 3.15.
pub(super) const THREADS: &[&str] = &[
    "pt_autograd_",
    "pt_data_pin",
    "pt_data_worker",
    "pt_dist_engine",
    "pt_elastic",
    "pt_gloo_",
    "pt_gloo_runloop",
    "pt_main_thread",
    "pt_nccl_",
    "pt_nccl_heartbt",
    "pt_nccl_watchdg",
    "pt_tcpstore",
    "pt_tcpstore_uv",
    "pt_thread_pool",
    "pt_thread_pool_",
    "cuda",
    "cuda-EvtHandlr",
    "MainThread",
    "QueueFeeder",
    "QueueFeederThre",
    "Thread-",
    "ThreadPoolExec",
    "asyncio_",
    "nvml",
];

/// Launchers as modules: `python -m torch.distributed.run`.
pub(super) const LAUNCHERS: &[&str] = &[
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.launch",
    "ipykernel_launcher",
];

/// Programs that start trainers, and that trainers start; python is one, too.
const PROGRAMS: &[&str] = &[
    "accelerate",
    "as",
    "bash",
    "c++",
    "cc",
    "cc1",
    "cc1plus",
    "cicc",
    "clang",
    "clang++",
    "collect2",
    "cudafe++",
    "deepspeed",
    "env",
    "fatbinary",
    "g++",
    "gcc",
    "git",
    "ipython",
    "jupyter",
    "ld",
    "mpiexec",
    "mpirun",
    "ninja",
    "nvcc",
    "nvidia-smi",
    "orted",
    "ptxas",
    "sh",
    "srun",
    "ssh",
    "torchrun",
    "torchspy",
    "uv",
];

/// Whether the file name of a program is python's or another that is known everywhere.
pub(super) fn is_program(name: &str) -> bool {
    is_python(name) || PROGRAMS.contains(&name)
}

/// `python3.14t`.
pub(super) fn is_python(name: &str) -> bool {
    name.strip_prefix("python").is_some_and(|version| {
        let version = version.strip_suffix('t').unwrap_or(version);
        let mut bytes = version.bytes();
        bytes.all(|byte| byte.is_ascii_digit() || byte == b'.')
    })
}

/// Whether torchspy's own rules have a call, as the label of a wait has it.
pub(super) fn is_rule_call(text: &str) -> bool {
    is_in_rules(&["\"gpu ", "\"gpu_whole ", "call = \""], text)
}

/// Whether torchspy's own rules name a collective so.
pub(super) fn is_rule_collective(text: &str) -> bool {
    is_in_rules(&["name = \""], text)
}

fn is_in_rules(before: &[&str], text: &str) -> bool {
    let values: Vec<String> = before.iter().map(|key| format!("{key}{text}\"")).collect();
    let mut sources = SOURCES.iter();
    sources.any(|(_, source)| values.iter().any(|value| source.contains(value)))
}

/// Whether a note is a sentence of torchspy's in which no name is.
pub(super) fn is_own_note(note: &str) -> bool {
    static NOTES: OnceLock<Option<RegexSet>> = OnceLock::new();
    let notes = NOTES.get_or_init(|| {
        RegexSet::new([
            r"^(torchspy's own )?cgroup quota [0-9.]+ CPUs$",
            r"^the kernel samples running threads(, outside of the kernel only)? \(perf events\): no stops(, unless it has nothing left for that)?$",
            r"^recorded inside (Kubernetes|Docker|Podman|Apptainer|containerd)$",
            r"^additional rules \(--rules\): [0-9]+, which matched [0-9]+ functions$",
            r"^still being recorded: this is what there was at [0-9: -]+ UTC, [0-9.]+ s after the start$",
            r"^command line unknown: its memory does not answer$",
            r"^only ranks [0-9a-z:%., -]+ are sampled \(--ranks\)$",
            r"^begun by torchspy trigger$",
            r"^left out by --ranks: rank [0-9]+$",
            r"^not a Python process$",
            r"^Python is still starting$",
            r"^PyPy, another implementation of Python than CPython: its Python frames are left out$",
            r"^a 32-bit program: torchspy reads those of 64 bits$",
            r"^a program of Windows, under Wine: its Python frames are left out$",
            r"^(Python )?[0-9.]+ is (older than 3\.10|newer than this torchspy knows: its Python frames are left out)$",
            r"^the interpreter('s state makes no sense| cannot be read): [a-z0-9 ,]+$",
            r"^older than 3\.10: Python frames only, read without a stop$",
            r"^its file was replaced, cut short or rewritten, or cannot be read$",
            r"^functions of it may lack their names$",
        ])
        .ok()
    });
    notes.as_ref().is_some_and(|notes| notes.is_match(note))
}

/// Classes of torch. The first line says where they come from.
pub(super) fn torch_classes() -> &'static FxHashSet<&'static str> {
    static CLASSES: OnceLock<FxHashSet<&'static str>> = OnceLock::new();
    CLASSES.get_or_init(|| {
        let lines = include_str!("torch_classes.txt").lines();
        lines.filter(|line| !line.starts_with('#')).collect()
    })
}
