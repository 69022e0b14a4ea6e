//! A recording of real torch: the operator is found, with its lines, its module and its node.

use crate::native_live::{full_report, torch_python};
use crate::{STEADY, marked, missed_s, on_each_engine, torchspy};
use serde_json::Value;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/op_heavy.py");

on_each_engine!(a_matrix_product_is_found_in_forward_and_in_backward);

fn a_matrix_product_is_found_in_forward_and_in_backward(engine: &str) {
    let Some(python) = torch_python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("run.tspy");
    // About 150 products of 1.1 GFLOP, two of three in backward.
    let recorded = torchspy()
        .args(["record", "--engine", engine])
        .args(STEADY)
        .arg("-o")
        .arg(&recording)
        .arg("--")
        .arg(python)
        .args([PROGRAM, "50", "832"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&recorded.stderr);
    assert!(recorded.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&recorded.stdout), "done\n");
    // Beside a long verdict the short report has no room for operators.
    let text = full_report(&recording);
    assert!(text.contains("aten::mm"), "the report lacks it: {text}");
    assert!(text.contains("MmBackward0"), "{text}");

    let report = torchspy()
        .args(["report", "--json"])
        .arg(&recording)
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let table = &report["operators"];
    let first = &report["ops"][0];
    assert_eq!(first["name"], "aten::mm", "{table}");
    let own = first["self_s"].as_f64().unwrap();
    let activities = table["inside_s"].as_object().unwrap().values();
    let inside: f64 = activities.map(|seconds| seconds.as_f64().unwrap()).sum();
    assert!(own > 0.7 * inside, "{own} of {inside} s: {table}");
    let forward = first["phases"]["forward"].as_f64().unwrap();
    let backward = first["phases"]["backward"].as_f64().unwrap();
    // What a late poll or a wait for a CPU adds may be all in one of them.
    let cpu_wait = table["inside_s"]["cpu_wait"].as_f64().unwrap_or(0.0);
    let strayed = missed_s(&report) + cpu_wait;
    assert!(
        backward + strayed > forward && forward > 0.0 && backward > 0.0,
        "{strayed}: {first}"
    );

    let site = |phase: &str| {
        let sites = first["sites"].as_array().unwrap();
        sites.iter().find(|site| site["phase"] == phase).unwrap()
    };
    assert_eq!(site("forward")["line"], marked("op_heavy.py", "forward"));
    assert_eq!(site("forward")["module"], "Heavy");
    assert_eq!(site("forward")["node"], Value::Null);
    assert_eq!(site("backward")["line"], marked("op_heavy.py", "backward"));
    assert_eq!(site("backward")["node"], "MmBackward0");
    assert_eq!(site("backward")["module"], Value::Null);
}
