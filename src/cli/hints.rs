//! What to do about an error: all hints, shared by `record` and `doctor`.

use super::failure::Failure;
use crate::gpu::collector::CheckError;
use crate::os::access;
use crate::os::launch::LaunchError;
use crate::os::permissions::{Remedy, why_denied};
use crate::os::process_info::{read_process_info, read_stat};
use crate::os::redaction::Redaction;
use crate::recording::OpenError;
use crate::report::command::shown_command;
use crate::sampling::session::SessionError;
use std::io;

/// Advice for a reason that the kernel has to refuse; may have several lines.
pub(crate) fn of_remedy(remedy: Remedy) -> &'static str {
    match remedy {
        Remedy::Container => {
            "Docker: docker run --cap-add SYS_PTRACE; from a second container, with --pid=container:NAME as well\n\
             Kubernetes: securityContext.capabilities.add: [SYS_PTRACE], with shareProcessNamespace: true,\n\
             or an ephemeral container: kubectl debug --target=NAME --profile=sysadmin"
        }
        Remedy::YamaDescendants => {
            "launch the program with torchspy: torchspy record -- COMMAND; or run torchspy with sudo\n\
             to allow it until the next boot: sudo sysctl kernel.yama.ptrace_scope=0"
        }
        Remedy::YamaAdmin => "run torchspy with sudo, or: sudo sysctl kernel.yama.ptrace_scope=0",
        Remedy::YamaOff => {
            "kernel.yama.ptrace_scope=3 holds until the next boot: change it in /etc/sysctl.d and boot again"
        }
        Remedy::OtherUser => {
            "run torchspy as the user whose process it is, or with sudo\n\
             Slurm, from another node or step: srun --overlap --jobid=JOB torchspy record --pid PID"
        }
        Remedy::NotDumpable => {
            "it changed its user or forbids it (prctl PR_SET_DUMPABLE): run torchspy with sudo"
        }
        Remedy::OtherNamespace => {
            "run torchspy on the host as root, or inside the target's container\n\
             Docker: docker run --pid=container:NAME --cap-add SYS_PTRACE\n\
             Kubernetes: kubectl debug --target=NAME --profile=sysadmin\n\
             Slurm: srun --overlap --jobid=JOB torchspy record --pid PID"
        }
        Remedy::AlreadyTraced => {
            "end the debugger or tracer that holds it: a thread has one tracer at a time"
        }
        Remedy::OldKernel => {
            "Linux 5.3 and later have process file descriptors; older ones work, with less certainty"
        }
        Remedy::UnsupportedPython => {
            "Python frames need CPython 3.10 to 3.15; others are sampled with native frames, or by a slower fallback"
        }
        Remedy::PerfEvents => {
            "as root: sysctl kernel.perf_event_paranoid=1, or give torchspy CAP_PERFMON\n\
             Docker, Kubernetes: the seccomp profile has to allow perf_event_open"
        }
        Remedy::CpuQuota => {
            "the cgroup is throttled when it has used its quota, and torchspy within it: reports show that as cpu_wait"
        }
    }
}

pub(crate) fn session_failure(error: SessionError) -> Failure {
    let hint = match &error {
        SessionError::NoSuchProcess(pid) => Some(of_inner_pid(*pid).unwrap_or_else(|| {
            "torchspy sees the processes of its own pid namespace: ps -e lists them".to_owned()
        })),
        SessionError::PermissionDenied { .. } if access::is_proc_foreign() => Some(
            "mount the /proc of torchspy's own pid namespace: mount -t proc proc /proc; unshare does with --mount-proc"
                .to_owned(),
        ),
        SessionError::PermissionDenied { pid, .. } => {
            let is_kernels = read_stat(*pid).is_ok_and(|stat| stat.is_kernel_thread);
            let inner = is_kernels.then(|| of_inner_pid(*pid)).flatten();
            Some(inner.unwrap_or_else(|| permission_hint(*pid)))
        }
        _ => Some("torchspy doctor shows what may be sampled here".to_owned()),
    };
    Failure::new(error).maybe_hint(hint)
}

/// A pid as it is within a container, where a process there has it.
fn of_inner_pid(pid: i32) -> Option<String> {
    const LISTED: usize = 4;
    let found = access::with_inner_pid(pid);
    let lines: Vec<String> = found
        .iter()
        .take(LISTED)
        .map(|outer| {
            let command = read_process_info(*outer, Redaction::On).map(|info| info.command);
            format!(
                "--pid {outer}  {}",
                shown_command(&command.unwrap_or_default(), 60)
            )
        })
        .collect();
    (!found.is_empty()).then(|| {
        format!(
            "in a container's own pid namespace {pid} is another process; from here that is\n{}",
            lines.join("\n")
        )
    })
}

