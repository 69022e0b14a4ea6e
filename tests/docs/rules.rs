//! Rules: the book's page of them, `torchspy rules`, and rows of a user's own.

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Output};
use torchspy::torch::rules::{Listed, RuleSet, SUBJECTS, listed};

fn run(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_torchspy");
    Command::new(program).args(arguments).output().unwrap()
}

fn in_tree(path: &str) -> String {
    format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))
}

fn cell(texts: impl Iterator<Item = String>) -> String {
    let texts: Vec<String> = texts.collect();
    texts.join("<br>").replace('|', "\\|")
}

fn page() -> String {
    let rules = listed(None);
    let mut text = format!(
        "# Rules\n\n<!-- Made by UPDATE_DOCS=1 cargo test --test docs -->\n\nVersion {}, {} rows that classify functions, libraries \
         and threads. [Attribution](attribution.md) explains their use; the heads of `python.toml`, `native.toml` and `input.toml` \
         in `src/torch/rules` explain each key. Each meaning is resolved by itself, by the first row that matches and has it. \
         `torchspy rules` prints the same.\n",
        RuleSet::built_in().version,
        rules.len()
    );
    for subject in SUBJECTS {
        writeln!(
            text,
            "\n## [[{subject}]]\n\n| for | means | source |\n|---|---|---|"
        )
        .unwrap();
        for row in rules.iter().filter(|row| row.subject == *subject) {
            text.push_str(&line(row));
        }
    }
    text
}

fn line(row: &Listed) -> String {
    let patterns = row.patterns.iter().map(|(key, values)| {
        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        format!("{key} {}", values.join(" "))
    });
    let meanings = row
        .meanings
        .iter()
        .map(|(key, value)| format!("{key}: {value}"));
    let since = (!row.since.is_empty()).then(|| format!("since {}", row.since));
    let source = std::iter::once(row.source.clone()).chain(since);
    format!(
        "| {} | {} | {} |\n",
        cell(patterns),
        cell(meanings),
        cell(source)
    )
}

#[test]
fn the_book_has_the_rules() {
    let path = in_tree("docs/src/attribution-rules.md");
    let wanted = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap();
    assert!(found == wanted, "UPDATE_DOCS=1 cargo test --test docs");
}

#[test]
fn rules_are_printed_by_pattern_and_as_a_file_that_can_be_read_again() {
    let output = run(&["rules", "_engine_run_backward"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "torch/autograd/graph.py",
        "phase = strong backward",
        "wait = engine",
        "source: torch",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("lr_scheduler"), "{text}");
    let output = run(&["rules", "--toml"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = RuleSet::with(&text).map(|rules| rules.added);
    assert!(rows.is_ok_and(|rows| rows > 200));
    let output = run(&["rules", "no such thing"]);
    assert_eq!(output.status.code(), Some(1));
}

const RECORDING: &str = "tests/fixtures/recording/v1.tspy";

#[test]
fn a_file_that_holds_no_rules_is_refused_before_anything_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    std::fs::write(
        &path,
        "[[python]]\nfile = \"acme/\"\nphase = \"strong inptu\"\n",
    )
    .unwrap();
    let rules = path.to_str().unwrap();
    let out = folder.path().join("out.svg");
    let out = out.to_str().unwrap();
    let recording = in_tree(RECORDING);
    for arguments in [
        vec!["report", &recording, "--rules", rules],
        vec!["convert", &recording, "-o", out, "--rules", rules],
        vec!["record", "-o", out, "--rules", rules, "--", "true"],
        vec!["diff", &recording, &recording, "--rules", rules],
        vec!["rules", "--rules", rules],
    ] {
        let output = run(&arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        let wanted = format!("error: {rules}:3: unknown phase mark `strong inptu`");
        assert!(said.starts_with(&wanted), "{said}");
        assert!(said.contains("hint:"), "{said}");
        assert!(output.stdout.is_empty());
        assert!(!Path::new(out).exists());
    }
    let output = run(&["report", &recording, "--rules", "/nowhere/mine.toml"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_report_says_that_rules_were_added() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    let rules = path.to_str().unwrap();
    let recording = in_tree(RECORDING);
    let added = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let output = run(&["report", "--json", &recording, "--rules", rules]);
        assert!(output.status.success());
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        report["added_rules"].clone()
    };
    let any = "[[python]]\nfile = \"*\"\nphase = \"strong checkpoint\"\n";
    let found = added(any);
    assert_eq!(found["rows"], 1);
    assert!(found["functions"].as_u64().unwrap() > 0, "{found}");
    assert!(added("").is_null());
    std::fs::write(&path, any).unwrap();
    let output = run(&["report", "--full", &recording, "--rules", rules]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("additional rules (--rules): 1"), "{text}");
}
