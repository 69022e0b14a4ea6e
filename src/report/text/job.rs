//! The answers for a job of many ranks, for people.

use super::by_group::by_group;
use super::format::{counted, milliseconds, percent, place_of, printable, seconds, share_of};
use super::other_jobs::other_jobs;
use super::ras::{self, stood_at};
use super::table::TextTable;
use super::{line, sentence};
use crate::analysis::job::Job;
use crate::analysis::job::mesh::Group;
use crate::analysis::job::parallel::sizes;
use crate::analysis::job::stragglers::{Compared, Straggler};
use crate::model::parallel::GroupSource;
use crate::report::command::shown_command;
use crate::report::label::ranges;
use crate::report::naming::utc_time;
use crate::report::tables::job::{
    ClockRow, DoingRow, RANKS, RankRow, StragglerRow, all_ranks, clocks, ranks, straggler,
};
use std::collections::BTreeMap;

/// Ranks that are listed one by one.
const MOST_RANKS: usize = 16;
const MOST_LEFT_OUT: usize = 10;
/// This part of what a rank costs is a reason of its own.
const MOSTLY: f64 = 0.5;
/// Ranks that were at another place than most when no step ended.
const MOST_STOPPED: usize = 5;
/// Stragglers of a group.
const MOST_STRAGGLERS: usize = 5;
/// Less of the time in collectives is not divided in words.
const HARDLY: f64 = 0.001;

/// What cannot be said of ranks with NCCL.
pub(crate) const NCCL_OVERLAP: &str = "with NCCL the GPU computes and communicates: host time says neither how much of each, nor how much they overlap; a kernel trace shows it (record --trace TIME)";

/// The report. With `full` every rank is listed.
pub fn render_job(job: &Job, full: bool) -> String {
    let mut out = String::new();
    for text in about(job) {
        sentence(&mut out, "", &text);
    }
    line(&mut out, "\nWHO ARRIVES LAST");
    for (group, found) in &job.groups {
        group_found(&mut out, job, group, found);
    }
    rank_table(&mut out, job, if full { usize::MAX } else { MOST_RANKS });
    by_group(&mut out, job, if full { usize::MAX } else { MOST_RANKS });
    clock_lines(&mut out, job);
    left_out(&mut out, job, if full { usize::MAX } else { MOST_LEFT_OUT });
    out
}

/// What the answer is of, and what is missing of it: sentences.
pub(crate) fn about(job: &Job) -> Vec<String> {
    let mut hosts: Vec<&str> = job.ranks.iter().map(|rank| rank.host.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let number = job.ranks.len() as u64;
    let of = match job.world_size {
        Some(world) => format!("{number} of {world} ranks"),
        None => counted(number, "rank"),
    };
    let mut all = vec![format!(
        "{of} on {}, {}",
        counted(hosts.len() as u64, "host"),
        counted(job.recordings.len() as u64, "recording")
    )];
    if let Some(first) = job
        .recordings
        .iter()
        .min_by_key(|each| each.started_wall_ns)
    {
        let longest = job.recordings.iter().map(|each| each.length_ns).max();
        all.push(format!(
            "{}: {} from {}",
            shown_command(&first.command, 50),
            seconds(longest.unwrap_or(0)),
            utc_time(first.started_wall_ns)
        ));
    }
    if let Some(still_ns) = job.standstill_ns() {
        all.push(format!(
            "no step ended in the last {}: what ranks did then is in no table below, and in the report of each recording",
            seconds(still_ns)
        ));
        all.extend(stopped_at(job));
    }
    all.extend(ras::of_job(job));
    if !job.missing_ranks.is_empty() {
        let mut missing = job.missing_ranks.clone();
        all.push(format!(
            "no recording of rank {}: if the others wait for one of these, it is not seen",
            ranges(&mut missing)
        ));
    }
    all.extend(other_jobs(job));
    all.extend(parallel(job));
    all
}

/// Where ranks were for most of the time without a step: each that was at another place than most.
fn stopped_at(job: &Job) -> Vec<String> {
    let known = job
        .ranks
        .iter()
        .filter_map(|rank| Some((rank, stood_at(rank.facts.still.as_ref()?))));
    let known: Vec<_> = known.collect();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, at) in &known {
        *counts.entry(at).or_default() += 1;
    }
    let most = counts.iter().max_by_key(|&(_, &count)| count);
    let most = most.filter(|&(_, &count)| 2 * count > known.len());
    let others = known
        .iter()
        .filter(|(_, at)| most.is_none_or(|(most, _)| most != at));
    let mut all: Vec<String> = others
        .take(MOST_STOPPED)
        .map(|(rank, at)| {
            format!(
                "{} was {at} then",
                rank_name(rank.facts.rank, rank.facts.pid)
            )
        })
        .collect();
    if let Some((most, count)) = most {
        all.push(format!("{count} of {} ranks were {most} then", known.len()));
    }
    all
}

