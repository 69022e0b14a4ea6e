//! `torchspy report … --mlflow URI`: logs a recording, or the recordings of a job.

use super::report_job::{page, recordings};
use crate::analysis::job::Job;
use crate::cli::failure::Failure;
use crate::cli::formats::Format;
use crate::cli::job_plan::JobPlan;
use crate::cli::mlflow::{Artifact, MlflowPlan, MlflowRun};
use crate::cli::outputs;
use crate::cli::plan::Drawing;
use crate::cli::ring_files::{Source, sources};
use crate::model::profile::Profile;
use crate::report::command::shown_command;
use crate::report::mlflow::{Worker, workers};
use crate::resolve::Samples;
use rustc_hash::FxHashMap;
use std::path::Path;

/// Longest command line, characters.
const COMMAND: usize = 200;

/// Logs a recording. A confidential one is not uploaded itself: its names are not hashed.
pub(super) fn recording(
    plan: &MlflowPlan,
    file: &Path,
    profile: &Profile,
    confidential: bool,
) -> Result<(), Failure> {
    let all = workers(profile);
    if all.is_empty() {
        return Err(nothing(&file.display().to_string()));
    }
    let (started, ended) = (first_ms(&all), last_ms(&all));
    let command = shown_command(&profile.run.command, COMMAND);
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let name = if confidential { "recording" } else { &*stem };
    let mut run = MlflowRun::start(plan, name, &command, started)?;
    let own = [file];
    log_workers(&mut run, &all, if confidential { &[] } else { &own })?;
    let mut html = Vec::new();
    Format::Page.render(profile, &Drawing::default(), &mut html)?;
    run.artifact(&format!("{name}.html"), &Artifact::Bytes(&html))?;
    run.finish(ended)
}

/// Logs the ranks that a job's report is of, each from its recording.
pub(super) fn job(plan: &MlflowPlan, job_plan: &JobPlan, job: &Job) -> Result<(), Failure> {
    let confidential = job_plan.confidential.as_deref();
    let folder = job_plan.folder.display().to_string();
    if job.ranks.is_empty() {
        return Err(nothing(&folder));
    }
    let sources = sources(job_plan, &recordings(&job_plan.folder)?);
    let sources: FxHashMap<&String, &Source> = sources
        .iter()
        .map(|source| (&source.name, source))
        .collect();
    let absolute = job_plan.folder.canonicalize().unwrap_or_default();
    let stem = absolute.file_name().unwrap_or_default().to_string_lossy();
    let name = if confidential.is_some() {
        "job"
    } else {
        &*stem
    };
    let first = job.recordings.iter().map(|each| each.started_wall_ns).min();
    let last = job
        .recordings
        .iter()
        .map(|each| each.started_wall_ns + each.length_ns)
        .max();
    let ms = |ns: Option<u64>| (ns.unwrap_or(0) / 1_000_000) as i64;
    let command = job.recordings.first();
    let command = command.map_or(String::new(), |first| {
        shown_command(&first.command, COMMAND)
    });
    let mut run = MlflowRun::start(plan, name, &command, ms(first))?;
    for (at, recording) in job.recordings.iter().enumerate() {
        let Some(&source) = sources.get(&recording.file) else {
            continue;
        };
        let opened = source.open()?;
        let mut profile = opened.profile(&job_plan.regions, job_plan.rules.set, Samples::All)?;
        outputs::hide(confidential, [&mut profile]);
        let mut all = workers(&profile);
        // Of another job, or started again later.
        let of_job: Vec<Option<u32>> = job
            .ranks
            .iter()
            .filter(|rank| rank.recording == at)
            .map(|rank| rank.facts.rank)
            .collect();
        all.retain(|worker| {
            of_job
                .iter()
                .any(|rank| rank.is_none_or(|rank| rank == worker.rank))
        });
        let files = source.paths().filter(|_| confidential.is_none());
        log_workers(&mut run, &all, &files.collect::<Vec<_>>())?;
    }
    run.artifact(&format!("{name}.html"), &Artifact::Bytes(&page(job)?))?;
    run.finish(ms(last))
}

/// Logs the ranks of a recording; its files are with its rank, or with the run itself if it has
/// several.
fn log_workers(run: &mut MlflowRun<'_>, all: &[Worker], files: &[&Path]) -> Result<(), Failure> {
    let is_one = all.len() == 1;
    for worker in all {
        run.worker(worker, if is_one { files } else { &[] })?;
    }
    for path in files.iter().filter(|_| !is_one) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        run.artifact(&name, &Artifact::File(path))?;
    }
    Ok(())
}

fn first_ms(all: &[Worker]) -> i64 {
    all.iter()
        .map(|worker| worker.started_ms)
        .min()
        .unwrap_or(0)
}

fn last_ms(all: &[Worker]) -> i64 {
    all.iter().map(|worker| worker.ended_ms).max().unwrap_or(0)
}

fn nothing(name: &str) -> Failure {
    Failure::message(format!(
        "{name}: no trainer was sampled, and nothing is logged"
    ))
    .hint(format!("torchspy inspect {name} prints what there is"))
}
