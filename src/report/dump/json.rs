//! Dumps for machines, by the schema in docs/src/json.md.

use super::memory::memory_json;
use super::tasks::tasks_json;
use crate::analysis::dump::deadlocks::deadlocks;
use crate::analysis::dump::groups::groups;
use crate::analysis::dump::jobs::jobs;
use crate::analysis::dump::moved::{Comparison, Standstill};
use crate::analysis::dump::places::{parallel, shared};
use crate::analysis::dump::verdict::verdict;
use crate::analysis::job::parallel::Parallel;
use crate::model::dump::{Dump, DumpedFrame, DumpedProcess, DumpedThread, DumpedWait, Place};
use crate::model::nccl_ras::{Communicator, Member, RasAnswer};
use crate::model::sample::{Capture, Gil};
use crate::model::text::printable_json;
use serde_json::{Value, json};

/// Version of the schema.
pub(super) const SCHEMA: u32 = 1;

/// Several snapshots of processes of `host` as JSON, each as returned by [`render_snapshot`], and
/// what moved between them.
///
/// # Errors
/// None that a dump can cause: only numbers and strings are written.
pub fn render_snapshots(
    host: &str,
    snapshots: &[Value],
    comparison: &Comparison,
) -> Result<String, serde_json::Error> {
    let value = json!({
        "schema": SCHEMA,
        "torchspy": env!("CARGO_PKG_VERSION"),
        "host": host,
        "looks": snapshots,
        "moved": match snapshots.len() {
            0 | 1 => Value::Null,
            _ => moves(comparison),
        },
    });
    serde_json::to_string_pretty(&value).map(|text| printable_json(&text))
}

/// One snapshot as JSON.
pub fn render_snapshot(dump: &Dump) -> Value {
    let pid = |index: &usize| dump.processes.get(*index).map(|process| process.pid);
    let (mut ranks, mut awaited) = (Vec::new(), Vec::new());
    for job in jobs(dump) {
        let pid = |index: &usize| job.of.processes.get(*index).map(|process| process.pid);
        let verdict = verdict(&job.of);
        let parallel = parallel(job.of.processes.iter());
        let rank = |index: &usize| job.of.processes.get(*index)?.role.rank();
        awaited.extend(verdict.awaited().iter().filter_map(pid));
        ranks.extend(verdict.groups.iter().map(|group| json!({
            "pids": group.processes.iter().filter_map(pid).collect::<Vec<_>>(),
            "doing": group.what,
            "waits_for_ranks": group.waits_for_ranks,
            "at": group.at.as_ref().map(place),
            "step": group.step.as_ref().map(|(what, value, _)| json!({"what": what, "value": value})),
            "mesh": mesh(&parallel, group.processes.iter().filter_map(rank)),
        })));
    }
    json!({
        "wall_s": dump.wall_ns as f64 / 1e9,
        "skew_ms": dump.skew_ns.map(|skew_ns| skew_ns as f64 / 1e6),
        "stopped": dump.stopped,
        "stops_us": dump.stops_ns.iter().map(|&ns| ns as f64 / 1e3).collect::<Vec<_>>(),
        "longest_stop_us": dump.longest_stop_ns as f64 / 1e3,
        "processes": dump.processes.iter().map(process).collect::<Vec<_>>(),
        "ranks": ranks,
        "deadlocks": deadlocks(dump).iter().map(|each| json!({
            "pid": pid(&each.process), "tids": each.tids,
        })).collect::<Vec<_>>(),
        "awaited": awaited,
        "equal": groups(dump).iter().filter(|group| group.members.len() > 1).map(|group| {
            let tids = group.members.iter().filter_map(|&(process, thread)| {
                Some(dump.processes.get(process)?.threads.get(thread)?.tid)
            });
            tids.collect::<Vec<_>>()
        }).collect::<Vec<_>>(),
        "missing": dump.missing,
        "nccl_ras": dump.nccl_ras.iter().map(ras).collect::<Vec<_>>(),
        "memory": memory_json(dump),
    })
}

/// Where all of these ranks are along dimensions of the job's device mesh.
pub(super) fn mesh(parallel: &Parallel, ranks: impl Iterator<Item = u32>) -> Vec<Value> {
    let shared = shared(parallel, ranks).into_iter();
    shared
        .map(|(name, index)| json!({"dimension": name, "index": index}))
        .collect()
}

fn ras(answer: &RasAnswer) -> Value {
    let member = |member: &Member| {
        json!({
            "rank": member.rank, "host": member.host, "pid": member.pid, "here": member.is_here,
        })
    };
    let communicator = |each: &Communicator| {
        let ranks = each.ranks.iter().map(|rank| {
            let counts = rank.counts.iter();
            json!({
                "of": member(&rank.member),
                "async_error": rank.async_error,
                "counts": counts.map(|(kind, count)| json!({"kind": kind, "count": count})).collect::<Vec<_>>(),
            })
        });
        let missing = each.missing.iter().map(|rank| {
            json!({"of": member(&rank.member), "unresponsive": rank.unresponsive, "dead": rank.dead})
        });
        let unnamed = each.unnamed.iter().map(|ranks| {
            json!({"kind": ranks.collective, "count": ranks.launched, "ranks": ranks.ranks})
        });
        json!({
            "hash": each.hash, "size": each.size,
            "ranks": ranks.collect::<Vec<_>>(), "unnamed": unnamed.collect::<Vec<_>>(),
            "missing": missing.collect::<Vec<_>>(), "unnamed_missing": each.unnamed_missing,
        })
    };
    let ras = answer.ras.as_ref();
    json!({
        "address": answer.address,
        "error": answer.ras.as_ref().err(),
        "nccl_version": ras.ok().map(|ras| &ras.nccl_version),
        "job": ras.ok().map(|ras| ras.job),
        "may_be_others": ras.ok().map(|ras| ras.may_be_others),
        "communicators": ras.ok().map(|ras| {
            ras.communicators.iter().map(communicator).collect::<Vec<_>>()
        }),
    })
}

