//! Runs the command that asks a machine: for a time, with an end for all that it started.

use crate::os::signals::Inherited;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The longest answer, bytes.
pub(super) const MAX_ANSWER: u64 = 256 << 20;
/// The most that is kept of what a machine says on standard error, bytes.
const MAX_ERROR: u64 = 64 << 10;
/// The longest name of an error that is shown, characters.
const SHOWN_ERROR: usize = 300;
/// How soon an interrupt is seen.
const POLL: Duration = Duration::from_millis(50);
/// How long a command may take to end when it is asked to.
const GRACE: Duration = Duration::from_millis(300);
/// How long to wait for what a command that failed has said: the reader may get no CPU, or
/// something else may hold the pipe open.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Whether a signal asked torchspy to end.
pub(super) struct Interrupt {
    has_come: AtomicBool,
    /// What commands inherit.
    inherited: Inherited,
}

impl Interrupt {
    pub(super) fn new(inherited: Inherited) -> Self {
        Self {
            has_come: AtomicBool::new(false),
            inherited,
        }
    }

    pub(super) fn come(&self) {
        self.has_come.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_come(&self) -> bool {
        self.has_come.load(Ordering::Relaxed)
    }
}

/// What a command writes to standard output within `timeout`; else why it does not, in a few words.
/// Its process group ends with a failure.
pub(super) fn run(
    words: &[String],
    timeout: Duration,
    interrupt: &Interrupt,
) -> Result<Vec<u8>, String> {
    let deadline = Instant::now() + timeout;
    let (name, arguments) = words.split_first().ok_or("no command")?;
    if interrupt.has_come() {
        return Err("interrupted".to_owned());
    }
    let mut command = Command::new(name);
    // What it starts is in its process group: a wrapper's ssh ends with the wrapper.
    command
        .args(arguments)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    interrupt.inherited.pass_to(&mut command);
    let mut child = command
        .spawn()
        .map_err(|error| format!("cannot run {name}: {error}"))?;
    let (sender, ended) = channel();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    // The pipes may outlive the command: what it started has them, too.
    let reading = [
        reader(stdout, MAX_ANSWER + 1, false, sender.clone()),
        reader(stderr, MAX_ERROR, true, sender),
    ];
    if let Some(error) = reading.into_iter().find_map(Result::err) {
        end(&mut child);
        return Err(format!("cannot read its answer: {error}"));
    }
    let (mut output, mut said) = (None, Vec::new());
    while output.is_none() {
        let left = deadline.saturating_duration_since(Instant::now());
        match ended.recv_timeout(left.min(POLL)) {
            Ok((true, bytes)) => said = bytes,
            Ok((false, bytes)) => output = Some(bytes),
            Err(RecvTimeoutError::Timeout) if interrupt.has_come() => {
                end(&mut child);
                return Err("interrupted".to_owned());
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
            Err(RecvTimeoutError::Timeout) => {
                end(&mut child);
                let seconds = timeout.as_secs_f64();
                return Err(format!("no answer within {seconds} s"));
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let output = output.unwrap_or_default();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline && !interrupt.has_come() => {
                std::thread::sleep(Duration::from_millis(1))
            }
            _ => {
                end(&mut child);
                return Err("it does not end".to_owned());
            }
        }
    };
    // An answer is one, even if part of it was refused.
    if status.success() || from_brace(&output).is_some() {
        return Ok(output);
    }
    if said.is_empty()
        && let Ok((true, bytes)) = ended.recv_timeout(LAST_WORDS)
    {
        said = bytes;
    }
    Err(error_of(
        &String::from_utf8_lossy(&said),
        &status.to_string(),
    ))
}

/// Ends a command with all of its process group. srun and ssh end what they started elsewhere when
/// they are asked to; the rest is killed.
fn end(child: &mut Child) {
    let Ok(group) = i32::try_from(child.id()).map(Pid::from_raw) else {
        return;
    };
    // Until it is waited for, no other group has its number.
    let _ = killpg(group, Signal::SIGTERM);
    let until = Instant::now() + GRACE;
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    while Instant::now() < until
        && waitid(Id::Pid(group), flags).is_ok_and(|status| status == WaitStatus::StillAlive)
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    let _ = killpg(group, Signal::SIGKILL);
    let _ = child.wait();
}

/// Reads a pipe to its end on a thread of its own; what exceeds `most` is read and dropped, so that
/// the writer does not wait.
fn reader(
    pipe: Option<impl Read + Send + 'static>,
    most: u64,
    is_error: bool,
    sender: std::sync::mpsc::Sender<(bool, Vec<u8>)>,
) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name("torchspy-host".to_owned())
        .stack_size(64 << 10)
        .spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                // A pipe that breaks has said all that it will.
                let _ = pipe.by_ref().take(most).read_to_end(&mut bytes);
                if !is_error && bytes.len() as u64 >= most {
                    drop(pipe);
                } else {
                    let _ = std::io::copy(&mut pipe, &mut std::io::sink());
                }
            }
            // The receiver is gone if it took too long.
            let _ = sender.send((is_error, bytes));
        })
        .map(drop)
}

