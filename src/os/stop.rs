//! Stops a thread for as short as possible: seize, interrupt, read, detach. No lasting attachment.
//!
//! A thread that is asked to stop and a stopped one are two types: only a stopped thread has
//! registers and can be detached (ptrace(2): the tracee must be in ptrace-stop). Both release the
//! thread when they are dropped; if torchspy is killed, the kernel does it (`exit_ptrace`).
#![allow(unsafe_code)]

use super::access::status_field;
use super::clock::{monotonic_ns, timespec};
use super::fault::{Point, reach};
use super::syscalls::{Ending, ending};
use crate::arch::{Architecture, Machine, SystemCall};
use crate::model::registers::Registers;
use nix::errno::Errno;
use nix::libc;
use nix::unistd::Pid;
use std::cell::Cell;
use std::marker::PhantomData;
use std::time::Duration;

/// Why a thread could not be asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// Another tracer has it, or it is a zombie, or the kernel denies access: EPERM in each case.
    #[error("the kernel refuses to trace the thread")]
    Refused,
    #[error("the thread is gone")]
    Gone,
}

/// Keeps these types on one thread: a tracee responds only to the thread that seized it.
type NotSend = PhantomData<*const ()>;

/// A thread that was asked to stop, and may not be stopped yet.
#[derive(Debug)]
#[must_use]
pub struct Interrupting {
    tid: i32,
    /// CLOCK_MONOTONIC of the interrupt, or of the last poll that found it running: it stopped
    /// after this.
    not_before_ns: u64,
    /// When it was asked, CLOCK_MONOTONIC.
    asked_ns: u64,
    /// The first thread of its process.
    leader: i32,
    /// Whether torchspy started its process: the leader's exit status then belongs to the launcher.
    is_own_child: bool,
    not_send: NotSend,
}

/// Result of a poll of an interrupted thread.
#[derive(Debug)]
pub enum Collected {
    Stopped(StoppedThread),
    Pending(Interrupting),
    Gone,
    /// Its process runs another program (exec): this thread has to be collected and resumed
    /// instead.
    Replaced(Interrupting),
}

impl Interrupting {
    /// When it was asked to stop, CLOCK_MONOTONIC, ns.
    pub fn asked_ns(&self) -> u64 {
        self.asked_ns
    }

    /// Seizes `tid`, a thread of process `leader`, and asks it to stop.
    ///
    /// # Errors
    /// [`StopError`]; nothing is attached then.
    pub fn request(tid: i32, leader: i32, is_own_child: bool) -> Result<Self, StopError> {
        reach(Point::Chosen, tid);
        ptrace(libc::PTRACE_SEIZE, tid, 0).map_err(|errno| match errno {
            Errno::ESRCH => StopError::Gone,
            _ => StopError::Refused,
        })?;
        let now_ns = monotonic_ns();
        let interrupting = Self {
            tid,
            not_before_ns: now_ns,
            asked_ns: now_ns,
            leader,
            is_own_child,
            not_send: PhantomData,
        };
        reach(Point::Seized, tid);
        // Fails only if the thread has ended or is about to, which `collect` detects.
        let _ = ptrace(libc::PTRACE_INTERRUPT, tid, 0);
        reach(Point::Interrupted, tid);
        Ok(interrupting)
    }

    pub fn tid(&self) -> i32 {
        self.tid
    }

    pub fn leader(&self) -> i32 {
        self.leader
    }

    /// Requests the stop again: an interrupt during an exec may be lost, and a superfluous one has
    /// no effect.
    pub fn ask_again(&self) {
        let _ = ptrace(libc::PTRACE_INTERRUPT, self.tid, 0);
    }

    /// Polls for the stop; never blocks.
    pub fn collect(mut self) -> Collected {
        let polled_ns = monotonic_ns();
        match wait_for_stop(self.tid, self.is_own_child && self.tid == self.leader) {
            Ok(Some(Event::Stopped { signal })) => {
                let stopped = StoppedThread {
                    tid: self.tid,
                    signal,
                    not_before_ns: self.not_before_ns,
                    leader: self.leader,
                    is_own_child: self.is_own_child,
                    detached: false,
                    ending: Cell::new(None),
                    syscall: Cell::new(None),
                    not_send: PhantomData,
                };
                Collected::Stopped(stopped)
            }
            Ok(None) => {
                self.not_before_ns = polled_ns;
                Collected::Pending(self)
            }
            Ok(Some(Event::Ended)) => Collected::Gone,
            Err(_) => self
                .after_exec()
                .map_or(Collected::Gone, Collected::Replaced),
        }
    }

    /// Exec gives the thread that calls it the tid of its process's leader, and keeps the tracer
    /// (ptrace(2), "execve(2) under ptrace"): requests a stop under the new tid. `None` if that is
    /// not what happened.
    fn after_exec(self) -> Option<Self> {
        if self.tid == self.leader {
            return None;
        }
        let tracer = status_field(self.leader, "TracerPid:")?;
        if tracer.parse() != Ok(nix::unistd::gettid().as_raw()) {
            return None;
        }
        ptrace(libc::PTRACE_INTERRUPT, self.leader, 0).ok()?;
        Some(Self {
            tid: self.leader,
            not_before_ns: monotonic_ns(),
            ..self
        })
    }
}

/// A stopped thread. Dropping it resumes it, with the signal that it was about to receive.
#[derive(Debug)]
#[must_use]
pub struct StoppedThread {
    tid: i32,
    /// The signal of a signal-delivery-stop: it is passed to PTRACE_DETACH, or it would be lost.
    signal: i32,
    not_before_ns: u64,
    leader: i32,
    is_own_child: bool,
    detached: bool,
    /// Effect of the stop on the system call that it hit; `None` until the registers were read.
    ending: Cell<Option<Option<Ending>>>,
    /// Number of that system call.
    syscall: Cell<Option<u32>>,
    not_send: NotSend,
}

