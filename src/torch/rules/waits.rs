//! Functions that name a wait: calls that wait for the GPU, and Python's own waits.
//!
//! | function | tells | source (torch 2.15.0, CPython 3.10-3.14) |
//! |---|---|---|
//! | `THPVariable_NAME` | `.NAME()`, as the line has it | torch/csrc/autograd: python_variable_methods.cpp, python_variable_indexing.cpp |
//! | `TH(C)PStream_synchronize`, `TH(C)PEvent_synchronize`, `THCPModule_cudaSynchronize` | the call | torch/csrc/Stream.cpp, Event.cpp, cuda/Module.cpp |
//! | `synchronize` of torch/cuda, torch/accelerator | the call, where native frames are missing | the files themselves |
//! | `cudaMemcpyAsync`, `cudaStreamSynchronize`, … | which call of the runtime blocks | exports of libcudart.so.13 |
//! | `cuMemcpyHtoD…`, `cuMemcpyDtoH…` | the direction of a copy | exports of libcuda.so.1 |
//! | `at::native::copy_kernel_cuda` | a copy between devices | aten/src/ATen/native/cuda/Copy.cu |
//! | `subprocess.py`, `os_waitpid`, … | a child | Lib/subprocess.py, Modules/posixmodule.c |
//! | `socket.py`, `ssl.py`, `sock_recv`, … | a socket | Lib/socket.py, Modules/socketmodule.c, _ssl.c |
//! | `time_sleep`, `pysleep` | `time.sleep` | Modules/timemodule.c |

use super::phases::{has_path, last_part};
use crate::model::wait::WaitPart;
use crate::torch::symbol_name::SymbolName;

/// Version of the tables of waits, collectives and input. Raised with every change that may name a wait differently.
pub const WAIT_RULES_VERSION: u32 = 2;

use WaitPart::{Child, Copies, Engine, Events, Gpu, Loader, Method, Runtime, Sleep, Socket};

/// Python functions: file, last part of the name (`*` for all), meaning. First match.
const PYTHON: &[(&str, &str, WaitPart)] = &[
    ("torch/utils/data/dataloader.py", "_try_get_data", Loader),
    ("torch/autograd/graph.py", "_engine_run_backward", Engine),
    (
        "torch/cuda/__init__.py",
        "synchronize",
        Gpu("torch.cuda.synchronize()"),
    ),
    (
        "torch/accelerator/__init__.py",
        "synchronize",
        Gpu("torch.accelerator.synchronize()"),
    ),
    (
        "torch/cuda/streams.py",
        "synchronize",
        Gpu("synchronize() of a stream or event"),
    ),
    ("subprocess.py", "*", Child),
    ("multiprocessing/popen_fork.py", "*", Child),
    ("multiprocessing/popen_spawn_posix.py", "*", Child),
    ("multiprocessing/popen_forkserver.py", "*", Child),
    ("multiprocessing/process.py", "join", Child),
    ("ssl.py", "*", Socket),
    ("socket.py", "*", Socket),
    ("asyncio/base_events.py", "*", Events),
];

/// Native functions: beginning of the qualified name, meaning. First match.
const NATIVE: &[(&str, WaitPart)] = &[
    (
        "THCPModule_cudaSynchronize",
        Gpu("torch.cuda.synchronize()"),
    ),
    ("THCPStream_synchronize", Gpu("Stream.synchronize()")),
    ("THPStream_synchronize", Gpu("Stream.synchronize()")),
    ("THCPEvent_synchronize", Gpu("Event.synchronize()")),
    ("THPEvent_synchronize", Gpu("Event.synchronize()")),
    ("THCPModule_emptyCache", Gpu("torch.cuda.empty_cache()")),
    (
        "torch::autograd::THPVariable_bool_scalar",
        Gpu("bool() of a tensor"),
    ),
    (
        "torch::autograd::THPVariable_is_nonzero",
        Gpu("bool() of a tensor"),
    ),
    (
        "torch::autograd::THPVariable_float_scalar",
        Gpu("float() of a tensor"),
    ),
    (
        "torch::autograd::THPVariable_integral_scalar",
        Gpu("int() of a tensor"),
    ),
    (
        "torch::autograd::THPVariable_index_scalar",
        Gpu("a tensor as an index"),
    ),
    (
        "torch::autograd::THPVariable_complex_scalar",
        Gpu("complex() of a tensor"),
    ),
    (
        "torch::autograd::THPVariable_getitem",
        Gpu("indexing, tensor[...]"),
    ),
    (
        "torch::autograd::THPVariable_setitem",
        Gpu("indexing, tensor[...] = "),
    ),
    (METHOD, Method),
    ("at::native::copy_kernel_cuda", Copies),
    ("cudaMemcpy", Runtime),
    ("cudaStreamSynchronize", Runtime),
    ("cudaDeviceSynchronize", Runtime),
    ("cudaEventSynchronize", Runtime),
    ("cudaExecutionCtxSynchronize", Runtime),
    ("cuMemcpyHtoD", WaitPart::ToDevice),
    ("cuMemcpyDtoH", WaitPart::ToHost),
    ("cuMemcpy", Runtime),
    ("cuStreamSynchronize", Runtime),
    ("cuEventSynchronize", Runtime),
    ("cuCtxSynchronize", Runtime),
    ("THPEngine_run_backward", Engine),
    ("os_waitpid", Child),
    ("os_wait", Child),
    ("sock_", Socket),
    ("_ssl__SSLSocket_", Socket),
    ("time_sleep", Sleep),
    ("pysleep", Sleep),
];

