//! One output file: created or opened so that nothing is written into existing files, and no link
//! is followed.

use super::failure::Failure;
use super::formats::Format;
use super::hints;
use super::objects::address::Address;
use super::output_names::OutputFile;
use crate::os::file_lock;
use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Names that are tried where others are taken.
pub(super) const MAX_NAMES: u32 = 100;

#[derive(Debug)]
pub(crate) struct OpenOutput {
    pub(crate) path: PathBuf,
    pub(crate) format: Format,
    pub(crate) file: File,
    destination: Destination,
    /// The file at `path`, if it only holds the place until there is content.
    placeholder: Option<(u64, u64)>,
}

impl OpenOutput {
    /// Creates a file under a name that must be free, marked as being written: empty and without a
    /// mark it would look like one of mktemp(1)'s to another torchspy.
    pub(super) fn create(path: PathBuf, format: Format) -> Result<Self, (PathBuf, io::Error)> {
        match create_exclusively(&path, format) {
            Ok(file) => {
                file_lock::hold(&file);
                Ok(Self {
                    path,
                    format,
                    file,
                    destination: Destination::Named,
                    placeholder: None,
                })
            }
            Err(error) => Err((path, error)),
        }
    }
}

/// What an output is while it is written.
#[derive(Debug)]
enum Destination {
    /// A new file under its own name, to be removed on failure.
    Named,
    /// A file under another name in the same folder, until it replaces the one that is there.
    Beside(PathBuf),
    /// A pipe, a terminal or a device, which was there before and stays.
    Special,
}

impl OpenOutput {
    /// Marks a file as being written: another torchspy does not replace it meanwhile. A stream of
    /// torchspy's own is also the launched program's, which would keep the mark.
    pub(super) fn mark(&self) {
        if !matches!(self.destination, Destination::Special) {
            file_lock::hold(&self.file);
        }
    }

    /// Renames a file that was written under another name.
    pub(crate) fn keep(&self) -> Result<(), Failure> {
        match &self.destination {
            Destination::Beside(name) if name.exists() => {
                let renamed = std::fs::rename(name, &self.path);
                renamed.map_err(|error| cannot_write(&self.path, error))
            }
            _ => Ok(()),
        }
    }

    /// Removes a file that was created; one that was there before stays.
    pub(crate) fn remove_if_created(&self) {
        let name = match &self.destination {
            Destination::Named => &self.path,
            Destination::Beside(name) => name,
            Destination::Special => return,
        };
        let remove = |path: &Path, own: Option<(u64, u64)>| {
            if own.is_some() && identity_at(path) == own {
                let _ = std::fs::remove_file(path);
            }
        };
        remove(name, identity(&self.file));
        remove(&self.path, self.placeholder);
    }
}

/// A file that is to replace an output.
#[derive(Debug)]
pub(crate) struct Replacement {
    name: PathBuf,
    pub(crate) file: File,
}

impl Replacement {
    pub(crate) fn discard(self) {
        let _ = std::fs::remove_file(&self.name);
    }
}

impl OpenOutput {
    /// A new file in the same folder, for [`OpenOutput::replace`].
    pub(crate) fn replacement(&self) -> Result<Replacement, Failure> {
        if matches!(self.destination, Destination::Special) {
            return Err(cannot_write(&self.path, io::ErrorKind::Unsupported.into())
                .hint("it is a pipe or a device: give a file, or leave out --snapshot"));
        }
        let created = create_beside(&self.path, self.format);
        let (name, file) = created.map_err(|error| cannot_write(&self.path, error))?;
        file_lock::hold(&file);
        Ok(Replacement { name, file })
    }

    /// Replaces the output by a complete file, in one step for readers.
    pub(crate) fn replace(&mut self, new: Replacement) -> Result<(), Failure> {
        let renamed = self.check_own().and_then(|()| {
            let renamed = std::fs::rename(&new.name, &self.path);
            renamed.map_err(|error| cannot_write(&self.path, error))
        });
        if let Err(failure) = renamed {
            new.discard();
            return Err(failure);
        }
        if let Destination::Beside(name) = &self.destination {
            let _ = std::fs::remove_file(name);
        }
        self.file = new.file;
        self.destination = Destination::Named;
        self.placeholder = None;
        Ok(())
    }

