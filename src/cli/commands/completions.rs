//! `torchspy completions SHELL`.

use crate::cli::args::{Arguments, Shell};
use crate::cli::failure::Failure;
use crate::cli::messages;
use clap::CommandFactory;
use std::process::ExitCode;

pub(crate) fn run(shell: Shell) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "torchspy", &mut script);
    messages::data(|out| out.write_all(&script))?;
    Ok(ExitCode::SUCCESS)
}
