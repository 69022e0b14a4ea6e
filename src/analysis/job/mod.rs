//! A job of many ranks, in many recordings: which rank holds the others up, where, since when.
//!
//! Each recording is [reduced](reduce) on its own, which is the expensive part; reductions are
//! folded into [ranks], and these are compared.
//!
//! | file | content |
//! |---|---|
//! | [`reduce`] | a profile, reduced |
//! | [`pace`] | how fast a rank trains |
//! | [`ranks`] | times of each rank by class and bin of steps, and by line |
//! | [`clocks`] | clocks of hosts, aligned |
//! | [`mesh`] | which ranks do the same work |
//! | [`parallel`] | where ranks are in their parallel groups |
//! | [`by_group`] | what the ranks of a parallel group have in common, and which differ |
//! | [`others`] | which job it is, where there are several |
//! | [`stragglers`] | which rank the others wait for |
//! | [`arrivals`] | what each rank waits for others, and how often it is the last |
//! | [`change`] | since when |

pub mod arrivals;
pub mod by_group;
pub mod change;
pub mod clocks;
mod lines;
pub mod mesh;
pub mod others;
pub mod pace;
pub mod parallel;
pub mod ranks;
pub mod reduce;
mod same_steps;
pub mod stragglers;

use crate::analysis::progress::standstill::is_long;
use crate::model::nccl_ras::KeptRas;
use crate::model::reduction::Reduction;
use by_group::{ByGroup, by_group};
use clocks::{Clock, clocks, wall_offset_ns};
use mesh::{Group, Mesh, groups};
use others::OtherJob;
use parallel::Parallel;
use ranks::{Names, Rank, fold};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use stragglers::{Compared, compare};

/// Ranks of larger jobs are not all named.
const MOST_RANKS: u32 = 1 << 20;

/// A recording of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordingFacts {
    /// As the user named it.
    pub file: String,
    pub host: String,
    pub torchspy: String,
    pub command: Vec<String>,
    pub started_wall_ns: u64,
    pub length_ns: u64,
    pub rate_hz: f64,
    /// What is missing of it.
    pub missing: Vec<String>,
}

/// A file that is no part of the answer, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    pub file: String,
    pub why: String,
}

/// Recordings, folded.
#[derive(Debug, Default)]
pub struct Folded {
    recordings: Vec<RecordingFacts>,
    offsets: Vec<i64>,
    ranks: Vec<Rank>,
    names: Names,
    left_out: Vec<LeftOut>,
}

/// The answers for a job.
#[derive(Clone, Debug)]
pub struct Job {
    /// What identifies it: rendezvous, scheduler's id.
    pub job: Vec<String>,
    /// Others, whose recordings are left out.
    pub other_jobs: Vec<OtherJob>,
    pub recordings: Vec<RecordingFacts>,
    /// Files that are no part of it.
    pub left_out: Vec<LeftOut>,
    /// By number.
    pub ranks: Vec<Rank>,
    pub names: Names,
    /// Number of ranks of the job, by their environment.
    pub world_size: Option<u32>,
    /// Ranks of the job without a recording.
    pub missing_ranks: Vec<u32>,
    pub clocks: Vec<Clock>,
    /// Where ranks are in their parallel groups.
    pub parallel: Parallel,
    /// What was found in each group of ranks that do the same work.
    pub groups: Vec<(Group, Compared)>,
    /// Ranks along the dimensions of their parallel groups.
    pub by_group: Vec<ByGroup>,
    /// Bins hold `1 << shift` steps.
    pub shift: u32,
}

impl Folded {
    /// Adds a recording.
    pub fn add(&mut self, file: String, reduction: Reduction) {
        if reduction.ranks.is_empty() {
            let missing = reduction.missing.join("; ");
            return self.leave_out(
                file,
                match missing.is_empty() {
                    true => "no trainer was sampled in it".to_owned(),
                    false => format!("nothing of a trainer is left of it: {missing}"),
                },
            );
        }
        self.offsets.push(wall_offset_ns(&reduction));
        self.recordings.push(RecordingFacts {
            file,
            host: reduction.host.clone(),
            torchspy: reduction.torchspy.clone(),
            command: reduction.command.clone(),
            started_wall_ns: reduction.started_wall_ns,
            length_ns: reduction.length_ns,
            rate_hz: reduction.rate_hz,
            missing: reduction.missing.clone(),
        });
        let recording = self.recordings.len() - 1;
        fold(reduction, recording, &mut self.names, &mut self.ranks);
    }

