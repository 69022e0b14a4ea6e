//! Markdown: its tables are tables, whatever the names in them, and the text below them is the
//! report's.

use crate::analysis_builder::*;
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
