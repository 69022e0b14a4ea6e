//! `torchspy top` at a real terminal, on real processes: what is drawn, what keys do, and that the
//! terminal comes back whole.

use crate::faults::{TORCHSPY, Target, any_python, program, run, wait_until};
use crate::on_each_engine;
use crate::terminal::Terminal;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// What gives the terminal back: xterm's other screen is left (xterm, ctlseqs, DECSET 1049).
const LEAVES: &str = "\u{1b}[?1049l";

fn busy() -> Option<Target> {
    let python = any_python()?;
    Some(Target::start(&[&python, &program("hangs.py"), "busy"]))
}

/// A view that has the target's function on it.
fn watching(folder: &TempDir, options: &str) -> Option<(Terminal, Target)> {
    let target = busy()?;
    let mut terminal = Terminal::start(
        folder.path(),
        &format!("top --pid {}{options}", target.pid()),
    )?;
    terminal.wait_for("spin (hangs.py:");
    Some((terminal, target))
}

/// The one file of a kind in a folder.
fn file(folder: &Path, extension: &str) -> Option<std::path::PathBuf> {
    let mut entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries.find(|path| path.extension().is_some_and(|each| each == extension))
}

on_each_engine!(it_draws_records_and_gives_the_terminal_back);

fn it_draws_records_and_gives_the_terminal_back(engine: &str) {
    let folder = tempfile::tempdir().unwrap();
    let options = format!(" --engine {engine}");
    let Some((mut terminal, target)) = watching(&folder, &options) else {
        return;
    };
    terminal.press(b"r");
    terminal.wait_for("recording");
    wait_until("the function is in the recording", || {
        file(folder.path(), "tspy").is_some_and(|path| {
            let report = run(&["report", "--full", &path.to_string_lossy()]).stdout;
            report.contains("spin")
        })
    });
    terminal.press(b"f");
    terminal.wait_for(".svg");
    terminal.press(b"t");
    terminal.wait_for("TID");
    terminal.press(b"q");
    let (status, screen) = terminal.end();
    assert_eq!(status, Some(0), "{screen:?}");
    let after = screen.rsplit(LEAVES).next().unwrap();
    assert!(
        screen.contains(LEAVES) && after.contains("wrote torchspy-"),
        "{screen:?}"
    );
    assert!(
        crate::faults::states(target.pid())
            .iter()
            .all(|state| *state != b'T')
    );
    let recording = file(folder.path(), "tspy").unwrap();
    let report = Command::new(TORCHSPY)
        .args(["report", "--full"])
        .arg(recording)
        .output()
        .unwrap();
    let report = String::from_utf8(report.stdout).unwrap();
    assert!(report.contains("spin"), "{report}");
    // It begins in the middle of the session, and ends as it should.
    assert!(
        !report.contains("corrupt") && !report.contains("was killed"),
        "{report}"
    );
    let drawn = std::fs::read_to_string(file(folder.path(), "svg").unwrap()).unwrap();
    assert!(drawn.contains("spin"));
}

#[test]
fn the_target_ends_and_the_last_view_stays() {
    let folder = tempfile::tempdir().unwrap();
    let Some((mut terminal, target)) = watching(&folder, "") else {
        return;
    };
    drop(target);
    terminal.wait_for("ENDED");
    terminal.press(b"q");
    let (status, screen) = terminal.end();
    assert_eq!(status, Some(0));
    assert!(screen.contains(LEAVES), "{screen:?}");
}

#[test]
fn a_signal_gives_the_terminal_back() {
    for signal in [
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
    ] {
        let folder = tempfile::tempdir().unwrap();
        let Some((terminal, _target)) = watching(&folder, "") else {
            return;
        };
        kill(Pid::from_raw(terminal.pid()), signal).unwrap();
        let (status, screen) = terminal.end();
        assert_eq!(status, Some(0), "{signal}: {screen:?}");
        assert!(screen.contains(LEAVES), "{signal}: {screen:?}");
    }
}

