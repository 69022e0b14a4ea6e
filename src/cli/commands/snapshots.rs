//! `record --snapshot TIME`: the page is rewritten while the recording grows.
//!
//! Each page is rendered by a process of its own. In a thread, page faults and `mmap` of rendering
//! would hold the lock of the memory map that the tracer's page faults take, while it has a thread
//! of the target stopped; the memory would stay with the recorder; and an error of memory would end
//! the recording. The process runs only where a CPU is idle, is in a process group of its own (keys
//! of the terminal do not reach it), and ends with the recorder.

use crate::cli::failure::Failure;
use crate::cli::messages;
use crate::cli::open_outputs::OpenOutputs;
use crate::cli::output_file::Replacement;
use crate::cli::plan::SnapshotEvery;
use crate::os::process_usage::children_cpu;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// CPU time of rendering is at most this part of all time.
const SHARE: u32 = 50;
/// Bytes of an error that are read.
const MOST_ERROR: u64 = 4096;

pub(super) struct Snapshots {
    plan: SnapshotEvery,
    /// When the next one begins, if the one before has ended.
    due: Instant,
    rendering: Option<Rendering>,
    has_failed: bool,
}

/// A page that is being rendered.
struct Rendering {
    process: Child,
    page: Replacement,
    begun: Instant,
    /// CPU time of all child processes before it.
    cpu_before: Duration,
}

impl Snapshots {
    pub(super) fn new(plan: SnapshotEvery) -> Self {
        Self {
            due: Instant::now() + plan.every,
            plan,
            rendering: None,
            has_failed: false,
        }
    }

    /// Begins a snapshot that is due, or puts one that is complete in the page's place; never
    /// waits. Returns an error, the first time that there is one.
    pub(super) fn poll(&mut self, outputs: &mut OpenOutputs) -> Option<Failure> {
        let done = match &mut self.rendering {
            Some(rendering) => {
                let status = rendering.process.try_wait();
                if matches!(status, Ok(None)) {
                    return None;
                }
                let rendering = self.rendering.take()?;
                let succeeded = status.ok().flatten().is_some_and(|status| status.success());
                let cpu = children_cpu().saturating_sub(rendering.cpu_before);
                self.due = rendering.begun + self.plan.every.max(cpu * SHARE);
                keep(rendering, succeeded, outputs)
            }
            None if Instant::now() >= self.due => {
                let begun = self.begin(outputs);
                if begun.is_err() {
                    self.due = Instant::now() + self.plan.every;
                }
                begun
            }
            None => return None,
        };
        let failure = done.err()?;
        (!std::mem::replace(&mut self.has_failed, true)).then_some(failure)
    }

    /// The process of the page that is being rendered.
    pub(super) fn pid(&self) -> Option<i32> {
        let rendering = self.rendering.as_ref()?;
        i32::try_from(rendering.process.id()).ok()
    }

    fn begin(&mut self, outputs: &mut OpenOutputs) -> Result<(), Failure> {
        // Opened anew: a copy of the descriptor would share the writer's position.
        let recording = File::open(outputs.recording_path()).map_err(failed)?;
        let Some(output) = outputs.page() else {
            return Ok(());
        };
        let page = output.replacement()?;
        let begun = Instant::now();
        let cpu_before = children_cpu();
        let process = page.file.try_clone().and_then(|stdout| {
            Command::new("/proc/self/exe")
                .args([
                    "snapshot",
                    "--child",
                    "/proc/self/fd/0",
                    "-o",
                    "-",
                    "-f",
                    "html",
                ])
                .args(&self.plan.arguments)
                .stdin(recording)
                .stdout(stdout)
                .stderr(Stdio::piped())
                .process_group(0)
                .spawn()
        });
        match process {
            Ok(process) => {
                self.rendering = Some(Rendering {
                    process,
                    page,
                    begun,
                    cpu_before,
                });
                Ok(())
            }
            Err(error) => {
                page.discard();
                Err(failed(error))
            }
        }
    }

    /// Ends a snapshot under way, without waiting for its process.
    pub(super) fn end(self) {
        if let Some(mut rendering) = self.rendering {
            let _ = rendering.process.kill();
            rendering.page.discard();
        }
    }
}

fn keep(
    mut rendering: Rendering,
    succeeded: bool,
    outputs: &mut OpenOutputs,
) -> Result<(), Failure> {
    match outputs.page() {
        Some(output) if succeeded => output.replace(rendering.page),
        _ => {
            rendering.page.discard();
            let mut text = Vec::new();
            if let Some(stderr) = rendering.process.stderr.take() {
                let _ = stderr.take(MOST_ERROR).read_to_end(&mut text);
            }
            let text = String::from_utf8_lossy(&text);
            let error = messages::error_in(&text);
            let error = error.unwrap_or("its process was ended");
            // Its standard output is the page.
            Err(failed(error.replace("standard output", "it")))
        }
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::message(format!("a snapshot of the page was not made: {error}"))
}
