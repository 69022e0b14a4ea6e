//! `torchspy convert FILE -o OUT`.

use super::report;
use super::report_trace;
use crate::analysis::gpu_overlay::cut::{self, NothingKept};
use crate::cli::browser;
use crate::cli::failure::Failure;
use crate::cli::formats::Format;
use crate::cli::messages;
use crate::cli::objects::fetch::shown;
use crate::cli::output_file::write_together;
use crate::cli::output_names::OutputFile;
use crate::cli::outputs;
use crate::cli::plan::ConvertPlan;
use crate::model::profile::Profile;
use crate::report::view::thread_labels;
use regex::Regex;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(plan: &ConvertPlan) -> Result<ExitCode, Failure> {
    run_as(plan, &shown(&plan.file))
}

/// The same of a recording that messages call `shown`.
pub(super) fn run_as(plan: &ConvertPlan, shown: &str) -> Result<ExitCode, Failure> {
    let mut profile = report::open(&plan.file, shown, &plan.regions, &plan.rules)?;
    let mut drawing = plan.drawing.clone();
    if let Some(pattern) = &plan.drawing.threads {
        check_threads(&profile, pattern)?;
    }
    if let Some(trace) = &plan.trace {
        drawing.trace = Some(report_trace::beside(&profile, trace)?);
    }
    if plan.confidential.is_some() {
        let labels = thread_labels(&profile);
        outputs::hide(plan.confidential.as_deref(), [&mut profile]);
        drawing.threads = match &drawing.threads {
            Some(pattern) => Some(same_threads(pattern, &labels, &thread_labels(&profile))?),
            None => None,
        };
    }
    if plan.format == Format::Csv && profile.sideband.tracks.points.is_empty() {
        messages::warning(
            "this recording has no counter tracks of GPUs or host: the table is empty",
        );
        messages::hint("torchspy report run.tspy --csv TABLE prints a table of the report");
    }
    if let Some(interval) = plan.interval {
        report::restrict_to_interval(&mut profile, interval)?;
    }
    if plan.gpu_idle {
        keep_idle(&mut profile)?;
    }
    let render = |format: Format| -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        format.render(&profile, &drawing, &mut bytes)?;
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
    if plan.open {
        browser::open(path);
    }
    Ok(ExitCode::SUCCESS)
}

fn keep_idle(profile: &mut Profile) -> Result<(), Failure> {
    let kept = cut::keep_idle(profile).map_err(|error| {
        let hint = match error {
            NothingKept::NoWindows => "the part DEVICE of the report shows what was recorded of GPUs, and why not more",
            NothingKept::NothingSampled(_) => "they may be of a part of the recording that is not drawn: without --from and --to",
            NothingKept::NoneIdle(_) => "the GPU is idle for shorter than a window, if at all; --color gpu shows what is resolved",
        };
        Failure::new(error).hint(hint)
    })?;
    messages::note(&format!(
        "drawn: the samples in the {} of {} windows in which the GPU was idle for 90 % or more",
        kept.windows, kept.of
    ));
    Ok(())
}

/// A pattern that matches those of `labels`, whose counterparts in `old` match `pattern`.
fn same_threads(pattern: &Regex, old: &[String], labels: &[String]) -> anyhow::Result<Regex> {
    let both = old.iter().zip(labels);
    let wanted = both.filter(|(old, _)| pattern.is_match(old));
    let wanted: Vec<String> = wanted.map(|(_, label)| regex::escape(label)).collect();
    Ok(Regex::new(&format!("^(?:{})$", wanted.join("|")))?)
}

/// A `--thread-name` pattern that matches no thread is likely a typing error.
fn check_threads(profile: &Profile, pattern: &Regex) -> Result<(), Failure> {
    const SHOWN: usize = 6;
    let names = thread_labels(profile);
    if names.is_empty() || names.iter().any(|name| pattern.is_match(name)) {
        return Ok(());
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Err(Failure::usage(
        format!("--thread-name {pattern} matches no thread of this recording"),
        format!("its threads are {}", messages::list(&names, SHOWN)),
    ))
}

pub(super) fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.metadata().map(|data| (data.dev(), data.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}
