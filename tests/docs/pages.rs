//! The README, the book of docs/ and the help: links lead somewhere, command lines are taken, and
//! the first page stays short.

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
    Some(split(&words).iter().map(|word| number(word)).collect())
}

/// Words, of which those in single quotation marks may hold spaces.
fn split(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in text.split('\'').enumerate() {
        match index % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// Checks that the options of a command line are taken: with `--help` behind them nothing else is
/// done.
fn assert_taken(mut words: Vec<String>, shown_in: &str) {
    let end = words.iter().position(|word| word == "--" || word == ">");
    words.insert(end.unwrap_or(words.len()), "--help".to_owned());
    words.truncate(
        words
            .iter()
            .position(|word| word == ">")
            .unwrap_or(words.len()),
    );
    let output = Command::new(TORCHSPY).args(&words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{shown_in}: {words:?}\n{said}");
}

#[test]
fn command_lines_are_taken() {
    let mut checked = 0;
    for (path, text) in pages() {
        for words in prose_and_commands(&text).1.into_iter().filter_map(words_of) {
            assert_taken(words, &path.display().to_string());
            checked += 1;
        }
    }
    assert!(checked > 20, "only {checked} command lines found");
}

fn help(arguments: &[&str]) -> String {
    let output = Command::new(TORCHSPY).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The commands that `torchspy --help` lists.
fn commands() -> Vec<String> {
    let help = help(&["--help"]);
    let listed = help.split_once("\nCommands:\n").unwrap().1;
    let rows = listed.lines().take_while(|line| !line.is_empty());
    // Descriptions go on in lines that are set in further.
    let names = rows.filter(|line| !line.starts_with("   "));
    names
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .collect()
}

#[test]
fn the_help_of_every_command_has_two_examples_that_are_taken() {
    let commands = commands();
    assert!(commands.len() >= 10, "{commands:?}");
    let pages = [help(&["--help"])]
        .into_iter()
        .chain(commands.iter().map(|command| help(&[command, "--help"])));
    for page in pages {
        let (_, examples) = page.split_once("\nExamples:\n").expect(&page);
        // What stands behind two spaces is a remark.
        let lines = examples
            .lines()
            .map(|line| line.trim().split("  ").next().unwrap());
        let lines: Vec<Vec<String>> = lines.filter_map(words_of).collect();
        assert!(lines.len() >= 2, "{page}");
        for words in lines {
            assert_taken(words, &page);
        }
    }
}

/// Runs a checker of man pages; what it says, or `None` where it is not installed.
fn checked_by(program: &str, arguments: &[&str], page: &Path) -> Option<String> {
    let mut command = Command::new(program);
    match command.args(arguments).arg(page).output() {
        Ok(output) => Some(format!(
            "{}{}",
            String::from_utf8_lossy(&output.stderr),
            match arguments.contains(&"lint") {
                true => String::from_utf8_lossy(&output.stdout),
                false => "".into(),
            }
        )),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("{program}: {error}"),
    }
}

#[test]
fn every_command_has_a_man_page_that_groff_and_mandoc_take() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("new/man1");
    let output = folder.to_str().unwrap();
    let printed = help(&["man", "-o", output]);
    let mut names = vec!["torchspy.1".to_owned()];
    names.extend(
        commands()
            .iter()
            .map(|command| format!("torchspy-{command}.1")),
    );
    let expected: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    let paths: Vec<PathBuf> = printed.lines().map(PathBuf::from).collect();
    assert_eq!(paths, expected);
    for path in &paths {
        let text = fs::read_to_string(path).unwrap();
        assert!(text.contains("Examples:"), "{text}");
        let said = [
            (
                "groff",
                checked_by("groff", &["-man", "-ww", "-Tutf8"], path),
            ),
            (
                "mandoc",
                checked_by("mandoc", &["-T", "lint", "-W", "error"], path),
            ),
        ];
        for (program, said) in said {
            match said {
                Some(said) => assert_eq!(said, "", "{program}: {}", path.display()),
                None => println!("skipped: {program} is not installed"),
            }
        }
    }
    // What is there is replaced only where that is asked for.
    let mut again = Command::new(TORCHSPY);
    let refused = again.args(["man", "-o", output]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--force"));
    assert_eq!(help(&["man", "--force", "-o", output]), printed);
}