/// Which groups ranks are compared in, and how these are known; `None` where none are.
fn parallel(job: &Job) -> Option<String> {
    let parallel = &job.parallel;
    match (&parallel.conflict, parallel.source) {
        (Some(conflict), _) => Some(format!(
            "parallel groups are not used, ranks contradict each other: {}; --mesh names them",
            printable(conflict)
        )),
        (None, GroupSource::None) => None,
        (None, source) => Some(format!(
            "parallel groups: {} ({})",
            printable(&sizes(&parallel.dimensions)),
            source.name()
        )),
    }
}

fn group_found(out: &mut String, job: &Job, group: &Group, found: &Compared) {
    if !group.name.is_empty() {
        line(out, &format!("  {}", printable(&group.name)));
    }
    for each in found.stragglers.iter().take(MOST_STRAGGLERS) {
        if let Some(row) = straggler(job, each) {
            arrives_last(out, &row, each, found);
        }
    }
    let more = found.stragglers.len().saturating_sub(MOST_STRAGGLERS);
    if more > 0 {
        line(out, &format!("  … {more} more: --json lists all"));
    }
    for text in not_late(job, found) {
        sentence(out, "  ", &text);
    }
}

/// Why no rank is named, and which ranks were not compared: sentences.
pub(crate) fn not_late(job: &Job, found: &Compared) -> Vec<String> {
    let text = match (found.compared, found.stragglers.len()) {
        (0 | 1, _) => Some(
            "not known: fewer than two ranks with 10 steps or more that step together".to_owned(),
        ),
        (compared, 0) => {
            let step = found.step_s.map_or(String::new(), |step| {
                format!("; a step takes {} ms", milliseconds(step * 1e3))
            });
            let why = match (found.unsure.is_empty(), found.hidden, found.is_uneven) {
                (false, ..) => String::new(),
                (true, 0, false) => {
                    ": each waits about as long as the others, or within 5 % of a step".to_owned()
                }
                (true, 0, true) => {
                    ": too many wait less than the others, or now one and now another: work is shared unevenly".to_owned()
                }
                (true, hidden, _) => format!(
                    ": {} less than the others, but it is not seen that these wait for it: a busy device, or one of unknown utilization, hides what its host does",
                    match hidden {
                        1 => "1 rank waits".to_owned(),
                        _ => format!("{hidden} ranks each wait"),
                    }
                ),
            };
            Some(format!("none of {compared} ranks clearly{why}{step}"))
        }
        _ => None,
    };
    let mut all: Vec<String> = text.into_iter().collect();
    let rank_of = |at: usize| {
        job.ranks
            .get(at)
            .map(|rank| (rank.facts.rank, rank.facts.pid))
    };
    for each in found.unsure.iter().take(MOST_STRAGGLERS) {
        let Some((rank, pid)) = rank_of(each.rank) else {
            continue;
        };
        all.push(format!(
            "perhaps {}: it waits for others {} of the time, their median {}, {}",
            rank_name(rank, pid),
            share_of(&each.waits).trim(),
            share_of(&each.others_waits).trim(),
            match each.is_out_of_step {
                true => "but its steps have another length",
                false => "but too unevenly to be sure",
            }
        ));
    }
    let names = |all: &[usize]| {
        let ranks = all.iter().filter_map(|&at| job.ranks.get(at)?.facts.rank);
        ranges(&mut ranks.collect::<Vec<u32>>())
    };
    if !found.too_short.is_empty() {
        all.push(format!(
            "not compared, too few steps: rank {}",
            names(&found.too_short)
        ));
    }
    if !found.out_of_step.is_empty() {
        all.push(format!(
            "not compared, steps of another length: rank {}",
            names(&found.out_of_step)
        ));
    }
    all
}

pub(crate) fn rank_name(rank: Option<u32>, pid: i32) -> String {
    rank.map_or(format!("pid {pid}"), |rank| format!("rank {rank}"))
}

fn arrives_last(out: &mut String, row: &StragglerRow, found: &Straggler, group: &Compared) {
    let Late { who, how, more } = late(row, found, group);
    sentence(out, "  ", &format!("{who}: {how}"));
    for text in more {
        sentence(out, "    ", &text);
    }
    if !row.lines.is_empty() {
        line(out, &format!("    {LONGER}:"));
    }
    for doing in &row.lines {
        line(
            out,
            &format!("    {:>8}  {}", milliseconds(doing.ms), doing_text(doing)),
        );
    }
}

/// What the lines of a rank that arrives last are.
pub(crate) const LONGER: &str = "what it does for longer than the others, ms a step";

