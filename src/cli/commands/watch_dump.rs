//! The dumps of `torchspy watch`: two files with a name that is not taken.

use crate::analysis::dump::moved::Comparison;
use crate::cli::failure::Failure;
use crate::cli::gather::Gathered;
use crate::model::dump::Dump;
use crate::os::host::host_name;
use crate::report::dump::job::render_job;
use crate::report::dump::job_json::render_job_json;
use crate::report::dump::json::{render_snapshot, render_snapshots};
use crate::report::dump::text::render_dump;
use nix::unistd::{AccessFlags, access};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What a hang looks like.
pub(crate) enum Hung {
    /// The processes of this machine.
    Here(Box<Dump>),
    /// Those of all machines of the job.
    Everywhere(Gathered),
}

impl Hung {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Here(dump) => render_dump(dump),
            Self::Everywhere(job) => render_job(&job.answers, &job.unanswered, job.took),
        }
    }

    fn json(&self) -> Result<String, serde_json::Error> {
        match self {
            Self::Here(dump) => {
                let snapshots = [render_snapshot(dump)];
                render_snapshots(&host_name(), &snapshots, &Comparison::default())
            }
            Self::Everywhere(job) => render_job_json(&job.answers, &job.unanswered, job.took),
        }
    }

    /// Wall clock of the first snapshot, ns since 1970.
    pub(super) fn wall_ns(&self) -> u64 {
        match self {
            Self::Here(dump) => dump.wall_ns,
            Self::Everywhere(job) => {
                let all = job.answers.iter().map(|answer| answer.dump.wall_ns);
                all.min().unwrap_or(0)
            }
        }
    }
}

/// Dumps of one run that are kept apart by a number.
const MAX_DUMPS: u32 = 1000;

/// Makes the folder of the dumps; an error if they cannot be written there. A hang may come after
/// days.
pub(super) fn check_output(name: Option<&Path>) -> Result<(), Failure> {
    let folder = name
        .and_then(Path::parent)
        .filter(|path| !path.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)
        .and_then(|()| Ok(access(folder, AccessFlags::W_OK | AccessFlags::X_OK)?))
        .map_err(|error| not_written(name.unwrap_or(folder), error))
}

/// Writes a text file with a name that is not taken; returns its path.
pub(super) fn write_new(name: &Path, text: &str) -> Result<PathBuf, Failure> {
    for number in 1..MAX_DUMPS {
        let mut path = name.as_os_str().to_owned();
        if number > 1 {
            path.push(format!("-{number}"));
        }
        path.push(".txt");
        let path = PathBuf::from(path);
        match create_new(&path) {
            Ok(mut file) => {
                return match write_whole(&path, |_| file.write_all(text.as_bytes())) {
                    Ok(()) => Ok(path),
                    Err(error) => Err(not_written(&path, error)),
                };
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(not_written(&path, error)),
        }
    }
    Err(Failure::message(format!(
        "{} has {MAX_DUMPS} dumps",
        name.display()
    )))
}

/// Writes a JSON file; returns its path.
pub(super) fn write_json(hung: &Hung, path: PathBuf) -> Result<PathBuf, Failure> {
    let json = hung.json().map_err(Failure::new)? + "\n";
    // One of an earlier run, whose text was removed.
    let _ = std::fs::remove_file(&path);
    let write = |path: &Path| create_new(path)?.write_all(json.as_bytes());
    match write_whole(&path, write) {
        Ok(()) => Ok(path),
        Err(error) => Err(not_written(&path, error)),
    }
}

/// Creates a file that must not be there yet. Dumps are their owner's alone, as recordings are.
fn create_new(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600).open(path)
}

/// Writes a file, or removes what was written of it.
fn write_whole(
    path: &Path,
    write: impl FnOnce(&Path) -> std::io::Result<()>,
) -> std::io::Result<()> {
    write(path).inspect_err(|_| drop(std::fs::remove_file(path)))
}

fn not_written(path: &Path, error: std::io::Error) -> Failure {
    Failure::message(format!("cannot write {}: {error}", path.display()))
        .hint("-o NAME puts the dump elsewhere")
}
