//! Compares ranks: which of them are at which call site, outliers first.

use crate::model::dump::{
    Dump, DumpedProcess, DumpedThread, DumpedWait, Place, Progress, THREAD_END,
};
use crate::model::profile::Role;
use crate::model::sample::ThreadState;
use crate::model::wait::WaitKind;
use rustc_hash::FxHashMap;

/// Ranks whose training threads are at the same call site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankGroup {
    /// Indices of their processes in the dump.
    pub processes: Vec<usize>,
    /// What they do or wait for: `all_reduce`, `running`.
    pub what: String,
    /// Whether they wait for other ranks.
    pub waits_for_ranks: bool,
    /// The nearest line of the user's own code.
    pub at: Option<Place>,
    /// The lowest and the highest step, where steps are known.
    pub step: Option<(String, u64, u64)>,
}

impl RankGroup {
    fn add(&mut self, other: RankGroup) {
        self.processes.extend(other.processes);
        if let (Some((_, low, high)), Some((_, more_low, more_high))) = (&mut self.step, other.step)
        {
            *low = more_low.min(*low);
            *high = more_high.max(*high);
        }
    }
}

/// A comparison of ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Ranks by call site: those that are not with the majority come first, and those that wait for
    /// other ranks last.
    pub groups: Vec<RankGroup>,
}

impl Verdict {
    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.groups.iter().map(|group| group.processes.len()).sum()
    }

    /// The same with groups that differ only in their steps as one.
    pub fn without_steps(self) -> Self {
        let mut groups: Vec<RankGroup> = Vec::new();
        let mut known: FxHashMap<_, usize> = FxHashMap::default();
        for group in self.groups {
            let kind = group.step.as_ref().map(|(what, _, _)| what.clone());
            let key = (group.what.clone(), group.at.clone(), kind);
            let index = *known.entry(key).or_insert(groups.len());
            match groups.get_mut(index) {
                Some(same) => same.add(group),
                None => groups.push(group),
            }
        }
        Self { groups }.in_order()
    }

    fn in_order(mut self) -> Self {
        let most = self.groups.iter().map(|group| group.processes.len()).max();
        self.groups.sort_by_key(|group| match most {
            Some(1) => (0, group.waits_for_ranks),
            _ => (group.processes.len(), group.waits_for_ranks),
        });
        self
    }

    /// Processes that others wait for: those that are in no collective while some are.
    pub fn awaited(&self) -> Vec<usize> {
        let some_wait = self.groups.iter().any(|group| group.waits_for_ranks);
        let others = self.groups.iter().filter(|group| !group.waits_for_ranks);
        match some_wait {
            true => others.flat_map(|group| group.processes.clone()).collect(),
            false => Vec::new(),
        }
    }
}

pub fn training_thread(process: &DumpedProcess) -> Option<&DumpedThread> {
    process.threads.iter().find(|thread| thread.trains)
}

/// The lock that a wait is for: `threading.Lock `self.lock``, `the end of thread "loader"`.
pub fn lock_words(wait: &DumpedWait) -> String {
    match &wait.lock {
        Some(lock) if lock.kind == THREAD_END => match &lock.name {
            Some(name) => format!("the end of thread \"{name}\""),
            None => "the end of a thread".to_owned(),
        },
        Some(lock) => match &lock.name {
            Some(name) => format!("{} `{name}`", lock.kind),
            None => format!("a {}", lock.kind),
        },
        None => wait.what.clone(),
    }
}

/// Whether a wait is for the end of a thread, which is then its owner.
pub fn is_for_thread(wait: &DumpedWait) -> bool {
    let lock = wait.lock.as_ref();
    lock.is_some_and(|lock| lock.kind == THREAD_END)
}