/// A rank that arrives last, in words.
pub(crate) struct Late {
    /// `rank 5 (pid 105 on node1) arrives last`.
    pub(crate) who: String,
    /// How that is known, and what it costs.
    pub(crate) how: String,
    /// Since when, how often.
    pub(crate) more: Vec<String>,
}

pub(crate) fn late(row: &StragglerRow, found: &Straggler, group: &Compared) -> Late {
    let in_place_of = |step_ms: f64, ideal_ms: f64| {
        format!(
            "{} ms in place of {} ({:.2} x)",
            milliseconds(step_ms),
            milliseconds(ideal_ms),
            step_ms / ideal_ms.max(f64::MIN_POSITIVE)
        )
    };
    let run = group.step_s.zip(group.ideal_step_s);
    let run = run.filter(|_| group.stragglers.first() == Some(found));
    let run = run.map(|(step_s, ideal_s)| in_place_of(step_s * 1e3, ideal_s * 1e3));
    let is_part = !row.changes.is_empty();
    let costs = match is_part {
        true => Some(in_place_of(
            row.slow_step_ms,
            row.slow_step_ms - row.late_ms,
        )),
        false => run.clone(),
    };
    let costs = costs.map_or(String::new(), |costs| format!(": {costs}"));
    let (time, each) = match is_part {
        true => ("time in which it is slow", "each step of that time"),
        false => ("time", "each step"),
    };
    let half_ms = (row.late.high - row.late.low) / 2.0 / row.late.value.max(1e-9) * row.late_ms;
    let place = match row.groups.is_empty() {
        true => String::new(),
        false => format!("; {}", printable(&row.groups)),
    };
    let who = format!(
        "{} (pid {} on {}{place}) arrives last",
        rank_name(row.rank, row.pid),
        row.pid,
        row.host
    );
    let how = format!(
        "it waits for others {} of the {time}, their median {}; {each} takes {} ms ±{} longer \
         for it{costs}",
        share_of(&row.waits).trim(),
        share_of(&row.others_wait).trim(),
        milliseconds(row.late_ms),
        milliseconds(half_ms),
    );
    let mut more = Vec::new();
    for change in &row.changes {
        let word = if change.began { "since" } else { "until" };
        more.push(format!(
            "{word} step {} ({} to {}), {} (p = {:.3})",
            change.step,
            change.step_low,
            change.step_high,
            utc_time(u64::try_from(change.wall_ns).unwrap_or(0)),
            change.chance
        ));
    }
    if let Some(run) = run.filter(|_| is_part) {
        more.push(format!("over the whole run a step takes {run}"));
    }
    if row.cpu_wait_ms >= MOSTLY * row.late_ms {
        more.push(format!(
            "it is runnable and without a CPU for {} ms of each step longer than the others: other programs or ranks have it",
            milliseconds(row.cpu_wait_ms)
        ));
    }
    more.push(format!(
        "it waits least of all in {} of {} parts of that time",
        row.last_in_bins, row.slow_bins
    ));
    Late { who, how, more }
}

/// A line and what is done there.
pub(crate) fn doing_text(doing: &DoingRow) -> String {
    let at = match (&doing.file, doing.line) {
        (Some(file), Some(line)) => place_of(file, line),
        _ => "no line is known".to_owned(),
    };
    let function = doing.function.as_deref().unwrap_or_default();
    let waits = match &doing.wait {
        Some(wait) => format!(", waits: {}", printable(wait)),
        None => String::new(),
    };
    format!("{at} {} ({}{waits})", printable(function), doing.phase)
}

fn rank_table(out: &mut String, job: &Job, most: usize) {
    let rows = ranks(job);
    line(
        out,
        "\nRANKS, % of each training thread's time in steps (host time)",
    );
    let all = all_ranks(job, &rows);
    let table = TextTable::new(RANKS, &rows);
    table.head(out);
    let medians = match rows.len() <= most {
        true => {
            rows.iter().for_each(|row| table.row(out, row));
            None
        }
        false => odd_ranks(out, &table, &rows, most),
    };
    if let Some(all) = &all {
        table.row(out, all);
    }
    for text in medians.into_iter().chain(about_ranks(&rows, all.as_ref())) {
        sentence(out, "  ", &text);
    }
}

/// What the shares of ranks mean: sentences.
pub(crate) fn about_ranks(rows: &[RankRow], all: Option<&RankRow>) -> Vec<String> {
    let waits = all.filter(|all| all.communication_wait >= HARDLY);
    let waits = waits.and_then(|all| {
        let (synchronizing, transferring) = all.synchronizing.zip(all.transferring)?;
        let compared = rows.iter().filter(|row| row.synchronizing.is_some()).count();
        let who = match compared == rows.len() {
            true => "ranks".to_owned(),
            false => format!("{compared} ranks that can be compared"),
        };
        Some(format!(
            "{who} wait in collectives {} of the time: {} or more for ranks that arrive later (sync), {} or less for the transfer",
            percent(synchronizing + transferring).trim(),
            percent(synchronizing).trim(),
            percent(transferring).trim()
        ))
    });
    let overlap = rows.iter().any(|row| row.nccl);
    let overlap = overlap.then(|| NCCL_OVERLAP.to_owned());
    waits.into_iter().chain(overlap).collect()
}