fn process(process: &DumpedProcess) -> Value {
    json!({
        "pid": process.pid,
        "role": process.role.name(),
        "rank": process.role.rank(),
        "world_size": process.role.world_size(),
        "worker": process.role.worker(),
        "trainer_pid": process.trainer_pid,
        "job": process.job.as_ref().map(|job| json!({
            "ids": job.ids, "address": job.address,
        })),
        "groups": text(&process.groups),
        "command": process.command,
        "python": text(&process.python),
        "torch": text(&process.torch),
        "note": text(&process.note),
        "gil_holder": process.gil_holder,
        "progress": process.progress.iter().map(|each| json!({
            "what": each.what, "value": each.value, "source": each.source,
        })).collect::<Vec<_>>(),
        "threads": process.threads.iter().map(thread).collect::<Vec<_>>(),
        "tasks": tasks_json(process),
    })
}

fn text(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn thread(thread: &DumpedThread) -> Value {
    json!({
        "tid": thread.tid,
        "name": thread.name,
        "python_name": thread.python_name,
        "trains": thread.trains,
        "state": thread.state.name(),
        "capture": match thread.capture {
            Capture::Stopped => "stopped",
            Capture::Asleep | Capture::Reused => "asleep",
            Capture::Unstopped => "unstopped",
            Capture::Sampled => "sampled",
            Capture::NotCaptured => "unread",
        },
        "syscall": thread.syscall,
        "gil": match thread.gil {
            Gil::Held => Some(true),
            Gil::NotHeld => Some(false),
            Gil::Unknown => None,
        },
        "waits_for": thread.wait.as_ref().map(wait),
        "module": thread.module,
        "at": thread.at.as_ref().map(place),
        "frames": thread.frames.iter().map(frame).collect::<Vec<_>>(),
        "partial": thread.partial,
        "moved_frames": thread.moved_frames,
        "slices": thread.slices,
        "wchan": thread.wchan,
        "kernel_stack": thread.kernel_stack,
    })
}

fn wait(wait: &DumpedWait) -> Value {
    json!({
        "kind": wait.kind.name(),
        "what": wait.what,
        "lock": wait.lock.as_ref().map(|lock| json!({
            "kind": lock.kind, "address": lock.address, "name": lock.name, "timed": lock.is_timed,
        })),
        "owner": wait.owner.as_ref().map(|owner| json!({
            "tid": owner.tid, "known_by": owner.by,
        })),
    })
}

pub(super) fn place(place: &Place) -> Value {
    json!({"function": place.function, "file": place.file, "line": place.line})
}

fn frame(frame: &DumpedFrame) -> Value {
    json!({
        "function": frame.name,
        "file": frame.file,
        "line": (frame.line != 0).then_some(frame.line),
        "python": frame.is_python,
        "kind": frame.kind.name(),
        "guess": frame.is_guess,
        "module": frame.module,
        "locals": frame.locals.as_ref().map(|locals| locals.iter().map(|local| json!({
            "name": local.name, "value": local.value,
        })).collect::<Vec<_>>()),
    })
}

fn moves(comparison: &Comparison) -> Value {
    let found = comparison.moved();
    let pid = |index: usize| {
        let first = comparison.first()?;
        Some(first.processes.get(index)?.pid)
    };
    json!({
        "hang": match found.standstill() {
            Standstill::Hang => Some(true),
            Standstill::SamePlace | Standstill::TooShort => None,
            Standstill::No => Some(false),
        },
        "seconds": found.length_ns as f64 / 1e9,
        "ended": found.ended.iter().filter_map(|&index| pid(index)).collect::<Vec<_>>(),
        "threads": found.threads.iter().map(|each| json!({
            "pid": pid(each.process), "tid": each.tid, "trains": each.trains, "moves": each.moves, "ran": each.ran,
        })).collect::<Vec<_>>(),
        "progress": found.counters.iter().map(|each| json!({
            "pid": pid(each.process), "what": each.what, "first": each.first, "last": each.last,
        })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::is_unprintable;

    #[test]
    fn nothing_that_acts_on_a_terminal_is_left_and_all_means_the_same() {
        let value = json!({"name": "a\u{1b}[31m\u{9b}31m\u{7f}\u{202e}\u{e0041}é\n"});
        let text = printable_json(&serde_json::to_string_pretty(&value).expect("strings"));
        assert!(
            !text
                .chars()
                .any(|each| each != '\n' && is_unprintable(each)),
            "{text}"
        );
        assert!(text.contains("\\u009b"), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), value);
    }
}
