//! The effect of a stop on the system call that it hits.
//!
//! PTRACE_INTERRUPT makes `signal_pending()` true (kernel/ptrace.c, `ptrace_signal_wake_up`). A
//! call that sleeps interruptibly, or checks for signals between two parts of its work, then ends
//! early:
//!
//! - most with ERESTARTSYS and similar codes: the kernel restarts them, or continues with the rest
//!   of the timeout, and the program sees nothing (signal(7), arch/x86/kernel/signal.c);
//! - some with EINTR, having done nothing, whether a signal handler runs or not;
//! - those that transfer many bytes, or fill much memory, end with less than was requested.
//!
//! A tracer cannot stop a thread in another way. It could write the code that makes the kernel
//! restart a call into the thread's registers, but torchspy writes nothing to its target. So a
//! thread that is likely to be in such a call is not stopped.

use super::access::status_field;
use crate::arch::system_calls::Sysno;
use crate::arch::{Architecture, Machine, SystemCall};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Effect of a stop on the system call that it hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It had waited, or just begun to; the kernel restarts it.
    Waits,
    /// It had waited, or just begun to, and ended with EINTR.
    Interrupted,
    /// It transferred less than requested. (Possibly for another reason than the stop: a read at
    /// the end of a file.)
    CutShort,
    /// It began another program.
    Exec {
        /// The program runs without the privileges of its file, because the thread was traced.
        privileges_lost: bool,
    },
}

/// Restart codes (Linux, include/linux/errno.h): ERESTARTSYS to ERESTART_RESTARTBLOCK, which only a
/// tracer sees.
const RESTARTS: std::ops::RangeInclusive<i64> = -516..=-512;
const EINTR: i64 = 4;

/// MSG_WAITALL, of `recv` (include/linux/socket.h).
const WAIT_FOR_ALL: u64 = 0x100;
/// MSG_DONTWAIT, of `send`.
const DO_NOT_WAIT: u64 = 0x40;
/// A write to a pipe of up to this many bytes is atomic (PIPE_BUF, pipe(7)); sockets take more at
/// once.
const WHOLE_BYTES: u64 = 4096;

/// Facts about a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Facts {
    sleep: Sleep,
    eintr: Eintr,
    moves: Moves,
}

/// How a call sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    /// In any other way.
    Other,
    /// Interruptibly; it is restarted with the rest of its timeout.
    Restarted,
    /// Interruptibly, and never in another state.
    Interruptible,
}

/// Whether a call that ends with EINTR has done nothing, whatever its timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Eintr {
    Unknown,
    /// Yes.
    Waited,
    /// Yes, and only those on sockets with SO_RCVTIMEO or SO_SNDTIMEO end so (include/net/sock.h,
    /// `sock_intr_errno`). The socket is the first argument.
    WaitedWithTimeout,
    /// The same, if the descriptor is a socket.
    WaitedOnSocket,
    /// If it submits nothing: its second argument is 0 (io_uring/io_uring.c).
    WaitedUnlessSubmits,
}

/// What a call transfers, and the argument with the requested amount: it may transfer less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moves {
    Nothing,
    /// Bytes or messages.
    Counted(usize),
    /// The same, with the argument of the flags.
    Sent {
        length: usize,
        flags: usize,
    },
    /// Events: at least this many. They are few.
    Events(usize),
    /// Bytes, counted in the program's memory.
    Gathered,
    /// Bytes, and with MSG_WAITALL all of them.
    Received {
        flags: usize,
        length: Option<usize>,
    },
    /// Bytes of a file: reads of less than requested are usual, except from a device without a
    /// position.
    Read(usize),
    /// Random bytes.
    Random(usize),
    /// Another program (exec).
    Exec,
}

const fn facts(sleep: Sleep, eintr: Eintr, moves: Moves) -> Facts {
    Facts {
        sleep,
        eintr,
        moves,
    }
}

const NO_FACTS: Facts = facts(Sleep::Other, Eintr::Unknown, Moves::Nothing);

