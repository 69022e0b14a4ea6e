//! `torchspy report DIR` and `torchspy convert DIR`: the recordings of a job's ranks, as one
//! answer.

use super::log_mlflow;
use crate::analysis::job::reduce::reduce;
use crate::analysis::job::{Folded, Job};
use crate::cli::browser;
use crate::cli::failure::Failure;
use crate::cli::formats::Format;
use crate::cli::job_plan::{JobConvertPlan, JobPlan};
use crate::cli::messages;
use crate::cli::objects::fetch;
use crate::cli::output_file::write_named;
use crate::cli::output_names::OutputFile;
use crate::cli::outputs;
use crate::cli::ring_files::{Source, sources};
use crate::model::reduction::Reduction;
use crate::report::csv;
use crate::report::job_page;
use crate::report::json::job::render_job_json;
use crate::report::label::counted;
use crate::report::parquet::reduced;
use crate::report::text::job::render_job;
use crate::resolve::Samples;
use std::fs::{self, File, Permissions};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Folders in folders are searched to this depth.
const DEPTH: usize = 8;

pub(crate) fn run(plan: &JobPlan) -> Result<ExitCode, Failure> {
    let job = read(plan)?;
    let bytes = match plan.csv {
        Some(table) => csv::render(&table(&job)).into_bytes(),
        None if plan.html => page(&job)?,
        None if plan.json => render_job_json(&job)
            .map_err(anyhow::Error::from)?
            .into_bytes(),
        None => render_job(&job, plan.full).into_bytes(),
    };
    messages::data(|out| out.write_all(&bytes))?;
    if let Some(mlflow) = &plan.mlflow {
        log_mlflow::job(mlflow, plan, &job)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a job.
pub(crate) fn convert(plan: &JobConvertPlan) -> Result<ExitCode, Failure> {
    let job = read(&plan.job)?;
    let bytes = page(&job)?;
    let Some(path) = &plan.output else {
        messages::data(|out| out.write_all(&bytes))?;
        return Ok(ExitCode::SUCCESS);
    };
    let output = OutputFile::new(path.clone(), Format::Page);
    write_named(&output, plan.force, &bytes)?;
    messages::note(&format!("wrote {}", path.display()));
    if plan.open {
        browser::open(path);
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn page(job: &Job) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    job_page::render(job, &mut bytes).map_err(anyhow::Error::from)?;
    Ok(bytes)
}

/// The page of these recordings of a folder.
pub(crate) fn page_of(plan: &JobPlan, files: &[PathBuf]) -> Result<Vec<u8>, Failure> {
    page(&read_files(plan, files)?)
}

/// Reads all recordings of a folder, or one recording.
pub(super) fn read(plan: &JobPlan) -> Result<Job, Failure> {
    read_files(plan, &recordings(&plan.folder)?)
}

/// Reads recordings of a folder, in parallel: files of one session as one.
fn read_files(plan: &JobPlan, files: &[PathBuf]) -> Result<Job, Failure> {
    if files.is_empty() {
        return Err(
            Failure::message(format!("{} has no recordings", plan.folder.display()))
                .hint(
                    "torchspy record -o DIR/{host}-{rank}.tspy writes one for each rank; linked folders, and those 8 levels \
                     below, are not searched",
                ),
        );
    }
    let sources = sources(plan, files);
    let next = AtomicUsize::new(0);
    let workers = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(sources.len());
    let mut folded = Folded::default();
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::sync_channel(workers);
        for _ in 0..workers {
            let (sender, next, sources) = (sender.clone(), &next, &sources);
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(source) = sources.get(at) else {
                        return;
                    };
                    let reduction = reduction(plan, source);
                    if sender.send((source.name.clone(), reduction)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (name, result) in receiver {
            match result {
                Ok(reduction) => folded.add(name, reduction),
                Err(error) => folded.leave_out(name, format!("{error:#}")),
            }
        }
    });
    let job = folded.finish(plan.mesh.as_ref());
    if job.ranks.is_empty() {
        let first = job.left_out.first();
        let why = first.map_or(String::new(), |each| {
            format!(": {}: {}", each.file, each.why)
        });
        return Err(Failure::message(format!(
            "no rank can be read from {} in {}{why}",
            counted(files.len() as u64, "recording"),
            fetch::shown(&plan.folder)
        ))
        .hint("torchspy inspect FILE says what is in a recording"));
    }
    if let (Some(mesh), Some(world)) = (&plan.mesh, job.world_size)
        && mesh.size() != u64::from(world)
    {
        return Err(Failure::usage(
            format!(
                "--mesh makes {} ranks, and the job has {world}",
                mesh.size()
            ),
            "name all dimensions, outermost first: dp=16,tp=8",
        ));
    }
    Ok(job)
}

/// The recordings in a folder, by name.
pub(crate) fn recordings(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    if folder.is_file() {
        return Ok(vec![folder.to_owned()]);
    }
    let mut found = Vec::new();
    search(folder, DEPTH, &mut found).map_err(|error| {
        Failure::message(format!("cannot open {}: {error}", folder.display()))
            .hint("a job is a folder of recordings, or a recording")
    })?;
    found.sort();
    Ok(found)
}

fn search(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let kind = entry.file_type()?;
        if kind.is_dir() && depth > 0 {
            // What cannot be read below is not what was asked for.
            search(&path, depth - 1, found).ok();
        } else if path
            .extension()
            .is_some_and(|extension| extension == "tspy")
        {
            found.push(path);
        }
    }
    Ok(())
}

/// The reduction of a recording: kept beside its first file, or made and kept.
fn reduction(plan: &JobPlan, source: &Source) -> anyhow::Result<Reduction> {
    let opened = source.open()?;
    let state = reduced::source(&opened.state());
    let kept = opened.first.with_extension("reduced.parquet");
    let is_plain =
        plan.regions.is_empty() && plan.rules.are_built_in() && plan.confidential.is_none();
    if is_plain
        && let Ok(kept) = fs::read(&kept)
        && let Ok(reduction) = reduced::read(kept, &state)
    {
        return Ok(reduction);
    }
    let mut profile = opened.profile(&plan.regions, plan.rules.set, Samples::OfRanks)?;
    outputs::hide(plan.confidential.as_deref(), [&mut profile]);
    let reduction = reduce(&profile);
    if is_plain && profile.growing_until_ns.is_none() {
        keep(&reduction, &state, &kept, opened.permissions);
    }
    Ok(reduction)
}

/// Keeps a reduction beside its recording, complete or not at all; where that is not possible, the
/// next report makes it again.
fn keep(reduction: &Reduction, source: &str, path: &Path, permissions: Permissions) {
    let new = path.with_extension(format!("parquet.{}", std::process::id()));
    let write = || -> std::io::Result<()> {
        let mut file = File::options().write(true).create_new(true).open(&new)?;
        // Whoever may not read the recording may not read this.
        file.set_permissions(permissions)?;
        reduced::render(reduction, source, &mut file)?;
        fs::rename(&new, path)
    };
    if write().is_err() {
        fs::remove_file(&new).ok();
    }
}
