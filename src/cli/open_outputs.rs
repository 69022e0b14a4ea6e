//! Output files, opened before anything is started, so that a full day's recording does not end at
//! a missing folder.

use super::failure::Failure;
use super::formats::Format;
use super::hints;
use super::outputs::{self, NameParts};
use super::plan::OutputFile;
use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Names that are tried where others are taken.
const MAX_NAMES: u32 = 100;

/// An open output.
#[derive(Debug)]
pub(crate) struct OpenOutput {
    pub(crate) path: PathBuf,
    pub(crate) format: Format,
    pub(crate) file: File,
    place: Place,
}

/// Where an output is while it is written.
#[derive(Debug)]
enum Place {
    /// Under its name, made now: it goes if nothing comes of it.
    Named,
    /// Under another name in the same folder, until it replaces the file that is there.
    Beside(PathBuf),
    /// A pipe, a terminal or a device, which was there before and stays.
    Special,
}

impl OpenOutput {
    /// Puts a file that was written beside in its place.
    pub(crate) fn keep(&self) -> Result<(), Failure> {
        match &self.place {
            Place::Beside(name) if name.exists() => {
                let renamed = std::fs::rename(name, &self.path);
                renamed.map_err(|error| cannot_write(&self.path, error))
            }
            _ => Ok(()),
        }
    }