const METHOD: &str = "torch::autograd::THPVariable_";

/// Calls that are no method, of operators that wait for the GPU; where the binding is missing from a stack. Source: the
/// operators that call `item`, `nonzero` or a blocking copy in aten/src/ATen/native (torch 2.15.0).
const OPERATORS: &[(&str, &str)] = &[
    ("aten::item", ".item()"),
    ("aten::_local_scalar_dense", ".item()"),
    ("aten::is_nonzero", "bool() of a tensor"),
    ("aten::to", ".to()"),
    ("aten::_to_copy", ".to()"),
    ("aten::copy_", ".copy_()"),
    ("aten::nonzero", ".nonzero()"),
    ("aten::masked_select", ".masked_select()"),
    ("aten::equal", ".equal()"),
];

/// What a Python function tells.
pub fn python_part(file: &str, function: &str) -> WaitPart {
    let last = last_part(function);
    let mut rows = PYTHON.iter();
    rows.find(|(part, name, _)| (*name == "*" || *name == last) && has_path(file, part))
        // A file of the user's that is called `socket.py` is not Python's.
        .filter(|(part, _, _)| part.starts_with("torch/") || is_library(file))
        .map_or(WaitPart::None, |&(_, _, part)| part)
}

/// What a native function tells.
pub fn native_part(name: &str) -> WaitPart {
    let name = SymbolName::parse(name);
    NATIVE
        .iter()
        .find(|(start, _)| name.qualified.starts_with(start))
        .map_or(WaitPart::None, |&(_, part)| part)
}

/// A method of tensors as a line has it: `.item()` of `torch::autograd::THPVariable_item(…)`.
pub fn method(name: &str) -> Option<String> {
    let method = SymbolName::parse(name).stem.strip_prefix(METHOD)?;
    let is_word = |text: &str| {
        text.chars()
            .all(|each| each.is_alphanumeric() || each == '_')
    };
    (!method.is_empty() && is_word(method)).then(|| format!(".{method}()"))
}

/// The call that a line has for an operator; the operator's own name where it is in no table.
pub fn operator_call(operator: &str) -> String {
    OPERATORS
        .iter()
        .find(|(name, _)| *name == operator)
        .map_or_else(|| operator.to_owned(), |(_, call)| (*call).to_owned())
}

/// Whether a Python file is of Python's own library.
pub fn is_library(file: &str) -> bool {
    library_path(file).is_some()
}

/// The part of a path below the folder of Python's own library: `multiprocessing/queues.py`. `None` of other files.
pub fn library_path(file: &str) -> Option<&str> {
    if file.contains("-packages/") {
        return None;
    }
    let (_, inside) = file
        .rsplit_once("/lib/python3")
        .or_else(|| file.rsplit_once("/lib64/python3"))?;
    // `.11/threading.py`: the folder's name goes on up to the next slash.
    inside.split_once('/').map(|(_, path)| path)
}

/// A function of Python's own library as users know it: `queue.Queue.get`. `None` of functions of other files.
pub fn library_call(file: &str, function: &str) -> Option<String> {
    let path = library_path(file)?;
    let module = path
        .strip_suffix("/__init__.py")
        .or_else(|| path.strip_suffix(".py"))
        .unwrap_or(path)
        .replace('/', ".");
    Some(format!("{module}.{function}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_can_match() {
        for (index, (start, _)) in NATIVE.iter().enumerate() {
            let first = NATIVE.iter().position(|(each, _)| start.starts_with(each));
            assert_eq!(first, Some(index), "{start} is shadowed");
        }
        for (index, (file, function, _)) in PYTHON.iter().enumerate() {
            let first = PYTHON.iter().position(|(part, name, _)| {
                (*name == "*" || name == function) && has_path(file, part)
            });
            assert_eq!(first, Some(index), "{file} {function} is shadowed");
        }
    }

    /// Names as nm -C prints them for libtorch_python.so 2.15.0.
    #[test]
    fn bindings_are_read_as_they_are_written() {
        let name = "torch::autograd::THPVariable_item(_object*, _object*)";
        assert_eq!(native_part(name), Method);
        assert_eq!(method(name).as_deref(), Some(".item()"));
        let name = "torch::autograd::THPVariable_to(_object*, _object*, _object*) [clone .cold]";
        assert_eq!(method(name).as_deref(), Some(".to()"));
        assert_eq!(
            native_part("THCPModule_cudaSynchronize(_object*, _object*)"),
            Gpu("torch.cuda.synchronize()")
        );
        assert_eq!(native_part("cuMemcpyDtoHAsync_v2"), WaitPart::ToHost);
        assert_eq!(native_part("cuMemcpyAsync"), Runtime);
        assert_eq!(native_part("at::native::add(int)"), WaitPart::None);
    }

    #[test]
    fn calls_of_the_library_are_named_as_users_know_them() {
        let call = |path: &str, function| library_call(path, function);
        assert_eq!(
            call("/usr/lib/python3.11/queue.py", "Queue.get").as_deref(),
            Some("queue.Queue.get")
        );
        assert_eq!(
            call("/x/lib/python3.12/asyncio/__init__.py", "f").as_deref(),
            Some("asyncio.f")
        );
        assert_eq!(call("/x/lib/python3.12/site-packages/a/b.py", "f"), None);
        assert_eq!(call("/home/u/queue.py", "f"), None);
        assert_eq!(python_part("/home/u/socket.py", "read"), WaitPart::None);
        assert_eq!(
            python_part("/usr/lib/python3.11/socket.py", "SocketIO.readinto"),
            Socket
        );
    }
}
