//! What may be sampled on this machine, and what prevents it.
//!
//! The kernel's rules are those of ptrace(2), "Ptrace access mode checking": same user and
//! dumpable, or CAP_SYS_PTRACE in the target's user namespace; then Yama (kernel,
//! admin-guide/LSM/Yama), then seccomp. The checks try what sampling does, and read /proc only to
//! explain a refusal.

use super::access::{
    self, OwnChild, container, has_sys_ptrace, own_pid, try_read_memory, yama_scope,
};
use super::host;
use super::perf_event::{self, Scope};
use super::process_info::{read_bounded, read_stat};
use crate::model::code::PythonVersion;
use nix::unistd::geteuid;
use std::io;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Ok,
    /// Works in part, or for some processes.
    Limited,
    /// Does not work.
    No,
}

/// A remedy, by the reason for which the kernel refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Remedy {
    /// A container without CAP_SYS_PTRACE, or with a seccomp filter on ptrace.
    Container,
    /// Yama allows only descendants.
    YamaDescendants,
    /// Yama requires CAP_SYS_PTRACE.
    YamaAdmin,
    /// Yama denies everything until the next boot.
    YamaOff,
    /// The process belongs to another user.
    OtherUser,
    /// The process forbids it: it is set-user-id, or not dumpable.
    NotDumpable,
    /// The process is in another pid namespace, user namespace or job step.
    OtherNamespace,
    /// A debugger or another profiler traces it.
    AlreadyTraced,
    /// The kernel lacks a feature.
    OldKernel,
    /// No supported Python.
    UnsupportedPython,
    /// Perf events may not be opened, or not of what runs in the kernel.
    PerfEvents,
    /// The cgroup's CPU quota may throttle.
    CpuQuota,
}

/// One line of `doctor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    pub verdict: Verdict,
    pub detail: String,
    pub remedy: Option<Remedy>,
}

impl Check {
    fn new(
        name: &'static str,
        verdict: Verdict,
        detail: impl Into<String>,
        remedy: Option<Remedy>,
    ) -> Self {
        Self {
            name,
            verdict,
            detail: detail.into(),
            remedy,
        }
    }

    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self::new(name, Verdict::Ok, detail, None)
    }

    fn limited(name: &'static str, detail: impl Into<String>, remedy: Option<Remedy>) -> Self {
        Self::new(name, Verdict::Limited, detail, remedy)
    }

    fn no(name: &'static str, detail: impl Into<String>, remedy: Option<Remedy>) -> Self {
        Self::new(name, Verdict::No, detail, remedy)
    }
}

/// Checks this machine: which processes may be sampled at all.
///
/// Forks a child and stops it briefly, so no other thread may wait for children at the same time.
pub fn check_host() -> Vec<Check> {
    let mut checks = vec![
        check_kernel(),
        check_yama(),
        check_capability(),
        check_seccomp(),
    ];
    checks.extend(check_own_child());
    checks.push(match container() {
        Some(kind) => Check::ok("container", format!("inside {kind}")),
        None => Check::ok("container", "none detected"),
    });
    checks.push(check_schedstat());
    checks.push(check_perf_events());
    checks.push(match host::CpuGroups::of(own_pid()).quota() {
        Some(cpus) => Check::limited(
            "cpu quota",
            format!("{cpus:.2} CPUs for this cgroup"),
            Some(Remedy::CpuQuota),
        ),
        None => Check::ok("cpu quota", "none"),
    });
    checks
}

/// Checks one process.
///
/// # Errors
/// `NotFound` where there is no such process.
pub fn check_target(pid: i32) -> io::Result<Vec<Check>> {
    read_stat(pid)?;
    let user = check_user(pid);
    let namespaces = check_namespaces(pid);
    let tracer = check_tracer(pid);
    let memory = match try_read_memory(pid) {
        Ok(()) => Check::ok("memory", "readable"),
        Err(error) => {
            let remedy = why_denied(pid);
            Check::no("memory", error.to_string(), remedy)
        }
    };
    let python = if memory.verdict == Verdict::No {
        Check::limited("python", "not known: its files may not be read", None)
    } else {
        check_python(pid)
    };
    Ok(vec![user, namespaces, tracer, memory, python])
}

