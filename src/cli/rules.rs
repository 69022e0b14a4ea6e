//! `--rules FILE`: rows of the user's own, read before anything else is done.

use super::failure::Failure;
use super::messages;
use crate::model::category::FrameKind;
use crate::model::module::ModuleKind;
use crate::model::operator::OperatorMark;
use crate::model::profile::Profile;
use crate::torch::rules::{Explanation, Listed, RowId, RuleSet, listed};
use std::collections::HashSet;
use std::io::Read;
use std::path::Path;

/// Maximum size of a rules file, bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Rows without a match that are named, and functions that a hint lists.
const LISTED: usize = 8;
/// Values of a pattern that one line names.
const VALUES: usize = 4;

/// The rules of a file and torchspy's own.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) set: &'static RuleSet,
    /// `None` without a file.
    added: Option<Added>,
}

/// A file of the user's.
#[derive(Clone, Debug)]
struct Added {
    shown: String,
    text: String,
}

impl Rules {
    /// Whether there are none but torchspy's own.
    pub(crate) fn are_built_in(&self) -> bool {
        self.added.is_none()
    }

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
        let shown = path.display().to_string();
        let set = RuleSet::with(&text).map_err(|error| {
            Failure::usage(
                format!("{shown}:{}: {}", error.line, one_line(&error.message)),
                "a row begins with [[python]] or [[native]]; torchspy rules --toml prints torchspy's own rows, and its heads explain their keys",
            )
        })?;
        Ok(Self {
            // There is one set per run of the program, and it is in use to the end.
            set: Box::leak(Box::new(set)),
            added: Some(Added { shown, text }),
        })
    }

    /// The rows as they are written, the user's first.
    pub(crate) fn listed(&self) -> Vec<Listed> {
        listed(self.added.as_ref().map(|added| added.text.as_str()))
    }

    /// `python.toml:12`, or the user's file and the line.
    pub(crate) fn place(&self, row: &Listed) -> String {
        let added = self.added.as_ref().map(|added| added.shown.as_str());
        format!("{}:{}", row.file.or(added).unwrap_or_default(), row.line)
    }

    /// Warns of the user's rows that matched nothing in a recording.
    pub(crate) fn warn_of_unmatched(&self, profile: &Profile) {
        if self.added.is_none() {
            return;
        }
        let matched = self.matched(profile);
        let rows = self.listed();
        let own = by_id(&rows).filter(|(_, row)| row.file.is_none());
        let unmatched: Vec<(RowId, &Listed)> = own
            .filter(|(id, row)| row.subject != "class" && !matched.contains(id))
            .collect();
        for (id, row) in unmatched.iter().take(LISTED) {
            messages::warning(&format!(
                "{}: nothing in this recording matches {}",
                self.place(row),
                head(row)
            ));
            if let Some(hint) = self.seen_in_files(profile, *id, row) {
                messages::hint(&hint);
            }
        }
        if let Some(more @ 1..) = unmatched.len().checked_sub(LISTED) {
            messages::warning(&format!(
                "nothing in this recording matches {more} more rows of --rules"
            ));
        }
    }

    fn matched(&self, profile: &Profile) -> HashSet<RowId> {
        let mut matched = HashSet::new();
        for function in &profile.functions {
            if function.kind == FrameKind::Marker {
                continue;
            }
            let Explanation {
                matching,
                decisions,
                ..
            } = match function.is_python {
                true => self.set.explain_python(&function.file, &function.name),
                false => {
                    // Without a symbol the name is an address in the file.
                    let symbol = Some(function.name.as_str()).filter(|name| !name.contains("+0x"));
                    let file = &function.file;
                    self.set.explain_native(ModuleKind::File, file, symbol)
                }
            };
            matched.extend(matching);
            matched.extend(decisions.iter().map(|decision| decision.row));
            if let OperatorMark::Operator(name) = &function.operator {
                let row = self.set.call_row(name);
                matched.extend(row.map(|at| RowId {
                    subject: "call",
                    at,
                }));
            }
        }
        for thread in &profile.threads {
            let rows = self.set.thread_rows(&thread.name);
            matched.extend(rows.map(|at| RowId {
                subject: "thread",
                at,
            }));
        }
        matched
    }

    /// Of a row for functions of files: those that were seen there.
    fn seen_in_files(&self, profile: &Profile, id: RowId, row: &Listed) -> Option<String> {
        let names_functions = row.patterns.iter().any(|(key, _)| key == "function");
        if id.subject != "python" || !names_functions {
            return None;
        }
        let python = profile.functions.iter().filter(|each| each.is_python);
        let mut seen: Vec<&str> = python
            .filter(|each| self.set.is_for_file(id.at, &each.file))
            .map(|each| each.name.as_str())
            .collect();
        seen.sort_unstable();
        seen.dedup();
        (!seen.is_empty())
            .then(|| format!("functions that were seen there: {}", some(&seen, LISTED)))
    }
}

/// Rows with their ids.
pub(crate) fn by_id(rows: &[Listed]) -> impl Iterator<Item = (RowId, &Listed)> {
    let mut before = ("", 0);
    rows.iter().map(move |row| {
        let at = if before.0 == row.subject {
            before.1 + 1
        } else {
            0
        };
        before = (row.subject, at);
        let subject = row.subject;
        (RowId { subject, at }, row)
    })
}

/// The pattern of a row, in one line.
pub(crate) fn head(row: &Listed) -> String {
    let patterns = row.patterns.iter().map(|(key, values)| {
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        format!("{key} {}", some(&values, VALUES))
    });
    let patterns: Vec<String> = patterns.collect();
    format!("[[{}]] {}", row.subject, patterns.join("; "))
}

/// The first `most` words, and the number of further ones.
pub(crate) fn some(words: &[&str], most: usize) -> String {
    let shown = words.iter().take(most).copied().collect::<Vec<_>>();
    match words.len().saturating_sub(most) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
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
