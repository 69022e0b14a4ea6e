//! All ranks of a job, on however many machines: one comparison.

use super::places::parallel;
use super::verdict::{Because, RankGroup, Verdict, because, compare, is_rank};
use crate::analysis::job::parallel::Parallel;
use crate::model::dump::{Dump, DumpedProcess, DumpedThread};
use crate::model::profile::Role;
use crate::model::wait::WaitKind;
use rustc_hash::FxHashMap;

/// The snapshot of one machine.
#[derive(Clone, Debug)]
pub struct HostAnswer {
    pub host: String,
    pub dump: Dump,
}

/// A machine that did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered {
    pub host: String,
    /// Why, in a few words.
    pub why: String,
}

/// A rank: its machine, and its process there.
#[derive(Clone, Copy, Debug)]
pub struct JobRank<'j> {
    pub answer: &'j HostAnswer,
    pub process: &'j DumpedProcess,
}

/// Whom the ranks of a job wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitedFor {
    /// For these, which are not in the collective that others wait in: indices of ranks.
    Ranks(Vec<usize>),
    /// For ranks that were not found: all that were wait in collectives.
    NotFound,
    /// Ranks wait in different collectives, or at different lines: each waits for the others.
    Different,
    /// Most ranks wait for their GPUs, and these do not. Work of a GPU may be a collective.
    BehindGpus(Vec<usize>),
    /// Nothing that a snapshot shows.
    Nobody,
}

/// A comparison of all ranks.
#[derive(Clone, Debug)]
pub struct Job<'j> {
    /// By rank; by machine and pid where none has a number.
    pub ranks: Vec<JobRank<'j>>,
    /// Trainers without a number where others have one: they are of no job, or of another one.
    pub without_rank: Vec<JobRank<'j>>,
    /// Groups of ranks (their `processes` are indices of `ranks`), odd ones first.
    pub groups: Vec<RankGroup>,
    pub waited_for: WaitedFor,
    /// Ranks of the job that no machine has, as far as its size is known.
    pub not_found: Vec<u32>,
    /// Ranks that more than one process has.
    pub twice: Vec<u32>,
    /// Ranks of the job; 0 if no environment says so.
    pub world_size: u32,
    /// Where ranks are in their parallel groups, those that were not found included.
    pub parallel: Parallel,
}

/// With more groups than this, ranks that differ in nothing but their step are one group.
const MAX_BY_STEP: usize = 8;
/// The largest job of which ranks that were not found are listed.
const MAX_WORLD: u32 = 1 << 20;

impl<'j> Job<'j> {
    /// Compares the ranks of all machines.
    pub fn new(answers: &'j [HostAnswer]) -> Self {
        let mut all: Vec<JobRank<'j>> = answers
            .iter()
            .flat_map(|answer| {
                let processes = answer.dump.processes.iter();
                processes.map(move |process| JobRank { answer, process })
            })
            .filter(|rank| matches!(rank.process.role, Role::Trainer { .. }))
            .collect();
        all.sort_by_cached_key(|rank| {
            let host = rank.answer.host.clone();
            (rank.number(), host, rank.process.pid)
        });
        let some_have_numbers = all.iter().any(|rank| rank.number().is_some());
        let (ranks, without_rank): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|rank| is_rank(rank.process, some_have_numbers));
        let processes: Vec<&DumpedProcess> = ranks.iter().map(|rank| rank.process).collect();
        let mut verdict = compare(&processes);
        if verdict.groups.len() > MAX_BY_STEP {
            verdict = verdict.without_steps();
        }
        let world_size = ranks
            .iter()
            .filter_map(|rank| rank.process.role.world_size());
        let world_size = world_size.max().unwrap_or(0);
        let mut counts: FxHashMap<u32, usize> = FxHashMap::default();
        for number in ranks.iter().filter_map(JobRank::number) {
            *counts.entry(number).or_default() += 1;
        }
        let not_found: Vec<u32> = match world_size {
            1..=MAX_WORLD => (0..world_size)
                .filter(|number| !counts.contains_key(number))
                .collect(),
            _ => Vec::new(),
        };
        let mut twice: Vec<u32> = counts
            .iter()
            .filter(|(_, count)| **count > 1)
            .map(|(&number, _)| number)
            .collect();
        twice.sort_unstable();
        let parallel = parallel(ranks.iter().map(|rank| rank.process));
        let waited_for = waited_for(&verdict, &ranks, !not_found.is_empty());
        Self {
            ranks,
            without_rank,
            groups: verdict.groups,
            waited_for,
            not_found,
            twice,
            world_size,
            parallel,
        }
    }

    /// The ranks that the others wait for; empty where none is named.
    pub fn culprits(&self) -> &[usize] {
        match &self.waited_for {
            WaitedFor::Ranks(ranks) | WaitedFor::BehindGpus(ranks) => ranks,
            _ => &[],
        }
    }
}

