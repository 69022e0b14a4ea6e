//! Starts a program that waits, before its first instruction, until the sampler is ready for it.
//!
//! The child is a fork of torchspy that blocks on a pipe (the gate) and then calls exec. It stays
//! in torchspy's process group, so that the terminal's keys reach it, and has the signal mask that
//! torchspy was started with. Its end is awaited in two steps, because stops of its threads belong
//! to the thread that traces them, and a wait for `WEXITED` alone may consume them: if the tracer
//! is a thread of the parent's process, `waitid` returns ptrace-stops whatever was requested, with
//! or without `__WNOTHREAD` (wait_consider_task and wait_task_stopped, kernel/exit.c). The tracer
//! never sees a stop that was consumed that way, and the thread stays stopped for good. So the
//! launcher polls with `WNOWAIT`, and consumes only an exit.
//!
//! Another trap concerns the tracer: a *leader* thread that dies while it is seized by a thread of
//! its parent process is reaped by the tracer's wait (wait_task_zombie: the tracer counts as the
//! parent). The tracer must wait for a leader with `waitid(WSTOPPED)`, never with `waitpid`, or the
//! exit status is lost: [`Exit::Unknown`].
#![allow(unsafe_code)]

use super::signals::Inherited;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc;
use nix::sys::signal::{SigmaskHow, Signal, kill, pthread_sigmask};
use nix::unistd::{ForkResult, Pid, fork, pipe2};
use std::ffi::{CString, OsString, c_char};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// Why a program could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// No such file, or none of that name on PATH.
    #[error("cannot run {0}: not found")]
    NotFound(String),
    /// It exists, but the kernel does not run it.
    #[error("cannot run {0}: {1}")]
    NotExecutable(String, io::Error),
    /// An argument contains a NUL byte, or there are no arguments.
    #[error("cannot run this command: {0}")]
    BadArgument(&'static str),
    /// No process, pipe or file descriptor is available.
    #[error("cannot start a process: {0}")]
    System(#[from] io::Error),
}

impl LaunchError {
    /// The status with which shells report the same failure (POSIX, 2.8.2).
    pub fn exit_code(&self) -> u8 {
        match self {
            LaunchError::NotFound(_) => 127,
            LaunchError::NotExecutable(..) => 126,
            LaunchError::BadArgument(_) => 2,
            LaunchError::System(_) => 1,
        }
    }
}

/// How a launched program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this status.
    Code(i32),
    /// Killed by this signal.
    Signal(i32),
    /// It has ended, but another process took its status.
    Unknown,
}

impl Exit {
    /// The status as a shell reports it: 128 + signal if a signal killed it.
    pub fn shell_status(self) -> u8 {
        let status = match self {
            Exit::Code(code) => code & 0xff,
            Exit::Signal(signal) => 128 + signal,
            Exit::Unknown => 1,
        };
        u8::try_from(status).unwrap_or(u8::MAX)
    }
}

impl fmt::Display for Exit {
    /// `ended with status 3`, `was ended by SIGKILL`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Exit::Code(code) => write!(formatter, "ended with status {code}"),
            Exit::Signal(number) => match Signal::try_from(number) {
                Ok(signal) => write!(formatter, "was ended by {signal}"),
                Err(_) => write!(formatter, "was ended by signal {number}"),
            },
            Exit::Unknown => write!(formatter, "ended with a status that is not known"),
        }
    }
}

/// A forked child that has not called exec yet. If dropped, it ends without having run anything.
#[derive(Debug)]
pub struct SuspendedLaunch {
    child: Child,
    gate: Option<File>,
    failure: File,
    program: String,
}

/// A launched program. Dropping it leaves the program alone.
#[derive(Debug)]
pub struct Running {
    child: Child,
}

#[derive(Debug)]
struct Child {
    pid: i32,
    pidfd: Option<OwnedFd>,
    exit: Option<Exit>,
}

