//! Rules for people: rows as they are written, with what they are for and what they mean.

use super::SOURCES;
use toml::{Table, Value};

/// What rows are about: the names of their tables.
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
    /// What it is for: keys and their values.
    pub patterns: Vec<(String, Vec<String>)>,
    /// What that means: keys and values.
    pub meanings: Vec<(String, String)>,
    /// Where the fact comes from; empty where the user's own row has none.
    pub source: String,
    /// The first version that has it; empty where all have.
    pub since: String,
}

/// The rows of a file that can be read, then those that are compiled in.
pub fn listed(added: Option<&str>) -> Vec<Listed> {
    let texts: Vec<&str> = added
        .into_iter()
        .chain(SOURCES.iter().map(|&(_, text)| text))
        .collect();
    let tables: Vec<Table> = texts.iter().filter_map(|text| text.parse().ok()).collect();
    let mut rows = Vec::new();
    for &subject in SUBJECTS {
        for table in &tables {
            match table.get(subject) {
                Some(Value::Array(all)) => {
                    let all = all.iter().filter_map(Value::as_table);
                    rows.extend(all.map(|row| listed_row(subject, row)));
                }
                // Classes, by name.
                Some(Value::Table(all)) => {
                    for (name, row) in all {
                        let mut row = row.as_table().cloned().unwrap_or_default();
                        row.insert("name".to_owned(), Value::String(name.clone()));
                        rows.push(listed_row(subject, &row));
                    }
                }
                _ => {}
            }
        }
    }
    rows
}

fn listed_row(subject: &'static str, row: &Table) -> Listed {
    let text = |key: &str| {
        row.get(key)
            .and_then(Value::as_str)
            .unwrap_or("")
            .to_owned()
    };
    let is_pattern = |key: &str| {
        // What names a collective or an operator in one table is a meaning in another.
        PATTERNS.contains(&key)
            && !(key == "operator" && matches!(subject, "python" | "native"))
            && !(key == "name" && subject == "collective")
    };
    let mut patterns = Vec::new();
    for &key in PATTERNS.iter().filter(|key| is_pattern(key)) {
        if let Some(value) = row.get(key) {
            patterns.push((key.to_owned(), words(value)));
        }
    }
    let meanings = row
        .iter()
        .filter(|(key, _)| !is_pattern(key) && !["source", "since"].contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), words(value).join(", ")))
        .collect();
    Listed {
        subject,
        patterns,
        meanings,
        source: text("source"),
        since: text("since"),
    }
}

fn words(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(all) => all.iter().flat_map(words).collect(),
        Value::Boolean(value) => vec![value.to_string()],
        _ => Vec::new(),
    }
}
