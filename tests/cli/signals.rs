//! Signals while recording: what reaches the program, what ends the recording, and that all is
//! written.
// Tests may: clippy's exemption does not reach helper functions of integration tests.

use crate::terminal::Terminal;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use tempfile::TempDir;

/// Says which signals it gets, and ends with the status that a line of its standard input gives. It
/// writes past Python's buffers: the next signal may come before a flush is over, and a second
/// print in there is an error. It looks up from its wait: Python runs no handler of a signal that
/// comes just before a call that blocks, until that call is over.
const PROGRAM: &str = r#"
import os, select, signal, sys
def say(text):
    os.write(1, (text + "\n").encode())
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), lambda number, frame: say(signal.Signals(number).name))
say("ready")
while not select.select([0], [], [], 0.05)[0]:
    pass
sys.exit(int(sys.stdin.readline()))
"#;

/// torchspy in a process group of its own, as a shell would start it, with a program that is ready.
struct Recording {
    folder: TempDir,
    torchspy: Child,
    stdin: Option<ChildStdin>,
    said: Lines<BufReader<ChildStdout>>,
    messages: Lines<BufReader<ChildStderr>>,
}

impl Recording {
    fn start(handled: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut torchspy = Command::new(env!("CARGO_BIN_EXE_torchspy"))
            .args(["record", "-o", "run.tspy", "--", "python3", "-c", PROGRAM])
            .args(handled)
            .current_dir(folder.path())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(torchspy.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "ready");
        Self {
            stdin: torchspy.stdin.take(),
            messages: BufReader::new(torchspy.stderr.take().unwrap()).lines(),
            said,
            torchspy,
            folder,
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.torchspy.id()).unwrap())
    }

    /// As the terminal's keys do.
    fn signal_group(&self, signal: Signal) {
        killpg(self.pid(), signal).unwrap();
    }

    fn next_said(&mut self) -> String {
        self.said.next().unwrap().unwrap()
    }

    fn wait_for_message(&mut self, part: &str) {
        assert!(
            self.messages
                .by_ref()
                .map(Result::unwrap)
                .any(|line| line.contains(part)),
            "no message: {part}"
        );
    }

    /// Lets the program end; returns torchspy's status.
    fn finish(mut self, status: i32) -> Option<i32> {
        writeln!(self.stdin.take().unwrap(), "{status}").unwrap();
        self.wait()
    }

    fn wait(mut self) -> Option<i32> {
        // Until the pipe closes, so that torchspy never blocks on a full one.
        self.messages.by_ref().for_each(drop);
        let status = self.torchspy.wait().unwrap();
        assert!(
            fs::metadata(self.folder.path().join("run.tspy"))
                .unwrap()
                .len()
                > 0,
            "everything gathered is written"
        );
        status.code()
    }
}

#[test]
fn signals_to_torchspy_are_forwarded() {
    let names = ["SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"];
    let mut recording = Recording::start(&names);
    for name in names {
        kill(recording.pid(), name.parse::<Signal>().unwrap()).unwrap();
        assert_eq!(recording.next_said(), name);
    }
    assert_eq!(recording.finish(4), Some(4));
}

#[test]
fn a_forwarded_signal_that_kills_is_passed_on_as_status() {
    let recording = Recording::start(&[]);
    kill(recording.pid(), Signal::SIGTERM).unwrap();
    assert_eq!(recording.wait(), Some(143));
}

#[test]
fn one_interrupt_ends_the_program_and_then_the_recording() {
    let recording = Recording::start(&[]);
    recording.signal_group(Signal::SIGINT);
    // Which of the two is first on a loaded machine, torchspy's word about it or the end of the
    // program, is left to chance. Python's KeyboardInterrupt ends it by the signal.
    assert_eq!(recording.wait(), Some(130));
}

#[test]
fn an_interrupt_is_not_sent_twice_and_the_second_ends_the_recording_alone() {
    let mut recording = Recording::start(&["SIGINT", "SIGUSR1"]);
    recording.signal_group(Signal::SIGINT);
    assert_eq!(recording.next_said(), "SIGINT");
    recording.wait_for_message("Ctrl-C again");
    recording.signal_group(Signal::SIGINT);
    assert_eq!(recording.next_said(), "SIGINT");
    recording.wait_for_message("the program goes on");
    recording.wait_for_message("wrote run.tspy");
    // Signals still reach it, and nothing came in between.
    kill(recording.pid(), Signal::SIGUSR1).unwrap();
    assert_eq!(recording.next_said(), "SIGUSR1");
    assert_eq!(recording.finish(8), Some(8));
}

