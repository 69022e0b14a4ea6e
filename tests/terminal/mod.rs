//! torchspy at a real terminal.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::print_stderr)]

use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const ROWS: NonZeroU16 = NonZeroU16::new(24).unwrap();
const COLUMNS: NonZeroU16 = NonZeroU16::new(80).unwrap();

/// torchspy at a terminal that script(1) makes.
pub struct Terminal {
    script: Child,
    keys: ChildStdin,
    output: ChildStdout,
    /// Everything that was written.
    screen: String,
    /// What is on the terminal: only what changes is written, so that a word need not come in
    /// one piece.
    shown: vt100::Parser,
}

impl Terminal {
    /// `None`, with the reason printed, where there is no script(1).
    pub fn start(folder: &Path, arguments: &str) -> Option<Self> {
        Self::start_with(folder, arguments, "")
    }

    /// With a variable set, as `NAME=VALUE`.
    pub fn start_with(folder: &Path, arguments: &str, variable: &str) -> Option<Self> {
        let torchspy = env!("CARGO_BIN_EXE_torchspy");
        Self::start_shell(
            folder,
            &format!("exec env {variable} {torchspy} {arguments}"),
        )
    }

    /// What a line of shell does at a terminal.
    pub fn start_shell(folder: &Path, line: &str) -> Option<Self> {
        // A key that signals would empty the terminal's buffers, with what was written since the
        // signal. Where TERM is not set nothing is drawn.
        let line = format!("stty noflsh rows {ROWS} cols {COLUMNS} && export TERM=xterm && {line}");
        let script = Command::new("script")
            .args(["-qefc", &line, "/dev/null"])
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        match script {
            Ok(mut script) => Some(Self {
                keys: script.stdin.take().unwrap(),
                output: script.stdout.take().unwrap(),
                screen: String::new(),
                shown: vt100::Parser::new(ROWS, COLUMNS, 0),
                script,
            }),
            Err(error) => {
                eprintln!("skipped: script(1) makes the terminal: {error}");
                None
            }
        }
    }

    /// Everything that was written so far, when `part` is on the terminal or was written. The
    /// progress line has no line end to wait for.
    pub fn wait_for(&mut self, part: &str) -> &str {
        let mut piece = [0; 4096];
        while !self.screen.contains(part) && !self.shown.screen().contents().contains(part) {
            let count = self.output.read(&mut piece).unwrap();
            assert_ne!(count, 0, "no {part} in {:?}", self.screen);
            self.shown.process(&piece[..count]);
            self.screen
                .push_str(&String::from_utf8_lossy(&piece[..count]));
        }
        &self.screen
    }

    pub fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
    }

    /// The pid of torchspy.
    pub fn pid(&self) -> i32 {
        let script = self.script.id();
        let children = std::fs::read_to_string(format!("/proc/{script}/task/{script}/children"));
        children.unwrap().trim().parse().unwrap()
    }

    /// The terminal is gone from one moment to the next.
    pub fn hang_up(&mut self) {
        self.script.kill().unwrap();
        self.script.wait().unwrap();
    }

    pub fn finish(self) -> Option<i32> {
        self.end().0
    }

    /// The status, and everything that was on the screen.
    pub fn end(mut self) -> (Option<i32>, String) {
        drop(self.keys);
        let mut rest = Vec::new();
        let _ = self.output.read_to_end(&mut rest);
        self.screen.push_str(&String::from_utf8_lossy(&rest));
        (self.script.wait().unwrap().code(), self.screen)
    }
}
