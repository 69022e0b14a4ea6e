//! Names of the system calls that threads sleep in, and what each waits for.

/// What a system call waits for, as far as its number alone tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallWait {
    /// A file system.
    File,
    /// A socket.
    Socket,
    /// Whatever a descriptor is of: a file, a pipe, a terminal or a socket.
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

use CallWait::{Child, Descriptor, Events, File, Lock, Socket, Time};

/// Source: Linux, arch/x86/entry/syscalls/syscall_64.tbl.
const X86_64: &[(u32, &str, CallWait)] = &[
    (0, "read", Descriptor),
    (1, "write", Descriptor),
    (2, "open", File),
    (3, "close", Descriptor),
    (4, "stat", File),
    (5, "fstat", File),
    (6, "lstat", File),
    (7, "poll", Events),
    (8, "lseek", File),
    (17, "pread64", File),
    (18, "pwrite64", File),
    (19, "readv", Descriptor),
    (20, "writev", Descriptor),
    (23, "select", Events),
    (26, "msync", File),
    (34, "pause", Time),
    (35, "nanosleep", Time),
    (40, "sendfile", Descriptor),
    (42, "connect", Socket),
    (43, "accept", Socket),
    (44, "sendto", Socket),
    (45, "recvfrom", Socket),
    (46, "sendmsg", Socket),
    (47, "recvmsg", Socket),
    // Who sleeps in it waits until its child has exec'd or ended (vfork(2)).
    (58, "vfork", Child),
    (61, "wait4", Child),
    (72, "fcntl", File),
    (73, "flock", File),
    (74, "fsync", File),
    (75, "fdatasync", File),
    (76, "truncate", File),
    (77, "ftruncate", File),
    (78, "getdents", File),
    (82, "rename", File),
    (83, "mkdir", File),
    (84, "rmdir", File),
    (87, "unlink", File),
    (88, "symlink", File),
    (89, "readlink", File),
    (128, "rt_sigtimedwait", Time),
    (130, "rt_sigsuspend", Time),
    (187, "readahead", File),
    (202, "futex", Lock),
    (208, "io_getevents", Events),
    (217, "getdents64", File),
    (230, "clock_nanosleep", Time),
    (232, "epoll_wait", Events),
    (247, "waitid", Child),
    (257, "openat", File),
    (262, "newfstatat", File),
    (263, "unlinkat", File),
    (264, "renameat", File),
    (267, "readlinkat", File),
    (270, "pselect6", Events),
    (271, "ppoll", Events),
    (275, "splice", Descriptor),
    (276, "tee", Descriptor),
    (277, "sync_file_range", File),
    (281, "epoll_pwait", Events),
    (288, "accept4", Socket),
    (295, "preadv", File),
    (296, "pwritev", File),
    (299, "recvmmsg", Socket),
    (306, "syncfs", File),
    (307, "sendmmsg", Socket),
    (326, "copy_file_range", File),
    (327, "preadv2", File),
    (328, "pwritev2", File),
    (332, "statx", File),
    (426, "io_uring_enter", Descriptor),
    (437, "openat2", File),
    (441, "epoll_pwait2", Events),
    (449, "futex_waitv", Lock),
    (455, "futex_wait", Lock),
];

/// Source: Linux, include/uapi/asm-generic/unistd.h.
const AARCH64: &[(u32, &str, CallWait)] = &[
    (4, "io_getevents", Events),
    (22, "epoll_pwait", Events),
    (25, "fcntl", File),
    (32, "flock", File),
    (56, "openat", File),
    (57, "close", Descriptor),
    (61, "getdents64", File),
    (62, "lseek", File),
    (63, "read", Descriptor),
    (64, "write", Descriptor),
    (65, "readv", Descriptor),
    (66, "writev", Descriptor),
    (67, "pread64", File),
    (68, "pwrite64", File),
    (69, "preadv", File),
    (70, "pwritev", File),
    (71, "sendfile", Descriptor),
    (72, "pselect6", Events),
    (73, "ppoll", Events),
    (76, "splice", Descriptor),
    (77, "tee", Descriptor),
    (78, "readlinkat", File),
    (79, "newfstatat", File),
    (80, "fstat", File),
    (82, "fsync", File),
    (83, "fdatasync", File),
    (95, "waitid", Child),
    (98, "futex", Lock),
    (101, "nanosleep", Time),
    (115, "clock_nanosleep", Time),
    (133, "rt_sigsuspend", Time),
    (137, "rt_sigtimedwait", Time),
    (202, "accept", Socket),
    (203, "connect", Socket),
    (206, "sendto", Socket),
    (207, "recvfrom", Socket),
    (211, "sendmsg", Socket),
    (212, "recvmsg", Socket),
    (213, "readahead", File),
    (227, "msync", File),
    (242, "accept4", Socket),
    (243, "recvmmsg", Socket),
    (260, "wait4", Child),
    (267, "syncfs", File),
    (269, "sendmmsg", Socket),
    (285, "copy_file_range", File),
    (286, "preadv2", File),
    (287, "pwritev2", File),
    (291, "statx", File),
    (426, "io_uring_enter", Descriptor),
    (437, "openat2", File),
    (441, "epoll_pwait2", Events),
];

/// The name of system call `number` of `architecture` (as `uname -m` writes it), and what it waits for; `None` of one that
/// is in no table.
pub fn call_of(architecture: &str, number: u32) -> Option<(&'static str, CallWait)> {
    let table = if architecture == "aarch64" {
        AARCH64
    } else {
        X86_64
    };
    table
        .iter()
        .find(|(each, _, _)| *each == number)
        .map(|&(_, name, wait)| (name, wait))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torch::rules::syscalls::{Wait, wait_of};

    #[test]
    fn names_agree_with_the_table_of_meanings() {
        for (architecture, table) in [("x86_64", X86_64), ("aarch64", AARCH64)] {
            for window in table.windows(2) {
                assert!(window[0].0 < window[1].0, "{architecture} {:?}", window[1]);
            }
            for &(number, name, wait) in table {
                let Some(meaning) = wait_of(architecture, number) else {
                    panic!("{architecture} {name} has no meaning");
                };
                let agrees = match wait {
                    File | Descriptor => meaning == Wait::Io,
                    // `accept` waits for a peer to come, as an event loop does.
                    Socket => matches!(meaning, Wait::Io | Wait::Sleep),
                    Child | Events | Time => meaning == Wait::Sleep,
                    Lock => meaning == Wait::Lock,
                };
                assert!(agrees, "{architecture} {name}: {meaning:?}");
            }
        }
    }

    #[test]
    fn numbers_have_names() {
        assert_eq!(call_of("x86_64", 61), Some(("wait4", Child)));
        assert_eq!(call_of("aarch64", 63), Some(("read", Descriptor)));
        assert_eq!(call_of("x86_64", 16), None);
    }
}
