//! What NCCL's RAS reported while a recording was made.

use super::format::{place, place_of};
use crate::analysis::Analysis;
use crate::analysis::job::Job;
use crate::analysis::of_thread;
use crate::analysis::progress::standstill::{STILL_NS, stood};
use crate::model::nccl_ras::{KeptRas, Member};
use crate::model::profile::Profile;
use crate::model::reduction::Still;
use crate::report::dump::ras::lines;

/// The answers in lines, with the places of the ranks that they name, as far as the recording has
/// them.
pub(super) fn ras(profile: &Profile, analysis: &Analysis, kept: &KeptRas) -> Vec<String> {
    let of = |member: &Member, _| {
        let mut own = analysis.processes.iter().filter(|_| member.is_here);
        let process = own.find(|each| {
            let process = profile.process(each.process);
            process.is_some_and(|process| process.info.pid == member.pid)
        })?;
        let samples = of_thread(profile, process.training_thread?);
        let since_ns = kept.time_ns.saturating_sub(STILL_NS);
        let stood = stood(profile, &samples, since_ns)?;
        let (function, line) = stood.at?;
        let at = place(profile.function(function)?, line);
        let wait = stood.wait.map_or(String::new(), |wait| {
            format!(" ({})", wait.name().replace('_', " "))
        });
        Some(format!(": at {at}{wait}"))
    };
    let lines = kept.answers.iter().flat_map(|answer| lines(answer, of));
    lines.map(|(_, line)| line).collect()
}

/// `at data.py:88 (io)`.
pub(super) fn stood_at(still: &Still) -> String {
    let at = match &still.place {
        Some(place) => place_of(&place.file, place.line),
        None => "no line that is known".to_owned(),
    };
    let wait = still.wait.as_deref().unwrap_or("no wait");
    format!("at {at} ({})", wait.replace('_', " "))
}

/// The answer of a job in lines.
pub(super) fn of_job(job: &Job) -> Vec<String> {
    let Some((asked, kept)) = job.nccl_ras() else {
        return Vec::new();
    };
    let of = |member: &Member, size| {
        let rank = job.ranks.iter().find(|rank| {
            // Ranks of a communicator of all ranks have the job's numbers.
            let is_it = match Some(size) == job.world_size {
                true => rank.facts.rank == Some(member.rank),
                false => member.is_here && rank.host == asked.host,
            };
            // NCCL 2.24 does not say whose missing ranks are.
            let is_unnamed = Some(size) == job.world_size && member.pid == 0;
            is_it && (is_unnamed || rank.facts.pid == member.pid)
        })?;
        Some(format!(": {}", stood_at(rank.facts.still.as_ref()?)))
    };
    let lines = kept.answers.iter().flat_map(|answer| lines(answer, of));
    lines.map(|(_, line)| line).collect()
}
