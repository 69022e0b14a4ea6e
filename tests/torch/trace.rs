//! A trace of torch.profiler itself, read by torchspy, against torch's own sums of the same events.

use crate::native_live::torch_python;
use crate::{record, torchspy};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/profiled.py");
/// As in the program.
const STEPS: u64 = 3;

/// Calls, own and total time in us.
type Sums = BTreeMap<(String, String), (u64, f64, f64)>;

fn add(sums: &mut Sums, name: &Value, shapes: &Value, calls: &Value, own: f64, total: f64) {
    let key = (name.as_str().unwrap().to_owned(), shapes.to_string());
    let sum = sums.entry(key).or_default();
    sum.0 += calls.as_u64().unwrap();
    sum.1 += own;
    sum.2 += total;
}

/// The shapes of a trace as key_averages() has them: lists of tensors are empty.
fn as_averaged(shapes: &Value) -> Value {
    let Some(text) = shapes.as_str() else {
        return Value::Array(Vec::new());
    };
    let mut shapes: Value = serde_json::from_str(text).unwrap();
    for shape in shapes.as_array_mut().unwrap() {
        if shape
            .as_array()
            .is_some_and(|dims| dims.iter().any(Value::is_array))
        {
            *shape = Value::Array(Vec::new());
        }
    }
    shapes
}

#[test]
fn calls_shapes_and_times_are_those_of_torch_profiler() {
    let Some(python) = torch_python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    // torch writes it compressed if its name says so.
    let files = ["t.json.gz", "s.json"].map(|name| folder.path().join(name));
    let [trace, sums] = &files;
    let words = [python.as_path(), Path::new(PROGRAM), trace, sums];
    let words = words.map(|word| word.to_str().unwrap());
    let recorded = record(&words, "ptrace");

    let report = torchspy()
        .args(["report", "--json", "--trace-file"])
        .arg(trace)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&report.stderr);
    assert!(report.status.success() && said.is_empty(), "{said}");
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["steps"]["count"], STEPS, "{}", report["steps"]);
    assert_eq!(report["steps"]["marked_by"], "profiler");
    assert_eq!(report["missing"], Value::Array(Vec::new()));

    let mut ours = Sums::new();
    for row in report["trace_shapes"].as_array().unwrap() {
        let us = |key: &str| row[key].as_f64().unwrap() * 1e6;
        let shapes = as_averaged(&row["shapes"]);
        add(
            &mut ours,
            &row["name"],
            &shapes,
            &row["calls"],
            us("self_s"),
            us("total_s"),
        );
        // All of the window is whole steps.
        let per_step = row["calls_per_step"].as_f64().unwrap();
        let calls = row["calls"].as_f64().unwrap();
        assert!((per_step * STEPS as f64 - calls).abs() < 1e-6, "{row}");
    }
    let mut theirs = Sums::new();
    let averages: Value = serde_json::from_slice(&std::fs::read(sums).unwrap()).unwrap();
    for row in averages["rows"].as_array().unwrap() {
        if row["name"] == "ProfilerStep*" {
            assert_eq!(row["calls"], STEPS);
            continue;
        }
        let us = |key: &str| row[key].as_f64().unwrap();
        add(
            &mut theirs,
            &row["name"],
            &row["shapes"],
            &row["calls"],
            us("self_us"),
            us("total_us"),
        );
    }
    assert!(theirs.len() > 50, "{}", theirs.len());
    let names = |sums: &Sums| sums.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&ours), names(&theirs));
    for (key, theirs) in &theirs {
        let ours = &ours[key];
        assert_eq!(ours.0, theirs.0, "{key:?}");
        // torch's floats are us since 1970 subtracted from each other; a call has 1 ns in the file.
        let slack = 0.01 * theirs.0 as f64 + 1e-6 * theirs.2;
        assert!(
            (ours.1 - theirs.1).abs() <= slack,
            "{key:?}: {ours:?} {theirs:?}"
        );
        assert!(
            (ours.2 - theirs.2).abs() <= slack,
            "{key:?}: {ours:?} {theirs:?}"
        );
    }
    // The program's own wall clock around the begin of the window. torch converts its clock to
    // that one, with an error of some us.
    const ERROR_NS: u64 = 50_000;
    let began = report["started_wall_ns"].as_u64().unwrap();
    let [before, after] = [0, 1].map(|at| averages["began"][at].as_u64().unwrap());
    assert!(
        before - ERROR_NS <= began && began <= after + ERROR_NS,
        "{before} {began} {after}"
    );
    // One operator of the program, known by hand: two batches a step.
    let product = ours[&(
        "aten::addmm".to_owned(),
        "[[16],[4,288],[288,16],[],[]]".to_owned(),
    )];
    assert_eq!(product.0, STEPS);

    // Beside the recording of the same process: all of the trace is within it.
    let beside = torchspy()
        .args(["report", "--json"])
        .arg(recorded.path())
        .arg("--trace-file")
        .arg(trace)
        .output()
        .unwrap();
    let beside: Value = serde_json::from_slice(&beside.stdout).unwrap();
    let traced = &beside["traced"];
    assert_eq!(traced["not_joined"], Value::Null);
    assert_eq!(traced["process"], beside["primary"]);
    assert_eq!(traced["trace_shapes"], report["trace_shapes"]);
    let [common_s, duration_s] =
        ["common_s", "duration_s"].map(|key| traced[key].as_f64().unwrap());
    assert!(
        (common_s - duration_s).abs() < 1e-6,
        "{common_s} of {duration_s} s"
    );
    for sampled in beside["ops"].as_array().unwrap() {
        let mut rows = report["trace_operators"].as_array().unwrap().iter();
        let row = rows.find(|row| row["name"] == sampled["name"]);
        let calls = row.map_or(&Value::Null, |row| &row["calls_per_step"]);
        assert_eq!(&sampled["calls_per_step"], calls, "{sampled}");
    }
}

