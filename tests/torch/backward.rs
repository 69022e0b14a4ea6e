//! A recording of real torch with activation checkpointing, in both of its forms.

use crate::native_live::{full_report, torch_python};
use crate::{STEADY, marked, on_each_engine, torchspy};
use serde_json::Value;

const PROGRAM: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/programs/train_checkpoint.py"
);

fn report(form: &str, engine: &str) -> Option<Value> {
    let python = torch_python()?;
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("run.tspy");
    let recorded = torchspy()
        .args(["record", "--rate", "200", "--engine", engine])
        .args(STEADY)
        .arg("-o")
        .arg(&recording)
        .arg("--")
        .arg(python)
        // Enough for 30 ticks of each forward operator on a machine four times as fast as one of
        // 2.5 GHz: with fewer, a node's module is not told.
        .args([PROGRAM, form, "80"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&recorded.stderr);
    assert!(recorded.status.success(), "{said}");
    let said = full_report(&recording);
    assert!(
        said.contains("s of recompute (activation checkpointing)"),
        "{said}"
    );
    let report = torchspy()
        .args(["report", "--json"])
        .arg(&recording)
        .output()
        .unwrap();
    Some(serde_json::from_slice(&report.stdout).unwrap())
}

/// The blocks' forward is computed twice, once of them in backward, which has twice its work. (In
/// the form that is not reentrant less the last product, of which nothing is saved. The first call
/// of a checkpoint imports the compiler: that is no block's.)
fn check(form: &str, engine: &str) {
    let Some(report) = report(form, engine) else {
        return;
    };
    let phase = |name: &str| report["phases"][name].as_f64().unwrap();
    let modules = report["modules"].as_array().unwrap();
    let blocks = modules.iter().find(|row| row["path"] == "blocks").unwrap();
    let forward = blocks["total_share"]["share"].as_f64().unwrap();
    let ratio = phase("recompute") / forward;
    assert!((0.3..2.5).contains(&ratio), "{ratio}: {}", report["phases"]);
    assert!(phase("backward") > 0.8 * forward, "{}", report["phases"]);

    let table = &report["backward"];
    let seconds = |at: &Value| at.as_f64().unwrap();
    let rows = table["recompute"].as_array().unwrap();
    let total: f64 = rows.iter().map(|row| seconds(&row["self_s"])).sum();
    assert!((total - seconds(&table["recompute_s"])).abs() < 1e-6);
    let of_block: f64 = rows
        .iter()
        .filter(|row| row["class"] == "Block" || row["class"] == "Linear")
        .map(|row| seconds(&row["self_s"]))
        .sum();
    assert!(of_block > 0.6 * total, "{table}");
    // Lines: one calls backward, and in the reentrant form the engine calls itself below it.
    assert_eq!(
        table["lines"][0]["line"],
        marked("train_checkpoint.py", "backward"),
        "{table}"
    );
    let at_line = seconds(&table["lines"][0]["total_s"]);
    assert!(at_line > 0.95 * seconds(&table["total_s"]), "{table}");
    let nodes = table["nodes"].as_array().unwrap();
    let node = |name: &str| {
        let found = nodes.iter().find(|node| node["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}: {table}"))
    };
    // Of a thread that runs on, some stacks have an operator below the module before it: too many
    // on a busy machine for a class to be told.
    if engine == "ptrace" {
        assert_eq!(node("AddmmBackward0")["matched"], "class", "{table}");
        assert_eq!(node("AddmmBackward0")["classes"][0], "Linear");
        assert_eq!(node("MmBackward0")["classes"][0], "Block");
    }
    if form == "reentrant" {
        let outer = node("CheckpointFunctionBackward");
        assert!(
            seconds(&outer["total_s"]) > 0.6 * seconds(&table["total_s"]),
            "{table}"
        );
        assert!(
            seconds(&outer["self_s"]) < 0.2 * seconds(&table["total_s"]),
            "{table}"
        );
    }
}

#[test]
fn a_reentrant_checkpoint_recomputes() {
    check("reentrant", "ptrace");
}

on_each_engine!(a_plain_checkpoint_recomputes);

fn a_plain_checkpoint_recomputes(engine: &str) {
    check("plain", engine);
}
