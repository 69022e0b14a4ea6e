//! Which frames and threads belong to which phase of training.

use super::frameworks::FRAMEWORK_PHASES;
use crate::model::category::Phase;

/// How a frame takes part in finding the phase. The module above says in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PhaseMark {
    /// All that runs inside of this frame, whatever it is.
    Whole(Phase),
    /// This frame and what it calls, down to the next strong mark.
    Strong(Phase),
    /// As a strong mark; but a forward inside of it belongs to it, if no backward stands between.
    Again(Phase),
    /// Code of a file that serves a phase, but is also run by imports.
    Weak(Phase),
    /// Machinery that runs a training for its user: decides where nothing else does, and no code of the user's is nearer.
    Around(Phase),
    /// The import machinery.
    Import,
    /// Looks like a weak mark's file, but is run in training.
    None,
}

use PhaseMark::{Again, Import, None as NoMark, Strong, Weak, Whole};

/// One row: where a Python function is, and what that means.
#[derive(Clone, Copy, Debug)]
pub struct PhaseRule {
    /// Part of the file's path.
    pub file: &'static str,
    /// Last part of the function's qualified name; `*` for every function but a module's body.
    pub function: &'static str,
    /// What it means.
    pub mark: PhaseMark,
}

pub(super) const fn rule(file: &'static str, function: &'static str, mark: PhaseMark) -> PhaseRule {
    PhaseRule {
        file,
        function,
        mark,
    }
}

