//! The limit of open files: torchspy needs two or more for each thread of the target, and one for
//! each file of which the target runs code; the usual limit is 1,024.
#![allow(unsafe_code)]

use nix::libc;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::LazyLock;

/// Descriptors from this number on are closed if their file can be opened again: half of all.
static KEPT: LazyLock<u64> = LazyLock::new(|| limits().map_or(0, |limits| limits.rlim_cur / 2));

/// Raises the limit to the maximum that the user may have. Must not be called before a program is
/// launched, which gets the limit that torchspy was started with.
pub fn raise_limit() {
    if let Some(mut limits) = limits() {
        limits.rlim_cur = limits.rlim_max;
        // SAFETY: `limits` is a valid value; if it is refused, the old limit stays.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limits) };
    }
}

/// Whether `file` may be kept open although it can be opened again: enough descriptors are left for
/// those that cannot.
pub(super) fn may_keep(file: &File) -> bool {
    u64::try_from(file.as_raw_fd()).is_ok_and(|descriptor| descriptor < *KEPT)
}

fn limits() -> Option<libc::rlimit> {
    let mut limits = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limits` is a valid place for the kernel to fill.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits) };
    (result == 0).then_some(limits)
}