/// An answer without what a shell printed before it (a banner of its start files): from the first
/// line on that begins with a brace. `None` if there is none.
pub(super) fn from_brace(output: &[u8]) -> Option<&[u8]> {
    let output = output.trim_ascii_start();
    if output.first() == Some(&b'{') {
        return Some(output);
    }
    let line = output.windows(2).position(|two| two == b"\n{")?;
    output.get(line + 1..)
}

/// What a command says went wrong: torchspy's own line, or the last one.
fn error_of(said: &str, status: &str) -> String {
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    let own = lines().find_map(|line| line.strip_prefix("error: "));
    let text = own.or(lines().next_back()).unwrap_or(status);
    text.chars().take(SHOWN_ERROR).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::SigSet;

    fn run(words: &[String], timeout: Duration) -> Result<Vec<u8>, String> {
        super::run(words, timeout, &interrupt())
    }

    fn interrupt() -> Interrupt {
        Interrupt::new(Inherited {
            mask: SigSet::empty(),
            ignores_children: false,
        })
    }

    fn words(line: &[&str]) -> Vec<String> {
        line.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn a_command_that_does_not_end_is_ended() {
        let begun = Instant::now();
        let why = run(&words(&["sleep", "60"]), Duration::from_millis(50)).unwrap_err();
        assert_eq!(why, "no answer within 0.05 s");
        // What it started goes on with its pipes, and nobody waits for that.
        let line = words(&["sh", "-c", "sleep 9 & wait"]);
        assert!(run(&line, Duration::from_millis(50)).is_err());
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn errors_are_named_in_their_own_words() {
        let said = |script: &str| run(&words(&["sh", "-c", script]), Duration::from_secs(30));
        assert_eq!(said("echo out").unwrap(), b"out\n");
        let wrong = "echo one >&2; echo error: no trainer >&2; echo hint: x >&2; exit 1";
        assert_eq!(said(wrong).unwrap_err(), "no trainer");
        assert_eq!(said("echo a >&2; echo b >&2; exit 255").unwrap_err(), "b");
        assert_eq!(said("exit 3").unwrap_err(), "exit status: 3");
        let missing = run(&words(&["/does/not/exist"]), Duration::from_secs(1)).unwrap_err();
        assert!(
            missing.starts_with("cannot run /does/not/exist: "),
            "{missing}"
        );
    }

    #[test]
    fn what_a_command_started_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        // The shell does not end when it is asked to.
        let script =
            "trap '' TERM; sleep 60 & echo $! > $0.new; mv $0.new $0; while :; do wait; done";
        let line = words(&["sh", "-c", script, path.to_str().unwrap()]);
        let interrupt = interrupt();
        let why = std::thread::scope(|scope| {
            let asked = scope.spawn(|| super::run(&line, Duration::from_secs(60), &interrupt));
            while !path.exists() && !asked.is_finished() {
                std::thread::yield_now();
            }
            interrupt.come();
            asked.join().unwrap().unwrap_err()
        });
        assert_eq!(why, "interrupted");
        // None is started any more.
        let why = super::run(&words(&["true"]), Duration::from_secs(60), &interrupt);
        assert_eq!(why.unwrap_err(), "interrupted");
        let pid = std::fs::read_to_string(&path).unwrap();
        let pid = pid.trim().parse().unwrap();
        // It has ended, or is a zombie for which init has not waited yet.
        let state = || crate::os::process_info::read_stat(pid).map(|stat| stat.state);
        while state().is_ok_and(|state| !matches!(state, b'Z' | b'X')) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_a_shell_prints_before_an_answer_is_skipped() {
        let found = |text: &'static str| from_brace(text.as_bytes());
        assert_eq!(found("{1"), Some(&b"{1"[..]));
        assert_eq!(found("Welcome {you}\n\n{1\n{2"), Some(&b"{1\n{2"[..]));
        assert_eq!(found(" \n {1"), Some(&b"{1"[..]));
        assert_eq!(found("Welcome {you}\n"), None);
        assert_eq!(found(""), None);
    }
}
