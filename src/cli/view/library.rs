//! The recordings of a folder, and what is kept of them in memory.

use crate::analysis::analyze;
use crate::cli::commands::report::{cannot_open, restrict_to_interval};
use crate::cli::commands::report_job;
use crate::cli::failure::Failure;
use crate::cli::formats::Format;
use crate::cli::job_plan::JobPlan;
use crate::cli::outputs;
use crate::cli::plan::Drawing;
use crate::cli::rules::Rules;
use crate::model::profile::Profile;
use crate::model::region::Region;
use crate::model::run::RunInfo;
use crate::model::seconds;
use crate::os::file_lock;
use crate::recording::{OpenError, Recording};
use crate::report::json::report;
use crate::report::text::verdict_statements;
use crate::resolve::Samples;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Profiles that are kept. One of a large recording takes gigabytes.
const KEPT: usize = 2;
/// Recordings that are listed: the newest by their last change.
const LISTED: usize = 1000;

/// What a file was when it was read: with another size or time it is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    size: u64,
    changed_ns: i64,
}

impl Stamp {
    fn of(file: &File) -> io::Result<Self> {
        let data = file.metadata()?;
        Ok(Self {
            inode: data.ino(),
            size: data.len(),
            changed_ns: data.mtime().saturating_mul(1_000_000_000) + data.mtime_nsec(),
        })
    }

    /// As a word for an address.
    pub(super) fn text(&self) -> String {
        format!("{:x}-{:x}-{:x}", self.inode, self.size, self.changed_ns)
    }
}

/// A recording in the list.
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) changed_ns: i64,
    pub(super) growing: bool,
    /// The facts of the run, or why it cannot be read.
    pub(super) head: Result<RunInfo, OpenError>,
}

impl Listed {
    /// When it began; of a file that cannot be read, its last change.
    fn time_ns(&self) -> i64 {
        let began = self.head.as_ref().ok();
        began.map_or(self.changed_ns, |run| {
            i64::try_from(run.started_wall_ns).unwrap_or(i64::MAX)
        })
    }
}

/// What the list shows of a recording once it has been read as a whole.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    duration_s: f64,
    /// `None` if nothing in it trains.
    verdict: Option<String>,
    /// Optimizer steps: `493`, or `493 to 501`.
    steps: Option<String>,
    growing: bool,
    missing: Vec<String>,
}

/// Whether a recording has changed.
#[derive(Clone, Debug, Serialize)]
pub(super) struct State {
    stamp: String,
    growing: bool,
}

/// The recordings that may be shown.
pub(crate) struct Library {
    path: PathBuf,
    folder: File,
    /// The only one, if a file was given.
    pub(super) only: Option<String>,
    regions: Vec<Region>,
    rules: Rules,
    /// Held while a recording is read, analysed and rendered: one at a time.
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Newest last.
    profiles: Vec<(String, Stamp, Arc<Profile>)>,
    rows: FxHashMap<String, (Stamp, Row)>,
}

