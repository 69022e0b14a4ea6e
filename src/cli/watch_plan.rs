//! The validated plan of `torchspy watch`.

use super::args::WatchArguments;
use super::asked_job::AskedJob;
use super::dump_plan::{Answers, LookPlan, answers_of};
use super::failure::Failure;
use super::option_values::{parse_duration_of, redaction};
use super::rules::Rules;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct WatchPlan {
    /// The processes, and how they are read where nothing moves.
    pub(crate) look: LookPlan,
    /// The id of the job whose trainers on this machine are these processes; `None` if their pids
    /// are given.
    pub(crate) job: Option<String>,
    /// The machines of the job, which are asked when all ranks here wait for others.
    pub(crate) machines: Option<Answers>,
    /// Time between two looks.
    pub(crate) every: Duration,
    /// The shortest time without a move that is judged.
    pub(crate) after: Duration,
    /// The same in usual steps.
    pub(crate) times: f64,
    /// Ends then; `None` with the target.
    pub(crate) duration: Option<Duration>,
    /// Ends with the first hang.
    pub(crate) once: bool,
    /// Name of the dumps, without an extension; `None` for one by pid and time.
    pub(crate) output: Option<PathBuf>,
    /// Run by a shell when a dump was written.
    pub(crate) on_hang: Option<String>,
}

impl WatchPlan {
    pub(super) fn new(arguments: WatchArguments) -> Result<Self, Failure> {
        let machines = &arguments.machines;
        let has_pid = !arguments.pid.is_empty();
        if !has_pid && machines.job.is_none() {
            return Err(Failure::usage(
                "nothing says which job to watch",
                "--pid PID names the trainer, or the launcher of several; --job ID all trainers of a job on this machine",
            ));
        }
        if !(arguments.times.is_finite() && arguments.times >= 1.0) {
            return Err(Failure::usage(
                format!("--times {} is out of range", arguments.times),
                "a hang lasts longer than a step: 1 at least, 20 without the option",
            ));
        }
        let duration = arguments.duration.as_deref();
        if machines.via.is_some() && machines.job.is_none() && machines.hosts.is_none() {
            return Err(Failure::usage(
                "--via says how to reach machines, and none is named",
                "--hosts HOST,HOST or --job SLURM_ID names the machines of the job",
            ));
        }
        // Where a pid says what is watched here, the job says where the other ranks are.
        let has_machines =
            machines.hosts.is_some() || machines.via.is_some() || has_pid && machines.job.is_some();
        let asked = AskedJob::of(machines.job.as_deref())?;
        let id = match has_pid {
            true => None,
            false => asked.clone().known_id()?,
        };
        let options = [
            (arguments.nonblocking, "--nonblocking"),
            (arguments.no_redact, "--no-redact"),
        ];
        Ok(Self {
            job: id,
            look: LookPlan {
                memory: false,
                pids: arguments.pid,
                tree: true,
                locals: false,
                native: true,
                nonblocking: arguments.nonblocking,
                ras: true,
                redaction: redaction(arguments.no_redact),
                rules: Rules::read(arguments.rules.as_deref())?,
            },
            machines: has_machines
                .then(|| answers_of(machines, asked, &options))
                .transpose()?,
            every: parse_duration_of("--every", &arguments.every)?,
            after: parse_duration_of("--after", &arguments.after)?,
            times: arguments.times,
            duration: duration
                .map(|text| parse_duration_of("--duration", text))
                .transpose()?,
            once: arguments.once,
            output: arguments.output,
            on_hang: arguments.on_hang,
        })
    }
}
