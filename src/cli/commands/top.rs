//! `torchspy top`: what a program does, as it does it.

use super::live_sink::LiveSink;
use super::top_files::TopFiles;
use crate::cli::failure::Failure;
use crate::cli::outputs::resolve_recording;
use crate::cli::plan::{Target, TopPlan};
use crate::cli::program_log::ProgramLog;
use crate::cli::ras::Asking;
use crate::cli::terminal::{self, Screen, has_hung_up};
use crate::cli::{hints, messages, target};
use crate::live::Live;
use crate::model::run::RunInfo;
use crate::model::segment::Segment;
use crate::os::fault::{self, Point};
use crate::os::launch::{Exit, Running, SuspendedLaunch};
use crate::os::process_info::read_stat;
use crate::os::signals::{Signals, is_foreground};
use crate::report::dump::ras::sentence;
use crate::sampling::session::Session;
use crate::top::Status;
use crate::top::draw::{Colours, draw, plain};
use crate::top::state::{Command, State};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use nix::sys::signal::Signal;
use ratatui::crossterm::event::{Event, KeyEventKind};
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long a key may take to be seen: a longer time costs less.
const NAP: Duration = Duration::from_millis(100);
/// If a wait of `NAP` takes as long as this, torchspy was stopped.
const STOPPED: Duration = Duration::from_secs(1);
/// How often lines are printed on a terminal that cannot be drawn on, and how many.
const LINES: Duration = Duration::from_secs(2);
const PLAIN: (u16, u16) = (80, 18);
/// How often figures that no segment brings are drawn.
const REDRAW: Duration = Duration::from_millis(500);

/// Watches until the user quits.
pub(crate) fn run(plan: TopPlan) -> Result<ExitCode, Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "top needs a terminal to draw on",
            "torchspy record writes files; torchspy dump prints one snapshot",
        ));
    }
    let signals = Signals::install().map_err(Failure::new)?;
    foreground(&signals)?;
    match &plan.target {
        Target::Launch(command) => launch(&plan, command, signals),
        Target::Attach(pid) => attach(&plan, *pid, signals),
    }
}

/// Waits, stopped as a shell expects it, until the terminal is torchspy's: in the background it is
/// not to be drawn on.
fn foreground(signals: &Signals) -> Result<(), Failure> {
    signals.wait_for_foreground().map_err(|error| {
        Failure::new(error).hint("start it in the foreground: without & behind it, or with fg")
    })
}

fn attach(plan: &TopPlan, pid: i32, mut signals: Signals) -> Result<ExitCode, Failure> {
    let info = target::attachable(pid, plan.options.redaction)?;
    signals.listen().map_err(Failure::new)?;
    target::check_options(&plan.options, pid)?;
    let rank = target::place_of(&info).rank;
    let run = target::run_info(
        &plan.options,
        &plan.target,
        &plan.regions,
        pid,
        info.command,
    );
    let mut top = Top::start(plan, run, rank, signals)?;
    top.watch();
    Ok(top.end())
}

fn launch(plan: &TopPlan, command: &[OsString], mut signals: Signals) -> Result<ExitCode, Failure> {
    target::check_program(command)?;
    let shown = target::shown(command, plan.options.redaction);
    let rank = target::launched_place(command).rank;
    let mut log = ProgramLog::create(&shown, rank)?;
    let suspended = log.with_streams(|| SuspendedLaunch::spawn(command, &signals.inherited(), &[]));
    let suspended = suspended
        .map_err(Failure::new)?
        .map_err(hints::launch_failure)?;
    signals.listen().map_err(Failure::new)?;
    let pid = suspended.pid();
    target::check_options(&plan.options, pid)?;
    let run = target::run_info(&plan.options, &plan.target, &plan.regions, pid, shown);
    let mut top = Top::start(plan, run, rank, signals)?;
    match suspended.resume() {
        Ok(running) => top.program = Some(running),
        Err(error) => {
            top.end();
            return Err(hints::launch_failure(error));
        }
    }
    top.watch();
    let exit = top.exit;
    let end = top.end();
    log.is_in_use = exit.is_none();
    log.report();
    match exit {
        Some(exit) => {
            if exit != Exit::Code(0) {
                messages::note(&format!("the program {exit}"));
            }
            Ok(ExitCode::from(exit.shell_status()))
        }
        None => {
            messages::note(&format!("the program goes on (pid {pid})"));
            Ok(end)
        }
    }
}

