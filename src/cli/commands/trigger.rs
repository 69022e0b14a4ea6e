//! `torchspy trigger`: makes recorders begin.

use crate::cli::failure::Failure;
use crate::cli::{messages, trigger};
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(folder: &Path) -> Result<ExitCode, Failure> {
    trigger::set(folder)?;
    messages::note(&format!(
        "{}: who records with --trigger file:{} begins",
        folder.display(),
        folder.display()
    ));
    Ok(ExitCode::SUCCESS)
}