#[test]
fn in_the_background_it_waits_for_the_terminal_and_leaves_it_alone() {
    let folder = tempfile::tempdir().unwrap();
    let Some(target) = busy() else { return };
    let line = format!(
        "exec bash -c 'set -m; {TORCHSPY} top --pid {} & echo background $!.; read line; fg; stty -a; echo over.'",
        target.pid()
    );
    let Some(mut terminal) = Terminal::start_shell(folder.path(), &line) else {
        return;
    };
    let said = terminal.wait_for(".\r\n").to_owned();
    let pid = said.split("background ").nth(1).unwrap();
    let pid: i32 = pid.split('.').next().unwrap().parse().unwrap();
    wait_until("it stands", || {
        crate::faults::states(pid)
            .iter()
            .all(|state| *state == b'T')
    });
    assert!(!target.states().contains(&b't'), "the target is let go");
    terminal.press(b"\n");
    let before = terminal.wait_for("(hangs.py:").to_owned();
    assert!(!before.split(".\r\n").next().unwrap().contains('\u{1b}'));
    terminal.press(b"q");
    terminal.wait_for("over.");
    let (status, screen) = terminal.end();
    assert_eq!(status, Some(0), "{screen:?}");
    let settings = screen.rsplit(LEAVES).next().unwrap();
    assert!(settings.contains(" icanon"), "{settings:?}");
    assert!(!settings.contains("-icanon"), "{settings:?}");
}

#[test]
fn it_ends_when_its_terminal_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let Some((mut terminal, target)) = watching(&folder, "") else {
        return;
    };
    let pid = terminal.pid();
    terminal.hang_up();
    wait_until("torchspy ends", || {
        crate::faults::states(pid)
            .iter()
            .all(|state| *state == b'Z')
    });
    assert!(
        !crate::faults::states(target.pid()).is_empty(),
        "the target goes on"
    );
}

#[test]
fn a_panic_gives_the_terminal_back_before_it_speaks() {
    let Some(target) = busy() else { return };
    let folder = tempfile::tempdir().unwrap();
    let line = format!("top --pid {}", target.pid());
    let Some(terminal) =
        Terminal::start_with(folder.path(), &line, "TORCHSPY_FAULT=drawn:2:1:panic")
    else {
        return;
    };
    let (status, screen) = terminal.end();
    assert_eq!(status, Some(101), "{screen:?}");
    let after = screen.rsplit(LEAVES).next().unwrap();
    assert!(
        screen.contains(LEAVES) && after.contains("a fault that was asked for"),
        "{screen:?}"
    );
}

#[test]
fn a_program_that_it_starts_writes_into_a_file_and_gives_its_status() {
    let Some(python) = any_python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let code = "import sys; print(sys.stdin.read() + 'forty-two'); sys.exit(3)";
    let line = format!("top -- {python} -c \"{code}\"");
    let Some(mut terminal) = Terminal::start(folder.path(), &line) else {
        return;
    };
    terminal.wait_for("ENDED");
    terminal.press(b"q");
    let (status, screen) = terminal.end();
    assert_eq!(status, Some(3), "{screen:?}");
    let after = screen.rsplit(LEAVES).next().unwrap();
    assert!(
        after.contains("forty-two") && after.contains(".log"),
        "{screen:?}"
    );
    let log = std::fs::read_to_string(file(folder.path(), "log").unwrap()).unwrap();
    assert_eq!(log, "forty-two\n");
}

#[test]
fn without_a_terminal_it_says_what_to_use() {
    let output = Command::new(TORCHSPY)
        .args(["top", "--pid", "1"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("error: top needs a terminal") && said.contains("hint:"),
        "{said}"
    );
    let output = Command::new(TORCHSPY).arg("top").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("error: nothing to watch") && said.contains("hint:"),
        "{said}"
    );
}

/// A terminal that knows no escape sequences gets lines.
#[test]
fn a_dumb_terminal_gets_lines() {
    let folder = tempfile::tempdir().unwrap();
    let Some(target) = busy() else {
        return;
    };
    let options = format!("top --pid {}", target.pid());
    let Some(mut terminal) = Terminal::start_with(folder.path(), &options, "TERM=dumb") else {
        return;
    };
    terminal.wait_for("(hangs.py:");
    terminal.press(b"\x03");
    let (status, screen) = terminal.end();
    assert_eq!(status, Some(0), "{screen:?}");
    assert!(!screen.contains('\u{1b}'), "{screen:?}");
    assert!(screen.contains("%Own  %Total"), "{screen:?}");
}
