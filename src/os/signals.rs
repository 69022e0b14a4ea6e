//! Signals that torchspy receives while it records, as a queue that a main loop polls.
//!
//! All of them are blocked in every thread, and one thread waits for them: no handlers, no
//! interrupted system calls. SIGCHLD is blocked too but not awaited here: the tracer does that.
//!
//! A signalfd would need no thread, but every signal to the process wakes a thread that polls one,
//! whatever its set: each stop of a target thread would wake it (signalfd_notify, Linux).
#![allow(unsafe_code)]

use super::bell::Bell;
use crossbeam_channel::{Receiver, Sender, unbounded};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, pthread_sigmask, raise};
use nix::unistd::{Pid, getpgrp, tcgetpgrp};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::os::unix::thread::JoinHandleExt;
use std::process::Command;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Signals that end a process by default, and that torchspy handles while it records.
const ENDING: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Blocked without being read. SIGCHLD: for the tracer. SIGTTOU: writing progress from the
/// background must not stop torchspy while it may have stopped a thread of the target; a process
/// that blocks it may write (tty_check_change, Linux).
const SILENT: [Signal; 3] = [Signal::SIGCHLD, Signal::SIGTTOU, Signal::SIGTTIN];

/// A received signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    pub signal: Signal,
    /// The kernel sent it, for a key at the terminal or a hang-up: the entire foreground process
    /// group received it, including the launched program. Otherwise a process sent it, perhaps to
    /// torchspy alone.
    pub from_terminal: bool,
}

/// A signal, and whether the kernel sent it.
type Queued = (Signal, bool);

/// The thread that waits for signals, and its queue.
#[derive(Debug)]
struct Listener {
    queue: Receiver<Queued>,
    waiter: JoinHandle<()>,
}

/// What torchspy was started with, and what a launched program gets.
#[derive(Clone, Copy, Debug)]
pub struct Inherited {
    pub mask: SigSet,
    /// SIGCHLD is ignored: the kernel then keeps no exit status of a child (wait(2), notes).
    pub ignores_children: bool,
}

impl Inherited {
    /// Gives a command that is started later the mask that torchspy was started with: its own
    /// blocks what ends a command.
    pub fn pass_to(&self, command: &mut Command) {
        let mask = self.mask;
        let set = move || Ok(pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?);
        // SAFETY: pthread_sigmask is async-signal-safe (signal-safety(7)), and `set` allocates
        // nothing.
        unsafe { command.pre_exec(set) };
    }
}

/// The signals of [`Signals::install`], blocked and queued. Dropping it restores the mask; pending
/// signals then take effect.
#[derive(Debug)]
pub struct Signals {
    bell: Arc<Bell>,
    waited: SigSet,
    listener: Option<Listener>,
    inherited: Inherited,
    ignored: SigSet,
    /// The process is about to end with an exit status of its own.
    is_last: bool,
}

