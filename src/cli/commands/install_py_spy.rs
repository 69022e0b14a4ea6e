//! `torchspy install-py-spy DIR`: a link by whose name torchspy is py-spy.

use crate::cli::failure::Failure;
use crate::cli::messages;
use crate::cli::output_file::cannot_write;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The validated plan of `torchspy install-py-spy`.
#[derive(Clone, Debug)]
pub(crate) struct InstallPySpyPlan {
    pub(crate) folder: PathBuf,
    /// Replace what has the name and is no link to torchspy.
    pub(crate) force: bool,
}

pub(crate) fn run(plan: &InstallPySpyPlan) -> Result<ExitCode, Failure> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::new(anyhow::Error::new(error).context("where torchspy is")))?;
    std::fs::create_dir_all(&plan.folder).map_err(|error| cannot_write(&plan.folder, error))?;
    let link = plan.folder.join("py-spy");
    if !is_there(&link) || plan.force || is_link_to_torchspy(&link, &own) {
        replace(&own, &link).map_err(|error| cannot_write(&link, error))?;
        messages::data(|out| writeln!(out, "{}", link.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::message(format!(
        "{}: it is there already, and no link to torchspy",
        link.display()
    ))
    .hint("--force replaces it; a folder before it on PATH needs no replacement"))
}

fn is_there(link: &Path) -> bool {
    link.symlink_metadata().is_ok()
}

/// Also where the torchspy of an earlier link has gone.
fn is_link_to_torchspy(link: &Path, own: &Path) -> bool {
    std::fs::read_link(link)
        .is_ok_and(|to| to == own || to.file_name() == Some("torchspy".as_ref()))
}

/// The link appears whole: a program that starts py-spy in the meantime finds the old one or the
/// new one.
fn replace(own: &Path, link: &Path) -> io::Result<()> {
    let new = link.with_file_name(format!(".py-spy.{}", std::process::id()));
    std::os::unix::fs::symlink(own, &new)?;
    std::fs::rename(&new, link).inspect_err(|_| {
        // The error that counts is the rename's.
        let _ = std::fs::remove_file(&new);
    })
}
