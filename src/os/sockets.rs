//! What the sockets of another process are set to.
#![allow(unsafe_code)]

use super::launch::open_pidfd;
use nix::libc;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Whether the socket that process `pid` has at `descriptor` has a timeout for receiving or for
/// sending (SO_RCVTIMEO, SO_SNDTIMEO of socket(7)); `None` where that cannot be read. The socket is
/// shared with torchspy for some microseconds (pidfd_getfd(2), Linux 5.6).
pub fn has_timeout(pid: i32, descriptor: u64) -> Option<bool> {
    let descriptor = i32::try_from(descriptor).ok()?;
    let process = open_pidfd(pid).ok()?;
    // SAFETY: a system call on a descriptor that is open; the result, if it is one, is ours alone.
    let socket = unsafe {
        let result = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0);
        let opened = i32::try_from(result).ok().filter(|&opened| opened >= 0)?;
        OwnedFd::from_raw_fd(opened)
    };
    let mut has_any = false;
    for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let mut timeout = libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        let mut length = size_of::<libc::timeval>() as libc::socklen_t;
        // SAFETY: both places are valid, and `length` is the size of the first.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw mut timeout).cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return None;
        }
        has_any |= timeout.tv_sec != 0 || timeout.tv_usec != 0;
    }
    Some(has_any)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn timeouts_of_sockets_are_read() {
        let own = std::process::id() as i32;
        let (plain, timed) = UnixStream::pair().unwrap();
        timed
            .set_read_timeout(Some(Duration::from_millis(5)))
            .unwrap();
        let of = |socket: &UnixStream| has_timeout(own, socket.as_raw_fd() as u64);
        assert_eq!((of(&plain), of(&timed)), (Some(false), Some(true)));
        assert_eq!(has_timeout(own, u64::MAX), None);
    }
}