impl Signals {
    /// Blocks the signals. Called before any other thread is started: threads inherit the mask.
    ///
    /// # Errors
    /// If the process can open no further file.
    pub fn install() -> io::Result<Self> {
        let mut queued = SigSet::empty();
        let mut ignored = SigSet::empty();
        for signal in ENDING {
            if is_ignored(signal) {
                ignored.add(signal);
            }
            queued.add(signal);
        }
        // A shell without job control makes its children ignore SIGTSTP; torchspy then ignores it,
        // too.
        if !is_ignored(Signal::SIGTSTP) {
            queued.add(Signal::SIGTSTP);
        }
        // The farewell signal is sent to the waiting thread alone, perhaps before it waits.
        let waited = with_farewell(queued);
        let mut blocked = waited;
        blocked.extend(SILENT);
        let bell = Bell::new()?;
        let mut mask = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&blocked), Some(&mut mask))?;
        let ignores_children = is_ignored(Signal::SIGCHLD);
        if ignores_children {
            // SAFETY: the default is no handler of ours.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        }
        Ok(Self {
            bell: Arc::new(bell),
            waited,
            listener: None,
            inherited: Inherited {
                mask,
                ignores_children,
            },
            ignored,
            is_last: false,
        })
    }

    /// Starts to listen; until then signals stay pending. Called after the fork of a launched
    /// program: a process that ever had a second thread passes other dispositions of the C
    /// library's own signals to its children.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn listen(&mut self) -> io::Result<()> {
        let (sender, queue) = unbounded();
        let (waited, bell) = (self.waited, self.bell.clone());
        let waiter = Builder::new()
            .name("torchspy-signal".to_owned())
            .spawn(move || wait_for_signals(&waited, &sender, &bell))?;
        self.listener = Some(Listener { queue, waiter });
        Ok(())
    }

    pub fn inherited(&self) -> Inherited {
        self.inherited
    }

    /// The process is about to end: a further signal, which may arrive at any time, must not change
    /// its exit status.
    pub fn let_no_more_act(&mut self) {
        self.is_last = true;
    }

    /// The next signal, if one is queued; never blocks.
    ///
    /// A signal that torchspy inherited as ignored (`nohup`, or `&` in a shell script) is skipped:
    /// SIGHUP always, the others if they come from the terminal's keys.
    pub fn next(&self) -> Option<Received> {
        loop {
            // Silenced first: a signal that is queued after this poll makes it sound again.
            self.bell.silence();
            let (signal, from_terminal) = self.listener.as_ref()?.queue.try_recv().ok()?;
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

    /// Stops torchspy as Ctrl-Z would have, and returns when it is continued. A no-op in an
    /// orphaned process group, whose members no shell could continue (POSIX, `_exit`).
    ///
    /// # Errors
    /// The kernel's; no such error is known.
    pub fn stop_self(&self) -> io::Result<()> {
        stop_by(Signal::SIGTSTP)
    }

    /// Returns when torchspy is in the foreground of its terminal. Until then it stops itself, as
    /// the kernel would stop a program that changes the terminal's settings from the background;
    /// but these signals are blocked here (tty_check_change, Linux).
    ///
    /// # Errors
    /// It is in the background and is not stopped: no shell controls it, or it ignores the signal.
    pub fn wait_for_foreground(&self) -> io::Result<()> {
        /// If `stop_by` returns sooner, the process was not stopped.
        const SHORTEST_STOP: Duration = Duration::from_millis(5);
        let mut refused = 0;
        while !is_foreground() {
            let begun = Instant::now();
            stop_by(Signal::SIGTTOU)?;
            refused += u32::from(begun.elapsed() < SHORTEST_STOP);
            if refused > 2 {
                return Err(io::Error::other(
                    "torchspy is in the background of its terminal",
                ));
            }
        }
        Ok(())
    }
}

/// Stops this process by a signal whose default action is that, and returns when it is continued.
fn stop_by(signal: Signal) -> io::Result<()> {
    let mut only = SigSet::empty();
    only.add(signal);
    raise(signal)?;
    pthread_sigmask(SigmaskHow::SIG_UNBLOCK, Some(&only), None)?;
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&only), None)?;
    Ok(())
}

/// Whether this process may draw on the terminal at stdin. Also true if it is not its controlling
/// terminal.
pub fn is_foreground() -> bool {
    tcgetpgrp(io::stdin()).map_or(true, |foreground| foreground == getpgrp())
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Queues the signals of `set` until [`farewell`] comes.
fn wait_for_signals(set: &SigSet, queue: &Sender<Queued>, bell: &Bell) {
    loop {
        // SAFETY: `set` is initialised, and the kernel fills `information`, of which zeroed is a
        // valid value.
        let (number, information) = unsafe {
            let mut information: libc::siginfo_t = std::mem::zeroed();
            (
                libc::sigwaitinfo(set.as_ref(), &raw mut information),
                information,
            )
        };
        if number == farewell() {
            return;
        }
        // Any other number is an interrupted wait.
        if let Ok(signal) = Signal::try_from(number) {
            let _ = queue.send((signal, information.si_code == libc::SI_KERNEL));
            bell.ring();
        }
    }
}

fn with_farewell(set: SigSet) -> SigSet {
    let mut set = *set.as_ref();
    // SAFETY: `set` is an initialised set, to which a signal that exists is added; so is the
    // result.
    unsafe {
        libc::sigaddset(&raw mut set, farewell());
        SigSet::from_sigset_t_unchecked(set)
    }
}

/// The signal that ends the waiting thread: a real-time signal, sent to that thread alone.
fn farewell() -> libc::c_int {
    libc::SIGRTMIN() + 7
}

impl Drop for Signals {
    fn drop(&mut self) {
        if let Some(Listener { waiter, .. }) = self.listener.take() {
            // SAFETY: the thread has not been joined, so that its handle is valid; it waits for
            // this signal, blocked.
            // musl's handle is a pointer, and Rust's a number.
            unsafe { libc::pthread_kill(waiter.as_pthread_t() as libc::pthread_t, farewell()) };
            let _ = waiter.join();
        }
        if !self.is_last {
            let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&self.inherited.mask), None);
        }
    }
}

/// Whether the signal was inherited as ignored.
fn is_ignored(signal: Signal) -> bool {
    // SAFETY: an all-zero sigaction is a valid value (no handler, empty mask), and with a null new
    // action the call only writes the present one into `current`, which outlives it.
    unsafe {
        let mut current: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal as libc::c_int, std::ptr::null(), &raw mut current) == 0
            && current.sa_sigaction == libc::SIG_IGN
    }
}

/// Forwards a signal to a process. A process that has already ended is not an error.
///
/// # Errors
/// The process belongs to another user by now (it was set-user-id).
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
    // Interrupted or failed: the caller polls everything anyway.
    let _ = poll(&mut fds, timeout);
}
