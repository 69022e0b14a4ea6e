//! The meaning of a system call that a thread sleeps in, by its name: numbers are those of
//! [`system_calls`].

use crate::arch::system_calls;
use rustc_hash::FxHashMap;
use std::sync::LazyLock;

/// Why a thread sleeps, as far as its system call shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// A lock, condition, semaphore, or the end of a thread.
    Lock,
    /// A file, pipe or socket.
    Io,
    /// Time, or events, including the end of a child.
    Sleep,
}

/// What a system call waits for, as far as its number alone shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallWait {
    /// A file system.
    File,
    Socket,
    /// A descriptor of any kind: a file, a pipe, a terminal or a socket.
    Descriptor,
    /// A child.
    Child,
    /// Any of several descriptors.
    Events,
    /// Time, or a signal.
    Time,
    /// Another thread.
    Lock,
}

#[rustfmt::skip]
const CALLS: &[(Wait, CallWait, &[&str])] = &[
    (Wait::Lock, CallWait::Lock, &["futex", "futex_wait", "futex_waitv", "semop", "semtimedop"]),
    (Wait::Io, CallWait::Descriptor, &[
        "close", "io_uring_enter", "read", "readv", "sendfile", "splice", "tee", "write", "writev",
    ]),
    (Wait::Io, CallWait::File, &[
        "copy_file_range", "fcntl", "fdatasync", "flock", "fstat", "fstatat", "fsync", "ftruncate", "getdents", "getdents64", "lseek",
        "lstat", "mkdir", "msync", "newfstatat", "open", "openat", "openat2", "pread64", "preadv", "preadv2", "pwrite64", "pwritev",
        "pwritev2", "readahead", "readlink", "readlinkat", "rename", "renameat", "rmdir", "stat", "statx", "symlink",
        "sync_file_range", "syncfs", "truncate", "unlink", "unlinkat",
    ]),
    (Wait::Io, CallWait::Socket, &[
        "connect", "recvfrom", "recvmmsg", "recvmsg", "sendmmsg", "sendmsg", "sendto",
    ]),
    // For a peer, as an event loop does.
    (Wait::Sleep, CallWait::Socket, &["accept", "accept4"]),
    // A thread in vfork sleeps until its child has called exec or ended (vfork(2)).
    (Wait::Sleep, CallWait::Child, &["vfork", "wait4", "waitid"]),
    (Wait::Sleep, CallWait::Events, &[
        "epoll_pwait", "epoll_pwait2", "epoll_wait", "io_getevents", "poll", "ppoll", "pselect6", "select",
    ]),
    (Wait::Sleep, CallWait::Time, &["clock_nanosleep", "nanosleep", "pause", "rt_sigsuspend", "rt_sigtimedwait"]),
];

/// A call that the table names, and what it is.
type Named = (&'static str, (Wait, CallWait));

/// Numbers of system calls are below this on both architectures.
const NUMBERS: u32 = 1024;

/// By number, on x86-64 and on aarch64: each sample of a sleeper asks.
static BY_NUMBER: LazyLock<[Vec<Option<Named>>; 2]> = LazyLock::new(|| {
    let rows = CALLS.iter();
    let by_name: FxHashMap<&str, (Wait, CallWait)> = rows
        .flat_map(|&(wait, call, names)| names.iter().map(move |&name| (name, (wait, call))))
        .collect();
    ["x86_64", "aarch64"].map(|architecture| {
        let named = |number| {
            let name = system_calls::name_on(architecture, number)?;
            Some((name, *by_name.get(name)?))
        };
        (0..NUMBERS).map(named).collect()
    })
});

fn find(architecture: &str, number: u32) -> Option<Named> {
    let [x86_64, aarch64] = &*BY_NUMBER;
    let table = if architecture == "aarch64" {
        aarch64
    } else {
        x86_64
    };
    *table.get(number as usize)?
}

/// Why a thread sleeps in system call `number` of `architecture` (as printed by `uname -m`); `None`
/// if the number decides nothing.
pub fn wait_of(architecture: &str, number: u32) -> Option<Wait> {
    find(architecture, number).map(|(_, (wait, _))| wait)
}

/// The name of system call `number` of `architecture` (as printed by `uname -m`), and what it waits
/// for; `None` if it is in no table.
pub fn call_of(architecture: &str, number: u32) -> Option<(&'static str, CallWait)> {
    find(architecture, number).map(|(name, (_, call))| (name, call))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustc_hash::FxHashSet;

    #[test]
    fn every_name_is_a_call_and_has_one_meaning() {
        let known: FxHashSet<&str> = (0..NUMBERS)
            .flat_map(|number| {
                ["x86_64", "aarch64"].map(|each| system_calls::name_on(each, number))
            })
            .flatten()
            .collect();
        let mut seen = FxHashSet::default();
        for name in CALLS.iter().flat_map(|(_, _, names)| *names) {
            assert!(known.contains(name), "{name}");
            assert!(seen.insert(name), "{name}");
        }
    }

    #[test]
    fn numbers_are_those_of_the_architecture() {
        assert_eq!(call_of("x86_64", 61), Some(("wait4", CallWait::Child)));
        assert_eq!(call_of("aarch64", 63), Some(("read", CallWait::Descriptor)));
        assert_eq!(wait_of("x86_64", 232), Some(Wait::Sleep));
        assert_eq!(wait_of("aarch64", 98), Some(Wait::Lock));
        // ioctl: depends on the driver; the stack decides.
        assert_eq!(wait_of("x86_64", 16), None);
    }
}