/// Python frames; first match. Source: the named files of torch 2.15.0; "stable" in the comments means the same in 2.0,
/// 2.4, 2.7, 2.10 and 2.15. Functions are named by their last part, for Python 3.10 records no more.
pub const PYTHON_PHASES: &[PhaseRule] = &[
    // Input. A fetch runs the user's dataset and transforms, which may be nn.Modules (torchvision): hence whole. Stable.
    rule(
        "torch/utils/data/_utils/worker.py",
        "_worker_loop",
        Whole(Phase::Input),
    ),
    rule(
        "torch/utils/data/_utils/pin_memory.py",
        "_pin_memory_loop",
        Whole(Phase::Input),
    ),
    rule(
        "torch/utils/data/_utils/fetch.py",
        "fetch",
        Whole(Phase::Input),
    ),
    rule(
        "torch/utils/data/_utils/collate.py",
        "*",
        Whole(Phase::Input),
    ),
    rule(
        "torch/utils/data/dataloader.py",
        "_next_data",
        Whole(Phase::Input),
    ),
    rule(
        "torch/utils/data/dataloader.py",
        "_try_get_data",
        Whole(Phase::Input),
    ),
    // Weak: bodies of classes and decorators run when it is imported.
    rule("torch/utils/data/", "*", Weak(Phase::Input)),
    // Optimizer: `Optimizer.profile_hook_step.<locals>.wrapper` surrounds every step; lr_scheduler wraps it again. Stable.
    rule(
        "torch/optim/optimizer.py",
        "wrapper",
        Strong(Phase::Optimizer),
    ),
    rule(
        "torch/optim/optimizer.py",
        "zero_grad",
        Strong(Phase::Optimizer),
    ),
    rule(
        "torch/nn/modules/module.py",
        "zero_grad",
        Strong(Phase::Optimizer),
    ),
    rule(
        "torch/optim/lr_scheduler.py",
        "step",
        Strong(Phase::Optimizer),
    ),
    rule("torch/optim/", "step", Strong(Phase::Optimizer)),
    rule("torch/nn/utils/clip_grad.py", "*", Weak(Phase::Optimizer)),
    rule("torch/amp/grad_scaler.py", "step", Strong(Phase::Optimizer)),
    rule(
        "torch/amp/grad_scaler.py",
        "unscale_",
        Strong(Phase::Optimizer),
    ),
    rule(
        "torch/amp/grad_scaler.py",
        "update",
        Strong(Phase::Optimizer),
    ),
    rule(
        "torch/cuda/amp/grad_scaler.py",
        "step",
        Strong(Phase::Optimizer),
    ),
    // Backward: 2.1 and later in graph.py, before in autograd/__init__.py.
    rule(
        "torch/autograd/graph.py",
        "_engine_run_backward",
        Strong(Phase::Backward),
    ),
    rule(
        "torch/autograd/__init__.py",
        "backward",
        Strong(Phase::Backward),
    ),
    rule(
        "torch/autograd/__init__.py",
        "grad",
        Strong(Phase::Backward),
    ),
    rule("torch/_tensor.py", "backward", Strong(Phase::Backward)),
    // Activation checkpointing, inside of the engine: `CheckpointFunction.backward` (reentrant, stable), and
    // `unpack_hook`, which calls `recompute_fn` (not reentrant; 2.1 and later, in 2.0 `unpack`).
    rule(
        "torch/utils/checkpoint.py",
        "backward",
        Again(Phase::Recompute),
    ),
    rule(
        "torch/utils/checkpoint.py",
        "unpack_hook",
        Again(Phase::Recompute),
    ),
    rule(
        "torch/utils/checkpoint.py",
        "recompute_fn",
        Again(Phase::Recompute),
    ),
    rule(
        "torch/utils/checkpoint.py",
        "unpack",
        Again(Phase::Recompute),
    ),
    // Forward: nested per module. `_wrapped_call_impl` in 2.4 and later, where `inner` is nested in `_call_impl`.
    rule(
        "torch/nn/modules/module.py",
        "_call_impl",
        Strong(Phase::Forward),
    ),
    rule(
        "torch/nn/modules/module.py",
        "_wrapped_call_impl",
        Strong(Phase::Forward),
    ),
    // Checkpoint, before the rows of torch/distributed.
    rule("torch/serialization.py", "*", Weak(Phase::Checkpoint)),
    rule(
        "torch/distributed/checkpoint/",
        "*",
        Weak(Phase::Checkpoint),
    ),
    // Communication. What DDP's own forward does around the module's is forward: the buffers that it sends have functions of their own.
    rule("torch/nn/parallel/distributed.py", "forward", NoMark),
    rule("torch/nn/parallel/distributed.py", "_pre_forward", NoMark),
    rule(
        "torch/nn/parallel/distributed.py",
        "_run_ddp_forward",
        NoMark,
    ),
    rule(
        "torch/nn/parallel/distributed.py",
        "_inside_ddp_forward",
        NoMark,
    ),
    rule("torch/nn/parallel/distributed.py", "_post_forward", NoMark),
    rule(
        "torch/nn/parallel/distributed.py",
        "*",
        Weak(Phase::Communication),
    ),
    rule("torch/nn/parallel/comm.py", "*", Weak(Phase::Communication)),
    rule("torch/distributed/fsdp/", "*", Weak(Phase::Communication)),
    rule(
        "torch/distributed/_composable/",
        "*",
        Weak(Phase::Communication),
    ),
    rule(
        "torch/distributed/distributed_c10d.py",
        "*",
        Weak(Phase::Communication),
    ),
    rule(
        "torch/distributed/_functional_collectives.py",
        "*",
        Weak(Phase::Communication),
    ),
    rule(
        "torch/distributed/device_mesh.py",
        "*",
        Weak(Phase::Communication),
    ),
    rule(
        "torch/distributed/rendezvous.py",
        "*",
        Weak(Phase::Communication),
    ),
    // Compile: the compiler at work, and not the code that it made or the frames through which that is called. What it runs to
    // trace a graph (modules, `autograd.grad`) is compiling all the same: hence whole. Backward's graph may be compiled when it is
    // first called.
    rule(
        "torch/_dynamo/convert_frame.py",
        "_compile",
        Whole(Phase::Compile),
    ),
    rule(
        "torch/_inductor/compile_fx.py",
        "compile_fx_inner",
        Whole(Phase::Compile),
    ),
    rule(
        "torch/_functorch/_aot_autograd/runtime_wrappers.py",
        "get_or_compile",
        Whole(Phase::Compile),
    ),
    // Wrappers that AOTAutograd writes at run time have this file and more behind it: `codegen.py:codegen(runtime_wrapper)`.
    rule(
        "torch/_functorch/_aot_autograd/codegen.py:codegen(",
        "*",
        NoMark,
    ),
    rule("torch/_functorch/aot_autograd.py", "forward", NoMark),
    // What switches the compiler on and off around a function: FSDP2 does so with every hook.
    rule("torch/_dynamo/eval_frame.py", "*", NoMark),
    rule("torch/_dynamo/decorators.py", "*", NoMark),
    rule("torch/_dynamo/external_utils.py", "*", NoMark),
    rule("torch/_dynamo/callback.py", "*", NoMark),
    rule(
        "torch/_inductor/runtime/triton_heuristics.py",
        "run",
        NoMark,
    ),
    rule(
        "torch/_inductor/runtime/static_triton_launcher.py",
        "run",
        NoMark,
    ),
    rule("torch/_inductor/output_code.py", "__call__", NoMark),
    rule("torch/_inductor/utils.py", "run", NoMark),
    rule("torch/_inductor/cudagraph_trees.py", "*", NoMark),
    rule(
        "torch/_functorch/_aot_autograd/runtime_wrappers.py",
        "*",
        NoMark,
    ),
    rule("torch/_functorch/_aot_autograd/utils.py", "*", NoMark),
    rule(
        "torch/_functorch/_aot_autograd/standalone_runtime.py",
        "*",
        NoMark,
    ),
    rule("torch/fx/graph_module.py", "call_wrapped", NoMark),
    rule("torch/fx/graph_module.py", "__call__", NoMark),
    rule("triton/runtime/jit.py", "run", NoMark),
    rule("triton/runtime/jit.py", "<lambda>", NoMark),
    rule("triton/backends/", "__call__", NoMark),
    rule("torch/_dynamo/", "*", Weak(Phase::Compile)),
    rule("torch/_inductor/", "*", Weak(Phase::Compile)),
    rule("torch/_functorch/_aot_autograd/", "*", Weak(Phase::Compile)),
    rule(
        "torch/_functorch/aot_autograd.py",
        "*",
        Weak(Phase::Compile),
    ),
    rule(
        "torch/_functorch/partitioners.py",
        "*",
        Weak(Phase::Compile),
    ),
    rule("torch/_functorch/compile", "*", Weak(Phase::Compile)),
    rule("torch/fx/", "*", Weak(Phase::Compile)),
    rule("triton/compiler/", "*", Weak(Phase::Compile)),
    rule("triton/runtime/autotuner.py", "*", Weak(Phase::Compile)),
    rule("triton/runtime/jit.py", "*", Weak(Phase::Compile)),
    rule("triton/backends/", "*", Weak(Phase::Compile)),
    // Imports (CPython, Lib/importlib/_bootstrap.py, frozen since 3.3).
    rule("<frozen importlib", "*", Import),
];