    /// Names a file that could not be read, or has nothing to add.
    pub fn leave_out(&mut self, file: String, why: String) {
        self.left_out.push(LeftOut { file, why });
    }

    /// Compares the ranks.
    pub fn finish(mut self, mesh: Option<&Mesh>) -> Job {
        let (job, other_jobs) = self.keep_one_job();
        self.keep_one_of_each_process();
        self.keep_one_of_each_rank();
        self.keep_one_time();
        self.sort_recordings();
        self.ranks.sort_by_key(Rank::number);
        let shift = self.ranks.iter().map(|rank| rank.facts.shift).max();
        let shift = shift.unwrap_or(0);
        for rank in &mut self.ranks {
            rank.coarsen(shift);
        }
        let hosts = self
            .recordings
            .iter()
            .map(|recording| recording.host.clone());
        let hosts: Vec<(String, i64)> = hosts.zip(self.offsets).collect();
        let clocks = clocks(&hosts, &self.ranks);
        let parallel = Parallel::of(&self.ranks, mesh);
        let groups = groups(&self.ranks, &parallel);
        let compared = groups.into_iter().map(|group| {
            let compared = compare(&self.ranks, &group.ranks);
            (group, compared)
        });
        let groups: Vec<(Group, Compared)> = compared.collect();
        let by_group = by_group(&self.ranks, &parallel, &groups);
        let world_size = self
            .ranks
            .iter()
            .filter_map(|rank| rank.facts.world_size)
            .max();
        let seen: Vec<u32> = self
            .ranks
            .iter()
            .filter_map(|rank| rank.facts.rank)
            .collect();
        let missing = (0..world_size.unwrap_or(0).min(MOST_RANKS))
            .filter(|rank| seen.binary_search(rank).is_err());
        Job {
            job,
            other_jobs,
            missing_ranks: missing.collect(),
            recordings: self.recordings,
            left_out: self.left_out,
            ranks: self.ranks,
            names: self.names,
            world_size,
            clocks,
            parallel,
            groups,
            by_group,
            shift,
        }
    }

    /// Recordings whose ranks are reported on, by name, in whatever order they were added.
    fn sort_recordings(&mut self) {
        let used: FxHashSet<usize> = self.ranks.iter().map(|rank| rank.recording).collect();
        let all = std::mem::take(&mut self.recordings);
        let mut all: Vec<_> = all.into_iter().zip(&self.offsets).enumerate().collect();
        all.retain(|(old, _)| used.contains(old));
        all.sort_by(|(_, a), (_, b)| a.0.file.cmp(&b.0.file));
        let numbers = all.iter().enumerate().map(|(new, (old, _))| (*old, new));
        let numbers: FxHashMap<usize, usize> = numbers.collect();
        let all = all.into_iter().map(|(_, (facts, &offset))| (facts, offset));
        (self.recordings, self.offsets) = all.unzip();
        for rank in &mut self.ranks {
            rank.recording = numbers.get(&rank.recording).copied().unwrap_or(0);
        }
        self.left_out
            .sort_by(|a, b| (&a.file, &a.why).cmp(&(&b.file, &b.why)));
    }

    /// Leaves out ranks of other jobs than that with the most ranks. Returns it and the others.
    fn keep_one_job(&mut self) -> (Vec<String>, Vec<OtherJob>) {
        let Some((chosen, others)) = others::choose(&self.ranks, &self.recordings) else {
            return Default::default();
        };
        self.leave_out_ranks(|rank| others::key(rank) == chosen, "it is of another job");
        (chosen.0, others)
    }

    /// Leaves out all but the longest recording of a process that several recorded at the same
    /// time: two agents, or one and `record`. A pid is one process's at a time.
    fn keep_one_of_each_process(&mut self) {
        let mut of_pid: FxHashMap<(&str, i32), Vec<usize>> = FxHashMap::default();
        for (at, rank) in self.ranks.iter().enumerate() {
            let key = (rank.host.as_str(), rank.facts.pid);
            of_pid.entry(key).or_default().push(at);
        }
        let mut shorter: BTreeMap<usize, usize> = BTreeMap::new();
        for mut same in of_pid.into_values().filter(|same| same.len() > 1) {
            while let Some(longest) = self.longest(&same) {
                same.retain(|&at| at != longest);
                let others = same.iter().filter(|&&at| self.overlap(at, longest));
                shorter.extend(others.map(|&at| (at, longest)));
                same.retain(|at| !shorter.contains_key(at));
            }
        }
        let why = shorter.iter().map(|(&at, &longest)| {
            let file = self.file(longest);
            (
                at,
                format!("{file} has more of the same process at the same time"),
            )
        });
        let why: BTreeMap<usize, String> = why.collect();
        shorter
            .iter()
            .for_each(|(&at, &longest)| self.hand_over(at, longest));
        self.leave_out_ranks_why(|at, _| why.get(&at).cloned());
    }

