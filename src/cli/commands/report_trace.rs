//! `torchspy report --trace-file FILE`.

use crate::cli::failure::Failure;
use crate::cli::messages;
use crate::cli::trace_plan::TracePlan;
use crate::report::csv;
use crate::report::json::trace::render_trace_json;
use crate::report::text::trace::render_trace;
use crate::trace::{Reading, TraceError, TraceSummary, read, reduce};
use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(plan: &TracePlan) -> Result<ExitCode, Failure> {
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

/// Reads and reduces a trace.
pub(super) fn open(path: &Path) -> Result<TraceSummary, Failure> {
    let shown = path.display();
    let file = File::open(path)
        .map_err(|error| Failure::message(format!("cannot open {shown}: {error}")))?;
    let trace = read(file, Reading::default()).map_err(|error| {
        let hint = match error {
            TraceError::Io(_) => "a folder has one trace for each rank: name one of them",
            _ => {
                "a trace is what prof.export_chrome_trace() or tensorboard_trace_handler() wrote, \
                  .json or .json.gz"
            }
        };
        Failure::message(format!("cannot read {shown} as a trace: {error}")).hint(hint)
    })?;
    Ok(reduce(trace))
}
