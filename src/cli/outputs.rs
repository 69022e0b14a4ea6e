//! The seam between the command line and the libraries that write, read, resolve and render. One function each.
//!
//! TEMPORARY: the module `pending` stands for parts that are not built yet. To integrate: delete it and fill in the bodies
//! that call it.

use super::plan::{Drawing, Format};
use crate::model::profile::Profile;
use crate::model::run::RunInfo;
use crate::model::segment::Segment;
use crate::sampling::session::SegmentSink;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use pending::RecordingWriter;
pub(crate) use pending::{NameParts, base_name};

/// What a summary lists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SummaryOptions {
    /// Functions and lines.
    pub(crate) top: usize,
    /// Computation versus other, as itwinai defines them.
    pub(crate) itwinai: bool,
}

impl Default for SummaryOptions {
    fn default() -> Self {
        Self {
            top: 10,
            itwinai: false,
        }
    }
}

/// The recording that a session writes into; kept to be finished when the session has ended.
#[derive(Clone)]
pub(crate) struct RecordingSink {
    writer: Arc<Mutex<Option<RecordingWriter>>>,
}

impl RecordingSink {
    /// Writes the head of the recording into an open, empty file.
    pub(crate) fn start(file: File, run: &RunInfo) -> Result<Self> {
        let writer = RecordingWriter::from_file(file, run)?;
        Ok(Self {
            writer: Arc::new(Mutex::new(Some(writer))),
        })
    }

    /// Ends the recording: what was written has reached the disk, or the error says that it has not.
    pub(crate) fn finish(&self) -> Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(writer) = writer.take() {
            writer.finish()?;
        }
        Ok(())
    }
}

impl SegmentSink for RecordingSink {
    fn write(&mut self, segment: &Segment) -> io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        match writer.as_mut() {
            Some(writer) => writer.write_segment(segment).map_err(io::Error::other),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

/// Reads and resolves a recording.
pub(crate) fn read_profile(path: &Path, shown: &str) -> Result<Profile> {
    pending::profile(path).with_context(|| format!("cannot open {shown}"))
}

/// Writes a profile in a format.
pub(crate) fn render(
    profile: &Profile,
    format: Format,
    drawing: &Drawing,
    out: &mut dyn Write,
) -> Result<()> {
    match format {
        Format::Flamegraph => pending::flamegraph(
            profile,
            drawing.plumbing,
            drawing.idle,
            drawing.threads.as_ref(),
            out,
        ),
        Format::Speedscope => pending::speedscope(profile, drawing.threads.as_ref(), out),
        Format::Folded => pending::folded(profile, drawing.threads.as_ref(), out),
        Format::Json => json(profile, out),
        Format::Text => summary(profile, SummaryOptions::default(), out),
        Format::Recording => Err(anyhow::anyhow!("a recording is not rendered")),
    }
}

/// Writes the summary for machines.
pub(crate) fn json(profile: &Profile, out: &mut dyn Write) -> Result<()> {
    pending::json(profile, out)
}

/// Writes the summary for people.
pub(crate) fn summary(
    profile: &Profile,
    options: SummaryOptions,
    out: &mut dyn Write,
) -> Result<()> {
    pending::text(profile, options.top, options.itwinai, out)
}

/// Writes what a recording holds.
pub(crate) fn inspect(path: &Path, samples: bool, out: &mut dyn Write) -> Result<()> {
    pending::inspect(path, samples, out).with_context(|| format!("cannot open {}", path.display()))
}

/// TEMPORARY stand-ins, with the interfaces that are agreed on.
mod pending {
    use crate::model::profile::Profile;
    use crate::model::run::RunInfo;
    use crate::model::segment::Segment;
    use anyhow::{Result, bail};
    use regex::Regex;
    use std::fs::File;
    use std::io::{self, Write};
    use std::path::Path;

    /// For `report::naming`.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct NameParts<'a> {
        pub(crate) command: &'a [String],
        pub(crate) host: &'a str,
        pub(crate) rank: Option<u32>,
        pub(crate) pid: i32,
        pub(crate) started_wall_ns: u64,
    }

    /// For `report::naming`.
    pub(crate) fn base_name(parts: &NameParts<'_>) -> String {
        let script = parts
            .command
            .iter()
            .find_map(|word| word.strip_suffix(".py"));
        let script = script
            .or(parts.command.first().map(String::as_str))
            .unwrap_or("");
        let script = script.rsplit('/').next().unwrap_or("");
        let rank = parts
            .rank
            .map_or(String::new(), |rank| format!("-rank{rank}"));
        let time = crate::os::host::utc_stamp(parts.started_wall_ns);
        format!(
            "torchspy-{script}-{}{rank}-{}-{time}",
            parts.host, parts.pid
        )
    }

    /// For `recording::writer`: one line for the head, one for each segment.
    pub(super) struct RecordingWriter(File);

    impl RecordingWriter {
        pub(super) fn from_file(mut file: File, run: &RunInfo) -> io::Result<Self> {
            writeln!(file, "torchspy placeholder: {}", run.command.join(" "))?;
            Ok(Self(file))
        }

        pub(super) fn write_segment(&mut self, segment: &Segment) -> io::Result<()> {
            writeln!(self.0, "segment {} last {}", segment.index, segment.last)
        }

        pub(super) fn finish(self) -> io::Result<()> {
            match self.0.sync_data() {
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
                result => result,
            }
        }
    }

    /// For `recording::reader` and `resolve`.
    pub(super) fn profile(path: &Path) -> Result<Profile> {
        File::open(path)?;
        Ok(Profile::default())
    }

    /// For `recording::text`.
    pub(super) fn inspect(path: &Path, _samples: bool, _out: &mut dyn Write) -> Result<()> {
        File::open(path)?;
        bail!("inspect is not built yet")
    }

    /// For `report::text`.
    pub(super) fn text(
        _: &Profile,
        _top: usize,
        _itwinai: bool,
        _out: &mut dyn Write,
    ) -> Result<()> {
        bail!("the summary is not built yet")
    }

    /// For `report::json`.
    pub(super) fn json(_: &Profile, _out: &mut dyn Write) -> Result<()> {
        bail!("JSON is not built yet")
    }

    /// For `report::flamegraph`.
    pub(super) fn flamegraph(
        _: &Profile,
        _plumbing: bool,
        _idle: bool,
        _: Option<&Regex>,
        _out: &mut dyn Write,
    ) -> Result<()> {
        bail!("flamegraphs are not built yet")
    }

    /// For `report::speedscope`.
    pub(super) fn speedscope(_: &Profile, _: Option<&Regex>, _out: &mut dyn Write) -> Result<()> {
        bail!("speedscope files are not built yet")
    }

    /// For `report::folded`.
    pub(super) fn folded(_: &Profile, _: Option<&Regex>, _out: &mut dyn Write) -> Result<()> {
        bail!("folded stacks are not built yet")
    }
}
