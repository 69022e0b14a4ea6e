//! The files that are written while a program is watched: recordings, and drawings of the last
//! minute.

use super::live_sink::LiveSink;
use crate::cli::failure::Failure;
use crate::cli::formats::Format;
use crate::cli::output_file::create_numbered;
use crate::cli::outputs::{self, NameParts, RecordingSink, base_name};
use crate::cli::plan::Drawing;
use crate::model::run::RunInfo;
use crate::os::clock::{monotonic_ns, wall_ns};
use crate::recording::Recording;
use crate::torch::rules::RuleSet;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// The files of one session. The result of each is shown at once, and printed again when the
/// terminal is given back.
pub(super) struct TopFiles {
    sink: LiveSink,
    rank: Option<u32>,
    /// A recording is under way into this file.
    recording: Option<String>,
    /// Flamegraphs under way; each sends its result to `results`.
    drawings: Vec<JoinHandle<()>>,
    results: (Sender<String>, Receiver<String>),
    farewell: Vec<String>,
    has_failed: bool,
    rules: &'static RuleSet,
}

impl TopFiles {
    /// Records from `sink`; files are named after `rank`, where there is one.
    pub(super) fn new(sink: LiveSink, rank: Option<u32>, rules: &'static RuleSet) -> Self {
        Self {
            sink,
            rank,
            recording: None,
            drawings: Vec::new(),
            results: unbounded(),
            farewell: Vec::new(),
            has_failed: false,
            rules,
        }
    }

    /// The file that is recorded into.
    pub(super) fn recording(&self) -> Option<&String> {
        self.recording.as_ref()
    }

    /// A result that has come in since the last call.
    pub(super) fn news(&mut self) -> Option<String> {
        if let Some(error) = self.sink.recording_error() {
            let path = self.recording.take().unwrap_or_default();
            return Some(self.failed(format!("{path} has ended early: {error}")));
        }
        let text = self.results.1.try_recv().ok()?;
        self.farewell.push(text.clone());
        Some(text)
    }

    /// Begins a recording, or ends the one under way; returns a message to show.
    pub(super) fn toggle_recording(&mut self, run: &RunInfo) -> Option<String> {
        if let Some(path) = self.recording.take() {
            return Some(match self.sink.end_recording() {
                Ok(()) => {
                    let text = format!("wrote {path}");
                    self.farewell.push(text.clone());
                    text
                }
                Err(error) => self.failed(format!("{path} is incomplete: {error}")),
            });
        }
        let (path, file) = self.create(run, "tspy", Format::Recording);
        let run = RunInfo {
            started_ns: monotonic_ns(),
            started_wall_ns: wall_ns(),
            ..run.clone()
        };
        let sink = file
            .map_err(anyhow::Error::from)
            .and_then(|file| RecordingSink::start(file, &run).inspect_err(|_| forget_empty(&path)));
        match sink {
            Ok(sink) => {
                // No other one is under way that could fail.
                let _ = self.sink.record(sink);
                self.recording = Some(path.display().to_string());
                None
            }
            Err(error) => {
                Some(self.failed(format!("cannot record into {}: {error}", path.display())))
            }
        }
    }

    /// Begins to draw the flamegraph of `recording`; returns a message to show.
    pub(super) fn draw(&mut self, recording: Recording, run: &RunInfo) -> String {
        let (path, file) = self.create(run, "svg", Format::Flamegraph);
        let sender = self.results.0.clone();
        let rules = self.rules;
        let drawing = std::thread::Builder::new()
            .name("torchspy-draw".to_owned())
            .spawn(move || {
                let written = file.map_err(anyhow::Error::from).and_then(|file| {
                    write_flamegraph(&recording, rules, file).inspect_err(|_| forget_empty(&path))
                });
                let text = match written {
                    Ok(()) => format!("wrote {}", path.display()),
                    Err(error) => format!(
                        "warning: no {}: {}",
                        path.display(),
                        Failure::new(error).text()
                    ),
                };
                let _ = sender.send(text);
            });
        match drawing {
            Ok(drawing) => {
                self.drawings.push(drawing);
                "drawing the last minute …".to_owned()
            }
            Err(error) => format!("cannot draw: {error}"),
        }
    }

    /// Ends what is under way; returns the results of all files, and whether a recording is missing
    /// or incomplete.
    pub(super) fn end(mut self, run: &RunInfo) -> (Vec<String>, bool) {
        if self.recording.is_some() {
            self.toggle_recording(run);
        }
        for drawing in self.drawings.drain(..) {
            let _ = drawing.join();
        }
        while self.news().is_some() {}
        (self.farewell, self.has_failed)
    }

    fn failed(&mut self, what: String) -> String {
        self.farewell.push(format!("warning: {what}"));
        self.has_failed = true;
        what
    }

    /// A file made now. Two within a second have one name, and a number.
    fn create(
        &self,
        run: &RunInfo,
        extension: &str,
        format: Format,
    ) -> (PathBuf, io::Result<File>) {
        let name = base_name(&NameParts {
            command: &run.command,
            host: &run.host,
            rank: self.rank,
            pid: run.pid,
            started_wall_ns: wall_ns(),
        });
        create_numbered(&name, extension, format)
    }
}

/// Removes a file that nothing could be written into.
fn forget_empty(path: &Path) {
    if std::fs::metadata(path).is_ok_and(|file| file.len() == 0) {
        let _ = std::fs::remove_file(path);
    }
}

fn write_flamegraph(
    recording: &Recording,
    rules: &'static RuleSet,
    file: File,
) -> anyhow::Result<()> {
    let profile = outputs::resolve_recording(recording, rules);
    let mut out = BufWriter::new(file);
    Format::Flamegraph.render(&profile, &Drawing::default(), &mut out)?;
    Ok(out.flush()?)
}