    /// Puts `text` in the output's place, until there is content. Not into a pipe or a device, and
    /// not over a file that was there: it stays until there is content to replace it. Where there
    /// is no room for the text, the file stays empty.
    pub(crate) fn hold_place(&mut self, text: &str) {
        if !matches!(self.destination, Destination::Named) {
            return;
        }
        // What is written next begins at the file's start.
        match self.file.write_all_at(text.as_bytes(), 0) {
            Ok(()) => self.placeholder = identity(&self.file),
            Err(_) => drop(self.file.set_len(0)),
        }
    }

    /// Whether nothing was written but what holds the place.
    pub(crate) fn is_placeholder(&self) -> bool {
        self.placeholder.is_some()
    }

    /// Where there is content already, what is written next goes into a new file, which replaces it
    /// when it is kept.
    pub(crate) fn begin_again(&mut self) -> Result<(), Failure> {
        if !self.file.metadata().is_ok_and(|data| data.len() > 0) {
            return Ok(());
        }
        self.check_own()?;
        let new = self.replacement()?;
        self.file = new.file;
        self.destination = Destination::Beside(new.name);
        Ok(())
    }

    /// An error if a file of somebody else's has taken the output's name.
    fn check_own(&self) -> Result<(), Failure> {
        let is_own = match (&self.destination, self.path.symlink_metadata()) {
            (Destination::Named, Ok(_)) => identity_at(&self.path) == identity(&self.file),
            _ => true,
        };
        match is_own {
            true => Ok(()),
            false => Err(Failure::message(format!(
                "{} was replaced by another file, which stays",
                self.path.display()
            ))
            .hint("torchspy convert makes the page from the recording")),
        }
    }
}

/// Device and inode of a regular file.
pub(super) fn identity(file: &File) -> Option<(u64, u64)> {
    let data = file.metadata().ok()?;
    data.is_file().then(|| (data.dev(), data.ino()))
}

/// The same of the file at `path`, which may not be a link to one.
pub(super) fn identity_at(path: &Path) -> Option<(u64, u64)> {
    let data = path.symlink_metadata().ok()?;
    data.is_file().then(|| (data.dev(), data.ino()))
}

/// Opens a file that the user named. With `force` an existing one is replaced, by
/// [`OpenOutput::keep`]. Nothing is ever written into an existing file, nor through a link: whoever
/// else can write to the folder may have put it there.
pub(crate) fn open_named(output: &OutputFile, force: bool) -> Result<OpenOutput, Failure> {
    let OutputFile { path, format, .. } = output;
    if Address::is_meant_by(path) {
        return Err(Failure::usage(
            format!("{}: only record writes to object storage", path.display()),
            "give a file, and copy it: aws s3 cp FILE s3://BUCKET/KEY",
        ));
    }
    let (file, destination) = match create_exclusively(path, *format) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            open_existing(path, *format, force)?
        }
        result => (
            result.map_err(|error| cannot_write(path, error))?,
            Destination::Named,
        ),
    };
    let needs_file = match format {
        Format::Recording => Some("a recording is read back at its end"),
        Format::Parquet | Format::ParquetStacks => Some("Parquet is two files with names"),
        _ => None,
    };
    if let (Some(reason), Destination::Special) = (needs_file, &destination) {
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
        destination,
        placeholder: None,
    })
}

