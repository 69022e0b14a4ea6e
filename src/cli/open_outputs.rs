//! Output files, opened before anything is started, so that a full day's recording does not end at a missing folder.

use super::failure::Failure;
use super::hints;
use super::outputs::{self, NameParts};
use super::plan::{Format, OutputFile};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Names that are tried where others are taken.
const MAX_NAMES: u32 = 100;

/// An open output.
#[derive(Debug)]
pub(crate) struct OpenOutput {
    pub(crate) path: PathBuf,
    pub(crate) format: Format,
    pub(crate) file: File,
    /// Whether it was made now, and goes if nothing comes of it.
    created: bool,
}

impl OpenOutput {
    /// Takes out what was in a file that was there before.
    pub(crate) fn empty(&self) -> Result<(), Failure> {
        if self.created || !self.file.metadata().is_ok_and(|data| data.is_file()) {
            return Ok(());
        }
        let emptied = self.file.set_len(0);
        emptied.map_err(|error| cannot_write(&self.path, error))
    }

    /// Removes a file that was made for nothing; one that was there before stays.
    pub(crate) fn remove_if_created(&self) {
        if self.created {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// All outputs of a recording.
#[derive(Debug)]
pub(crate) struct OpenOutputs {
    outputs: Vec<OpenOutput>,
    /// The recording that the others are made from, where none is asked for: a file without a name.
    scratch: Option<File>,
}

impl OpenOutputs {
    /// Opens the files that were asked for, or a recording and a flamegraph in `folder`, under a name made of `parts`.
    pub(crate) fn open(
        wanted: &[OutputFile],
        folder: &Path,
        parts: &NameParts<'_>,
    ) -> Result<Self, Failure> {
        if wanted.is_empty() {
            return Self::open_default(folder, parts);
        }
        let mut opened = Self {
            outputs: Vec::new(),
            scratch: None,
        };
        for output in wanted {
            match open_named(output) {
                Ok(output) => opened.outputs.push(output),
                Err(failure) => {
                    opened.discard();
                    return Err(failure);
                }
            }
        }
        if let Some(path) = opened.same_file_twice().map(Path::to_path_buf) {
            opened.discard();
            return Err(Failure::usage(
                format!("{} is the same file as another output", path.display()),
                "give each output a file of its own",
            ));
        }
        if opened.named_recording().is_none() {
            opened.scratch = Some(open_scratch().map_err(|error| {
                Failure::new(
                    anyhow::Error::new(error).context("cannot create a temporary recording"),
                )
                .hint("set TMPDIR to a folder that can be written, or add -o FILE.tspy")
            })?);
        }
        // Only now: nothing that was there is lost for an output that cannot be opened.
        opened.outputs.iter().try_for_each(OpenOutput::empty)?;
        Ok(opened)
    }

    fn open_default(folder: &Path, parts: &NameParts<'_>) -> Result<Self, Failure> {
        let base = outputs::base_name(parts);
        for number in 1..=MAX_NAMES {
            let name = match number {
                1 => base.clone(),
                _ => format!("{base}-{number}"),
            };
            let wanted = [
                (format!("{name}.tspy"), Format::Recording),
                (format!("{name}.svg"), Format::Flamegraph),
            ];
            let mut opened = Self {
                outputs: Vec::new(),
                scratch: None,
            };
            let result = wanted.into_iter().try_for_each(|(name, format)| {
                let path = folder.join(name);
                let file =
                    create_exclusively(&path, format).map_err(|error| (path.clone(), error))?;
                opened.outputs.push(OpenOutput {
                    path,
                    format,
                    file,
                    created: true,
                });
                Ok(())
            });
            match result {
                Ok(()) => return Ok(opened),
                Err((path, error)) => {
                    opened.discard();
                    if error.kind() != io::ErrorKind::AlreadyExists {
                        return Err(cannot_write(&path, error));
                    }
                }
            }
        }
        Err(Failure::message(format!(
            "{base}.tspy and {MAX_NAMES} names like it are taken"
        ))
        .hint("choose a name: -o FILE.tspy -o FILE.svg"))
    }

    /// The file to record into, to be written once.
    pub(crate) fn recording(&self) -> io::Result<File> {
        match (self.named_recording(), &self.scratch) {
            (Some(output), _) => output.file.try_clone(),
            (None, Some(file)) => file.try_clone(),
            (None, None) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Where the recording can be read back. A file without a name is reached through its descriptor (proc_pid_fd(5)).
    pub(crate) fn recording_path(&self) -> PathBuf {
        match (self.named_recording(), &self.scratch) {
            (Some(output), _) => output.path.clone(),
            (None, Some(file)) => PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())),
            (None, None) => PathBuf::new(),
        }
    }

    /// The path of the recording that was asked for.
    pub(crate) fn named_recording(&self) -> Option<&OpenOutput> {
        self.outputs
            .iter()
            .find(|output| output.format == Format::Recording)
    }

    /// The outputs that are made from the recording.
    pub(crate) fn rendered(&self) -> impl Iterator<Item = &OpenOutput> {
        self.outputs
            .iter()
            .filter(|output| output.format != Format::Recording)
    }

    /// Removes what was created: nothing came of it.
    pub(crate) fn discard(self) {
        self.outputs.iter().for_each(OpenOutput::remove_if_created);
    }

    /// Paths of what has something in it.
    pub(crate) fn written(&self) -> impl Iterator<Item = &Path> {
        let is_written = |output: &&OpenOutput| {
            output
                .file
                .metadata()
                .is_ok_and(|data| data.len() > 0 && data.nlink() > 0)
        };
        self.outputs
            .iter()
            .filter(is_written)
            .map(|output| output.path.as_path())
    }

    fn same_file_twice(&self) -> Option<&Path> {
        let identity = |output: &OpenOutput| {
            let data = output.file.metadata().ok()?;
            data.is_file().then(|| (data.dev(), data.ino()))
        };
        self.outputs.iter().enumerate().find_map(|(index, output)| {
            let own = identity(output)?;
            let is_known = self.outputs[..index]
                .iter()
                .any(|known| identity(known) == Some(own));
            is_known.then_some(output.path.as_path())
        })
    }
}

/// Opens a file that the user named. What is in it stays until [`OpenOutput::empty`].
pub(crate) fn open_named(output: &OutputFile) -> Result<OpenOutput, Failure> {
    let OutputFile { path, format } = output;
    let (result, created) = match create_exclusively(path, *format) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let file = OpenOptions::new().read(true).write(true).open(path);
            // A pipe or a terminal cannot always be opened for reading as well.
            let file = file.or_else(|_| OpenOptions::new().write(true).open(path));
            (file.and_then(|file| restrict(file, *format)), false)
        }
        result => (result, true),
    };
    if let Ok(file) = &result
        && *format == Format::Recording
        && !file.metadata().is_ok_and(|data| data.is_file())
    {
        return Err(Failure::message(format!(
            "cannot write {}: a recording is read back at its end, and this is no regular file",
            path.display()
        ))
        .hint("give a file, or its pipe a format that is only written: .svg .folded .json .txt"));
    }
    Ok(OpenOutput {
        path: path.clone(),
        format: *format,
        file: result.map_err(|error| cannot_write(path, error))?,
        created,
    })
}

/// Recordings are their owner's alone (command lines, paths); what is rendered from them follows the umask.
fn mode(format: Format) -> u32 {
    if format == Format::Recording {
        0o600
    } else {
        0o666
    }
}

/// Creates a file that must not be there yet.
pub(crate) fn create_exclusively(path: &Path, format: Format) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(mode(format))
        .open(path)
}

