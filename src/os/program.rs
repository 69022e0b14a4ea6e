//! Where programs are found.

use std::env::{split_paths, var_os};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether execvp(3) would find a file for `name`: as it is where it has a slash, else in the folders of PATH.
pub fn is_found(name: &OsStr) -> bool {
    if name.as_bytes().contains(&b'/') {
        return Path::new(name).exists();
    }
    // What execvp(3) does where PATH is not set.
    let folders = var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    split_paths(&folders).any(|folder| folder.join(name).exists())
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
