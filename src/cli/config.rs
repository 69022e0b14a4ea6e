//! Options that are set elsewhere than on the command line: in the environment, in `torchspy.toml`
//! or `[tool.torchspy]` of `pyproject.toml`, and in the user's own file.
//!
//! They become arguments like those that were typed, before these, and are checked as these are.

use super::args::Arguments;
use super::failure::Failure;
use super::messages;
use super::regular::open_regular;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, Command, CommandFactory};
use nix::unistd::Uid;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The file of a project, and the user's own.
const FILE: &str = "torchspy.toml";
/// A file that a project's tools share, and the table of torchspy's options in it.
const SHARED_FILE: &str = "pyproject.toml";
const SHARED_TABLE: &[&str] = &["tool", "torchspy"];
/// Names a file to read instead of those; empty: none is read.
const FILE_VARIABLE: &str = "TORCHSPY_CONFIG";
/// Options that the environment does not set: torchspy gives `TORCHSPY_PID` to the programs that it
/// starts, and reads the others where the job is described.
const NOT_IN_ENVIRONMENT: [&str; 3] = ["pid", "job", "mesh"];

/// An option that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// The command that it is for; `None`: all that have the option.
    pub(super) command: Option<String>,
    /// The option's long name.
    pub(super) option: String,
    /// What it is set to. A switch is `true` or `false`.
    pub(super) values: Vec<String>,
    /// `TORCHSPY_RATE`, or a file and a line.
    pub(super) from: String,
}

impl Setting {
    /// Its name in a file: `record.rate`.
    pub(super) fn name(&self) -> String {
        match &self.command {
            Some(command) => format!("{command}.{}", self.option),
            None => self.option.clone(),
        }
    }
}

/// All that is set, the strongest first.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) all: Vec<Setting>,
    /// The files that were read.
    pub(super) files: Vec<PathBuf>,
}

/// Adds what is set for its command to a command line. Options of the command line come before
/// those of the environment, and these before those of files; an option that does not go with one
/// that comes before it is left out.
///
/// # Errors
/// A file that cannot be read, an option that does not exist, a value that it does not take.
pub(super) fn complete(typed: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    let root = command();
    let Ok(matches) = root.clone().try_get_matches_from(&typed) else {
        // It is answered where it is parsed.
        return Ok(typed);
    };
    let Some((name, given)) = matches.subcommand() else {
        return Ok(typed);
    };
    let Some(command) = root.find_subcommand(name) else {
        return Ok(typed);
    };
    let settings = Settings::read(&root)?;
    let is_typed =
        |arg: &Arg| given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let open = settings
        .of(command)
        .into_iter()
        .filter(|(arg, _)| !is_typed(arg));
    let (mut kept, mut open): (Vec<OsString>, Vec<_>) = (Vec::new(), open.collect());
    // An option may need another that is set, too.
    loop {
        let mut left = Vec::new();
        let before = open.len();
        for (arg, setting) in open {
            let added = words(arg, setting)?;
            let tried = with(&typed, kept.iter().chain(&added));
            match root
                .clone()
                .try_get_matches_from(tried)
                .map_err(|error| error.kind())
            {
                Ok(_) => kept.extend(added),
                Err(ErrorKind::ArgumentConflict | ErrorKind::MissingRequiredArgument) => {
                    left.push((arg, setting));
                }
                Err(_) => return Err(wrong(setting)),
            }
        }
        if left.len() == before || left.is_empty() {
            return Ok(with(&typed, kept.iter()));
        }
        open = left;
    }
}

/// Says where an option comes from that an error names, if it may not have been typed.
pub(super) fn with_origin(failure: Failure) -> Failure {
    let Ok(settings) = Settings::read(&command()) else {
        return failure;
    };
    let text = failure.text();
    let names = |setting: &&Setting| {
        let option = format!("--{}", setting.option);
        text.split([' ', ':', '=', '\'', ','])
            .any(|word| word == option)
    };
    match settings.all.iter().find(names) {
        Some(setting) => {
            let hint = failure
                .hint
                .clone()
                .map_or_else(String::new, |hint| format!("{hint}\n"));
            let origin = format!("{} is set by {}", setting.name(), setting.from);
            failure.hint(format!(
                "{hint}{origin}; torchspy config shows all that is set"
            ))
        }
        None => failure,
    }
}

/// The commands and their options.
pub(super) fn command() -> Command {
    let mut root = Arguments::command();
    root.build();
    root
}

fn with<'w>(typed: &'w [OsString], added: impl Iterator<Item = &'w OsString>) -> Vec<OsString> {
    let (head, tail) = typed.split_at(typed.len().min(2));
    head.iter().chain(added).chain(tail).cloned().collect()
}

/// An option's words on a command line.
fn words(arg: &Arg, setting: &Setting) -> Result<Vec<OsString>, Failure> {
    let option = &setting.option;
    let takes_value = arg.get_action().takes_values();
    let may_lack_value = arg
        .get_num_args()
        .is_some_and(|range| range.min_values() == 0);
    let one = |value: &String| match value.as_str() {
        "true" if !takes_value || may_lack_value => Ok(Some(format!("--{option}").into())),
        "false" if !takes_value || may_lack_value => Ok(None),
        _ if takes_value => Ok(Some(format!("--{option}={value}").into())),
        _ => Err(wrong(setting)),
    };
    let words: Result<Vec<Option<OsString>>, Failure> = setting.values.iter().map(one).collect();
    Ok(words?.into_iter().flatten().collect())
}

