//! The files that a command has to write.

use super::failure::Failure;
use super::formats::{self, Format};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// A file to write, and its format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputFile {
    pub(crate) path: PathBuf,
    pub(crate) format: Format,
    /// Its name is made of facts about the process: where the name is taken, a number is added.
    pub(crate) is_numbered: bool,
}

impl OutputFile {
    /// A file with this name alone.
    pub(crate) fn new(path: PathBuf, format: Format) -> Self {
        Self {
            path,
            format,
            is_numbered: false,
        }
    }

    /// Its path and format, and those of its companion file.
    pub(crate) fn with_stacks(path: PathBuf, format: Format) -> Vec<Self> {
        let stacks = format
            .stacks()
            .map(|format| Self::new(path.with_extension(format.extension()), format));
        let first = Self::new(path, format);
        std::iter::once(first).chain(stacks).collect()
    }

    /// The same file under the name with this number: `run-2.speedscope.json`.
    pub(super) fn numbered(&self, number: u32) -> Self {
        if number == 1 || !self.is_numbered {
            return self.clone();
        }
        let name = self.path.file_name().unwrap_or_default().as_bytes();
        let extension = format!(".{}", self.format.extension());
        // Another extension than the format's: --format.
        let end = match name.strip_suffix(extension.as_bytes()) {
            Some(stem) => stem.len(),
            None => self.path.file_stem().unwrap_or_default().len(),
        };
        let (stem, rest) = name.split_at(end);
        let name = [stem, format!("-{number}").as_bytes(), rest].concat();
        Self {
            path: self.path.with_file_name(OsStr::from_bytes(&name)),
            ..*self
        }
    }
}

pub(super) fn parse_outputs(paths: Vec<PathBuf>) -> Result<Vec<OutputFile>, Failure> {
    let mut outputs: Vec<OutputFile> = Vec::new();
    for path in paths {
        let format = Format::of_path(&path)?;
        if outputs.iter().any(|known| known.path == path) {
            return Err(Failure::usage(
                format!("{} is given twice", path.display()),
                "give each output once",
            ));
        }
        let is_second_recording = |known: &OutputFile| known.format == Format::Recording;
        if format == Format::Recording && outputs.iter().any(is_second_recording) {
            return Err(Failure::usage(
                "more than one recording is asked for",
                "give one .tspy file; cp copies it",
            ));
        }
        outputs.extend(OutputFile::with_stacks(path, format));
    }
    Ok(outputs)
}

/// The named output of a format, and its companion file.
pub(super) fn named_output(
    paths: Vec<PathBuf>,
    format: Format,
) -> Result<Vec<OutputFile>, Failure> {
    if paths.len() > 1 {
        return Err(Failure::usage(
            "--format names the format of one output, and there are more",
            format!(
                "leave it out: the format goes by the extension: {}",
                formats::extensions(Format::asked_for())
            ),
        ));
    }
    let path = paths.into_iter().next();
    Ok(path.map_or(Vec::new(), |path| OutputFile::with_stacks(path, format)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_before_the_extension() {
        for (path, format, expected) in [
            ("a/0.tspy", Format::Recording, "a/0-3.tspy"),
            (
                "0.speedscope.json",
                Format::Speedscope,
                "0-3.speedscope.json",
            ),
            (
                "0.stacks.parquet",
                Format::ParquetStacks,
                "0-3.stacks.parquet",
            ),
            ("a.b/0.data", Format::Flamegraph, "a.b/0-3.data"),
            ("0", Format::Flamegraph, "0-3"),
        ] {
            let output = OutputFile {
                is_numbered: true,
                ..OutputFile::new(path.into(), format)
            };
            assert_eq!(output.numbered(3).path, PathBuf::from(expected));
            assert_eq!(output.numbered(1), output);
        }
    }
}
