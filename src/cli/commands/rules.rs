//! `torchspy rules [PATTERN]`, `torchspy rules --of FUNCTION`.

use super::rules_of;
use crate::cli::failure::Failure;
use crate::cli::messages;
use crate::cli::plan::RulesPlan;
use crate::cli::rules::Rules;
use crate::torch::rules::{Listed, SOURCES};
use std::fmt::Write;
use std::process::ExitCode;

/// Prints the rules, or those that the pattern is in.
pub(crate) fn run(plan: &RulesPlan) -> Result<ExitCode, Failure> {
    let text = match &plan.of {
        _ if plan.toml => SOURCES.iter().map(|&(_, text)| text).collect(),
        Some(function) => rules_of::text(function, &plan.rules)?,
        None => table(plan)?,
    };
    messages::data(|out| out.write_all(text.as_bytes()))?;
    Ok(ExitCode::SUCCESS)
}

fn table(plan: &RulesPlan) -> Result<String, Failure> {
    let rows = plan.rules.listed();
    let count = rows.len();
    let pattern = plan.pattern.as_deref().unwrap_or("").to_lowercase();
    let found: Vec<(String, String)> = rows
        .iter()
        .map(|row| lines(row, &plan.rules))
        .filter(|(head, body)| {
            head.to_lowercase().contains(&pattern) || body.to_lowercase().contains(&pattern)
        })
        .collect();
    if found.is_empty() {
        return Err(Failure::message(format!("no rule has `{pattern}` in it"))
            .hint("a pattern is part of a row's text, as in torchspy rules optimizer; torchspy rules --of FUNCTION tells which rows a function matches"));
    }
    let mut text = format!(
        "rules version {}: {} of {count} rows\n",
        plan.rules.set.version,
        found.len()
    );
    for (head, body) in found {
        let _ = write!(text, "\n{head}\n{body}");
    }
    Ok(text)
}

/// What a row matches, and what it means.
fn lines(row: &Listed, rules: &Rules) -> (String, String) {
    let patterns = row.patterns.iter();
    let patterns = patterns.map(|(key, values)| format!("{key} {}", values.join(" | ")));
    let head = format!(
        "{}: {}",
        row.subject,
        patterns.collect::<Vec<_>>().join("; ")
    );
    let meanings = row.meanings.iter();
    let meanings = meanings.map(|(key, value)| format!("{key} = {value}"));
    let mut body = format!("    {}\n", meanings.collect::<Vec<_>>().join("; "));
    if row.file.is_none() {
        let _ = writeln!(body, "    yours: {}", rules.place(row));
    }
    let since = match row.since.as_str() {
        "" => String::new(),
        since => format!(" (since {since})"),
    };
    if !row.source.is_empty() {
        let _ = writeln!(body, "    source: {}{since}", row.source);
    }
    (head, body)
}
