//! The README and the book of docs/: links lead somewhere, command lines are taken, and the first page stays short.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TORCHSPY: &str = env!("CARGO_BIN_EXE_torchspy");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The README and the pages of the book, with their texts.
fn pages() -> Vec<(PathBuf, String)> {
    let mut paths: Vec<PathBuf> = fs::read_dir(root().join("docs/src"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    paths.push(root().join("README.md"));
    paths.sort();
    let text = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        (path, text)
    };
    paths.into_iter().map(text).collect()
}

/// The text without its blocks, and the lines of those that are commands.
fn prose_and_commands(text: &str) -> (String, Vec<&str>) {
    let (mut prose, mut commands, mut block) = (String::new(), Vec::new(), None);
    for line in text.lines() {
        match (line.strip_prefix("```"), block) {
            (Some(language), None) => block = Some(language),
            (Some(_), Some(_)) => block = None,
            (None, Some("sh")) => commands.push(line),
            (None, Some(_)) => {}
            (None, None) => {
                prose.push_str(line);
                prose.push('\n');
            }
        }
    }
    (prose, commands)
}

/// Where links lead: `](target)`, but in spans of code.
fn links(prose: &str) -> Vec<String> {
    let outside: String = prose.split('`').step_by(2).collect();
    let parts = outside.split("](").skip(1);
    parts
        .map(|rest| rest.split(')').next().unwrap().to_owned())
        .collect()
}

/// The anchor that renderers of Markdown give a heading.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let text: String = heading.trim().to_lowercase().chars().filter(kept).collect();
    text.replace(' ', "-")
}

#[test]
fn links_lead_somewhere() {
    let (mut broken, mut checked) = (Vec::new(), 0);
    for (path, text) in pages() {
        for link in links(&prose_and_commands(&text).0) {
            if link.contains("://") {
                continue;
            }
            checked += 1;
            let (file, section) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().unwrap().join(file),
            };
            let there = fs::read(&target).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            let fits = there.is_ok_and(|text| {
                let headings = text.lines().filter(|line| line.starts_with('#'));
                let mut anchors = headings.map(|line| anchor(line.trim_start_matches('#')));
                section.is_empty() || anchors.any(|anchor| anchor == section)
            });
            if !fits {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(checked > 30, "only {checked} links found");
}

#[test]
fn every_page_is_in_the_summary() {
    let summary = fs::read_to_string(root().join("docs/src/SUMMARY.md")).unwrap();
    let listed = links(&summary);
    for (path, _) in pages() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let known = ["README.md", "SUMMARY.md"].contains(&name);
        assert!(known || listed.iter().any(|link| link == name), "{name}");
    }
}

#[test]
fn the_readme_is_short() {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    let lines = text.lines().count();
    assert!(lines <= 150, "{lines} lines");
}

/// A command line that is shown, as words; `None` for other lines.
fn words_of(line: &str) -> Option<Vec<String>> {
    let line = line.trim().strip_prefix("$ ").unwrap_or(line.trim());
    let line = line.split(" #").next().unwrap();
    let line = line.split(';').next().unwrap();
    let (program, rest) = line.split_once(' ')?;
    if !program.ends_with("torchspy") || rest.contains('…') || rest.contains("--help") {
        return None;
    }
    let number = |word: &str| match word {
        "PID" | "LAUNCHER" => "4242".to_owned(),
        word => word.to_owned(),
    };
    let words = rest.replace(['[', ']'], "");
    Some(words.split_whitespace().map(number).collect())
}

/// With `--help` behind them options are checked, and nothing is done.
#[test]
fn command_lines_are_taken() {
    let mut checked = 0;
    for (path, text) in pages() {
        for line in prose_and_commands(&text).1 {
            let Some(mut words) = words_of(line) else {
                continue;
            };
            let end = words.iter().position(|word| word == "--");
            words.insert(end.unwrap_or(words.len()), "--help".to_owned());
            let output = Command::new(TORCHSPY).args(&words).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success(),
                "{}: {line}\n{said}",
                path.display()
            );
            checked += 1;
        }
    }
    assert!(checked > 20, "only {checked} command lines found");
}