impl JobRank<'_> {
    /// Its number, where its environment has one.
    pub fn number(&self) -> Option<u32> {
        self.process.role.rank()
    }

    /// What it waits for, followed one step further.
    pub fn because(&self) -> Vec<Because> {
        because(&self.answer.dump, self.process)
    }

    /// Its training thread.
    pub fn thread(&self) -> Option<&DumpedThread> {
        self.process.threads.iter().find(|thread| thread.trains)
    }
}

fn waited_for(verdict: &Verdict, ranks: &[JobRank<'_>], some_missing: bool) -> WaitedFor {
    let awaited = verdict.awaited();
    if !awaited.is_empty() {
        return WaitedFor::Ranks(awaited);
    }
    if verdict.groups.iter().any(|group| group.waits_for_ranks) {
        let collective = |group: &RankGroup| (group.what.clone(), group.at.clone());
        let first = verdict.groups.first().map(collective);
        let differ = verdict
            .groups
            .iter()
            .any(|group| Some(collective(group)) != first);
        return match (some_missing, differ) {
            (true, _) => WaitedFor::NotFound,
            (false, true) => WaitedFor::Different,
            (false, false) => WaitedFor::Nobody,
        };
    }
    let waits_for_gpu = |group: &&RankGroup| {
        let first = group.processes.first().and_then(|&index| ranks.get(index));
        let wait = first.and_then(|rank| rank.thread()?.wait.as_ref());
        wait.is_some_and(|wait| wait.kind == WaitKind::GpuSync || wait.kind == WaitKind::GpuCopy)
    };
    let (behind, others): (Vec<&RankGroup>, Vec<&RankGroup>) =
        verdict.groups.iter().partition(waits_for_gpu);
    let count = |groups: &[&RankGroup]| {
        groups
            .iter()
            .map(|group| group.processes.len())
            .sum::<usize>()
    };
    match count(&others) {
        0 => WaitedFor::Nobody,
        few if few * 2 < count(&behind) => {
            let others = others.iter().flat_map(|group| group.processes.clone());
            WaitedFor::BehindGpus(others.collect())
        }
        _ => WaitedFor::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use super::super::built::{process, thread, waiting};
    use super::*;
    use crate::model::dump::Progress;

    fn rank(number: u32, world_size: u32, thread: DumpedThread, step: u64) -> DumpedProcess {
        DumpedProcess {
            role: Role::Trainer {
                rank: Some(number),
                local_rank: None,
                world_size: Some(world_size),
            },
            progress: vec![Progress {
                what: "step".to_owned(),
                value: step,
                source: "main".to_owned(),
            }],
            // Pids are those of its machine.
            ..process(100 + number as i32 % 2, vec![thread])
        }
    }

    fn in_collective() -> DumpedThread {
        waiting(1, &["backward:7"], WaitKind::Collective, "all_reduce")
    }

    /// Two ranks on each machine.
    fn answers(processes: Vec<DumpedProcess>) -> Vec<HostAnswer> {
        let machines = processes.chunks(2).enumerate();
        machines
            .map(|(number, processes)| HostAnswer {
                host: format!("node{number}"),
                dump: Dump {
                    processes: processes.to_vec(),
                    ..Dump::default()
                },
            })
            .collect()
    }

    #[test]
    fn the_rank_that_is_not_in_the_collective_is_waited_for() {
        let mut all: Vec<_> = (0..4)
            .map(|number| rank(number, 4, in_collective(), 9))
            .collect();
        all[2] = rank(2, 4, thread(1, &["load:88"]), 8);
        let all = answers(all);
        let job = Job::new(&all);
        assert_eq!(job.waited_for, WaitedFor::Ranks(vec![2]));
        assert_eq!(job.ranks[2].answer.host, "node1");
        assert_eq!(job.groups[0].processes, [2]);
        assert_eq!(job.groups[1].processes, [0, 1, 3]);
        assert!(job.not_found.is_empty() && job.twice.is_empty());
    }

    #[test]
    fn a_rank_that_is_not_there_is_waited_for_where_all_others_wait() {
        let all = [0, 1, 3].map(|number| rank(number, 4, in_collective(), 9));
        let all = answers(all.to_vec());
        let job = Job::new(&all);
        assert_eq!(job.waited_for, WaitedFor::NotFound);
        assert_eq!(job.not_found, [2]);
        // Others would compute.
        let all = [0, 1, 3].map(|number| rank(number, 4, thread(1, &["forward:3"]), 9));
        let all = answers(all.to_vec());
        assert_eq!(Job::new(&all).waited_for, WaitedFor::Nobody);
    }

    #[test]
    fn different_collectives_wait_for_each_other() {
        let mut all: Vec<_> = (0..4)
            .map(|number| rank(number, 4, in_collective(), 9))
            .collect();
        let gather = waiting(1, &["log:20"], WaitKind::Collective, "all_gather");
        all[1] = rank(1, 4, gather, 9);
        let all = answers(all);
        let job = Job::new(&all);
        assert_eq!(job.waited_for, WaitedFor::Different);
        assert_eq!(job.groups[0].processes, [1]);
    }

    #[test]
    fn with_nccl_the_others_wait_for_their_gpus() {
        let sync = || waiting(1, &["item:7"], WaitKind::GpuSync, "item()");
        let mut all: Vec<_> = (0..4).map(|number| rank(number, 4, sync(), 9)).collect();
        all[3] = rank(3, 4, waiting(1, &["read:2"], WaitKind::Io, "read"), 9);
        let all = answers(all);
        assert_eq!(Job::new(&all).waited_for, WaitedFor::BehindGpus(vec![3]));
    }

    #[test]
    fn trainers_without_a_rank_are_listed_and_never_waited_for() {
        let mut all: Vec<_> = (0..3)
            .map(|number| rank(number, 3, in_collective(), 9))
            .collect();
        let mut other = rank(0, 3, thread(1, &["serve:5"]), 1);
        other.role = Role::Trainer {
            rank: None,
            local_rank: None,
            world_size: None,
        };
        all.push(other.clone());
        let all = answers(all);
        let job = Job::new(&all);
        assert_eq!((job.ranks.len(), job.without_rank.len()), (3, 1));
        assert_eq!(job.waited_for, WaitedFor::Nobody);
        assert_eq!(job.without_rank[0].answer.host, "node1");
        let dump = &all[1].dump;
        assert!(super::super::verdict::verdict(dump).groups.is_empty());
        // Where none has a number, all are compared.
        let all = answers(vec![other.clone(), other]);
        let job = Job::new(&all);
        assert_eq!((job.ranks.len(), job.without_rank.len()), (2, 0));
    }

    #[test]
    fn many_steps_are_one_group_and_a_rank_is_counted_once() {
        let step = |number: u32| rank(number, 20, thread(1, &["forward:3"]), u64::from(number));
        let mut all: Vec<_> = (0..20).map(step).collect();
        all.push(step(7));
        let all = answers(all);
        let job = Job::new(&all);
        assert_eq!(job.groups.len(), 1);
        assert_eq!(job.groups[0].step, Some(("step".to_owned(), 0, 19)));
        assert_eq!(job.twice, [7]);
    }
}