    /// Of several that record a rank one asks NCCL: its answer counts for the other, as long as no
    /// step has ended since.
    fn hand_over(&mut self, from: usize, to: usize) {
        let answers = |kept: &KeptRas| kept.answers.iter().any(|each| each.error.is_none());
        let given = self.ranks.get(from);
        let given = given.and_then(|rank| rank.facts.nccl_ras.clone());
        if let (Some(given), Some(to)) = (given.filter(answers), self.ranks.get_mut(to)) {
            let facts = &mut to.facts;
            let last_ns = facts.bins.last().map_or(0, |bin| bin.end_ns);
            if given.time_ns >= last_ns && !facts.nccl_ras.as_ref().is_some_and(answers) {
                facts.nccl_ras = Some(given);
            }
        }
    }

    /// The longest of these; of those that are shorter by a tenth at most the one with the most
    /// samples.
    fn longest(&self, ranks: &[usize]) -> Option<usize> {
        let facts = |&at: &usize| Some((at, &self.ranks.get(at)?.facts));
        let longest_ns = ranks.iter().filter_map(facts);
        let longest_ns = longest_ns.map(|(_, facts)| facts.wall_ns).max()?;
        let long = ranks.iter().filter_map(facts);
        let long = long.filter(|(_, facts)| facts.wall_ns >= longest_ns / 10 * 9);
        let most = long.max_by_key(|(at, facts)| (facts.ticks, self.file(*at)));
        most.map(|(at, _)| at)
    }

    /// The name of a rank's recording.
    fn file(&self, rank: usize) -> &str {
        let rank = self.ranks.get(rank);
        let recording = rank.and_then(|rank| self.recordings.get(rank.recording));
        recording.map_or("", |recording| &recording.file)
    }

    /// Whether two ranks were sampled at the same time, by the clock of their host.
    fn overlap(&self, one: usize, other: usize) -> bool {
        let time = |at: usize| {
            let rank = self.ranks.get(at)?;
            let offset_ns = self.offsets.get(rank.recording).copied().unwrap_or(0);
            let start_ns = rank.facts.start_ns.saturating_add_signed(offset_ns);
            Some((start_ns, start_ns.saturating_add(rank.facts.wall_ns)))
        };
        let both = time(one).zip(time(other));
        both.is_some_and(|(one, other)| one.0 < other.1 && other.0 < one.1)
    }

    /// Leaves out earlier recordings of a rank, and earlier processes of it in one recording: it
    /// was started again.
    fn keep_one_of_each_rank(&mut self) {
        let mut last: FxHashMap<u32, (u64, u64, usize, u64)> = FxHashMap::default();
        for rank in &self.ranks {
            // Of a recording and a part of it the longer one.
            let time = self.recordings.get(rank.recording);
            let (started, length) =
                time.map_or((0, 0), |each| (each.started_wall_ns, each.length_ns));
            if let Some(number) = rank.facts.rank {
                let entry = last.entry(number).or_default();
                *entry = (*entry).max((started, length, rank.recording, rank.facts.start_ns));
            }
        }
        let is_last = |rank: &Rank| match rank.facts.rank {
            Some(number) => last.get(&number).is_some_and(|&(.., at, start_ns)| {
                (at, start_ns) == (rank.recording, rank.facts.start_ns)
            }),
            None => true,
        };
        self.leave_out_ranks(
            is_last,
            "there is a later or longer recording of the same rank",
        );
    }