impl SuspendedLaunch {
    /// Forks a child that will run `arguments` (the program first, looked up on PATH) with the
    /// signals that torchspy was started with, and `added` variables in place of those of the same
    /// name.
    ///
    /// # Errors
    /// [`LaunchError::BadArgument`] and [`LaunchError::System`]; whether the program can be run
    /// shows at `resume`.
    pub fn spawn(
        arguments: &[OsString],
        inherited: &Inherited,
        added: &[(OsString, OsString)],
    ) -> Result<Self, LaunchError> {
        let strings = c_strings(arguments)?;
        let pointers = null_terminated(&strings);
        let variables = environment(added)?;
        let variables = variables.as_deref().map(null_terminated);
        let (gate_read, gate_write) = pipe2(OFlag::O_CLOEXEC).map_err(io::Error::from)?;
        let (failure_read, failure_write) = pipe2(OFlag::O_CLOEXEC).map_err(io::Error::from)?;
        // SAFETY: the child calls only `wait_and_exec`, which neither allocates nor locks, and
        // never returns.
        match unsafe { fork() }.map_err(io::Error::from)? {
            ForkResult::Child => {
                // SAFETY: the strings and `pointers` live in the child's copy of this frame until
                // exec or _exit. The write end of the gate is closed here because the child would
                // otherwise keep its own gate open.
                unsafe {
                    libc::close(gate_write.as_raw_fd());
                    wait_and_exec(
                        gate_read.as_raw_fd(),
                        failure_write.as_raw_fd(),
                        &pointers,
                        variables.as_deref(),
                        inherited,
                    )
                }
            }
            ForkResult::Parent { child } => {
                let program = arguments.first().map(|name| name.to_string_lossy());
                Ok(Self {
                    child: Child {
                        pid: child.as_raw(),
                        pidfd: open_pidfd(child.as_raw()).ok(),
                        exit: None,
                    },
                    gate: Some(File::from(gate_write)),
                    failure: File::from(failure_read),
                    program: program.unwrap_or_default().into_owned(),
                })
            }
        }
    }

    /// The child's pid, which the program will have.
    pub fn pid(&self) -> i32 {
        self.child.pid
    }

    /// Lets the child call exec, and waits until it has.
    ///
    /// # Errors
    /// [`LaunchError::NotFound`] and [`LaunchError::NotExecutable`]: the child has ended, nothing
    /// was run.
    pub fn resume(mut self) -> Result<Running, LaunchError> {
        if let Some(mut gate) = self.gate.take() {
            gate.write_all(&[GO])?;
        }
        let mut number = [0; 4];
        if read_full(&mut self.failure, &mut number)? < number.len() {
            // The pipe closed without data: exec closed it.
            let nothing = Child {
                pid: 0,
                pidfd: None,
                exit: Some(Exit::Unknown),
            };
            return Ok(Running {
                child: std::mem::replace(&mut self.child, nothing),
            });
        }
        let program = self.program.clone();
        let error = io::Error::from_raw_os_error(i32::from_ne_bytes(number));
        Err(not_run(program, error))
    }
}

/// Becomes the program, before anything about signals was changed. Returns only where that fails,
/// with the reason.
pub fn replace_self(arguments: &[OsString]) -> LaunchError {
    let strings = match c_strings(arguments) {
        Ok(strings) => strings,
        Err(error) => return error,
    };
    let pointers = null_terminated(&strings);
    // SAFETY: the array is null-terminated, and it and its strings live until the call returns.
    // Rust's runtime ignores SIGPIPE, and exec would pass that on.
    let error = unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::execvp(pointers[0], pointers.as_ptr());
        io::Error::last_os_error()
    };
    let program = arguments.first().map(|name| name.to_string_lossy());
    not_run(program.unwrap_or_default().into_owned(), error)
}

/// Why exec has failed.
fn not_run(program: String, error: io::Error) -> LaunchError {
    match error.kind() {
        io::ErrorKind::NotFound => LaunchError::NotFound(program),
        _ => LaunchError::NotExecutable(program, error),
    }
}

impl Drop for SuspendedLaunch {
    fn drop(&mut self) {
        // Behind a closed gate it would end by itself, unless another child of ours has a copy of
        // the gate. After a failed exec it is ending.
        if self.gate.take().is_some() {
            let _ = kill(Pid::from_raw(self.child.pid), Signal::SIGKILL);
        }
        self.child.wait();
    }
}

impl Running {
    pub fn pid(&self) -> i32 {
        self.child.pid
    }

    /// Becomes readable when the program has ended. `None` before Linux 5.3: use
    /// [`Running::try_wait`] then.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.child.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// How the program ended; `None` while it runs. Consumes no stop of any thread.
    pub fn try_wait(&mut self) -> Option<Exit> {
        self.child.wait_with(libc::WNOHANG)
    }
}

impl Child {
    fn wait(&mut self) {
        self.wait_with(0);
    }

