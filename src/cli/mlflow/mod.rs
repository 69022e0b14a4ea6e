//! `--mlflow URI`: a run in MLflow, with a child for each rank, as itwinai logs it.
//!
//! | file | content |
//! |---|---|
//! | [`address`] | where the server is, and who asks |
//! | [`rest`] | its REST interface |

mod address;
mod rest;

use super::failure::Failure;
use super::messages;
use crate::report::mlflow::Worker;
pub(crate) use address::MlflowPlan;
use rest::{Client, Run};
use std::fs::File;
use std::path::Path;

/// The folder of artifacts.
const FOLDER: &str = "torchspy";

/// What an artifact is made of.
pub(crate) enum Artifact<'a> {
    Bytes(&'a [u8]),
    File(&'a Path),
}

/// A run that is being logged. Unless it is [finished](Self::finish), the server keeps it as
/// failed.
pub(crate) struct MlflowRun<'p> {
    client: Client,
    plan: &'p MlflowPlan,
    experiment: String,
    parent: Run,
    workers: usize,
    is_finished: bool,
    /// The server takes no artifacts, which was said.
    refuses_artifacts: bool,
}

impl<'p> MlflowRun<'p> {
    /// Begins a run, which is called `name` if the user did not name it.
    pub(crate) fn start(
        plan: &'p MlflowPlan,
        name: &str,
        command: &str,
        started_ms: i64,
    ) -> Result<Self, Failure> {
        let client = Client::new(plan)?;
        let experiment = client.experiment(&plan.experiment)?;
        let name = plan.run_name.as_deref().unwrap_or(name);
        let tags = [
            ("mlflow.source.name", command),
            ("mlflow.source.type", "LOCAL"),
            ("torchspy.version", env!("CARGO_PKG_VERSION")),
        ];
        let parent = client.create_run(&experiment, name, started_ms, &tags)?;
        Ok(Self {
            client,
            plan,
            experiment,
            parent,
            workers: 0,
            is_finished: false,
            refuses_artifacts: false,
        })
    }

    /// Logs a rank, with its recording.
    pub(crate) fn worker(&mut self, worker: &Worker, files: &[&Path]) -> Result<(), Failure> {
        let tags = [("mlflow.parentRunId", self.parent.id.as_str())];
        let run =
            self.client
                .create_run(&self.experiment, &worker.name, worker.started_ms, &tags)?;
        let logged = self.client.log(&run, worker).and_then(|()| {
            let mut files = files.iter();
            files.try_for_each(|path| self.upload(&run, file_name(path), &Artifact::File(path)))
        });
        let status = if logged.is_ok() { "FINISHED" } else { "FAILED" };
        let ended = self.client.end_run(&run, status, worker.ended_ms);
        self.workers += 1;
        logged.and(ended)
    }

    /// Adds a file to the run itself.
    pub(crate) fn artifact(&mut self, name: &str, artifact: &Artifact<'_>) -> Result<(), Failure> {
        let parent = self.parent.clone();
        self.upload(&parent, name, artifact)
    }

    fn upload(&mut self, run: &Run, name: &str, artifact: &Artifact<'_>) -> Result<(), Failure> {
        let Some(url) = self.client.artifact_url(run, &format!("{FOLDER}/{name}")) else {
            if !self.refuses_artifacts {
                self.refuses_artifacts = true;
                messages::warning(&format!(
                    "artifacts are not logged: the server keeps them at {}, which its REST interface \
                     does not write (mlflow server --serve-artifacts does)",
                    run.artifacts
                ));
            }
            return Ok(());
        };
        match artifact {
            Artifact::Bytes(bytes) => self.client.put(&url, *bytes),
            Artifact::File(path) => {
                let file = File::open(path).map_err(|error| {
                    Failure::message(format!("cannot open {}: {error}", path.display()))
                })?;
                self.client.put(&url, &file)
            }
        }
    }

    /// Ends the run.
    pub(crate) fn finish(mut self, ended_ms: i64) -> Result<(), Failure> {
        self.client.end_run(&self.parent, "FINISHED", ended_ms)?;
        self.is_finished = true;
        messages::note(&format!(
            "logged {} of {} ranks: {}/#/experiments/{}/runs/{}",
            self.parent.name,
            self.workers,
            self.plan.shown(),
            self.experiment,
            self.parent.id
        ));
        Ok(())
    }
}

impl Drop for MlflowRun<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            // What went wrong is reported already.
            self.client.fail_run(&self.parent);
        }
    }
}

fn file_name(path: &Path) -> &str {
    let name = path.file_name().and_then(|name| name.to_str());
    name.unwrap_or("recording.tspy")
}
