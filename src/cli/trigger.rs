//! The file by which `torchspy trigger DIR` makes recorders begin, on every host that sees the
//! folder.

use super::failure::Failure;
use super::output_file::cannot_write;
use crate::os::clock::wall_ns;
use crate::os::host;
use crate::report::naming::utc;
use nix::fcntl::OFlag;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file's name.
const NAME: &str = ".torchspy-trigger";
/// Time between two reads of it.
const EVERY: Duration = Duration::from_secs(1);
const MAX_BYTES: u64 = 256;

/// The file in a folder, watched.
#[derive(Debug)]
pub(crate) struct TriggerFile {
    path: PathBuf,
    /// What it held when it was last read: a trigger from before does not count.
    content: Vec<u8>,
    read: Instant,
}

impl TriggerFile {
    /// Begins to watch a folder, which is made where it is missing.
    pub(crate) fn watch(folder: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(folder).map_err(|error| cannot_write(folder, error))?;
        let path = folder.join(NAME);
        Ok(Self {
            content: read(&path),
            path,
            read: Instant::now(),
        })
    }

    /// Makes all that watch the file begin, this recorder with them.
    pub(crate) fn set(&self) -> Result<(), Failure> {
        set(self.path.parent().unwrap_or(Path::new(".")))
    }

    /// Whether it was set since the last call. Reads it once a second at most.
    pub(crate) fn is_set_again(&mut self) -> bool {
        if self.read.elapsed() < EVERY {
            return false;
        }
        self.read = Instant::now();
        let content = read(&self.path);
        let is_new = !content.is_empty() && content != self.content;
        if is_new {
            self.content = content;
        }
        is_new
    }
}

/// Sets the trigger of a folder.
pub(crate) fn set(folder: &Path) -> Result<(), Failure> {
    let pid = std::process::id();
    let path = folder.join(NAME);
    let new = folder.join(format!("{NAME}-{}-{pid}", host::host_name()));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&new)
        .and_then(|mut file| {
            // Another content each time.
            let now_ns = wall_ns();
            let time = utc(now_ns);
            writeln!(file, "{time} {now_ns} {} {pid}", host::host_name())?;
            fs::rename(&new, &path)
        });
    written.map_err(|error| {
        let _ = fs::remove_file(&new);
        cannot_write(&path, error)
    })
}

/// The first bytes of a regular file; nothing of anything else.
fn read(path: &Path) -> Vec<u8> {
    // Whoever can write to the folder may put a pipe there.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path);
    let mut content = Vec::new();
    if let Ok(file) = opened
        && file.metadata().is_ok_and(|data| data.is_file())
        && file.take(MAX_BYTES).read_to_end(&mut content).is_err()
    {
        content.clear();
    }
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_trigger_that_is_set_while_it_is_watched_counts() {
        let folder = tempfile::tempdir().unwrap();
        set(folder.path()).unwrap();
        let mut file = TriggerFile::watch(folder.path()).unwrap();
        let mut poll = || {
            file.read -= EVERY;
            file.is_set_again()
        };
        assert!(!poll(), "it was set before");
        for _ in 0..2 {
            set(folder.path()).unwrap();
            assert!(poll() && !poll());
        }
        fs::remove_file(folder.path().join(NAME)).unwrap();
        assert!(!poll());
        nix::unistd::mkfifo(&folder.path().join(NAME), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(!poll(), "a pipe is passed over");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error_for_who_sets() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("no/where");
        assert!(set(&missing).unwrap_err().hint.is_some());
        TriggerFile::watch(&missing).unwrap();
        set(&missing).unwrap();
    }
}
