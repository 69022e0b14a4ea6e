//! What a sample waits for, as a kind and a label, from its stack, its activity and its system
//! call.
//!
//! | activity | what decides | kind |
//! |---|---|---|
//! | gpu_sync, gpu_copy | a copy on the stack, or `.to()`, `.cpu()`, … as the call | gpu_copy, else gpu_sync |
//! | collective_wait | | collective |
//! | gil_wait | | gil |
//! | omp_idle | | omp_barrier |
//! | lock_wait, sleep, io | a DataLoader's queue | input_queue |
//! | the same | `subprocess`, `os.waitpid`, `Process.join` up to the user's line; wait4 | child |
//! | lock_wait | the backward engine up to the user's line | autograd |
//! | lock_wait | | lock |
//! | io | a call of files; state D | disk |
//! | io | a call of sockets; `socket`, `ssl` up to the user's line | socket |
//! | io | read or write of a descriptor of unknown kind | io |
//! | sleep | `time.sleep`; a call that waits for time | sleep |
//! | sleep | accept, or poll below `socket` | socket |
//! | sleep | poll, select, epoll | events |
//! | sleep, state T | | stopped |
//!
//! An interruptible sleep in `read` is not a wait for a disk: file systems of disks wait in state D
//! (Linux, fs/, `io_schedule`). It is a pipe, a terminal, a socket or a file system in user space.

use super::rules::syscalls::CallWait;
use super::rules::{self, Library, RuleSet};
use super::symbol_name::SymbolName;
use crate::model::category::{Activity, FrameKind};
use crate::model::operator::OperatorMark;
use crate::model::profile::Function;
use crate::model::sample::ThreadState;
use crate::model::wait::{WaitKind, WaitPart};

/// Facts about a sample besides its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaitContext {
    pub activity: Activity,
    pub state: ThreadState,
    /// The system call, by name, and what it waits for.
    pub call: Option<(&'static str, CallWait)>,
}

/// What a sample waits for, as a kind and a label; `None` if it does not wait. `frames` are leaf
/// first. Which collective it is and which thread holds the GIL are determined elsewhere
/// (`collectives`, `resolve`).
pub fn wait(
    frames: &[&Function],
    context: WaitContext,
    rules: &RuleSet,
) -> Option<(WaitKind, String)> {
    match context.activity {
        Activity::GpuSync | Activity::GpuCopy => Some(gpu(frames, context.activity, rules)),
        Activity::CollectiveWait => Some((WaitKind::Collective, String::new())),
        Activity::GilWait => Some((WaitKind::Gil, "GIL".to_owned())),
        Activity::OmpIdle => Some((WaitKind::Barrier, barrier(frames))),
        Activity::LockWait | Activity::Sleep | Activity::Io => {
            Some(blocked(frames, context, rules))
        }
        _ => None,
    }
}

/// `OpenMP barrier in aten::gelu`, with the innermost operator.
fn barrier(frames: &[&Function]) -> String {
    let mut operators = frames.iter().map(|frame| &frame.operator);
    let innermost = operators.find_map(|mark| match mark {
        OperatorMark::Operator(name) => Some(name),
        _ => None,
    });
    match innermost {
        Some(name) => format!("OpenMP barrier in {name}"),
        None => "OpenMP barrier".to_owned(),
    }
}

/// The frames from the leaf to the nearest one of the user's own code, which is excluded.
fn below_user<'f, 'p>(frames: &'f [&'p Function]) -> &'f [&'p Function] {
    let end = frames
        .iter()
        .position(|frame| frame.kind == FrameKind::PythonUser);
    frames.get(..end.unwrap_or(frames.len())).unwrap_or(frames)
}

const ON_DEVICE: &str = "GPU to GPU";

/// A wait for the GPU, collected towards the root.
#[derive(Default)]
struct GpuCall {
    whole: Option<String>,
    call: Option<String>,
    operator: Option<String>,
    runtime: Option<String>,
    copy: bool,
    direction: Option<&'static str>,
}

