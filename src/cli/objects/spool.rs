//! The spool: a folder on this machine with recordings that are to be sent to object storage.
//!
//! Each has two files: `NAME.tspy`, the recording as it is written, and `NAME.send`, a journal of
//! where it goes. The last complete line of the journal counts, as JSON: a torchspy that is killed
//! while it writes leaves the line before. Whoever records or sends holds the journal's lock, which
//! the kernel drops when the process ends.

use super::address::Address;
use crate::cli::failure::Failure;
use crate::cli::formats::Format;
use crate::cli::output_file::{MAX_NAMES, cannot_write, create_numbered};
use crate::cli::output_names::OutputFile;
use crate::os::file_lock;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The extension of journals.
const JOURNAL: &str = "send";

/// The folder.
#[derive(Clone, Debug)]
pub(crate) struct Spool(PathBuf);

/// Where a recording goes, and what happened on its way: a line of a journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    /// The address that was asked for; where that is taken, a number is added.
    to: PathBuf,
    /// An object that is there is replaced.
    force: bool,
    /// The address that holds a part of this recording.
    placed: Option<PathBuf>,
    /// An upload in parts that has not ended: its address and id.
    upload: Option<(PathBuf, String)>,
}

/// A recording in the spool, locked.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) recording: PathBuf,
    journal: PathBuf,
    file: File,
    line: Line,
}

/// What is in the spool.
#[derive(Debug, Default)]
pub(crate) struct Left {
    pub(crate) entries: Vec<Entry>,
    /// Recordings that another torchspy records or sends.
    pub(crate) in_use: usize,
    /// Recordings whose journals say nothing.
    pub(crate) without_address: Vec<PathBuf>,
}

impl Spool {
    /// The folder that was named, or the user's own: `$XDG_STATE_HOME/torchspy/spool`
    /// (<https://specifications.freedesktop.org/basedir-spec/latest/>).
    ///
    /// # Errors
    /// None was named, and the user has no home.
    pub(crate) fn new(folder: Option<&Path>) -> Result<Self, Failure> {
        if let Some(folder) = folder {
            return Ok(Self(folder.to_owned()));
        }
        super::user_folder("XDG_STATE_HOME", ".local/state")
            .map(|state| Self(state.join("spool")))
            .ok_or_else(|| {
                Failure::message("there is no folder for recordings until they are sent")
                    .hint("name one: --spool DIR")
            })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// Makes a place for a recording that goes to an address. Its file does not exist yet.
    ///
    /// # Errors
    /// The folder cannot be written, or its file system has no locks.
    pub(crate) fn add(&self, name: &str, to: &Path, force: bool) -> Result<Entry, Failure> {
        let failed = |error| cannot_write(&self.0, error);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.0)
            .map_err(failed)?;
        loop {
            let base = self.0.join(name);
            let (journal, file) =
                create_numbered(&base.to_string_lossy(), JOURNAL, Format::Recording);
            let file = file.map_err(failed)?;
            let held = file_lock::try_hold(&file).map_err(|error| {
                let _ = fs::remove_file(&journal);
                failed(error)
                    .hint("locks are needed there; choose a folder of a local disk: --spool DIR")
            })?;
            if !held {
                // Another torchspy, which looks for what is left, has it for this instant.
                let _ = fs::remove_file(&journal);
                continue;
            }
            let mut entry = Entry {
                recording: journal.with_extension(Format::Recording.extension()),
                journal,
                file,
                line: Line {
                    to: to.to_owned(),
                    force,
                    placed: None,
                    upload: None,
                },
            };
            return match entry.write() {
                Ok(()) => Ok(entry),
                Err(error) => {
                    entry.remove();
                    Err(failed(error))
                }
            };
        }
    }

    /// The recordings that nobody records or sends.
    ///
    /// # Errors
    /// The folder cannot be read. None at all is no error.
    pub(crate) fn left(&self) -> io::Result<Left> {
        let mut left = Left::default();
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(left),
            entries => entries?,
        };
        let mut journals = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == JOURNAL) {
                journals.push(path);
            }
        }
        journals.sort();
        for journal in journals {
            let file = match File::options().read(true).append(true).open(&journal) {
                // It was sent meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            if !file_lock::try_hold(&file)? {
                left.in_use += 1;
                continue;
            }
            let recording = journal.with_extension(Format::Recording.extension());
            match last_line(&file) {
                Some(line) => left.entries.push(Entry {
                    recording,
                    journal,
                    file,
                    line,
                }),
                None if recording.exists() => left.without_address.push(recording),
                // Its recorder has not begun.
                None => {}
            }
        }
        Ok(left)
    }
}

fn last_line(journal: &File) -> Option<Line> {
    let lines = BufReader::new(journal).lines().map_while(Result::ok);
    lines
        .filter_map(|line| serde_json::from_str(&line).ok())
        .last()
}

impl Entry {
    /// The address that was asked for.
    pub(crate) fn to(&self) -> &Path {
        &self.line.to
    }

    pub(super) fn force(&self) -> bool {
        self.line.force
    }

    /// Addresses to send to, the best first.
    pub(super) fn candidates(&self) -> impl Iterator<Item = PathBuf> + use<> {
        let output = OutputFile {
            is_numbered: true,
            ..OutputFile::new(self.line.to.clone(), Format::Recording)
        };
        let numbered = (1..=MAX_NAMES).map(move |number| output.numbered(number).path);
        self.line.placed.clone().into_iter().chain(numbered)
    }

    pub(super) fn upload(&self) -> Option<(PathBuf, String)> {
        self.line.upload.clone()
    }

    /// Notes where a part of the recording is.
    pub(super) fn set_placed(&mut self, address: &Address) -> io::Result<()> {
        let address = PathBuf::from(address.to_string());
        if self.line.placed.as_ref() == Some(&address) {
            return Ok(());
        }
        self.line.placed = Some(address);
        self.write()
    }

    /// Notes an upload that begins, or that none is under way.
    pub(super) fn set_upload(&mut self, upload: Option<(&Address, &str)>) -> io::Result<()> {
        let upload =
            upload.map(|(address, id)| (PathBuf::from(address.to_string()), id.to_owned()));
        if self.line.upload == upload {
            return Ok(());
        }
        self.line.upload = upload;
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        // A line that was cut by a full disk must not join this one.
        let line = format!("\n{}\n", serde_json::to_string(&self.line)?);
        self.file.write_all(line.as_bytes())
    }

    /// Removes both files. The journal last: without it the recording would never be sent.
    pub(crate) fn remove(self) {
        match fs::remove_file(&self.recording) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {}
            _ => drop(fs::remove_file(&self.journal)),
        }
    }
}
