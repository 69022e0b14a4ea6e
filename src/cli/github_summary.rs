//! The summary of a GitHub Actions job: a file of the step's, to which Markdown is appended.
//!
//! Source: "Workflow commands for GitHub Actions", "Adding a job summary" and "Step isolation and
//! limits": a step's summary has 1 MiB at most; GitHub drops one that is longer as a whole.

use super::failure::Failure;
use super::messages;
use nix::fcntl::OFlag;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const VARIABLE: &str = "GITHUB_STEP_SUMMARY";
/// Longest summary of a step, bytes.
const LONGEST: u64 = 1 << 20;

/// The path of the step's summary, from the variable's value.
pub(super) fn path(value: Option<OsString>) -> Result<PathBuf, Failure> {
    match value.filter(|value| !value.is_empty()) {
        Some(value) => Ok(PathBuf::from(value)),
        None => Err(Failure::usage(
            format!("--github-summary: {VARIABLE} is not set"),
            "GitHub Actions sets it for each step of a job; elsewhere: torchspy convert run.tspy -o run.md",
        )),
    }
}

/// The path of the step's summary, from the environment.
pub(super) fn path_of_step() -> Result<PathBuf, Failure> {
    path(std::env::var_os(VARIABLE))
}

/// Appends to the summary, unless it would be too long: what is there already is kept.
pub(super) fn append(path: &Path, markdown: &[u8]) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let error = anyhow::Error::new(error).context(format!("cannot write {}", path.display()));
        Failure::new(error).hint(format!(
            "{VARIABLE} names the file: GitHub Actions makes it"
        ))
    };
    // A pipe would wait for its other end.
    let mut file = File::options()
        .append(true)
        .create(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)
        .map_err(failed)?;
    let data = file.metadata().map_err(failed)?;
    if !data.is_file() {
        return Err(failed(io::Error::other("not a file")));
    }
    let there = data.len();
    // A heading begins a line, after an empty one.
    let apart: &[u8] = if there > 0 { b"\n\n" } else { b"" };
    let markdown = [apart, markdown].concat();
    let added = u64::try_from(markdown.len()).unwrap_or(u64::MAX);
    if there.saturating_add(added) > LONGEST {
        return Err(Failure::message(format!(
            "the report does not fit into the step's summary: {there} bytes are there, the report has {added}, and GitHub takes {LONGEST}"
        ))
        .hint("run torchspy in a step of its own: each step has its own summary"));
    }
    if let Err(error) = file.write_all(&markdown) {
        // Half a report would be drawn as one.
        let _ = file.set_len(there);
        return Err(failed(error));
    }
    messages::note(&format!("added the report to {}", path.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_path_there_is_a_hint() {
        for value in [None, Some(OsString::new())] {
            let failure = path(value).expect_err("no path");
            assert_eq!(failure.status, 2);
            assert!(failure.hint.is_some());
        }
    }

    #[test]
    fn reports_are_appended_until_the_summary_is_full() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("summary");
        append(&path, b"one\n").expect("a new file");
        append(&path, b"two\n").expect("one that is there");
        let rest = vec![b'x'; (1 << 20) - 12];
        append(&path, &rest).expect("it fits");
        let failure = append(&path, b"y").expect_err("full");
        assert!(
            failure.text().contains("1048576 bytes are there"),
            "{}",
            failure.text()
        );
        assert!(failure.hint.is_some());
        let written = std::fs::read(&path).expect("it is there");
        assert!(written.starts_with(b"one\n\n\ntwo\n\n\nx") && written.len() == 1 << 20);
        let missing = folder.path().join("no/where");
        assert!(
            append(&missing, b"z")
                .expect_err("no folder")
                .hint
                .is_some()
        );
    }
}
