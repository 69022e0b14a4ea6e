//! A simulated GPU node of a test: its folder, what runs on it, and the truth about it.

use crate::faults::{STEADY, TORCHSPY, program, run};
use gpu_node::scenario::Scenario;
use gpu_node::truth::{Kind, Truth};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

/// A library, as cargo built it for the tests.
fn library(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let library = own.parent().unwrap().join(name);
    assert!(library.exists(), "{} was not built", library.display());
    library
}

/// Two trainings at a time would disturb each other's figures.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Node {
    folder: TempDir,
}

/// A program that ran on a node while it was recorded.
pub(crate) struct Ran {
    /// What it printed last.
    pub(crate) said: Value,
    /// All that it printed.
    pub(crate) printed: String,
    /// What torchspy printed, the report among it.
    pub(crate) messages: String,
    pub(crate) recording: PathBuf,
    pub(crate) report: Value,
    /// One for each process that used a device.
    pub(crate) truths: Vec<Truth>,
}

impl Node {
    /// As `scripts/gpu-sim` makes it.
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("scenario.json"), serde_json::to_vec(scenario).unwrap()).unwrap();
        let nvml = library("libnvml_double.so");
        // Tools take files with one build-id for one file: this is another one.
        let mut driver = std::fs::read(&nvml).unwrap();
        let note = driver.windows(4).position(|four| four == b"GNU\0").unwrap() + 4;
        driver[note..note + 8].copy_from_slice(b"libcuda.");
        std::fs::write(at("libcuda.so.1"), driver).unwrap();
        std::os::unix::fs::symlink(&nvml, at("libnvidia-ml.so.1")).unwrap();
        // A copy: the name of the mapped file is what others see.
        std::fs::copy(library("libcuda_double.so"), at("libcudart.so.13")).unwrap();
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A command whose processes use the node's devices.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.path())
            .env(gpu_node::FOLDER, self.path())
            .env("LD_PRELOAD", self.path().join("libcudart.so.13"))
            .env("LD_LIBRARY_PATH", self.path())
            .stdin(Stdio::null());
        command
    }

    /// Records a program of tests/programs to its end.
    pub(crate) fn record(&self, python: &Path, words: &[&str], options: &[&str]) -> Ran {
        let script = program(words[0]);
        let words = [&[script.as_str()], &words[1..]].concat();
        self.record_words(python, &words, options)
    }

    /// The same of as many ranks of it as there are devices.
    pub(crate) fn record_ranks(
        &self,
        python: &Path,
        ranks: u32,
        script: &str,
        words: &[&str],
    ) -> Ran {
        let (ranks, script) = (ranks.to_string(), program(script));
        let launcher = ["-m", "torch.distributed.run", "--standalone"];
        let started = ["--nproc-per-node", &ranks, &script];
        self.record_words(python, &[&launcher, &started, words].concat(), &[])
    }

    fn record_words(&self, python: &Path, words: &[&str], options: &[&str]) -> Ran {
        let _alone = alone();
        let recording = self.path().join("run.tspy");
        let mut command = self.command(TORCHSPY);
        command
            .args(["record", "--force"])
            .args(STEADY)
            .arg("-o")
            .arg(&recording)
            .args(options)
            .arg("--")
            .arg(python)
            .args(words);
        let done = command.output().unwrap();
        let messages = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{messages}");
        let printed = String::from_utf8(done.stdout).unwrap();
        let said = printed.lines().last().unwrap();
        let report = run(&["report", "--json", &recording.to_string_lossy()]);
        assert!(report.status.success(), "{}", report.stderr);
        Ran {
            said: serde_json::from_str(said).unwrap_or_else(|error| panic!("{error}: {said}")),
            report: serde_json::from_str(&report.stdout).unwrap(),
            messages,
            recording,
            printed,
            truths: Truth::read(self.path()).unwrap(),
        }
    }
}

impl Ran {
    /// The recording as folded stacks with their ticks.
    pub(crate) fn folded(&self) -> Vec<(String, u64)> {
        let path = self.recording.to_string_lossy();
        let done = run(&["convert", &path, "--format", "folded", "-o", "-"]);
        assert!(done.status.success(), "{}", done.stderr);
        let lines = done.stdout.lines().filter_map(|line| {
            let (stack, ticks) = line.rsplit_once(' ')?;
            Some((stack.to_owned(), ticks.parse().ok()?))
        });
        lines.collect()
    }
}

/// Time in which a thread waited for a device, within some spans, ns.
pub(crate) fn waited_ns(truth: &Truth, tid: u32, spans: &[(u64, u64)]) -> u64 {
    let waits = truth
        .of_kind(Kind::Wait)
        .filter(|(record, _)| record.tid == tid);
    waits
        .map(|(record, _)| {
            let within = spans
                .iter()
                .map(|&(start, end)| record.end.min(end).saturating_sub(record.start.max(start)));
            within.sum::<u64>()
        })
        .sum()
}
