//! `torchspy report --trace-file FILE`.

use crate::analysis::traced::place;
use crate::cli::failure::Failure;
use crate::cli::messages;
use crate::cli::trace_plan::TracePlan;
use crate::model::profile::Profile;
use crate::os::priority;
use crate::report::csv;
use crate::report::json::trace::render_trace_json;
use crate::report::text::trace::render_trace;
use crate::trace::kept::Kept;
use crate::trace::{Reading, TraceError, TraceSummary, read, reduce};
use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// How far behind the trainer's nice value a window's trace is reduced.
const BEHIND_TRAINER: i32 = 10;
const WHAT: &str = "a trace is what prof.export_chrome_trace() or tensorboard_trace_handler() wrote, .json or .json.gz";

pub(crate) fn run(plan: &TracePlan) -> Result<ExitCode, Failure> {
    if plan.is_reduced {
        priority::run_behind(BEHIND_TRAINER);
        let text = Kept::new(Ok(open(&plan.file)?)).text();
        messages::data(|out| out.write_all(text.as_bytes()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let trace = open(&plan.file)?;
    for missing in trace.missing() {
        messages::warning(&missing);
    }
    let text = match plan.csv {
        Some(table) => csv::render(&table(&trace)),
        None if plan.json => render_trace_json(&trace).map_err(anyhow::Error::from)?,
        None => render_trace(&trace, plan.text),
    };
    messages::data(|out| out.write_all(text.as_bytes()))?;
    Ok(ExitCode::SUCCESS)
}

/// The same for what is drawn beside a recording, with a warning where the two are not of the same
/// time and process.
pub(super) fn beside(profile: &Profile, path: &Path) -> Result<Arc<TraceSummary>, Failure> {
    let trace = open(path)?;
    for missing in trace.missing() {
        messages::warning(&missing);
    }
    if let Err(why) = place(profile, &trace) {
        messages::warning(&format!(
            "{} is not on the time axis of the recording, only its tables are shown: {}",
            path.display(),
            why.text()
        ));
    }
    Ok(Arc::new(trace))
}

/// Reads and reduces a trace.
pub(super) fn open(path: &Path) -> Result<TraceSummary, Failure> {
    let shown = path.display();
    let file = File::open(path)
        .map_err(|error| Failure::message(format!("cannot open {shown}: {error}")).hint(WHAT))?;
    let trace = read(file, Reading::default()).map_err(|error| {
        let hint = match error {
            TraceError::Io(_) if path.is_dir() => {
                "it is a folder: name one of its files, which are one for each rank"
            }
            _ => WHAT,
        };
        Failure::message(format!("cannot read {shown} as a trace: {error}")).hint(hint)
    })?;
    Ok(reduce(trace))
}
