//! The Python package beside the program: the command, and recordings as data frames.

use crate::installed::tables_python;
use std::path::Path;
use std::process::{Command, Output};

const TORCHSPY: &str = env!("CARGO_BIN_EXE_torchspy");
const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// What prints the sums of both frames, as JSON.
const LOADS: &str = r#"
import json, sys, torchspy
libraries = ["pandas", "polars"]
answers = []
for frames in libraries:
    samples = torchspy.load(sys.argv[1], frames=frames)
    stacks = torchspy.load(sys.argv[1], stacks=True, frames=frames)
    known = samples["stack_id"].dropna() if frames == "pandas" else samples["stack_id"].drop_nulls()
    answers.append([int(samples["weight_ns"].sum()), len(samples), len(stacks), set(known) <= set(stacks["stack_id"])])
try:
    torchspy.load("/dev/null")
except torchspy.RecordingError as error:
    answers.append(str(error))
print(json.dumps(answers))
"#;

/// Python with the package of this checkout, and this program in PATH.
fn python(python: &Path, arguments: &[&str]) -> Output {
    let programs = Path::new(TORCHSPY).parent().unwrap();
    let path = format!("{}:/usr/bin:/bin", programs.display());
    let mut command = Command::new(python);
    command.args(arguments).env("PATH", path);
    command
        .env("PYTHONPATH", format!("{ROOT}/python"))
        .output()
        .unwrap()
}

#[test]
fn the_package_runs_the_program_and_loads_recordings() {
    let Some(tables) = tables_python() else {
        return;
    };
    let recording = format!("{ROOT}/tests/fixtures/recording/v1.tspy");
    let version = python(&tables, &["-m", "torchspy", "--version"]);
    let expected = Command::new(TORCHSPY).arg("--version").output().unwrap();
    assert_eq!(version.stdout, expected.stdout, "{version:?}");
    let failed = python(&tables, &["-m", "torchspy", "report", "missing.tspy"]);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");

    let loaded = python(&tables, &["-c", LOADS, &recording]);
    let answers: serde_json::Value =
        serde_json::from_slice(&loaded.stdout).unwrap_or_else(|_| panic!("{loaded:?}"));
    let [pandas, polars, refused] = answers.as_array().unwrap().as_slice() else {
        panic!("{answers}");
    };
    assert_eq!(pandas, polars);
    assert!(
        pandas[0].as_u64().unwrap() > 0 && pandas[3] == true,
        "{answers}"
    );
    assert!(
        refused.as_str().unwrap().starts_with("error: "),
        "{answers}"
    );
}
