//! Formats of files, by extension and by name; and the files that a command is to write.

use super::args::FormatName;
use super::failure::Failure;
use std::path::{Path, PathBuf};

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Format {
    Recording,
    Flamegraph,
    Speedscope,
    Folded,
    Json,
    Text,
    /// Counter tracks of GPUs and host.
    Csv,
    /// Code and counter tracks for Perfetto's viewer.
    Perfetto,
    Parquet,
    /// The stacks of those rows, in a file of their own.
    ParquetStacks,
}

/// Formats by extension, as messages list them.
const EXTENSIONS: [(&str, Format); 9] = [
    (".tspy", Format::Recording),
    (".svg", Format::Flamegraph),
    (".speedscope.json", Format::Speedscope),
    (".folded", Format::Folded),
    (".json", Format::Json),
    (".txt", Format::Text),
    (".csv", Format::Csv),
    (".parquet", Format::Parquet),
    (".perfetto-trace", Format::Perfetto),
];

/// The extensions of all formats that `is_one` accepts.
pub(super) fn extensions(is_one: impl Fn(Format) -> bool) -> String {
    let wanted = EXTENSIONS.iter().filter(|(_, format)| is_one(*format));
    let names: Vec<&str> = wanted.map(|(extension, _)| *extension).collect();
    names.join(" ")
}

fn all_extensions() -> String {
    extensions(|_| true)
}

impl Format {
    pub(super) fn named(name: FormatName) -> Result<Self, Failure> {
        Ok(match name {
            FormatName::Svg => Format::Flamegraph,
            FormatName::Speedscope => Format::Speedscope,
            FormatName::Folded | FormatName::Raw => Format::Folded,
            FormatName::Json => Format::Json,
            FormatName::Text => Format::Text,
            FormatName::Csv => Format::Csv,
            FormatName::Perfetto => Format::Perfetto,
            FormatName::Parquet => Format::Parquet,
            FormatName::Chrometrace => {
                return Err(Failure::usage(
                    "torchspy writes no traces of Chrome's older kind",
                    "Perfetto's viewer, ui.perfetto.dev, replaces it: -o profile.perfetto-trace",
                ));
            }
        })
    }

    /// The extension, without its dot.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Format::ParquetStacks => "stacks.parquet",
            _ => EXTENSIONS
                .iter()
                .find(|(_, format)| *format == self)
                .map_or("", |(extension, _)| &extension[1..]),
        }
    }

    /// The format of the file that is written along with one of this format.
    pub(crate) fn stacks(self) -> Option<Self> {
        (self == Format::Parquet).then_some(Format::ParquetStacks)
    }

    /// Whether stacks are drawn in it.
    pub(super) fn is_drawing(self) -> bool {
        matches!(
            self,
            Format::Flamegraph | Format::Speedscope | Format::Folded | Format::Perfetto
        )
    }

    /// The format that a file's name asks for.
    pub(crate) fn of_path(path: &Path) -> Result<Self, Failure> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let matching = EXTENSIONS
            .iter()
            .filter(|(extension, _)| name.ends_with(extension));
        // `.speedscope.json` is also a `.json`.
        let longest = matching.max_by_key(|(extension, _)| extension.len());
        longest.map(|&(_, format)| format).ok_or_else(|| {
            Failure::usage(
                format!("{}: its extension names no format", path.display()),
                format!(
                    "the format goes by the extension: {}; or name it: --format svg",
                    all_extensions()
                ),
            )
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputFile {
    pub(crate) path: PathBuf,
    pub(crate) format: Format,
}

impl OutputFile {
    /// Its path and format, and those of the file that goes with it.
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

/// The one output of a format that is named, and what goes with it.
pub(super) fn named_output(
    paths: Vec<PathBuf>,
    format: Format,
) -> Result<Vec<OutputFile>, Failure> {
    if paths.len() > 1 {
        return Err(Failure::usage(
            "--format names the format of one output, and there are more",
            format!(
                "leave it out: the format goes by the extension: {}",
                all_extensions()
            ),
        ));
    }
    let path = paths.into_iter().next();
    Ok(path.map_or(Vec::new(), |path| OutputFile::with_stacks(path, format)))
}
