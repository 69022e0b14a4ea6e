//! Finds programs on PATH.

use std::env::{split_paths, var_os};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The file that execvp(3) would find for `name`: unchanged if it contains a slash, else searched
/// for in the folders of PATH.
pub fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|path| path.exists());
    }
    // The default of execvp(3) if PATH is not set.
    let folders = var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    split_paths(&folders)
        .map(|folder| folder.join(name))
        .find(|path| path.exists())
}

/// Whether it finds one.
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