fn wrong(setting: &Setting) -> Failure {
    Failure::usage(
        format!(
            "{}: {} cannot be {}",
            setting.from,
            setting.name(),
            setting.values.join(", ")
        ),
        match &setting.command {
            Some(command) => format!(
                "torchspy {command} --help says what --{} takes",
                setting.option
            ),
            None => format!(
                "the --help of a command says what --{} takes",
                setting.option
            ),
        },
    )
}

impl Settings {
    /// Reads the environment and the files.
    ///
    /// # Errors
    /// Those of [`complete`].
    pub(super) fn read(root: &Command) -> Result<Self, Failure> {
        let mut settings = Self {
            all: of_environment(root),
            ..Self::default()
        };
        match std::env::var_os(FILE_VARIABLE) {
            Some(path) if path.is_empty() => {}
            Some(path) => {
                let path = PathBuf::from(path);
                let text = read(&path).map_err(|error| {
                    let text = format!("{FILE_VARIABLE}: cannot read {}: {error}", path.display());
                    Failure::usage(
                        text,
                        "name a file, or leave the variable empty to read none",
                    )
                })?;
                let is_shared = path.file_name().is_some_and(|name| name == SHARED_FILE);
                let table = if is_shared { SHARED_TABLE } else { &[] };
                settings.take(root, path, &text, table)?;
            }
            None => {
                if let Some((path, text, table)) = project_file() {
                    settings.take(root, path, &text, table)?;
                }
                let own = own_file().and_then(|path| Some((read_trusted(&path)?, path)));
                if let Some((text, path)) = own {
                    settings.take(root, path, &text, &[])?;
                }
            }
        }
        Ok(settings)
    }

    /// The options that are set for a command, the strongest setting of each.
    pub(super) fn of<'s, 'c>(&'s self, command: &'c Command) -> Vec<(&'c Arg, &'s Setting)> {
        let options = command
            .get_arguments()
            .filter_map(|arg| Some((arg, arg.get_long()?)));
        let set = options.filter_map(|(arg, long)| {
            let is_for = |setting: &&Setting| {
                let name = setting.command.as_deref();
                setting.option == long && name.is_none_or(|name| name == command.get_name())
            };
            Some((arg, self.all.iter().find(is_for)?))
        });
        set.collect()
    }

    /// The options that a command without options of its own gets, as words.
    ///
    /// # Errors
    /// A value that an option does not take.
    pub(super) fn line_of(&self, command: &Command) -> Result<Vec<String>, Failure> {
        let mut line = Vec::new();
        for (arg, setting) in self.of(command) {
            let words = words(arg, setting)?;
            line.extend(words.iter().map(|word| word.to_string_lossy().into_owned()));
        }
        Ok(line)
    }

    /// Adds what the table of a file says, weaker than what is there.
    fn take(
        &mut self,
        root: &Command,
        path: PathBuf,
        text: &str,
        table: &[&str],
    ) -> Result<(), Failure> {
        let place = |at: usize| {
            let before = text.get(..at).unwrap_or_default();
            format!("{}:{}", path.display(), before.matches('\n').count() + 1)
        };
        let fail = |at: usize, what: &str, hint: &str| {
            Failure::usage(format!("{}: {what}", place(at)), hint)
        };
        let parsed = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            fail(at, error.message(), "the file is in TOML: rate = 50")
        })?;
        let mut rows = parsed.get_ref();
        for name in table {
            let Some(DeValue::Table(inner)) = rows.get(*name).map(Spanned::get_ref) else {
                return Ok(());
            };
            rows = inner;
        }
        let (mut special, mut general) = (Vec::new(), Vec::new());
        for (key, value) in rows {
            let name = key.get_ref().replace('_', "-");
            let DeValue::Table(inner) = value.get_ref() else {
                general.push((None, name, key.span().start, value.get_ref()));
                continue;
            };
            if root.find_subcommand(&name).is_none() {
                let hint =
                    "torchspy --help shows the commands; one has a table of its own: [record]";
                return Err(fail(
                    key.span().start,
                    &format!("there is no command {name}"),
                    hint,
                ));
            }
            for (key, value) in inner {
                let option = key.get_ref().replace('_', "-");
                special.push((
                    Some(name.clone()),
                    option,
                    key.span().start,
                    value.get_ref(),
                ));
            }
        }
        for (command, option, at, value) in special.into_iter().chain(general) {
            if !exists(root, command.as_deref(), &option) {
                let (what, hint) = match &command {
                    Some(name) => (
                        format!("{name} has no option {option}"),
                        format!("torchspy {name} --help shows them"),
                    ),
                    None => (
                        format!("no command has an option {option}"),
                        "torchspy record --help shows those of record".to_owned(),
                    ),
                };
                return Err(fail(at, &what, &hint));
            }
            let values = values(value).ok_or_else(|| {
                let what = format!("{option} cannot be a table, a date or an empty list");
                fail(
                    at,
                    &what,
                    "a text, a number, true, false, or a list of these",
                )
            })?;
            self.all.push(Setting {
                command,
                option,
                values,
                from: place(at),
            });
        }
        self.files.push(path);
        Ok(())
    }
}