fn restrict(file: File, format: Format) -> io::Result<File> {
    use std::os::unix::fs::PermissionsExt;
    let data = file.metadata()?;
    if format == Format::Recording && data.is_file() && data.mode() & 0o777 != 0o600 {
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// A file that is gone when it is closed, however torchspy ends.
fn open_scratch() -> io::Result<File> {
    let own = std::process::id();
    let mut result = Err(io::ErrorKind::AlreadyExists.into());
    for number in 0..MAX_NAMES {
        let path = std::env::temp_dir().join(format!("torchspy-{own}-{number}.tspy"));
        result = create_exclusively(&path, Format::Recording);
        match &result {
            Ok(_) => {
                std::fs::remove_file(&path)?;
                break;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(_) => break,
        }
    }
    result
}

/// A file that cannot be written, with the hint for its reason.
pub(crate) fn cannot_write(path: &Path, error: io::Error) -> Failure {
    let hint = hints::of_output_error(&error);
    let context = format!("cannot write {}", path.display());
    Failure::new(anyhow::Error::new(error).context(context)).maybe_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: NameParts<'_> = NameParts {
        command: &[],
        host: "node",
        rank: Some(3),
        pid: 42,
        started_wall_ns: 0,
    };

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_taken_name_is_never_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let first = OpenOutputs::open(&[], folder.path(), &PARTS).unwrap();
        let svg = first.rendered().next().unwrap().path.clone();
        std::fs::write(&svg, "kept").unwrap();
        std::fs::remove_file(&first.named_recording().unwrap().path).unwrap();
        // Of the pair, only the flamegraph's name is taken: the recording of the same name must not stay behind.
        let second = OpenOutputs::open(&[], folder.path(), &PARTS).unwrap();
        assert_eq!(std::fs::read_to_string(&svg).unwrap(), "kept");
        let names = names(folder.path());
        assert_eq!(names.len(), 3, "{names:?}");
        assert!(
            second
                .named_recording()
                .unwrap()
                .path
                .to_string_lossy()
                .ends_with("-2.tspy")
        );
        second.discard();
    }

    #[test]
    fn what_was_opened_goes_when_a_later_one_fails() {
        let folder = tempfile::tempdir().unwrap();
        let output = |name: &str| OutputFile {
            path: folder.path().join(name),
            format: Format::Folded,
        };
        std::fs::write(folder.path().join("old.folded"), "old").unwrap();
        let wanted = [
            output("new.folded"),
            output("old.folded"),
            output("no/where.folded"),
        ];
        let failure = OpenOutputs::open(&wanted, folder.path(), &PARTS).unwrap_err();
        assert!(failure.hint.is_some_and(|hint| hint.contains("mkdir")));
        assert_eq!(names(folder.path()), ["old.folded"]);
    }

    #[test]
    fn one_file_under_two_names_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.svg"), "").unwrap();
        std::fs::hard_link(folder.path().join("a.svg"), folder.path().join("b.svg")).unwrap();
        let wanted = ["a.svg", "b.svg"].map(|name| OutputFile {
            path: folder.path().join(name),
            format: Format::Flamegraph,
        });
        assert_eq!(
            OpenOutputs::open(&wanted, folder.path(), &PARTS)
                .unwrap_err()
                .status,
            2
        );
    }

    #[test]
    fn without_a_recording_among_the_outputs_a_nameless_one_is_read_back() {
        use std::io::{Read, Write};
        let folder = tempfile::tempdir().unwrap();
        let wanted = [OutputFile {
            path: folder.path().join("a.svg"),
            format: Format::Flamegraph,
        }];
        let outputs = OpenOutputs::open(&wanted, folder.path(), &PARTS).unwrap();
        outputs.recording().unwrap().write_all(b"abc").unwrap();
        let mut text = String::new();
        File::open(outputs.recording_path())
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "abc", "opened anew: it starts at the beginning");
        assert_eq!(names(folder.path()), ["a.svg"]);
    }

    #[test]
    fn recordings_are_their_owners_alone_even_over_an_older_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tspy");
        std::fs::write(&path, "older and longer").unwrap();
        let wanted = OutputFile {
            path: path.clone(),
            format: Format::Recording,
        };
        open_named(&wanted).unwrap().empty().unwrap();
        let data = path.metadata().unwrap();
        assert_eq!((data.mode() & 0o777, data.len()), (0o600, 0));
    }
}
