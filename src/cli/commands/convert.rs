//! `torchspy convert FILE -o OUT`.

use super::report;
use crate::analysis::gpu_overlay::cut::{self, NothingKept};
use crate::cli::failure::Failure;
use crate::cli::open_outputs::{OpenOutput, cannot_write, open_named};
use crate::cli::plan::{ConvertPlan, Format, OutputFile};
use crate::cli::{messages, outputs};
use crate::model::profile::Profile;
use crate::report::view::thread_labels;
use regex::Regex;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

/// Writes a recording in another format.
pub(crate) fn run(plan: &ConvertPlan) -> Result<ExitCode, Failure> {
    let mut profile = report::open(&plan.file, &plan.regions, &plan.rules)?;
    if let Some(pattern) = &plan.drawing.threads {
        check_threads(&profile, pattern)?;
    }
    if plan.format == Format::Csv && profile.lanes.points.is_empty() {
        messages::warning("this recording has no lanes of GPUs or host: the table is empty");
    }
    if plan.gpu_idle {
        keep_idle(&mut profile)?;
    }
    let render = |format| -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        outputs::render(&profile, format, &plan.drawing, &mut bytes)?;
        Ok(bytes)
    };
    let Some(path) = &plan.output else {
        let bytes = render(plan.format)?;
        messages::data(|out| out.write_all(&bytes))?;
        return Ok(ExitCode::SUCCESS);
    };
    if is_same_file(&plan.file, path) {
        return Err(Failure::usage(
            format!("{} is the recording itself", path.display()),
            "choose another name for the output",
        ));
    }
    let files = OutputFile::with_stacks(path.clone(), plan.format);
    let files = files.into_iter().map(|output| {
        let bytes = render(output.format)?;
        Ok((output, bytes))
    });
    let files = files.collect::<Result<Vec<_>, Failure>>()?;
    let parts = files.iter().map(|(output, bytes)| (output, &bytes[..]));
    write_together(parts, plan.force)?;
    for (output, _) in &files {
        messages::note(&format!("wrote {}", output.path.display()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a file that the user named, or leaves what was there.
pub(super) fn write_named(output: &OutputFile, force: bool, bytes: &[u8]) -> Result<(), Failure> {
    write_together([(output, bytes)], force)
}

/// Writes all of these files, or leaves what was there of each. Only where the last one cannot be renamed are the others replaced.
fn write_together<'f>(
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

fn keep_idle(profile: &mut Profile) -> Result<(), Failure> {
    let kept = cut::keep_idle(profile).map_err(|error| {
        let hint = match error {
            NothingKept::NoWindows => "the summary's part DEVICE says what was recorded of GPUs, and why not more",
            NothingKept::NoneIdle(_) => "the GPU is idle for shorter than a window, if at all; --color gpu shows what is resolved",
        };
        Failure::new(error).hint(hint)
    })?;
    messages::note(&format!(
        "drawn is what lay in the {} of {} windows in which the GPU was idle for 90 % and more",
        kept.windows, kept.of
    ));
    Ok(())
}

/// A drawing of no thread at all is a slip of the finger.
fn check_threads(profile: &Profile, pattern: &Regex) -> Result<(), Failure> {
    const SHOWN: usize = 6;
    let names = thread_labels(profile);
    if names.is_empty() || names.iter().any(|name| pattern.is_match(name)) {
        return Ok(());
    }
    let shown: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
    let more = if names.len() > SHOWN { ", …" } else { "" };
    Err(Failure::usage(
        format!("--threads {pattern} matches no thread of this recording"),
        format!("its threads are {}{more}", shown.join(", ")),
    ))
}

pub(super) fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.metadata().map(|data| (data.dev(), data.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}
