//! `torchspy record`: launch or attach, sample, and write on every way out.

use super::finish::{Ended, Finish, Finishing};
use crate::cli::failure::Failure;
use crate::cli::free_threaded;
use crate::cli::open_outputs::OpenOutputs;
use crate::cli::outputs::{NameParts, RecordingSink};
use crate::cli::plan::{Drawing, RecordPlan, Target};
use crate::cli::progress::Progress;
use crate::cli::steering::{Action, Situation, Steering};
use crate::cli::{hints, messages};
use crate::gpu::collector;
use crate::model::process::ProcessInfo;
use crate::model::region::Region;
use crate::model::run::RunInfo;
use crate::os::launch::{Exit, LaunchError, Running, SuspendedLaunch, reap_orphans};
use crate::os::process_info::{parse_environment, read_process_info};
use crate::os::program::is_found;
use crate::os::redaction::Redaction;
use crate::os::signals::{self, Signals};
use crate::os::{access, host};
use crate::sampling::session::{Session, SessionError, SessionOptions};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How often the progress line and the end of an attached target are looked at.
const LOOK: Duration = Duration::from_millis(250);
/// As often where the kernel has no pidfd to tell that the program has ended.
const LOOK_WITHOUT_PIDFD: Duration = Duration::from_millis(20);
/// The status of who was interrupted, as shells have it.
const INTERRUPTED: u8 = 130;
/// Variables that name a rank, first match counts (torchrun, Slurm, Open MPI, PMI).
const RANKS: [&str; 5] = [
    "RANK",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
];

/// Records, and returns the launched program's status, or torchspy's own where it attached.
///
/// What cannot be opened or sampled is an error before the program has run a single instruction. What goes wrong later is a
/// warning: the program goes on, and its status is passed on.
pub(crate) fn run(plan: RecordPlan) -> Result<ExitCode, Failure> {
    // First of all, so that every thread made later has them blocked.
    let signals = Signals::install().map_err(Failure::new)?;
    match &plan.target {
        Target::Launch(command) => {
            let command = command.clone();
            launch(plan, &command, signals)
        }
        Target::Attach(pid) => {
            let pid = *pid;
            attach(plan, pid, signals)
        }
    }
}

fn launch(
    plan: RecordPlan,
    command: &[OsString],
    mut signals: Signals,
) -> Result<ExitCode, Failure> {
    // Asked before the outputs are opened: files that exist are not emptied for nothing.
    if let Some(name) = command.first().filter(|name| !is_found(name)) {
        let name = name.to_string_lossy().into_owned();
        return Err(hints::launch_failure(LaunchError::NotFound(name)));
    }
    free_threaded::refuse_program(command)?;
    let suspended = SuspendedLaunch::spawn(command, &signals.inherited_mask())
        .map_err(hints::launch_failure)?;
    signals.listen().map_err(Failure::new)?;
    let pid = suspended.pid();
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let environment = std::fs::read("/proc/self/environ").unwrap_or_default();
    let run = run_info_of(&plan, pid, plan.options.redaction.command(&words));
    let duration = plan.duration;
    let finish = start(plan, &run, rank(&parse_environment(&environment)))?;
    match suspended.resume() {
        Ok(running) => Ok(Recorder::new(signals, finish, Some(running), duration).run()),
        Err(error) => {
            let _ = finish.session.stop();
            finish.outputs.discard();
            Err(hints::launch_failure(error))
        }
    }
}

fn attach(plan: RecordPlan, pid: i32, mut signals: Signals) -> Result<ExitCode, Failure> {
    // Asked before the outputs are opened: files that exist are not emptied for nothing.
    let info = attachable(pid, plan.options.redaction)?;
    signals.listen().map_err(Failure::new)?;
    let rank = rank(&info.environment);
    let run = run_info_of(&plan, pid, info.command);
    let duration = plan.duration;
    let finish = start(plan, &run, rank)?;
    Ok(Recorder::new(signals, finish, None, duration).run())
}

/// The facts of a process that may be sampled.
pub(super) fn attachable(pid: i32, redaction: Redaction) -> Result<ProcessInfo, Failure> {
    let info = read_process_info(pid, redaction)
        .map_err(|_| hints::session_failure(SessionError::NoSuchProcess(pid)))?;
    if u32::try_from(pid).is_ok_and(|pid| pid == std::process::id()) {
        return Err(Failure::usage(
            "torchspy cannot sample itself",
            "give the trainer's pid",
        ));
    }
    // process_vm_readv waits for the mmap lock and cannot be killed meanwhile (mm/process_vm_access.c): it is not called where the
    // lock is not given up.
    if !info.note.is_empty() {
        return Err(Failure::message(format!("process {pid}: {}", info.note)).hint(format!(
            "a thread of it may hold its mmap lock; torchspy dump --pid {pid} shows what the kernel knows of it"
        )));
    }
    if let Err(error) = access::try_read_memory(pid) {
        let detail = error.to_string();
        return Err(hints::session_failure(SessionError::PermissionDenied {
            pid,
            detail,
        }));
    }
    free_threaded::refuse_process(pid)?;
    Ok(info)
}

