//! Recordings of the last minutes: a file for each minute of each session, the oldest removed.

use crate::cli::commands::live_sink::LiveSink;
use crate::cli::failure::Failure;
use crate::cli::formats::Format;
use crate::cli::output_file::create_numbered;
use crate::cli::outputs::{NameParts, RecordingSink, base_name};
use crate::model::run::{ClockPair, RunInfo};
use crate::os::clock::{monotonic_ns, wall_ns};
use crate::report::naming::{safe_part, short_host};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Files that make up the ring of a session; the oldest of them is removed as a whole.
const FILES: u32 = 8;
/// Shortest and longest time of a file.
const SHORTEST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(60);
/// What `torchspy report DIR` keeps beside a recording.
const REDUCED: &str = "reduced.parquet";

/// What the names of a ring's files begin with.
pub(crate) const PREFIX: &str = "ring-";

/// The ring of this host.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    folder: PathBuf,
    length: Duration,
    most_bytes: u64,
}

/// The file of a session that is written now.
pub(crate) struct RingFile {
    path: PathBuf,
    ends: Instant,
}

impl Ring {
    /// Makes the folder of this host below `folder`, which hosts may share. Of what is in it only a
    /// ring's recordings are ever removed.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub(crate) fn open(
        folder: &Path,
        host: &str,
        length: Duration,
        most_bytes: u64,
    ) -> Result<Self, Failure> {
        let folder = folder.join(safe_part(short_host(host)));
        std::fs::create_dir_all(&folder).map_err(|error| {
            let error = anyhow::Error::new(error);
            Failure::new(error.context(format!("cannot make {}", folder.display())))
                .hint("--ring names a folder that this user may write to")
        })?;
        Ok(Self {
            folder,
            length,
            most_bytes,
        })
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Ends the file of a session when its time is over, and begins the next.
    ///
    /// # Errors
    /// A file cannot be written; sampling goes on.
    pub(crate) fn turn(
        &self,
        sink: &LiveSink,
        run: &RunInfo,
        rank: Option<u32>,
        file: &mut Option<RingFile>,
    ) -> Result<(), Failure> {
        let now = Instant::now();
        if file.as_ref().is_some_and(|file| now < file.ends) {
            return match sink.recording_error() {
                Some(error) => Err(Failure::new(error)),
                None => Ok(()),
            };
        }
        let session = ClockPair {
            monotonic_ns: run.started_ns,
            wall_ns: run.started_wall_ns,
        };
        let run = RunInfo {
            started_ns: monotonic_ns(),
            started_wall_ns: wall_ns(),
            session: Some(session),
            ..run.clone()
        };
        let name = base_name(&NameParts {
            command: &run.command,
            host: &run.host,
            rank,
            pid: run.pid,
            started_wall_ns: run.started_wall_ns,
        });
        let name = self.folder.join(format!("{PREFIX}{name}"));
        let (path, created) = create_numbered(&name.to_string_lossy(), "tspy", Format::Recording);
        let ends = now + (self.length / FILES).clamp(SHORTEST, LONGEST);
        *file = Some(RingFile {
            path: path.clone(),
            ends,
        });
        let begun = created.map_err(anyhow::Error::from);
        let begun = begun.and_then(|created| RecordingSink::start(created, &run));
        match begun {
            Ok(begun) => sink.record(begun).map_err(Failure::new),
            Err(error) => {
                let _ = sink.end_recording();
                let error = error.context(format!("cannot record into {}", path.display()));
                Err(Failure::new(error))
            }
        }
    }

    /// Removes what is older than the ring's length, and the oldest files of a ring that is too
    /// large.
    pub(crate) fn tidy<'f>(&self, written: impl Iterator<Item = &'f RingFile>) {
        let written: Vec<&Path> = written.map(|file| file.path.as_path()).collect();
        let mut files: Vec<(SystemTime, u64, PathBuf)> = self
            .files()
            .filter(|(.., path)| !written.contains(&path.as_path()))
            .collect();
        files.sort();
        let open = written.iter().filter_map(|path| path.metadata().ok());
        let mut bytes: u64 = open.map(|file| file.len()).sum();
        let oldest = SystemTime::now().checked_sub(self.length);
        // The newest first.
        for (changed, length, path) in files.iter().rev() {
            bytes = bytes.saturating_add(*length);
            let is_old = oldest.is_some_and(|oldest| *changed < oldest);
            if is_old || bytes > self.most_bytes {
                let _ = std::fs::remove_file(path);
                let _ = std::fs::remove_file(path.with_extension(REDUCED));
            }
        }
    }

    /// The ring's recordings: when each was last written to, its length, its path.
    fn files(&self) -> impl Iterator<Item = (SystemTime, u64, PathBuf)> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten();
        entries.flatten().filter_map(|entry| {
            let name = entry.file_name();
            let name = name.to_str()?;
            let is_own = name.starts_with(PREFIX) && name.ends_with(".tspy");
            let file = entry
                .metadata()
                .ok()
                .filter(|file| is_own && file.is_file())?;
            Some((file.modified().ok()?, file.len(), entry.path()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(folder: &Path, name: &str, bytes: usize, age: Duration) {
        let path = folder.join(name);
        std::fs::write(&path, vec![0; bytes]).unwrap();
        let changed = SystemTime::now() - age;
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(changed).unwrap();
    }

    #[test]
    fn only_old_recordings_of_the_ring_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let ring = Ring::open(folder.path(), "a.example.org", minutes(10), 1000).unwrap();
        assert_eq!(ring.folder(), folder.path().join("a"));
        for (name, bytes, age) in [
            ("ring-old.tspy", 1, 11),
            ("ring-old.reduced.parquet", 1, 11),
            ("ring-large.tspy", 900, 9),
            ("ring-new.tspy", 200, 1),
            ("ring-old.html", 1, 11),
            ("mine.tspy", 1, 11),
        ] {
            file(ring.folder(), name, bytes, minutes(age));
        }
        ring.tidy(std::iter::empty());
        let entries = std::fs::read_dir(ring.folder()).unwrap();
        let mut left: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["mine.tspy", "ring-new.tspy", "ring-old.html"]);
    }
}