/// What a thread does, in a few words.
pub fn doing(thread: &DumpedThread) -> String {
    // Whatever it waits for, it does not continue by itself.
    if thread.state == ThreadState::Stopped {
        return "is stopped (SIGSTOP or a debugger)".to_owned();
    }
    match &thread.wait {
        Some(wait) if wait.kind == WaitKind::Gil => "waits for the GIL".to_owned(),
        Some(wait) if wait.kind == WaitKind::Input => format!("waits for the {}", wait.what),
        Some(wait) if wait.what.is_empty() => format!("waits: {}", wait.kind.name()),
        // No frame names the collective.
        Some(wait) if wait.kind == WaitKind::Collective && wait.what == "wait" => {
            "waits for other ranks".to_owned()
        }
        Some(wait) if wait.kind == WaitKind::Collective => wait.what.clone(),
        Some(wait) if wait.kind == WaitKind::Lock && wait.lock.is_some() => {
            format!("waits for {}", lock_words(wait))
        }
        Some(wait) => format!("waits: {}", wait.what),
        None => match thread.state {
            ThreadState::Running => "runs".to_owned(),
            ThreadState::Sleeping => match &thread.syscall {
                Some(call) => format!("sleeps in {call}"),
                None => "sleeps".to_owned(),
            },
            ThreadState::Uninterruptible => "is in uninterruptible sleep (D)".to_owned(),
            ThreadState::Stopped | ThreadState::Unknown => "state not known".to_owned(),
        },
    }
}

/// The most precise progress counter of a process.
pub fn best_step(process: &DumpedProcess) -> Option<&Progress> {
    let by_name = |name: &str| process.progress.iter().find(|each| each.what == name);
    ["step", "batch"].into_iter().find_map(by_name).or_else(|| {
        let mut variables = process.progress.iter();
        variables.find(|each| each.what != "parameter version" && each.what != "epoch")
    })
}

/// Compares the ranks of a dump; empty if there are fewer than two.
pub fn verdict(dump: &Dump) -> Verdict {
    let processes: Vec<&DumpedProcess> = dump.processes.iter().collect();
    match compare(&processes) {
        compared if compared.ranks() < 2 => Verdict::default(),
        compared => compared,
    }
}

/// Whether a process is one of the ranks that are compared: where some have numbers, others are no
/// ranks of that job.
pub fn is_rank(process: &DumpedProcess, some_have_numbers: bool) -> bool {
    let is_trainer = matches!(process.role, Role::Trainer { .. });
    is_trainer && (process.role.rank().is_some() || !some_have_numbers)
}

/// Compares those of `processes` that are ranks. Groups have indices of that slice.
pub fn compare(processes: &[&DumpedProcess]) -> Verdict {
    let some_have_numbers = processes.iter().any(|each| each.role.rank().is_some());
    let mut groups: Vec<RankGroup> = Vec::new();
    let mut known: FxHashMap<_, usize> = FxHashMap::default();
    for (index, process) in processes.iter().enumerate() {
        if !is_rank(process, some_have_numbers) {
            continue;
        }
        let thread = training_thread(process);
        let what = thread.map_or_else(|| "no Python thread was read".to_owned(), doing);
        let at = thread.and_then(|thread| thread.at.clone());
        let step = best_step(process).map(|step| (step.what.clone(), step.value));
        let group = *known
            .entry((what.clone(), at.clone(), step.clone()))
            .or_insert(groups.len());
        match groups.get_mut(group) {
            Some(group) => group.processes.push(index),
            None => groups.push(RankGroup {
                processes: vec![index],
                waits_for_ranks: thread
                    .filter(|thread| thread.state != ThreadState::Stopped)
                    .and_then(|thread| thread.wait.as_ref())
                    .is_some_and(|wait| wait.kind == WaitKind::Collective),
                what,
                at,
                step: step.map(|(what, value)| (what, value, value)),
            }),
        }
    }
    Verdict { groups }.in_order()
}

/// Where a DataLoader's worker waits for the next index (torch 2.15).
const WORKER_LOOP: (&str, &str) = ("torch/utils/data/_utils/worker.py", "_worker_loop");

/// Whether a thread is a DataLoader's worker that has made all batches it was asked for.
pub fn is_idle_worker(thread: &DumpedThread) -> bool {
    let (file, function) = WORKER_LOOP;
    let is_loop = |at: &Place| at.file.ends_with(file) && at.function == function;
    thread.wait.is_some() && thread.at.as_ref().is_some_and(is_loop)
}

/// The cause of a training thread's wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Because {
    /// The relation: `the lock is held by`.
    pub words: &'static str,
    /// The process of the thread that causes it.
    pub pid: i32,
    /// Tid of that thread.
    pub tid: i32,
    /// What that thread does.
    pub doing: String,
}

