//! A job's dump for machines, by the schema in docs/src/json.md: the answer of each machine, and
//! the comparison of all ranks.

use super::json::{SCHEMA, mesh, place, render_snapshot};
use crate::analysis::dump::job::{HostAnswer, Job, JobRank, Unanswered, WaitedFor};
use crate::analysis::dump::jobs::{JobName, jobs_of};
use crate::analysis::dump::tree::{Label, Node, tree};
use crate::model::text::printable_json;
use serde_json::{Value, json};
use std::time::Duration;

/// The answers of a job's machines as JSON.
///
/// # Errors
/// None that a dump can cause: only numbers and strings are written.
pub fn render_job_json(
    answers: &[HostAnswer],
    unanswered: &[Unanswered],
    took: Duration,
) -> Result<String, serde_json::Error> {
    let machines = answers.iter().map(|answer| {
        json!({"host": answer.host, "error": null, "looks": [render_snapshot(&answer.dump)]})
    });
    let silent = unanswered
        .iter()
        .map(|each| json!({"host": each.host, "error": each.why, "looks": null}));
    let jobs = jobs_of(answers);
    let mut compared = jobs.iter().map(|each| comparison(&each.name, &each.of));
    let mut value = compared.next().unwrap_or_default();
    let others: Vec<Value> = compared.collect();
    if let Some(keys) = value.as_object_mut() {
        keys.extend([
            ("schema".to_owned(), json!(SCHEMA)),
            ("torchspy".to_owned(), json!(env!("CARGO_PKG_VERSION"))),
            ("seconds".to_owned(), json!(took.as_secs_f64())),
            ("hosts".to_owned(), machines.chain(silent).collect()),
            ("other_jobs".to_owned(), json!(others)),
        ]);
    }
    serde_json::to_string(&value).map(|text| printable_json(&text))
}

/// The comparison of the ranks of one job.
fn comparison(name: &JobName, answers: &[HostAnswer]) -> Value {
    let job = Job::new(answers);
    let one = |rank: &JobRank<'_>| json!({"rank": rank.number(), "host": rank.answer.host, "pid": rank.process.pid});
    let of = |index: &usize| job.ranks.get(*index).map(one);
    let number = |index: &usize| job.ranks.get(*index)?.number();
    let list = |indices: &[usize]| indices.iter().filter_map(of).collect::<Vec<_>>();
    let because = |index: &usize| {
        let rank = job.ranks.get(*index);
        let all = rank.map(|rank| rank.because()).unwrap_or_default();
        all.into_iter().map(move |because| {
            json!({
                "rank": rank.and_then(|rank| rank.number()), "host": rank.map(|rank| &rank.answer.host),
                "words": because.words, "pid": because.pid, "tid": because.tid, "doing": because.doing,
            })
        })
    };
    let mut rows = Vec::new();
    let stacks = tree(job.ranks.iter().map(|rank| rank.thread()));
    nodes(&stacks, None, &list, &mut rows);
    json!({
        "job": match name {
            JobName::Id(name) | JobName::Address(name) => Some(name),
            JobName::Only | JobName::Unknown | JobName::NoJob => None,
        },
        "world_size": match job.world_size { 0 => None, size => Some(size) },
        "ranks": job.groups.iter().map(|group| json!({
            "ranks": list(&group.processes),
            "doing": group.what,
            "waits_for_ranks": group.waits_for_ranks,
            "at": group.at.as_ref().map(place),
            "step": group.step.as_ref().map(|(what, low, high)| json!({"what": what, "low": low, "high": high})),
            "mesh": mesh(&job.parallel, group.processes.iter().filter_map(number)),
            "because": group.processes.iter().flat_map(because).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "waited_for": match &job.waited_for {
            WaitedFor::Ranks(_) => Some("ranks"),
            WaitedFor::NotFound => Some("not_found"),
            WaitedFor::Different => Some("different_collectives"),
            WaitedFor::BehindGpus(_) => Some("behind_gpus"),
            WaitedFor::Nobody => None,
        },
        "awaited": list(job.culprits()),
        "not_found": job.not_found,
        "twice": job.twice,
        "without_rank": job.without_rank.iter().map(one).collect::<Vec<_>>(),
        "tree": rows,
    })
}

/// The nodes below `of`, each before those below it; a nested form would be too deep for parsers.
fn nodes(
    of: &Node,
    parent: Option<usize>,
    list: &dyn Fn(&[usize]) -> Vec<Value>,
    rows: &mut Vec<Value>,
) {
    for child in &of.children {
        let (function, file, line, doing) = match &child.label {
            Label::Root => (None, None, None, None),
            Label::Doing(words) => (None, None, None, Some(words)),
            Label::Frame {
                function,
                file,
                line,
            } => (Some(function), Some(file), Some(line), None),
        };
        rows.push(json!({
            "parent": parent, "function": function, "file": file, "line": line, "doing": doing,
            "ranks": list(&child.stacks),
        }));
        nodes(child, Some(rows.len() - 1), list, rows);
    }
}
