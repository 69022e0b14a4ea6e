//! What `record`, `top` and `dump` do before they sample a target: checks, and the head of the
//! recording.

use super::failure::Failure;
use super::hints;
use super::plan::Target;
use crate::gpu::collector;
use crate::model::process::ProcessInfo;
use crate::model::region::Region;
use crate::model::run::RunInfo;
use crate::os::clock::{monotonic_ns, wall_ns};
use crate::os::launch::LaunchError;
use crate::os::perf_event::Scope;
use crate::os::process_info::{parse_environment, read_process_info, read_stat};
use crate::os::program::is_found;
use crate::os::redaction::Redaction;
use crate::os::{access, host};
use crate::sampling::live_environment::current_environment;
use crate::sampling::session::{Engine, SessionError, SessionOptions};
use crate::torch::job::{JobPlace, USERS_JOB};
use std::ffi::OsString;

/// An error where a command cannot be started. Nothing has run yet.
pub(super) fn check_program(command: &[OsString]) -> Result<(), Failure> {
    if let Some(name) = command.first().filter(|name| !is_found(name)) {
        let name = name.to_string_lossy().into_owned();
        return Err(hints::launch_failure(LaunchError::NotFound(name)));
    }
    Ok(())
}

/// A command as it is stored and shown.
pub(super) fn shown(command: &[OsString], redaction: Redaction) -> Vec<String> {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    redaction.command(&words)
}

/// The place in a job of a command that torchspy starts: its environment is torchspy's own.
pub(super) fn launched_place(command: &[OsString]) -> JobPlace {
    let environment = std::fs::read("/proc/self/environ").unwrap_or_default();
    let words: Vec<String> = command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    JobPlace::of(&parse_environment(&environment), &words)
}

/// The place in a job of a process that runs. A name of the job that torchspy itself was given
/// comes first.
pub(super) fn place_of(process: &ProcessInfo) -> JobPlace {
    let place = JobPlace::of(&process.environment, &process.command);
    let given = std::env::var(USERS_JOB).ok();
    JobPlace {
        job: given.filter(|job| !job.is_empty()).or(place.job),
        ..place
    }
}

/// The facts of a process that may be sampled.
pub(super) fn attachable(pid: i32, redaction: Redaction) -> Result<ProcessInfo, Failure> {
    let mut info = read_process_info(pid, redaction)
        .map_err(|_| hints::session_failure(SessionError::NoSuchProcess(pid)))?;
    if u32::try_from(pid).is_ok_and(|pid| pid == std::process::id()) {
        return Err(Failure::usage(
            "torchspy cannot sample itself",
            "give the trainer's pid",
        ));
    }
    // process_vm_readv waits for the mmap lock and cannot be killed while it does
    // (mm/process_vm_access.c): it is not called where the lock is not released.
    if !info.note.is_empty() {
        return Err(Failure::message(format!("process {pid}: {}", info.note)).hint(format!(
            "a thread of it may hold its mmap lock; torchspy dump --pid {pid} shows what the kernel knows of it"
        )));
    }
    if let Err(error) = access::try_read_memory(pid) {
        let detail = error.to_string();
        return Err(hints::session_failure(SessionError::PermissionDenied {
            pid,
            detail,
        }));
    }
    // Ray's workers, and whatever sets its rank itself.
    if let Some(current) = current_environment(pid) {
        info.environment = current;
    }
    Ok(info)
}

/// Whether a process started torchspy, at most this many levels up.
pub(super) fn is_ancestor(pid: i32) -> bool {
    const LEVELS: usize = 64;
    let own = i32::try_from(std::process::id()).ok();
    let parent = |&pid: &i32| read_stat(pid).ok().map(|stat| stat.parent_pid);
    std::iter::successors(own, parent)
        .take(LEVELS)
        .any(|ancestor| ancestor == pid)
}

/// Whether torchspy may do here what the options ask for.
pub(super) fn check_options(options: &SessionOptions, pid: i32) -> Result<(), Failure> {
    if !options.never_stops()
        && let Err(error) = access::try_stop_own_child()
    {
        return Err(hints::stop_failure(pid, &error));
    }
    collector::check(&options.gpu).map_err(hints::gpu_failure)
}

/// The head of a recording of `pid` that begins now.
pub(super) fn begin(pid: i32) -> RunInfo {
    RunInfo {
        torchspy: env!("CARGO_PKG_VERSION").to_owned(),
        host: host::host_name(),
        kernel: host::kernel_release(),
        architecture: std::env::consts::ARCH.to_owned(),
        cpus: host::cpus(),
        pid,
        started_ns: monotonic_ns(),
        started_wall_ns: wall_ns(),
        ..RunInfo::default()
    }
}

/// The same for a session with options.
pub(super) fn run_info(
    options: &SessionOptions,
    target: &Target,
    regions: &[Region],
    pid: i32,
    command: Vec<String>,
) -> RunInfo {
    let mut notes = Vec::new();
    let groups = host::CpuGroups::of(pid);
    let own_groups = host::CpuGroups::of(i32::try_from(std::process::id()).unwrap_or(0));
    if let Some(cpus) = groups.quota() {
        notes.push(format!("cgroup quota {cpus:.1} CPUs"));
    }
    if let Some(cpus) = own_groups.quota()
        && own_groups != groups
    {
        notes.push(format!("torchspy's own cgroup quota {cpus:.1} CPUs"));
    }
    if let Engine::Perf { scope, or_stops } = options.engine {
        notes.push(format!(
            "the kernel samples running threads{} (perf events): {}",
            match scope {
                Scope::All => "",
                Scope::UserCode => ", outside of the kernel only",
            },
            match or_stops {
                true => "no stops, unless it has nothing left for that",
                false => "no stops",
            }
        ));
    }
    if let Some(ranks) = &options.ranks {
        notes.push(format!("only ranks {} are sampled (--ranks)", ranks.text()));
    }
    if let Some(runtime) = access::container() {
        notes.push(format!("recorded inside {runtime}"));
    }
    RunInfo {
        command,
        launched: matches!(target, Target::Launch(_)),
        rate_hz: options.rate_hz,
        native: options.native,
        nonblocking: options.nonblocking,
        gil_only: options.gil_only,
        threads: options.threads.as_ref().map(ToString::to_string),
        max_stopped: options.max_stopped,
        notes,
        regions: regions.to_vec(),
        ..begin(pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torch::job;

    #[test]
    fn what_a_place_is_read_from_is_kept_of_environments() {
        let all: Vec<&str> = job::variables().collect();
        let block: Vec<String> = all.iter().map(|name| format!("{name}=1")).collect();
        let kept = parse_environment(block.join("\0").as_bytes());
        let missing: Vec<&&str> = all
            .iter()
            .filter(|name| !kept.iter().any(|(kept, _)| kept == *name))
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
