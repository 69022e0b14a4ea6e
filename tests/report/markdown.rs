//! Markdown: its tables are tables, whatever the names in them, and the text below them is the
//! report's.

use crate::analysis_builder::*;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::path::Path;
use std::process::Command;
use torchspy::analysis::analyze;
use torchspy::report::markdown::render;
use torchspy::report::text::{Detail, TextOptions, render_summary};

fn rendered(builder: Builder) -> (String, String) {
    let profile = builder.profile();
    let analysis = analyze(&profile);
    let mut bytes = Vec::new();
    render(&profile, &analysis, &mut bytes).unwrap();
    let options = TextOptions {
        detail: Detail::Brief,
        ..TextOptions::default()
    };
    let text = render_summary(&profile, &analysis, options);
    (String::from_utf8(bytes).unwrap(), text)
}

fn training(function: &str) -> Builder {
    let mut builder = Builder::trainer();
    let add = torch("at::_ops::add_Tensor::call(at::Tensor const&)");
    let kernel = torch("at::native::add(at::Tensor const&)");
    builder.ticks(
        0,
        300,
        S::Running,
        &[user("<module>", 90), user(function, 41), add, kernel],
    );
    builder.ticks(
        0,
        100,
        S::Running,
        &[user("<module>", 90), user("main", 44)],
    );
    builder
}

#[test]
fn the_verdict_tables_and_the_report() {
    insta::assert_snapshot!(rendered(training("step")).0);
}

#[test]
fn no_name_breaks_a_table_or_ends_the_report() {
    let (markdown, text) = rendered(training("a|b```c\n| <img src=x> ``"));
    assert!(text.contains("```"), "{text}");
    let (tables, below) = markdown.split_once("<details>").unwrap();
    let is_row = |line: &&str| line.starts_with('|');
    assert!(tables.lines().filter(is_row).count() > 6, "{tables}");
    let mut bars = 0;
    for line in tables.lines() {
        let found = line.replace("\\|", "").matches('|').count();
        assert!(found == bars || bars == 0 || found == 0, "{tables}");
        bars = found;
    }
    let (fence, rest) = below.split_once("text\n").unwrap();
    let fence = fence
        .trim_start_matches("<summary>The report</summary>")
        .trim();
    let (inside, after) = rest.split_once(&format!("\n{fence}\n")).unwrap();
    assert_eq!(format!("{inside}\n"), text);
    assert_eq!(after, "\n</details>\n");
}

/// Rows of each table, as cells' texts, and what is in blocks of code, as a Markdown library reads
/// them with GitHub's tables.
fn parsed(markdown: &str) -> (Vec<Vec<Vec<String>>>, Vec<String>) {
    let (mut tables, mut blocks, mut in_block) = (Vec::new(), Vec::new(), false);
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Table(_)) => tables.push(Vec::new()),
            Event::Start(Tag::TableHead | Tag::TableRow) => {
                tables.last_mut().unwrap().push(Vec::new());
            }
            Event::Start(Tag::TableCell) => {
                let table: &mut Vec<Vec<String>> = tables.last_mut().unwrap();
                table.last_mut().unwrap().push(String::new());
            }
            Event::Start(Tag::CodeBlock(_)) => {
                in_block = true;
                blocks.push(String::new());
            }
            Event::End(TagEnd::CodeBlock) => in_block = false,
            Event::Text(text) if in_block => blocks.last_mut().unwrap().push_str(&text),
            Event::Code(text) | Event::Text(text) => {
                let row = tables.last_mut().and_then(|table| table.last_mut());
                if let Some(cell) = row.and_then(|row| row.last_mut()) {
                    cell.push_str(&text);
                }
            }
            Event::Start(Tag::Link { .. } | Tag::Image { .. }) => panic!("a link: {markdown}"),
            _ => {}
        }
    }
    (tables, blocks)
}

#[test]
fn a_markdown_library_reads_tables_and_report() {
    let name = "a|b```c";
    let (markdown, text) = rendered(training(name));
    let (tables, blocks) = parsed(&markdown);
    assert_eq!(blocks, [text]);
    assert_eq!(tables.len(), 3, "{markdown}");
    for table in &tables {
        let columns = table[0].len();
        assert!(columns >= 3 && table.len() > 1, "{table:?}");
        assert!(table.iter().all(|row| row.len() == columns), "{table:?}");
    }
    let named = tables[1]
        .iter()
        .filter(|row| row.iter().any(|cell| cell == name));
    assert_eq!(named.count(), 1, "{:?}", tables[1]);
}

/// 60 lines for an issue: of many lines and operators the most important.
#[test]
fn a_long_report_has_sixty_lines() {
    let mut builder = Builder::trainer();
    let mut operators = vec![
        "add",
        "mul",
        "addmm",
        "relu",
        "conv2d",
        "softmax",
        "embedding",
    ];
    operators.extend(["layer_norm", "dropout", "gelu"]);
    for round in 0..40 {
        for (at, name) in operators.iter().enumerate() {
            let operator = torch(&format!("at::_ops::{name}::call(at::Tensor const&)"));
            let function = user(&format!("function_{at}"), 10 + at as u32);
            let state = [S::Running, S::Futex, S::Poll, S::Nanosleep, S::Disk][(at + round) % 5];
            builder.ticks(0, 3, state, &[user("<module>", 90), function, operator]);
        }
    }
    let (markdown, text) = rendered(builder);
    let lines = markdown.lines().count();
    assert!((45..=60).contains(&lines), "{lines} lines:\n{markdown}");
    let (_, blocks) = parsed(&markdown);
    assert_eq!(blocks.len(), 1);
    let verdict = text
        .lines()
        .find(|line| line.starts_with("VERDICT"))
        .unwrap();
    assert!(blocks[0].contains(verdict), "{markdown}");
}

#[test]
fn the_summary_of_a_job_gets_the_report_besides() {
    let recording = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/recording/v2.tspy"
    );
    let folder = tempfile::tempdir().unwrap();
    let summary = folder.path().join("summary");
    std::fs::write(&summary, "# Of another command\n").unwrap();
    let run = |arguments: &[&str], path: Option<&Path>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_torchspy"));
        command.args(arguments).env_remove("GITHUB_STEP_SUMMARY");
        command.envs(path.map(|path| ("GITHUB_STEP_SUMMARY", path)));
        command.output().unwrap()
    };
    let report = ["report", recording, "--json", "--github-summary"];
    let output = run(&report, Some(&summary));
    assert!(output.status.success(), "{output:?}");
    assert!(
        output.stdout.starts_with(b"{"),
        "it prints what it was asked for"
    );
    let markdown = run(&["convert", recording, "-o", "-", "-f", "markdown"], None).stdout;
    let written = std::fs::read(&summary).unwrap();
    assert_eq!(
        written,
        [b"# Of another command\n\n\n", &markdown[..]].concat()
    );
    let output = run(&report, None);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said.contains("GITHUB_STEP_SUMMARY is not set") && said.contains("hint:"),
        "{said}"
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn recordings_are_converted() {
    let recording = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/recording/v2.tspy"
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.md");
    let convert = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_torchspy"));
        command.args(["convert", recording]).args(more);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    convert(&["-o", file.to_str().unwrap()]);
    let written = std::fs::read(&file).unwrap();
    assert!(written.starts_with(b"### torchspy: `"));
    assert_eq!(written, convert(&["-o", "-", "--format", "markdown"]));
}