fn open_existing(path: &Path, format: Format, force: bool) -> Result<(File, Destination), Failure> {
    let failed = |error| cannot_write(path, error);
    if let Some(file) = own_stream(path).map_err(failed)? {
        return Ok((file, Destination::Special));
    }
    let data = path.symlink_metadata().map_err(failed)?;
    let kind = data.file_type();
    if kind.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    if kind.is_fifo() || kind.is_char_device() || kind.is_socket() {
        let file = open_special(path).map_err(failed)?;
        // Checked again after opening: no regular file or link has replaced it since.
        let is_regular = file.metadata().map_err(failed)?.is_file();
        return match is_regular {
            true => Err(exists(path)),
            false => Ok((file, Destination::Special)),
        };
    }
    if kind.is_file() && File::open(path).is_ok_and(|file| file_lock::is_held(&file)) {
        return Err(Failure::message(format!(
            "{} is an output of a torchspy that records",
            path.display()
        ))
        .hint("give another name, or wait until that has ended"));
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
    Ok((file, Destination::Beside(name)))
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

/// Creates the first of `names`, which are numbered from 1, that is not taken. Returns the last
/// path that was tried.
fn create_first(names: impl Fn(u32) -> PathBuf, format: Format) -> (PathBuf, io::Result<File>) {
    let mut number = 1;
    loop {
        let path = names(number);
        match create_exclusively(&path, format) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < MAX_NAMES => {
                number += 1;
            }
            file => return (path, file),
        }
    }
}

/// Creates a file in the folder of `path`, to be renamed to it.
fn create_beside(path: &Path, format: Format) -> io::Result<(PathBuf, File)> {
    let own = std::process::id();
    /// Characters, of up to four bytes: with what is added, less than the 255 bytes of a name
    /// (NAME_MAX, limits.h).
    const MOST: usize = 50;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name: String = name.chars().take(MOST).collect();
    let names = |number| path.with_file_name(format!(".{name}.{own}-{number}"));
    let (path, file) = create_first(names, format);
    Ok((path, file?))
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
    let names = |number| match number {
        1 => PathBuf::from(format!("{base}.{extension}")),
        _ => PathBuf::from(format!("{base}-{number}.{extension}")),
    };
    create_first(names, format)
}

/// A recording without a name: the kernel removes it when it is closed, however torchspy ends.
pub(super) fn open_scratch() -> io::Result<File> {
    let own = std::process::id();
    let folder = std::env::temp_dir();
    let names = |number| folder.join(format!("torchspy-{own}-{number}.tspy"));
    let (path, file) = create_first(names, Format::Recording);
    let file = file?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// A file that cannot be written, with the hint for its reason.
pub(crate) fn cannot_write(path: &Path, error: io::Error) -> Failure {
    let hint = hints::of_output_error(&error);
    let context = format!("cannot write {}", path.display());
    Failure::new(anyhow::Error::new(error).context(context)).maybe_hint(hint)
}

/// Writes a file that the user named, or leaves what was there.
pub(crate) fn write_named(output: &OutputFile, force: bool, bytes: &[u8]) -> Result<(), Failure> {
    write_together([(output, bytes)], force)
}

/// Writes all of these files, or leaves what was there of each. They are renamed one by one at the
/// end: if that fails for one, those before it are replaced.
pub(crate) fn write_together<'f>(
    files: impl IntoIterator<Item = (&'f OutputFile, &'f [u8])>,
    force: bool,
) -> Result<(), Failure> {
    let mut opened: Vec<OpenOutput> = Vec::new();
    let written = files.into_iter().try_for_each(|(output, bytes)| {
        let output = open_named(output, force)?;
        let written = (&output.file).write_all(bytes);
        let written = written.map_err(|error| cannot_write(&output.path, error));
        opened.push(output);
        written
    });
    if written.is_err() {
        opened.iter().for_each(OpenOutput::remove_if_created);
    }
    written?;
    opened.iter().try_for_each(OpenOutput::keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn recording(path: &Path) -> OutputFile {
        OutputFile::new(path.to_owned(), Format::Recording)
    }

    #[test]
    fn what_is_there_is_replaced_if_that_is_asked_for_and_never_written_into() {
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
            let wanted = OutputFile::new(path.to_owned(), Format::Flamegraph);
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
