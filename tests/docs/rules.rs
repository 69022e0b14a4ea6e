//! Rules: the book's page of them, `torchspy rules`, and rows of a user's own.

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Output};
use torchspy::model::module::ModuleKind;
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
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("--of"), "{said}");
}

/// A file of rules in a folder that is deleted with it.
fn rules_file(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

const OWN: &str = r#"
[[python]]
file = "company/loader.py"
function = "MyLoader.__next__"
phase = "whole input"
input = "read"

[[native]]
file = "libfancy"
start = "fancy_"
class = "collective"
collective = "follows"

[[native]]
file = "libfancy"
start = "fancy_allreduce"
class = "aten"
"#;

#[test]
fn rules_say_which_row_decides_what_of_a_function() {
    let (_folder, mine) = rules_file(OWN);
    let of = |function: &str| {
        let output = run(&["rules", "--of", function, "--rules", &mine]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{function}: {said}");
        String::from_utf8(output.stdout).unwrap()
    };
    let loader = of("/home/u/company/loader.py:MyLoader.__next__");
    let row = format!("{mine}:2: [[python]] file company/loader.py; function MyLoader.__next__");
    assert!(loader.contains(&row), "{loader}");
    assert!(
        loader.contains("    phase = whole input\n    input = read\n"),
        "{loader}"
    );
    assert!(!loader.contains("none of your rows"), "{loader}");
    for function in [
        "libfancy.so:fancy_allreduce",
        "/opt/libfancy.so.2:fancy_allreduce",
        "fancy_allreduce",
    ] {
        let text = of(function);
        for part in [
            "    class = collective (",
            "    collective = follows\n",
            &format!("        {mine}:8: [[native]] file libfancy; start fancy_\n"),
            "    collective = all_reduce\n        native.toml:",
            &format!("    match, but decide nothing: {mine}:14\n"),
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    let item = of("at::_ops::item::call");
    for part in [
        "at::_ops::item::call, in libc10, ",
        "\nnone of your rows matches\n",
        "    operator = entry (aten::item)\n",
        "[[native]] family torch; start at::_ops::\n",
    ] {
        assert!(item.contains(part), "{part}: {item}");
    }
    // As nm prints it without -C.
    let mangled = of("libtorch_cpu.so:_ZN2at4_ops4item4callERKNS_6TensorE");
    assert!(
        mangled.contains("operator = entry (aten::item)"),
        "{mangled}"
    );
    let sum = of("ncclAllReduce");
    assert!(sum.contains("collective = all_reduce"), "{sum}");
}

#[test]
fn a_function_that_no_row_matches_is_an_error_with_a_hint() {
    let (_folder, mine) = rules_file(OWN);
    for function in [
        "/home/u/company/loader.py:__next__",
        "/home/u/company/other.py",
        "libunknown.so:work",
        "work",
    ] {
        let output = run(&["rules", "--of", function, "--rules", &mine]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{function}: {said}");
        let wanted = format!("error: no row matches `{function}`");
        assert!(said.starts_with(&wanted), "{said}");
        assert!(said.contains("hint:"), "{said}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn rows_of_the_user_s_are_marked_among_all() {
    let (_folder, mine) = rules_file(OWN);
    let output = run(&["rules", "--rules", &mine]);
    let text = String::from_utf8(output.stdout).unwrap();
    let marked: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("yours:"))
        .collect();
    let wanted = [2, 8, 14].map(|line| format!("    yours: {mine}:{line}"));
    assert_eq!(marked, wanted);
}

/// Each line of the examples in the book is a row that is read.
#[test]
fn the_book_s_examples_are_rules() {
    let text = std::fs::read_to_string(in_tree("docs/src/attribution.md")).unwrap();
    let examples = text.split("```toml\n").skip(1);
    let examples: Vec<&str> = examples
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert_eq!(examples.len(), 2);
    for example in &examples {
        RuleSet::with(example).unwrap();
    }
    let rules = RuleSet::with(examples[1]).unwrap();
    let name = |symbol| {
        let library = "/opt/libcompany_comm.so";
        let found = rules.native(ModuleKind::File, library, Some(symbol));
        found.collective.name
    };
    assert_eq!(name("company_allreduce"), Some("all_reduce"));
    assert_eq!(name("company_ring_sum"), Some("all_reduce"));
    assert_eq!(name("company_wait"), None);
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

#[test]
fn rows_that_nothing_matched_are_named() {
    let recording = in_tree(RECORDING);
    let (_folder, mine) = rules_file(
        "[[python]]\nfile = \"train.py\"\nfunction = \"Nobody.calls\"\nphase = \"strong user\"\n\
         [[python]]\nfile = \"*\"\nkind = \"python (your code)\"\n\
         [[thread]]\nstart = \"nobody_\"\nphase = \"input\"\n",
    );
    let output = run(&["report", &recording, "--rules", &mine]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    let warnings: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("matches"))
        .collect();
    let wanted = [
        format!(
            "warning: {mine}:1: nothing in this recording matches [[python]] file train.py; function Nobody.calls"
        ),
        format!("warning: {mine}:8: nothing in this recording matches [[thread]] start nobody_"),
    ];
    assert_eq!(warnings, wanted, "{said}");
    assert!(
        said.contains("hint: functions that were seen there: "),
        "{said}"
    );
}
