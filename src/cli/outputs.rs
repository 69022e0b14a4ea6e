//! Between the command line and the modules that write, read, resolve and render: one function for
//! each.

use super::regions;
use crate::analysis::{analyze, full_queue};
use crate::model::profile::Profile;
use crate::model::region::Region;
use crate::model::run::RunInfo;
use crate::model::segment::Segment;
use crate::native::demangle::demangle;
use crate::native::shorten::shorten;
use crate::os::file_lock;
use crate::recording::reader::Recording;
use crate::recording::text::{InspectOptions, render_text};
use crate::recording::writer::RecordingWriter;
use crate::report::csv;
use crate::report::json::render_json;
use crate::report::naming::so_far;
use crate::report::tables::Make;
use crate::report::text::{TextOptions, render_summary};
use crate::resolve::confidential::Confidential;
use crate::resolve::{Names, Samples, resolve_with};
use crate::sampling::session::SegmentSink;
use crate::torch::rules::RuleSet;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) use crate::report::naming::{NameParts, base_name};

/// The recording that a session writes into; kept to be finished when the session has ended.
#[derive(Clone)]
pub(crate) struct RecordingSink {
    writer: Arc<Mutex<Option<RecordingWriter>>>,
    /// The same file, marked as being written.
    mark: Arc<File>,
    /// Bytes of complete segments.
    length: Arc<AtomicU64>,
}

impl RecordingSink {
    /// Writes the head of the recording into an open, empty file.
    pub(crate) fn start(file: File, run: &RunInfo) -> Result<Self> {
        let mark = Arc::new(file.try_clone()?);
        file_lock::hold(&mark);
        let writer = RecordingWriter::from_file(file, run)?;
        Ok(Self {
            length: Arc::new(writer.length().into()),
            writer: Arc::new(Mutex::new(Some(writer))),
            mark,
        })
    }

    /// Bytes of the recording that are complete, as it grows. No lock: a thread of low priority may
    /// ask.
    pub(crate) fn length(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.length)
    }

    /// Ends the recording. `Ok` means that it is on the disk.
    pub(crate) fn finish(&self) -> Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let finished = writer.take().map_or(Ok(()), RecordingWriter::finish);
        file_lock::release(&self.mark);
        Ok(finished?)
    }
}

impl SegmentSink for RecordingSink {
    fn write(&mut self, segment: &Segment) -> io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        match writer.as_mut() {
            Some(writer) => {
                writer.write_segment(segment)?;
                self.length.store(writer.length(), Ordering::Release);
                Ok(())
            }
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

/// Reads and resolves a recording, with `regions` as phases in addition to those that it names
/// itself.
pub(crate) fn read_profile(
    path: &Path,
    shown: &str,
    regions: &[Region],
    rules: &'static RuleSet,
) -> Result<Profile> {
    let file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
    read_profile_of(&file, shown, regions, rules, Samples::All)
}

/// The same of a file that was opened on its own.
pub(crate) fn read_profile_of(
    file: &File,
    shown: &str,
    regions: &[Region],
    rules: &'static RuleSet,
    kept: Samples,
) -> Result<Profile> {
    let recording = read_recording(file, shown)?;
    Ok(profile_of(recording, regions, rules, kept))
}

/// Resolves a recording that was read.
pub(crate) fn profile_of(
    mut recording: Recording,
    regions: &[Region],
    rules: &'static RuleSet,
    kept: Samples,
) -> Profile {
    regions::add(&mut recording.run.regions, regions);
    let marked = regions::marked(&recording.tables.codes);
    regions::add(&mut recording.run.regions, &marked);
    let mut profile = resolve_part(&recording, rules, kept);
    let note = so_far(&profile);
    profile.run.notes.extend(note);
    profile
}

/// Reads a recording, or what there is so far of one that is being written.
fn read_recording(file: &File, shown: &str) -> Result<Recording> {
    // Asked before it is read: a recording that ends meanwhile has its end.
    let growing = file_lock::is_held(file);
    Recording::read_file(file, growing).with_context(|| format!("cannot open {shown}"))
}

/// Names and classifies what a recording in memory holds.
pub(crate) fn resolve_recording(recording: &Recording, rules: &'static RuleSet) -> Profile {
    resolve_part(recording, rules, Samples::All)
}

fn resolve_part(recording: &Recording, rules: &'static RuleSet, kept: Samples) -> Profile {
    let names = Names {
        demangle,
        shorten,
        rules,
    };
    let mut profile = resolve_with(recording, names, kept);
    full_queue::mark(&mut profile);
    profile
}

/// Replaces names in profiles that are reported on together, where `--confidential` gave a key.
pub(crate) fn hide<'p>(
    key: Option<&str>,
    profiles: impl IntoIterator<Item = &'p mut Profile>,
) -> Option<Confidential> {
    let mut confidential = Confidential::new(key?);
    confidential.hide(profiles);
    Some(confidential)
}

/// Writes the summary for machines.
pub(crate) fn json(profile: &Profile, out: &mut dyn Write) -> Result<()> {
    Ok(out.write_all(render_json(profile, &analyze(profile))?.as_bytes())?)
}

/// Writes the summary for people.
pub(crate) fn summary(profile: &Profile, options: TextOptions, out: &mut dyn Write) -> Result<()> {
    Ok(out.write_all(render_summary(profile, &analyze(profile), options).as_bytes())?)
}

pub(crate) fn table(profile: &Profile, make: Make, out: &mut dyn Write) -> Result<()> {
    Ok(out.write_all(csv::render(&make(profile, &analyze(profile))).as_bytes())?)
}

/// Writes what a recording holds.
pub(crate) fn inspect(path: &Path, samples: bool, out: &mut dyn Write) -> Result<()> {
    let shown = path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
    let recording = read_recording(&file, &shown)?;
    let options = InspectOptions {
        stacks: true,
        samples,
        demangle: Some(&demangle),
    };
    Ok(out.write_all(render_text(&recording, &options).as_bytes())?)
}
