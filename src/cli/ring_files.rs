//! What recordings of a folder are read from: a file each, or the files that a session of
//! `torchspy agent` wrote one after another.

use super::agent::ring;
use super::job_plan::JobPlan;
use super::outputs;
use super::regular::open_regular;
use crate::model::profile::Profile;
use crate::model::region::Region;
use crate::model::run::{ClockPair, RunInfo};
use crate::os::file_lock;
use crate::recording::{Piece, Recording};
use crate::resolve::Samples;
use crate::resolve::confidential::Confidential;
use crate::torch::rules::RuleSet;
use anyhow::Context;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{File, Metadata, Permissions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// What names a session: host, pid, and both clocks at its start.
type Session = (String, i32, u64, u64);

/// A recording: a file, or those of one session, in the order in which they were written.
pub(crate) struct Source {
    /// What it is called.
    pub(crate) name: String,
    files: Vec<SourceFile>,
}

struct SourceFile {
    path: PathBuf,
    shown: String,
}

/// The files of a recording, open.
pub(crate) struct Opened<'s> {
    name: &'s str,
    /// The first file, and who may read it.
    pub(crate) first: &'s Path,
    pub(crate) permissions: Permissions,
    files: Vec<OpenedFile<'s>>,
}

struct OpenedFile<'s> {
    of: &'s SourceFile,
    file: File,
    data: Metadata,
}

/// The recordings of these files of a folder.
pub(crate) fn sources(plan: &JobPlan, files: &[PathBuf]) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut sessions: BTreeMap<Session, Vec<(u64, SourceFile)>> = BTreeMap::new();
    for path in files {
        let file = SourceFile {
            path: path.clone(),
            shown: shown(plan, path),
        };
        match session(path) {
            Some((session, started_ns)) => {
                sessions
                    .entry(session)
                    .or_default()
                    .push((started_ns, file));
            }
            None => sources.push(Source::of(vec![file])),
        }
    }
    for (_, mut files) in sessions {
        files.sort_by(|(one, first), (other, second)| {
            one.cmp(other).then_with(|| first.path.cmp(&second.path))
        });
        let files = files.into_iter().map(|(_, file)| file);
        sources.push(Source::of(files.collect()));
    }
    sources
}

/// What a file is called: its path in the folder, hashed where names are.
pub(crate) fn shown(plan: &JobPlan, file: &Path) -> String {
    let below = file.strip_prefix(&plan.folder).ok();
    let name = below.filter(|name| !name.as_os_str().is_empty());
    let name = name.unwrap_or(file);
    let name = name.display().to_string();
    match &plan.confidential {
        Some(key) => Confidential::new(key).file(&name),
        None => name,
    }
}

/// The session that a file of a ring is of, and when the file began.
fn session(path: &Path) -> Option<(Session, u64)> {
    // Of other files no head is read: they may be ten thousand, on a file system far away.
    let name = path.file_name()?.to_str()?;
    name.strip_prefix(ring::PREFIX)?;
    let RunInfo {
        host,
        pid,
        started_ns,
        session,
        ..
    } = Recording::read_head(&open_regular(path).ok()?).ok()?;
    let ClockPair {
        monotonic_ns,
        wall_ns,
    } = session?;
    Some(((host, pid, wall_ns, monotonic_ns), started_ns))
}

impl Source {
    fn of(files: Vec<SourceFile>) -> Self {
        let first = files.first().map_or("", |file| &file.shown);
        let name = match files.len() {
            1 => first.to_owned(),
            count => format!("{first} and {} more", count - 1),
        };
        Self { name, files }
    }

    /// The files, in order.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// Opens the files. Those of a ring that were removed in the meantime are left out.
    ///
    /// # Errors
    /// A file cannot be opened, or none is left.
    pub(crate) fn open(&self) -> anyhow::Result<Opened<'_>> {
        let mut files = Vec::new();
        for of in &self.files {
            let opened = open_regular(&of.path).and_then(|file| Ok((file.metadata()?, file)));
            match opened {
                Ok((data, file)) => files.push(OpenedFile { of, file, data }),
                Err(error) if error.kind() == ErrorKind::NotFound && self.files.len() > 1 => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot open {}", of.shown));
                }
            }
        }
        let first = files.first().context("its files were removed")?;
        Ok(Opened {
            name: &self.name,
            first: &first.of.path,
            permissions: first.data.permissions(),
            files,
        })
    }
}

impl Opened<'_> {
    /// The state of the files, which changes when one of them does.
    pub(crate) fn state(&self) -> String {
        let mut state = String::new();
        for OpenedFile { of, data, .. } in &self.files {
            let modified = data.modified().ok();
            let modified = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let modified_ns = modified.map_or(0, |time| time.as_nanos());
            if self.files.len() > 1 {
                let name = of.path.file_name().unwrap_or_default();
                let _ = write!(state, "{} ", name.display());
            }
            let _ = write!(state, "{} {modified_ns} ", data.len());
        }
        state
    }

    /// Reads and resolves the recording, with `regions` as phases in addition to its own.
    ///
    /// # Errors
    /// Nothing can be read of it.
    pub(crate) fn profile(
        &self,
        regions: &[Region],
        rules: &'static RuleSet,
        kept: Samples,
    ) -> anyhow::Result<Profile> {
        if let [OpenedFile { of, file, .. }] = &self.files[..] {
            return outputs::read_profile_of(file, &of.shown, regions, rules, kept);
        }
        let pieces = self.files.iter().map(|OpenedFile { of, file, .. }| Piece {
            name: of.shown.clone(),
            growing: file_lock::is_held(file),
            file,
        });
        let pieces: Vec<Piece<'_>> = pieces.collect();
        let recording = Recording::read_pieces(&pieces);
        let recording = recording.with_context(|| format!("cannot open {}", self.name))?;
        Ok(outputs::profile_of(recording, regions, rules, kept))
    }
}