/// By name; an architecture may lack some of them. Sources: fs/select.c, kernel/time, kernel/futex,
/// kernel/exit.c (ERESTARTSYS and similar codes); fs/eventpoll.c (`ep_poll`), ipc/sem.c,
/// kernel/signal.c, fs/aio.c (EINTR).
const CALLS: &[(&[&str], Facts)] = &{
    use Eintr::{Unknown, Waited, WaitedOnSocket, WaitedUnlessSubmits, WaitedWithTimeout};
    use Moves::{Counted, Events, Exec, Gathered, Nothing, Random, Read, Received, Sent};
    use Sleep::{Interruptible, Other, Restarted};
    [
        (
            &[
                "poll",
                "select",
                "nanosleep",
                "wait4",
                "futex",
                "clock_nanosleep",
                "waitid",
                "pselect6",
                "ppoll",
                "restart_syscall",
            ] as &[&str],
            facts(Restarted, Unknown, Nothing),
        ),
        (
            &["epoll_wait", "epoll_pwait", "epoll_pwait2"],
            facts(Interruptible, Waited, Nothing),
        ),
        (
            &["semop", "semtimedop", "rt_sigtimedwait"],
            facts(Other, Waited, Nothing),
        ),
        (
            &["accept", "accept4", "connect"],
            facts(Other, WaitedWithTimeout, Nothing),
        ),
        (&["io_getevents"], facts(Other, Waited, Events(1))),
        (
            &["io_uring_enter"],
            facts(Other, WaitedUnlessSubmits, Nothing),
        ),
        (
            &["recvmmsg", "sendmmsg"],
            facts(Other, WaitedWithTimeout, Counted(2)),
        ),
        (
            &["sendto"],
            facts(
                Other,
                WaitedWithTimeout,
                Sent {
                    length: 2,
                    flags: 3,
                },
            ),
        ),
        (&["sendmsg"], facts(Other, WaitedWithTimeout, Gathered)),
        (
            &["recvfrom"],
            facts(
                Other,
                WaitedWithTimeout,
                Received {
                    flags: 3,
                    length: Some(2),
                },
            ),
        ),
        (
            &["recvmsg"],
            facts(
                Other,
                WaitedWithTimeout,
                Received {
                    flags: 2,
                    length: None,
                },
            ),
        ),
        (&["write"], facts(Other, WaitedOnSocket, Counted(2))),
        (&["writev"], facts(Other, WaitedOnSocket, Gathered)),
        (&["read"], facts(Other, WaitedOnSocket, Read(2))),
        (&["readv"], facts(Other, WaitedOnSocket, Nothing)),
        (&["pread64"], facts(Other, Unknown, Read(2))),
        (
            &["pwrite64", "tee", "vmsplice"],
            facts(Other, Unknown, Counted(2)),
        ),
        (&["sendfile"], facts(Other, Unknown, Counted(3))),
        (
            &["splice", "copy_file_range"],
            facts(Other, Unknown, Counted(4)),
        ),
        (&["getrandom"], facts(Other, Unknown, Random(1))),
        (&["execve", "execveat"], facts(Other, Unknown, Exec)),
    ]
};

/// All architectures' numbers are below this.
const MAX_NUMBER: usize = 1024;

/// The facts by number, for this machine. Built at compile time: no stopped thread waits for it.
static BY_NUMBER: [Facts; MAX_NUMBER] = {
    let mut table = [NO_FACTS; MAX_NUMBER];
    let mut number = 0;
    while number < MAX_NUMBER {
        if let Some(call) = Sysno::new(number) {
            table[number] = by_name(call.name());
        }
        number += 1;
    }
    table
};

const fn by_name(name: &str) -> Facts {
    let mut group = 0;
    while group < CALLS.len() {
        let (names, facts) = CALLS[group];
        let mut index = 0;
        while index < names.len() {
            if is_same(names[index].as_bytes(), name.as_bytes()) {
                return facts;
            }
            index += 1;
        }
        group += 1;
    }
    NO_FACTS
}

const fn is_same(left: &[u8], right: &[u8]) -> bool {
    if left.len() != right.len() {
        return false;
    }
    let mut index = 0;
    while index < left.len() && left[index] == right[index] {
        index += 1;
    }
    index == left.len()
}

fn facts_of(number: u32) -> Facts {
    let found = BY_NUMBER.get(number as usize);
    found.copied().unwrap_or(NO_FACTS)
}

/// Whether a stop does not disturb a thread that sleeps in this call.
pub fn is_restarted(number: u32) -> bool {
    facts_of(number).sleep == Sleep::Restarted
}

