//! A wake-up signal between threads that can be waited for in poll(2), together with other file
//! descriptors.

use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// A bell. It sounds until it is silenced, however often it was rung.
#[derive(Debug)]
pub struct Bell(EventFd);

impl Bell {
    /// A bell that does not sound.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self(EventFd::from_value_and_flags(0, flags)?))
    }

    /// Makes it sound. Never blocks.
    pub fn ring(&self) {
        // Fails only after 2^64 rings without a `silence`.
        let _ = self.0.write(1);
    }

    /// Silences it. Never blocks.
    pub fn silence(&self) {
        // Fails only if it does not sound.
        let _ = self.0.read();
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
