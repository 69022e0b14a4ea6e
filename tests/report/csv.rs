//! Tables as CSV: what Python's csv module reads of them is what the JSON has.

use crate::analysis_builder::*;
use crate::verdict_scenarios::{Do, Run};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use torchspy::analysis::analyze;
use torchspy::model::profile::Profile;
use torchspy::report::csv;
use torchspy::report::json::render_json;
use torchspy::report::tables::{TABLES, named};

/// Reads `{"tables": {name: CSV}, "report": JSON}`, and prints how many fields of each table it
/// compared.
const COMPARE: &str = r#"
import csv, io, json, re, sys

given = json.load(sys.stdin)
report = json.loads(given["report"])
compared = {}
# Where a table is in the JSON, if not under its own name.
PLACES = {
    "operators": ["ops"],
    "module_groups": ["forward", "groups"],
    "nodes": ["backward", "nodes"],
    "backward_lines": ["backward", "lines"],
    "backward_modules": ["backward", "modules"],
    "compiled": ["compile", "functions"],
    "graph_breaks": ["compile", "graph_breaks"],
}

def rows_of(name):
    if name == "energy":
        return None  # a table of its own: the JSON has it by device and rank
    rows = report
    for key in PLACES.get(name, [name]):
        rows = (rows or {}).get(key)
    return rows

def expected(row, key):
    """What the JSON has of a column: a list where that is not sure."""
    if key in row:
        value = row[key]
        return value["share"] if isinstance(value, dict) and "share" in value else value
    for end in ("low", "high", "samples"):
        share = row.get(key.removesuffix("_" + end))
        if key.endswith("_" + end) and isinstance(share, dict):
            return share[end]
    if key in ("file", "line", "function") and isinstance(row.get("at"), dict):
        return row["at"][key]
    return ...

def same(text, value):
    if value is None or value == 0 and text == "":
        return text == ""
    if isinstance(value, bool):
        return text == str(value).lower()
    if isinstance(value, (int, float)):
        return float(text) == value
    # Control characters are taken out, and what a spreadsheet would take for a formula is marked.
    return text.lstrip("'") == re.sub(r"[\x00-\x1f\x7f-\x9f]", "", value)

for name, text in given["tables"].items():
    lines = list(csv.reader(io.StringIO(text)))
    heads = lines[0]
    assert len(set(heads)) == len(heads), (name, heads)
    for line in lines[1:]:
        assert len(line) == len(heads), (name, heads, line)
    rows = rows_of(name)
    if rows is None:
        continue
    assert len(lines) - 1 == len(rows), (name, len(lines) - 1, len(rows))
    for line, row in zip(lines[1:], rows):
        for head, field in zip(heads, line):
            value = expected(row, head)
            if value is ... or isinstance(value, (list, dict)):
                continue
            assert same(field, value), (name, head, field, value)
            compared[name] = compared.get(name, 0) + 1
print(json.dumps(compared))
"#;

/// A run with operators, modules, waits and threads, and names that CSV has to quote.
fn trainer() -> Profile {
    let mut builder = Builder::trainer();
    let worker = builder.thread(0, 102, "a, \"quoted\"\nname", true);
    for _ in 0..20 {
        let convolution = [
            user("<module>", 90),
            user("main", 41),
            lib("torch/nn/modules/module.py", "Module._call_impl"),
            lib("torch/nn/modules/conv.py", "Conv2d.forward"),
            torch("at::_ops::conv2d::call(at::Tensor const&)"),
            torch("at::_ops::convolution::call(at::Tensor const&)"),
        ];
        builder.ticks(0, 20, S::Running, &convolution);
        builder.ticks(
            0,
            10,
            S::Poll,
            &[user("main, of \"this\"", 12), libc("poll")],
        );
        builder.ticks(worker, 30, S::Running, &[user("=work(1)", 7)]);
    }
    builder.profile()
}

#[test]
fn python_reads_what_the_json_has() {
    let python = crate::installed::any_python().unwrap();
    let (waiting, _) = Run::new("a run", None, &[(Do::Wait, 60), (Do::Launch, 40)]).verdict();
    let mut compared = serde_json::Map::new();
    for profile in [trainer(), waiting] {
        let analysis = analyze(&profile);
        let tables: serde_json::Map<String, Value> = TABLES
            .iter()
            .map(|(name, make)| {
                (
                    (*name).to_owned(),
                    csv::render(&make(&profile, &analysis)).into(),
                )
            })
            .collect();
        let mut child = Command::new(&python)
            .args(["-c", COMPARE])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // As text: numbers keep all of their digits.
        let report = render_json(&profile, &analysis).unwrap();
        let given = json!({"tables": tables, "report": report}).to_string();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(given.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "python found a difference");
        let counts: Value = serde_json::from_slice(&output.stdout).unwrap();
        compared.extend(counts.as_object().unwrap().clone());
    }
    for name in [
        "functions",
        "lines",
        "user_lines",
        "native_functions",
        "operators",
    ] {
        assert!(
            compared.contains_key(name),
            "nothing of {name}: {compared:?}"
        );
    }
}

fn report(arguments: &[&str]) -> std::process::Output {
    let recording =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/recording/v1.tspy");
    Command::new(env!("CARGO_BIN_EXE_torchspy"))
        .arg("report")
        .arg(recording)
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn the_command_prints_a_table_or_says_which_there_are() {
    let printed = report(&["--csv", "functions"]);
    assert!(printed.status.success());
    let text = String::from_utf8(printed.stdout).unwrap();
    let head = "self_s,self_share,total_s,name,file,line\n";
    assert!(text.starts_with(head) && text.len() > head.len(), "{text}");

    let unknown = report(&["--csv", "function"]);
    assert_eq!(unknown.status.code(), Some(2));
    let said = String::from_utf8(unknown.stderr).unwrap();
    assert!(
        said.contains("error: no table is called `function`"),
        "{said}"
    );
    for (name, _) in TABLES {
        assert!(said.contains(name), "{name} is not in the hint: {said}");
        assert!(named(name).is_some());
    }
}

#[test]
fn steps_are_a_table() {
    let mut run = Run::new("a run", None, &[(Do::Wait, 6), (Do::Launch, 4)]);
    run.counted = true;
    run.steps = 30;
    let (profile, _) = run.verdict();
    let analysis = analyze(&profile);
    let steps = csv::render(&named("steps").unwrap()(&profile, &analysis));
    let mut lines = steps.lines();
    assert_eq!(lines.next(), Some("step,start_s,ms,uncertain_ms,left_out"));
    let rows: Vec<Vec<f64>> = lines
        .map(|line| {
            // The last field is a reason.
            line.split(',')
                .take(4)
                .map(|field| field.parse().unwrap())
                .collect()
        })
        .collect();
    assert!(rows.len() > 20, "{steps}");
    for pair in rows.windows(2) {
        let end_s = pair[0][1] + pair[0][2] / 1e3;
        assert!((end_s - pair[1][1]).abs() < 1e-6, "{pair:?}");
        assert_eq!(pair[0][0] + 1.0, pair[1][0], "{pair:?}");
    }
}
