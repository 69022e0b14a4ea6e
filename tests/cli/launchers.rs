//! Ranks that MPI's own launchers start, without torch: what is recorded of each, and where. Ranks
//! that train are in tests/jobs.

use crate::faults::{TORCHSPY, any_python, output_of};
use crate::installed::debian;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Long enough for a sample.
const WORK: &str =
    "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: sum(range(1000))";

/// Open MPI's launcher, which takes more ranks than there are CPUs, from root as well.
fn open_mpi() -> Option<Command> {
    let mut command = Command::new(debian("mpirun.openmpi", "openmpi-bin")?);
    command.args(["--allow-run-as-root", "--oversubscribe"]);
    Some(command)
}

fn mpich() -> Option<Command> {
    debian("mpiexec.hydra", "mpich").map(Command::new)
}

/// The only folder below one, and the names of its recordings.
fn recorded(folder: &Path) -> (PathBuf, BTreeSet<String>) {
    let folders: Vec<_> = fs::read_dir(folder).unwrap().flatten().collect();
    assert_eq!(folders.len(), 1, "{folders:?}");
    let names = fs::read_dir(folders[0].path()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    (folders[0].path(), names.collect())
}

/// What a report has of each rank: rank, rank on its host.
fn ranks(path: &Path) -> Value {
    let output = output_of(Command::new(TORCHSPY).arg("report").arg(path).arg("--json"));
    assert!(output.status.success(), "{}", output.stderr);
    serde_json::from_str(&output.stdout).unwrap()
}

/// Each rank in a recording of its own, in the folder of its job.
fn each_is_recorded(mut launcher: Command, variables: &[(&str, &str)]) -> Option<String> {
    let python = any_python()?;
    let folder = tempfile::tempdir().unwrap();
    let pattern = format!("{}/{{job}}/{{host}}-{{rank}}.tspy", folder.path().display());
    let launched = launcher
        .args(["-n", "4", TORCHSPY, "record", "-o", &pattern, "--"])
        .args([&python, "-c", WORK])
        .envs(variables.iter().copied());
    let output = output_of(launched);
    assert!(output.status.success(), "{}", output.stderr);
    let (of_job, names) = recorded(folder.path());
    let host = nix::unistd::gethostname().unwrap();
    let host = host.to_str().unwrap().split('.').next().unwrap();
    let expected = (0..4).map(|rank| format!("{host}-{rank}.tspy"));
    assert_eq!(names, expected.collect());
    let report = ranks(&of_job);
    assert_eq!(report["world_size"], 4, "{report}");
    assert_eq!(report["missing_ranks"], Value::Array(Vec::new()));
    assert_eq!(report["ranks"].as_array().unwrap().len(), 4);
    let name = of_job.file_name().unwrap().to_str().unwrap();
    Some(name.to_owned())
}

#[test]
fn ranks_of_open_mpi_are_recorded_apart() {
    let Some(launcher) = open_mpi() else { return };
    // What it calls the job is its own number.
    if let Some(job) = each_is_recorded(launcher, &[]) {
        assert!(job.parse::<u64>().is_ok(), "{job}");
    }
}

#[test]
fn ranks_of_mpich_are_recorded_apart_once_their_job_has_a_name() {
    let (Some(launcher), Some(again)) = (mpich(), mpich()) else {
        return;
    };
    let job = each_is_recorded(launcher, &[("TORCHSPY_JOB", "run 7")]);
    assert!(job.is_none_or(|job| job == "run_7"));
    let mut unnamed = again;
    let output = output_of(unnamed.args([
        "-n",
        "2",
        TORCHSPY,
        "record",
        "-o",
        "{job}.tspy",
        "--",
        "true",
    ]));
    assert!(!output.status.success());
    let why = "{job} has no value here";
    assert!(output.stderr.contains(why) && output.stderr.contains("hint: set TORCHSPY_JOB=NAME"));
}

#[test]
fn one_recording_around_the_launcher_holds_its_ranks() {
    let Some(python) = any_python() else { return };
    for launcher in [open_mpi(), mpich()].into_iter().flatten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("all.tspy");
        let mut command = Command::new(TORCHSPY);
        command.args(["record", "-o"]).arg(&path).arg("--");
        command
            .arg(launcher.get_program())
            .args(launcher.get_args());
        let output = output_of(command.args(["-n", "2", &python, "-c", WORK]));
        assert!(output.status.success(), "{}", output.stderr);
        let report = ranks(&path);
        let roles = report["processes"].as_array().unwrap().iter();
        let roles = roles.map(|each| (each["role"].as_str().unwrap(), each["rank"].as_u64()));
        let roles: BTreeSet<_> = roles.collect();
        for rank in 0..2 {
            assert!(roles.contains(&("trainer", Some(rank))), "{roles:?}");
        }
        let is_launcher = |role: &&(&str, Option<u64>)| role.0 == "launcher";
        assert!(roles.iter().any(|role| is_launcher(&role)), "{roles:?}");
    }
}
