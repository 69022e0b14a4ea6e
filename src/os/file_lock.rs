//! Marks files that torchspy is writing, for other processes that read or would replace them.
//!
//! The mark is an advisory lock of an open file description (fcntl(2), `F_OFD_SETLK`): the kernel
//! drops it when the writer ends, however that happens, it is seen from other containers and, where
//! the file system supports locks, from other hosts. Reading is never prevented.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::File;
use std::io;

/// Marks a file that is open for writing, until it is closed or [`release`]d. Where the file system
/// has no locks, it stays unmarked.
pub fn hold(file: &File) {
    let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&whole(libc::F_WRLCK)));
}

/// Marks a file that is open for writing, unless another has marked it. Returns whether it is
/// marked now.
///
/// # Errors
/// The file system has no locks.
pub fn try_hold(file: &File) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&whole(libc::F_WRLCK))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Removes the mark.
pub fn release(file: &File) {
    let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&whole(libc::F_UNLCK)));
}

/// Whether a file that was opened on its own carries the mark of another.
pub fn is_held(file: &File) -> bool {
    let mut found = whole(libc::F_RDLCK);
    let asked = fcntl(file, FcntlArg::F_OFD_GETLK(&mut found));
    asked.is_ok() && libc::c_int::from(found.l_type) != libc::F_UNLCK
}

fn whole(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        // The kernel demands 0 for these locks.
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_seen_by_others_until_it_is_released_or_its_file_is_closed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let other = File::open(file.path()).unwrap();
        assert!(!is_held(&other));
        let writer = File::options().write(true).open(file.path()).unwrap();
        hold(&writer);
        assert!(is_held(&other));
        release(&writer);
        assert!(!is_held(&other));
        let second = File::options().write(true).open(file.path()).unwrap();
        assert!(try_hold(&writer).unwrap() && !try_hold(&second).unwrap());
        let copy = writer.try_clone().unwrap();
        drop(writer);
        assert!(is_held(&other));
        drop(copy);
        assert!(!is_held(&other));
    }
}