/// Memory may be read, but threads may not be stopped: a seccomp filter on ptrace.
pub(crate) fn stop_failure(pid: i32, error: &io::Error) -> Failure {
    let failure = session_failure(SessionError::PermissionDenied {
        pid,
        detail: format!("its threads may not be stopped (ptrace): {error}"),
    });
    let hint = failure.hint.clone().unwrap_or_default();
    failure.hint(format!(
        "{hint}\nor without stops: --engine perf, or --nonblocking, with Python frames mainly"
    ))
}

fn permission_hint(pid: i32) -> String {
    match why_denied(pid) {
        Some(remedy) => of_remedy(remedy).to_owned(),
        None => format!("torchspy doctor --pid {pid} shows what prevents it"),
    }
}

/// GPUs that were named and are not there.
pub(crate) fn gpu_failure(error: CheckError) -> Failure {
    let hint = match &error {
        CheckError::Library(_) => {
            "give the path of libnvidia-ml.so.1; without --nvml-lib the system's own is taken".to_owned()
        }
        CheckError::NoDriver(_) => {
            "without --gpu the program is recorded without GPU counters; nvidia-smi shows whether the driver works".to_owned()
        }
        CheckError::NoSuchGpu { known, .. } if known.is_empty() => {
            "the driver has no GPU for this machine or container".to_owned()
        }
        CheckError::NoSuchGpu { known, .. } => format!("there are:\n{}", known.join("\n")),
    };
    Failure::new(error).hint(hint).status(2)
}

/// A program that could not be started; the status is the shell's.
pub(crate) fn launch_failure(error: LaunchError) -> Failure {
    let hint = match &error {
        LaunchError::NotFound(name) if name.ends_with(".py") => Some(format!(
            "a script needs its interpreter: torchspy record -- python {name}"
        )),
        LaunchError::NotFound(name) if name.contains('/') => {
            Some("there is no such file; relative paths start at the working directory".to_owned())
        }
        LaunchError::NotFound(_) => {
            Some("it is in no folder of PATH; is the environment that has it active?".to_owned())
        }
        LaunchError::NotExecutable(name, _) if name.ends_with(".py") => {
            Some(format!("torchspy record -- python {name}"))
        }
        LaunchError::NotExecutable(..) => {
            Some("is it a program, and executable (chmod +x)?".to_owned())
        }
        LaunchError::BadArgument(_) => Some("torchspy record -- python train.py".to_owned()),
        LaunchError::System(_) => {
            Some("limits on processes and open files: ulimit -u, ulimit -n".to_owned())
        }
    };
    let status = error.exit_code();
    Failure::new(error).maybe_hint(hint).status(status)
}

/// A file that cannot be opened for writing, or written.
pub(crate) fn of_output_error(error: &io::Error) -> Option<String> {
    Some(
        match error.kind() {
            io::ErrorKind::NotFound => "make its folder first: mkdir -p",
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "choose a folder that can be written: -o FILE"
            }
            io::ErrorKind::IsADirectory => "give a file name, not a folder: -o FOLDER/run.tspy",
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "free some space, or choose another disk: -o FILE"
            }
            _ => return None,
        }
        .to_owned(),
    )
}

/// What went wrong with writing, and what to do about its cause.
pub(crate) fn writing_failure(error: impl Into<anyhow::Error>) -> Failure {
    let error = error.into();
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    let hint = causes.next().and_then(of_output_error);
    Failure::new(error).maybe_hint(hint)
}

/// A recording that cannot be opened.
pub(crate) fn of_input_error(error: &anyhow::Error) -> Option<String> {
    let opening = error.chain().find_map(|cause| cause.downcast_ref());
    if let Some(OpenError::NothingYet) = opening {
        return Some("a segment is written each second: try again then".to_owned());
    }
    let kind = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>())
        .map(io::Error::kind);
    Some(
        match kind {
            Some(io::ErrorKind::NotFound) => "record writes recordings as NAME.tspy into its working directory",
            Some(io::ErrorKind::PermissionDenied) => "recordings are readable by their owner only: ask whoever made it",
            Some(io::ErrorKind::IsADirectory) => "give the recording itself: FOLDER/NAME.tspy",
            _ => "torchspy record -- python train.py makes recordings; torchspy inspect FILE shows what one holds",
        }
        .to_owned(),
    )
}