const WINDOW: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/window.py");

/// Records the program, which trains until its standard input ends, with a window: it ends when so
/// many traces have come. Returns the report.
fn with_window(program: &[&str], traces: usize, folder: &Path) -> Value {
    let file = folder.join("w.tspy");
    let mut child = torchspy()
        .args(["record", "--trace", "500ms", "-o"])
        .arg(&file)
        .arg("--")
        .args(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut said = String::new();
    let mut come = 0;
    while come < traces {
        let line = lines.next().unwrap_or_else(|| panic!("it ended: {said}"));
        let line = line.unwrap();
        come += usize::from(line.starts_with("--trace: the trace of process"));
        said.push_str(&line);
        said.push('\n');
        let is_lost = line.contains("no trace of process") || line.contains("did not run");
        assert!(!is_lost, "{said}");
    }
    drop(child.stdin.take());
    lines.for_each(drop);
    assert!(child.wait().unwrap().success(), "{said}");
    let report = torchspy()
        .args(["report", "--json"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(report.status.success());
    serde_json::from_slice(&report.stdout).unwrap()
}

#[test]
fn a_window_counts_what_torch_profiler_counts_in_the_same_program() {
    let Some(python) = torch_python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let sums = folder.path().join("sums.json");
    let words = [python.as_path(), Path::new(WINDOW), &sums].map(|word| word.to_str().unwrap());
    let report = with_window(&words, 1, folder.path());
    let traced = &report["traced"];
    assert_eq!(traced["not_joined"], Value::Null);
    assert_eq!(traced["steps"]["marked_by"], "optimizer");
    assert!(traced["steps"]["count"].as_u64().unwrap() > 3);
    assert_eq!(report["without_trace"], Value::Array(Vec::new()));

    let mut ours = BTreeMap::new();
    for row in traced["trace_shapes"].as_array().unwrap() {
        let key = (
            row["name"].to_string(),
            as_averaged(&row["shapes"]).to_string(),
        );
        let calls = row["calls_per_step"].as_f64().unwrap();
        *ours.entry(key).or_insert(0.0) += calls;
    }
    let file = std::fs::read_to_string(sums).unwrap();
    let theirs: Vec<(Value, String, f64)> = serde_json::from_str(&file).unwrap();
    let mut compared = 0;
    for (name, shapes, calls) in theirs {
        let shapes: Value = serde_json::from_str(&shapes).unwrap();
        let key = (name.to_string(), shapes.to_string());
        // torch's own sums have spans of the profiler itself, too.
        if name.as_str().unwrap().starts_with("aten::") {
            assert_eq!(ours.get(&key), Some(&calls), "{key:?}");
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared}");
}

#[test]
fn ranks_have_their_windows_at_the_same_time() {
    let Some(python) = torch_python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let python = python.to_str().unwrap();
    let mut words = vec![python, "-m", "torch.distributed.run", "--standalone"];
    words.extend(["--nproc-per-node", "2", WINDOW]);
    let report = with_window(&words, 2, folder.path());
    assert_eq!(report["without_trace"], Value::Array(Vec::new()));
    assert_eq!(report["traced_ranks"], serde_json::json!([0, 1]));
    assert_eq!(report["traced"]["not_joined"], Value::Null);
    let collectives = report["traced"]["trace_collectives"].as_array().unwrap();
    // DDP has one bucket. It is reduced on a thread of Gloo's, so that the first or the last of the
    // window may lie outside of its whole steps.
    let steps = report["traced"]["steps"]["count"].as_f64().unwrap();
    let of_each = |row: &Value| {
        let calls = row["calls_per_step"].as_f64().unwrap() * steps;
        (calls - steps).abs() <= 1.0
    };
    assert!(collectives.iter().any(of_each), "{}", report["traced"]);
}

#[test]
fn a_program_that_trains_too_shortly_has_no_window_and_keeps_its_status() {
    let Some(python) = torch_python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("w.tspy");
    let status = torchspy()
        .args(["record", "--trace", "1s", "-o"])
        .arg(&file)
        .arg("--")
        .arg(python)
        .args(["-c", "import torch; raise SystemExit(7)"])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(7));
    let report = torchspy()
        .args(["report", "--json"])
        .arg(&file)
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["traced"], Value::Null);
    let reason = report["without_trace"][0]["reason"].as_str().unwrap();
    assert!(reason.starts_with("it ended before steps"), "{reason}");
    for words in [
        ["--by", "shape"],
        ["--csv", "trace_shapes"],
        ["--trace-rank", "0"],
    ] {
        let output = torchspy()
            .arg("report")
            .arg(&file)
            .args(words)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.starts_with(
                "error: the recording has no trace of torch.profiler: it ended before steps"
            ),
            "{said}"
        );
        // It was recorded with --trace.
        assert!(!said.contains("record --trace"), "{said}");
    }
    let output = torchspy()
        .arg("report")
        .arg(&file)
        .args(["--by", "shape", "--confidential"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.starts_with("error: --confidential shows no trace"),
        "{said}"
    );
    assert!(!said.contains("--trace-file"), "{said}");
}
