//! A job's dump for people: whom the ranks wait for, how they differ, and where their stacks part.
//! It is as short for a thousand ranks as for eight.

use super::head::{mesh, place, thread_words, words};
use super::job_names::{job_list, job_title};
use super::ras::ras;
use crate::analysis::dump::deadlocks::deadlocks;
use crate::analysis::dump::job::{HostAnswer, Job, JobRank, Unanswered, WaitedFor};
use crate::analysis::dump::jobs::jobs_of;
use crate::analysis::dump::tree::{Label, Node, tree};
use crate::model::dump::Place;
use crate::model::text::printable;
use crate::report::label::counted;
use crate::report::label::ranges;
use std::fmt::Write as _;
use std::time::Duration;

/// Groups of ranks that are listed: the smallest, and the largest.
const GROUPS: usize = 10;
/// Ranks of a group whose reasons are given, and ranks that are named one by one.
const NAMED: usize = 4;
/// Lines of the tree.
const TREE: usize = 48;
/// Reasons of machines that did not answer, and what was not read.
const REASONS: usize = 8;
/// The longest list of ranks or names, characters.
const LIST: usize = 60;

/// The answers of a job's machines as text, and those of the others.
pub fn render_job(answers: &[HostAnswer], unanswered: &[Unanswered], took: Duration) -> String {
    let mut out = String::new();
    let jobs = jobs_of(answers);
    if jobs.len() > 1 {
        let ranks = |answers: &[HostAnswer]| Job::new(answers).ranks.len();
        out.push_str(&job_list(
            jobs.iter().map(|each| (&each.name, ranks(&each.of))),
        ));
    }
    for each in &jobs {
        out.push_str(&job_title(&each.name));
        one_job(&mut out, &each.of, unanswered, took);
    }
    not_read(&mut out, answers);
    out
}

fn one_job(out: &mut String, answers: &[HostAnswer], unanswered: &[Unanswered], took: Duration) {
    let job = Job::new(answers);
    machines(out, &job, answers, unanswered, took);
    waited_for(out, &job);
    circles(out, answers);
    groups(out, &job);
    nccl(out, &job, answers);
    stacks(out, &job);
}

fn machines(
    out: &mut String,
    job: &Job<'_>,
    answers: &[HostAnswer],
    unanswered: &[Unanswered],
    took: Duration,
) {
    let of = match job.world_size {
        0 => String::new(),
        size if size as usize == job.ranks.len() => String::new(),
        size => format!(" of {size}"),
    };
    let _ = writeln!(
        out,
        "{}{of} on {}, in {:.1} s",
        counted(job.ranks.len() as u64, "rank"),
        counted(answers.len() as u64, "machine"),
        took.as_secs_f64()
    );
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for each in unanswered {
        match reasons.iter_mut().find(|(why, _)| *why == each.why) {
            Some((_, hosts)) => hosts.push(&each.host),
            None => reasons.push((&each.why, vec![&each.host])),
        }
    }
    for (why, hosts) in reasons.iter().take(REASONS) {
        let _ = writeln!(out, "no answer from {}: {}", names(hosts), printable(why));
    }
    if reasons.len() > REASONS {
        let more: usize = reasons
            .iter()
            .skip(REASONS)
            .map(|(_, hosts)| hosts.len())
            .sum();
        let _ = writeln!(out, "no answer from {more} more");
    }
    if !job.not_found.is_empty() {
        let _ = writeln!(out, "not found: {}", numbers(&job.not_found));
    }
    if !job.twice.is_empty() {
        let _ = writeln!(
            out,
            "found more than once: {} (several jobs on these machines? --job ID names one)",
            numbers(&job.twice)
        );
    }
    if !job.without_rank.is_empty() {
        let _ = writeln!(
            out,
            "{} without a rank: {}",
            counted(job.without_rank.len() as u64, "trainer"),
            pids(job.without_rank.iter())
        );
    }
}

/// `pid 7 on node1, pid 9 on node2`; a long list is cut.
fn pids<'r>(ranks: impl Iterator<Item = &'r JobRank<'r>>) -> String {
    let all = ranks.map(|rank| format!("pid {} on {}", rank.process.pid, rank.answer.host));
    let all: Vec<String> = all.collect();
    names(&all.iter().map(String::as_str).collect::<Vec<_>>())
}

