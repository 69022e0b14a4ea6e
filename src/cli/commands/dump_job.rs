//! `torchspy dump` of a job on several machines.

use crate::cli::dump_plan::Answers;
use crate::cli::failure::Failure;
use crate::cli::flight::flight;
use crate::cli::gather::{gather, no_answer};
use crate::cli::messages;
use crate::cli::pause::interruptible;
use crate::report::dump::flight::{render_flight, render_flight_json};
use crate::report::dump::job::render_job;
use crate::report::dump::job_json::render_job_json;
use std::process::ExitCode;

pub(super) fn run(answers: &Answers, json: bool) -> Result<ExitCode, Failure> {
    if let Answers::Files(paths) = answers
        && let Some(report) = flight(paths)?
    {
        let text = match json {
            true => render_flight_json(&report).map_err(Failure::new)? + "\n",
            false => render_flight(&report),
        };
        messages::data(|out| out.write_all(text.as_bytes()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let gathered = gather(answers, &interruptible()?)?;
    if gathered.answers.is_empty() {
        return Err(no_answer(&gathered.unanswered, answers));
    }
    let (answers, unanswered) = (&gathered.answers, &gathered.unanswered);
    let text = match json {
        true => {
            let mut text =
                render_job_json(answers, unanswered, gathered.took).map_err(Failure::new)?;
            text.push('\n');
            text
        }
        false => render_job(answers, unanswered, gathered.took),
    };
    messages::data(|out| out.write_all(text.as_bytes()))?;
    Ok(ExitCode::SUCCESS)
}
