//! What jobs are called, where a dump has several.

use crate::analysis::dump::jobs::JobName;
use crate::model::text::printable;
use crate::report::label::counted;
use std::fmt::Write as _;

/// Jobs that are listed.
const LISTED: usize = 16;

/// `2 jobs, each compared with itself: run7 (4 ranks), run8 (2 ranks)`, and how to see one. For
/// each job its number of ranks.
pub(super) fn job_list<'n>(jobs: impl Iterator<Item = (&'n JobName, usize)>) -> String {
    let jobs: Vec<_> = jobs.filter(|(name, _)| **name != JobName::NoJob).collect();
    let mut out = format!("{} jobs, each compared with itself: ", jobs.len());
    for (index, (name, ranks)) in jobs.iter().take(LISTED).enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        let _ = write!(
            out,
            "{comma}{} ({})",
            words(name),
            counted(*ranks as u64, "rank")
        );
    }
    if jobs.len() > LISTED {
        let _ = write!(out, " and {} more", jobs.len() - LISTED);
    }
    out.push('\n');
    let id = jobs.iter().find_map(|(name, _)| match name {
        JobName::Id(id) => Some(printable(id)),
        _ => None,
    });
    if let Some(id) = id {
        let _ = writeln!(out, "one of them alone: --job {id}");
    }
    out
}

/// The line before what is said of a job; empty for the only one.
pub(super) fn job_title(name: &JobName) -> String {
    match name {
        JobName::Only => String::new(),
        JobName::NoJob => "\nPROCESSES of none of these jobs\n".to_owned(),
        name => format!("\nJOB {}\n", words(name)),
    }
}

fn words(name: &JobName) -> String {
    match name {
        JobName::Id(id) => printable(id).into_owned(),
        JobName::Address(address) => format!("at {}", printable(address)),
        JobName::Only | JobName::Unknown | JobName::NoJob => "without a name".to_owned(),
    }
}
