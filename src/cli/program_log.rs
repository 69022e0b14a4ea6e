//! The output of a program that torchspy starts while torchspy itself has the terminal.

use super::failure::Failure;
use super::formats::Format;
use super::messages;
use super::output_file::create_numbered;
use super::outputs::{NameParts, base_name};
use crate::os::clock::wall_ns;
use crate::os::host;
use nix::sys::statvfs::fstatvfs;
use nix::unistd::{dup, dup2_stderr, dup2_stdin, dup2_stdout};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Lines of a program's output that are shown at its end.
const TAIL_LINES: usize = 10;
const TAIL_BYTES: u64 = 16 * 1024;

/// The file that the program writes to. It is removed if it is empty, unless the program may still
/// write into it.
pub(crate) struct ProgramLog {
    path: PathBuf,
    file: File,
    /// Whether the program may still write into it.
    pub(crate) is_in_use: bool,
}

impl ProgramLog {
    pub(crate) fn create(command: &[String], rank: Option<u32>) -> Result<Self, Failure> {
        let host = host::host_name();
        let name = base_name(&NameParts {
            command,
            host: &host,
            rank,
            pid: i32::try_from(std::process::id()).unwrap_or(0),
            started_wall_ns: wall_ns(),
        });
        let (path, file) = create_numbered(&name, "log", Format::Text);
        let file = file.map_err(|error| {
            Failure::message(format!("cannot create {}: {error}", path.display()))
                .hint("the program's output goes there; change to a folder that you may write to")
        })?;
        Ok(Self {
            path,
            file,
            is_in_use: false,
        })
    }

    /// Calls `work` with the program's standard streams in place of torchspy's: no input, and this
    /// file.
    pub(crate) fn with_streams<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let own = (dup(io::stdin())?, dup(io::stdout())?, dup(io::stderr())?);
        let nothing = File::open("/dev/null")?;
        dup2_stdin(&nothing)?;
        dup2_stdout(&self.file)?;
        dup2_stderr(&self.file)?;
        let done = work();
        dup2_stdin(&own.0)?;
        dup2_stdout(&own.1)?;
        dup2_stderr(&own.2)?;
        Ok(done)
    }

    fn length(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.len())
    }

    /// Prints where the output is, and its last lines.
    pub(crate) fn report(&self) {
        if fstatvfs(&self.file).is_ok_and(|disk| disk.blocks_available() == 0) {
            messages::warning(&format!(
                "the disk of the program's output ({}) is full: output is missing, and the program may have failed for that reason",
                self.path.display()
            ));
        }
        let length = self.length();
        if length == 0 && !self.is_in_use {
            return;
        }
        for line in tail(&self.path, length).unwrap_or_default() {
            messages::note(&line);
        }
        messages::note(&format!("the program's output: {}", self.path.display()));
    }
}

impl Drop for ProgramLog {
    fn drop(&mut self) {
        if !self.is_in_use && self.length() == 0 {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn tail(path: &Path, length: u64) -> io::Result<Vec<String>> {
    use std::os::unix::fs::FileExt;
    let from = length.saturating_sub(TAIL_BYTES);
    let mut bytes = vec![0; (length - from) as usize];
    File::open(path)?.read_exact_at(&mut bytes, from)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.len().saturating_sub(TAIL_LINES);
    Ok(lines[first..].iter().map(|&line| line.to_owned()).collect())
}
