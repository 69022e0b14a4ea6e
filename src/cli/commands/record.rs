//! `torchspy record`: launch or attach, sample, and write on every way out.

use super::armed::Armed;
use super::finish::{Ended, Finish, Finishing};
use super::snapshots::Snapshots;
use crate::cli::failure::Failure;
use crate::cli::objects::sender::{Sending, Spooled};
use crate::cli::open_outputs::OpenOutputs;
use crate::cli::outputs::{NameParts, RecordingSink};
use crate::cli::plan::{Drawing, RecordPlan, Target};
use crate::cli::progress::Progress;
use crate::cli::ras::RasSink;
use crate::cli::steering::{Action, Situation, Steering};
use crate::cli::window::TraceWindow;
use crate::cli::{hints, messages, output_pattern, target};
use crate::model::run::RunInfo;
use crate::os::launch::{Exit, Running, SuspendedLaunch, reap_orphans, replace_self};
use crate::os::signals::{self, Signals};
use crate::report::page::under_way;
use crate::resolve::confidential::Confidential;
use crate::sampling::session::{SegmentSink, Session};
use crate::torch::job::JobPlace;
use crate::torch::rank_choice::RankChoice;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How often the progress line is drawn and the end of an attached target is polled.
const POLL: Duration = Duration::from_millis(250);
/// How often the end of the program is polled where the kernel has no pidfd.
const POLL_WITHOUT_PIDFD: Duration = Duration::from_millis(20);
/// The exit status after an interrupt, as shells have it.
const INTERRUPTED: u8 = 130;
/// Records, and returns the launched program's status, or torchspy's own where it attached.
///
/// What cannot be opened or sampled is an error before the program has run a single instruction.
/// What goes wrong later is a warning: the program goes on, and its status is passed on.
pub(crate) fn run(plan: RecordPlan) -> Result<ExitCode, Failure> {
    if let Target::Launch(command) = &plan.target
        && let Some(rank) = left_out(&plan, &target::launched_place(command))
    {
        note_left_out(&plan, rank, "it runs without a recording");
        return Err(hints::launch_failure(replace_self(command)));
    }
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

/// The rank that is not to be recorded.
fn left_out(plan: &RecordPlan, place: &JobPlace) -> Option<u32> {
    let is_chosen = plan.options.ranks.as_ref()?.has(place)?;
    place.rank.filter(|_| !is_chosen)
}

fn note_left_out(plan: &RecordPlan, rank: u32, what: &str) {
    let ranks = plan.options.ranks.as_ref().map_or("", RankChoice::text);
    messages::note(&format!("rank {rank} is not of --ranks {ranks}: {what}"));
}

fn launch(
    plan: RecordPlan,
    command: &[OsString],
    mut signals: Signals,
) -> Result<ExitCode, Failure> {
    // Before the outputs are opened: files that exist are not emptied for nothing.
    target::check_program(command)?;
    let window = plan.trace.map(TraceWindow::start).transpose()?;
    let added = window.as_ref().map(TraceWindow::environment);
    let suspended =
        SuspendedLaunch::spawn(command, &signals.inherited(), &added.unwrap_or_default())
            .map_err(hints::launch_failure)?;
    signals.listen().map_err(Failure::new)?;
    let pid = suspended.pid();
    let shown = target::shown(command, plan.options.redaction);
    let place = target::launched_place(command);
    if let Some(armed) = Armed::new(&plan, &place, pid, &shown)? {
        let running = suspended.resume().map_err(hints::launch_failure)?;
        return Ok(Recorder::armed(signals, armed, Some(running)).run());
    }
    let run = target::run_info(&plan.options, &plan.target, &plan.regions, pid, shown);
    let (duration, snapshot) = (plan.duration, plan.snapshot.clone());
    let finish = start(plan, &run, place, window.as_ref())?;
    match suspended.resume() {
        Ok(running) => {
            // Only now: a program that cannot be run replaces no older recording.
            if let Err(failure) = finish.outputs.keep_recording() {
                messages::failed(&failure);
            }
            let mut recorder = Recorder::new(signals, finish, Some(running), duration);
            recorder.snapshots = snapshot.map(Snapshots::new);
            recorder.window = window;
            Ok(recorder.run())
        }
        Err(error) => {
            finish.discard();
            Err(hints::launch_failure(error))
        }
    }
}

fn attach(plan: RecordPlan, pid: i32, mut signals: Signals) -> Result<ExitCode, Failure> {
    // Before the outputs are opened: files that exist are not emptied for nothing.
    let info = target::attachable(pid, plan.options.redaction)?;
    if std::io::stderr().is_terminal() && target::is_ancestor(pid) {
        messages::warning(&format!(
            "process {pid} started this command: if it waits for it, the recording shows that wait"
        ));
        messages::hint(
            "in a notebook, start the command in the background: `%%bash --bg` as the first line of its cell",
        );
    }
    signals.listen().map_err(Failure::new)?;
    let place = target::place_of(&info);
    if let Some(rank) = left_out(&plan, &place) {
        note_left_out(&plan, rank, "it is not recorded");
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(armed) = Armed::new(&plan, &place, pid, &info.command)? {
        return Ok(Recorder::armed(signals, armed, None).run());
    }
    let run = target::run_info(
        &plan.options,
        &plan.target,
        &plan.regions,
        pid,
        info.command,
    );
    let (duration, snapshot) = (plan.duration, plan.snapshot.clone());
    let finish = start(plan, &run, place, None)?;
    if let Err(failure) = finish.outputs.keep_recording() {
        finish.discard();
        return Err(failure);
    }
    let mut recorder = Recorder::new(signals, finish, None, duration);
    recorder.snapshots = snapshot.map(Snapshots::new);
    Ok(recorder.run())
}

/// Opens the outputs and starts to sample.
pub(super) fn start(
    plan: RecordPlan,
    run: &RunInfo,
    mut place: JobPlace,
    window: Option<&TraceWindow>,
) -> Result<Finish, Failure> {
    let mut named = run.clone();
    if let Some(key) = &plan.confidential {
        let mut confidential = Confidential::new(key);
        confidential.run(&mut named);
        place.job = place.job.map(|job| confidential.job(&job));
        messages::note(
            "the recording keeps all names: share what is made of it with --confidential",
        );
    }
    let parts = NameParts {
        command: &named.command,
        host: &named.host,
        rank: place.rank,
        pid: run.pid,
        started_wall_ns: run.started_wall_ns,
    };
    let mut wanted = output_pattern::fill(&plan.outputs, &parts, &place)?;
    if plan.trigger.is_some() {
        // Each trigger makes a recording of its own.
        wanted
            .iter_mut()
            .for_each(|output| output.is_numbered = true);
    }
    target::check_options(&plan.options, run.pid)?;
    let spooled = Spooled::divert(&mut wanted, plan.spool.as_deref(), plan.force, &parts)?;
    let folder = Path::new("");
    let opened = OpenOutputs::open(&wanted, plan.beside, plan.force, folder, &parts);
    let mut outputs = match opened {
        Ok(outputs) => outputs,
        Err(failure) => {
            if let Some(spooled) = spooled {
                spooled.discard();
            }
            return Err(failure);
        }
    };
    if let Some((taken, new)) = outputs.renamed(&wanted) {
        messages::note(&format!(
            "{} is there already: writing {}",
            taken.display(),
            new.display()
        ));
    }
    hold_pages(&plan, &named, &mut outputs);
    let to = |sink: RecordingSink| -> Box<dyn SegmentSink> {
        let sink: Box<dyn SegmentSink> = match plan.ras {
            true => Box::new(RasSink::new(sink)),
            false => Box::new(sink),
        };
        match window {
            Some(window) => Box::new(window.sink(sink, &place, plan.duration)),
            None => sink,
        }
    };
    match start_session(&plan, run, &outputs, to) {
        Ok((session, sink)) => Ok(Finish {
            sending: match spooled {
                Some(spooled) => Some(spooled.prepare(&outputs, &sink).map_err(Failure::new)?),
                None => None,
            },
            session,
            sink,
            outputs,
            open: plan.open,
            drawing: Drawing::clone(&plan.drawing),
            rules: plan.rules,
            confidential: plan.confidential,
        }),
        Err(failure) => {
            outputs.discard();
            if let Some(spooled) = spooled {
                spooled.discard();
            }
            Err(failure)
        }
    }
}

fn start_session(
    plan: &RecordPlan,
    run: &RunInfo,
    outputs: &OpenOutputs,
    to: impl FnOnce(RecordingSink) -> Box<dyn SegmentSink>,
) -> Result<(Session, RecordingSink), Failure> {
    let file = outputs.recording().map_err(Failure::new)?;
    let sink = RecordingSink::start(file, run).map_err(hints::writing_failure)?;
    let session = Session::start(run.pid, plan.options.clone(), to(sink.clone()))
        .map_err(hints::session_failure)?;
    Ok((session, sink))
}

/// Whoever opens a page before the end sees that the recording is under way. `run` is as pages show
/// it.
fn hold_pages(plan: &RecordPlan, run: &RunInfo, outputs: &mut OpenOutputs) {
    let recording = outputs
        .named_recording()
        .map(|output| output.path.to_owned());
    outputs.hold_pages(|page| {
        let files = recording
            .as_deref()
            .map(|recording| names_in_one_folder(recording, page));
        let is_rewritten = plan.snapshot.is_some();
        under_way::render(
            run,
            &under_way::Expected {
                is_rewritten,
                files,
            },
        )
    });
}

/// What the recording and the page are called in a shell: in the folder of both, or with their
/// paths.
fn names_in_one_folder(recording: &Path, page: &Path) -> (String, String) {
    let is_one = recording.parent() == page.parent();
    let shown = |path: &Path| {
        let name = path.file_name().filter(|_| is_one).map(Path::new);
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        shell_word(&name.unwrap_or(&absolute).to_string_lossy())
    };
    (shown(recording), shown(page))
}

/// A file's name as one word of a shell, and no option.
fn shell_word(name: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+:,@%".contains(letter);
    let name = match name.starts_with('-') {
        true => format!("./{name}"),
        false => name.to_owned(),
    };
    match name.chars().all(is_plain) {
        true => name,
        false => format!("'{}'", name.replace('\'', r"'\''")),
    }
}

/// A recording under way.
struct Recorder {
    signals: Signals,
    steering: Steering,
    progress: Option<Progress>,
    /// While a trigger may make a recording.
    armed: Option<Armed>,
    /// Until sampling ends.
    sampling: Option<Finish>,
    /// After sampling has ended.
    finishing: Option<Finishing>,
    /// The result of the recordings that are written.
    ended: Ended,
    program: Option<Running>,
    exit: Option<Exit>,
    /// torchspy no longer waits for the launched program.
    has_left: bool,
    deadline: Option<Instant>,
    is_first_process: bool,
    /// Until sampling ends, if they were asked for.
    snapshots: Option<Snapshots>,
    /// Until the program has ended, if it was asked for.
    window: Option<TraceWindow>,
}

impl Recorder {
    fn new(
        signals: Signals,
        finish: Finish,
        program: Option<Running>,
        duration: Option<Duration>,
    ) -> Self {
        let mut recorder = Self::idle(signals, program);
        recorder.begin(finish, duration);
        recorder
    }

    /// It waits for a trigger.
    fn armed(signals: Signals, armed: Armed, program: Option<Running>) -> Self {
        Self {
            armed: Some(armed),
            ..Self::idle(signals, program)
        }
    }

    fn idle(signals: Signals, program: Option<Running>) -> Self {
        Self {
            signals,
            steering: Steering::default(),
            progress: None,
            armed: None,
            sampling: None,
            finishing: None,
            ended: Ended { is_complete: true },
            program,
            exit: None,
            has_left: false,
            deadline: None,
            is_first_process: std::process::id() == 1,
            snapshots: None,
            window: None,
        }
    }

    fn begin(&mut self, mut finish: Finish, duration: Option<Duration>) {
        if let Some(sending) = &mut finish.sending {
            sending.begin();
        }
        self.progress = Some(Progress::start());
        self.sampling = Some(finish);
        self.deadline = duration.and_then(|duration| Instant::now().checked_add(duration));
    }

    fn run(mut self) -> ExitCode {
        loop {
            self.wait();
            self.poll_program();
            while let Some(received) = self.signals.next() {
                let action = self.steering.react(received, self.situation());
                if self.act(action) {
                    return self.status(Ended::default());
                }
            }
            self.take_snapshot();
            for note in self.window.iter().flat_map(TraceWindow::notes) {
                self.note(&note);
            }
            if let Some(finish) = &self.sampling {
                let snapshot = finish.session.progress();
                if let Some(failure) = finish.sending.as_ref().and_then(Sending::trouble) {
                    self.print(|| messages::failed(&failure));
                }
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
            if let Some(written) = self.finishing.take_if(|finishing| finishing.is_done()) {
                let ended = written.join();
                self.ended.is_complete &= ended.is_complete;
            }
            self.poll_trigger();
            let program_over = self.program.is_none() || self.exit.is_some();
            let is_idle = self.sampling.is_none() && self.finishing.is_none();
            if program_over && is_idle && self.armed.is_none() {
                return self.status(self.ended);
            }
        }
    }

    /// Sleeps until a signal comes, the program ends, or the next poll is due.
    fn wait(&self) {
        let running = self.program.as_ref().filter(|_| self.exit.is_none());
        let pidfd = running.and_then(Running::pidfd);
        let mut longest = if running.is_some() && pidfd.is_none() {
            POLL_WITHOUT_PIDFD
        } else {
            POLL
        };
        if let Some(deadline) = self.deadline.filter(|_| self.sampling.is_some()) {
            longest = longest.min(deadline.saturating_duration_since(Instant::now()));
        }
        signals::wait_readable(&self.signals, pidfd, longest);
    }

    fn poll_program(&mut self) {
        if let (Some(program), None) = (&mut self.program, self.exit) {
            self.exit = program.try_wait();
            if let (Some(Exit::Signal(signal)), Some(finish)) = (self.exit, &self.sampling) {
                finish.session.ended_by(program.pid(), signal);
            }
        }
        if self.is_first_process {
            let program = self.program.as_ref().filter(|_| self.exit.is_none());
            let snapshot = self.snapshots.as_ref().and_then(Snapshots::pid);
            let own = program.map(Running::pid).into_iter().chain(snapshot);
            reap_orphans(&own.collect::<Vec<i32>>());
        }
    }

    /// Starts a recording if it is triggered, and none is under way or being written.
    fn poll_trigger(&mut self) {
        let Some(armed) = &mut self.armed else {
            return;
        };
        if self.exit.is_some() || armed.has_ended() {
            self.armed = None;
        } else if self.sampling.is_none() && self.finishing.is_none() {
            match armed.poll() {
                None => {}
                Some(Ok((finish, length))) => self.begin(finish, Some(length)),
                Some(Err(failure)) => messages::failed(&failure),
            }
        }
    }

    fn situation(&self) -> Situation {
        Situation {
            program_runs: self.program.is_some() && self.exit.is_none(),
            sampling: self.sampling.is_some() || self.armed.is_some(),
            saved: self.finishing.as_ref().is_some_and(Finishing::is_saved),
        }
    }

    /// Returns whether torchspy ends at once.
    fn act(&mut self, action: Action) -> bool {
        match action {
            Action::Ignore => {}
            Action::NotifyInterrupt => self.note(
                "interrupted: the recording ends when the program does; Ctrl-C again ends the recording alone",
            ),
            Action::NotifyWriting(left) => self.note(&format!(
                "still writing what was recorded; {left} more Ctrl-C or SIGTERM give it up"
            )),
            Action::EndRecording => {
                self.armed = None;
                self.end_recording();
            }
            Action::Forward(signal) => {
                if let Some(program) = &self.program
                    && let Err(error) = signals::forward(signal, program.pid())
                {
                    let text = format!("{signal} could not be forwarded: {error}");
                    self.print(|| messages::warning(&text));
                }
            }
            Action::Suspend => self.suspend(),
            Action::Leave => {
                if let Some(program) = self.program.take() {
                    self.has_left = true;
                    self.note(&format!("left the program running (pid {})", program.pid()));
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

    fn take_snapshot(&mut self) {
        let (Some(snapshots), Some(finish)) = (&mut self.snapshots, &mut self.sampling) else {
            return;
        };
        if let Some(failure) = snapshots.poll(&mut finish.outputs) {
            self.print(|| messages::failed(&failure));
        }
    }

    fn note(&self, text: &str) {
        self.print(|| messages::note(text));
    }

    fn print(&self, print: impl FnOnce()) {
        match &self.progress {
            Some(progress) => progress.above(print),
            None => print(),
        }
    }

    fn suspend(&mut self) {
        if let Some(progress) = &self.progress {
            progress.clear();
        }
        let session = self.sampling.as_ref().map(|finish| &finish.session);
        if session.is_none_or(Session::pause) {
            // If it cannot stop, torchspy continues.
            let _ = self.signals.stop_self();
        } else {
            messages::note(messages::NOT_STOPPED);
        }
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
        if let Some(snapshots) = self.snapshots.take() {
            snapshots.end();
        }
        if let Some(progress) = self.progress.take() {
            progress.finish(&finish.session.progress());
        }
        if let Some(program) = self.program.as_ref().filter(|_| self.exit.is_none())
            && self.armed.is_none()
        {
            messages::note(&format!(
                "the recording has ended; the program goes on (pid {}), and torchspy waits for it: Ctrl-C again leaves it alone",
                program.pid()
            ));
        }
        match Finishing::start(finish) {
            Ok(finishing) => self.finishing = Some(finishing),
            Err(error) => {
                self.ended.is_complete = false;
                messages::warning(&format!("nothing more can be written: {error}"));
            }
        }
    }

    fn status(&self, ended: Ended) -> ExitCode {
        match self.exit {
            Some(exit) => {
                match exit {
                    Exit::Code(0) => {}
                    Exit::Unknown => {
                        messages::warning("another process took the program's exit status");
                    }
                    failed => messages::note(&format!("the program {failed}")),
                }
                if let (Some(window), Some(program)) = (&self.window, &self.program)
                    && window.may_have_crashed(program.pid(), exit)
                {
                    messages::warning(
                        "a process ended while torch.profiler was on or about to be (--trace): torch itself may crash then, after the program's last line",
                    );
                    messages::hint(
                        "run it again without --trace to see whether it fails by itself",
                    );
                }
                ExitCode::from(exit.shell_status())
            }
            None if self.has_left => ExitCode::from(INTERRUPTED),
            None if ended.is_complete => ExitCode::SUCCESS,
            None => ExitCode::FAILURE,
        }
    }
}