struct Top {
    signals: Signals,
    session: Option<Session>,
    segments: Receiver<Segment>,
    live: Live,
    asking: Option<Asking>,
    /// What is shown while the view is paused.
    frozen: Option<Box<Live>>,
    status: Status,
    state: State,
    colours: Colours,
    program: Option<Running>,
    exit: Option<Exit>,
    files: TopFiles,
    /// Messages that are printed when the terminal is given back.
    farewell: Vec<String>,
    screen: Option<Screen>,
}

impl Top {
    fn start(
        plan: &TopPlan,
        run: RunInfo,
        rank: Option<u32>,
        signals: Signals,
    ) -> Result<Self, Failure> {
        let (sink, segments) = LiveSink::new();
        let session = Session::start(run.pid, plan.options.clone(), Box::new(sink.clone()))
            .map_err(hints::session_failure)?;
        let rules = plan.rules.set;
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Ok(Self {
            signals,
            session: Some(session),
            segments,
            live: Live::new(run, resolve_recording, rules),
            asking: plan.ras.then(Asking::default),
            frozen: None,
            status: Status::default(),
            state: State::default(),
            colours: if plain { Colours::None } else { Colours::Some },
            program: None,
            exit: None,
            files: TopFiles::new(sink, rank, rules),
            farewell: Vec::new(),
            screen: None,
        })
    }

