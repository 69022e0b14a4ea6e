//! Output files, opened before anything is started, so that a folder that cannot be made is an
//! error at the start and not after a day of recording.

use super::failure::Failure;
use super::formats::Format;
use super::objects::address::Address;
use super::output_file::{
    MAX_NAMES, OpenOutput, cannot_write, identity, identity_at, open_named, open_scratch,
};
use super::output_names::OutputFile;
use super::outputs::{self, NameParts};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct OpenOutputs {
    outputs: Vec<OpenOutput>,
    /// A recording without a name, if none was requested: the other outputs are rendered from it.
    scratch: Option<File>,
}

/// Why an output was not opened.
enum NotOpened {
    /// Its name is taken, and it may have another.
    Taken,
    Failed(Failure),
}

impl OpenOutputs {
    /// Opens the requested files, in folders that are made, or a recording and a file of the format
    /// `beside` in `folder`, with names made of `parts`.
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
        let mut made = Vec::new();
        let opened =
            make_folders(wanted, &mut made).and_then(|()| Self::open_numbered(wanted, force));
        if opened.is_err() {
            // Only empty ones go.
            made.iter()
                .for_each(|folder| drop(std::fs::remove_dir(folder)));
        }
        let mut opened = opened?;
        opened.mark();
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

    /// Opens the requested files. Those whose names are made of facts get the first number that is
    /// free for all of them: others of the same job may take names at the same time.
    fn open_numbered(wanted: &[OutputFile], force: bool) -> Result<Self, Failure> {
        for number in 1..=MAX_NAMES {
            let mut opened = Self {
                outputs: Vec::new(),
                scratch: None,
            };
            let result = wanted.iter().try_for_each(|output| {
                let output = opened.open_one(&output.numbered(number), force)?;
                opened.outputs.push(output);
                Ok(())
            });
            match result {
                Ok(()) => return Ok(opened),
                Err(why) => opened.discard_for(why)?,
            }
        }
        let name = wanted.iter().find(|output| output.is_numbered);
        let name = name.map_or(Path::new(""), |output| &output.path);
        Err(Failure::message(format!(
            "{} and {MAX_NAMES} names like it are taken",
            name.display()
        ))
        .hint("tell ranks apart by their names: {rank}, or {host} and {pid}"))
    }

    fn open_one(&self, output: &OutputFile, force: bool) -> Result<OpenOutput, NotOpened> {
        if self.has(&output.path) {
            return Err(NotOpened::Failed(Failure::usage(
                format!(
                    "{} is the same file as another output",
                    output.path.display()
                ),
                "give each output a file of its own",
            )));
        }
        if force || !output.is_numbered {
            return open_named(output, force).map_err(NotOpened::Failed);
        }
        OpenOutput::create(output.path.clone(), output.format).map_err(|(path, error)| match error
            .kind()
        {
            io::ErrorKind::AlreadyExists => NotOpened::Taken,
            _ => NotOpened::Failed(cannot_write(&path, error)),
        })
    }

