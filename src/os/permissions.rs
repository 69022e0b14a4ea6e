//! What may be sampled here, and what stands in the way.
//!
//! The kernel's rules are those of ptrace(2), "Ptrace access mode checking": same user and dumpable, or CAP_SYS_PTRACE in
//! the target's user namespace; then Yama (kernel, admin-guide/LSM/Yama), then seccomp. The checks ask the kernel by doing
//! what sampling does, and read /proc only to say why.
#![allow(unsafe_code)]

use super::host;
use super::process_info::{read_bounded, read_stat};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::{ForkResult, Pid, fork, geteuid};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::MetadataExt;

/// What a check came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing in the way.
    Ok,
    /// Works in part, or for some processes.
    Limited,
    /// Does not work.
    No,
}

/// What would help: the reasons for which the kernel refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Remedy {
    /// A container without CAP_SYS_PTRACE, or with a seccomp filter on ptrace.
    Container,
    /// Yama allows only descendants.
    YamaDescendants,
    /// Yama asks for CAP_SYS_PTRACE.
    YamaAdmin,
    /// Yama allows nobody, until the next boot.
    YamaOff,
    /// The process belongs to another user.
    OtherUser,
    /// The process forbids it: it is set-user-id, or not dumpable.
    NotDumpable,
    /// The process is in another pid namespace, user namespace or job step.
    OtherNamespace,
    /// A debugger or another profiler holds it.
    AlreadyTraced,
    /// The kernel is too old for something.
    OldKernel,
    /// No Python that is supported.
    UnsupportedPython,
    /// The cgroup's CPU quota may throttle.
    CpuQuota,
}

/// One line of `doctor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// What it came to.
    pub verdict: Verdict,
    /// What was found.
    pub detail: String,
    /// What would help.
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
}

/// Looks at this machine: which processes may be sampled from here at all.
///
/// Forks a child and stops it for a moment: to be called while no other thread waits for children.
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
    checks.push(match host::cgroup_cpu_quota(own_pid()) {
        Some(cpus) => Check::new(
            "cpu quota",
            Verdict::Limited,
            format!("{cpus:.2} CPUs for this cgroup"),
            Some(Remedy::CpuQuota),
        ),
        None => Check::ok("cpu quota", "none"),
    });
    checks
}

/// Looks at one process.
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
            Check::new("memory", Verdict::No, error.to_string(), remedy)
        }
    };
    let python = check_python(pid);
    Ok(vec![user, namespaces, tracer, memory, python])
}

/// Why the kernel refuses access to this process, as far as /proc tells; `None` where nothing stands out.
pub fn why_denied(pid: i32) -> Option<Remedy> {
    let privileged = has_sys_ptrace();
    if check_tracer(pid).verdict != Verdict::Ok {
        return Some(Remedy::AlreadyTraced);
    }
    if yama_scope() == Some(3) {
        return Some(Remedy::YamaOff);
    }
    if !privileged && namespace_differs(pid, "user") {
        return Some(Remedy::OtherNamespace);
    }
    if let Some(user) = target_user(pid)
        && user != geteuid().as_raw()
        && !privileged
    {
        return Some(if geteuid().is_root() {
            Remedy::Container
        } else {
            Remedy::OtherUser
        });
    }
    if !privileged && !is_dumpable(pid) {
        return Some(Remedy::NotDumpable);
    }
    match yama_scope() {
        Some(1) if !privileged && !is_descendant(pid) => Some(Remedy::YamaDescendants),
        Some(2) if !privileged => Some(Remedy::YamaAdmin),
        _ if seccomp_mode(own_pid()) == Some(2) || container().is_some() => Some(Remedy::Container),
        _ => None,
    }
}

fn check_kernel() -> Check {
    let release = host::kernel_release();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    // pidfd_open came with 5.3.
    if version < (5, 3) {
        let detail = format!("{release}: processes are told apart by start time alone");
        return Check::new("kernel", Verdict::Limited, detail, Some(Remedy::OldKernel));
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
        let remedy = Some(Remedy::Container);
        return Check::new(
            "CAP_SYS_PTRACE",
            Verdict::Limited,
            "dropped, though this is root",
            remedy,
        );
    }
    let remedy = Some(Remedy::OtherUser);
    Check::new(
        "CAP_SYS_PTRACE",
        Verdict::Limited,
        "not there: own processes only",
        remedy,
    )
}