/// The rows of the ranks that arrive last, and the medians of the others. Returns a sentence on
/// that.
fn odd_ranks(
    out: &mut String,
    table: &TextTable<RankRow>,
    rows: &[RankRow],
    most: usize,
) -> Option<String> {
    // The odd ones, and those at the ends; the rest as its median.
    let (late, others): (Vec<&RankRow>, Vec<&RankRow>) =
        rows.iter().partition(|row| row.arrives_last);
    for row in late.iter().take(most / 2) {
        table.row(out, row);
    }
    let known = |value: fn(&RankRow) -> Option<f64>| {
        let mut values: Vec<f64> = others.iter().filter_map(|row| value(row)).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    let middle = |value: fn(&RankRow) -> f64| {
        let mut values: Vec<f64> = others.iter().map(|row| value(row)).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    };
    let median = RankRow {
        rank: None,
        step_ms: known(|row| row.step_ms),
        synchronizing: known(|row| row.synchronizing),
        computation: middle(|row| row.computation),
        communication_call: middle(|row| row.communication_call),
        communication_wait: middle(|row| row.communication_wait),
        input: middle(|row| row.input),
        gpu_wait: middle(|row| row.gpu_wait),
        python: middle(|row| row.python),
        cpu_wait: middle(|row| row.cpu_wait),
        other: middle(|row| row.other),
        ..others.first().copied().or(rows.first())?.clone()
    };
    table.row(out, &median);
    let left_out = late.len().saturating_sub(most / 2);
    let left_out = match left_out {
        0 => String::new(),
        more => format!("{more} more arrive last; "),
    };
    Some(format!(
        "{left_out}the line without a number has the medians of the other {}, the last one the means of all; --full lists all ranks",
        counted(others.len() as u64, "rank")
    ))
}

fn clock_lines(out: &mut String, job: &Job) {
    let rows = clocks(job);
    if rows.len() < 2 {
        return;
    }
    line(out, "\nCLOCKS");
    const MOST: usize = 10;
    for row in rows.iter().take(MOST) {
        sentence(out, "  ", &clock_text(row));
    }
    if rows.len() > MOST {
        let errors = rows.iter().filter_map(|row| row.error_ms);
        let aligned = errors.clone().count();
        let precision = match aligned {
            0 => String::new(),
            _ => format!(
                ", to {} ms or better",
                milliseconds(errors.fold(0.0, f64::max))
            ),
        };
        let text = format!(
            "… {} more; {aligned} of {} aligned{precision}",
            rows.len() - MOST,
            rows.len() - 1,
        );
        sentence(out, "  ", &text);
    }
}

/// How a host's clock was aligned.
pub(crate) fn clock_text(row: &ClockRow) -> String {
    let ranks = ranges(&mut row.ranks.clone());
    let how = match (row.ahead_ms, row.error_ms, row.drift_ppm, row.why) {
        (Some(ahead), Some(error), Some(drift), _) => format!(
            "{:.2} ms {} ±{error:.2}, drifts {drift:+.1} us/s, by {} steps' last waits",
            ahead.abs(),
            if ahead < 0.0 { "behind" } else { "ahead" },
            row.steps
        ),
        (_, _, _, Some(why)) => format!("not aligned, wall clock: {why}"),
        _ => "the others are compared with it".to_owned(),
    };
    format!("{} (rank {ranks}): {how}", row.host)
}

fn left_out(out: &mut String, job: &Job, most: usize) {
    let all = incomplete(job);
    if all.is_empty() {
        return;
    }
    line(out, "\nLEFT OUT OR INCOMPLETE");
    for text in all.iter().take(most) {
        sentence(out, "  ", text);
    }
    if all.len() > most {
        line(
            out,
            &format!("  … {} more: --full lists all", all.len() - most),
        );
    }
}

/// Files that are no part of the answer, and what is missing of others.
pub(crate) fn incomplete(job: &Job) -> Vec<String> {
    let damaged = job.recordings.iter().flat_map(|recording| {
        let missing = recording.missing.iter();
        missing.map(move |what| format!("{}: {what}", recording.file))
    });
    let files = job.left_out.iter();
    let files = files.map(|each| format!("{}: {}", each.file, each.why));
    files.chain(damaged).collect()
}
