//! A recording of real torch: every forward sample has a path that `named_modules()` has.

use crate::native_live::torch_python;
use crate::{STEADY, missed_s, output, torchspy};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

const PROGRAM: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/programs/train_modules.py"
);

fn report(recording: &Path) -> Value {
    let text = output(torchspy().args(["report", "--json"]).arg(recording));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn every_forward_sample_has_a_path_that_the_model_has() {
    let Some(python) = torch_python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("run.tspy");
    let said = output(
        torchspy()
            .args(["record", "--rate", "200"])
            .args(STEADY)
            .arg("-o")
            .arg(&recording)
            .arg("--")
            .arg(python)
            .args([PROGRAM, "60"]),
    );
    let (names, _) = said.split_once('\n').unwrap();
    let names: BTreeMap<String, String> = serde_json::from_str(names).unwrap();
    let report = report(&recording);
    let modules = &report["modules"];
    assert_eq!(report["forward"]["unread_s"], 0.0, "{modules}");
    let rows = modules.as_array().unwrap();
    let mut own_s = 0.0;
    for row in rows.iter().filter(|row| row["root"] == "Net") {
        let path = row["path"].as_str().unwrap();
        let class = names.get(path).unwrap_or_else(|| panic!("no {path}"));
        // Containers are indexed, and never called.
        match class.as_str() {
            "ModuleList" | "ModuleDict" => assert_eq!(row["class"], Value::Null),
            class => assert_eq!(row["class"], class, "{path}"),
        }
        own_s += row["self_s"].as_f64().unwrap();
    }
    let row = |path: &str| {
        let found = rows
            .iter()
            .find(|row| row["root"] == "Net" && row["path"] == path);
        found.unwrap_or_else(|| panic!("no {path}: {modules}"))
    };
    for path in ["stem.0", "layers.0.conv", "layers.2.norm"] {
        assert!(row(path)["self_s"].as_f64().unwrap() > 0.0, "{path}");
    }
    // Each pass of forward goes once through every layer; a third of them evaluates.
    let total = |path: &str, key: &str| row(path)[key].as_f64().unwrap();
    assert!(total("", "total_s") > 0.9 * report["forward"]["forward_s"].as_f64().unwrap());
    assert!((total("", "total_s") - own_s).abs() < 1e-6);
    let (evaluated, forward) = (total("", "eval_s"), total("", "total_s"));
    // What a late poll or a wait for a CPU adds may be all in one of the two modes.
    let cpu_wait = ["inside_s", "outside_s"].map(|of| {
        let waited = &report["operators"][of]["cpu_wait"];
        waited.as_f64().unwrap_or(0.0)
    });
    let strayed = missed_s(&report) + cpu_wait.iter().sum::<f64>();
    assert!(
        evaluated > 0.1 * forward - strayed && evaluated < 0.6 * forward + strayed,
        "{evaluated} of {forward} s, {strayed} s strayed"
    );
    assert!(evaluated > 0.0 && evaluated < forward);

    let drawn = output(
        torchspy()
            .args(["convert", "--format", "folded", "--by", "module", "-o", "-"])
            .arg(&recording),
    );
    assert!(
        drawn.contains(";Net;layers.1 (Block);layers.1.conv (Conv2d);"),
        "{drawn}"
    );
    assert!(!drawn.contains("_call_impl"), "{drawn}");
    let inspected = output(torchspy().arg("inspect").arg(&recording));
    assert!(inspected.contains("\"layers.1.conv\" Conv2d, train"));
}

/// Paths are those of the model that is wrapped, and not of the wrapper.
#[test]
fn a_wrapped_model_has_its_own_paths() {
    let Some(python) = torch_python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("run.tspy");
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/ddp_gloo.py");
    output(
        torchspy()
            .arg("record")
            .args(STEADY)
            .arg("-o")
            .arg(&recording)
            .arg("--")
            .arg(python)
            .args([program, "--ranks", "2", "--steps", "300"]),
    );
    let report = report(&recording);
    let modules = &report["modules"];
    let (processes, primary) = (&report["processes"], &report["primary"]);
    assert!(report["forward"].is_object(), "{primary}: {processes}");
    assert_eq!(report["forward"]["unread_s"], 0.0, "{modules}");
    let rows = modules.as_array().unwrap();
    let path_of = |row: &Value| row["path"].as_str().unwrap().to_owned();
    for row in rows {
        assert_eq!(row["root"], "Sequential", "{modules}");
        let path = path_of(row);
        assert!(
            ["", "0", "1", "2", "3", "4"].contains(&path.as_str()),
            "{path}"
        );
        let class = row["class"].as_str().unwrap();
        assert!(["Sequential", "Linear", "ReLU"].contains(&class), "{class}");
    }
    assert!(rows.iter().any(|row| path_of(row) == "2"), "{modules}");
}
