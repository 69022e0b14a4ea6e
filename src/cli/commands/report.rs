//! `torchspy report FILE`.

use super::convert::is_same_file;
use super::log_mlflow;
use super::report_trace;
use crate::analysis::analyze;
use crate::analysis::progress::window::{restrict, restrict_to};
use crate::analysis::traced::{Traced, in_recording, traced};
use crate::cli::failure::Failure;
use crate::cli::formats::Format;
use crate::cli::objects::fetch::{address_of, shown};
use crate::cli::outputs;
use crate::cli::plan::{Drawing, ReportPlan};
use crate::cli::rules::Rules;
use crate::cli::trace_plan::ReportTable;
use crate::cli::{github_summary, hints, messages, regions};
use crate::model::profile::Profile;
use crate::model::region::Region;
use crate::model::seconds;
use crate::model::text::printable;
use crate::report::csv;
use crate::report::json::render_json;
use crate::report::naming::so_far;
use crate::report::text::{By, render_summary};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

pub(crate) fn run(plan: &ReportPlan) -> Result<ExitCode, Failure> {
    let shown = shown(&plan.file);
    let mut profile = open(&plan.file, &shown, &plan.regions, &plan.rules)?;
    outputs::hide(plan.confidential.as_deref(), [&mut profile]);
    if let Some(range) = plan.steps {
        let (first, last) = restrict(&mut profile, range).map_err(Failure::new)?;
        let note = format!(
            "steps {first} to {last} of the recording; the sampler's counts are of all of it"
        );
        profile.run.notes.push(note);
    }
    if let Some(interval) = plan.interval {
        restrict_to_interval(&mut profile, interval)?;
    }
    let mut text = Vec::new();
    let mut drawing = Drawing::default();
    if let Some(trace) = &plan.trace {
        drawing.trace = Some(Arc::new(report_trace::open(trace)?));
    }
    let is_of_trace = plan.trace_rank.is_some()
        || matches!(plan.csv, Some(ReportTable::Trace(_)))
        || matches!(plan.text.by, Some(By::Shape | By::Kernel));
    match (&drawing.trace, plan.csv) {
        _ if plan.html => Format::Page.render(&profile, &drawing, &mut text)?,
        (Some(trace), csv) => {
            let traced = traced(&profile, trace.as_ref().clone());
            beside(&profile, traced, csv, plan, &mut text)?;
        }
        (None, csv) if is_of_trace => {
            let traced = recorded_trace(&profile, plan.trace_rank)?;
            beside(&profile, traced, csv, plan, &mut text)?;
        }
        (None, Some(ReportTable::Recording(table))) => {
            outputs::table(&profile, table, &mut text)?;
        }
        _ if plan.json => outputs::json(&profile, &mut text)?,
        _ => outputs::summary(&profile, plan.text, &mut text)?,
    }
    messages::data(|out| out.write_all(&text))?;
    if let Some(summary) = &plan.github_summary {
        if is_same_file(&plan.file, summary) {
            return Err(Failure::usage(
                format!("{} is the recording itself", summary.display()),
                "GITHUB_STEP_SUMMARY names the file of the step's summary",
            ));
        }
        let mut markdown = Vec::new();
        Format::Markdown.render(&profile, &drawing, &mut markdown)?;
        github_summary::append(summary, &markdown)?;
    }
    if let Some(mlflow) = &plan.mlflow {
        log_mlflow::recording(mlflow, &plan.file, &profile, plan.confidential.is_some())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The report of a recording with a trace of torch.profiler beside it.
fn beside(
    profile: &Profile,
    traced: Traced,
    csv: Option<ReportTable>,
    plan: &ReportPlan,
    text: &mut Vec<u8>,
) -> Result<(), Failure> {
    if let Some(ReportTable::Trace(table)) = csv {
        text.extend(csv::render(&table(&traced.trace)).into_bytes());
        return Ok(());
    }
    let mut analysis = analyze(profile);
    analysis.traced = Some(traced);
    let written = match csv {
        Some(ReportTable::Recording(table)) => csv::render(&table(profile, &analysis)),
        _ if plan.json => render_json(profile, &analysis).map_err(anyhow::Error::from)?,
        _ => render_summary(profile, &analysis, plan.text),
    };
    text.extend(written.into_bytes());
    Ok(())
}

/// The trace that the recording itself has, of a rank or of the first.
fn recorded_trace(profile: &Profile, rank: Option<u32>) -> Result<Traced, Failure> {
    let found = in_recording(profile, rank);
    let rank_of = |id| profile.process(id).and_then(|process| process.role.rank());
    let mut without = found.without.iter();
    let why = without.find(|(id, _)| rank.is_none() || rank_of(*id) == rank);
    // A program that ended early may not have said which rank it was.
    let any = found.without.first().filter(|_| found.ranks.is_empty());
    let why = why.or(any);
    let other = rank.filter(|_| why.is_none() && !found.ranks.is_empty());
    found
        .traced
        .ok_or_else(|| match (other, why) {
            (Some(rank), _) => {
                let ranks = found.ranks.iter().flatten();
                let ranks: Vec<String> = ranks.map(u32::to_string).collect();
                Failure::message(format!("the recording has no trace of rank {rank}"))
                    .hint(format!("it has those of ranks {}", ranks.join(", ")))
            }
            (None, _) if profile.is_confidential => Failure::message(
                "--confidential shows no trace of torch.profiler: names in it cannot be hashed",
            )
            .hint("leave out --confidential where its names may be seen"),
            (None, Some((_, why))) => Failure::message(format!(
                "the recording has no trace of torch.profiler: {}",
                printable(why)
            ))
            .hint("--trace-file FILE names a trace that the script makes itself"),
            (None, None) => Failure::message(
                "the recording has no trace of torch.profiler: samples have neither calls nor shapes nor kernels",
            )
            .hint("--trace-file FILE names a trace, and record --trace 2s -- COMMAND makes one"),
        })
}

/// Restricts a profile to an interval, ns since its start, and notes that.
pub(crate) fn restrict_to_interval(
    profile: &mut Profile,
    (from_ns, to_ns): (u64, u64),
) -> Result<(), Failure> {
    let length_ns = profile.end_ns.saturating_sub(profile.start_ns);
    restrict_to(profile, from_ns, to_ns).map_err(|error| {
        let length_s = seconds::of(length_ns);
        Failure::new(error).hint(format!(
            "--from and --to are times since the start; the recording has {length_s:.3} s"
        ))
    })?;
    let note = format!(
        "{:.3} to {:.3} s of the recording; the sampler's counts are of all of it",
        seconds::of(from_ns),
        seconds::of(to_ns.min(length_ns))
    );
    profile.run.notes.push(note);
    Ok(())
}

/// Reads a recording, which messages call `shown`, with a warning for each thing that it lacks.
/// `regions` are shown as phases in addition to its own.
pub(crate) fn open(
    path: &Path,
    shown: &str,
    regions: &[Region],
    rules: &Rules,
) -> Result<Profile, Failure> {
    let profile = outputs::read_profile(path, shown, regions, rules.set).map_err(cannot_open)?;
    regions::warn_of_unseen(&profile);
    rules.warn_of_unmatched(&profile);
    for missing in &profile.missing {
        messages::warning(missing);
    }
    if let (Some(address), false) = (address_of(path), profile.missing.is_empty()) {
        messages::note(&format!(
            "or it is still being recorded: this is what was sent to {address} so far"
        ));
    }
    if let Some(text) = so_far(&profile) {
        messages::note(&format!("{shown} is {text}"));
    }
    Ok(profile)
}

/// A recording that cannot be opened, with the hint for its reason.
pub(crate) fn cannot_open(error: anyhow::Error) -> Failure {
    let hint = hints::of_input_error(&error);
    Failure::new(error).maybe_hint(hint)
}
