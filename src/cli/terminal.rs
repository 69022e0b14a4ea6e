//! The terminal as a screen of torchspy's own, given back on every way out: by the end of its
//! scope, by a signal that the main loop takes, and by a panic of any thread, before its message is
//! printed.

use crossbeam_channel::{Receiver, bounded};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::{Position, Rect};
use std::io::{self, Stdout, Write};
use std::os::fd::AsFd;
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;

/// Events that wait to be taken.
const EVENTS: usize = 64;
/// Whether the terminal is torchspy's.
static TAKEN: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();

/// The screen. The terminal is given back when it is dropped.
pub(crate) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    pub(crate) fn take() -> io::Result<Self> {
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |information| {
                give_back();
                before(information);
            }));
        });
        enable_raw_mode()?;
        TAKEN.store(true, Ordering::Release);
        let screen = execute!(io::stdout(), EnterAlternateScreen, Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())))
            .map(|terminal| Self { terminal });
        if screen.is_err() {
            give_back();
        }
        let mut screen = screen?;
        screen.clear()?;
        Ok(screen)
    }

    /// Clears it, so that all of it is drawn anew. (`Terminal::clear` asks the terminal for its
    /// cursor, and not every terminal answers.)
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        let size = self.terminal.size()?;
        self.terminal.resize(Rect::from((Position::ORIGIN, size)))
    }

    /// Whether it is still torchspy's: a panic of any thread gives it back.
    pub(crate) fn is_taken() -> bool {
        TAKEN.load(Ordering::Acquire)
    }

    pub(crate) fn terminal(&mut self) -> &mut Terminal<CrosstermBackend<Stdout>> {
        &mut self.terminal
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// What is typed, and when the window changes its size, from a thread of its own: after a hang-up,
/// a read of the terminal may never return, and must not keep torchspy from ending.
pub(crate) fn events() -> io::Result<Receiver<Event>> {
    let (sender, events) = bounded(EVENTS);
    Builder::new()
        .name("torchspy-keys".to_owned())
        .spawn(move || {
            while let Ok(event) = event::read() {
                if sender.send(event).is_err() {
                    return;
                }
            }
        })?;
    Ok(events)
}

/// Whether the terminal has hung up: its window was closed, or the connection to it was lost.
pub(crate) fn has_hung_up() -> bool {
    let stdin = io::stdin();
    let mut asked = [PollFd::new(stdin.as_fd(), PollFlags::empty())];
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    poll(&mut asked, PollTimeout::ZERO).is_ok()
        && asked[0]
            .revents()
            .is_some_and(|found| found.intersects(gone))
}

/// Gives the terminal back, once. Errors are ignored: nothing could be done about them.
fn give_back() {
    if TAKEN.swap(false, Ordering::AcqRel) {
        let mut out = io::stdout();
        let _ = execute!(out, LeaveAlternateScreen, Show);
        let _ = out.flush();
        let _ = disable_raw_mode();
    }
}