/// What the training thread of `process` waits for, followed one step further: the holder of the
/// lock, or the worker that does not deliver.
pub fn because(dump: &Dump, process: &DumpedProcess) -> Vec<Because> {
    let Some(wait) = training_thread(process).and_then(|thread| thread.wait.as_ref()) else {
        return Vec::new();
    };
    if let Some(owner) = &wait.owner {
        let holder = process.threads.iter().find(|each| each.tid == owner.tid);
        return vec![Because {
            words: match wait.kind {
                WaitKind::Gil => "the GIL is held by",
                _ if is_for_thread(wait) => "that is",
                _ => "it is held by",
            },
            pid: process.pid,
            tid: owner.tid,
            doing: holder.map(doing).unwrap_or_default(),
        }];
    }
    if wait.kind != WaitKind::Input {
        return Vec::new();
    }
    let workers = dump
        .processes
        .iter()
        .filter(|each| each.trainer_pid == Some(process.pid));
    workers
        .filter_map(|worker| {
            let thread = training_thread(worker)?;
            // A worker that waits for work is not the cause.
            (!is_idle_worker(thread)).then(|| Because {
                words: "its DataLoader worker:",
                pid: worker.pid,
                tid: thread.tid,
                doing: doing(thread),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::built::{locked, process, thread, waiting};
    use super::*;

    fn rank(number: u32, thread: DumpedThread, step: u64) -> DumpedProcess {
        DumpedProcess {
            role: Role::Trainer {
                rank: Some(number),
                local_rank: None,
                world_size: Some(4),
            },
            progress: vec![Progress {
                what: "step".to_owned(),
                value: step,
                source: "main".to_owned(),
            }],
            ..process(number as i32, vec![thread])
        }
    }

    /// Ranks 0 to 2 wait for the others at step 1041; rank 3 is given, at step 1040.
    fn job(last: DumpedThread, more: Vec<DumpedProcess>) -> Dump {
        let waits = |number: u32| {
            let thread = waiting(1, &["backward:7"], WaitKind::Collective, "all_reduce");
            rank(number, thread, 1041)
        };
        let mut processes: Vec<DumpedProcess> = (0..3).map(waits).collect();
        processes.push(rank(3, last, 1040));
        processes.extend(more);
        Dump {
            processes,
            ..Dump::default()
        }
    }

    #[test]
    fn the_odd_rank_comes_first_and_is_the_one_that_is_awaited() {
        let dump = job(thread(1, &["load:88"]), Vec::new());
        let found = verdict(&dump);
        let groups: Vec<_> = found
            .groups
            .iter()
            .map(|each| each.processes.clone())
            .collect();
        assert_eq!(groups, [vec![3], vec![0, 1, 2]]);
        assert_eq!(found.awaited(), [3]);
        assert_eq!(found.groups[0].step, Some(("step".to_owned(), 1040, 1040)));
        assert_eq!(found.groups[1].what, "all_reduce");
    }

    #[test]
    fn a_rank_that_was_stopped_in_the_collective_is_awaited() {
        let mut last = waiting(1, &["backward:7"], WaitKind::Collective, "all_reduce");
        last.state = ThreadState::Stopped;
        let found = verdict(&job(last, Vec::new()));
        assert_eq!(found.awaited(), [3]);
        assert!(found.groups[0].what.starts_with("is stopped"));
    }

    #[test]
    fn who_has_the_lock_and_which_worker_does_not_deliver() {
        let holder = thread(2, &["hold:5"]);
        let mut dump = job(locked(1, 2), Vec::new());
        dump.processes[3].threads.push(holder);
        let found = because(&dump, &dump.processes[3]);
        assert_eq!((found.len(), found[0].tid), (1, 2));

        let worker = |pid: i32, thread: DumpedThread| DumpedProcess {
            trainer_pid: Some(3),
            ..process(pid, vec![thread])
        };
        let mut idle = waiting(10, &["_worker_loop:1"], WaitKind::Input, "Queue.get()");
        if let Some(at) = &mut idle.at {
            at.file = "/lib/torch/utils/data/_utils/worker.py".to_owned();
        }
        let stuck = waiting(11, &["__getitem__:30"], WaitKind::Io, "read");
        let input = waiting(1, &["main:2"], WaitKind::Input, "DataLoader's queue");
        let dump = job(input, vec![worker(10, idle), worker(11, stuck)]);
        let found = because(&dump, &dump.processes[3]);
        assert_eq!((found.len(), found[0].pid), (1, 11));
        assert_eq!(found[0].doing, "waits: read");
    }
}
