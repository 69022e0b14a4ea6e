//! The signal that ended a process that need not be a child of torchspy.
#![allow(unsafe_code)]

use super::process_info::read_text;
use nix::libc;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `struct pidfd_info` of Linux 6.15 (include/uapi/linux/pidfd.h).
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// `PIDFD_INFO_EXIT`: asks for the exit status, and says that it is there.
const INFO_EXIT: u64 = 1 << 3;
/// `PIDFD_GET_INFO`, `_IOWR(0xFF, 11, struct pidfd_info)`, as x86 and aarch64 encode it.
const GET_INFO: libc::Ioctl = (3 << 30) | ((size_of::<PidfdInfo>() as libc::Ioctl) << 16) | 0xFF0B;

/// The signal that ended a process; `None` where it ended by itself, or where that is not known.
///
/// Until its parent has waited for it, its status is in `/proc/PID/stat`; afterwards its pidfd has
/// it, from Linux 6.15 on.
pub fn ending_signal(pid: i32, pidfd: Option<BorrowedFd<'_>>) -> Option<i32> {
    let text = read_text(&format!("/proc/{pid}/stat"), 4096);
    let status = text
        .as_deref()
        .and_then(parse_status)
        .or_else(|| status_of(pidfd?))?;
    let signal = status & 0x7f;
    (signal != 0).then_some(signal)
}

/// Field 52 of a zombie (proc_pid_stat(5)): the status as waitpid(2) has it; 0 for those who may
/// not see it.
fn parse_status(stat: &str) -> Option<i32> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let is_zombie = fields.next()? == "Z";
    let status = fields.nth(52 - 4)?.parse().ok()?;
    is_zombie.then_some(status)
}

fn status_of(pidfd: BorrowedFd<'_>) -> Option<i32> {
    let mut info = PidfdInfo {
        mask: INFO_EXIT,
        ..PidfdInfo::default()
    };
    // SAFETY: the kernel writes at most the size that is part of the request into `info`, which
    // lives here.
    let result = unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO, &raw mut info) };
    (result == 0 && info.mask & INFO_EXIT != 0).then_some(info.exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::launch::open_pidfd;
    use std::os::fd::AsFd;
    use std::process::Command;

    #[test]
    fn a_zombie_has_its_status() {
        let numbers = "1 ".repeat(48);
        assert_eq!(parse_status(&format!("7 (a ) b) Z {numbers} 9\n")), Some(9));
        assert_eq!(parse_status(&format!("7 (a) S {numbers} 9\n")), None);
        assert_eq!(parse_status("7 (a) Z 1 1\n"), None);
    }

    #[test]
    fn the_signal_is_known_before_and_after_the_parent_has_waited() {
        let mut child = Command::new("sh")
            .args(["-c", "kill -KILL $$"])
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let pidfd = open_pidfd(pid).ok();
        let descriptor = nix::sys::wait::Id::Pid(nix::unistd::Pid::from_raw(pid));
        let flags = nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT;
        nix::sys::wait::waitid(descriptor, flags).unwrap();
        assert_eq!(ending_signal(pid, None), Some(9));
        child.wait().unwrap();
        match ending_signal(pid, pidfd.as_ref().map(AsFd::as_fd)) {
            None => println!("skipped: this kernel does not keep the status (before Linux 6.15)"),
            found => assert_eq!(found, Some(9)),
        }
        assert_eq!(ending_signal(std::process::id() as i32, None), None);
    }
}
