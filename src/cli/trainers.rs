//! Finds the trainers of this machine.

use super::failure::Failure;
use crate::model::process::ProcessInfo;
use crate::os::process_info::read_process_info;
use crate::os::redaction::Redaction;
use crate::torch::job::{JobPlace, job_ids};
use rustc_hash::FxHashMap;
use std::io::Read;
use std::path::Path;

/// Most processes that are looked at.
const MAX_PROCESSES: usize = 65_536;
/// Most of a process's memory map that is read, bytes.
const MAX_MAPS: u64 = 4 << 20;

/// A process that may train.
struct Candidate {
    pid: i32,
    parent: i32,
    job_ids: Vec<String>,
}

/// Pids of the outermost Python processes that have a rank or torch, and whose files this user may
/// read: trainers, or what started them. Of the job with this id, if one is given.
pub(super) fn trainers(job: Option<&str>) -> Result<Vec<i32>, Failure> {
    let (pids, all) = found(job);
    if !pids.is_empty() {
        return Ok(pids);
    }
    Err(match (job, all) {
        (Some(job), 1..) => Failure::message(format!("no trainer of job {job} runs here")).hint(
            format!("{all} Python processes with a rank or torch belong to other jobs: by the ids of batch systems (SLURM_JOB_ID), and of torchrun (--rdzv-id)"),
        ),
        _ => Failure::message("no trainer runs here that this user may read").hint(
            "a trainer is a Python process with a rank in its environment, or with torch loaded; --pid PID takes any",
        ),
    })
}

/// The same, of which there may be none.
pub(super) fn running(job: Option<&str>) -> Vec<i32> {
    found(job).0
}

/// The processes, and the number of those of all jobs.
fn found(job: Option<&str>) -> (Vec<i32>, usize) {
    let mut found: FxHashMap<i32, Candidate> = candidates();
    let all = found.len();
    if let Some(job) = job {
        found.retain(|_, each| each.job_ids.iter().any(|id| id == job));
    }
    let mut pids: Vec<i32> = found
        .values()
        .filter(|each| !found.contains_key(&each.parent))
        .map(|each| each.pid)
        .collect();
    pids.sort_unstable();
    (pids, all)
}

fn candidates() -> FxHashMap<i32, Candidate> {
    let listing = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = listing.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.take(MAX_PROCESSES)
        .filter_map(|pid| Some((pid, candidate(pid)?)))
        .collect()
}

fn candidate(pid: i32) -> Option<Candidate> {
    if u32::try_from(pid).is_ok_and(|pid| pid == std::process::id()) {
        return None;
    }
    // Of most processes this shows that they have no program, or that it may not be read.
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let info = read_process_info(pid, Redaction::On).ok()?;
    if info.environment.is_empty() && info.command.is_empty() {
        return None;
    }
    let has_rank = JobPlace::of(&info.environment, &info.command)
        .rank
        .is_some();
    let trains = match is_python(&info) {
        true => has_rank || maps_contain(pid, &["libtorch_python", "libtorch_cpu"]),
        // A program with an interpreter of its own.
        false => has_rank && maps_contain(pid, &["libpython"]),
    };
    trains.then(|| Candidate {
        pid,
        parent: info.parent_pid,
        job_ids: job_ids(&info.environment),
    })
}

fn is_python(info: &ProcessInfo) -> bool {
    let name = Path::new(&info.exe).file_name().unwrap_or_default();
    name.to_string_lossy().starts_with("python")
}

/// Whether a file with one of these names is mapped.
fn maps_contain(pid: i32, names: &[&str]) -> bool {
    // The file waits for the mmap lock, which may never be released.
    let read = move || {
        let mut text = Vec::new();
        let maps = std::fs::File::open(format!("/proc/{pid}/maps"));
        let _ = maps.and_then(|file| file.take(MAX_MAPS).read_to_end(&mut text));
        text
    };
    let answer = crate::os::own_thread::ask(pid, read).ok();
    let text = answer.and_then(|asked| asked.answer()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    names.iter().any(|name| text.contains(name))
}
