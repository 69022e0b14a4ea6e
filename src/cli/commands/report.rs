//! `torchspy report FILE`.

use crate::analysis::progress::window::restrict;
use crate::cli::failure::Failure;
use crate::cli::outputs::{self, SummaryOptions};
use crate::cli::plan::ReportPlan;
use crate::cli::{hints, messages};
use crate::model::profile::Profile;
use std::path::Path;
use std::process::ExitCode;

/// Prints the summary on standard output.
pub(crate) fn run(plan: &ReportPlan) -> Result<ExitCode, Failure> {
    let mut profile = open(&plan.file)?;
    if let Some(range) = plan.steps {
        let (first, last) = restrict(&mut profile, range).map_err(Failure::new)?;
        let note = format!("steps {first} to {last} of the recording");
        profile.run.notes.push(note);
    }
    let mut text = Vec::new();
    if plan.json {
        outputs::json(&profile, &mut text)?;
    } else {
        let options = SummaryOptions {
            top: plan.top,
            itwinai: plan.itwinai,
            by: plan.by,
        };
        outputs::summary(&profile, options, &mut text)?;
    }
    messages::data(|out| out.write_all(&text))?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a recording, with a warning for each thing that it lacks.
pub(crate) fn open(path: &Path) -> Result<Profile, Failure> {
    let profile = outputs::read_profile(path, &path.display().to_string()).map_err(cannot_open)?;
    for missing in &profile.missing {
        messages::warning(missing);
    }
    Ok(profile)
}

/// A recording that cannot be opened, with the hint for its reason.
pub(crate) fn cannot_open(error: anyhow::Error) -> Failure {
    let hint = hints::of_input_error(&error);
    Failure::new(error).maybe_hint(hint)
}