    /// Removes a file that was made for nothing; one that was there before stays.
    pub(crate) fn remove_if_created(&self) {
        let name = match &self.place {
            Place::Named => &self.path,
            Place::Beside(name) => name,
            Place::Special => return,
        };
        if identity_at(name).is_some_and(|at| Some(at) == identity(&self.file)) {
            let _ = std::fs::remove_file(name);
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
    /// Opens the files that were asked for, or a recording and one of the format `beside` in
    /// `folder`, under a name made of `parts`.
    pub(crate) fn open(
        wanted: &[OutputFile],
        beside: Format,
        force: bool,
        folder: &Path,
        parts: &NameParts<'_>,
    ) -> Result<Self, Failure> {
        if wanted.is_empty() {
            return Self::open_default(folder, parts, beside);
        }
        let mut opened = Self {
            outputs: Vec::new(),
            scratch: None,
        };
        for output in wanted {
            let result = match opened.has(&output.path) {
                true => Err(Failure::usage(
                    format!(
                        "{} is the same file as another output",
                        output.path.display()
                    ),
                    "give each output a file of its own",
                )),
                false => open_named(output, force),
            };
            match result {
                Ok(output) => opened.outputs.push(output),
                Err(failure) => {
                    opened.discard();
                    return Err(failure);
                }
            }
        }
        if opened.named_recording().is_none() {
            opened.scratch = Some(open_scratch().map_err(|error| {
                Failure::new(
                    anyhow::Error::new(error).context("cannot create a temporary recording"),
                )
                .hint("set TMPDIR to a folder that can be written, or add -o FILE.tspy")
            })?);
        }
        Ok(opened)
    }

    fn open_default(folder: &Path, parts: &NameParts<'_>, beside: Format) -> Result<Self, Failure> {
        let base = outputs::base_name(parts);
        for number in 1..=MAX_NAMES {
            let name = match number {
                1 => base.clone(),
                _ => format!("{base}-{number}"),
            };
            let formats = [Some(Format::Recording), Some(beside), beside.stacks()];
            let wanted = formats.map(|format| {
                format.map(|format| (format!("{name}.{}", format.extension()), format))
            });
            let mut opened = Self {
                outputs: Vec::new(),
                scratch: None,
            };
            let result = wanted.into_iter().flatten().try_for_each(|(name, format)| {
                let path = folder.join(name);
                let file =
                    create_exclusively(&path, format).map_err(|error| (path.clone(), error))?;
                opened.outputs.push(OpenOutput {
                    path,
                    format,
                    file,
                    place: Place::Named,
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

    /// Gives the recording its name, in the place of one that is replaced: it is to be found there
    /// however torchspy ends.
    pub(crate) fn keep_recording(&self) -> Result<(), Failure> {
        self.named_recording().map_or(Ok(()), OpenOutput::keep)
    }

    /// Where the recording can be read back. A file without a name is reached through its
    /// descriptor (proc_pid_fd(5)).
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
            let has_content = output.file.metadata().is_ok_and(|data| data.len() > 0);
            has_content && identity_at(&output.path) == identity(&output.file)
        };
        self.outputs
            .iter()
            .filter(is_written)
            .map(|output| output.path.as_path())
    }

    /// Whether one of the outputs is the file at `path`, or is to replace it.
    fn has(&self, path: &Path) -> bool {
        let Some(wanted) = identity_at(path) else {
            return false;
        };
        self.outputs.iter().any(|output| {
            [identity(&output.file), identity_at(&output.path)].contains(&Some(wanted))
        })
    }
}

/// Device and inode of a regular file.
fn identity(file: &File) -> Option<(u64, u64)> {
    let data = file.metadata().ok()?;
    data.is_file().then(|| (data.dev(), data.ino()))
}

/// The same of the file at `path`, which may not be a link to one.
fn identity_at(path: &Path) -> Option<(u64, u64)> {
    let data = path.symlink_metadata().ok()?;
    data.is_file().then(|| (data.dev(), data.ino()))
}

/// Opens a file that the user named. One that is there is replaced by [`OpenOutput::keep`], if
/// `force` says so; nothing is ever written into it, nor through a link: whoever else can write to
/// the folder may have put it there.
pub(crate) fn open_named(output: &OutputFile, force: bool) -> Result<OpenOutput, Failure> {
    let OutputFile { path, format } = output;
    let (file, place) = match create_exclusively(path, *format) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            open_existing(path, *format, force)?
        }
        result => (
            result.map_err(|error| cannot_write(path, error))?,
            Place::Named,
        ),
    };
    let needs_file = match format {
        Format::Recording => Some("a recording is read back at its end"),
        Format::Parquet | Format::ParquetStacks => Some("Parquet is two files with names"),
        _ => None,
    };
    if let (Some(reason), Place::Special) = (needs_file, &place) {
        return Err(Failure::message(format!(
            "cannot write {}: {reason}, and this is no regular file",
            path.display()
        ))
        .hint("give a file, or its pipe a format that is only written: .svg .folded .json .txt"));
    }
    Ok(OpenOutput {
        path: path.clone(),
        format: *format,
        file,
        place,
    })
}

fn open_existing(path: &Path, format: Format, force: bool) -> Result<(File, Place), Failure> {
    let failed = |error| cannot_write(path, error);
    if let Some(file) = own_stream(path).map_err(failed)? {
        return Ok((file, Place::Special));
    }
    let data = path.symlink_metadata().map_err(failed)?;
    let kind = data.file_type();
    if kind.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    if kind.is_fifo() || kind.is_char_device() || kind.is_socket() {
        let file = open_special(path).map_err(failed)?;
        // What is opened is what was looked at: neither a file nor a link has taken its place.
        let is_regular = file.metadata().map_err(failed)?.is_file();
        return match is_regular {
            true => Err(exists(path)),
            false => Ok((file, Place::Special)),
        };
    }
    // An empty file of one's own is mktemp(1)'s.
    let is_reserved = kind.is_file() && data.len() == 0 && data.uid() == geteuid().as_raw();
    if !force && !is_reserved {
        return Err(match kind.is_symlink() {
            true => Failure::message(format!(
                "{} is a symbolic link, and torchspy writes through none",
                path.display()
            ))
            .hint("give the file itself, or another name; --force replaces the link"),
            false => exists(path),
        });
    }
    let (name, file) = create_beside(path, format).map_err(failed)?;
    Ok((file, Place::Beside(name)))
}

fn exists(path: &Path) -> Failure {
    Failure::message(format!("{} is there already", path.display()))
        .hint("give another name, or replace it: --force")
}

/// `/dev/stdout` and its like: links to what torchspy itself was given.
fn own_stream(path: &Path) -> io::Result<Option<File>> {
    let is_descriptor = ["/dev/fd", "/proc/self/fd"]
        .iter()
        .any(|folder| path.parent() == Some(Path::new(folder)));
    if path == Path::new("/dev/stdout") {
        // Opened anew, a file that the shell has redirected it to would be written from its
        // beginning.
        Ok(Some(io::stdout().as_fd().try_clone_to_owned()?.into()))
    } else if path == Path::new("/dev/stderr") {
        Ok(Some(io::stderr().as_fd().try_clone_to_owned()?.into()))
    } else if is_descriptor {
        Ok(Some(OpenOptions::new().append(true).open(path)?))
    } else {
        Ok(None)
    }
}

fn open_special(path: &Path) -> io::Result<File> {
    let no_link = OFlag::O_NOFOLLOW.bits();
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(no_link);
    // With a reader of its own a pipe does not wait for one. A terminal cannot always be opened for
    // reading as well.
    let both = options.clone().read(true).open(path);
    both.or_else(|_| options.open(path))
}

/// Creates a file in the folder of `path`, to be renamed to it.
fn create_beside(path: &Path, format: Format) -> io::Result<(PathBuf, File)> {
    let own = std::process::id();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut result = Err(io::ErrorKind::AlreadyExists.into());
    for number in 1..=MAX_NAMES {
        let beside = path.with_file_name(format!(".{name}.{own}-{number}"));
        match create_exclusively(&beside, format) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            file => {
                result = file.map(|file| (beside, file));
                break;
            }
        }
    }
    result
}

/// Recordings are their owner's alone (command lines, paths); what is rendered from them follows
/// the umask.
fn mode(format: Format) -> u32 {
    if format == Format::Recording {
        0o600
    } else {
        0o666
    }
}

/// Creates a file that must not be there yet, not even as a link (open(2), `O_EXCL`).
pub(crate) fn create_exclusively(path: &Path, format: Format) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(mode(format))
        .open(path)
}

/// Creates `base.extension`, or `base-2.extension` and so on where names are taken.
pub(crate) fn create_numbered(
    base: &str,
    extension: &str,
    format: Format,
) -> (PathBuf, io::Result<File>) {
    let mut path = PathBuf::from(format!("{base}.{extension}"));
    let mut file = create_exclusively(&path, format);
    for number in 2..=MAX_NAMES {
        match &file {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                path = PathBuf::from(format!("{base}-{number}.{extension}"));
                file = create_exclusively(&path, format);
            }
            _ => break,
        }
    }
    (path, file)
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
        let first =
            OpenOutputs::open(&[], Format::Flamegraph, false, folder.path(), &PARTS).unwrap();
        let svg = first.rendered().next().unwrap().path.clone();
        std::fs::write(&svg, "kept").unwrap();
        std::fs::remove_file(&first.named_recording().unwrap().path).unwrap();
        // Of the pair, only the flamegraph's name is taken: the recording of the same name must not
        // stay behind.
        let second =
            OpenOutputs::open(&[], Format::Flamegraph, false, folder.path(), &PARTS).unwrap();
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
        let failure = OpenOutputs::open(&wanted, Format::Flamegraph, true, folder.path(), &PARTS)
            .unwrap_err();
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
            OpenOutputs::open(&wanted, Format::Flamegraph, true, folder.path(), &PARTS)
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
        let outputs =
            OpenOutputs::open(&wanted, Format::Flamegraph, true, folder.path(), &PARTS).unwrap();
        outputs.recording().unwrap().write_all(b"abc").unwrap();
        let mut text = String::new();
        File::open(outputs.recording_path())
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "abc", "opened anew: it starts at the beginning");
        assert_eq!(names(folder.path()), ["a.svg"]);
    }

    fn recording(path: &Path) -> OutputFile {
        OutputFile {
            path: path.to_owned(),
            format: Format::Recording,
        }
    }

    #[test]
    fn what_is_there_is_replaced_if_that_is_asked_for_and_never_written_into() {
        use std::io::Write;
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a.tspy"), folder.path().join("other"));
        std::fs::write(&other, "somebody's").unwrap();
        std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o644)).unwrap();
        type Plant = fn(&Path, &Path) -> io::Result<()>;
        let plants: [Plant; 3] = [
            |from, to| std::os::unix::fs::symlink(from, to),
            |from, to| std::fs::hard_link(from, to),
            |from, to| std::fs::copy(from, to).map(drop),
        ];
        for plant in plants {
            plant(&other, &path).unwrap();
            let failure = open_named(&recording(&path), false).unwrap_err();
            assert!(failure.hint.is_some_and(|hint| hint.contains("--force")));
            let mut output = open_named(&recording(&path), true).unwrap();
            output.file.write_all(b"new").unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "somebody's");
            output.keep().unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
            let data = path.symlink_metadata().unwrap();
            assert!(data.is_file());
            assert_eq!(data.mode() & 0o777, 0o600);
            let data = other.symlink_metadata().unwrap();
            assert_eq!(std::fs::read_to_string(&other).unwrap(), "somebody's");
            assert_eq!(data.mode() & 0o777, 0o644);
            std::fs::remove_file(&path).unwrap();
            assert_eq!(names(folder.path()), ["other"]);
        }
    }

    #[test]
    fn a_link_to_nowhere_makes_no_file_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tspy");
        std::os::unix::fs::symlink(folder.path().join("planted"), &path).unwrap();
        assert!(open_named(&recording(&path), false).is_err());
        open_named(&recording(&path), true).unwrap().keep().unwrap();
        assert_eq!(names(folder.path()), ["a.tspy"]);
    }

    #[test]
    fn what_comes_to_nothing_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tspy");
        std::fs::write(&path, "older").unwrap();
        let output = open_named(&recording(&path), true).unwrap();
        output.remove_if_created();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "older");
        assert_eq!(names(folder.path()), ["a.tspy"]);
    }

    #[test]
    fn devices_and_pipes_are_written_into() {
        use std::io::{Read, Write};
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe.svg");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [Path::new("/dev/null"), Path::new("/dev/stdout"), &pipe] {
            let wanted = OutputFile {
                path: path.to_owned(),
                format: Format::Flamegraph,
            };
            let mut output = open_named(&wanted, false).unwrap();
            if path == pipe {
                output.file.write_all(b"abc").unwrap();
                let mut bytes = [0; 3];
                output.file.read_exact(&mut bytes).unwrap();
                assert_eq!(&bytes, b"abc");
            }
            output.keep().unwrap();
            output.remove_if_created();
            assert!(path.exists());
            assert!(open_named(&recording(path), false).is_err());
        }
    }

    #[test]
    fn an_empty_file_of_ones_own_is_there_to_be_filled() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tspy");
        std::fs::write(&path, "").unwrap();
        open_named(&recording(&path), false)
            .unwrap()
            .keep()
            .unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    }
}