/// `a, b, c and 4 more`.
fn names(names: &[&str]) -> String {
    let mut out = String::new();
    for (index, name) in names.iter().enumerate() {
        if index > 0 && out.len() + name.len() > LIST {
            let _ = write!(out, " and {} more", names.len() - index);
            return out;
        }
        let comma = if index > 0 { ", " } else { "" };
        let _ = write!(out, "{comma}{}", printable(name));
    }
    out
}

/// `rank 3`, `ranks 0-511, 513-1023`; a long list is cut.
fn numbers(all: &[u32]) -> String {
    let mut distinct = all.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let several = if distinct.len() > 1 { "s" } else { "" };
    format!("rank{several} {}", cut(&ranges(&mut distinct), all.len()))
}

/// A list of ranges, cut at a comma.
fn cut(list: &str, count: usize) -> String {
    match list.get(..LIST).and_then(|start| start.rfind(',')) {
        Some(end) if list.len() > LIST => {
            let start = list.get(..end).unwrap_or_default();
            format!("{start}, … ({count} in all)")
        }
        _ => list.to_owned(),
    }
}

/// The ranks with these indices; those without a number by machine and pid.
fn rank_list(job: &Job<'_>, indices: &[usize]) -> String {
    let ranks = || indices.iter().filter_map(|&index| job.ranks.get(index));
    let known: Vec<u32> = ranks().filter_map(JobRank::number).collect();
    let mut others = ranks().filter(|rank| rank.number().is_none()).peekable();
    let mut parts = Vec::new();
    if !known.is_empty() {
        parts.push(numbers(&known));
    }
    if others.peek().is_some() {
        parts.push(pids(others));
    }
    parts.join(", ")
}

/// The ranks that no machine has, and where they are in the device mesh.
fn not_found(job: &Job<'_>) -> String {
    let list = numbers(&job.not_found);
    match mesh(&job.parallel, job.not_found.iter().copied()).as_str() {
        "" => list,
        mesh => format!("{list} ({mesh})"),
    }
}

fn verb(count: usize, one: &'static str, several: &'static str) -> &'static str {
    if count == 1 { one } else { several }
}

fn waited_for(out: &mut String, job: &Job<'_>) {
    let waiting = |is: &dyn Fn(bool) -> bool| -> Vec<usize> {
        let groups = job.groups.iter().filter(|group| is(group.waits_for_ranks));
        groups.flat_map(|group| group.processes.clone()).collect()
    };
    let in_collective = waiting(&|waits| waits);
    let _ = match &job.waited_for {
        WaitedFor::Nobody => return,
        WaitedFor::Ranks(ranks) => writeln!(
            out,
            "\n{} {} in a collective that {} {} not in",
            rank_list(job, &in_collective),
            verb(in_collective.len(), "waits", "wait"),
            rank_list(job, ranks),
            verb(ranks.len(), "is", "are"),
        ),
        WaitedFor::NotFound => writeln!(
            out,
            "\nall ranks that were found wait in collectives: for {}, which {} ended, or {} on a machine that was not \
             asked or did not answer",
            not_found(job),
            verb(job.not_found.len(), "has", "have"),
            verb(job.not_found.len(), "is", "are"),
        ),
        WaitedFor::Different => writeln!(
            out,
            "\nall ranks wait in collectives, but in different ones, or from different lines: each waits for the others"
        ),
        WaitedFor::BehindGpus(ranks) => writeln!(
            out,
            "\nall ranks but {} wait for their GPUs, whose work may be a collective",
            rank_list(job, ranks)
        ),
    };
    for rank in job.culprits().iter().take(NAMED) {
        if let Some(rank) = job.ranks.get(*rank) {
            culprit(out, job, rank);
        }
    }
    if job.culprits().len() > NAMED {
        let _ = writeln!(out, "  and {} more", job.culprits().len() - NAMED);
    }
}