/// Why the kernel refuses access to this process, as far as /proc shows; `None` if it shows no
/// reason.
pub fn why_denied(pid: i32) -> Option<Remedy> {
    let privileged = has_sys_ptrace();
    if access::tracer(pid).is_some() {
        return Some(Remedy::AlreadyTraced);
    }
    if yama_scope() == Some(3) {
        return Some(Remedy::YamaOff);
    }
    if !privileged && access::namespace_differs(pid, "user") {
        return Some(Remedy::OtherNamespace);
    }
    if let Some(user) = access::target_user(pid)
        && user != geteuid().as_raw()
        && !privileged
    {
        return Some(if geteuid().is_root() {
            Remedy::Container
        } else {
            Remedy::OtherUser
        });
    }
    if !privileged && !access::is_dumpable(pid) {
        return Some(Remedy::NotDumpable);
    }
    match yama_scope() {
        Some(1) if !privileged && !access::is_descendant(pid) => Some(Remedy::YamaDescendants),
        Some(2) if !privileged => Some(Remedy::YamaAdmin),
        _ if access::seccomp_mode(own_pid()) == Some(2) => Some(Remedy::Container),
        _ if !privileged && container().is_some() => Some(Remedy::Container),
        _ => None,
    }
}

fn check_perf_events() -> Check {
    const NAME: &str = "perf events";
    let remedy = Some(Remedy::PerfEvents);
    match perf_event::scope() {
        Ok(Scope::All) => Check::ok(NAME, "available: --engine perf stops no thread"),
        Ok(Scope::UserCode) => {
            let detail =
                "of user code only: --engine perf samples no thread while it is in the kernel";
            Check::limited(NAME, detail, remedy)
        }
        Err(error) => {
            let helps = error.kind() != io::ErrorKind::Unsupported;
            let detail = format!("no --engine perf: {error}");
            Check::limited(NAME, detail, remedy.filter(|_| helps))
        }
    }
}

fn check_kernel() -> Check {
    let release = host::kernel_release();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    // Linux 5.3 introduced pidfd_open.
    if version < (5, 3) {
        let detail = format!("{release}: processes are identified by start time alone");
        return Check::limited("kernel", detail, Some(Remedy::OldKernel));
    }
    Check::ok("kernel", release)
}

fn check_yama() -> Check {
    let privileged = has_sys_ptrace();
    let (verdict, detail, remedy) = match yama_scope() {
        None => (Verdict::Ok, "no Yama", None),
        Some(0) => (Verdict::Ok, "0: own processes", None),
        Some(1) if privileged => (Verdict::Ok, "1, and CAP_SYS_PTRACE is there", None),
        Some(1) => (
            Verdict::Limited,
            "1: only what torchspy launches",
            Some(Remedy::YamaDescendants),
        ),
        Some(2) if privileged => (Verdict::Ok, "2, and CAP_SYS_PTRACE is there", None),
        Some(2) => (
            Verdict::No,
            "2: only with CAP_SYS_PTRACE",
            Some(Remedy::YamaAdmin),
        ),
        Some(_) => (Verdict::No, "3: nobody", Some(Remedy::YamaOff)),
    };
    Check::new("ptrace_scope", verdict, detail, remedy)
}

fn check_capability() -> Check {
    if has_sys_ptrace() {
        return Check::ok("CAP_SYS_PTRACE", "in effect");
    }
    if geteuid().is_root() {
        let detail = "dropped, though this is root";
        return Check::limited("CAP_SYS_PTRACE", detail, Some(Remedy::Container));
    }
    let detail = "not there: own processes only";
    Check::limited("CAP_SYS_PTRACE", detail, Some(Remedy::OtherUser))
}

fn check_seccomp() -> Check {
    match access::seccomp_mode(own_pid()) {
        Some(0) => Check::ok("seccomp", "no filter"),
        Some(_) => Check::ok(
            "seccomp",
            "a filter is active; the next lines show what it allows",
        ),
        None => Check::ok("seccomp", "not known"),
    }
}

fn check_own_child() -> [Check; 2] {
    let check = |name, result: io::Result<()>| match result {
        Ok(()) => Check::ok(name, "works on a child of torchspy"),
        Err(error) => {
            let remedy = match yama_scope() {
                Some(3) => Remedy::YamaOff,
                Some(2) if !has_sys_ptrace() => Remedy::YamaAdmin,
                _ => Remedy::Container,
            };
            Check::no(name, error.to_string(), Some(remedy))
        }
    };
    match OwnChild::start() {
        Ok(child) => [
            check("ptrace", child.try_ptrace()),
            check("process_vm_readv", child.try_read()),
        ],
        Err(error) => {
            let again = io::Error::from(error.kind());
            [
                check("ptrace", Err(error)),
                check("process_vm_readv", Err(again)),
            ]
        }
    }
}

fn check_schedstat() -> Check {
    // A kernel without CONFIG_SCHED_INFO, or a container runtime such as gVisor, reports `0 0 0`.
    let text = read_bounded("/proc/thread-self/schedstat", 128).unwrap_or_default();
    if text.iter().any(|byte| (b'1'..=b'9').contains(byte)) {
        Check::ok("schedstat", "available")
    } else {
        Check::limited(
            "schedstat",
            "missing: polling idle threads costs more, and cpu_wait is not seen",
            None,
        )
    }
}

