//! A dump for people: how far each rank is, which ranks differ, and each distinct stack once.

use super::head::{captured, deadlocks, processes, ranks};
use super::job_names::{job_list, job_title};
use super::memory::memory;
use super::ras::ras;
use super::tasks::tasks;
use super::thread::group as stack;
use crate::analysis::dump::groups::groups;
use crate::analysis::dump::hang::trainers;
use crate::analysis::dump::jobs::jobs;
use crate::model::dump::Dump;
use crate::model::text::printable;
use std::fmt::Write as _;

/// A dump as text. Of several jobs each is answered by itself.
pub fn render_dump(dump: &Dump) -> String {
    let mut out = String::new();
    captured(&mut out, dump);
    match &jobs(dump)[..] {
        _ if dump.memory.is_some() => memory(&mut out, dump),
        [_] => {
            head(&mut out, dump);
            counted_by_nccl(&mut out, dump);
            stacks(&mut out, dump);
        }
        several => {
            let names = several.iter().map(|job| (&job.name, job_ranks(&job.of)));
            out.push_str(&job_list(names));
            counted_by_nccl(&mut out, dump);
            for job in several {
                out.push_str(&job_title(&job.name));
                head(&mut out, &job.of);
                stacks(&mut out, &job.of);
            }
        }
    }
    if !dump.missing.is_empty() {
        out.push_str("\nNOT READ\n");
        for missing in &dump.missing {
            let _ = writeln!(out, "  {}", printable(missing));
        }
    }
    out
}

fn job_ranks(dump: &Dump) -> usize {
    let ranks = trainers(dump).filter(|each| each.role.rank().is_some());
    ranks.count()
}

fn head(out: &mut String, dump: &Dump) {
    processes(out, dump);
    deadlocks(out, dump);
    ranks(out, dump);
}

fn counted_by_nccl(out: &mut String, dump: &Dump) {
    ras(out, &dump.nccl_ras, |member, _| {
        let process = dump.processes.iter().find(|each| each.pid == member.pid);
        process.filter(|_| member.is_here)
    });
}

fn stacks(out: &mut String, dump: &Dump) {
    for group in groups(dump) {
        stack(out, dump, &group);
    }
    tasks(out, dump);
}