fn culprit(out: &mut String, job: &Job<'_>, rank: &JobRank<'_>) {
    let mesh = mesh(&job.parallel, rank.number().into_iter());
    let who = match (rank.number(), mesh.as_str()) {
        (Some(number), "") => format!("rank {number}, "),
        (Some(number), mesh) => format!("rank {number} ({mesh}), "),
        (None, _) => String::new(),
    };
    let _ = write!(
        out,
        "  {who}pid {} on {}",
        rank.process.pid,
        printable(&rank.answer.host)
    );
    if let Some(thread) = rank.thread() {
        let what = crate::analysis::dump::verdict::doing(thread);
        let at = thread.at.as_ref().map(|at| format!(" at {}", place(at)));
        let _ = write!(out, ": {}{}", printable(&what), at.unwrap_or_default());
    }
    out.push('\n');
    for line in reasons(rank) {
        let _ = writeln!(out, "    {line}");
    }
}

/// What a rank waits for, followed one step further.
fn reasons(rank: &JobRank<'_>) -> Vec<String> {
    let all = rank.because().into_iter();
    all.map(|because| {
        let processes = &rank.answer.dump.processes;
        let of = processes.iter().find(|process| process.pid == because.pid);
        let thread = of.map_or_else(
            || format!("pid {}", because.pid),
            |process| thread_words(process, because.tid),
        );
        let doing = match because.doing.is_empty() {
            true => String::new(),
            false => format!(", which {}", printable(&because.doing)),
        };
        format!("{} {thread}{doing}", because.words)
    })
    .collect()
}

fn circles(out: &mut String, answers: &[HostAnswer]) {
    let all = answers.iter().flat_map(|answer| {
        let found = deadlocks(&answer.dump).into_iter();
        found.map(move |deadlock| (answer, deadlock))
    });
    for (number, (answer, deadlock)) in all.enumerate() {
        if number == NAMED {
            out.push_str("and more deadlocks\n");
            break;
        }
        let Some(process) = answer.dump.processes.get(deadlock.process) else {
            continue;
        };
        let threads: Vec<String> = deadlock
            .tids
            .iter()
            .map(|&tid| thread_words(process, tid))
            .collect();
        let _ = writeln!(
            out,
            "\nDEADLOCK of {} in pid {} on {}: {}",
            counted(threads.len() as u64, "thread"),
            process.pid,
            printable(&answer.host),
            threads.join(", ")
        );
    }
}

fn groups(out: &mut String, job: &Job<'_>) {
    if job.groups.is_empty() {
        out.push_str("\nno trainer was found on these machines\n");
        return;
    }
    out.push_str("\nRANKS\n");
    let count = job.groups.len();
    // The last is the largest.
    let is_shown = |index: usize| index + 1 < GROUPS || index + 1 == count;
    let most = job.groups.iter().map(|group| group.processes.len()).max();
    for (index, group) in job.groups.iter().enumerate() {
        if !is_shown(index) {
            continue;
        }
        if index + 1 == count && count > GROUPS {
            let hidden = job.groups.get(GROUPS - 1..count - 1).unwrap_or_default();
            let ranks: usize = hidden.iter().map(|group| group.processes.len()).sum();
            let _ = writeln!(
                out,
                "  {} more, in {}",
                counted(ranks as u64, "rank"),
                counted(hidden.len() as u64, "group")
            );
        }
        let size = group.processes.len();
        let is_odd = count > 1 && Some(size) < most;
        let differs = match is_odd {
            true => verb(size, " differs", " differ"),
            false => "",
        };
        let ranks = || group.processes.iter().filter_map(|&at| job.ranks.get(at));
        let mut facts = vec![mesh(&job.parallel, ranks().filter_map(JobRank::number))];
        if let (1, Some(rank)) = (size, ranks().next()) {
            facts.push(format!("on {}", printable(&rank.answer.host)));
        }
        facts.retain(|fact| !fact.is_empty());
        let facts = match facts.is_empty() {
            true => String::new(),
            false => format!(" ({})", facts.join("; ")),
        };
        let who = rank_list(job, &group.processes);
        let _ = writeln!(out, "  {who}{facts}{differs}: {}", words(group));
        let is_named = |rank: &usize| job.culprits().iter().take(NAMED).any(|each| each == rank);
        let unnamed = group.processes.iter().filter(|rank| !is_named(rank));
        for rank in unnamed.take(NAMED).filter_map(|&at| job.ranks.get(at)) {
            for line in reasons(rank) {
                let _ = writeln!(out, "    {line}");
            }
        }
    }
}