    fn watch(&mut self) {
        if std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
            if let Err(error) = self.print_lines() {
                self.farewell
                    .push(format!("warning: the terminal is gone: {error}"));
            }
            return;
        }
        match Screen::take() {
            Ok(screen) => self.screen = Some(screen),
            Err(error) => {
                messages::warning(&format!("the terminal cannot be drawn on: {error}"));
                return;
            }
        }
        let shown = terminal::events().and_then(|events| self.show(events));
        if let Err(error) = shown {
            self.farewell
                .push(format!("warning: the terminal is gone: {error}"));
        }
    }

    /// Prints lines from time to time where the terminal cannot be drawn on: no keys, until a
    /// signal or the end of the process.
    fn print_lines(&mut self) -> io::Result<()> {
        let mut written = Instant::now();
        loop {
            self.take_segments();
            self.poll_program();
            let is_over = self.status.ended.is_some();
            if is_over || written.elapsed() >= LINES {
                let (width, height) = PLAIN;
                let text = plain(&self.live, &self.status, &mut self.state, width, height);
                let mut out = io::stdout().lock();
                writeln!(out, "{text}")?;
                out.flush()?;
                written = Instant::now();
            }
            if is_over || has_hung_up() {
                return Ok(());
            }
            std::thread::sleep(NAP);
            while let Some(received) = self.signals.next() {
                match received.signal {
                    Signal::SIGTSTP | Signal::SIGUSR1 | Signal::SIGUSR2 => {}
                    _ => return Ok(()),
                }
            }
        }
    }

    fn show(&mut self, mut events: Receiver<Event>) -> io::Result<()> {
        let mut drawn = None::<Instant>;
        loop {
            let mut changed = self.take_segments();
            changed |= self.poll_program();
            while let Some(text) = self.files.news() {
                self.state.message = Some(text);
                changed = true;
            }
            if changed || drawn.is_none_or(|at| at.elapsed() >= REDRAW) {
                self.draw()?;
                fault::reach(Point::Drawn, self.live.run.pid);
                drawn = Some(Instant::now());
            }
            if !Screen::is_taken() {
                self.farewell
                    .push("warning: a part of torchspy failed; see above".to_owned());
                return Ok(());
            }
            let napped = Instant::now();
            let mut next = match events.recv_timeout(NAP) {
                // A read of the terminal from its background fails. (A hang-up is detected below.)
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(NAP);
                    events = terminal::events()?;
                    None
                }
                event => event.ok(),
            };
            if napped.elapsed() > STOPPED {
                self.come_back()?;
                drawn = None;
            }
            while let Some(event) = next {
                if self.take_event(&event)? {
                    return Ok(());
                }
                drawn = None;
                next = events.try_recv().ok();
            }
            if has_hung_up() {
                return Ok(());
            }
            while let Some(received) = self.signals.next() {
                match received.signal {
                    Signal::SIGTSTP => self.suspend()?,
                    Signal::SIGUSR1 | Signal::SIGUSR2 => {}
                    _ => return Ok(()),
                }
            }
        }
    }

    /// Receives segments of the sampler; returns whether there were any.
    fn take_segments(&mut self) -> bool {
        let mut changed = false;
        while let Ok(segment) = self.segments.try_recv() {
            if let Some(asking) = &mut self.asking {
                asking.take(&segment);
                self.status.nccl_ras = asking.kept().and_then(sentence);
            }
            self.live.add(segment);
            changed = true;
        }
        if let Some(session) = self
            .session
            .as_ref()
            .filter(|_| self.status.ended.is_none())
        {
            self.status.sampler = session.progress();
            if session.finished() {
                let lives = read_stat(self.live.run.pid).is_ok_and(|stat| stat.state != b'Z');
                let ended = match lives {
                    true => "sampling has ended",
                    false => "the process has ended",
                };
                self.status.ended = Some(ended.to_owned());
                changed = true;
            }
        }
        changed
    }

    fn poll_program(&mut self) -> bool {
        let (Some(program), None) = (&mut self.program, self.exit) else {
            return false;
        };
        self.exit = program.try_wait();
        if let Some(exit) = self.exit {
            self.status.ended = Some(format!("the program {exit}"));
        }
        self.exit.is_some()
    }

    fn draw(&mut self) -> io::Result<()> {
        self.status.recording = self.files.recording().cloned();
        let live = self.frozen.as_deref().unwrap_or(&self.live);
        let (status, state, colours) = (&self.status, &mut self.state, self.colours);
        if let Some(screen) = &mut self.screen {
            screen
                .terminal()
                .draw(|frame| draw(frame, live, status, state, colours))?;
        }
        Ok(())
    }

    /// Returns whether the user quits.
    fn take_event(&mut self, event: &Event) -> io::Result<bool> {
        let Event::Key(key) = event else {
            return Ok(false);
        };
        if key.kind == KeyEventKind::Release {
            return Ok(false);
        }
        let was_paused = self.state.paused;
        let command = self.state.key(*key);
        if self.state.paused != was_paused {
            self.frozen = self.state.paused.then(|| Box::new(self.live.clone()));
        }
        match command {
            Some(Command::Quit) => return Ok(true),
            Some(Command::Reset) => self.live.reset(),
            Some(Command::Record) => {
                self.state.message = self.files.toggle_recording(&self.live.run);
            }
            Some(Command::Flamegraph) => {
                let live = self.frozen.as_deref().unwrap_or(&self.live);
                self.state.message = Some(self.files.draw(live.last_minute(), &live.run));
            }
            Some(Command::Suspend) => self.suspend()?,
            Some(Command::Redraw) => {
                if let Some(screen) = &mut self.screen {
                    screen.clear()?;
                }
            }
            None => {}
        }
        Ok(false)
    }

    /// Gives the terminal back until torchspy is continued.
    fn suspend(&mut self) -> io::Result<()> {
        self.screen = None;
        let is_released = self.while_paused(|signals| {
            // If stopping fails torchspy goes on.
            let _ = signals.stop_self();
            signals.wait_for_foreground()
        })?;
        if !is_released {
            self.state.message = Some(messages::NOT_STOPPED.to_owned());
        }
        self.screen = Some(Screen::take()?);
        Ok(())
    }

    /// After a stop that could not be prepared for (SIGSTOP): another program may have drawn on the
    /// screen, and may own the terminal.
    fn come_back(&mut self) -> io::Result<()> {
        while !is_foreground() {
            self.while_paused(|signals| signals.wait_for_foreground())?;
        }
        self.screen = None;
        self.screen = Some(Screen::take()?);
        Ok(())
    }

    /// Waits while no thread of the target is stopped; `false`, without a wait, if one may be.
    fn while_paused(
        &mut self,
        wait: impl FnOnce(&mut Signals) -> io::Result<()>,
    ) -> io::Result<bool> {
        let is_released = self.session.as_ref().is_none_or(Session::pause);
        if is_released {
            wait(&mut self.signals)?;
        }
        if let Some(session) = &self.session {
            session.resume();
        }
        Ok(is_released)
    }

    /// Releases the target and the terminal, and prints which files were written.
    fn end(mut self) -> ExitCode {
        self.screen = None;
        if let Some(session) = self.session.take()
            && let Ok(end) = session.stop()
            && let Some(error) = end.error
        {
            messages::warning(&error.to_string());
        }
        let (said, has_failed) = self.files.end(&self.live.run);
        self.farewell.extend(said);
        for text in &self.farewell {
            match text.strip_prefix("warning: ") {
                Some(text) => messages::warning(text),
                None => messages::note(text),
            }
        }
        ExitCode::from(u8::from(has_failed))
    }
}
