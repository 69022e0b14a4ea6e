//! What kind of code a Python function is, by its file.

use super::phases::{has_path, last_part};
use crate::model::category::FrameKind;

/// Parts of paths; first match. Source: the files of torch 2.15.0, triton 3.9, Lightning 2.6, Transformers 5, Accelerate 1.15.
const KINDS: &[(&str, FrameKind)] = &[
    ("torch/utils/data/", FrameKind::DataLoader),
    ("torch/optim/", FrameKind::Optimizer),
    ("torch/autograd/", FrameKind::Autograd),
    ("torch/distributed/", FrameKind::Communication),
    ("torch/nn/parallel/", FrameKind::Communication),
    ("torch/", FrameKind::PythonTorch),
    ("torchvision/", FrameKind::PythonTorch),
    ("torchaudio/", FrameKind::PythonTorch),
    ("torchdata/", FrameKind::PythonTorch),
    ("triton/", FrameKind::PythonTorch),
    ("functorch/", FrameKind::PythonTorch),
    ("lightning/", FrameKind::PythonTorch),
    ("pytorch_lightning/", FrameKind::PythonTorch),
    ("transformers/", FrameKind::PythonTorch),
    ("accelerate/", FrameKind::PythonTorch),
    ("deepspeed/", FrameKind::PythonTorch),
];

/// Where installed packages lie: under these, a package's name says what it is.
const PACKAGES: &[&str] = &["site-packages/", "dist-packages/"];

/// Python's own library (CPython, Lib/site.py and Lib/sysconfig), and code without a file that is not the user's.
const LIBRARY: &[&str] = &[
    "/lib/python3",
    "/lib64/python3",
    "<frozen ",
    "<__array_function__",
];

/// Code that dynamo, FX and inductor make (torch/fx/graph_module.py, torch/_inductor/codecache.py).
const GENERATED: &[&str] = &["<eval_with_key>", "/torchinductor_", "<torch_package_"];

/// Whether a path is that of code which inductor wrote: its folder is named by two letters of the file's.
fn is_of_inductor(file: &str) -> bool {
    let mut parts = file.rsplit('/');
    let (Some(name), Some(folder)) = (parts.next(), parts.next()) else {
        return false;
    };
    name.ends_with(".py")
        && super::libraries::is_of_inductor(name)
        && name.get(1..3) == Some(folder)
}

/// The kind of a Python function.
pub fn kind(file: &str) -> FrameKind {
    if GENERATED.iter().any(|part| file.contains(part)) || is_of_inductor(file) {
        return FrameKind::PythonTorch;
    }
    for packages in PACKAGES {
        if let Some((_, inside)) = file.rsplit_once(packages) {
            return KINDS
                .iter()
                .find(|(start, _)| inside.starts_with(start))
                .map_or(FrameKind::PythonLibrary, |&(_, kind)| kind);
        }
    }
    if LIBRARY.iter().any(|part| file.contains(part)) {
        return FrameKind::PythonLibrary;
    }
    FrameKind::PythonUser
}

/// Python functions that only pass a call on: file and last part of the name, `*` for all. Source: torch 2.15.0.
const PLUMBING: &[(&str, &str)] = &[
    ("torch/nn/modules/module.py", "_call_impl"),
    ("torch/nn/modules/module.py", "_wrapped_call_impl"),
    ("torch/nn/modules/module.py", "inner"),
    ("torch/utils/_contextlib.py", "*"),
    ("torch/optim/optimizer.py", "wrapper"),
    ("torch/optim/optimizer.py", "_use_grad"),
    ("torch/optim/optimizer.py", "maybe_fallback"),
    ("torch/optim/lr_scheduler.py", "wrapper"),
    ("torch/_compile.py", "inner"),
    ("torch/amp/autocast_mode.py", "decorate_autocast"),
    ("torch/_dynamo/eval_frame.py", "compile_wrapper"),
    ("torch/_dynamo/eval_frame.py", "_fn"),
    ("torch/_dynamo/external_utils.py", "*"),
    ("torch/distributed/c10d_logger.py", "wrapper"),
    ("torch/_jit_internal.py", "fn"),
    ("<frozen importlib", "*"),
];

/// Whether a Python function only passes a call on.
pub fn is_plumbing(file: &str, function: &str) -> bool {
    let last = last_part(function);
    PLUMBING
        .iter()
        .any(|&(part, name)| (name == "*" || name == last) && has_path(file, part))
}

/// How a Python file takes part when a thread sleeps below it. Source: CPython 3.10-3.15, Lib.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PythonWait {
    /// A sleep below it waits for another thread or process through a queue, lock or pipe.
    Queue,
    /// Says nothing itself: its caller decides.
    CallerDecides,
    /// Says nothing.
    None,
}

const WAITS: &[(&str, PythonWait)] = &[
    ("multiprocessing/connection.py", PythonWait::Queue),
    ("multiprocessing/queues.py", PythonWait::Queue),
    ("multiprocessing/synchronize.py", PythonWait::Queue),
    ("multiprocessing/popen_", PythonWait::Queue),
    ("threading.py", PythonWait::Queue),
    ("queue.py", PythonWait::Queue),
    ("concurrent/futures/", PythonWait::Queue),
    ("selectors.py", PythonWait::CallerDecides),
];

/// How a Python file takes part when a thread sleeps below it.
pub fn wait(file: &str) -> PythonWait {
    // A file of the user's that is called `queue.py` is not Python's.
    if kind(file) != FrameKind::PythonLibrary {
        return PythonWait::None;
    }
    WAITS
        .iter()
        .find(|(part, _)| has_path(file, part))
        .map_or(PythonWait::None, |&(_, wait)| wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_inductor_is_known_wherever_its_cache_is() {
        let name = "ccp22flhfst5j7iuivqotdljcdcp6fcjsqrzkllybncud725urjp";
        let of = |path: String| kind(&path);
        assert_eq!(of(format!("/data/k/cp/{name}.py")), FrameKind::PythonTorch);
        assert_eq!(of(format!("/data/k/xx/{name}.py")), FrameKind::PythonUser);
        assert_eq!(of("/data/cp/ccp.py".to_owned()), FrameKind::PythonUser);
    }
}
