//! Signals that torchspy gets while it records, as a queue that a main loop polls.
//!
//! All of them are blocked in every thread and read through a signalfd: no handler, no interrupted system call, nothing
//! that can happen between two instructions. SIGCHLD is blocked too but not read here: the tracing thread waits for it.
#![allow(unsafe_code)]

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, pthread_sigmask, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Signals that end a process by default, and that torchspy answers to while it records.
const ENDING: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Blocked without being read. SIGCHLD: for the tracer. SIGTTOU: writing progress from the background must not stop
/// torchspy while it may hold a thread of the target; a process that blocks it is let write (tty_check_change, Linux).
const SILENT: [Signal; 3] = [Signal::SIGCHLD, Signal::SIGTTOU, Signal::SIGTTIN];

/// A signal that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Which.
    pub signal: Signal,
    /// The kernel made it, for a key at the terminal or its hang-up: the whole foreground process group got one, the
    /// launched program included. Otherwise a process sent it, perhaps to torchspy alone.
    pub from_terminal: bool,
}

/// The signals of [`Signals::install`], blocked and queued. Dropping it restores the mask; what is pending then acts.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    inherited: SigSet,
    ignored: SigSet,
}

impl Signals {
    /// Blocks and starts queueing. Call it before any other thread is made: threads inherit the mask.
    ///
    /// # Errors
    /// Only where the process may open no further file.
    pub fn install() -> io::Result<Self> {
        let mut queued = SigSet::empty();
        let mut ignored = SigSet::empty();
        for signal in ENDING {
            if is_ignored(signal) {
                ignored.add(signal);
            }
            queued.add(signal);
        }
        // A shell without job control has its children ignore SIGTSTP; so does torchspy then.
        if !is_ignored(Signal::SIGTSTP) {
            queued.add(Signal::SIGTSTP);
        }
        let mut blocked = queued;
        blocked.extend(SILENT);
        let mut inherited = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&blocked), Some(&mut inherited))?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        match SignalFd::with_flags(&queued, flags) {
            Ok(fd) => Ok(Self {
                fd,
                inherited,
                ignored,
            }),
            Err(error) => {
                let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&inherited), None);
                Err(error.into())
            }
        }
    }

    /// The mask that torchspy was started with, and that what it launches is to have.
    pub fn inherited_mask(&self) -> SigSet {
        self.inherited
    }

    /// The next signal, if one is queued; never blocks.
    ///
    /// A signal that torchspy was told to ignore (`nohup`, or `&` in a shell script) is passed over: SIGHUP always, the
    /// others where they come from the terminal's keys.
    pub fn next(&self) -> Option<Received> {
        loop {
            let information = match self.fd.read_signal() {
                Ok(Some(information)) => information,
                Err(Errno::EINTR) => continue,
                Ok(None) | Err(_) => return None,
            };
            let number = i32::try_from(information.ssi_signo).unwrap_or(0);
            let Ok(signal) = Signal::try_from(number) else {
                continue;
            };
            let from_terminal = information.ssi_code == libc::SI_KERNEL;
            let ignored = self.ignored.contains(signal);
            if ignored && (from_terminal || signal == Signal::SIGHUP) {
                continue;
            }
            return Some(Received {
                signal,
                from_terminal,
            });
        }
    }

    /// Stops torchspy as Ctrl-Z would have, and comes back when it is continued. A no-op in an orphaned process group,
    /// whose members no shell could continue (POSIX, `_exit`).
    ///
    /// # Errors
    /// None that is known; the kernel's word is passed on.
    pub fn stop_self(&self) -> io::Result<()> {
        let mut only = SigSet::empty();
        only.add(Signal::SIGTSTP);
        raise(Signal::SIGTSTP)?;
        pthread_sigmask(SigmaskHow::SIG_UNBLOCK, Some(&only), None)?;
        pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&only), None)?;
        Ok(())
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&self.inherited), None);
    }
}

/// Whether the signal's disposition, as inherited, is to be ignored.
fn is_ignored(signal: Signal) -> bool {
    // SAFETY: an all-zero sigaction is a valid value (no handler, empty mask), and with a null new action the call only
    // writes the present one into `current`, which outlives it.
    unsafe {
        let mut current: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal as libc::c_int, std::ptr::null(), &raw mut current) == 0
            && current.sa_sigaction == libc::SIG_IGN
    }
}

/// Sends a signal on to a process. That it is gone already is no error.
///
/// # Errors
/// The process belongs to somebody else by now (it was set-user-id).
pub fn forward(signal: Signal, pid: i32) -> io::Result<()> {
    match kill(Pid::from_raw(pid), signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Sleeps until a signal is queued, the other file descriptor is readable, or the time is over.
pub fn wait_readable(signals: &Signals, other: Option<BorrowedFd<'_>>, longest: Duration) {
    // Rounded up: a wait of less than a millisecond must not become a spin.
    let milliseconds = longest.as_millis().saturating_add(1).min(60_000);
    let timeout = PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::ZERO);
    let mut fds = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    fds.extend(other.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
    // Interrupted or failed: the caller looks at everything anyway.
    let _ = poll(&mut fds, timeout);
}
