//! Rules for people: rows as they are written, with their patterns and meanings.

use super::SOURCES;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Subjects of rows: the names of their tables.
pub const SUBJECTS: &[&str] = &[
    "python",
    "native",
    "class",
    "family",
    "own",
    "thread",
    "collective",
    "call",
];

/// Keys that select the functions of a row.
const PATTERNS: &[&str] = &[
    "file", "package", "library", "form", "function", "family", "files", "folder", "start", "is",
    "has", "word", "name", "operator",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its table: one of [`SUBJECTS`].
    pub subject: &'static str,
    /// Keys that select functions, with their values.
    pub patterns: Vec<(String, Vec<String>)>,
    /// Keys that classify them, with their values.
    pub meanings: Vec<(String, String)>,
    /// Source of the fact; empty if the user's own row has none.
    pub source: String,
    /// The first version that has it; empty if all have it.
    pub since: String,
    /// The built-in file; `None` for rows of the user.
    pub file: Option<&'static str>,
    /// Line in its file, from 1.
    pub line: usize,
}

/// The readable rows of the user's file, then the built-in rows.
pub fn listed(added: Option<&str>) -> Vec<Listed> {
    let texts = added.into_iter().map(|text| (None, text));
    let own = SOURCES.iter().map(|&(name, text)| (Some(name), text));
    let tables: Vec<(Place<'_>, DeTable<'_>)> = texts
        .chain(own)
        .filter_map(|(file, text)| Some((Place { file, text }, table_of(text)?)))
        .collect();
    let mut rows = Vec::new();
    for &subject in SUBJECTS {
        for (place, table) in &tables {
            match table.get(subject).map(Spanned::get_ref) {
                Some(DeValue::Array(all)) => {
                    let all = all
                        .iter()
                        .filter_map(|row| Some((row, row.get_ref().as_table()?)));
                    rows.extend(all.map(|(row, table)| place.row(subject, None, row, table)));
                }
                // Classes, by name.
                Some(DeValue::Table(all)) => {
                    let all = all
                        .iter()
                        .filter_map(|(name, row)| Some((name, row, row.get_ref().as_table()?)));
                    rows.extend(all.map(|(name, row, table)| {
                        place.row(subject, Some(name.get_ref()), row, table)
                    }));
                }
                _ => {}
            }
        }
    }
    rows
}

fn table_of(text: &str) -> Option<DeTable<'_>> {
    DeTable::parse(text).ok().map(Spanned::into_inner)
}

/// Position of a row.
struct Place<'t> {
    file: Option<&'static str>,
    text: &'t str,
}

impl Place<'_> {
    fn row(
        &self,
        subject: &'static str,
        name: Option<&str>,
        row: &Spanned<DeValue<'_>>,
        table: &DeTable<'_>,
    ) -> Listed {
        let text = |key: &str| {
            let value = table.get(key).and_then(|value| value.get_ref().as_str());
            value.unwrap_or("").to_owned()
        };
        let is_pattern = |key: &str| {
            // A key that names a collective or an operator in one table is a meaning in another.
            PATTERNS.contains(&key)
                && !(key == "operator" && matches!(subject, "python" | "native"))
                && !(key == "name" && subject == "collective")
        };
        let mut patterns = Vec::new();
        for &key in PATTERNS.iter().filter(|key| is_pattern(key)) {
            if let Some(value) = table.get(key) {
                patterns.push((key.to_owned(), words(value.get_ref())));
            }
        }
        patterns.extend(name.map(|name| ("name".to_owned(), vec![name.to_owned()])));
        let meanings = table
            .iter()
            .map(|(key, value)| (&**key.get_ref(), value))
            .filter(|(key, _)| !is_pattern(key) && !["source", "since"].contains(key))
            .map(|(key, value)| (key.to_owned(), words(value.get_ref()).join(", ")))
            .collect();
        Listed {
            subject,
            patterns,
            meanings,
            source: text("source"),
            since: text("since"),
            file: self.file,
            line: line_of(self.text, &row.span()),
        }
    }
}

/// The line of the start of a part of a text, from 1.
pub(super) fn line_of(text: &str, part: &Range<usize>) -> usize {
    let before = text.get(..part.start).unwrap_or(text);
    before.matches('\n').count() + 1
}

fn words(value: &DeValue<'_>) -> Vec<String> {
    match value {
        DeValue::String(text) => vec![text.to_string()],
        DeValue::Array(all) => all
            .iter()
            .flat_map(|value| words(value.get_ref()))
            .collect(),
        DeValue::Boolean(value) => vec![value.to_string()],
        _ => Vec::new(),
    }
}
