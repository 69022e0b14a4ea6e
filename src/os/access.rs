//! Which access the kernel allows torchspy to other processes: determined by trying it, and from
//! /proc.
#![allow(unsafe_code)]

use super::process_info::{self, read_bounded, read_stat, read_text};
use super::threads::living_task;
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::{ForkResult, Pid, fork};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::MetadataExt;

/// Maximum number of attempts to read the memory of a live process that has none.
const EXEC_TRIES: u32 = 8;

/// Reads one byte of the target's memory, which asks the kernel for the same access as ptrace does,
/// without a stop.
///
/// # Errors
/// The kernel's error: `PermissionDenied` where sampling is not allowed.
pub fn try_read_memory(pid: i32) -> io::Result<()> {
    if is_proc_foreign() {
        // With a foreign /proc, files and system calls refer to different processes by the same
        // pid.
        return Err(io::Error::other(
            "/proc shows the processes of another pid namespace",
        ));
    }
    // A process that execs may change its memory and its first thread at any time.
    for _ in 1..EXEC_TRIES {
        match try_read_task(living_task(pid)) {
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied && is_alive(pid) => {}
            tried => return tried,
        }
    }
    try_read_task(living_task(pid))
}

/// Whether a process has a program of its own, and has not ended.
fn is_alive(pid: i32) -> bool {
    let stat = read_stat(living_task(pid));
    stat.is_ok_and(|stat| !stat.is_kernel_thread && !stat.is_zombie())
}

fn try_read_task(pid: i32) -> io::Result<()> {
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
            match read_stat(pid) {
                Ok(stat) if stat.is_kernel_thread => {
                    "in the pid namespace of torchspy it is a kernel thread"
                }
                Ok(stat) if stat.is_zombie() => "it has ended",
                Ok(_) => "it has no memory that could be read",
                Err(_) => "it is gone",
            },
        )),
    }
}

/// Whether `/proc` was mounted for another pid namespace: `unshare --pid` without `--mount-proc`.
pub fn is_proc_foreign() -> bool {
    let own = std::fs::read_link("/proc/self").ok();
    own.and_then(|own| own.to_str()?.parse::<i32>().ok())
        .is_some_and(|own| own != own_pid())
}

/// Processes that have `pid` in a pid namespace of their own, such as a container's, by their pids
/// in torchspy's.
pub fn with_inner_pid(pid: i32) -> Vec<i32> {
    let listing = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = listing.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut found: Vec<i32> = pids
        .filter(|&outer| {
            let inner = status_field(outer, "NSpid:")
                .and_then(|pids| pids.split_ascii_whitespace().last()?.parse::<i32>().ok());
            outer != pid && inner == Some(pid)
        })
        .collect();
    found.sort_unstable();
    found
}

/// Stops a child of torchspy briefly, to see whether threads may be stopped at all or a seccomp
/// filter denies ptrace. Forks, so it must be called before other threads are started.
///
/// # Errors
/// The kernel's error.
pub fn try_stop_own_child() -> io::Result<()> {
    OwnChild::start()?.try_ptrace()
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
    let text = read_text("/proc/sys/kernel/yama/ptrace_scope", 16)?;
    text.trim().parse().ok()
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
    let cgroup = read_text("/proc/self/cgroup", 16 << 10)?;
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

pub(super) fn own_pid() -> i32 {
    Pid::this().as_raw()
}

pub(super) fn status_field(pid: i32, name: &str) -> Option<String> {
    process_info::status_field(&format!("/proc/{pid}"), name)
}

/// The process that traces this one's first thread.
pub(super) fn tracer(pid: i32) -> Option<i32> {
    let tracer = status_field(pid, "TracerPid:")?.parse().ok()?;
    (tracer != 0).then_some(tracer)
}

pub(super) fn seccomp_mode(pid: i32) -> Option<u32> {
    status_field(pid, "Seccomp:")?.parse().ok()
}

pub(super) fn target_user(pid: i32) -> Option<u32> {
    // Real, effective, saved and file-system user; access is checked against all but the last.
    status_field(pid, "Uid:")?
        .split_ascii_whitespace()
        .next()?
        .parse()
        .ok()
}

/// The owner of /proc/PID is root if the process is not dumpable (proc_pid(5)).
pub(super) fn is_dumpable(pid: i32) -> bool {
    let owner = std::fs::metadata(format!("/proc/{pid}")).map(|data| data.uid());
    let effective = status_field(pid, "Uid:")
        .and_then(|text| text.split_ascii_whitespace().nth(1)?.parse::<u32>().ok());
    match (owner.ok(), effective) {
        (Some(owner), Some(effective)) => owner == effective,
        _ => true,
    }
}

pub(super) fn namespace_differs(pid: i32, name: &str) -> bool {
    let target = std::fs::read_link(format!("/proc/{pid}/ns/{name}"));
    let own = std::fs::read_link(format!("/proc/self/ns/{name}"));
    matches!((target, own), (Ok(target), Ok(own)) if target != own)
}

pub(super) fn is_descendant(pid: i32) -> bool {
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

/// A forked child that sleeps until it is killed, for trials.
pub(super) struct OwnChild {
    pid: Pid,
}

impl OwnChild {
    pub(super) fn start() -> io::Result<Self> {
        let parent = own_pid();
        // SAFETY: the child calls nothing but prctl, getppid, pause and _exit, which are system
        // calls, and never returns.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Self { pid: child }),
            // If torchspy is killed here, the child must end, too. SAFETY: no memory is touched.
            ForkResult::Child => unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                while libc::getppid() == parent {
                    libc::pause();
                }
                libc::_exit(0)
            },
        }
    }

    pub(super) fn try_ptrace(&self) -> io::Result<()> {
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

    /// Reads a static variable, which a fork has at the same address as its parent.
    pub(super) fn try_read(&self) -> io::Result<()> {
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
    fn descent() {
        let child = OwnChild::start().unwrap();
        assert!(is_descendant(child.pid.as_raw()));
        assert!(!is_descendant(1));
    }

    #[test]
    fn a_pid_within_a_container_is_found_from_outside() {
        let mut sleeper = std::process::Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child", "cat"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let (mut input, mut output) = (
            sleeper.stdin.take().unwrap(),
            sleeper.stdout.take().unwrap(),
        );
        std::io::Write::write_all(&mut input, b"x").unwrap();
        let mut byte = [0];
        if std::io::Read::read_exact(&mut output, &mut byte).is_err() {
            println!("skipped: no pid namespace to be had");
        } else {
            let unshare = i32::try_from(sleeper.id()).unwrap();
            let is_its_child =
                |&pid: &i32| read_stat(pid).is_ok_and(|stat| stat.parent_pid == unshare);
            let found = with_inner_pid(1);
            assert!(found.iter().any(is_its_child), "{found:?}");
        }
        drop(input);
        sleeper.wait().unwrap();
    }

    #[test]
    fn own_memory_may_be_read_and_a_missing_process_is_not_found() {
        try_read_memory(own_pid()).unwrap();
        assert_eq!(
            try_read_memory(i32::MAX).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