/// A program that no Ctrl-C ends is said to be waited for, and left by the third.
#[test]
fn the_third_interrupt_leaves_a_program_that_goes_on() {
    let mut recording = Recording::start(&["SIGINT"]);
    recording.signal_group(Signal::SIGINT);
    recording.wait_for_message("Ctrl-C again");
    recording.signal_group(Signal::SIGINT);
    recording.wait_for_message("torchspy waits for it: Ctrl-C again leaves it alone");
    recording.wait_for_message("wrote run.tspy");
    recording.signal_group(Signal::SIGINT);
    recording.wait_for_message("left the program running (pid ");
    let status = recording.torchspy.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    // It lives, and ends when it is told to.
    writeln!(recording.stdin.take().unwrap(), "0").unwrap();
    let rest: Vec<String> = recording.said.by_ref().map(Result::unwrap).collect();
    assert!(rest.iter().all(|line| line == "SIGINT"), "{rest:?}");
}

#[test]
fn ctrl_z_stops_both_and_they_go_on() {
    let recording = Recording::start(&[]);
    recording.signal_group(Signal::SIGTSTP);
    let torchspy = recording.pid();
    let status =
        nix::sys::wait::waitpid(torchspy, Some(nix::sys::wait::WaitPidFlag::WUNTRACED)).unwrap();
    assert_eq!(
        status,
        nix::sys::wait::WaitStatus::Stopped(torchspy, Signal::SIGTSTP)
    );
    recording.signal_group(Signal::SIGCONT);
    assert_eq!(recording.finish(2), Some(2));
}

/// A process that sleeps until it is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn attach(target: &Sleeper, folder: &Path) -> Child {
    let pid = target.0.id().to_string();
    let child = Command::new(env!("CARGO_BIN_EXE_torchspy"))
        .args(["record", "--pid", &pid, "-o", "run.tspy"])
        .current_dir(folder)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Its handling of signals stands before it opens outputs.
    while !folder.join("run.tspy").exists() {
        std::thread::yield_now();
    }
    child
}

#[test]
fn attached_an_ending_signal_ends_the_recording_and_not_the_target() {
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut target = Sleeper::start();
        let torchspy = attach(&target, folder.path());
        kill(Pid::from_raw(i32::try_from(torchspy.id()).unwrap()), signal).unwrap();
        let output = torchspy.wait_with_output().unwrap();
        let messages = String::from_utf8(output.stderr).unwrap();
        assert!(messages.contains("wrote run.tspy"), "{signal}: {messages}");
        assert!(
            output.status.code().is_some(),
            "{signal}: it was not killed"
        );
        assert_eq!(
            target.0.try_wait().unwrap(),
            None,
            "{signal}: the target lives"
        );
    }
}

#[test]
fn attached_the_recording_ends_with_the_target() {
    let folder = tempfile::tempdir().unwrap();
    let target = Sleeper::start();
    let arguments = format!("record --pid {} -o run.tspy", target.0.id());
    let Some(mut terminal) = Terminal::start(folder.path(), &arguments) else {
        return;
    };
    terminal.wait_for(" read · ");
    drop(target);
    terminal.wait_for("wrote run.tspy");
    assert!(terminal.finish().is_some());
}

/// Keys at a real terminal: a signal that the kernel sends to the whole group is not forwarded
/// again.
#[test]
fn keys_at_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("program.py"), PROGRAM).unwrap();
    let arguments = "record -o run.tspy -- python3 program.py SIGINT SIGQUIT";
    let Some(mut terminal) = Terminal::start(folder.path(), arguments) else {
        return;
    };
    terminal.wait_for("ready");
    terminal.wait_for(" read · ");
    terminal.press(b"\x1c");
    terminal.wait_for("SIGQUIT");
    terminal.press(b"\x03");
    terminal.wait_for("SIGINT");
    terminal.wait_for("interrupted: ");
    terminal.press(b"7\n");
    let seen = terminal.wait_for("wrote run.tspy");
    // What comes after it is the summary, which repeats the command line.
    let program = seen.split("recorded ").next().unwrap_or_default();
    for name in ["SIGQUIT", "SIGINT"] {
        assert_eq!(program.matches(name).count(), 1, "{seen:?}");
    }
    assert_eq!(terminal.finish(), Some(7));
}
