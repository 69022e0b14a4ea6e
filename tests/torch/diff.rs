//! `torchspy diff`: its errors, and real recordings of real torch.

use crate::STEADY;
use crate::native_live::torch_python;
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/programs/train_planted.py"
);
const FIXTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/fixtures/recording/v1.tspy"
);

fn torchspy(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_torchspy"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn usage_errors_say_how_sides_are_given() {
    for arguments in [
        &["diff"][..],
        &["diff", "a.tspy"],
        &["diff", "a.tspy", "b.tspy", "c.tspy"],
        &["diff", "--a", "a.tspy"],
        &["diff", "a.tspy", "--a", "b.tspy", "--b", "c.tspy"],
        &["diff", "a.tspy", "b.tspy", "-o", "x.speedscope.json"],
        &["diff", "a.tspy", "b.tspy", "--run-to-run", "nan"],
        &["diff", "a.tspy", "b.tspy", "--plumbing"],
        &["diff", "a.tspy", "b.tspy", "--by", "module", "-o", "x.json"],
    ] {
        let output = torchspy(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.starts_with("error: "), "{arguments:?}: {error}");
        assert!(error.contains("\nhint: "), "{arguments:?}: {error}");
    }
    let error = text(&torchspy(&["diff", "a.tspy", "b.tspy", "c.tspy"]).stderr);
    assert!(error.contains("--a A1.tspy A2.tspy --b"), "{error}");
}

#[test]
fn a_recording_that_is_not_there_or_too_short() {
    let output = torchspy(&["diff", "/nonexistent/a.tspy", FIXTURE]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.starts_with("error: cannot open /nonexistent/a.tspy"),
        "{error}"
    );
    let output = torchspy(&["diff", FIXTURE, FIXTURE]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("v1.tspy: too short to compare"), "{error}");
    assert!(error.contains("\nhint: record for longer"), "{error}");
    assert!(output.stdout.is_empty());
    let error = text(&torchspy(&["diff", "--rank", "7", FIXTURE, FIXTURE]).stderr);
    assert!(error.contains("no samples of rank 7"), "{error}");
}

/// Records a training of 60 steps from its start, with so many multiplications planted.
fn record(python: &Path, folder: &Path, name: &str, extra: u32) -> PathBuf {
    let recording = folder.join(name);
    let mut recorder = Command::new(env!("CARGO_BIN_EXE_torchspy"))
        .arg("record")
        .args(STEADY)
        .arg("-o")
        .arg(&recording)
        .arg("--")
        .arg(python)
        .args([PROGRAM, "--steps", "60", "--warm-up", "0", "--extra"])
        .arg(extra.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program, whose input this is, asks for a line when it is warm.
    writeln!(recorder.stdin.take().unwrap(), "go").unwrap();
    let output = recorder.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    recording
}

#[test]
fn real_recordings_are_compared_per_step_and_drawn() {
    let Some(python) = torch_python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let a = record(&python, folder.path(), "a.tspy", 0);
    let b = record(&python, folder.path(), "b.tspy", 400);
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
    let outputs = ["d.svg", "d.folded", "d.json", "d.txt"].map(|name| folder.path().join(name));
    let mut arguments = vec!["diff", a, b];
    for output in &outputs {
        arguments.extend(["-o", output.to_str().unwrap()]);
    }
    let output = torchspy(&arguments);
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        printed.contains("NOT THE SAME command line: A … --extra 0; B … --extra 400"),
        "{printed}"
    );
    assert_eq!(std::fs::read_to_string(&outputs[3]).unwrap(), printed);

    let report: Value = serde_json::from_slice(&std::fs::read(&outputs[2]).unwrap()).unwrap();
    let parts = report["parts"].as_array().unwrap();
    let layer = parts
        .iter()
        .find(|part| part["kind"] == "module" && part["name"] == "Net.layers.2")
        .unwrap();
    // Whether that is beyond noise, or longer at all, hangs on what else the machine does
    // meanwhile: tests/analysis/diff.rs has that.
    let planted = parts
        .iter()
        .find(|part| part["kind"] == "function" && part["name"] == "Extra.work");
    let planted = planted.unwrap_or_else(|| panic!("no Extra.work: {parts:?}"));
    let mean = |part: &Value, side: &str| part[side]["mean_s"].as_f64().unwrap();
    // It is called without multiplications, too, and a sample may find it.
    assert!(10.0 * mean(planted, "a") < mean(planted, "b"), "{planted}");
    assert!(
        mean(layer, "b") > 0.5 * mean(planted, "b"),
        "{layer} {planted}"
    );
    let difference_s = layer["difference_s"].as_f64().unwrap();
    assert!(
        (difference_s - (mean(layer, "b") - mean(layer, "a"))).abs() < 1e-6,
        "{layer}"
    );
    assert_eq!(
        (&report["unit"], &layer["class"]),
        (&"step".into(), &"Block".into())
    );
    let steps = report["b"][0]["units"].as_f64().unwrap();
    // A poll that was missed misses one step at most.
    let of_b: Value = serde_json::from_slice(&torchspy(&["report", "--json", b]).stdout).unwrap();
    let missed = of_b["quality"]["missed_ticks"].as_f64().unwrap();
    assert!(
        (40.0 - missed..=61.0).contains(&steps),
        "{steps}, {missed} missed"
    );
    let svg = std::fs::read_to_string(&outputs[0]).unwrap();
    assert!(
        svg.contains("<title>Extra.work (train_planted.py)"),
        "{svg}"
    );
    let folded = std::fs::read_to_string(&outputs[1]).unwrap();
    for line in folded.lines() {
        let mut fields = line.rsplitn(3, ' ');
        assert!(fields.next().unwrap().parse::<u64>().is_ok(), "{line}");
        assert!(fields.next().unwrap().parse::<u64>().is_ok(), "{line}");
    }
    let equal = torchspy(&["diff", "--json", a, a]);
    let equal: Value = serde_json::from_slice(&equal.stdout).unwrap();
    let differs = equal["parts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|part| part["beyond_noise"] == true);
    assert_eq!(differs.count(), 0);

    let refused = torchspy(&["diff", a, b, "-o", a]);
    assert_eq!(refused.status.code(), Some(2), "an output is no recording");
}