fn exists(root: &Command, command: Option<&str>, option: &str) -> bool {
    let has = |command: &Command| {
        command
            .get_arguments()
            .any(|arg| arg.get_long() == Some(option))
    };
    match command {
        Some(name) => root.find_subcommand(name).is_some_and(has),
        None => root.get_subcommands().any(has),
    }
}

fn values(value: &DeValue<'_>) -> Option<Vec<String>> {
    Some(match value {
        DeValue::String(text) => vec![text.to_string()],
        DeValue::Integer(number) => vec![number.to_string()],
        DeValue::Float(number) => vec![number.to_string()],
        DeValue::Boolean(is) => vec![is.to_string()],
        DeValue::Array(items) if items.is_empty() => return None,
        DeValue::Array(items) => {
            let each = items.iter().map(|item| values(item.get_ref()));
            each.collect::<Option<Vec<_>>>()?.concat()
        }
        DeValue::Datetime(_) | DeValue::Table(_) => return None,
    })
}

/// `TORCHSPY_RECORD_RATE` for one command, then `TORCHSPY_RATE` for all. Variables that are no
/// option are others'.
fn of_environment(root: &Command) -> Vec<Setting> {
    let (mut special, mut general) = (Vec::new(), Vec::new());
    for (variable, value) in std::env::vars_os() {
        let (Some(variable), Some(value)) = (variable.to_str(), value.to_str()) else {
            continue;
        };
        let Some(name) = variable.strip_prefix("TORCHSPY_") else {
            continue;
        };
        let name = name.to_ascii_lowercase().replace('_', "-");
        let setting = |command: Option<&str>, option: &str| Setting {
            command: command.map(str::to_owned),
            option: option.to_owned(),
            values: vec![
                match value {
                    "1" | "yes" | "on" if is_switch(root, option) => "true",
                    "0" | "no" | "off" | "" if is_switch(root, option) => "false",
                    _ => value,
                }
                .to_owned(),
            ],
            from: variable.to_owned(),
        };
        for command in root.get_subcommands().map(Command::get_name) {
            let option = name
                .strip_prefix(command)
                .and_then(|rest| rest.strip_prefix('-'));
            if let Some(option) = option.filter(|option| exists(root, Some(command), option)) {
                special.push(setting(Some(command), option));
            }
        }
        if exists(root, None, &name) && !NOT_IN_ENVIRONMENT.contains(&name.as_str()) {
            general.push(setting(None, &name));
        }
    }
    special.extend(general);
    special
}

fn is_switch(root: &Command, option: &str) -> bool {
    let mut options = root.get_subcommands().flat_map(Command::get_arguments);
    options.any(|arg| arg.get_long() == Some(option) && !arg.get_action().takes_values())
}

/// The nearest file of this folder and those around it: its path and text, and the table in it.
fn project_file() -> Option<(PathBuf, String, &'static [&'static str])> {
    let folder = std::env::current_dir().ok()?;
    for folder in folder.ancestors() {
        let own = folder.join(FILE);
        if let Some(text) = read_trusted(&own) {
            return Some((own, text, &[]));
        }
        let shared = folder.join(SHARED_FILE);
        // Others' files may be broken.
        if read(&shared).is_ok_and(|text| text.contains("[tool.torchspy"))
            && let Some(text) = read_trusted(&shared)
        {
            return Some((shared, text, SHARED_TABLE));
        }
    }
    None
}

/// The text of a file that this user made, or root. Another's may name programs to start and places
/// to send recordings to.
fn read_trusted(path: &Path) -> Option<String> {
    let owner = match fs::metadata(path) {
        Ok(file) => file.uid(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return not_read(path, &error),
    };
    let own = Uid::effective();
    let before_sudo = std::env::var("SUDO_UID").ok().filter(|_| own.is_root());
    let is_own = owner == own.as_raw() || owner == 0 || before_sudo == Some(owner.to_string());
    if !is_own {
        messages::warning(&format!(
            "{} is not read: it belongs to another user; {FILE_VARIABLE}={} would read it",
            path.display(),
            path.display()
        ));
        return None;
    }
    read(path).map_or_else(|error| not_read(path, &error), Some)
}

fn not_read(path: &Path, error: &io::Error) -> Option<String> {
    messages::warning(&format!("{} is not read: {error}", path.display()));
    None
}

/// The text of a regular file.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open_regular(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// The user's own file, whether it is there or not.
pub(super) fn own_file() -> Option<PathBuf> {
    let home = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
    let folder = home("XDG_CONFIG_HOME").map(PathBuf::from);
    let folder = folder.or_else(|| Some(Path::new(&home("HOME")?).join(".config")))?;
    Some(folder.join("torchspy").join(FILE))
}