fn check_seccomp() -> Check {
    match seccomp_mode(own_pid()) {
        Some(0) => Check::ok("seccomp", "no filter"),
        Some(_) => Check::ok(
            "seccomp",
            "a filter is there; the next lines tell what it lets through",
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
            Check::new(name, Verdict::No, error.to_string(), Some(remedy))
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
    // `0 0 0` is what a kernel without CONFIG_SCHED_INFO, or a container runtime such as gVisor, says.
    let text = read_bounded("/proc/thread-self/schedstat", 128).unwrap_or_default();
    if text.iter().any(|byte| (b'1'..=b'9').contains(byte)) {
        Check::ok("schedstat", "available")
    } else {
        Check::new(
            "schedstat",
            Verdict::Limited,
            "missing: idle threads cost more to pass over, cpu_wait is not seen",
            None,
        )
    }
}

fn check_user(pid: i32) -> Check {
    let own = geteuid().as_raw();
    match target_user(pid) {
        Some(user) if user == own => {
            if is_dumpable(pid) || has_sys_ptrace() {
                Check::ok("user", format!("{user}, as torchspy"))
            } else {
                let remedy = Some(Remedy::NotDumpable);
                Check::new(
                    "user",
                    Verdict::No,
                    format!("{user}, but not dumpable"),
                    remedy,
                )
            }
        }
        Some(user) if has_sys_ptrace() => Check::ok(
            "user",
            format!("{user}; torchspy is {own} with CAP_SYS_PTRACE"),
        ),
        Some(user) => Check::new(
            "user",
            Verdict::No,
            format!("{user}; torchspy is {own}"),
            Some(Remedy::OtherUser),
        ),
        None => Check::new("user", Verdict::Limited, "not known", None),
    }
}

fn check_namespaces(pid: i32) -> Check {
    let differing: Vec<&str> = ["pid", "user", "mnt"]
        .into_iter()
        .filter(|name| namespace_differs(pid, name))
        .collect();
    if differing.is_empty() {
        return Check::ok("namespaces", "as torchspy's, or not to be read");
    }
    let detail = format!("another {} namespace", differing.join(", "));
    if differing.contains(&"user") {
        return Check::new(
            "namespaces",
            Verdict::Limited,
            detail,
            Some(Remedy::OtherNamespace),
        );
    }
    Check::ok(
        "namespaces",
        format!("{detail}: files are opened in its root"),
    )
}

fn check_tracer(pid: i32) -> Check {
    match status_field(pid, "TracerPid:").and_then(|text| text.trim().parse::<i32>().ok()) {
        None | Some(0) => Check::ok("tracer", "none"),
        Some(tracer) => Check::new(
            "tracer",
            Verdict::Limited,
            format!("process {tracer} holds it"),
            Some(Remedy::AlreadyTraced),
        ),
    }
}

fn check_python(pid: i32) -> Check {
    match python_version(pid) {
        Some((3, minor)) if (10..=15).contains(&minor) => Check::ok("python", format!("3.{minor}")),
        Some((major, minor)) => Check::new(
            "python",
            Verdict::Limited,
            format!("{major}.{minor}: torchspy reads 3.10 to 3.15 itself"),
            Some(Remedy::UnsupportedPython),
        ),
        None => Check::new(
            "python",
            Verdict::Limited,
            "no interpreter recognised by its file names",
            Some(Remedy::UnsupportedPython),
        ),
    }
}

/// The version in the names of the mapped files: `libpython3.11.so.1.0`, `python3.11`.
fn python_version(pid: i32) -> Option<(u32, u32)> {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let maps = read_bounded(format!("/proc/{pid}/maps"), 16 << 20).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    let library = maps.split("/libpython").nth(1).and_then(parse_version);
    let name = exe
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    library.or_else(|| parse_version(name?.strip_prefix("python")?))
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.split_once('.')?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    Some((major.parse().ok()?, rest[..digits].parse().ok()?))
}

/// Reads one byte of the target's memory, which asks the kernel for the same access as ptrace does, without a stop.
///
/// # Errors
/// What the kernel says: `PermissionDenied` where sampling is not allowed.
pub fn try_read_memory(pid: i32) -> io::Result<()> {
    let maps = read_bounded(format!("/proc/{pid}/maps"), 64 << 10)?;
    let maps = String::from_utf8_lossy(&maps);
    let readable = maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let start = rest.starts_with('r').then(|| range.split('-').next())??;
        usize::from_str_radix(start, 16).ok()
    });
    match readable {
        Some(address) => read_byte(pid, address),
        None => Err(io::Error::new(
            io::ErrorKind::NotFound,
            "it has no memory: a kernel thread, or already dead",
        )),
    }
}

