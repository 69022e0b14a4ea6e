//! A machine with the GPUs of a scenario: a program that logs its turns, recorded with the double
//! of NVML.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::print_stderr)]

use crate::faults::{Recorded, Recorder, TORCHSPY, Target, any_python, program, run, wait_until};
use nvml_double::scenario::{Activity, Gpu, Process, Scenario};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// The double, as cargo built it for the tests.
pub fn double() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let library = own.parent().unwrap().join("libnvml_double.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

/// The double without some of its functions, as an older driver's library is. They lose their
/// names, so that the dynamic linker finds none.
pub fn double_without(folder: &Path, functions: &[&str]) -> PathBuf {
    let mut bytes = std::fs::read(double()).unwrap();
    for function in functions {
        // Names in the table of strings end with a NUL, and begin behind one.
        let name = [b"\0", function.as_bytes(), b"\0"].concat();
        let mut found = 0;
        let mut at = 0;
        while let Some(next) = bytes[at..]
            .windows(name.len())
            .position(|part| part == name)
        {
            bytes[at + next + 1] = b'x';
            at += next + name.len() - 1;
            found += 1;
        }
        assert!(found > 0, "{function} is not there to be taken out");
    }
    let path = folder.join("libnvidia-ml.so.1");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// A program that takes its turns.
pub struct Machine {
    pub folder: TempDir,
    pub target: Target,
    pub library: PathBuf,
}

impl Machine {
    /// `None`, with a word on stderr, without a Python.
    pub fn start(busy_ms: u64, idle_ms: u64) -> Option<Self> {
        Self::start_with(busy_ms, idle_ms, &[])
    }

    /// The same with variables, and with a library that is called as CUDA's.
    pub fn start_with(busy_ms: u64, idle_ms: u64, variables: &[(&str, &str)]) -> Option<Self> {
        let python = any_python()?;
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(python);
        command
            .arg(program("gpu_phases.py"))
            .arg(folder.path().join("turns"))
            .args([busy_ms.to_string(), idle_ms.to_string()])
            .envs(variables.iter().copied());
        if !variables.is_empty() {
            let cuda = folder.path().join("libcuda.so.1");
            std::fs::copy(double(), &cuda).unwrap();
            command.arg(cuda);
        }
        let mut target = Target::spawn(&mut command);
        target.ready = target.expect("ready");
        Some(Self {
            folder,
            target,
            library: double(),
        })
    }

    /// What the device does: what the program's log says.
    pub fn activity(&self) -> Activity {
        Activity::File(
            self.folder
                .path()
                .join("turns")
                .to_string_lossy()
                .into_owned(),
        )
    }

    /// A GPU that the program uses, and that does what its log says.
    pub fn gpu(&self, uuid: &str) -> Gpu {
        Gpu {
            uuid: uuid.to_owned(),
            activity: self.activity(),
            processes: Some(vec![self.process()]),
            ..Gpu::default()
        }
    }

    /// The program, as a process of a GPU.
    pub fn process(&self) -> Process {
        Process {
            pid: self.target.pid() as u32,
            memory: 9 << 30,
            instance: None,
        }
    }

    /// The command that records it.
    pub fn command(&self, scenario: &Scenario, options: &[&str]) -> Command {
        let path = self.folder.path().join("scenario.json");
        std::fs::write(&path, serde_json::to_vec(scenario).unwrap()).unwrap();
        let mut command = Command::new(TORCHSPY);
        command
            .args(["record", "-o", "run.tspy", "--no-native", "--pid"])
            .arg(self.target.pid().to_string())
            .arg("--nvml-lib")
            .arg(&self.library)
            .args(options)
            .env(nvml_double::SCENARIO, path);
        command
    }

    /// Records it for a while.
    pub fn record(&self, scenario: &Scenario, options: &[&str]) -> Recorded {
        let command = self.command(scenario, options);
        let folder = tempfile::tempdir().unwrap();
        Recorder::spawn(command, folder).finish().expect_success()
    }

    /// Records it until what is known of a GPU is enough. Who collects waits for a CPU behind
    /// everybody else: how many readings a second has is the machine's affair.
    pub fn record_until(
        &self,
        scenario: &Scenario,
        uuid: &str,
        is_enough: impl Fn(&Value) -> bool,
    ) -> Recorded {
        let folder = tempfile::tempdir().unwrap();
        let recorder = Recorder::spawn(self.command(scenario, &[]), folder);
        wait_until("enough is known of the GPU", || {
            std::thread::sleep(Duration::from_millis(200));
            let report = run(&["report", "--json", &recorder.path().to_string_lossy()]).stdout;
            let report: Value = serde_json::from_str(&report).unwrap_or_default();
            let gpus = report["gpus"].as_array();
            let gpu = gpus.and_then(|gpus| gpus.iter().find(|gpu| gpu["uuid"] == uuid));
            gpu.is_some_and(&is_enough)
        });
        recorder.interrupt().expect_success()
    }
}

/// Whether the energy of so many seconds is known, and so all that is read as often.
pub fn energy_of(seconds: f64) -> impl Fn(&Value) -> bool {
    move |gpu| gpu["energy_s"].as_f64() > Some(seconds)
}

/// A row of the table of counter tracks.
#[derive(Clone, Debug)]
pub struct Row {
    /// CLOCK_MONOTONIC.
    pub start_ns: u64,
    pub end_ns: u64,
    pub gpu: String,
    pub uuid: String,
    pub pid: String,
    pub track: String,
    pub value: String,
    pub missing: String,
}

impl Row {
    pub fn number(&self) -> f64 {
        self.value.parse().unwrap()
    }

    pub fn length_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }
}

/// `convert -o tracks.csv`, read back.
pub fn rows(recorded: &Recorded) -> Vec<Row> {
    let path = recorded.path();
    let output = run(&[
        "convert",
        &path.to_string_lossy(),
        "--format",
        "csv",
        "-o",
        "-",
    ]);
    assert!(output.status.success(), "{}", output.stderr);
    let dump = recorded.inspect();
    let start = dump.lines().find_map(|line| line.strip_prefix("from "));
    let start_s: f64 = start
        .and_then(|line| line.split(' ').next())
        .unwrap()
        .parse()
        .unwrap();
    let at = |text: &str| ((start_s + text.parse::<f64>().unwrap()) * 1e9).max(0.0) as u64;
    let mut rows = Vec::new();
    for line in output.stdout.lines().skip(1) {
        let fields: Vec<&str> = line.splitn(10, ',').collect();
        assert_eq!(fields.len(), 10, "{line}");
        rows.push(Row {
            start_ns: at(fields[0]),
            end_ns: at(fields[1]),
            gpu: fields[2].to_owned(),
            uuid: fields[3].to_owned(),
            pid: fields[4].to_owned(),
            track: fields[6].to_owned(),
            value: fields[8].to_owned(),
            missing: fields[9].to_owned(),
        });
    }
    rows
}

/// The values of a counter track of a device.
pub fn track<'r>(rows: &'r [Row], uuid: &str, track: &str) -> Vec<&'r Row> {
    let wanted = |row: &&Row| row.uuid == uuid && row.track == track && row.missing.is_empty();
    rows.iter().filter(wanted).collect()
}

/// A GPU of a report.
pub fn gpu<'v>(report: &'v Value, uuid: &str) -> &'v Value {
    let gpus = report["gpus"].as_array().unwrap();
    gpus.iter()
        .find(|gpu| gpu["uuid"] == uuid)
        .unwrap_or_else(|| panic!("no {uuid}: {gpus:#?}"))
}

/// Why a counter track of a device is missing.
pub fn why_missing(gpu: &Value, track: &str) -> String {
    let gaps = gpu["missing"].as_array().unwrap();
    let of_track = |gap: &&Value| {
        gap["lanes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|name| name == track)
    };
    let gap = gaps.iter().find(of_track);
    let gap = gap.unwrap_or_else(|| panic!("{track} is not missing: {gaps:#?}"));
    gap["reason"].as_str().unwrap().to_owned()
}