    /// Leaves out ranks that were recorded at another time than most: what they did then says
    /// nothing of what the others waited for.
    fn keep_one_time(&mut self) {
        let of_recording = |each: &RecordingFacts| {
            let start = each.started_wall_ns;
            (start, start.saturating_add(each.length_ns))
        };
        let times: Vec<(u64, u64)> = self.recordings.iter().map(of_recording).collect();
        let time = |rank: &Rank| times.get(rank.recording).copied().unwrap_or_default();
        // The last moment at which the most ranks were recorded is the start of one.
        let mut starts: Vec<u64> = self.ranks.iter().map(|rank| time(rank).0).collect();
        let mut ends: Vec<u64> = self.ranks.iter().map(|rank| time(rank).1).collect();
        starts.sort_unstable();
        ends.sort_unstable();
        let recorded = |at: u64| {
            let begun = starts.partition_point(|&start| start <= at);
            begun - ends.partition_point(|&end| end < at)
        };
        let Some(&moment) = starts.iter().max_by_key(|&&at| (recorded(at), at)) else {
            return;
        };
        let together = self.ranks.iter().map(time);
        let together = together.filter(|(start, end)| (*start..=*end).contains(&moment));
        let from = together.clone().map(|(start, _)| start).min();
        let to = together.map(|(_, end)| end).max();
        let (from, to) = (from.unwrap_or(0), to.unwrap_or(u64::MAX));
        let is_with_them = |rank: &Rank| {
            let (start, end) = time(rank);
            let both = end.min(to).saturating_sub(start.max(from));
            both >= (end - start) / 2
        };
        self.leave_out_ranks(
            is_with_them,
            "it was recorded at another time than most, by the clocks of their hosts",
        );
    }

    fn leave_out_ranks(&mut self, keeps: impl Fn(&Rank) -> bool, why: &str) {
        self.leave_out_ranks_why(|_, rank| (!keeps(rank)).then(|| why.to_owned()));
    }

    /// Leaves out the ranks for which there is a reason, by their index.
    fn leave_out_ranks_why(&mut self, why: impl Fn(usize, &Rank) -> Option<String>) {
        let mut kept = Vec::new();
        for (at, rank) in std::mem::take(&mut self.ranks).into_iter().enumerate() {
            let Some(why) = why(at, &rank) else {
                kept.push(rank);
                continue;
            };
            let file = self.recordings.get(rank.recording);
            let file = file.map_or(String::new(), |recording| recording.file.clone());
            let subject = match rank.facts.rank {
                Some(number) => format!("rank {number} (pid {})", rank.facts.pid),
                None => format!("pid {}", rank.facts.pid),
            };
            self.leave_out(file, format!("{subject} is left out: {why}"));
        }
        self.ranks = kept;
    }
}

impl Job {
    /// The clock of a recording's host.
    pub fn clock(&self, recording: usize) -> Option<&Clock> {
        self.clocks
            .iter()
            .find(|clock| clock.recordings.contains(&recording))
    }

    /// The end of the run in which no rank made a step, if it is long, ns.
    pub fn standstill_ns(&self) -> Option<u64> {
        let after = self.ranks.iter().filter_map(|rank| {
            let last = rank.facts.bins.last()?;
            let end_ns = rank.facts.start_ns.saturating_add(rank.facts.wall_ns);
            Some((end_ns.saturating_sub(last.end_ns), rank))
        });
        let (still_ns, rank) = after.min_by_key(|&(still_ns, _)| still_ns)?;
        let mean_ns = (rank.seconds() * 1e9) as u64 / rank.facts.steps.max(1);
        is_long(still_ns, mean_ns, rank.facts.wall_ns).then_some(still_ns)
    }

    /// What NCCL answered, and the rank that asked: one with an answer that is certainly this
    /// job's, if any is, since each that was asked knows the whole job.
    pub fn nccl_ras(&self) -> Option<(&Rank, &KeptRas)> {
        let asked = self.ranks.iter();
        let asked = asked.filter_map(|rank| Some((rank, rank.facts.nccl_ras.as_ref()?)));
        asked.min_by_key(|(_, kept)| {
            let answers = kept.answers.iter();
            let doubts = answers.map(|each| (each.error.is_some(), each.may_be_others));
            doubts.min().unwrap_or((true, true))
        })
    }

    /// The stragglers of all groups with their group's index, by descending cost.
    pub fn stragglers(&self) -> impl Iterator<Item = (usize, &stragglers::Straggler)> {
        let groups = self.groups.iter().enumerate();
        groups.flat_map(|(at, (_, found))| found.stragglers.iter().map(move |each| (at, each)))
    }
}
