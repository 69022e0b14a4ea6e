//! A recording of a real torch.compile run: what compiling took, by function; a graph break and a
//! compilation anew, both planted.

use crate::native_live::{full_report, torch_python};
use crate::{STEADY, marked, torchspy};
use serde_json::Value;
use std::process::Command;

const PROGRAM: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/programs/train_compiled.py"
);

#[test]
fn compiling_is_told_by_function_stage_and_cause() {
    let Some(python) = torch_python() else {
        return;
    };
    let compiler = Command::new("g++").arg("--version").output();
    if !compiler.is_ok_and(|output| output.status.success()) {
        println!("skipped: no g++, which inductor needs");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("run.tspy");
    let recorded = torchspy()
        .arg("record")
        .args(STEADY)
        .arg("-o")
        .arg(&recording)
        .arg("--")
        .arg(python)
        .args([PROGRAM, "200"])
        // Nothing that was compiled before, and generated code under a name of its own.
        .env("TORCHINDUCTOR_CACHE_DIR", folder.path().join("made"))
        // Trial compilations of each instruction set take most of a minute.
        .env("TORCHINDUCTOR_VEC_ISA_OK", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&recorded.stderr);
    assert!(recorded.status.success(), "{said}");
    let said = full_report(&recording);
    assert!(said.contains("TORCH.COMPILE, wall time"), "{said}");
    assert!(said.contains("graph break at train_compiled.py:"), "{said}");

    let report = torchspy()
        .args(["report", "--json"])
        .arg(&recording)
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let table = &report["compile"];
    let seconds = |at: &Value| at.as_f64().unwrap();
    let compile_s = seconds(&table["compile_s"]);
    let share = seconds(&report["phases"]["compile"]);
    assert!(
        (compile_s - share * seconds(&report["wall_s"])).abs() < 0.01,
        "{table}"
    );
    let stages = table["stages_s"].as_object().unwrap();
    let sum: f64 = stages.values().map(seconds).sum();
    assert!((sum - compile_s).abs() < 1e-6, "{table}");
    for stage in ["dynamo", "inductor", "build"] {
        assert!(
            stages.get(stage).map_or(0.0, seconds) > 0.0,
            "{stage}: {table}"
        );
    }
    assert!(
        stages.get("other").map_or(0.0, seconds) < 0.2 * compile_s,
        "{table}"
    );

    let functions = table["functions"].as_array().unwrap();
    let forward = functions
        .iter()
        .find(|function| function["name"] == "Net.forward")
        .unwrap_or_else(|| panic!("no Net.forward: {table}"));
    assert!(
        forward["file"]
            .as_str()
            .unwrap()
            .ends_with("train_compiled.py")
    );
    assert_eq!(
        forward["line"],
        marked("train_compiled.py", "function"),
        "{table}"
    );
    // Before and behind the break, each for two sizes.
    assert!(forward["compilations"].as_u64().unwrap() >= 3, "{table}");
    let again = forward["recompilations"].as_u64().unwrap();
    assert!((1..=2).contains(&again), "{table}");
    assert!(seconds(&forward["compile_s"]) > 0.8 * compile_s, "{table}");
    assert!(seconds(&forward["run_s"]) > 0.0, "{table}");
    assert!(seconds(&table["run_s"]) >= seconds(&forward["run_s"]));

    let breaks = table["graph_breaks"].as_array().unwrap();
    let planted = breaks
        .iter()
        .find(|place| place["line"] == marked("train_compiled.py", "break"))
        .unwrap_or_else(|| panic!("no graph break: {table}"));
    assert_eq!(planted["function"], "Net.forward");
    assert!(
        planted["file"]
            .as_str()
            .unwrap()
            .ends_with("train_compiled.py")
    );

    let drawn = torchspy()
        .args(["convert", "--format", "folded", "-o", "-"])
        .arg(&recording)
        .output()
        .unwrap();
    let drawn = String::from_utf8(drawn.stdout).unwrap();
    assert!(
        drawn.contains(";compile Net.forward"),
        "no box names what is compiled"
    );
}