impl StoppedThread {
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Its registers; `None` if it was killed since it stopped.
    pub fn registers(&self) -> Option<Registers> {
        reach(Point::Held, self.tid);
        self.read()
    }

    fn read(&self) -> Option<Registers> {
        let (registers, call) = read_registers(self.tid)?;
        self.syscall.set(call.as_ref().map(|call| call.number));
        self.ending
            .set(Some(call.and_then(|call| ending(&call, self.tid))));
        Some(registers)
    }

    /// Effect of the stop on the system call that it hit; `None` if it hit none, or had no effect.
    pub fn ending(&self) -> Option<Ending> {
        if self.ending.get().is_none() {
            self.read();
        }
        self.ending.get().flatten()
    }

    /// Number of the system call that the stop hit; `None` if it hit none, or before
    /// [`Self::registers`] or [`Self::ending`] was asked for.
    pub fn syscall(&self) -> Option<u32> {
        self.syscall.get()
    }

    /// Resumes the thread.
    pub fn resume(mut self) -> Resumed {
        let runs = self.detach();
        Resumed {
            stopped_ns: monotonic_ns().saturating_sub(self.not_before_ns),
            dying: (!runs).then_some(Interrupting {
                tid: self.tid,
                not_before_ns: monotonic_ns(),
                asked_ns: monotonic_ns(),
                leader: self.leader,
                is_own_child: self.is_own_child,
                not_send: PhantomData,
            }),
        }
    }

    /// `false` if it was killed while it was stopped: nothing else makes PTRACE_DETACH fail.
    fn detach(&mut self) -> bool {
        if self.detached {
            return true;
        }
        self.detached = true;
        reach(Point::Read, self.tid);
        ptrace(libc::PTRACE_DETACH, self.tid, self.signal as u64).is_ok()
    }
}

/// Result of a resume.
#[derive(Debug)]
#[must_use]
pub struct Resumed {
    /// Upper bound of the time that it was stopped, ns: from the last poll that found it running.
    pub stopped_ns: u64,
    /// It was killed while it was stopped, perhaps by an exec of another thread, and stays a zombie
    /// until it has been waited for, which the exec waits for (de_thread, fs/exec.c). Collected
    /// like a stop.
    pub dying: Option<Interrupting>,
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Blocks SIGCHLD for the calling thread, so that [`wait_for_any_stop`] can wait for it. Call it
/// before other threads start.
pub fn block_child_signals() {
    // SAFETY: the set is initialised by sigemptyset before use; pthread_sigmask changes only the
    // calling thread's mask.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

/// Sleeps until some interrupted thread stops (SIGCHLD arrives), for `timeout` at most.
pub fn wait_for_any_stop(timeout: Duration) {
    let time = timespec(timeout);
    // SAFETY: the set is initialised by sigemptyset before use, `time` is a valid timespec, no
    // siginfo is asked for.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        libc::sigtimedwait(&set, std::ptr::null_mut(), &time);
    }
}

/// musl declares a request as signed.
#[cfg(target_env = "musl")]
type Request = libc::c_int;
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;

fn ptrace(request: Request, tid: i32, data: u64) -> Result<(), Errno> {
    // SAFETY: the requests used here (SEIZE, INTERRUPT, DETACH) take integers and write to no
    // memory of ours.
    let result = unsafe { libc::ptrace(request, tid, 0_usize, data as usize) };
    if result == -1 {
        Err(Errno::last())
    } else {
        Ok(())
    }
}

enum Event {
    Stopped { signal: i32 },
    Ended,
}

/// Checks, without blocking, for a stop of `tid`.
///
/// Exits are consumed only for processes other than our own child: a thread that ends while it is
/// traced stays a zombie until its tracer has waited for it, but the exit status of the program
/// that torchspy started belongs to the launcher.
fn wait_for_stop(tid: i32, is_own_child: bool) -> Result<Option<Event>, Errno> {
    let exits = if is_own_child { 0 } else { libc::WEXITED };
    // SAFETY: `info` is a valid siginfo for the kernel to fill; zeroed is a valid value of it.
    let info = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WSTOPPED | exits | libc::WNOHANG | libc::__WALL | libc::__WNOTHREAD;
        if libc::waitid(libc::P_PID, tid as libc::id_t, &mut info, options) == -1 {
            return Err(Errno::last());
        }
        info
    };
    // SAFETY: waitid fills the child fields of siginfo; both are 0 where there was no event.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    if pid == 0 {
        return Ok(None);
    }
    Ok(Some(match info.si_code {
        libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED => Event::Ended,
        _ => Event::Stopped {
            // An event stop (our interrupt, or a group stop) carries the event above the signal and
            // delivers nothing; a plain one is a signal on its way to the thread (ptrace(2),
            // signal-delivery-stop).
            signal: if status >> 8 == 0 { status & 0xff } else { 0 },
        },
    }))
}

/// The registers, and the system call that the thread is about to return from, if it does.
fn read_registers(tid: i32) -> Option<(Registers, Option<SystemCall>)> {
    let thread = Pid::from_raw(tid);
    let user = nix::sys::ptrace::getregs(thread).ok()?;
    let mut registers = Registers::unknown();
    for (number, value) in Machine::registers(&user) {
        registers.set(number, value);
    }
    let code = |address: u64| {
        let word = nix::sys::ptrace::read(thread, address as nix::sys::ptrace::AddressType);
        Some(word.ok()?.cast_unsigned())
    };
    Some((registers, Machine::system_call(&user, code)))
}
