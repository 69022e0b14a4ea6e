//! Recordings of real torch: steps, epochs and conditions are the script's own.

use crate::native_live::torch_python;
use crate::{missed_s, output, torchspy};
use serde_json::Value;
use std::path::Path;

const PROGRAM: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/programs/train_progress.py"
);

fn report(recording: &Path, arguments: &[&str]) -> Value {
    let mut command = torchspy();
    command.args(["report", "--json"]).arg(recording);
    serde_json::from_str(&output(command.args(arguments))).unwrap()
}

/// What the script says of itself.
fn recorded(recording: &Path, arguments: &[&str]) -> Option<Value> {
    let python = torch_python()?;
    let mut command = torchspy();
    command
        // A step has to last some ticks on a fast machine, too, for its length and its end to be
        // seen.
        .args(["record", "--rate", "250", "--max-stopped", "off", "-o"])
        .arg(recording)
        .arg("--");
    let said = output(command.arg(python).arg(PROGRAM).args(arguments));
    Some(serde_json::from_str(said.trim()).unwrap())
}

/// Whether steps are lacking because polls were missed, each of which misses one at most; says so.
fn lacks_steps(report: &Value, all: &Value) -> bool {
    let (steps, all) = (&report["progress"]["steps"], all.as_u64().unwrap());
    let (steps, missed) = (
        steps.as_u64().unwrap_or(0),
        &report["quality"]["missed_ticks"],
    );
    let lacks = steps < all && steps + missed.as_u64().unwrap() >= all;
    if lacks {
        println!("skipped: the machine is too busy to see each step: {missed} polls were missed");
    }
    lacks
}

/// Lengths of the script's steps.
fn steps_s(truth: &Value) -> Vec<f64> {
    let step_ms: Vec<f64> = serde_json::from_value(truth["step_ms"].clone()).unwrap();
    step_ms.iter().map(|ms| ms / 1000.0).collect()
}

/// Whether a pass may have gone by between two polls, and one is lacking; says so.
fn lacks_a_pass(report: &Value, truth: &Value) -> bool {
    let pass_s = steps_s(truth).iter().sum::<f64>() / truth["epochs"].as_f64().unwrap();
    let missed_s = missed_s(report);
    let lacks = report["progress"]["epochs"] != truth["epochs"] && missed_s > pass_s / 2.0;
    if lacks {
        println!("skipped: the machine is too busy to see each pass: {missed_s} s were missed");
    }
    lacks
}

/// Whether polls were missed for longer than a step, so that single steps and batches
/// cannot be distinguished; says so.
fn lacks_a_step(report: &Value, truth: &Value) -> bool {
    let shortest_s = steps_s(truth).into_iter().fold(f64::INFINITY, f64::min);
    let missed_s = missed_s(report);
    let lacks = missed_s > shortest_s;
    if lacks {
        println!("skipped: the machine is too busy to see each step: {missed_s} s were missed");
    }
    lacks
}

#[test]
fn steps_and_epochs_are_the_scripts_own() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("run.tspy");
    let arguments = ["--batches", "24", "--epochs", "3", "--evaluate"];
    let Some(truth) = recorded(&recording, &arguments) else {
        return;
    };
    let report = report(&recording, &[]);
    let progress = &report["progress"];
    assert_eq!(progress["source"], "parameter_version", "{progress}");
    assert_eq!(progress["class"], "SGD");
    if lacks_a_pass(&report, &truth) {
        return;
    }
    assert_eq!(progress["epochs"], truth["epochs"], "{progress}");
    check_steps(progress, &truth);
    // What a loader gives out after its last reading of a pass is not counted, and then it is said
    // that there were more.
    let batches = |of: &Value| of["batches"].as_u64().unwrap();
    let Some(lacking) = batches(&truth).checked_sub(batches(progress)) else {
        // Other programs had the CPUs: a step was seen to end only in the pass that evaluates.
        assert!(progress["steps_at_most"].is_number(), "{progress}");
        println!("skipped: the machine is too busy to tell passes apart");
        return;
    };
    let is_right = progress["more_batches"] == (lacking > 0) && progress["batches_per_step"] == 1;
    if !is_right && lacks_a_step(&report, &truth) {
        return;
    }
    let quality = &report["quality"];
    assert_eq!(
        progress["more_batches"],
        lacking > 0,
        "{progress} {quality}"
    );
    assert_eq!(progress["batches_per_step"], 1, "{progress} {quality}");
    // A pass that is over in a moment may be missed.
    let Some(evaluated) = progress["evaluation"]["batches"].as_u64() else {
        // Each pass that evaluates has an end of a step that may have been in it.
        assert!(progress["steps_at_most"].is_number(), "{progress}");
        println!("skipped: the machine is too busy to tell passes apart");
        return;
    };
    let all = truth["evaluated"].as_u64().unwrap();
    assert!(evaluated > 0 && evaluated <= all, "{progress}");
    let conditions = &report["conditions"];
    let expected = [
        ("batch_size", Value::from(8)),
        ("workers", Value::from(0)),
        ("pin_memory", Value::from(false)),
        ("dataset", Value::from("Noise")),
        ("optimizer", Value::from("SGD")),
        ("parameter_dtype", Value::from("float32")),
        ("mode", Value::from("train and eval")),
    ];
    for (key, value) in expected {
        assert_eq!(conditions[key], value, "{key}: {conditions}");
    }
    assert_eq!(conditions.get("autocast"), None);
    assert!(conditions["torch"].as_str().unwrap().contains('.'));
}

