//! What a stop does to the system call that it meets.
//!
//! PTRACE_INTERRUPT makes `signal_pending()` true (kernel/ptrace.c, `ptrace_signal_wake_up`). A call that sleeps interruptibly, or
//! asks between two pieces of its work, then ends early:
//!
//! - most with ERESTARTSYS and its like: the kernel begins them anew, or goes on with what is left of the timeout, and the program
//!   sees nothing (signal(7), arch/x86/kernel/signal.c);
//! - some with EINTR, having done nothing, whether a signal's handler runs or not;
//! - those that transfer many bytes, or fill much memory, end with less than was asked for.
//!
//! A tracer cannot stop a thread in another way. It could write the code into the thread's registers with which the kernel begins a
//! call anew, but torchspy writes nothing to its target. So a thread that is likely to be in such a call is not stopped.

use super::access::status_field;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

/// A system call at whose end a thread stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number.
    pub number: u32,
    /// Its arguments.
    pub arguments: [u64; 6],
    /// What it is about to return: below 0 an error's negative number.
    pub result: i64,
}

/// How a stop left the system call that it met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It had waited, or just begun to; the kernel begins it anew.
    Waits,
    /// It had waited, or just begun to, and ended with EINTR.
    Interrupted,
    /// It ended early. (Or another reason than the stop made it do so: a read at the end of a file.)
    CutShort,
    /// It began another program.
    Exec {
        /// Which runs without the privileges that its file gives, since the thread was traced.
        privileges_lost: bool,
    },
}

/// What the restart codes are (Linux, include/linux/errno.h): ERESTARTSYS to ERESTART_RESTARTBLOCK, which only a tracer sees.
const RESTARTS: std::ops::RangeInclusive<i64> = -516..=-512;
const EINTR: i64 = 4;

/// MSG_WAITALL, of `recv` (include/linux/socket.h).
const WAIT_FOR_ALL: u64 = 0x100;
/// MSG_DONTWAIT, of `send`.
const DO_NOT_WAIT: u64 = 0x40;
/// A write to a pipe of up to so many bytes is done as a whole or not at all (PIPE_BUF, pipe(7)); sockets take more at once.
const WHOLE_BYTES: u64 = 4096;

/// Numbers of one architecture.
struct Numbers {
    /// Restarted with what is left of their timeout: poll, select, nanosleep, wait4, futex, clock_nanosleep, waitid, pselect6,
    /// ppoll, restart_syscall.
    restarted: &'static [u32],
    /// Sleep interruptibly and never in another state: epoll_wait, epoll_pwait, epoll_pwait2.
    event_waits: &'static [u32],
    /// End with EINTR, and have done nothing then, whatever the timeout: epoll_wait, epoll_pwait, epoll_pwait2 (fs/eventpoll.c,
    /// `ep_poll`), semop, semtimedop (ipc/sem.c), rt_sigtimedwait (kernel/signal.c), io_getevents (fs/aio.c); and with SO_RCVTIMEO or SO_SNDTIMEO (include/net/sock.h, `sock_intr_errno`) accept, accept4,
    /// connect, recvfrom, recvmsg, recvmmsg, sendto, sendmsg, sendmmsg, read, write, readv, writev.
    interrupted: &'static [u32],
    /// io_uring_enter: the same where it submits nothing (io_uring/io_uring.c).
    ring_enter: u32,
    /// Transfer what the argument of this place counts, and may end with less: write, pwrite64, sendto, sendfile, splice, tee,
    /// copy_file_range, vmsplice, recvmmsg, sendmmsg, io_getevents (its least number of events).
    transfers: &'static [(u32, usize)],
    sendto: u32,
    /// sendmsg, writev: the same, counted in the program's memory.
    gathering: &'static [u32],
    /// recvfrom, recvmsg, with the argument that holds the flags, and that of the length; only with MSG_WAITALL.
    receives: &'static [(u32, usize, Option<usize>)],
    /// getrandom, and read and pread64 of a device without a position: the length's argument.
    getrandom: (u32, usize),
    reads: &'static [(u32, usize)],
    /// write, readv, writev: of a socket as well as of a file.
    file_writes: &'static [u32],
    /// execve, execveat.
    execs: &'static [u32],
}

/// Source: Linux, arch/x86/entry/syscalls/syscall_64.tbl.
#[cfg(target_arch = "x86_64")]
const NUMBERS: Numbers = Numbers {
    restarted: &[7, 23, 35, 61, 202, 230, 247, 270, 271, 219],
    event_waits: &[232, 281, 441],
    interrupted: &[
        232, 281, 441, 65, 220, 128, 208, 43, 288, 42, 45, 47, 299, 44, 46, 307, 0, 1, 19, 20,
    ],
    ring_enter: 426,
    transfers: &[
        (1, 2),
        (18, 2),
        (44, 2),
        (40, 3),
        (275, 4),
        (276, 2),
        (326, 4),
        (278, 2),
        (299, 2),
        (307, 2),
        (208, 1),
    ],
    sendto: 44,
    gathering: &[46, 20],
    receives: &[(45, 3, Some(2)), (47, 2, None)],
    getrandom: (318, 1),
    reads: &[(0, 2), (17, 2)],
    file_writes: &[1, 19, 20],
    execs: &[59, 322],
};