    fn wait_with(&mut self, flags: i32) -> Option<Exit> {
        if self.exit.is_none() {
            self.exit = wait_for_exit(self.pid, flags);
        }
        self.exit
    }
}

const GO: u8 = b'g';

/// The child's part: waits at the gate, then becomes the program. Ends with 127 where the gate
/// closes or exec fails.
///
/// # Safety
/// To be called in a forked child only. `arguments` and `variables` are null-terminated and their
/// strings are valid. Everything called is async-signal-safe, glibc's `execvp` included, which
/// builds its paths on the stack (posix/execvpe.c).
unsafe fn wait_and_exec(
    gate: RawFd,
    failure: RawFd,
    arguments: &[*const c_char],
    variables: Option<&[*const c_char]>,
    inherited: &Inherited,
) -> ! {
    // SAFETY: plain system calls on descriptors that the child owns, with buffers on its stack.
    unsafe {
        let mut byte = 0_u8;
        loop {
            let count = libc::read(gate, (&raw mut byte).cast(), 1);
            if count == 1 && byte == GO {
                break;
            }
            if count >= 0 || Errno::last() != Errno::EINTR {
                libc::_exit(127);
            }
        }
        // Rust's runtime ignores SIGPIPE, and exec would pass that on; std::process::Command resets
        // it as well.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        if inherited.ignores_children {
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        }
        let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&inherited.mask), None);
        match variables {
            Some(variables) => libc::execvpe(arguments[0], arguments.as_ptr(), variables.as_ptr()),
            None => libc::execvp(arguments[0], arguments.as_ptr()),
        };
        let number = (Errno::last() as i32).to_ne_bytes();
        libc::write(failure, number.as_ptr().cast(), number.len());
        libc::_exit(127)
    }
}

fn c_strings(arguments: &[OsString]) -> Result<Vec<CString>, LaunchError> {
    if arguments.is_empty() {
        return Err(LaunchError::BadArgument("it is empty"));
    }
    arguments
        .iter()
        .map(|argument| CString::new(argument.as_bytes()))
        .collect::<Result<_, _>>()
        .map_err(|_| LaunchError::BadArgument("an argument has a NUL byte"))
}

fn null_terminated(strings: &[CString]) -> Vec<*const c_char> {
    let pointers = strings.iter().map(|string| string.as_ptr());
    pointers.chain([std::ptr::null()]).collect()
}

/// This process's variables with those that are added; `None`: they are as they are.
fn environment(added: &[(OsString, OsString)]) -> Result<Option<Vec<CString>>, LaunchError> {
    if added.is_empty() {
        return Ok(None);
    }
    let is_replaced = |name: &OsString| added.iter().any(|(each, _)| each == name);
    let kept = std::env::vars_os().filter(|(name, _)| !is_replaced(name));
    let all = kept.chain(added.iter().cloned()).map(|(name, value)| {
        let text = [name.as_bytes(), b"=", value.as_bytes()].concat();
        CString::new(text).map_err(|_| LaunchError::BadArgument("a variable has a NUL byte"))
    });
    all.collect::<Result<_, _>>().map(Some)
}

