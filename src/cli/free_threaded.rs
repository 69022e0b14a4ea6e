//! Free-threaded Pythons (3.13t and later) are refused: their objects and frames are laid out
//! differently.

use super::failure::Failure;
use super::{hints, messages};
use crate::memory::Bytes;
use crate::model::profile::Profile;
use crate::os::elf_file::ElfFile;
use crate::os::permissions::{Remedy, python_files};
use crate::os::program::find;
use crate::python::free_threaded::free_threaded_version;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

pub(crate) const WHY: &str = "a free-threaded build, whose objects and frames are laid out differently: torchspy cannot read it yet";

/// Scripts that run scripts that run an interpreter.
const MAX_SCRIPTS: usize = 4;
/// Longest first line of a script (BINPRM_BUF_SIZE).
const MAX_LINE: u64 = 256;

/// The version of a process's Python, where it is free-threaded.
pub(crate) fn version_of(pid: i32) -> Option<String> {
    python_files(pid).iter().find_map(|path| {
        let file = ElfFile::open(pid, path).ok();
        free_threaded_version(path, file.as_ref().map(|file| file as &dyn Bytes))
    })
}

/// An error where a process runs a free-threaded Python.
pub(crate) fn refuse_process(pid: i32) -> Result<(), Failure> {
    match version_of(pid) {
        Some(version) => Err(refusal(&format!("process {pid} runs Python {version}"))),
        None => Ok(()),
    }
}

/// An error where `command` would start one, as far as its files show that: the program's own, or a
/// script's interpreter. Nothing has run yet.
pub(crate) fn refuse_program(command: &[OsString]) -> Result<(), Failure> {
    let mut program = command.first().cloned();
    for _ in 0..MAX_SCRIPTS {
        let Some(path) = program.take().and_then(|name| find(&name)) else {
            return Ok(());
        };
        let path: PathBuf = path.canonicalize().unwrap_or(path);
        let name = path.to_string_lossy();
        let own_pid = i32::try_from(std::process::id()).unwrap_or(0);
        let file = ElfFile::open(own_pid, &name).ok();
        let file = file.as_ref().map(|file| file as &dyn Bytes);
        if let Some(version) = free_threaded_version(&name, file) {
            return Err(refusal(&format!("{name} is Python {version}")));
        }
        let start = file.and_then(|file| file.copy(0..file.size().min(MAX_LINE)));
        program = interpreter_of(&start.unwrap_or_default());
    }
    Ok(())
}

/// The program that the kernel starts for a script; what `env` is given, where it is `env`.
fn interpreter_of(script: &[u8]) -> Option<OsString> {
    let line = script
        .strip_prefix(b"#!")?
        .split(|&byte| byte == b'\n')
        .next()?;
    let line = String::from_utf8_lossy(line).into_owned();
    let mut words = line.split_ascii_whitespace();
    let first = words.next()?;
    let is_env = first.ends_with("/env");
    let named = words.find(|word| is_env && !word.starts_with('-') && !word.contains('='));
    Some(OsStr::from_bytes(named.unwrap_or(first).as_bytes()).to_owned())
}

fn refusal(subject: &str) -> Failure {
    Failure::message(format!("{subject}, {WHY}")).hint(hints::of_remedy(Remedy::FreeThreaded))
}

/// Warns at the end of a recording, for interpreters that a script or another program started.
/// Returns whether there was no other Python.
pub(crate) fn warn(profile: &Profile) -> bool {
    let processes = || profile.processes.iter().map(|process| &process.info);
    let mut any = false;
    for process in processes().filter(|process| process.note.contains("free-threaded")) {
        any = true;
        messages::warning(&format!("process {}: {}", process.pid, process.note));
    }
    if any {
        messages::hint(hints::of_remedy(Remedy::FreeThreaded));
    }
    any && processes().all(|process| process.python.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_of_scripts() {
        let of = |text: &str| interpreter_of(text.as_bytes());
        assert_eq!(
            of("#!/usr/bin/python3.13t\nx"),
            Some("/usr/bin/python3.13t".into())
        );
        assert_eq!(
            of("#! /usr/bin/env -S A=1 python3.13t -u\n"),
            Some("python3.13t".into())
        );
        assert_eq!(of("#!/bin/sh -e\n"), Some("/bin/sh".into()));
        assert_eq!(of("\x7fELF"), None);
    }
}