/// Whether torchspy may do here what the options ask for.
pub(super) fn check_options(options: &SessionOptions, pid: i32) -> Result<(), Failure> {
    if !options.nonblocking
        && let Err(error) = access::try_stop_own_child()
    {
        return Err(hints::stop_failure(pid, &error));
    }
    collector::check(&options.gpu).map_err(hints::gpu_failure)
}

/// Opens the outputs and starts sampling.
fn start(plan: RecordPlan, run: &RunInfo, rank: Option<u32>) -> Result<Finish, Failure> {
    let parts = NameParts {
        command: &run.command,
        host: &run.host,
        rank,
        pid: run.pid,
        started_wall_ns: run.started_wall_ns,
    };
    check_options(&plan.options, run.pid)?;
    let outputs = OpenOutputs::open(
        &plan.outputs,
        plan.beside,
        plan.force,
        Path::new(""),
        &parts,
    )?;
    match start_session(&plan, run, &outputs) {
        Ok((session, sink)) => Ok(Finish {
            session,
            sink,
            outputs,
            drawing: Drawing::clone(&plan.drawing),
            rules: plan.rules,
        }),
        Err(failure) => {
            outputs.discard();
            Err(failure)
        }
    }
}

fn run_info_of(plan: &RecordPlan, pid: i32, command: Vec<String>) -> RunInfo {
    run_info(&plan.options, &plan.target, &plan.regions, pid, command)
}

fn start_session(
    plan: &RecordPlan,
    run: &RunInfo,
    outputs: &OpenOutputs,
) -> Result<(Session, RecordingSink), Failure> {
    let file = outputs.recording().map_err(Failure::new)?;
    let sink = RecordingSink::start(file, run).map_err(hints::writing_failure)?;
    let session = Session::start(run.pid, plan.options.clone(), Box::new(sink.clone()))
        .map_err(hints::session_failure)?;
    if let Err(failure) = outputs.keep_recording() {
        let _ = session.stop();
        return Err(failure);
    }
    Ok((session, sink))
}

/// What a recording of `pid` says of itself.
pub(super) fn run_info(
    options: &SessionOptions,
    target: &Target,
    regions: &[Region],
    pid: i32,
    command: Vec<String>,
) -> RunInfo {
    let mut notes = Vec::new();
    let groups = host::CpuGroups::of(pid);
    let own_groups = host::CpuGroups::of(i32::try_from(std::process::id()).unwrap_or(0));
    if let Some(cpus) = groups.quota() {
        notes.push(format!("cgroup quota {cpus:.1} CPUs"));
    }
    if let Some(cpus) = own_groups.quota()
        && own_groups != groups
    {
        notes.push(format!("torchspy's own cgroup quota {cpus:.1} CPUs"));
    }
    if let Some(runtime) = access::container() {
        notes.push(format!("recorded inside {runtime}"));
    }
    RunInfo {
        torchspy: env!("CARGO_PKG_VERSION").to_owned(),
        host: host::host_name(),
        kernel: host::kernel_release(),
        architecture: std::env::consts::ARCH.to_owned(),
        cpus: host::cpus(),
        command,
        pid,
        launched: matches!(target, Target::Launch(_)),
        rate_hz: options.rate_hz,
        native: options.native,
        nonblocking: options.nonblocking,
        gil_only: options.gil_only,
        threads: options.threads.as_ref().map(ToString::to_string),
        max_stopped: options.max_stopped,
        started_ns: host::monotonic_ns(),
        started_wall_ns: host::wall_ns(),
        notes,
        regions: regions.to_vec(),
    }
}

pub(super) fn rank(environment: &[(String, String)]) -> Option<u32> {
    RANKS.iter().find_map(|wanted| {
        let (_, value) = environment.iter().find(|(name, _)| name == wanted)?;
        value.parse().ok()
    })
}

/// A recording under way.
struct Recorder {
    signals: Signals,
    steering: Steering,
    progress: Option<Progress>,
    /// Until sampling ends.
    sampling: Option<Finish>,
    /// From then on.
    finishing: Option<Finishing>,
    program: Option<Running>,
    exit: Option<Exit>,
    /// The launched program is waited for no longer.
    has_left: bool,
    deadline: Option<Instant>,
    is_first_process: bool,
}

impl Recorder {
    fn new(
        signals: Signals,
        finish: Finish,
        program: Option<Running>,
        duration: Option<Duration>,
    ) -> Self {
        Self {
            signals,
            steering: Steering::default(),
            progress: Some(Progress::start()),
            sampling: Some(finish),
            finishing: None,
            program,
            exit: None,
            has_left: false,
            deadline: duration.and_then(|duration| Instant::now().checked_add(duration)),
            is_first_process: std::process::id() == 1,
        }
    }