impl Library {
    /// The recordings of a folder, or one recording.
    ///
    /// # Errors
    /// There is no such file or folder, or a file has another extension.
    pub(crate) fn open(path: &Path, regions: Vec<Region>, rules: Rules) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            let context = format!("cannot open {}", path.display());
            cannot_open(anyhow::Error::new(error).context(context))
        };
        let real = path.canonicalize().map_err(failed)?;
        let (folder, only) = match (real.is_dir(), real.parent(), real.file_name()) {
            (false, Some(parent), Some(name)) => (parent, Some(name.to_owned())),
            _ => (&*real, None),
        };
        let only = only.map(OsString::into_string).transpose();
        let only = match only {
            Ok(only) if only.as_deref().is_none_or(is_recording) => only,
            _ => {
                return Err(Failure::usage(
                    format!("{} is no recording by its name", path.display()),
                    "give a .tspy file, or a folder of them",
                ));
            }
        };
        Ok(Self {
            folder: File::open(folder).map_err(failed)?,
            path: folder.to_owned(),
            only,
            regions,
            rules,
            kept: Mutex::default(),
        })
    }

    /// The folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// When each recording of the folder was changed, and its name.
    fn names(&self) -> io::Result<Vec<(i64, String)>> {
        let entries = std::fs::read_dir(&self.path)?.flatten();
        let shown = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            // Of a link this is the link's own.
            let data = entry.metadata().ok()?;
            (data.is_file() && self.may_show(&name)).then(|| (data.mtime(), name))
        });
        Ok(shown.collect())
    }

    /// The recordings, newest first, and how many older ones are left out.
    pub(super) fn list(&self) -> io::Result<(Vec<Listed>, usize)> {
        let mut names = self.names()?;
        names.sort_by(|a, b| b.cmp(a));
        let left_out = names.len().saturating_sub(LISTED);
        names.truncate(LISTED);
        let listed = names.into_iter().filter_map(|(_, name)| {
            let file = self.file(&name).ok()?;
            let stamp = Stamp::of(&file).ok()?;
            Some(Listed {
                size: stamp.size,
                changed_ns: stamp.changed_ns,
                growing: file_lock::is_held(&file),
                head: Recording::read_head(&file),
                name,
            })
        });
        let mut listed: Vec<Listed> = listed.collect();
        listed.sort_by_key(|each| std::cmp::Reverse(each.time_ns()));
        Ok((listed, left_out))
    }

    fn may_show(&self, name: &str) -> bool {
        let is_only = self.only.as_deref().is_none_or(|only| only == name);
        is_only && is_recording(name)
    }

    /// Opens a recording of the folder: never a link, nor anything below or outside of it.
    pub(super) fn file(&self, name: &str) -> io::Result<File> {
        if name.contains('/') || !self.may_show(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        // A pipe would wait for its other end.
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = File::from(openat(&self.folder, name, flags, Mode::empty())?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Whether a recording has changed.
    pub(super) fn state(&self, name: &str) -> io::Result<State> {
        let file = self.file(name)?;
        Ok(State {
            growing: file_lock::is_held(&file),
            stamp: Stamp::of(&file)?.text(),
        })
    }

    /// The page of a recording, or of an interval of it (ns since its start).
    pub(super) fn page(
        &self,
        name: &str,
        interval: Option<(u64, u64)>,
    ) -> Result<Vec<u8>, Failure> {
        let mut kept = self.lock();
        let profile = self.profile(&mut kept, name)?;
        let mut bytes = Vec::new();
        let drawing = Drawing::default();
        match interval {
            None => Format::Page.render(&profile, &drawing, &mut bytes)?,
            Some(interval) => {
                let mut part = Profile::clone(&profile);
                restrict_to_interval(&mut part, interval)?;
                Format::Page.render(&part, &drawing, &mut bytes)?;
            }
        }
        Ok(bytes)
    }

    /// The page of all recordings as those of one job.
    pub(super) fn job(&self) -> Result<Vec<u8>, Failure> {
        let _one_at_a_time = self.lock();
        let names = self.names().map_err(Failure::new)?.into_iter();
        let mut files: Vec<PathBuf> = names.map(|(_, name)| self.path.join(name)).collect();
        files.sort();
        let plan = JobPlan::of(&self.path, self.regions.clone(), self.rules.clone());
        report_job::page_of(&plan, &files)
    }

    /// A recording's row of the list.
    pub(super) fn row(&self, name: &str) -> Result<Row, Failure> {
        let mut kept = self.lock();
        let stamp = self.file(name).and_then(|file| Stamp::of(&file));
        if let (Some((of, row)), Ok(stamp)) = (kept.rows.get(name), stamp)
            && *of == stamp
        {
            return Ok(row.clone());
        }
        let profile = self.profile(&mut kept, name)?;
        let row = row(&profile);
        let known = kept.profiles.last().map(|(_, stamp, _)| *stamp);
        if kept.rows.len() >= LISTED {
            kept.rows.clear();
        }
        if let Some(stamp) = known {
            kept.rows.insert(name.to_owned(), (stamp, row.clone()));
        }
        Ok(row)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The profile of a recording as it is now, which is the last of those that are kept.
    fn profile(&self, kept: &mut Kept, name: &str) -> Result<Arc<Profile>, Failure> {
        let open = || -> io::Result<(File, Stamp)> {
            let file = self.file(name)?;
            let stamp = Stamp::of(&file)?;
            Ok((file, stamp))
        };
        let (file, stamp) = open().map_err(|error| {
            cannot_open(anyhow::Error::new(error).context(format!("cannot open {name}")))
        })?;
        let known = kept
            .profiles
            .iter()
            .position(|(of, at, _)| of == name && *at == stamp);
        let profile = match known.map(|at| kept.profiles.remove(at)) {
            Some((_, _, profile)) => profile,
            None => {
                // Before the new one is read: memory holds no more than `KEPT` and one to work on.
                kept.profiles.retain(|(of, _, _)| of != name);
                let surplus = (kept.profiles.len() + 1).saturating_sub(KEPT);
                kept.profiles.drain(..surplus);
                let read = outputs::read_profile_of(
                    &file,
                    name,
                    &self.regions,
                    self.rules.set,
                    Samples::All,
                );
                Arc::new(read.map_err(cannot_open)?)
            }
        };
        kept.profiles
            .push((name.to_owned(), stamp, Arc::clone(&profile)));
        Ok(profile)
    }
}

fn is_recording(name: &str) -> bool {
    let stem = name.strip_suffix(Format::Recording.extension());
    stem.is_some_and(|stem| stem.ends_with('.'))
}

fn row(profile: &Profile) -> Row {
    let analysis = analyze(profile);
    let statements = verdict_statements(profile, &analysis);
    let mut verdicts = statements
        .into_iter()
        .filter(|(word, _)| *word == "VERDICT");
    let progress = report(profile, &analysis).progress;
    Row {
        duration_s: seconds::of(profile.recorded_ns()),
        verdict: verdicts.next().map(|(_, text)| text),
        steps: progress.map(|progress| match progress.steps_at_most {
            Some(most) => format!("{} to {most}", progress.steps),
            None => progress.steps.to_string(),
        }),
        growing: profile.growing_until_ns.is_some(),
        missing: profile.missing.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_recordings_of_the_folder_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("runs");
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(folder.path().join("secret.tspy"), "s").unwrap();
        std::fs::write(inside.join("a.tspy"), "a").unwrap();
        std::fs::write(inside.join("b.tspy"), "b").unwrap();
        std::fs::write(inside.join("notes.txt"), "n").unwrap();
        std::fs::create_dir(inside.join("deeper")).unwrap();
        std::fs::write(inside.join("deeper/c.tspy"), "c").unwrap();
        std::fs::create_dir(inside.join("folder.tspy")).unwrap();
        std::os::unix::fs::symlink("../secret.tspy", inside.join("link.tspy")).unwrap();
        nix::unistd::mkfifo(&inside.join("pipe.tspy"), Mode::S_IRWXU).unwrap();
        let rules = || Rules::read(None).unwrap();
        let library = Library::open(&inside, Vec::new(), rules()).unwrap();
        assert!(library.file("a.tspy").is_ok());
        for name in [
            "link.tspy",
            "pipe.tspy",
            "folder.tspy",
            "notes.txt",
            "deeper/c.tspy",
            "../secret.tspy",
            "..",
            "",
            ".tspy/../../secret.tspy",
            "none.tspy",
        ] {
            assert!(library.file(name).is_err(), "{name}");
        }
        let names = |library: &Library| -> Vec<String> {
            let (listed, _) = library.list().unwrap();
            let mut names: Vec<String> = listed.into_iter().map(|each| each.name).collect();
            names.sort();
            names
        };
        assert_eq!(names(&library), ["a.tspy", "b.tspy"]);
        let library = Library::open(&inside.join("a.tspy"), Vec::new(), rules()).unwrap();
        assert!(library.file("a.tspy").is_ok() && library.file("b.tspy").is_err());
        assert_eq!(names(&library), ["a.tspy"]);
        // A link that the user names is followed.
        let library = Library::open(&inside.join("link.tspy"), Vec::new(), rules()).unwrap();
        assert_eq!(names(&library), ["secret.tspy"]);
        for path in ["notes.txt", "none.tspy"] {
            let failure = Library::open(&inside.join(path), Vec::new(), rules()).err();
            assert!(
                failure.is_some_and(|failure| failure.hint.is_some()),
                "{path}"
            );
        }
    }
}
