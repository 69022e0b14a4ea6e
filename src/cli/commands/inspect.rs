//! `torchspy inspect FILE`.

use super::report::cannot_open;
use crate::cli::failure::Failure;
use crate::cli::plan::InspectPlan;
use crate::cli::{messages, outputs};
use std::io;
use std::process::ExitCode;

/// Prints what a recording holds, as it is read: dumps can be long.
pub(crate) fn run(plan: &InspectPlan) -> Result<ExitCode, Failure> {
    let mut failed = None;
    messages::data(
        |out| match outputs::inspect(&plan.file, plan.samples, out) {
            Ok(()) => Ok(()),
            Err(error) if is_broken_pipe(&error) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(error) => {
                failed = Some(error);
                Ok(())
            }
        },
    )?;
    match failed {
        Some(error) => Err(cannot_open(error)),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
