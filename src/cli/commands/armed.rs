//! `record --trigger`: nothing is recorded until the trigger; then each trigger makes a recording.

use super::finish::Finish;
use super::record::start;
use crate::cli::failure::Failure;
use crate::cli::messages;
use crate::cli::monitor::Monitor;
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
    file: Option<TriggerFile>,
    /// What the process does is looked at.
    monitor: Option<Monitor>,
    /// Why all that wait for the file were made to begin.
    why: Option<String>,
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
        target::check_options(&plan.options, pid)?;
        let mut waits_for = trigger.conditions.words();
        let file = match &trigger.folder {
            None => None,
            Some(folder) => {
                let (folder, _) = output_pattern::fill_path(folder, &parts, place)?;
                waits_for.push(format!("torchspy trigger {}", folder.display()));
                Some(TriggerFile::watch(&folder)?)
            }
        };
        let monitor = match trigger.conditions {
            conditions if conditions.is_empty() => None,
            conditions => Some(Monitor::start(&run, &plan.options, conditions)?),
        };
        messages::note(&format!("waiting for: {}", waits_for.join(", or ")));
        Ok(Some(Self {
            plan: plan.clone(),
            place: place.clone(),
            pid,
            start_ticks: start_ticks(pid),
            command: command.to_owned(),
            file,
            monitor,
            why: None,
            length: trigger.length,
        }))
    }

    /// Starts a recording if the trigger was set. Returns it and its length.
    pub(super) fn poll(&mut self) -> Option<Result<(Finish, Duration), Failure>> {
        let why = self.reason()?;
        messages::note(&format!("{why}: recording for {:?}", self.length));
        if let Some(monitor) = &mut self.monitor {
            monitor.stop();
        }
        // The program's start is not part of it, as for a process that is attached to.
        let target = Target::Attach(self.pid);
        let command = self.command.clone();
        let plan = &self.plan;
        let mut run = target::run_info(&plan.options, &target, &plan.regions, self.pid, command);
        run.notes.push(format!("begun because {why}"));
        Some(self.start(&run).map(|finish| (finish, self.length)))
    }

    /// Why a recording begins now.
    fn reason(&mut self) -> Option<String> {
        if let Some(monitor) = &mut self.monitor {
            if monitor.is_stopped() {
                // A process that ends is noticed elsewhere.
                let run = target::begin(self.pid);
                let _ = monitor.go_on(&run, &self.plan.options);
            }
            if let Some(why) = monitor.poll() {
                match self.file.as_ref().map(TriggerFile::set) {
                    // This recorder begins with all others that wait for the file.
                    Some(Ok(())) => self.why = Some(why),
                    Some(Err(failure)) => {
                        messages::failed(&failure);
                        return Some(why);
                    }
                    None => return Some(why),
                }
            }
        }
        let is_set = self.file.as_mut()?.is_set_again();
        let why = || "torchspy trigger was run".to_owned();
        is_set.then(|| self.why.take().unwrap_or_else(why))
    }

    fn start(&self, run: &RunInfo) -> Result<Finish, Failure> {
        let finish = start(self.plan.clone(), run, self.place.clone(), None)?;
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
    (!stat.is_zombie()).then_some(stat.start_ticks)
}