/// Whether a signal can wake a thread that sleeps in this call: it has no other kind of sleep.
pub fn sleeps_interruptibly(number: u32) -> bool {
    facts_of(number).sleep != Sleep::Other
}

/// Whether a thread that sleeps in this call, or is about to, gets EINTR if it is stopped.
/// `has_timeout` says whether a socket has a timeout. (read and write of sockets are left out,
/// since most are of files and pipes.)
pub fn ends_with_eintr(
    number: u32,
    arguments: &[u64; 6],
    has_timeout: impl FnOnce(u64) -> bool,
) -> bool {
    match facts_of(number).eintr {
        Eintr::Waited => true,
        Eintr::WaitedWithTimeout => has_timeout(arguments[0]),
        Eintr::WaitedOnSocket | Eintr::WaitedUnlessSubmits | Eintr::Unknown => false,
    }
}

/// Whether a stop may make this call transfer less than requested. Such a call sleeps while the
/// other side has no room, or no data; the stop's signal ends it in that sleep.
pub fn is_transfer(number: u32, arguments: &[u64; 6]) -> bool {
    match facts_of(number).moves {
        Moves::Counted(at) | Moves::Sent { length: at, .. } => arguments[at] > WHOLE_BYTES,
        Moves::Events(at) => arguments[at] > 1,
        Moves::Gathered => true,
        Moves::Received { flags, .. } => arguments[flags] & WAIT_FOR_ALL != 0,
        Moves::Nothing | Moves::Read(_) | Moves::Random(_) | Moves::Exec => false,
    }
}

/// Effect of a stop of thread `tid` on `call`; `None` if it had none.
pub fn ending(call: &SystemCall, tid: i32) -> Option<Ending> {
    let Facts { eintr, moves, .. } = facts_of(call.number);
    if RESTARTS.contains(&call.result) {
        return Some(Ending::Waits);
    }
    if call.result == -EINTR {
        let has_waited = match eintr {
            Eintr::Unknown => false,
            Eintr::Waited | Eintr::WaitedWithTimeout | Eintr::WaitedOnSocket => true,
            Eintr::WaitedUnlessSubmits => call.arguments[1] == 0,
        };
        return Some(match has_waited {
            true => Ending::Interrupted,
            false => Ending::CutShort,
        });
    }
    if call.result == 0 && moves == Moves::Exec {
        return Some(Ending::Exec {
            privileges_lost: lacks_privileges(tid),
        });
    }
    (call.result > 0 && is_short(call, moves, tid)).then_some(Ending::CutShort)
}

/// Whether a call that succeeded transferred less than requested, and would have continued without
/// the stop.
fn is_short(call: &SystemCall, moves: Moves, tid: i32) -> bool {
    let is_less = |at: usize| call.result.cast_unsigned() < call.arguments[at];
    let has_flag = |flags: usize, flag: u64| call.arguments[flags] & flag != 0;
    let descriptor = (!Machine::RESULT_REPLACES_ARGUMENT).then_some(call.arguments[0]);
    let is = |property: fn(i32, u64) -> bool| descriptor.is_some_and(|it| property(tid, it));
    let blocks = || !is(is_nonblocking);
    match moves {
        Moves::Counted(at) | Moves::Events(at) => is_less(at) && blocks(),
        Moves::Sent { length, flags } => {
            !has_flag(flags, DO_NOT_WAIT) && is_less(length) && blocks()
        }
        Moves::Received { flags, length } => {
            has_flag(flags, WAIT_FOR_ALL) && length.is_some_and(is_less) && blocks()
        }
        Moves::Read(at) => is_less(at) && is(is_source_without_end),
        Moves::Random(at) => is_less(at),
        Moves::Nothing | Moves::Gathered | Moves::Exec => false,
    }
}

/// Whether calls with a descriptor of thread `tid` transfer less by themselves (O_NONBLOCK,
/// proc_pid_fdinfo(5)).
fn is_nonblocking(tid: i32, descriptor: u64) -> bool {
    let text = fs::read_to_string(format!("/proc/{tid}/fdinfo/{descriptor}")).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    flags
        .and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok())
        .is_some_and(|flags| flags & nix::libc::O_NONBLOCK != 0)
}

/// Whether the program of process `pid` is setuid or setgid and runs without its privileges: the
/// kernel grants none to a program whose tracer has no CAP_SYS_PTRACE (security/commoncap.c,
/// `cap_bprm_creds_from_file`). File capabilities are not checked.
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