/// AdamW changes a parameter more than once in a step.
#[test]
fn accumulated_batches_are_no_steps() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("run.tspy");
    let arguments = [
        "--batches",
        "48",
        "--accumulate",
        "4",
        "--optimizer",
        "adamw",
        "--workers",
        "1",
        "--autocast",
    ];
    let Some(truth) = recorded(&recording, &arguments) else {
        return;
    };
    let report = report(&recording, &[]);
    let progress = &report["progress"];
    if lacks_a_pass(&report, &truth) {
        return;
    }
    assert_eq!(progress["epochs"], truth["epochs"], "{progress}");
    let count = |of: &Value, key: &str| of[key].as_u64().unwrap();
    let (steps, all_steps) = (count(progress, "steps"), count(&truth, "steps"));
    // A last step that is over within a poll of the model's end is not seen.
    if lacks_steps(&report, &(all_steps - 1).into()) {
        return;
    }
    assert!((all_steps - 1..=all_steps).contains(&steps), "{progress}");
    assert_eq!(progress["batches_per_step"], 4);
    // A batch that is over within a poll of its loader's end is not seen, either; its step is. Of
    // an epoch's last step one batch is known.
    let (batches, all_batches) = (count(progress, "batches"), count(&truth, "batches"));
    let taken = 4 * steps - 3 * count(&truth, "epochs");
    assert!(batches <= all_batches, "{progress}");
    assert_eq!(progress["more_batches"], batches < taken, "{progress}");
    let conditions = &report["conditions"];
    assert_eq!(conditions["workers"], 1, "{conditions}");
    assert_eq!(conditions["prefetch"], 2, "{conditions}");
    assert_eq!(conditions["autocast"], "bfloat16", "{conditions}");
}

#[test]
fn without_an_optimizer_a_step_is_a_batch() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("run.tspy");
    let Some(truth) = recorded(&recording, &["--infer", "--batches", "40", "--size", "64"]) else {
        return;
    };
    let report = report(&recording, &[]);
    let progress = &report["progress"];
    assert_eq!(progress["unit"], "batch", "{progress}");
    if lacks_steps(&report, &truth["batches"]) {
        return;
    }
    assert_eq!(progress["steps"], truth["batches"], "{progress}");
    assert_eq!(progress["epochs"], Value::Null);
}

#[test]
fn a_slow_step_is_found_and_steps_may_be_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("run.tspy");
    let arguments = [
        "--batches",
        "40",
        "--epochs",
        "1",
        "--size",
        "32",
        "--slow",
        "25",
    ];
    let Some(truth) = recorded(&recording, &arguments) else {
        return;
    };
    let whole = report(&recording, &[]);
    let progress = &whole["progress"];
    // The script's own figures begin with the second step.
    let mut step_ms: Vec<f64> = serde_json::from_value(truth["step_ms"].clone()).unwrap();
    let slow_ms = step_ms[25 - 2];
    step_ms.sort_by(f64::total_cmp);
    if step_ms.last() > Some(&slow_ms) {
        println!("skipped: the machine held up a step for longer than the slow one takes");
        return;
    }
    if lacks_steps(&whole, &truth["steps"]) {
        return;
    }
    assert_eq!(progress["steps"], truth["steps"], "{progress}");
    let slow = &progress["slow"][0];
    assert_eq!(slow["step"], 25, "{progress}");
    assert_eq!(slow["phase"], "user", "{progress}");
    let planted_ms = slow_ms - step_ms[step_ms.len() / 2];
    let more_ms = slow["more_ms"].as_f64().unwrap();
    // Its ends are known as well as polls came in time.
    let late_ms = 1000.0 * missed_s(&whole);
    assert!(
        more_ms > 0.5 * planted_ms - late_ms && more_ms < slow_ms * 1.2 + late_ms,
        "{slow}: {planted_ms} of {slow_ms} ms were planted"
    );

    let part = report(&recording, &["--skip-steps", "10", "--steps", "5"]);
    assert_eq!(part["progress"]["steps"], 5, "{}", part["progress"]);
    assert!(part["wall_s"].as_f64().unwrap() < whole["wall_s"].as_f64().unwrap() / 2.0);
    let failed = torchspy()
        .args(["report", "--skip-steps", "100000"])
        .arg(&recording)
        .output()
        .unwrap();
    assert!(!failed.status.success());
    let said = String::from_utf8_lossy(&failed.stderr);
    assert!(said.contains("has only 40 steps"), "{said}");
}

/// A fused optimizer changes parameters without raising their version: its state counts.
#[test]
fn steps_of_a_fused_optimizer_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("run.tspy");
    let arguments = ["--batches", "60", "--optimizer", "fused"];
    let Some(truth) = recorded(&recording, &arguments) else {
        return;
    };
    let report = report(&recording, &[]);
    let progress = &report["progress"];
    assert_eq!(progress["source"], "optimizer_state", "{progress}");
    assert_eq!(progress["class"], "AdamW");
    check_steps(progress, &truth);
}

/// On a busy machine the last steps may end between two polls, which is then said.
fn check_steps(progress: &Value, truth: &Value) {
    let (steps, all_steps) = (&progress["steps"], truth["steps"].as_u64().unwrap());
    let most = progress["steps_at_most"].as_u64().or(steps.as_u64());
    assert!(steps.as_u64().unwrap() <= all_steps, "{progress}");
    assert!(all_steps <= most.unwrap(), "{progress}");
}
