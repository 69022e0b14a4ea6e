//! The files that a command has to write.

use super::failure::Failure;
use super::formats::{self, Format};
use std::path::PathBuf;

/// A file to write, and its format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputFile {
    pub(crate) path: PathBuf,
    pub(crate) format: Format,
}

impl OutputFile {
    /// Its path and format, and those of its companion file.
    pub(crate) fn with_stacks(path: PathBuf, format: Format) -> Vec<Self> {
        let stacks = format.stacks().map(|format| Self {
            path: path.with_extension(format.extension()),
            format,
        });
        let first = Self { path, format };
        std::iter::once(first).chain(stacks).collect()
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
