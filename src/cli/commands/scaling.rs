//! `torchspy scaling RUN…`.

use super::convert::is_same_file;
use super::report_job;
use crate::analysis::scaling::run::Run;
use crate::analysis::scaling::{Scaling, scaling};
use crate::cli::failure::Failure;
use crate::cli::formats::Format;
use crate::cli::job_plan::JobPlan;
use crate::cli::messages;
use crate::cli::objects::fetch;
use crate::cli::output_file::write_named;
use crate::cli::scaling_plan::ScalingPlan;
use crate::report::csv;
use crate::report::json::scaling::render_scaling_json;
use crate::report::scaling_page;
use crate::report::text::scaling::render_scaling;
use crate::resolve::confidential::Confidential;
use std::process::ExitCode;

/// Prints the comparison on standard output, and writes the files that are asked for.
pub(crate) fn run(plan: &ScalingPlan) -> Result<ExitCode, Failure> {
    refuse_own_files(plan)?;
    let (mut runs, mut left_out) = (Vec::new(), Vec::new());
    for run in &plan.runs {
        let name = shown(run);
        let job = report_job::read(run)?;
        for file in &job.left_out {
            left_out.push((format!("{name}: {}", file.file), file.why.clone()));
        }
        match job.ranks.is_empty() {
            true => left_out.push((name, "it has no recording of a rank".to_owned())),
            false => runs.push(Run::new(name, &job)),
        }
    }
    let mut scaling = scaling(runs, &plan.options);
    left_out.append(&mut scaling.left_out);
    scaling.left_out = left_out;
    if scaling.points.is_empty() {
        return Err(nothing(&scaling));
    }
    let bytes = match plan.csv {
        Some(table) => csv::render(&table(&scaling)).into_bytes(),
        None if plan.json => json(&scaling)?,
        None => render_scaling(&scaling).into_bytes(),
    };
    messages::data(|out| out.write_all(&bytes))?;
    for output in &plan.outputs {
        let bytes = match output.format {
            Format::Json => json(&scaling)?,
            Format::Text => render_scaling(&scaling).into_bytes(),
            _ => scaling_page::render(&scaling).into_bytes(),
        };
        write_named(output, plan.force, &bytes)?;
        messages::note(&format!("wrote {}", output.path.display()));
    }
    Ok(ExitCode::SUCCESS)
}

/// What a run is called, hashed where names are.
fn shown(run: &JobPlan) -> String {
    let name = fetch::shown(&run.folder);
    match &run.confidential {
        Some(key) => Confidential::new(key).file(&name),
        None => name,
    }
}

fn refuse_own_files(plan: &ScalingPlan) -> Result<(), Failure> {
    let is_own = |path| plan.runs.iter().any(|run| is_same_file(&run.folder, path));
    match plan.outputs.iter().find(|output| is_own(&output.path)) {
        Some(output) => Err(Failure::usage(
            format!("{} is a recording that is compared", output.path.display()),
            "choose another name for the output",
        )),
        None => Ok(()),
    }
}

fn nothing(scaling: &Scaling) -> Failure {
    let why: Vec<String> = scaling
        .left_out
        .iter()
        .map(|(name, why)| format!("{name}: {why}"))
        .collect();
    Failure::message(format!("no run can be compared: {}", why.join("; "))).hint(
        "record for longer: a minute of each is a good start; --per step needs no complete epoch",
    )
}

fn json(scaling: &Scaling) -> Result<Vec<u8>, Failure> {
    let text = render_scaling_json(scaling).map_err(anyhow::Error::from)?;
    Ok(text.into_bytes())
}
