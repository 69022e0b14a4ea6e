//! Opens files that stand in folders of others.

use nix::fcntl::OFlag;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file for reading.
///
/// # Errors
/// Those of the file, and for what is no regular file: a pipe would wait for its other end.
pub(super) fn open_regular(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let flags = OFlag::O_NONBLOCK.bits();
    let file = options.read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no regular file")),
    }
}