fn gpu(frames: &[&Function], activity: Activity, rules: &RuleSet) -> (WaitKind, String) {
    let mut found = GpuCall::default();
    for frame in frames {
        let function = frame;
        // A call that is written in Python (torch/cuda/streams.py) comes after its binding; the
        // script's line ends the search.
        match frame.wait {
            WaitPart::Gpu(call) if !(function.is_python && found.call.is_some()) => {
                found.call = Some(call.to_owned());
            }
            WaitPart::GpuWhole(call) => found.whole = Some(call.to_owned()),
            WaitPart::Method => found.call = method(&function.name).or(found.call),
            WaitPart::Runtime => {
                found
                    .runtime
                    .get_or_insert_with(|| function.short_name.clone());
            }
            WaitPart::Copies => found.copy = true,
            WaitPart::ToDevice => found.direction = Some("host to GPU"),
            WaitPart::ToHost => found.direction = Some("GPU to host"),
            WaitPart::OnDevice => found.direction = Some(ON_DEVICE),
            _ => {}
        }
        if let OperatorMark::Operator(name) = &function.operator {
            found.operator = Some(name.clone());
        }
        if function.is_python && frame.wait == WaitPart::None {
            break;
        }
    }
    let kind = if found.copy || activity == Activity::GpuCopy {
        WaitKind::GpuCopy
    } else {
        WaitKind::GpuSync
    };
    let call = found
        .whole
        .or(found.call)
        .or_else(|| {
            found
                .operator
                .as_deref()
                .map(|name| rules.operator_call(name).to_owned())
        })
        .or_else(|| found.runtime.clone())
        .unwrap_or_else(|| "GPU".to_owned());
    let mut about: Vec<&str> = Vec::new();
    if kind == WaitKind::GpuCopy {
        about.extend(found.direction);
        // No memory of the host takes part in one between GPUs.
        if found.direction != Some(ON_DEVICE) {
            about.extend(found.runtime.as_deref().and_then(copy_blocks_because));
        }
    }
    let what = match about.is_empty() {
        true => call,
        false => format!("{call} ({})", about.join(", ")),
    };
    (kind, what)
}

/// A method of tensors as written in a source line: `.item()` of
/// `torch::autograd::THPVariable_item(…)`.
fn method(name: &str) -> Option<String> {
    let stem = SymbolName::parse(name).stem;
    let method = stem.strip_prefix("torch::autograd::THPVariable_")?;
    let is_word = |text: &str| {
        text.chars()
            .all(|each| each.is_alphanumeric() || each == '_')
    };
    (!method.is_empty() && is_word(method)).then(|| format!(".{method}()"))
}

/// Why a copy blocks the host. `cudaMemcpyAsync` returns at once for pinned memory; for pageable
/// memory it blocks while the copy passes through a staging buffer (CUDA Runtime API, "API
/// synchronization behavior"). A copy that is not `non_blocking` synchronizes the stream after it
/// (aten/src/ATen/native/cuda/Copy.cu).
fn copy_blocks_because(runtime: &str) -> Option<&'static str> {
    if runtime.starts_with("cudaMemcpy") {
        Some("pageable memory")
    } else if runtime.starts_with("cudaStreamSynchronize") {
        Some("not non_blocking")
    } else {
        None
    }
}

fn blocked(frames: &[&Function], context: WaitContext, rules: &RuleSet) -> (WaitKind, String) {
    if frames.iter().any(|frame| frame.wait == WaitPart::Loader) {
        return (WaitKind::Input, "DataLoader queue".to_owned());
    }
    let below = below_user(frames);
    let has = |part: WaitPart| below.iter().any(|frame| frame.wait == part);
    let call = context.call.map(|(name, _)| name);
    let waits = context.call.map(|(_, waits)| waits);
    let kind = match (context.activity, waits) {
        _ if context.state == ThreadState::Stopped => WaitKind::Stopped,
        _ if has(WaitPart::Child) => WaitKind::Child,
        (Activity::LockWait, _) if has(WaitPart::Engine) => WaitKind::Autograd,
        (Activity::LockWait, _) => WaitKind::Lock,
        (_, Some(CallWait::Child)) => WaitKind::Child,
        (_, Some(CallWait::Socket)) => WaitKind::Socket,
        (_, Some(CallWait::File)) => WaitKind::Disk,
        (_, Some(CallWait::Lock)) => WaitKind::Lock,
        (Activity::Io, _) if has(WaitPart::Socket) => WaitKind::Socket,
        (Activity::Io, _) if context.state == ThreadState::Uninterruptible => WaitKind::Disk,
        (Activity::Io, _) if file_function(below).is_some() => WaitKind::Disk,
        (Activity::Io, _) => WaitKind::Io,
        (_, Some(CallWait::Time)) => WaitKind::Sleep,
        _ if has(WaitPart::Sleep) => WaitKind::Sleep,
        _ if has(WaitPart::Socket) => WaitKind::Socket,
        _ if has(WaitPart::Events) => WaitKind::Events,
        (_, Some(CallWait::Events | CallWait::Descriptor)) => WaitKind::Events,
        (_, None) => WaitKind::Sleep,
    };
    (kind, label(below, kind, call, context.state, rules))
}