    fn run(mut self) -> ExitCode {
        loop {
            self.wait();
            self.look_at_program();
            while let Some(received) = self.signals.next() {
                let action = self.steering.react(received, self.situation());
                if self.act(action) {
                    return self.status(Ended::default());
                }
            }
            if let Some(finish) = &self.sampling {
                let snapshot = finish.session.progress();
                if let Some(progress) = &self.progress {
                    progress.update(&snapshot);
                }
                let over = self
                    .deadline
                    .is_some_and(|deadline| Instant::now() >= deadline);
                if over || self.exit.is_some() || finish.session.finished() {
                    self.end_recording();
                }
            }
            let program_over = self.program.is_none() || self.exit.is_some();
            let written = self.finishing.as_ref().is_none_or(Finishing::is_done);
            if program_over && self.sampling.is_none() && written {
                let ended = self.finishing.take().map(Finishing::join);
                return self.status(ended.unwrap_or_default());
            }
        }
    }

    /// Sleeps until a signal comes, the program ends, or it is time for a look.
    fn wait(&self) {
        let running = self.program.as_ref().filter(|_| self.exit.is_none());
        let pidfd = running.and_then(Running::pidfd);
        let mut longest = if running.is_some() && pidfd.is_none() {
            LOOK_WITHOUT_PIDFD
        } else {
            LOOK
        };
        if let Some(deadline) = self.deadline.filter(|_| self.sampling.is_some()) {
            longest = longest.min(deadline.saturating_duration_since(Instant::now()));
        }
        signals::wait_readable(&self.signals, pidfd, longest);
    }

    fn look_at_program(&mut self) {
        if let (Some(program), None) = (&mut self.program, self.exit) {
            self.exit = program.try_wait();
        }
        if self.is_first_process {
            let program = self.program.as_ref().filter(|_| self.exit.is_none());
            reap_orphans(program.map(Running::pid));
        }
    }

    fn situation(&self) -> Situation {
        Situation {
            program_runs: self.program.is_some() && self.exit.is_none(),
            sampling: self.sampling.is_some(),
            saved: self.finishing.as_ref().is_some_and(Finishing::is_saved),
        }
    }

    /// Returns whether torchspy ends at once.
    fn act(&mut self, action: Action) -> bool {
        match action {
            Action::Ignore => {}
            Action::TellAboutInterrupt => self.say(
                "interrupted: the recording ends when the program does; Ctrl-C again ends the recording alone",
            ),
            Action::TellAboutWriting(left) => self.say(&format!(
                "still writing what was recorded; {left} more Ctrl-C or SIGTERM give it up"
            )),
            Action::EndRecording => self.end_recording(),
            Action::Forward(signal) => {
                if let Some(program) = &self.program
                    && let Err(error) = signals::forward(signal, program.pid())
                {
                    self.say(&format!("warning: {signal} could not be forwarded: {error}"));
                }
            }
            Action::Suspend => self.suspend(),
            Action::Leave => {
                if let Some(program) = self.program.take() {
                    self.has_left = true;
                    self.say(&format!("left the program running (pid {})", program.pid()));
                }
            }
            Action::GiveUp => {
                messages::warning("interrupted: not all outputs were written");
                messages::hint("torchspy convert makes them from a recording (.tspy)");
                self.signals.let_no_more_act();
                return true;
            }
        }
        false
    }

    fn say(&self, text: &str) {
        match &self.progress {
            Some(progress) => progress.note(text),
            None => messages::note(text),
        }
    }

    fn suspend(&mut self) {
        if let Some(progress) = &self.progress {
            progress.clear();
        }
        if let Some(finish) = &self.sampling {
            finish.session.pause();
        }
        // Where stopping fails there is nothing to do but to go on.
        let _ = self.signals.stop_self();
        if let Some(finish) = &self.sampling {
            finish.session.resume();
        }
        if let Some(progress) = &mut self.progress {
            progress.show_again();
        }
    }

    fn end_recording(&mut self) {
        let Some(finish) = self.sampling.take() else {
            return;
        };
        if let Some(progress) = self.progress.take() {
            progress.finish(&finish.session.progress());
        }
        if let Some(program) = self.program.as_ref().filter(|_| self.exit.is_none()) {
            messages::note(&format!(
                "the recording has ended; the program goes on (pid {}), and torchspy waits for it: Ctrl-C again leaves it alone",
                program.pid()
            ));
        }
        match Finishing::start(finish) {
            Ok(finishing) => self.finishing = Some(finishing),
            Err(error) => messages::warning(&format!("nothing more can be written: {error}")),
        }
    }

    fn status(&self, ended: Ended) -> ExitCode {
        match self.exit {
            Some(exit) => {
                match exit {
                    Exit::Code(0) => {}
                    Exit::Unknown => {
                        messages::warning("the program's exit status was taken by somebody else");
                    }
                    failed => messages::note(&format!("the program {failed}")),
                }
                match exit.shell_status() {
                    // The program did its work, torchspy could not.
                    0 if ended.is_unreadable => ExitCode::FAILURE,
                    status => ExitCode::from(status),
                }
            }
            None if self.has_left => ExitCode::from(INTERRUPTED),
            None if ended.is_complete && !ended.is_unreadable => ExitCode::SUCCESS,
            None => ExitCode::FAILURE,
        }
    }
}