/// RAS sees the whole job from any of its processes: what the first machine knows is that of all.
fn nccl(out: &mut String, job: &Job<'_>, answers: &[HostAnswer]) {
    // One that certainly is this job's before one that may be another's.
    let doubt = |answer: &&HostAnswer| {
        let ras = answer.dump.nccl_ras.iter();
        ras.map(|each| {
            each.ras
                .as_ref()
                .map_or(2, |ras| u8::from(ras.may_be_others))
        })
        .min()
    };
    let asked = answers.iter().filter(|answer| doubt(answer).is_some());
    let Some(answer) = asked.min_by_key(doubt) else {
        return;
    };
    ras(out, &answer.dump.nccl_ras, |member, size| {
        if member.is_here {
            let processes = &answer.dump.processes;
            return processes.iter().find(|each| each.pid == member.pid);
        }
        // Ranks of a communicator of all ranks have the job's numbers.
        let of_all = size == job.world_size;
        let rank = job
            .ranks
            .iter()
            .find(|rank| rank.number() == Some(member.rank))?;
        // NCCL 2.24 does not say whose missing ranks are.
        let is_it = member.pid == 0 || rank.process.pid == member.pid;
        (of_all && is_it).then_some(rank.process)
    });
}

fn stacks(out: &mut String, job: &Job<'_>) {
    let tree = tree(job.ranks.iter().map(JobRank::thread));
    if tree.children.is_empty() {
        return;
    }
    out.push_str(
        "\nSTACKS of training threads: ranks that are equal so far, then where they part\n",
    );
    let mut lines = 0;
    for child in &tree.children {
        branch(out, job, child, 1, &mut lines);
    }
    if lines > TREE {
        let _ = writeln!(out, "  … {} more lines (--json has all)", lines - TREE);
    }
}

/// A node and what follows without a branch in one line, its first frame and its last; then its
/// branches.
fn branch(out: &mut String, job: &Job<'_>, node: &Node, depth: usize, lines: &mut usize) {
    let mut chain = vec![node];
    let mut last = node;
    while let [only] = &last.children[..] {
        chain.push(only);
        last = only;
    }
    *lines += 1;
    if *lines <= TREE {
        let shown: Vec<String> = match &chain[..] {
            [first, .., caller, end] if chain.len() > 4 => vec![
                label(first),
                format!("… {} …", chain.len() - 3),
                label(caller),
                label(end),
            ],
            all => all.iter().map(|node| label(node)).collect(),
        };
        let indent = "  ".repeat(depth.min(16));
        let _ = writeln!(
            out,
            "{indent}{}: {}",
            rank_list(job, &node.stacks),
            shown.join(" > ")
        );
    }
    for child in &last.children {
        branch(out, job, child, depth + 1, lines);
    }
}

fn label(node: &Node) -> String {
    match &node.label {
        Label::Root => String::new(),
        Label::Doing(words) => printable(words).into_owned(),
        Label::Frame {
            function,
            file,
            line,
        } => {
            let at = Place {
                function: String::new(),
                file: file.clone(),
                line: *line,
            };
            match line {
                0 => printable(function).into_owned(),
                _ => format!("{} ({})", printable(function), place(&at)),
            }
        }
    }
}

fn not_read(out: &mut String, answers: &[HostAnswer]) {
    let all = answers.iter().flat_map(|answer| {
        let missing = answer.dump.missing.iter();
        missing.map(move |words| (&answer.host, words))
    });
    for (number, (host, words)) in all.clone().take(REASONS).enumerate() {
        if number == 0 {
            out.push_str("\nNOT READ\n");
        }
        let _ = writeln!(out, "  {}: {}", printable(host), printable(words));
    }
    let count = all.count();
    if count > REASONS {
        let _ = writeln!(out, "  and {} more", count - REASONS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_short() {
        assert_eq!(numbers(&[3]), "rank 3");
        assert_eq!(numbers(&[0, 1, 2, 4]), "ranks 0-2, 4");
        let even: Vec<u32> = (0..1000).step_by(2).collect();
        let shown = numbers(&even);
        assert!(
            shown.len() < 90 && shown.ends_with("… (500 in all)"),
            "{shown}"
        );
        let hosts: Vec<String> = (0..100).map(|number| format!("node{number:03}")).collect();
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        assert!(
            names(&hosts).ends_with("node006 and 93 more"),
            "{}",
            names(&hosts)
        );
    }
}