fn read_byte(pid: i32, address: usize) -> io::Result<()> {
    let mut byte = [0];
    let remote = [RemoteIoVec {
        base: address,
        len: 1,
    }];
    let count = process_vm_readv(
        Pid::from_raw(pid),
        &mut [IoSliceMut::new(&mut byte)],
        &remote,
    )?;
    if count == 1 {
        Ok(())
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Yama's mode; `None` where the kernel has no Yama.
pub fn yama_scope() -> Option<u32> {
    let text = read_bounded("/proc/sys/kernel/yama/ptrace_scope", 16).ok()?;
    String::from_utf8(text).ok()?.trim().parse().ok()
}

/// Whether CAP_SYS_PTRACE (bit 19, linux/capability.h) is in effect.
pub fn has_sys_ptrace() -> bool {
    let effective = status_field(own_pid(), "CapEff:");
    let bits = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| bits & (1 << 19) != 0)
}

/// The container runtime that torchspy seems to run under.
pub fn container() -> Option<&'static str> {
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Some("Kubernetes");
    }
    if std::path::Path::new("/.dockerenv").exists() {
        return Some("Docker");
    }
    if std::path::Path::new("/run/.containerenv").exists() {
        return Some("Podman");
    }
    if std::env::var_os("APPTAINER_CONTAINER").is_some()
        || std::env::var_os("SINGULARITY_CONTAINER").is_some()
    {
        return Some("Apptainer");
    }
    let cgroup = read_bounded("/proc/self/cgroup", 16 << 10).ok()?;
    let cgroup = String::from_utf8_lossy(&cgroup);
    const MARKS: [(&str, &str); 4] = [
        ("kubepods", "Kubernetes"),
        ("docker", "Docker"),
        ("libpod", "Podman"),
        ("containerd", "containerd"),
    ];
    MARKS
        .iter()
        .find(|(mark, _)| cgroup.contains(mark))
        .map(|&(_, name)| name)
}

fn own_pid() -> i32 {
    Pid::this().as_raw()
}

fn status_field(pid: i32, name: &str) -> Option<String> {
    let text = read_bounded(format!("/proc/{pid}/status"), 16 << 10).ok()?;
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().to_owned())
}

fn seccomp_mode(pid: i32) -> Option<u32> {
    status_field(pid, "Seccomp:")?.parse().ok()
}

fn target_user(pid: i32) -> Option<u32> {
    // Real, effective, saved and file-system user; access is checked against all but the last.
    status_field(pid, "Uid:")?
        .split_ascii_whitespace()
        .next()?
        .parse()
        .ok()
}

/// The kernel gives /proc/PID of a process that is not dumpable to root (proc_pid(5)).
fn is_dumpable(pid: i32) -> bool {
    let owner = std::fs::metadata(format!("/proc/{pid}")).map(|data| data.uid());
    let effective = status_field(pid, "Uid:")
        .and_then(|text| text.split_ascii_whitespace().nth(1)?.parse::<u32>().ok());
    match (owner.ok(), effective) {
        (Some(owner), Some(effective)) => owner == effective,
        _ => true,
    }
}

fn namespace_differs(pid: i32, name: &str) -> bool {
    let target = std::fs::read_link(format!("/proc/{pid}/ns/{name}"));
    let own = std::fs::read_link(format!("/proc/self/ns/{name}"));
    matches!((target, own), (Ok(target), Ok(own)) if target != own)
}

fn is_descendant(pid: i32) -> bool {
    const DEEPEST: usize = 64;
    let mut next = pid;
    for _ in 0..DEEPEST {
        match read_stat(next) {
            Ok(stat) if stat.parent_pid == own_pid() => return true,
            Ok(stat) if stat.parent_pid > 1 => next = stat.parent_pid,
            _ => return false,
        }
    }
    false
}

/// A forked child that sleeps until it is killed: to try things on.
struct OwnChild {
    pid: Pid,
}

impl OwnChild {
    fn start() -> io::Result<Self> {
        // SAFETY: the child calls nothing but pause, which is async-signal-safe, and never returns.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Self { pid: child }),
            ForkResult::Child => loop {
                // SAFETY: no arguments, no memory.
                unsafe { libc::pause() };
            },
        }
    }

    fn try_ptrace(&self) -> io::Result<()> {
        ptrace::seize(self.pid, ptrace::Options::empty())?;
        ptrace::interrupt(self.pid)?;
        loop {
            match nix::sys::wait::waitpid(self.pid, None) {
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => break,
            }
        }
        Ok(ptrace::detach(self.pid, None)?)
    }

    /// Reads a static, which a fork has where its parent has it.
    fn try_read(&self) -> io::Result<()> {
        static BYTE: u8 = 7;
        read_byte(self.pid.as_raw(), &raw const BYTE as usize)
    }
}

impl Drop for OwnChild {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(self.pid, nix::sys::signal::SIGKILL);
        let _ = nix::sys::wait::waitpid(self.pid, None);
    }
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
    fn a_target_is_looked_at() {
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

    #[test]
    fn descent() {
        let child = OwnChild::start().unwrap();
        assert!(is_descendant(child.pid.as_raw()));
        assert!(!is_descendant(1));
    }
}
