//! Hints for users of py-spy: what to type instead of options that torchspy does not have, or has
//! for another command.
//!
//! Most of py-spy's options mean here what they mean there (py-spy 0.4, `py-spy record --help`);
//! these are the others.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// Options that are not torchspy's: of which subcommands, their names, and what to do.
const OTHERS: &[(&[&str], &[&str], &str)] = &[
    (
        &["dump"],
        &["-c", "--core"],
        "torchspy reads processes that live; py-spy dump --core reads core files",
    ),
    (
        &["dump"],
        &["--full-filenames"],
        "with --json every frame has its full path",
    ),
    (
        &["top"],
        &["--full-filenames"],
        "record --full-filenames draws full paths; top has no room for them",
    ),
    (
        &["top"],
        &["--delay"],
        "top draws what is new as it comes, twice a second",
    ),
    (
        &["dump", "top"],
        &["-f", "--format", "-o", "--output", "-d", "--duration"],
        "torchspy record writes files: torchspy record --pid PID -d 30 -o profile.svg",
    ),
    (
        &["report"],
        &["-f", "--format", "-o", "--output"],
        "report prints; torchspy convert writes files: torchspy convert run.tspy -o run.json",
    ),
    (
        &["convert"],
        &["--csv"],
        "report prints its tables: torchspy report run.tspy --csv TABLE",
    ),
];

/// What to do about arguments that clap refuses; `None` where clap's own message is as good.
pub(super) fn hint(arguments: &[OsString], error: &clap::Error) -> Option<String> {
    let words: Vec<String> = arguments
        .iter()
        .skip(1)
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let subcommand = words.first()?.as_str();
    let invalid = match error.get(ContextKind::InvalidArg)? {
        ContextValue::String(text) => text.as_str(),
        _ => return None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => unknown(&words, subcommand, invalid),
        _ => None,
    }
}

fn unknown(words: &[String], subcommand: &str, invalid: &str) -> Option<String> {
    let at = words
        .iter()
        .position(|word| word == invalid || word.starts_with(invalid) && invalid.starts_with("--"));
    if subcommand.starts_with('-') && ["-p", "--pid"].contains(&invalid) {
        return Some(format!(
            "name a command: {}; or dump, or top",
            line(&[&["record".to_owned()], words].concat())
        ));
    }
    let other = OTHERS
        .iter()
        .find(|(of, names, _)| of.contains(&subcommand) && names.contains(&invalid));
    if let Some((_, _, what)) = other {
        return Some((*what).to_owned());
    }
    let at = at?;
    let takes_pid = ["record", "top", "dump"].contains(&subcommand);
    if takes_pid && super::args::parse_pid(invalid).is_ok() {
        let mut words = words.to_vec();
        words.insert(at, "--pid".to_owned());
        return Some(format!("a process is given with --pid: {}", line(&words)));
    }
    if ["record", "convert"].contains(&subcommand)
        && at
            .checked_sub(1)
            .is_some_and(|before| words[before] == "--threads")
    {
        let mut words = words.to_vec();
        words[at - 1] = "--thread-name".to_owned();
        return Some(format!("threads go by their name with {}", line(&words)));
    }
    if ["record", "top"].contains(&subcommand) && !invalid.starts_with('-') {
        let mut words = words.to_vec();
        words.insert(at, "--".to_owned());
        let done = match subcommand {
            "top" => "watched",
            _ => "recorded",
        };
        return Some(format!(
            "a command to be {done} follows --: {}",
            line(&words)
        ));
    }
    None
}

/// A line to type.
fn line(words: &[String]) -> String {
    let mut line = "torchspy".to_owned();
    for word in words {
        line.push(' ');
        let is_plain = !word.is_empty()
            && word
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_=./:,+@%".contains(&byte));
        match is_plain {
            true => line.push_str(word),
            false => line.push_str(&format!("'{}'", word.replace('\'', "'\\''"))),
        }
    }
    line
}
