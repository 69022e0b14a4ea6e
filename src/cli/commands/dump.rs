//! `torchspy dump`: a snapshot of every thread of a process, or of a job; or several, and what
//! moved in between.

use super::dump_job;
use crate::analysis::dump::moved::Comparison;
use crate::cli::dump_plan::{DumpOf, DumpPlan, LookPlan};
use crate::cli::dump_snapshot::{check_target, take_one};
use crate::cli::failure::Failure;
use crate::cli::pause::{interruptible, is_interrupted};
use crate::cli::{hints, messages, trainers};
use crate::os::host::host_name;
use crate::report::dump::json::{render_snapshot, render_snapshots};
use crate::report::dump::moved::render_moved;
use crate::report::dump::text::render_dump;
use crate::report::label::counted;
use std::process::ExitCode;
use std::time::Instant;

pub(crate) fn run(plan: &DumpPlan) -> Result<ExitCode, Failure> {
    match &plan.of {
        DumpOf::Job(job) => dump_job::run(job, plan.json),
        DumpOf::Processes => snapshots(plan, &plan.look),
        DumpOf::Trainers(job) => {
            let found = trainers::trainers(job.as_deref())?;
            let look = LookPlan {
                pids: found,
                ..plan.look.clone()
            };
            snapshots(plan, &look)
        }
    }
}

fn snapshots(plan: &DumpPlan, look: &LookPlan) -> Result<ExitCode, Failure> {
    let mut snapshots = Vec::new();
    let mut comparison = Comparison::default();
    let mut denied = None;
    let mut begun = Instant::now();
    let signals = (plan.repeat > 1).then(interruptible).transpose()?;
    for number in 0..plan.repeat {
        let due = plan.every.saturating_mul(number);
        if let Some(signals) = &signals
            && is_interrupted(signals, begun + due)
        {
            messages::note(&format!(
                "interrupted after {}",
                counted(u64::from(number), "snapshot")
            ));
            break;
        }
        let dump = match take_one(look) {
            // It is exiting: the kernel frees its memory before the process ends.
            Ok((_, Some(error))) if number > 0 => {
                messages::warning(&format!("no more snapshots: {error}"));
                comparison.all_ended();
                break;
            }
            Ok((dump, refused)) => {
                denied = refused;
                dump
            }
            Err(failure) if number == 0 => return Err(failure),
            // The snapshots taken before are printed.
            Err(failure) => {
                messages::warning(&format!("no more snapshots: {}", failure.text()));
                if look.pids.iter().all(|&pid| check_target(pid).is_err()) {
                    comparison.all_ended();
                }
                break;
            }
        };
        match plan.json {
            true => snapshots.push(render_snapshot(&dump)),
            false if number == 0 => print(&render_dump(&dump))?,
            false => {}
        }
        comparison.add(dump);
        if number == 0 {
            // The first may take longer to prepare than the others: no interval is shorter than
            // requested.
            begun = Instant::now();
        }
    }
    match plan.json {
        true => {
            let text =
                render_snapshots(&host_name(), &snapshots, &comparison).map_err(Failure::new)?;
            print(&format!("{text}\n"))?;
        }
        false => print(&render_moved(&comparison))?,
    }
    match denied {
        Some(error) => Err(hints::session_failure(error)),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn print(text: &str) -> Result<(), Failure> {
    messages::data(|out| out.write_all(text.as_bytes()))
}