/// Whether a descriptor of thread `tid` is one of `/dev/zero`, `full`, `random`, `urandom`, which
/// return as much as requested. By the name: a look at the file itself would ask its file system,
/// which may be a server that does not answer, while the thread is stopped.
fn is_source_without_end(tid: i32, descriptor: u64) -> bool {
    const SOURCES: [&str; 4] = ["/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
    let link = fs::read_link(format!("/proc/{tid}/fd/{descriptor}"));
    link.is_ok_and(|path| SOURCES.iter().any(|source| path == Path::new(source)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::system_calls::number;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    fn ending(call: Sysno, arguments: [u64; 6], result: i64) -> Option<Ending> {
        let call = SystemCall {
            number: number(call),
            arguments,
            result,
        };
        super::ending(&call, nix::unistd::gettid().as_raw())
    }

    #[test]
    fn what_ended_early_is_told_apart() {
        let none = [0; 6];
        assert_eq!(ending(Sysno::futex, none, -512), Some(Ending::Waits));
        assert_eq!(
            ending(Sysno::epoll_pwait, none, -EINTR),
            Some(Ending::Interrupted)
        );
        assert_eq!(ending(Sysno::epoll_pwait, none, 0), None);
        // An ioctl's EINTR may be the driver's own.
        assert_eq!(ending(Sysno::ioctl, none, -EINTR), Some(Ending::CutShort));
        assert_eq!(
            ending(Sysno::io_uring_enter, [3, 0, 1, 1, 0, 0], -EINTR),
            Some(Ending::Interrupted)
        );
        assert_eq!(
            ending(Sysno::io_uring_enter, [3, 8, 1, 1, 0, 0], -EINTR),
            Some(Ending::CutShort)
        );
        let exec = Ending::Exec {
            privileges_lost: false,
        };
        assert_eq!(ending(Sysno::execve, none, 0), Some(exec));
        assert_eq!(
            ending(Sysno::write, [1, 0, 1 << 20, 0, 0, 0], 65536),
            Some(Ending::CutShort)
        );
        assert_eq!(
            ending(Sysno::sendto, [1, 0, 1 << 20, 0x40, 0, 0], 65536),
            None
        );
        assert_eq!(ending(Sysno::write, [1, 0, 65536, 0, 0, 0], 65536), None);
        assert_eq!(
            ending(Sysno::recvfrom, [1, 0, 65536, 0x100, 0, 0], 4096),
            Some(Ending::CutShort)
        );
        assert_eq!(ending(Sysno::recvfrom, [1, 0, 65536, 0, 0, 0], 4096), None);
        assert_eq!(
            ending(Sysno::getrandom, [0, 1 << 20, 0, 0, 0, 0], 8192),
            Some(Ending::CutShort)
        );
    }

    #[test]
    fn only_a_source_without_end_gives_all_that_is_asked_for() {
        // The result has replaced the descriptor on some machines.
        let of_zeros = (!Machine::RESULT_REPLACES_ARGUMENT).then_some(Ending::CutShort);
        for (path, expected) in [("/dev/zero", of_zeros), ("/proc/self/stat", None)] {
            let file = File::open(path).expect("it is on every Linux");
            let descriptor = file.as_raw_fd() as u64;
            assert_eq!(
                ending(Sysno::read, [descriptor, 0, 9, 0, 0, 0], 4),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn transfers_of_many_bytes_are_known() {
        assert!(is_transfer(number(Sysno::write), &[1, 0, 1 << 20, 0, 0, 0]));
        assert!(!is_transfer(number(Sysno::write), &[1, 0, 4096, 0, 0, 0]));
        assert!(
            is_transfer(number(Sysno::recvfrom), &[1, 0, 9, 0x100, 0, 0])
                && !is_transfer(number(Sysno::recvfrom), &[1, 0, 9, 0, 0, 0])
        );
        assert!(
            is_transfer(number(Sysno::io_getevents), &[0, 8, 8, 0, 0, 0])
                && !is_transfer(number(Sysno::io_getevents), &[0, 1, 8, 0, 0, 0])
        );
        assert!(!is_transfer(number(Sysno::read), &[1, 0, 1 << 20, 0, 0, 0]));
    }
}
