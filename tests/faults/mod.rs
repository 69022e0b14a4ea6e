//! Targets that go wrong, and torchspy as its users run it: the built program, its messages, its
//! recording.
//!
//! A test of a fault fails if the fault was not reached. Faults between two steps of a stop are
//! made by torchspy itself (`TORCHSPY_FAULT`, src/os/fault.rs), which release builds do not have:
//! such tests are skipped there.

#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stderr
)]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub use crate::installed::{any_python, python};

pub const TORCHSPY: &str = env!("CARGO_BIN_EXE_torchspy");

/// A program of tests/programs.
pub fn program(name: &str) -> String {
    format!("{}/tests/programs/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// What `torchspy dump` prints of a process.
pub fn dump(pid: i32, options: &[&str]) -> String {
    let output = Command::new(TORCHSPY)
        .args(["dump", "--pid", &pid.to_string()])
        .args(options)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

/// The line of a program that carries a mark.
pub fn marked(name: &str, mark: &str) -> u64 {
    let text = std::fs::read_to_string(program(name)).unwrap();
    let wanted = format!("# mark: {mark}");
    let line = text.lines().position(|line| line.ends_with(&wanted));
    line.unwrap_or_else(|| panic!("{name} has no {mark}")) as u64 + 1
}

/// A C program of tests/programs, built; `None`, with a word on stderr, without a compiler.
pub fn compiled(name: &str) -> Option<String> {
    let python = any_python()?;
    let output = Command::new(python)
        .args([program("compiled.py"), name.to_owned()])
        .env("TORCHSPY_CACHE", env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap();
    if !output.status.success() {
        eprintln!("skipped: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

/// Whether torchspy can be told to make faults; says so where it cannot.
pub fn faults_can_be_made() -> bool {
    if cfg!(debug_assertions) {
        return true;
    }
    eprintln!("skipped: a release build makes no faults on purpose");
    false
}

/// A running program, killed when this is dropped.
pub struct Target {
    pub child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    /// What it printed up to "ready", and the words after it.
    pub ready: Vec<String>,
    reaped: bool,
}

impl Target {
    /// Starts a program and waits for its line `ready …`.
    pub fn start(words: &[&str]) -> Self {
        let mut target = Self::spawn(Command::new(words[0]).args(&words[1..]));
        target.ready = target.expect("ready");
        target
    }

    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .env("TORCHSPY_CACHE", env!("CARGO_TARGET_TMPDIR"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
            ready: Vec::new(),
            reaped: false,
        }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn kill(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    /// Its next line.
    pub fn line(&mut self) -> String {
        self.output.next().expect("no line: it ended").unwrap()
    }

    /// Its next line, which begins with `word`; the words after it.
    pub fn expect(&mut self, word: &str) -> Vec<String> {
        let line = self
            .output
            .next()
            .unwrap_or_else(|| panic!("no line {word}: it ended"))
            .unwrap();
        let mut words = line.split(' ').map(str::to_owned);
        assert_eq!(words.next().as_deref(), Some(word), "{line}");
        words.collect()
    }

    /// Reads its lines up to one that is `word`.
    pub fn skip_to(&mut self, word: &str) {
        let found = self
            .output
            .any(|line| line.is_ok_and(|line| line.trim() == word));
        assert!(found, "no line {word}: it ended");
    }

    /// Sends it a line.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Closes its stdin.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.reaped = true;
        self.child.wait().unwrap()
    }

    /// States of its threads (`/proc/PID/task/TID/stat`).
    pub fn states(&self) -> Vec<u8> {
        states(self.pid())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// States of a process's threads; empty once it is gone.
pub fn states(pid: i32) -> Vec<u8> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    tasks
        .flatten()
        .filter_map(|task| state_of(&task.path()))
        .collect()
}

/// State of one thread, by its folder in /proc.
pub fn state_of(folder: &Path) -> Option<u8> {
    let text = std::fs::read_to_string(folder.join("stat")).ok()?;
    text.rsplit_once(") ")?.1.bytes().next()
}

/// The thread (not the process: TracerPid is a tid) that traces some thread of a process.
pub fn tracer_of(pid: i32) -> Option<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    tasks.flatten().find_map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("TracerPid:"))?;
        line.trim().parse().ok().filter(|&tracer| tracer != 0)
    })
}

/// Waits until `is_true`; fails with `what` after [`PATIENCE`].
pub fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// `torchspy record`, with its recording and messages in a folder of its own.
pub struct Recorder {
    pub child: Child,
    pub folder: TempDir,
    lines: Lines<BufReader<std::process::ChildStderr>>,
    pub messages: Vec<String>,
}

/// What `record` is given besides its target.
#[derive(Clone, Copy, Default)]
pub struct How<'a> {
    pub options: &'a [&'a str],
    /// `TORCHSPY_FAULT`.
    pub fault: Option<&'a str>,
}

impl Recorder {
    /// Attaches to a process.
    pub fn attach(pid: i32, how: How<'_>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(TORCHSPY);
        command
            .args(["record", "-o", "run.tspy", "--pid", &pid.to_string()])
            .args(how.options);
        if let Some(fault) = how.fault {
            command.env("TORCHSPY_FAULT", fault);
        }
        Self::spawn(command, folder)
    }

    /// A command that launches a program.
    pub fn launch_command(words: &[&str], how: How<'_>) -> Command {
        let mut command = Command::new(TORCHSPY);
        command
            .args(["record", "-o", "run.tspy"])
            .args(how.options)
            .arg("--")
            .args(words);
        if let Some(fault) = how.fault {
            command.env("TORCHSPY_FAULT", fault);
        }
        command.env("TORCHSPY_CACHE", env!("CARGO_TARGET_TMPDIR"));
        command
    }

    pub fn spawn(mut command: Command, folder: TempDir) -> Self {
        let mut child = command
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Whatever started the tests: a group whose leader's parent is in another one is not
            // orphaned, and may be stopped.
            .process_group(0)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Self {
            child,
            folder,
            lines,
            messages: Vec::new(),
        }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn kill(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("run.tspy")
    }

    /// Waits until so many bytes are recorded: a header is some 200 bytes, a segment comes every
    /// second.
    pub fn wait_for_bytes(&self, bytes: u64) {
        wait_until("bytes in the recording", || {
            self.path().metadata().is_ok_and(|data| data.len() >= bytes)
        });
    }

    /// Waits until the segment after the one that is being recorded now has been written: a second
    /// of sampling at least.
    pub fn wait_for_segment(&self) {
        for _ in 0..2 {
            let now = self.path().metadata().map_or(0, |data| data.len());
            self.wait_for_bytes(now + 1);
        }
    }

    /// Waits until it has stopped a thread of `pid`. It shows in /proc for microseconds at a time:
    /// a busy look.
    pub fn wait_for_a_stop(&self, pid: i32) {
        let deadline = Instant::now() + PATIENCE;
        let threads = format!("/proc/{}/task", self.pid());
        let is_own = |tid: i32| Path::new(&threads).join(tid.to_string()).exists();
        while !tracer_of(pid).is_some_and(is_own) {
            assert!(Instant::now() < deadline, "no thread was stopped");
        }
    }

    /// Reads its messages up to one with `part` in it.
    pub fn wait_for_message(&mut self, part: &str) {
        for line in self.lines.by_ref() {
            self.messages.push(line.unwrap());
            if self.messages.last().is_some_and(|line| line.contains(part)) {
                return;
            }
        }
        panic!("no message {part}: {}", self.messages.join("\n"));
    }

    /// Ends the recording as Ctrl-C does, and waits.
    pub fn interrupt(self) -> Recorded {
        self.kill(Signal::SIGINT);
        self.finish()
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Recorded {
        for line in self.lines.by_ref() {
            self.messages.push(line.unwrap());
        }
        Recorded {
            status: self.child.wait().unwrap(),
            messages: self.messages.join("\n"),
            folder: self.folder,
        }
    }
}

/// A recording that has ended.
pub struct Recorded {
    pub status: ExitStatus,
    pub messages: String,
    pub folder: TempDir,
}

impl Recorded {
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("run.tspy")
    }

    /// Fails where torchspy failed.
    pub fn expect_success(self) -> Self {
        assert!(self.status.success(), "{}: {}", self.status, self.messages);
        self
    }

    pub fn was_killed(&self) -> bool {
        self.status.signal() == Some(Signal::SIGKILL as i32)
    }

    /// `report --json`.
    pub fn report(&self) -> serde_json::Value {
        let output = run(&["report", "--json", &self.path().to_string_lossy()]);
        assert!(output.status.success(), "{}", output.stderr);
        serde_json::from_str(&output.stdout).unwrap()
    }

    /// `report --full`.
    pub fn full_report(&self) -> String {
        self.printed(&["report", "--full"])
    }

    /// `inspect`.
    pub fn inspect(&self) -> String {
        self.printed(&["inspect"])
    }

    /// `inspect --samples`.
    pub fn inspect_samples(&self) -> String {
        self.printed(&["inspect", "--samples"])
    }

    fn printed(&self, words: &[&str]) -> String {
        let path = self.path();
        let path = path.to_string_lossy();
        let output = run(&[words, &[&*path]].concat());
        assert!(output.status.success(), "{}", output.stderr);
        output.stdout
    }
}

/// How often a reason stands in the quality of a report.
pub fn partial(report: &serde_json::Value, reason: &str) -> u64 {
    report["quality"]["partial"][reason].as_u64().unwrap_or(0)
}

/// How many samples of a dump have a stack that ends with `reason`.
pub fn stacks_cut_by(dump: &str, reason: &str) -> usize {
    let wanted = format!("?? {reason}");
    dump.lines().filter(|line| line.trim() == wanted).count()
}

/// Sampling that goes on on a busy machine: within the usual bound of 2 %, a stop of 0.1 s, in
/// which a thread waited for a CPU, leaves out those of the next 5 s.
pub const STEADY: [&str; 2] = ["--max-stopped", "off"];

/// Time for which late polls stood besides their own periods, in a JSON report, s.
pub fn missed_s(report: &serde_json::Value) -> f64 {
    let quality = |key: &str| report["quality"][key].as_f64().unwrap();
    quality("missed_ticks") / quality("asked_hz")
}

/// Seconds of all stacks in a dump that hold `part`.
pub fn seconds_with(dump: &str, part: &str) -> f64 {
    let stacks = dump.split("\n  S").skip(1);
    stacks
        .filter(|stack| stack.contains(part))
        .filter_map(|stack| stack.split(' ').nth(1)?.parse::<f64>().ok())
        .sum()
}

/// The number before `what` in a line of `inspect`: `12 running/stopped`.
pub fn counted(line: &str, what: &str) -> Option<u64> {
    let words: Vec<&str> = line.split(' ').collect();
    let at = words.iter().position(|word| *word == what)?;
    words[at - 1].parse().ok()
}

/// Samples of this state and way of capture, of all stacks in a dump that hold `part`.
pub fn samples_with(dump: &str, part: &str, what: &str) -> u64 {
    let stacks = dump.split("\n  S").skip(1);
    stacks
        .filter(|stack| stack.contains(part))
        .filter_map(|stack| counted(stack.lines().next()?, what))
        .sum()
}

/// Names of the Python functions of the training thread in a report.
pub fn functions(report: &serde_json::Value) -> BTreeMap<String, f64> {
    let rows = report["functions"].as_array().unwrap();
    rows.iter()
        .map(|row| {
            (
                row["name"].as_str().unwrap().to_owned(),
                row["total_s"].as_f64().unwrap(),
            )
        })
        .collect()
}

/// What a command of torchspy printed.
pub struct Output {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// Whether the kernel lets us open perf events; prints a skip if it does not.
pub fn perf_events_work() -> bool {
    let doctor = run(&["doctor"]).stdout;
    let works = doctor.contains("ok      perf events");
    if !works {
        let line = doctor.lines().find(|line| line.contains("perf events"));
        println!("skipped: --engine perf: {}", line.unwrap_or(&doctor));
    }
    works
}

/// Tests of live sampling with each engine of `record`: `NAME::ptrace` and `NAME::perf`, which
/// prints a skip where the kernel does not let us open perf events. They call `NAME(engine)`, or,
/// as those of `on_each_python`, a function with a version of Python: `$check(version, engine)`.
#[macro_export]
macro_rules! on_each_engine {
    ($($check:ident),* $(,)?) => {$(
        mod $check {
            #[test]
            fn ptrace() {
                super::$check("ptrace");
            }

            #[test]
            fn perf() {
                if $crate::faults::perf_events_work() {
                    super::$check("perf");
                }
            }
        }
    )*};
    ($check:ident: $($name:ident $version:literal),* $(,)?) => {$(
        mod $name {
            #[test]
            fn ptrace() {
                super::$check($version, "ptrace");
            }

            #[test]
            fn perf() {
                if $crate::faults::perf_events_work() {
                    super::$check($version, "perf");
                }
            }
        }
    )*};
}

/// Runs torchspy.
pub fn run(arguments: &[&str]) -> Output {
    output_of(Command::new(TORCHSPY).args(arguments))
}

/// Runs a command.
pub fn output_of(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().unwrap();
    Output {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Everything that is left in a stream.
pub fn rest_of(mut stream: impl Read) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// An error as users see it: `error:`, then a `hint:` that holds all of `hints`; nothing of a
/// panic.
pub fn assert_error(output: &Output, cause: &str, hints: &[&str]) {
    let text = &output.stderr;
    assert!(!output.status.success(), "{text}");
    assert!(
        text.lines()
            .any(|line| line.starts_with("error: ") && line.contains(cause)),
        "{cause}: {text}"
    );
    let hint = text
        .find("hint: ")
        .map(|at| &text[at..])
        .unwrap_or_default();
    for part in hints {
        assert!(hint.contains(part), "no {part} in the hint: {text}");
    }
    assert!(!hint.is_empty() && !text.contains("panicked"), "{text}");
}

/// How long a figure may take to come, on a machine whose CPUs others use.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// An agent for one job, and the address that it prints, without its path. `add` sets more of its
/// command.
pub fn start_agent(job: &str, options: &[&str], add: impl FnOnce(&mut Command)) -> (Child, String) {
    let mut command = Command::new(TORCHSPY);
    command
        .args(["agent", "--listen", "127.0.0.1:0", "--every", "1s"])
        .args(["--job", job])
        .args(options)
        .stdout(Stdio::piped());
    add(&mut command);
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let output = child.stdout.as_mut().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("http://").unwrap();
    let address = address.strip_suffix("/metrics").unwrap().to_owned();
    (child, address)
}

/// Status line and body of a page of an HTTP server.
pub fn get(address: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// A receiver that answers all that is sent to it with `answer`: the request's head, and its body.
pub fn receiver(answer: &'static str) -> (String, Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, received) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut request, mut line, mut length) = (String::new(), String::new(), 0);
            while stream.read_line(&mut line).unwrap() > 2 {
                let lower = line.to_lowercase();
                if let Some(bytes) = lower.strip_prefix("content-length:") {
                    length = bytes.trim().parse().unwrap();
                }
                request.push_str(&line);
                line.clear();
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let length = answer.len();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n");
            let answer = format!("{head}Connection: close\r\n\r\n{answer}");
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
            if sender.send((request, body)).is_err() {
                return;
            }
        }
    });
    (format!("http://{address}"), received)
}