fn label(
    below: &[&Function],
    kind: WaitKind,
    call: Option<&str>,
    state: ThreadState,
    rules: &RuleSet,
) -> String {
    let api = library_call(below);
    match kind {
        WaitKind::Stopped => "stopped by a signal or a debugger".to_owned(),
        WaitKind::Autograd => "backward()".to_owned(),
        WaitKind::Sleep if below.iter().any(|frame| frame.wait == WaitPart::Sleep) => {
            "time.sleep()".to_owned()
        }
        WaitKind::Lock => interpreters_lock(below)
            .map(str::to_owned)
            .or(api)
            .or_else(|| native_caller(below, rules).map(|name| format!("lock in {name}")))
            .unwrap_or_else(|| "a lock".to_owned()),
        _ => {
            let call = call
                .or_else(|| file_function(below))
                .or((state == ThreadState::Uninterruptible).then_some("page fault or driver"));
            match (api, call) {
                (Some(api), Some(call)) => format!("{api} ({call})"),
                (Some(only), None) => only,
                (None, Some(only)) => only.to_owned(),
                (None, None) => "a call that was not read".to_owned(),
            }
        }
    }
}

/// What a thread of a free-threaded Python waits for inside the interpreter: a thread that attaches
/// itself waits only while another one has stopped all (`tstate_wait_attach` of Python/pystate.c),
/// and a critical section locks the object that it is of (Python/critical_section.c).
fn interpreters_lock(below: &[&Function]) -> Option<&'static str> {
    let mut native = below.iter().take_while(|frame| !frame.is_python);
    native.find_map(|frame| match frame.short_name.as_str() {
        "_PyThreadState_Attach" | "tstate_wait_attach" => Some("the end of a stop-the-world pause"),
        name if name.starts_with("_PyCriticalSection") => {
            Some("a shared object, locked while another thread uses it")
        }
        _ => None,
    })
}

/// The function of Python's own library that the user's code, or another package, called: the
/// outermost of the unbroken run of library frames at the leaf end.
fn library_call(below: &[&Function]) -> Option<String> {
    below
        .iter()
        .filter(|frame| frame.is_python)
        .take_while(|function| rules::is_library(&function.file) && !is_thread_start(function))
        .last()
        .and_then(|function| rules::library_call(&function.file, &function.name))
}

/// Starts a thread's own function, which may be one of the library's (Lib/threading.py; 3.10 has
/// the last names alone).
fn is_thread_start(function: &Function) -> bool {
    let last = function.name.strip_prefix("Thread.");
    function.file.ends_with("/threading.py")
        && ["_bootstrap", "_bootstrap_inner", "run"].contains(&last.unwrap_or(&function.name))
}

/// Functions of the C library that access only files, for a thread whose system call is not known
/// because it ran.
fn file_function<'p>(below: &[&'p Function]) -> Option<&'p str> {
    const STARTS: &[&str] = &[
        "open",
        "pread",
        "pwrite",
        "fsync",
        "fdatasync",
        "getdents",
        "readdir",
        "stat",
        "fstat",
        "lstat",
        "copy_file_range",
    ];
    below
        .iter()
        .take_while(|frame| !frame.is_python)
        .filter(|frame| frame.kind == FrameKind::Wait)
        .map(|frame| frame.name.trim_start_matches('_'))
        .find(|name| STARTS.iter().any(|start| name.starts_with(start)))
}

/// The nearest native function, below any Python frame, that belongs neither to the interpreter nor
/// to the C library.
fn native_caller<'p>(below: &[&'p Function], rules: &RuleSet) -> Option<&'p str> {
    use crate::model::module::ModuleKind;
    below
        .iter()
        .take_while(|function| !function.is_python)
        .find(|function| {
            !matches!(
                function.kind,
                FrameKind::Wait | FrameKind::Interpreter | FrameKind::Marker
            ) && !matches!(
                rules.family(ModuleKind::File, &function.file),
                Library::System | Library::Python
            ) && !function.name.contains("+0x")
                && !function.name.starts_with('[')
        })
        .map(|function| function.short_name.as_str())
}
