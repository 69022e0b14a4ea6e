//! `convert -o run.parquet`: what DuckDB and pandas read of it is what the report says; two files
//! or none.

use crate::faults::{Recorder, wait_until};
use crate::gpu_machine::Machine;
use crate::installed::{tables_python, torch_python};
use nvml_double::scenario::{Activity, Gpu, Scenario};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

const TORCHSPY: &str = env!("CARGO_BIN_EXE_torchspy");
const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn torchspy(arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(TORCHSPY);
    command.args(arguments).current_dir(folder);
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    let parts = [&output.stdout, &output.stderr];
    parts.map(|part| String::from_utf8_lossy(part)).join("\n")
}

/// Names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn fixture() -> String {
    format!("{ROOT}/tests/fixtures/recording/v1.tspy")
}

/// Converts, reports, and reads all three files; gives back what the reader printed.
fn read(recording: &str, folder: &Path, python: &Path) -> String {
    let converted = torchspy(&["convert", recording, "-o", "run.parquet"], folder);
    assert!(converted.status.success(), "{}", text(&converted));
    let report = torchspy(&["report", recording, "--json"], folder);
    fs::write(folder.join("run.json"), &report.stdout).unwrap();
    let reader = format!("{ROOT}/tests/programs/read_parquet.py");
    let page = format!("{ROOT}/docs/src/parquet.md");
    let mut command = Command::new(python);
    let read = command.args([reader, page]).current_dir(folder).output();
    let read = read.unwrap();
    assert!(read.status.success(), "{}", text(&read));
    text(&read)
}

#[test]
fn what_readers_see_is_what_the_report_says() {
    let Some(python) = tables_python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let said = read(&fixture(), folder.path(), &python);
    assert_eq!(said.matches("rows of").count(), 3, "{said}");
    assert!(said.contains("phase activity summary_row"), "{said}");
}

#[test]
fn a_trainers_columns_are_filled() {
    let (Some(python), Some(torch)) = (tables_python(), torch_python()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let program = format!("{ROOT}/tests/programs/train_cnn.py");
    let torch = torch.to_string_lossy();
    let command = [
        "record", "-o", "a.tspy", "--", &torch, &program, "--steps", "300",
    ];
    let recorded = torchspy(&command, folder.path());
    assert!(recorded.status.success(), "{}", text(&recorded));
    let said = read("a.tspy", folder.path(), &python);
    for column in [
        "operator",
        "node",
        "module",
        "wait_for",
        "user_line",
        "step",
        "leaf",
    ] {
        let is_there = |line: &str| line.split(' ').any(|word| word == column);
        assert!(said.lines().any(is_there), "{column}: {said}");
    }
}

/// The driver says that a GPU is busy for 40 % of the time, and that this process is on it: so says
/// each sample.
#[test]
fn samples_have_the_use_of_the_gpu_that_their_process_is_on() {
    let (Some(python), Some(machine)) = (tables_python(), Machine::start(20, 20)) else {
        return;
    };
    let busy = Gpu {
        activity: Activity::Constant(0.4),
        ..machine.gpu("GPU-11111111-aaaa")
    };
    let other = Gpu {
        uuid: "GPU-22222222-bbbb".to_owned(),
        activity: Activity::Constant(0.9),
        ..Gpu::default()
    };
    let scenario = Scenario {
        gpus: vec![other, busy],
        ..Scenario::default()
    };
    let query = "import duckdb\n\
        print(*duckdb.sql('SELECT DISTINCT round(gpu_busy_percent) FROM \"run.parquet\" \
        WHERE gpu_busy_percent IS NOT NULL ORDER BY 1').fetchall())\n\
        print(*duckdb.sql('SELECT DISTINCT pid FROM \"run.parquet\" \
        WHERE gpu_busy_percent IS NOT NULL').fetchall())";
    let asked = |folder: &Path| {
        let convert = ["convert", "run.tspy", "-o", "run.parquet", "--force"];
        let converted = torchspy(&convert, folder);
        let mut command = Command::new(&python);
        let asked = command.args(["-c", query]).current_dir(folder).output();
        (converted, asked.unwrap())
    };
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::spawn(machine.command(&scenario, &[]), folder);
    // Who reads the driver waits for a CPU behind everybody else.
    wait_until("samples with the use of the GPU", || {
        std::thread::sleep(Duration::from_millis(200));
        let (_, asked) = asked(recorder.folder.path());
        asked.status.success() && String::from_utf8_lossy(&asked.stdout).contains(",)")
    });
    let recorded = recorder.interrupt().expect_success();
    let (converted, asked) = asked(recorded.folder.path());
    assert!(converted.status.success(), "{}", text(&converted));
    let pid = machine.target.pid();
    assert_eq!(text(&asked).trim(), format!("(40.0,)\n({pid},)"));
}

#[test]
fn there_are_two_files_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let recording = fixture();
    let other = folder.path().join("run.stacks.parquet");
    fs::write(&other, "somebody's").unwrap();
    let convert = ["convert", &recording, "-o", "run.parquet"];
    let refused = torchspy(&convert, folder.path());
    assert!(!refused.status.success());
    assert!(
        text(&refused).contains("run.stacks.parquet is there already"),
        "{}",
        text(&refused)
    );
    assert_eq!(names(folder.path()), ["run.stacks.parquet"]);
    assert_eq!(fs::read_to_string(&other).unwrap(), "somebody's");

    let forced = [&convert[..], &["--force"]].concat();
    let written = torchspy(&forced, folder.path());
    assert!(written.status.success(), "{}", text(&written));
    assert_eq!(names(folder.path()), ["run.parquet", "run.stacks.parquet"]);
    for name in names(folder.path()) {
        let bytes = fs::read(folder.path().join(&name)).unwrap();
        assert!(
            bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"),
            "{name}"
        );
    }
}

#[test]
fn one_stream_holds_no_two_files() {
    let folder = tempfile::tempdir().unwrap();
    let recording = fixture();
    for output in ["-", "/dev/null"] {
        let convert = ["convert", &recording, "--format", "parquet", "-o", output];
        let refused = torchspy(&convert, folder.path());
        assert!(!refused.status.success(), "{output}");
        assert!(
            text(&refused).contains("Parquet is two files"),
            "{}",
            text(&refused)
        );
    }
}