/// Reads until the buffer is full or the file ends.
fn read_full(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Time between two polls for the exit of a traced child: while it is stopped, `waitid` returns at
/// once.
const TRACED_PAUSE: Duration = Duration::from_millis(1);

/// Waits only for the exit of a child. `None` with `WNOHANG` if it still runs.
fn wait_for_exit(pid: i32, flags: i32) -> Option<Exit> {
    loop {
        match wait_id(pid, libc::WEXITED | libc::WNOWAIT | flags) {
            Ok(None) => return None,
            Ok(Some(found)) if found.is_end() => {
                // From now on only its exit can be awaited.
                let _ = wait_id(pid, libc::WEXITED | flags);
                return Some(found.exit());
            }
            Ok(Some(_)) if flags & libc::WNOHANG != 0 => return None,
            Ok(Some(_)) => std::thread::sleep(TRACED_PAUSE),
            Err(Errno::EINTR) => {}
            Err(_) => return Some(Exit::Unknown),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Waited {
    code: i32,
    status: i32,
}

impl Waited {
    fn is_end(self) -> bool {
        matches!(
            self.code,
            libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED
        )
    }

    fn exit(self) -> Exit {
        match self.code {
            libc::CLD_EXITED => Exit::Code(self.status),
            _ => Exit::Signal(self.status),
        }
    }
}

fn wait_id(pid: i32, flags: i32) -> Result<Option<Waited>, Errno> {
    // SAFETY: an all-zero siginfo_t is a valid value, and the call writes into it while it lives
    // here.
    let (result, information) = unsafe {
        let mut information: libc::siginfo_t = std::mem::zeroed();
        let id = libc::id_t::try_from(pid).unwrap_or(0);
        let result = libc::waitid(libc::P_PID, id, &raw mut information, flags);
        (result, information)
    };
    if result != 0 {
        return Err(Errno::last());
    }
    // SAFETY: waitid filled in a SIGCHLD record, or left the zeroes.
    let (found, status) = unsafe { (information.si_pid(), information.si_status()) };
    let code = information.si_code;
    Ok((found != 0).then_some(Waited { code, status }))
}

/// Reaps every dead child of the calling thread except those in `keep`: the duty of pid 1, which
/// inherits orphans.
///
/// Orphans become children of the first thread, which has to be the caller. Traced threads are not
/// affected: `__WNOTHREAD` excludes other threads' children and tracees.
pub fn reap_orphans(keep: &[i32]) {
    const MOST: usize = 1024;
    for _ in 0..MOST {
        // SAFETY: as in `wait_for_exit`.
        let (result, pid) = unsafe {
            let mut information: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WNOTHREAD;
            let result = libc::waitid(libc::P_ALL, 0, &raw mut information, flags);
            (result, information.si_pid())
        };
        // What was started on purpose has an owner that waits for it; orphans behind it in the
        // queue wait until that is done. So do those behind one that the tracer has stopped now.
        if result != 0 || pid == 0 || keep.contains(&pid) {
            return;
        }
        if wait_for_exit(pid, libc::WNOHANG | libc::__WNOTHREAD).is_none() {
            return;
        }
    }
}

/// A file descriptor that refers to a process and becomes readable when the process ends
/// (pidfd_open(2), Linux 5.3).
///
/// # Errors
/// The process is gone, the kernel is older, or no file descriptor is left.
pub fn open_pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two integers; a descriptor that it returns is new and owned by nobody
    // else.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        match RawFd::try_from(fd) {
            Ok(fd) if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::process_info::read_stat;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::ptrace;
    use nix::sys::signal::SigSet;

    fn inherited() -> Inherited {
        Inherited {
            mask: SigSet::empty(),
            ignores_children: false,
        }
    }

    fn spawn(words: &[&str]) -> SuspendedLaunch {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        SuspendedLaunch::spawn(&words, &inherited(), &[]).unwrap()
    }

    fn wait_for_end(running: &mut Running) -> Exit {
        let mut fds = [PollFd::new(running.pidfd().unwrap(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::NONE).unwrap();
        running.try_wait().unwrap()
    }

    #[test]
    fn nothing_runs_before_it_is_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("mark");
        let launch = spawn(&["touch", mark.to_str().unwrap()]);
        let pid = launch.pid();
        drop(launch);
        assert!(read_stat(pid).is_err(), "ended and reaped");
        assert!(!mark.exists());
        let mut running = spawn(&["touch", mark.to_str().unwrap()]).resume().unwrap();
        assert_eq!(wait_for_end(&mut running), Exit::Code(0));
        assert!(mark.exists());
    }

    #[test]
    fn variables_are_added_and_replaced() {
        let words = ["sh", "-c", "test \"$HOME$NEW\" = ab && test -n \"$PATH\""];
        let added = [("HOME", "a"), ("NEW", "b")].map(|(name, value)| (name.into(), value.into()));
        let words = words.map(OsString::from);
        let launch = SuspendedLaunch::spawn(&words, &inherited(), &added).unwrap();
        assert_eq!(wait_for_end(&mut launch.resume().unwrap()), Exit::Code(0));
    }

    #[test]
    fn what_cannot_be_run_is_told_apart() {
        let missing = spawn(&["/nonexistent/program"]).resume().unwrap_err();
        assert!(matches!(missing, LaunchError::NotFound(_)), "{missing}");
        assert_eq!(missing.exit_code(), 127);
        let folder = spawn(&["/tmp"]).resume().unwrap_err();
        assert!(matches!(folder, LaunchError::NotExecutable(..)), "{folder}");
        assert_eq!(folder.exit_code(), 126);
        let empty = SuspendedLaunch::spawn(&[], &inherited(), &[]).unwrap_err();
        assert_eq!(empty.exit_code(), 2);
    }

    #[test]
    fn a_real_time_signal_has_a_status_too() {
        let mut running = spawn(&["sh", "-c", "kill -34 $$"]).resume().unwrap();
        let exit = wait_for_end(&mut running);
        assert_eq!(exit, Exit::Signal(34));
        assert_eq!(exit.shell_status(), 162);
    }

    /// Seizes and interrupts a process, and waits for stops only, as described at the top of the
    /// module.
    fn stop_as_tracer(pid: i32) {
        ptrace::seize(Pid::from_raw(pid), ptrace::Options::empty()).unwrap();
        ptrace::interrupt(Pid::from_raw(pid)).unwrap();
        // SAFETY: as in `wait_for_exit`.
        let result = unsafe {
            let mut information: libc::siginfo_t = std::mem::zeroed();
            let id = libc::id_t::try_from(pid).unwrap();
            let flags = libc::WSTOPPED | libc::__WALL | libc::__WNOTHREAD;
            libc::waitid(libc::P_PID, id, &raw mut information, flags)
        };
        assert_eq!(result, 0);
    }

    #[test]
    fn stops_belong_to_the_tracer_and_the_exit_to_the_launcher() {
        let mut running = spawn(&["sleep", "1000"]).resume().unwrap();
        let pid = running.pid();
        let (stopped, is_stopped) = std::sync::mpsc::channel();
        let (finish, may_finish) = std::sync::mpsc::channel::<()>();
        let tracer = std::thread::spawn(move || {
            stop_as_tracer(pid);
            stopped.send(()).unwrap();
            // Killed while it is stopped; this thread remains its tracer.
            may_finish.recv().unwrap();
        });
        is_stopped.recv().unwrap();
        assert_eq!(running.try_wait(), None, "a stop is no exit");
        assert_eq!(read_stat(pid).unwrap().state, b't');
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        assert_eq!(wait_for_end(&mut running), Exit::Signal(libc::SIGKILL));
        finish.send(()).unwrap();
        tracer.join().unwrap();
    }

    /// Before the tracer has waited for the stop, the launcher's wait could consume it by mistake.
    #[test]
    fn a_stop_that_the_tracer_has_not_waited_for_is_left_to_it() {
        let mut running = spawn(&["sleep", "1000"]).resume().unwrap();
        let pid = Pid::from_raw(running.pid());
        let (asked, is_asked) = std::sync::mpsc::channel();
        let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
        let tracer = std::thread::spawn(move || {
            ptrace::seize(pid, ptrace::Options::empty()).unwrap();
            ptrace::interrupt(pid).unwrap();
            asked.send(()).unwrap();
            may_go_on.recv().unwrap();
            let flags = libc::WSTOPPED | libc::WNOHANG | libc::__WALL | libc::__WNOTHREAD;
            let found = wait_id(pid.as_raw(), flags).unwrap();
            ptrace::detach(pid, None).unwrap();
            found
        });
        is_asked.recv().unwrap();
        loop {
            match read_stat(pid.as_raw()).unwrap().state {
                b't' => break,
                state => assert_ne!(state, b'Z'),
            }
            std::thread::yield_now();
        }
        assert_eq!(running.try_wait(), None, "a stop is no exit");
        go_on.send(()).unwrap();
        assert!(
            tracer.join().unwrap().is_some(),
            "the tracer finds its stop"
        );
        kill(pid, Signal::SIGKILL).unwrap();
        assert_eq!(wait_for_end(&mut running), Exit::Signal(libc::SIGKILL));
    }

    /// The kernel's behaviour that the top of the module describes as a trap.
    #[test]
    fn a_tracer_that_waits_for_exits_takes_the_status_away() {
        let mut running = spawn(&["sleep", "1000"]).resume().unwrap();
        let pid = running.pid();
        let tracer = std::thread::spawn(move || {
            stop_as_tracer(pid);
            kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
            let flags = nix::sys::wait::WaitPidFlag::__WALL;
            nix::sys::wait::waitpid(Pid::from_raw(pid), Some(flags)).unwrap()
        });
        let status = tracer.join().unwrap();
        assert!(matches!(status, nix::sys::wait::WaitStatus::Signaled(..)));
        assert_eq!(running.try_wait(), Some(Exit::Unknown));
    }
}