fn check_user(pid: i32) -> Check {
    let own = geteuid().as_raw();
    match access::target_user(pid) {
        Some(user) if user == own => {
            if access::is_dumpable(pid) || has_sys_ptrace() {
                Check::ok("user", format!("{user}, as torchspy"))
            } else {
                let detail = format!("{user}, but not dumpable");
                Check::no("user", detail, Some(Remedy::NotDumpable))
            }
        }
        Some(user) if has_sys_ptrace() => Check::ok(
            "user",
            format!("{user}; torchspy is {own} with CAP_SYS_PTRACE"),
        ),
        Some(user) => Check::no(
            "user",
            format!("{user}; torchspy is {own}"),
            Some(Remedy::OtherUser),
        ),
        None => Check::limited("user", "not known", None),
    }
}

fn check_namespaces(pid: i32) -> Check {
    let differing: Vec<&str> = ["pid", "user", "mnt"]
        .into_iter()
        .filter(|name| access::namespace_differs(pid, name))
        .collect();
    if differing.is_empty() {
        return Check::ok("namespaces", "as torchspy's, or not readable");
    }
    let detail = format!("another {} namespace", differing.join(", "));
    if differing.contains(&"user") {
        return Check::limited("namespaces", detail, Some(Remedy::OtherNamespace));
    }
    Check::ok(
        "namespaces",
        format!("{detail}: files are opened in its root"),
    )
}

fn check_tracer(pid: i32) -> Check {
    match access::tracer(pid) {
        None => Check::ok("tracer", "none"),
        Some(tracer) => Check::limited(
            "tracer",
            format!("process {tracer} holds it"),
            Some(Remedy::AlreadyTraced),
        ),
    }
}

fn check_python(pid: i32) -> Check {
    match python_version(pid) {
        Some((3, minor)) if PythonVersion::SUPPORTED.contains(&minor) => {
            Check::ok("python", format!("3.{minor}"))
        }
        Some((major, minor)) => Check::limited(
            "python",
            format!(
                "{major}.{minor}: torchspy reads 3.{} to 3.{} itself",
                PythonVersion::SUPPORTED.start(),
                PythonVersion::SUPPORTED.end()
            ),
            Some(Remedy::UnsupportedPython),
        ),
        None => Check::limited(
            "python",
            "no interpreter recognised by its file names",
            Some(Remedy::UnsupportedPython),
        ),
    }
}

/// Mapped files of a process that are named like a Python, and its program.
pub fn python_files(pid: i32) -> Vec<String> {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let mut files = vec![exe.to_string_lossy().into_owned()];
    let maps = read_bounded(format!("/proc/{pid}/maps"), 16 << 20).unwrap_or_default();
    for line in String::from_utf8_lossy(&maps).lines() {
        let path = line.find('/').map_or("", |at| &line[at..]);
        let name = path.rsplit('/').next().unwrap_or(path);
        let is_python = name.starts_with("python") || name.starts_with("libpython");
        if is_python && files.iter().all(|known| known != path) {
            files.push(path.to_owned());
        }
    }
    files
}

/// The version in the names of the mapped files: `libpython3.11.so.1.0`, `python3.11`.
fn python_version(pid: i32) -> Option<(u8, u8)> {
    let files = python_files(pid);
    let of = |path: &String, start: &str| {
        let name = path.rsplit('/').next()?;
        parse_version(name.strip_prefix(start)?)
    };
    let library = files.iter().find_map(|path| of(path, "libpython"));
    library.or_else(|| of(files.first()?, "python"))
}

fn parse_version(text: &str) -> Option<(u8, u8)> {
    let (major, rest) = text.split_once('.')?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    Some((major.parse().ok()?, rest[..digits].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checks_cover_what_a_sampler_needs() {
        let checks = check_host();
        let names: Vec<_> = checks.iter().map(|check| check.name).collect();
        for name in [
            "kernel",
            "ptrace_scope",
            "ptrace",
            "process_vm_readv",
            "schedstat",
        ] {
            assert!(names.contains(&name), "{name} is missing of {names:?}");
        }
        assert!(
            checks
                .iter()
                .all(|c| c.verdict != Verdict::No || c.remedy.is_some()),
            "{checks:?}"
        );
    }

    #[test]
    fn a_target_is_checked() {
        let checks = check_target(own_pid()).unwrap();
        let user = checks.iter().find(|check| check.name == "user").unwrap();
        assert_eq!(user.verdict, Verdict::Ok);
        assert_eq!(
            check_target(i32::MAX).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn versions_in_file_names() {
        assert_eq!(parse_version("3.11.so.1.0"), Some((3, 11)));
        assert_eq!(parse_version("3.13t"), Some((3, 13)));
        assert_eq!(parse_version("3"), None);
        assert_eq!(parse_version(""), None);
    }
}
