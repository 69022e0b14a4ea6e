//! `torchspy man -o DIR`.

use crate::cli::args::Arguments;
use crate::cli::failure::Failure;
use crate::cli::formats::Format;
use crate::cli::messages;
use crate::cli::output_file::{cannot_write, write_named};
use crate::cli::output_names::OutputFile;
use crate::cli::plan::ManPlan;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use std::process::ExitCode;

pub(crate) fn run(plan: &ManPlan) -> Result<ExitCode, Failure> {
    std::fs::create_dir_all(&plan.folder).map_err(|error| cannot_write(&plan.folder, error))?;
    for command in pages() {
        let page = Man::new(command).source(concat!("torchspy ", env!("CARGO_PKG_VERSION")));
        let output = OutputFile::new(plan.folder.join(page.get_filename()), Format::Text);
        let mut text = Vec::new();
        page.render(&mut text)
            .map_err(|error| cannot_write(&output.path, error))?;
        write_named(&output, plan.force, &text)?;
        messages::data(|out| writeln!(out, "{}", output.path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// torchspy, and each of its commands: once built, clap calls them `torchspy-record` and so on, as
/// `man` does.
fn pages() -> Vec<Command> {
    let mut root = Arguments::command();
    root.build();
    let commands: Vec<Command> = root.get_subcommands().cloned().collect();
    [root].into_iter().chain(commands).collect()
}