/// Source: Linux, include/uapi/asm-generic/unistd.h.
#[cfg(target_arch = "aarch64")]
const NUMBERS: Numbers = Numbers {
    restarted: &[73, 101, 260, 98, 115, 95, 72, 128],
    event_waits: &[22, 441],
    interrupted: &[
        22, 441, 193, 192, 137, 4, 202, 242, 203, 207, 212, 243, 206, 211, 269, 63, 64, 65, 66,
    ],
    ring_enter: 426,
    transfers: &[
        (64, 2),
        (68, 2),
        (206, 2),
        (71, 3),
        (76, 4),
        (77, 2),
        (285, 4),
        (75, 2),
        (243, 2),
        (269, 2),
        (4, 1),
    ],
    sendto: 206,
    gathering: &[211, 66],
    receives: &[(207, 3, Some(2)), (212, 2, None)],
    getrandom: (278, 1),
    reads: &[(63, 2), (67, 2)],
    file_writes: &[64, 65, 66],
    execs: &[221, 281],
};

/// Whether a stop does not disturb a thread that sleeps in this call.
pub fn is_restarted(number: u32) -> bool {
    NUMBERS.restarted.contains(&number)
}

/// Whether a thread that sleeps in this call can be woken by a signal: it is in no other kind of sleep.
pub fn sleeps_interruptibly(number: u32) -> bool {
    is_restarted(number) || NUMBERS.event_waits.contains(&number)
}

/// Whether a thread that sleeps in this call, or is about to, sees EINTR where it is stopped. (Of calls on sockets only those with a
/// timeout; read and write of theirs are left out, since most are of files and pipes.)
pub fn ends_with_eintr(number: u32) -> bool {
    let is_plain = |(call, _): &(u32, usize)| *call == number;
    NUMBERS.interrupted.contains(&number)
        && !NUMBERS.reads.iter().any(is_plain)
        && !NUMBERS.file_writes.contains(&number)
}

/// Whether a stop may make this call transfer less than it was asked to. Such a call sleeps whenever the
/// other side has no room, or nothing more to give; it is that sleep in which the stop's signal ends it.
pub fn is_transfer(number: u32, arguments: &[u64; 6]) -> bool {
    let argument = |at: usize| arguments.get(at).copied().unwrap_or(0);
    let least = |number: u32| match Some(&number) == NUMBERS.transfers.last().map(|(last, _)| last)
    {
        // Events are few.
        true => 1,
        false => WHOLE_BYTES,
    };
    NUMBERS
        .transfers
        .iter()
        .any(|&(call, at)| call == number && argument(at) > least(call))
        || NUMBERS.gathering.contains(&number)
        || waits_for_all(number, arguments)
}

fn waits_for_all(number: u32, arguments: &[u64; 6]) -> bool {
    NUMBERS.receives.iter().any(|&(call, flags, _)| {
        call == number
            && arguments
                .get(flags)
                .is_some_and(|flags| flags & WAIT_FOR_ALL != 0)
    })
}

impl Call {
    /// How a stop of thread `tid` left it; `None` where it did nothing to it.
    pub fn ending(&self, tid: i32) -> Option<Ending> {
        if RESTARTS.contains(&self.result) {
            return Some(Ending::Waits);
        }
        if self.result == -EINTR {
            let has_waited = NUMBERS.interrupted.contains(&self.number)
                || self.number == NUMBERS.ring_enter && self.argument(1) == 0;
            return Some(match has_waited {
                true => Ending::Interrupted,
                false => Ending::CutShort,
            });
        }
        if self.result == 0 && NUMBERS.execs.contains(&self.number) {
            return Some(Ending::Exec {
                privileges_lost: lacks_privileges(tid),
            });
        }
        if self.result <= 0 {
            return None;
        }
        let is_less = |at: usize| (self.result as u64) < self.argument(at);
        if NUMBERS.getrandom.0 == self.number {
            return is_less(NUMBERS.getrandom.1).then_some(Ending::CutShort);
        }
        if let Some(&(_, at)) = NUMBERS.reads.iter().find(|(call, _)| *call == self.number) {
            return (is_less(at) && is_source_without_end(tid, self.argument(0)))
                .then_some(Ending::CutShort);
        }
        if NUMBERS.sendto == self.number && self.argument(3) & DO_NOT_WAIT != 0 {
            return None;
        }
        let mut counted = NUMBERS.transfers.iter();
        let is_short = counted.any(|&(call, at)| call == self.number && is_less(at))
            || waits_for_all(self.number, &self.arguments)
                && NUMBERS
                    .receives
                    .iter()
                    .any(|&(call, _, at)| call == self.number && at.is_some_and(is_less));
        (is_short && !is_nonblocking(tid, self.argument(0))).then_some(Ending::CutShort)
    }

