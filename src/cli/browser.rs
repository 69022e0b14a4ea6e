//! Opens a file with what the desktop opens it with.

use super::messages;
use std::path::Path;
use std::process::{Command, Stdio};

/// Opens a file, and does not wait. Where that cannot be done, a hint says so: the file is there.
pub(crate) fn open(path: &Path) {
    let opener = Command::new("xdg-open")
        .arg(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Err(error) = opener {
        messages::warning(&format!(
            "{} was not opened: xdg-open: {error}",
            path.display()
        ));
        messages::hint("open it in any browser; it needs no other file and no network");
    }
}
