//! A folder with recordings of several jobs, for people.

use super::format::{counted, printable};
use crate::analysis::job::Job;

/// Jobs that are named.
const MOST_JOBS: usize = 5;

/// That the folder has recordings of several jobs, and how another one is chosen.
pub(super) fn other_jobs(job: &Job) -> Option<String> {
    let name = |ids: &[String]| match ids {
        [] => "a job without a name".to_owned(),
        ids => printable(&ids.join(" ")).into_owned(),
    };
    let others = job.other_jobs.iter().take(MOST_JOBS).map(|other| {
        let files = match other.files.as_slice() {
            [first, _, ..] => format!("{first}, …"),
            files => files.concat(),
        };
        let ranks = counted(other.ranks as u64, "rank");
        format!("{} ({ranks}: {})", name(&other.job), printable(&files))
    });
    let mut others: Vec<String> = others.collect();
    if job.other_jobs.len() > MOST_JOBS {
        others.push(format!("{} more", job.other_jobs.len() - MOST_JOBS));
    }
    (!others.is_empty()).then(|| {
        format!(
            "recordings of {} are in this folder: {} is reported, which has the most ranks, or is the last of those; \
             left out: {}. To choose another, name a folder with its recordings alone",
            counted(job.other_jobs.len() as u64 + 1, "job"),
            name(&job.job),
            others.join("; ")
        )
    })
}
