//! The simulated GPU node: what the doubles of CUDA and of NVML, and the tests, share.
//!
//! A node lives in a folder: `scenario.json` says what its devices are like ([`scenario`]),
//! `devices` is memory that all processes share ([`node`]), `comm.ID` is where the ranks of a
//! communicator meet ([`meeting`]), and `truth.PID` is what a process's queues and calls really did
//! ([`truth`]).

#![allow(missing_docs)]

pub mod meeting;
pub mod node;
pub mod scenario;
mod timeline;
pub mod truth;

/// The variable that names the node's folder.
pub const FOLDER: &str = "TORCHSPY_GPU_SIM";

/// CLOCK_MONOTONIC, ns.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the place for the time is a local one.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A file of this size, mapped for reading and writing, which others may have mapped, too.
///
/// # Errors
/// What the kernel says of the file or of the mapping.
fn shared(path: &std::path::Path, bytes: u64) -> std::io::Result<*mut u8> {
    use std::os::fd::AsRawFd;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    if file.metadata()?.len() < bytes {
        file.set_len(bytes)?;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes as usize,
            access,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    match map {
        libc::MAP_FAILED => Err(std::io::Error::last_os_error()),
        map => Ok(map.cast()),
    }
}
