//! Where programs are found.

use std::env::{split_paths, var_os};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The file that execvp(3) would find for `name`: as it is where it has a slash, else in the
/// folders of PATH.
pub fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|path| path.exists());
    }
    // What execvp(3) does where PATH is not set.
    let folders = var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    split_paths(&folders)
        .map(|folder| folder.join(name))
        .find(|path| path.exists())
}

/// Whether it would find any.
pub fn is_found(name: &OsStr) -> bool {
    find(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_path_or_as_it_is() {
        assert!(is_found(OsStr::new("sh")));
        assert!(is_found(OsStr::new("/bin/sh")));
        assert!(!is_found(OsStr::new("sh/")));
        assert!(!is_found(OsStr::new("no-such-program")));
        assert!(!is_found(OsStr::new("./no-such-program")));
    }
}
