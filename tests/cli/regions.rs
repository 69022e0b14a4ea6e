//! Blocks that a program names are frames of its stacks, and phases.

use crate::faults::{How, Recorder, TORCHSPY, Target, any_python, output_of, program, python, run};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

fn start(python: &str, script: &str) -> Target {
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/python");
    let mut command = Command::new(python);
    let mut target = Target::spawn(command.arg(script).env("PYTHONPATH", package));
    target.expect("ready");
    target
}

/// The Python functions of the program's only thread, outermost first.
fn functions(target: &Target) -> Vec<String> {
    let pid = target.pid().to_string();
    let output = run(&["dump", "--pid", &pid, "--json"]);
    let dump: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    let frames = dump["looks"][0]["processes"][0]["threads"][0]["frames"]
        .as_array()
        .unwrap();
    let python = frames.iter().filter(|frame| frame["python"] == true);
    let mut names: Vec<String> = python
        .map(|frame| frame["function"].as_str().unwrap().to_owned())
        .collect();
    names.reverse();
    names
}

fn blocks_are_frames(version: &str) {
    let Some(python) = python(version) else {
        return;
    };
    let target = start(&python, &program("named_blocks.py"));
    let blocks = ["<module>", "train", "wait", "augment", "outer block"];
    assert_eq!(functions(&target), blocks, "Python {version}");
}

#[test]
fn blocks_are_frames_3_10() {
    blocks_are_frames("3.10");
}

#[test]
fn blocks_are_frames_3_11() {
    blocks_are_frames("3.11");
}

#[test]
fn blocks_are_frames_3_12() {
    blocks_are_frames("3.12");
}

#[test]
fn blocks_are_frames_3_13() {
    blocks_are_frames("3.13");
}

#[test]
fn a_file_that_was_edited_names_nothing() {
    let Some(python) = any_python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("named_blocks.py");
    fs::copy(program("named_blocks.py"), &script).unwrap();
    let target = start(&python, script.to_str().unwrap());
    let edited = SystemTime::now() + Duration::from_secs(10);
    File::options()
        .append(true)
        .open(&script)
        .unwrap()
        .set_modified(edited)
        .unwrap();
    assert_eq!(functions(&target), ["<module>", "train", "wait"]);
}

#[test]
fn blocks_are_phases_and_py_spy_has_none() {
    let Some(python) = any_python() else { return };
    let mut target = start(&python, &program("named_blocks.py"));
    let pid = target.pid();
    let recorder = Recorder::attach(pid, How::default());
    recorder.wait_for_segment();

    let folder = tempfile::tempdir().unwrap();
    let installed = output_of(
        Command::new(TORCHSPY)
            .arg("install-py-spy")
            .arg(folder.path()),
    );
    assert!(installed.status.success(), "{}", installed.stderr);
    let py_spy = |arguments: &[&str]| {
        let mut command = Command::new(folder.path().join("py-spy"));
        let output = output_of(command.args(arguments).args(["--pid", &pid.to_string()]));
        output.stdout
    };
    let dump = py_spy(&["dump"]);
    assert!(
        dump.contains("wait (") && !dump.contains("augment"),
        "{dump}"
    );
    let raw = folder.path().join("raw");
    py_spy(&[
        "record",
        "-f",
        "raw",
        "-i",
        "-d",
        "1",
        "-o",
        raw.to_str().unwrap(),
    ]);
    let raw = fs::read_to_string(&raw).unwrap();
    assert!(raw.contains(";wait (") && !raw.contains("augment"), "{raw}");

    target.tell("go on");
    target.wait();
    let recorded = recorder.finish().expect_success();
    let shares = recorded.report();
    let phases: BTreeSet<&str> = shares["phases"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert!(phases.contains("augment"), "{phases:?}");
    let stacks = recorded.path().with_extension("txt");
    let output = convert(&recorded.path(), &stacks);
    let stacks = fs::read_to_string(&stacks).unwrap_or_else(|_| panic!("{output}"));
    // The function that is marked is above the block around its call, and below the mark's.
    let nested = ["train (", "augment (", "decode (", "decode ("];
    let is_nested = |line: &str| {
        let mut frames = line.split(';');
        nested
            .iter()
            .all(|start| frames.any(|frame| frame.starts_with(start)))
    };
    assert!(stacks.lines().any(is_nested), "{stacks}");
}

fn convert(recording: &Path, output: &Path) -> String {
    let output = output_of(
        Command::new(TORCHSPY)
            .arg("convert")
            .arg(recording)
            .args(["--format", "raw", "--force", "-o"])
            .arg(output),
    );
    output.stderr
}
