//! What a system call that a thread sleeps in says of the thread.

/// Why a thread sleeps, as far as its system call tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// A lock, condition, semaphore, or the end of a thread.
    Lock,
    /// A file, pipe or socket.
    Io,
    /// Time to pass, or events, a child's end among them.
    Sleep,
}

/// Numbers by meaning. Source: Linux, arch/x86/entry/syscalls/syscall_64.tbl.
const X86_64: &[(Wait, &[u32])] = &[
    // futex, semtimedop, semop, futex_waitv, futex_wait
    (Wait::Lock, &[202, 220, 65, 449, 455]),
    (
        Wait::Io,
        &[
            0, 1, 2, 3, 4, 5, 6, 8, 17, 18, 19,
            20, // read write open close stat fstat lstat lseek p/read/write v
            26, 40, 44, 45, 46, 47,
            42, // msync sendfile sendto recvfrom sendmsg recvmsg connect
            72, 73, 74, 75, 76, 77, 78, 82, 83, 84, 87, 88,
            89, // fcntl flock fsync … getdents rename mkdir … readlink
            187, 217, 257, 262, 263, 264, 267, 275, 276,
            277, // readahead getdents64 openat newfstatat … splice tee
            295, 296, 299, 306, 307, 326, 327, 328, 332, 437,
            426, // preadv … copy_file_range statx openat2 io_uring_enter
        ],
    ),
    (
        Wait::Sleep,
        &[
            7, 23, 35, 34, 58, 61, 230, 232, 247, 270, 271,
            281, // poll select nanosleep pause vfork wait4 clock_nanosleep epoll …
            43, 288, 128, 130, 208,
            441, // accept accept4 rt_sigtimedwait rt_sigsuspend io_getevents epoll_pwait2
        ],
    ),
];

/// Numbers by meaning. Source: Linux, include/uapi/asm-generic/unistd.h.
const AARCH64: &[(Wait, &[u32])] = &[
    (Wait::Lock, &[98, 192, 193, 449, 455]),
    (
        Wait::Io,
        &[
            25, 32, 48, 56, 57, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 76, 77, 78, 79, 80, 82,
            83, 84, 203, 206, 207, 211, 212, 213, 227, 243, 267, 269, 285, 286, 287, 291, 426, 437,
        ],
    ),
    (
        Wait::Sleep,
        &[4, 22, 72, 73, 95, 101, 115, 133, 137, 202, 242, 260, 441],
    ),
];

/// What system call `number` of `architecture` (as `uname -m` writes it) says; `None` where it says nothing of use.
pub fn wait_of(architecture: &str, number: u32) -> Option<Wait> {
    let table = if architecture == "aarch64" {
        AARCH64
    } else {
        X86_64
    };
    table
        .iter()
        .find(|(_, numbers)| numbers.contains(&number))
        .map(|&(wait, _)| wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_has_two_meanings() {
        for table in [X86_64, AARCH64] {
            let mut all: Vec<u32> = table
                .iter()
                .flat_map(|(_, numbers)| numbers.iter().copied())
                .collect();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count);
        }
    }

    #[test]
    fn numbers_agree_with_the_c_library() {
        assert_eq!(wait_of("x86_64", 202), Some(Wait::Lock));
        assert_eq!(wait_of("x86_64", 0), Some(Wait::Io));
        assert_eq!(wait_of("x86_64", 232), Some(Wait::Sleep));
        assert_eq!(wait_of("x86_64", 230), Some(Wait::Sleep));
        // ioctl: a driver's, of which the stack says more.
        assert_eq!(wait_of("x86_64", 16), None);
        assert_eq!(wait_of("aarch64", 98), Some(Wait::Lock));
    }
}