    fn argument(&self, at: usize) -> u64 {
        self.arguments.get(at).copied().unwrap_or(0)
    }
}

/// Whether calls with a descriptor of thread `tid` end with less by themselves (O_NONBLOCK, proc_pid_fdinfo(5)).
fn is_nonblocking(tid: i32, descriptor: u64) -> bool {
    let text = fs::read_to_string(format!("/proc/{tid}/fdinfo/{descriptor}")).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    flags
        .and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok())
        .is_some_and(|flags| flags & nix::libc::O_NONBLOCK != 0)
}

/// Whether the program of process `pid` is setuid or setgid and runs without: the kernel gives a program no privileges whose tracer
/// has no CAP_SYS_PTRACE (security/commoncap.c, `cap_bprm_creds_from_file`). Capabilities of files are not looked at.
fn lacks_privileges(pid: i32) -> bool {
    let Ok(file) = fs::metadata(format!("/proc/{pid}/exe")) else {
        return false;
    };
    // The effective one is the second (proc_pid_status(5)).
    let effective = |name: &str| {
        let field = status_field(pid, name)?;
        field.split_ascii_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let mode = file.permissions().mode();
    let is_set = |bits: u32| mode & bits == bits;
    is_set(nix::libc::S_ISUID) && effective("Uid:").is_some_and(|uid| uid != file.uid())
        || is_set(nix::libc::S_ISGID | nix::libc::S_IXGRP)
            && effective("Gid:").is_some_and(|gid| gid != file.gid())
}

/// Whether a descriptor of thread `tid` is one of `/dev/zero`, `full`, `random`, `urandom` (Documentation/admin-guide/devices.txt:
/// major 1), which give as much as is asked for.
fn is_source_without_end(tid: i32, descriptor: u64) -> bool {
    fs::metadata(format!("/proc/{tid}/fd/{descriptor}")).is_ok_and(|metadata| {
        let device = metadata.rdev();
        let (major, minor) = (nix::libc::major(device), nix::libc::minor(device));
        metadata.file_type().is_char_device() && major == 1 && matches!(minor, 5 | 7 | 8 | 9)
    })
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    fn ending(number: u32, arguments: [u64; 6], result: i64) -> Option<Ending> {
        let call = Call {
            number,
            arguments,
            result,
        };
        call.ending(nix::unistd::gettid().as_raw())
    }

    #[test]
    fn what_ended_early_is_told_apart() {
        let none = [0; 6];
        assert_eq!(ending(202, none, -512), Some(Ending::Waits));
        assert_eq!(ending(232, none, -EINTR), Some(Ending::Interrupted));
        assert_eq!(ending(232, none, 0), None);
        // An ioctl's EINTR may be the driver's own.
        assert_eq!(ending(16, none, -EINTR), Some(Ending::CutShort));
        assert_eq!(
            ending(426, [3, 0, 1, 1, 0, 0], -EINTR),
            Some(Ending::Interrupted)
        );
        assert_eq!(
            ending(426, [3, 8, 1, 1, 0, 0], -EINTR),
            Some(Ending::CutShort)
        );
        let exec = Ending::Exec {
            privileges_lost: false,
        };
        assert_eq!(ending(59, none, 0), Some(exec));
        assert_eq!(
            ending(1, [1, 0, 1 << 20, 0, 0, 0], 65536),
            Some(Ending::CutShort)
        );
        assert_eq!(ending(44, [1, 0, 1 << 20, 0x40, 0, 0], 65536), None);
        assert_eq!(ending(1, [1, 0, 65536, 0, 0, 0], 65536), None);
        assert_eq!(
            ending(45, [1, 0, 65536, 0x100, 0, 0], 4096),
            Some(Ending::CutShort)
        );
        assert_eq!(ending(45, [1, 0, 65536, 0, 0, 0], 4096), None);
        assert_eq!(
            ending(318, [0, 1 << 20, 0, 0, 0, 0], 8192),
            Some(Ending::CutShort)
        );
    }

    #[test]
    fn only_a_source_without_end_gives_all_that_is_asked_for() {
        for (path, expected) in [
            ("/dev/zero", Some(Ending::CutShort)),
            ("/proc/self/stat", None),
        ] {
            let file = File::open(path).expect("it is on every Linux");
            let descriptor = file.as_raw_fd() as u64;
            assert_eq!(
                ending(0, [descriptor, 0, 9, 0, 0, 0], 4),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn transfers_of_many_bytes_are_known() {
        assert!(is_transfer(1, &[1, 0, 1 << 20, 0, 0, 0]));
        assert!(!is_transfer(1, &[1, 0, 4096, 0, 0, 0]));
        assert!(is_transfer(45, &[1, 0, 9, 0x100, 0, 0]) && !is_transfer(45, &[1, 0, 9, 0, 0, 0]));
        assert!(is_transfer(208, &[0, 8, 8, 0, 0, 0]) && !is_transfer(208, &[0, 1, 8, 0, 0, 0]));
        assert!(!is_transfer(0, &[1, 0, 1 << 20, 0, 0, 0]));
    }
}
