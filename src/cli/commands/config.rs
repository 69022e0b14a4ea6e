//! `torchspy config`.

use crate::cli::config::{Settings, command, own_file};
use crate::cli::failure::Failure;
use crate::cli::messages;
use crate::cli::transport::quoted;
use clap::Command;
use std::fmt::Write as _;
use std::process::ExitCode;

/// Prints what is set, of one command or of all.
pub(crate) fn run(of: Option<&str>) -> Result<ExitCode, Failure> {
    let root = command();
    let settings = Settings::read(&root)?;
    let one = of.map(|name| {
        root.find_subcommand(name).ok_or_else(|| {
            let text = format!("there is no command {name}");
            Failure::usage(text, "torchspy --help shows the commands")
        })
    });
    let counting = match one.transpose()? {
        Some(command) => settings
            .of(command)
            .into_iter()
            .map(|(_, setting)| setting)
            .collect(),
        None => settings.all.iter().collect::<Vec<_>>(),
    };
    let mut text = String::new();
    let rows: Vec<(String, &str)> = counting
        .into_iter()
        .map(|setting| {
            let values = setting.values.join(", ");
            (
                format!("{} = {values}", setting.name()),
                setting.from.as_str(),
            )
        })
        .collect();
    if rows.is_empty() {
        text.push_str("nothing is set\n");
    } else {
        text.push_str("set, the strongest first; options on the command line come before all\n");
    }
    let width = rows
        .iter()
        .map(|(row, _)| row.chars().count())
        .max()
        .unwrap_or(0);
    for (row, from) in &rows {
        let _ = writeln!(text, "  {row:width$}  {from}");
    }
    text.push_str("\nlooked for, in this order\n  TORCHSPY_RECORD_RATE, TORCHSPY_RATE and so on\n");
    if std::env::var_os("TORCHSPY_CONFIG").is_some() {
        text.push_str("  the file of TORCHSPY_CONFIG alone\n");
    } else {
        text.push_str("  torchspy.toml, or [tool.torchspy] in pyproject.toml, here and in the folders above\n");
        if let Some(own) = own_file() {
            let _ = writeln!(text, "  {}", own.display());
        }
    }
    for file in &settings.files {
        let _ = writeln!(text, "read {}", file.display());
    }
    let is_shown = |command: &&Command| of.is_none_or(|name| name == command.get_name());
    for command in root.get_subcommands().filter(is_shown) {
        let line = settings.line_of(command)?;
        if !line.is_empty() {
            let name = command.get_name();
            let words: Vec<String> = line.iter().map(|word| quoted(word)).collect();
            let words = words.join(" ");
            let _ = writeln!(text, "\ntorchspy {name} is\n  torchspy {name} {words}");
        }
    }
    messages::data(|out| out.write_all(text.as_bytes()))?;
    Ok(ExitCode::SUCCESS)
}