    /// Removes what was opened before something else was not. An error if no other name can help.
    fn discard_for(self, why: NotOpened) -> Result<(), Failure> {
        self.discard();
        match why {
            NotOpened::Taken => Ok(()),
            NotOpened::Failed(failure) => Err(failure),
        }
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
            let mut wanted = wanted.into_iter().flatten();
            let result: Result<(), (PathBuf, io::Error)> = wanted.try_for_each(|(name, format)| {
                let output = OpenOutput::create(folder.join(name), format)?;
                opened.outputs.push(output);
                Ok(())
            });
            match result {
                Ok(()) => {
                    opened.mark();
                    return Ok(opened);
                }
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

    /// Marks the files as being written: another torchspy does not replace them meanwhile.
    fn mark(&self) {
        self.outputs.iter().for_each(OpenOutput::mark);
    }

    /// The file to record into, to be written once.
    pub(crate) fn recording(&self) -> io::Result<File> {
        match (self.named_recording(), &self.scratch) {
            (Some(output), _) => output.file.try_clone(),
            (None, Some(file)) => file.try_clone(),
            (None, None) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Gives the recording its name, which replaces an existing file: it is found there however
    /// torchspy ends.
    pub(crate) fn keep_recording(&self) -> Result<(), Failure> {
        self.named_recording().map_or(Ok(()), OpenOutput::keep)
    }

    /// Where the recording can be read back: through its descriptor (proc_pid_fd(5)), since its
    /// name, if it has one, may be that of another file by then.
    pub(crate) fn recording_path(&self) -> PathBuf {
        let of = |file: &File| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        match (self.named_recording(), &self.scratch) {
            (Some(output), _) if identity(&output.file).is_none() => output.path.clone(),
            (Some(output), _) => of(&output.file),
            (None, Some(file)) => of(file),
            (None, None) => PathBuf::new(),
        }
    }

    /// An error where the recording is no longer found by its name. One that has no name at all any
    /// more is written again, under a free one.
    pub(crate) fn check_recording_name(&self) -> Result<(), Failure> {
        let Some(output) = self.named_recording() else {
            return Ok(());
        };
        let own = identity(&output.file);
        if own.is_none() || own == identity_at(&output.path) {
            return Ok(());
        }
        let shown = output.path.display();
        if output.file.metadata().is_ok_and(|data| data.nlink() > 0) {
            return Err(
                Failure::message(format!("{shown} was moved or replaced while recording"))
                    .hint("the recording is where it was moved to; the other outputs are of it"),
            );
        }
        let saved = self.save_again(&output.path);
        let saved = saved.map_err(|error| {
            Failure::new(error.context(format!("{shown} was removed while recording, and is lost")))
                .hint("the other outputs are of it")
        })?;
        Err(
            Failure::message(format!("{shown} was removed while recording"))
                .hint(format!("it was written again: {}", saved.display())),
        )
    }

    /// Copies the recording to a free name beside `path`.
    fn save_again(&self, path: &Path) -> anyhow::Result<PathBuf> {
        let mut recording = File::open(self.recording_path())?;
        let extension = Format::Recording.extension();
        for number in 1..=MAX_NAMES {
            let name = match number {
                1 => path.to_owned(),
                _ => path.with_extension(format!("{number}.{extension}")),
            };
            match OpenOutput::create(name, Format::Recording) {
                Ok(mut saved) => {
                    io::copy(&mut recording, &mut saved.file)?;
                    return Ok(saved.path);
                }
                Err((_, error)) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err((_, error)) => return Err(error.into()),
            }
        }
        anyhow::bail!("all names like it are taken")
    }

    /// The first of the requested files that got another name, and that name.
    pub(crate) fn renamed<'o>(&'o self, wanted: &'o [OutputFile]) -> Option<(&'o Path, &'o Path)> {
        let paths = wanted.iter().zip(&self.outputs);
        let mut paths = paths.map(|(wanted, output)| (&*wanted.path, &*output.path));
        paths.find(|(wanted, output)| wanted != output)
    }

    /// The path of the recording that was asked for.
    pub(crate) fn named_recording(&self) -> Option<&OpenOutput> {
        self.outputs
            .iter()
            .find(|output| output.format == Format::Recording)
    }

    /// The page, the first if there are several.
    pub(crate) fn page(&mut self) -> Option<&mut OpenOutput> {
        let mut outputs = self.outputs.iter_mut();
        outputs.find(|output| output.format == Format::Page)
    }

    /// Puts a text in the place of each page that is not there yet, until it is.
    pub(crate) fn hold_pages(&mut self, text: impl Fn(&Path) -> String) {
        for output in &mut self.outputs {
            if output.format == Format::Page {
                output.hold_place(&text(&output.path));
            }
        }
    }

    /// Lets the last pages replace what is in their places, once they are complete. Returns an
    /// error for each that has lost its place: it is not written.
    pub(crate) fn begin_pages_again(&mut self) -> Vec<Failure> {
        let mut lost = Vec::new();
        self.outputs.retain_mut(|output| match output.format {
            Format::Page => output
                .begin_again()
                .map_err(|error| lost.push(error))
                .is_ok(),
            _ => true,
        });
        lost
    }

    /// Removes what holds the place of pages that will not be written.
    pub(crate) fn remove_placeholders(&self) {
        let outputs = self.outputs.iter();
        let held = outputs.filter(|output| output.is_placeholder());
        held.for_each(OpenOutput::remove_if_created);
    }

    /// The outputs that are made from the recording.
    pub(crate) fn rendered(&self) -> impl Iterator<Item = &OpenOutput> {
        self.outputs
            .iter()
            .filter(|output| output.format != Format::Recording)
    }

    /// Removes the files that were created, which are empty.
    pub(crate) fn discard(self) {
        self.outputs.iter().for_each(OpenOutput::remove_if_created);
    }

    /// Paths of the outputs that are not empty.
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

/// Makes the folders of files, and adds those of plain names that were not there to `made`, the
/// deepest first. Another rank may be about to write into those whose names are made of facts.
fn make_folders(wanted: &[OutputFile], made: &mut Vec<PathBuf>) -> Result<(), Failure> {
    for output in wanted {
        // An address is refused when it is opened.
        let Some(folder) = output.path.parent() else {
            continue;
        };
        if Address::is_meant_by(&output.path) {
            continue;
        }
        if !output.is_numbered {
            let missing = folder
                .ancestors()
                .filter(|each| !each.as_os_str().is_empty());
            let missing = missing.take_while(|each| !each.exists());
            made.extend(missing.map(Path::to_owned));
        }
        std::fs::create_dir_all(folder).map_err(|error| {
            let context = format!("cannot make the folder {}", folder.display());
            Failure::new(anyhow::Error::new(error).context(context))
                .hint("choose one in a folder that can be written: -o FOLDER/run.tspy")
        })?;
    }
    Ok(())
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
        let output = |name: &str| OutputFile::new(folder.path().join(name), Format::Folded);
        std::fs::write(folder.path().join("old.folded"), "old").unwrap();
        let wanted = [
            output("new.folded"),
            output("old.folded"),
            output("old.folded/no/where.folded"),
        ];
        let failure = OpenOutputs::open(&wanted, Format::Flamegraph, true, folder.path(), &PARTS)
            .unwrap_err();
        let error = format!("{:#}", failure.error);
        assert!(error.starts_with("cannot make the folder"), "{error}");
        assert!(failure.hint.is_some());
        assert_eq!(names(folder.path()), ["old.folded"]);
    }

    #[test]
    fn one_file_under_two_names_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.svg"), "").unwrap();
        std::fs::hard_link(folder.path().join("a.svg"), folder.path().join("b.svg")).unwrap();
        let wanted = ["a.svg", "b.svg"]
            .map(|name| OutputFile::new(folder.path().join(name), Format::Flamegraph));
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
        let wanted = [OutputFile::new(
            folder.path().join("a.svg"),
            Format::Flamegraph,
        )];
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
}
