//! `--rules FILE`: rows of the user's own, read before anything else is done.

use super::failure::Failure;
use crate::torch::rules::RuleSet;
use std::io::Read;
use std::path::Path;

/// No file of rules is as large.
const MAX_BYTES: u64 = 1 << 20;

/// What functions are, by the rows of a file and by torchspy's own.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) set: &'static RuleSet,
    /// The file's text; `None` without a file.
    pub(crate) added: Option<String>,
}

impl Rules {
    /// Reads a file, if one is given.
    ///
    /// # Errors
    /// It cannot be read, or a line of it is no rule.
    pub(super) fn read(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else {
            return Ok(Self {
                set: RuleSet::built_in(),
                added: None,
            });
        };
        let text = text_of(path)?;
        let set = RuleSet::with(&text).map_err(|error| {
            Failure::usage(
                format!("{}:{}: {}", path.display(), error.line, one_line(&error.message)),
                "torchspy rules --toml prints torchspy's own rules, whose head explains the keys of a row",
            )
        })?;
        Ok(Self {
            // There is one set in a run of the program, and it is in use up to its end.
            set: Box::leak(Box::new(set)),
            added: Some(text),
        })
    }
}

fn text_of(path: &Path) -> Result<String, Failure> {
    const HINT: &str = "--rules takes a TOML file; torchspy rules --toml prints one";
    let shown = path.display();
    let mut text = String::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text));
    match read {
        Err(error) => Err(Failure::usage(
            format!("cannot read {shown}: {error}"),
            HINT,
        )),
        Ok(bytes) if bytes as u64 > MAX_BYTES => Err(Failure::usage(
            format!("{shown} is larger than {MAX_BYTES} bytes"),
            HINT,
        )),
        Ok(_) => Ok(text),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
