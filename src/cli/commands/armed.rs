//! `record --trigger`: nothing is sampled until the trigger; then each trigger makes a recording.

use super::finish::Finish;
use super::record::start;
use crate::cli::failure::Failure;
use crate::cli::messages;
use crate::cli::outputs::NameParts;
use crate::cli::plan::{RecordPlan, Target};
use crate::cli::trigger::TriggerFile;
use crate::cli::{output_pattern, target};
use crate::model::run::RunInfo;
use crate::os::process_info::read_stat;
use crate::torch::job::JobPlace;
use std::time::Duration;

/// A recorder that waits.
pub(super) struct Armed {
    plan: RecordPlan,
    place: JobPlace,
    pid: i32,
    /// When the process started, clock ticks since boot: pids are reused.
    start_ticks: Option<u64>,
    command: Vec<String>,
    file: TriggerFile,
    /// The length of a recording.
    length: Duration,
}

impl Armed {
    /// Waits for a trigger to record `pid`; `None` if the plan has no trigger. What a recording
    /// would fail for is an error now, as far as it can be known.
    pub(super) fn new(
        plan: &RecordPlan,
        place: &JobPlace,
        pid: i32,
        command: &[String],
    ) -> Result<Option<Self>, Failure> {
        let Some(trigger) = &plan.trigger else {
            return Ok(None);
        };
        let run = target::begin(pid);
        let parts = NameParts {
            command,
            host: &run.host,
            rank: place.rank,
            pid,
            started_wall_ns: run.started_wall_ns,
        };
        output_pattern::fill(&plan.outputs, &parts, place)?;
        let (folder, _) = output_pattern::fill_path(&trigger.folder, &parts, place)?;
        target::check_options(&plan.options, pid)?;
        let file = TriggerFile::watch(&folder)?;
        messages::note(&format!(
            "waiting for: torchspy trigger {}",
            folder.display()
        ));
        Ok(Some(Self {
            plan: plan.clone(),
            place: place.clone(),
            pid,
            start_ticks: start_ticks(pid),
            command: command.to_owned(),
            file,
            length: trigger.length,
        }))
    }

    /// Starts a recording if the trigger was set. Returns it and its length.
    pub(super) fn poll(&mut self) -> Option<Result<(Finish, Duration), Failure>> {
        if !self.file.is_set_again() {
            return None;
        }
        messages::note(&format!("triggered: recording for {:?}", self.length));
        // The program's start is not part of it, as for a process that is attached to.
        let target = Target::Attach(self.pid);
        let command = self.command.clone();
        let plan = &self.plan;
        let mut run = target::run_info(&plan.options, &target, &plan.regions, self.pid, command);
        run.notes.push("begun by torchspy trigger".to_owned());
        Some(self.start(&run).map(|finish| (finish, self.length)))
    }

    fn start(&self, run: &RunInfo) -> Result<Finish, Failure> {
        let finish = start(self.plan.clone(), run, self.place.clone())?;
        match finish.outputs.keep_recording() {
            Ok(()) => Ok(finish),
            Err(failure) => {
                finish.discard();
                Err(failure)
            }
        }
    }

    /// Whether the process has ended: there is nothing to wait for.
    pub(super) fn has_ended(&self) -> bool {
        self.start_ticks.is_none() || start_ticks(self.pid) != self.start_ticks
    }
}

/// `None` for a process that has ended, waited for or not.
fn start_ticks(pid: i32) -> Option<u64> {
    let stat = read_stat(pid).ok()?;
    (!matches!(stat.state, b'Z' | b'X')).then_some(stat.start_ticks)
}
