//! Output: messages on standard error, data on standard output.
//!
//! Text from a target (names, paths, command lines) never brings control bytes to the terminal. A
//! closed stream is not an error: a message is lost, and a command that writes data ends quietly.

use super::failure::Failure;
pub(crate) use crate::model::text::printable;
use clap::error::ErrorKind;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

/// For a Ctrl-Z that cannot be obeyed.
pub(crate) const NOT_STOPPED: &str = "not stopped: a thread of the target is blocked in the kernel, and would stay stopped as well; try again";

/// `warning: …`
pub(crate) fn warning(text: &str) {
    line("warning: ", text);
}

/// A line without a prefix.
pub(crate) fn note(text: &str) {
    line("", text);
}

/// `hint: …`; further lines of the text are aligned with its first.
pub(crate) fn hint(text: &str) {
    for (index, text) in text.lines().enumerate() {
        line(if index == 0 { "hint: " } else { "      " }, text);
    }
}

/// `error: …` and `hint: …`; returns the exit status.
pub(crate) fn failure(failure: &Failure) -> ExitCode {
    line("error: ", &failure.text());
    if let Some(text) = &failure.hint {
        hint(text);
    }
    ExitCode::from(failure.status)
}

/// `warning: …` and `hint: …`, for what went wrong without ending the command.
pub(crate) fn failed(failure: &Failure) {
    warning(&failure.text());
    if let Some(text) = &failure.hint {
        hint(text);
    }
}

/// The error that a torchspy in a process of its own has written to its standard error, without its
/// hint.
pub(crate) fn error_in(stderr: &str) -> Option<&str> {
    let mut lines = stderr.lines();
    lines.find_map(|line| line.strip_prefix("error: "))
}

/// `a, b, c and 4 more`: at most `most` of the names.
pub(crate) fn list(names: &[&str], most: usize) -> String {
    let shown = names.get(..most).unwrap_or(names).join(", ");
    match names.len().saturating_sub(most) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Several lines, such as the summary, with their line ends kept.
pub(crate) fn block(text: &str) {
    for text in text.lines() {
        note(text);
    }
}

fn line(prefix: &str, text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = writeln!(stderr, "{prefix}{}", printable(text));
}

/// Help, a version, or clap's error in torchspy's form, `error:` and `hint:`.
///
/// `advice` replaces clap's own tip.
pub(crate) fn parse_error(error: &clap::Error, advice: Option<String>) -> ExitCode {
    if !error.use_stderr() {
        let help = error.render();
        let _ = data(|out| match io::stdout().is_terminal() {
            true => write!(out, "{}", help.ansi()),
            false => write!(out, "{help}"),
        });
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        block(&error.render().to_string());
        return ExitCode::from(2);
    }
    let text = error.render().to_string();
    block(&in_own_form(&text, error.kind(), advice.is_none()));
    if let Some(advice) = advice {
        hint(&advice);
    }
    ExitCode::from(2)
}

/// clap's text; with its tip as a hint where it is `hinted`, and a hint where it has none.
fn in_own_form(text: &str, kind: ErrorKind, hinted: bool) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut needs_hint = hinted;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let more = line.starts_with("For more information");
        if let Some(tip) = line.trim_start().strip_prefix("tip: ") {
            // An option that is not known is hardly meant as the program to start.
            if hinted && !tip.starts_with("to pass '") {
                needs_hint = false;
                lines.push(format!("hint: {tip}"));
            }
        } else if !more {
            lines.push(line.to_owned());
        } else if needs_hint {
            lines.push(match kind {
                ErrorKind::UnknownArgument if takes_pid(text).is_some() => format!(
                    "hint: the process is given with --pid: torchspy {} --pid 4242; --help shows the other options",
                    takes_pid(text).unwrap_or_default()
                ),
                _ => "hint: --help shows the options".to_owned(),
            });
        }
    }
    lines.join("\n")
}

/// The command of clap's text, if it takes a process by `--pid` alone.
fn takes_pid(text: &str) -> Option<&'static str> {
    let mut commands = ["dump", "watch"].into_iter();
    commands.find(|command| text.contains(&format!("torchspy {command}")))
}

/// Writes data to standard output. A reader that has gone away (`| head`) is not an error.
pub(crate) fn data(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    match write(&mut stdout).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(
            anyhow::Error::new(error).context("cannot write to standard output"),
        )),
        Err(_) => {
            // What is still buffered has no reader: it must not be written again when the buffer is
            // dropped.
            let _ = stdout.into_parts();
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_bytes_are_shown_and_not_sent() {
        assert_eq!(
            printable("a\x1b[31mb\nc\u{202e}é"),
            "a\\x1b[31mb\\nc\\u{202e}é"
        );
    }
}
