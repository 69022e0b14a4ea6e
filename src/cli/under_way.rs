//! Recordings that are being written now, found by the process that records or is recorded.

use super::failure::Failure;
use super::formats::Format;
use super::messages;
use crate::model::run::RunInfo;
use crate::os::file_lock;
use crate::os::open_files;
use crate::os::process_info::read_stat;
use crate::recording::Recording;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A recording that is being written.
#[derive(Clone, Debug)]
pub(crate) struct UnderWay {
    /// The process that has it open.
    holder: i32,
    /// Device and inode.
    identity: (u64, u64),
    /// Where it can be opened.
    pub(crate) path: PathBuf,
    /// Its name, or the last one that it had.
    pub(crate) name: PathBuf,
    run: RunInfo,
}

impl UnderWay {
    /// What messages call it: its name, the recorded process, and the recorder.
    pub(crate) fn shown(&self) -> String {
        let data = self.name.metadata().ok();
        let has_name = data.is_some_and(|data| (data.dev(), data.ino()) == self.identity);
        let name = match has_name {
            true => self.name.display().to_string(),
            false => "the recording".to_owned(),
        };
        format!(
            "{name} (process {}, recorded by process {})",
            self.run.pid, self.holder
        )
    }
}

/// The recording that `pid` writes, or the one that is of `pid`: of itself, else of the process
/// nearest above it whose children are sampled with it.
///
/// A tracer is no help: torchspy traces a thread for microseconds at a time.
pub(crate) fn of_process(pid: i32) -> Result<UnderWay, Failure> {
    if read_stat(pid).is_err() {
        let hint = match Path::new(&pid.to_string()).exists() {
            true => format!("for the file of that name: ./{pid}"),
            false => {
                "give the pid of the trainer or of its torchspy record, or the recording (.tspy)"
                    .to_owned()
            }
        };
        return Err(Failure::message(format!("there is no process {pid}")).hint(hint));
    }
    let all = all();
    let mut found: Vec<UnderWay> = all
        .iter()
        .filter(|each| each.holder == pid)
        .cloned()
        .collect();
    let lineage = lineage(pid);
    let mut above = lineage.iter();
    while let (true, Some(&ancestor)) = (found.is_empty(), above.next()) {
        found = all
            .iter()
            .filter(|each| each.run.pid == ancestor)
            .cloned()
            .collect();
    }
    found.sort_by_key(|each| each.identity);
    found.dedup_by_key(|each| each.identity);
    match found.len() {
        0 => Err(Failure::message(format!(
            "no recording under way was found that process {pid} writes, or that is of it"
        ))
        .hint(
            "torchspy record --pid PID makes one; for a recorder of another user or container, give its file (.tspy)",
        )),
        1 => Ok(found.remove(0)),
        several => {
            let names: Vec<String> = found.iter().map(|each| each.name.display().to_string()).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            Err(Failure::message(format!("process {pid} is in {several} recordings"))
                .hint(format!("give one of them: {}", messages::list(&names, 4))))
        }
    }
}

fn all() -> Vec<UnderWay> {
    let end = format!(".{}", Format::Recording.extension());
    let opened = open_files::with_name_ending(&end).into_iter();
    let marked = opened.filter_map(|open| {
        let file = File::open(&open.path).ok()?;
        let data = file.metadata().ok()?;
        let run = file_lock::is_held(&file).then(|| Recording::read_head(&file).ok())??;
        Some(UnderWay {
            holder: open.pid,
            identity: (data.dev(), data.ino()),
            path: open.path,
            name: open.name,
            run,
        })
    });
    marked.collect()
}

/// A process and those above it, nearest first.
fn lineage(pid: i32) -> Vec<i32> {
    const DEEPEST: usize = 64;
    let parent = |&pid: &i32| Some(read_stat(pid).ok()?.parent_pid).filter(|&parent| parent > 0);
    std::iter::successors(Some(pid), parent)
        .take(DEEPEST)
        .collect()
}
