//! Programs of packages that run Python code in ways of their own: `scripts/torch-env runtimes`.

#![allow(dead_code, unreachable_pub)]

use crate::installed::runtimes_python;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A program; it is asked to end by the end of its input, and awaited, when this is dropped.
pub struct Target {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

impl Target {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// What the program prints behind `ready`.
    pub fn ready_with(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let rest = line.strip_prefix("ready");
        let rest = rest.unwrap_or_else(|| panic!("the program ended: {line:?}"));
        rest.trim().to_owned()
    }
}

/// Starts `tests/programs/NAME`; `None`, with a word, where there is no environment.
pub fn start(name: &str, arguments: &[&str]) -> Option<Target> {
    start_with(name, arguments, &[])
}

/// The same with variables of its environment.
pub fn start_with(name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Option<Target> {
    let python = runtimes_python()?;
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let mut child = Command::new(python)
        .arg(program.join(name))
        .args(arguments)
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    Some(Target {
        input: child.stdin.take(),
        output: BufReader::new(child.stdout.take().unwrap()),
        child,
    })
}
