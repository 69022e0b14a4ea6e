//! `torchspy diff A B`.

use super::convert::is_same_file;
use super::report;
use crate::analysis::analyze;
use crate::analysis::diff::steps::units_of;
use crate::analysis::diff::subject::{common_ranks, subject};
use crate::analysis::diff::{Diff, DiffError, Run, compare};
use crate::cli::diff_plan::DiffPlan;
use crate::cli::failure::Failure;
use crate::cli::formats::Format;
use crate::cli::messages;
use crate::cli::objects::fetch::shown;
use crate::cli::output_file::write_named;
use crate::cli::outputs;
use crate::model::profile::Profile;
use crate::report::diff_folded;
use crate::report::flamegraph::difference;
use crate::report::json::diff::render_diff_json;
use crate::report::page::compare as compare_page;
use crate::report::text::diff::render_diff;
use crate::report::view::ViewOptions;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Prints the comparison on standard output, and writes the files that are asked for.
pub(crate) fn run(plan: &DiffPlan) -> Result<ExitCode, Failure> {
    refuse_own_files(plan)?;
    let (mut a_profiles, mut b_profiles) = (open_all(&plan.a, plan)?, open_all(&plan.b, plan)?);
    let all = a_profiles.iter_mut().chain(&mut b_profiles);
    let mut confidential = outputs::hide(plan.confidential.as_deref(), all);
    let mut names = |files: &[PathBuf]| -> Vec<String> {
        let names = files.iter().map(|file| shown(file));
        let shown = names.map(|name| match &mut confidential {
            Some(confidential) => confidential.file(&name),
            None => name,
        });
        shown.collect()
    };
    let (a_names, b_names) = (names(&plan.a), names(&plan.b));
    let sides = |rank| -> Result<_, Failure> {
        Ok((
            runs(&a_names, &a_profiles, rank)?,
            runs(&b_names, &b_profiles, rank)?,
        ))
    };
    let (a, b) = sides(plan.rank)?;
    let mut diff = compare(&a, &b, &plan.options).map_err(failure)?;
    if plan.rank.is_none() {
        for rank in common_ranks(a_profiles.iter().chain(&b_profiles)) {
            let (a, b) = sides(Some(rank))?;
            let of_rank = compare(&a, &b, &plan.options).ok();
            diff.ranks
                .extend(of_rank.and_then(|diff| diff.step).map(|step| (rank, step)));
        }
    }
    let text = match plan.json {
        true => json(&diff)?,
        false => render_diff(&diff, plan.top).into_bytes(),
    };
    messages::data(|out| out.write_all(&text))?;
    for output in &plan.outputs {
        let bytes = match output.format {
            Format::Json => json(&diff)?,
            Format::Text => render_diff(&diff, plan.top).into_bytes(),
            format => drawn(plan, format, &diff, &a, &b)?,
        };
        write_named(output, plan.force, &bytes)?;
        messages::note(&format!("wrote {}", output.path.display()));
    }
    Ok(ExitCode::SUCCESS)
}

fn refuse_own_files(plan: &DiffPlan) -> Result<(), Failure> {
    let is_own = |path: &Path| {
        let mut files = plan.a.iter().chain(&plan.b);
        files.any(|file| is_same_file(file, path))
    };
    match plan.outputs.iter().find(|output| is_own(&output.path)) {
        Some(output) => Err(Failure::usage(
            format!("{} is a recording that is compared", output.path.display()),
            "choose another name for the output",
        )),
        None => Ok(()),
    }
}

fn open_all(files: &[PathBuf], plan: &DiffPlan) -> Result<Vec<Profile>, Failure> {
    files
        .iter()
        .map(|file| report::open(file, &shown(file), &plan.regions, &plan.rules))
        .collect()
}

fn runs<'p>(
    names: &[String],
    profiles: &'p [Profile],
    rank: Option<u32>,
) -> Result<Vec<Run<'p>>, Failure> {
    names
        .iter()
        .zip(profiles)
        .map(|(name, profile)| {
            let process = subject(profile, rank).ok_or_else(|| nothing_sampled(name, rank))?;
            let (units, evaluation) = units_of(profile, process);
            Ok(Run {
                name: name.clone(),
                profile,
                process,
                units,
                evaluation,
            })
        })
        .collect()
}

fn nothing_sampled(name: &str, rank: Option<u32>) -> Failure {
    match rank {
        Some(rank) => Failure::message(format!("{name}: it has no samples of rank {rank}")),
        None => Failure::message(format!("{name}: no thread with Python frames was sampled")),
    }
    .hint(format!(
        "torchspy report {name} lists the processes that it has"
    ))
}

fn failure(error: DiffError) -> Failure {
    Failure::new(error).hint("record for longer: a minute of each is a good start")
}

fn json(diff: &Diff) -> anyhow::Result<Vec<u8>> {
    Ok(render_diff_json(diff)?.into_bytes())
}

fn drawn(
    plan: &DiffPlan,
    format: Format,
    diff: &Diff,
    a: &[Run<'_>],
    b: &[Run<'_>],
) -> Result<Vec<u8>, Failure> {
    let view = ViewOptions {
        by: plan.by,
        plumbing: plan.plumbing,
        lines: false,
        ..ViewOptions::default()
    };
    let tree = difference::Difference::new(diff, a, b, &view, &plan.options).map_err(failure)?;
    let mut bytes = Vec::new();
    if format == Format::Page {
        if let ([a, ..], [b, ..]) = (a, b) {
            let (of_a, of_b) = (analyze(a.profile), analyze(b.profile));
            let sides = [(a.profile, &of_a), (b.profile, &of_b)];
            compare_page::render(sides, diff, &tree, &mut bytes).map_err(anyhow::Error::from)?;
        }
    } else if format == Format::Folded {
        diff_folded::render(&tree, &mut bytes).map_err(anyhow::Error::from)?;
    } else {
        difference::render(&tree, diff, &mut bytes).map_err(anyhow::Error::from)?;
    }
    Ok(bytes)
}
