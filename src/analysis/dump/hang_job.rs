//! Whether a job on several machines hangs, by two dumps of each.
//!
//! Of other machines there are no counters of the time in between, as [`super::hang`] has them of
//! this one: what moved or ran is what differs in the second dump.

use super::hang::{Judgement, Marks, Since, judge_all, trainers};
use super::job::{HostAnswer, Unanswered};
use crate::model::dump::{Dump, DumpedThread};
use crate::model::sample::ThreadState;
use crate::model::wait::WaitKind;
use rustc_hash::{FxHashMap, FxHashSet};

/// CPython's Lib/subprocess.py, in which a program reads the output of a child.
const OF_CHILDREN: &str = "/subprocess.py";

/// Ranks of all machines.
pub fn ranks(answers: &[HostAnswer]) -> FxHashSet<u32> {
    let each = answers.iter().flat_map(|answer| trainers(&answer.dump));
    each.filter_map(|process| process.role.rank()).collect()
}

/// Judges a job by two looks, between which none of its training threads may have moved. `seen`:
/// ranks that were seen at any time.
pub fn judge_job(
    before: &[HostAnswer],
    now: &[HostAnswer],
    unanswered: &[Unanswered],
    seen: &FxHashSet<u32>,
) -> Judgement {
    let mut looks = Vec::with_capacity(now.len());
    for answer in now {
        let earlier = before.iter().find(|each| each.host == answer.host);
        let Some(earlier) = earlier.filter(|each| is_still(&each.dump, &answer.dump)) else {
            return Judgement::No(format!("ranks on {} move", answer.host));
        };
        looks.push((&answer.dump, since(&earlier.dump, &answer.dump, seen)));
    }
    let machines: Vec<(&Dump, &Since)> = looks.iter().map(|(dump, since)| (*dump, since)).collect();
    match (judge_all(&machines), unanswered.first()) {
        // What waits for a lock or a worker hangs, whatever others do.
        (Judgement::Elsewhere(_), Some(silent)) => Judgement::No(format!(
            "{} did not answer, and what its ranks do is not known: {}",
            silent.host, silent.why
        )),
        (judgement, _) => judgement,
    }
}

/// Whether no training thread is elsewhere than before. Machines without a trainer are still.
fn is_still(before: &Dump, now: &Dump) -> bool {
    Marks::of(before) == Marks::of(now)
}

fn since(before: &Dump, now: &Dump, seen: &FxHashSet<u32>) -> Since {
    let earlier: FxHashMap<(i32, i32), &DumpedThread> = threads(before).collect();
    let mut since = Since {
        seen: seen.clone(),
        ..Since::default()
    };
    for (of, thread) in threads(now) {
        let wait = thread.wait.as_ref().map(|wait| wait.kind);
        let then = earlier.get(&of);
        // torchspy before 0.2 does not report them.
        let ran = then.is_none_or(|then| then.slices != thread.slices || thread.slices.is_none());
        if ran {
            since.ran.insert(of);
        }
        if then.is_some_and(|then| then.state == ThreadState::Running)
            && thread.state == ThreadState::Running
        {
            since.busy.insert(of);
        }
        // It came back to the same lock: each of its waits ends.
        if ran && wait == Some(WaitKind::Lock) {
            since.timed.insert(of);
        }
        let mut files = thread.frames.iter().filter(|frame| frame.is_python);
        if files.any(|frame| frame.file.ends_with(OF_CHILDREN)) {
            since.from_child.insert(of);
        }
    }
    since
}

fn threads(dump: &Dump) -> impl Iterator<Item = ((i32, i32), &DumpedThread)> {
    dump.processes.iter().flat_map(|process| {
        let all = process.threads.iter();
        all.map(move |thread| ((process.pid, thread.tid), thread))
    })
}

#[cfg(test)]
#[path = "hang_job_tests.rs"]
mod tests;