/// Native frames, by the beginning of the qualified name. Source: nm -C of libtorch_cpu 2.15.0 and libpython 3.10-3.13.
/// The backward engine runs on threads without Python frames too.
pub const NATIVE_PHASES: &[(&str, PhaseMark)] = &[
    (
        "torch::autograd::Engine::thread_main",
        Strong(Phase::Backward),
    ),
    (
        "torch::autograd::Engine::evaluate_function",
        Strong(Phase::Backward),
    ),
    (
        "torch::autograd::python::PythonEngine::execute",
        Strong(Phase::Backward),
    ),
    // Interpreter exit (CPython, Python/pylifecycle.c). `threading._shutdown`, atexit functions and the tear-down of modules run inside.
    // From 3.13 on `Py_RunMain` calls `_Py_Finalize`, which is local: a stripped interpreter shows what that calls.
    ("Py_Finalize", Whole(Phase::Shutdown)),
    ("_Py_Finalize", Whole(Phase::Shutdown)),
    ("finalize_modules", Whole(Phase::Shutdown)),
    ("_PyAtExit_Call", Whole(Phase::Shutdown)),
    ("atexit_callfuncs", Whole(Phase::Shutdown)),
    ("Py_InitializeFromConfig", Import),
    ("pymain_init", Import),
    ("_dl_start", Import),
];

/// Threads, by the beginning of their name. Source: strings of the 2.15.0 binaries.
pub const THREAD_PHASES: &[(&str, Phase)] = &[
    ("pt_autograd_", Phase::Backward),
    ("pt_nccl_", Phase::Communication),
    ("pt_gloo_", Phase::Communication),
    ("pt_tcpstore", Phase::Communication),
    ("pt_dist_engine", Phase::Communication),
    ("pt_data_pin", Phase::Input),
    ("pt_data_worker", Phase::Input),
];

/// What a function of the user's own that makes the next batch is called, where no DataLoader does. A name is a promise and no
/// proof, but it is what the user calls it.
const BATCH_MAKERS: &[&str] = &[
    "get_batch",
    "get_next_batch",
    "next_batch",
    "load_batch",
    "load_next_batch",
    "fetch_batch",
    "sample_batch",
    "make_batch",
];

/// Whether a function of the user's own of this name makes a batch.
pub fn makes_batch(name: &str) -> bool {
    BATCH_MAKERS.contains(&name.trim_start_matches('_'))
}

/// The phase mark of a Python function.
pub fn python_mark(file: &str, function: &str) -> Option<PhaseMark> {
    let last = last_part(function);
    let is_body = last == "<module>";
    PYTHON_PHASES
        .iter()
        .chain(FRAMEWORK_PHASES)
        .find(|rule| {
            let named = if rule.function == "*" {
                !is_body || rule.mark == Import
            } else {
                rule.function == last
            };
            named && has_path(file, rule.file)
        })
        .map(|rule| rule.mark)
        .filter(|&mark| mark != NoMark)
}

/// The phase mark of a native function, by its qualified name.
pub fn native_mark(qualified: &str) -> Option<PhaseMark> {
    NATIVE_PHASES
        .iter()
        .find(|(start, _)| qualified.starts_with(start))
        .map(|&(_, mark)| mark)
}

/// The phase that a thread's name stands for.
pub fn thread_phase(name: &str) -> Option<Phase> {
    THREAD_PHASES
        .iter()
        .find(|(start, _)| name.starts_with(start))
        .map(|&(_, phase)| phase)
}

/// `wrapper` of `Optimizer.profile_hook_step.<locals>.wrapper`.
pub fn last_part(qualified: &str) -> &str {
    qualified.rsplit('.').next().unwrap_or(qualified)
}

/// Whether `path` contains `part` from the start of a directory name on.
pub fn has_path(path: &str, part: &str) -> bool {
    let mut from = 0;
    while let Some(found) = path.get(from..).and_then(|rest| rest.find(part)) {
        let at = from + found;
        if at == 0 || path.as_bytes().get(at - 1) == Some(&b'/') {
            return true;
        }
        from = at + 1;
        while !path.is_char_boundary(from) {
            from += 1;
        }
    }
    false
}
