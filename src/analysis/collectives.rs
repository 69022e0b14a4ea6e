//! Collectives: the host's time in each, and the rank that a rank waited for.
//!
//! [`late_ranks`](super::late_ranks) determines which rank was waited for.

use super::intervals::{Share, Shares};
use super::late_ranks::{Late, blame, intervals};
use super::timeline::Timeline;
use crate::model::category::Activity;
use crate::model::collective::Backend;
use crate::model::collective::CollectiveCall;
use crate::model::facts::Line;
use crate::model::ids::{ProcessId, ThreadId};
use crate::model::profile::{Profile, ProfileSample, Role};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// One collective at one line.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveTime {
    /// The collective, its backend and the wrapper that issued it.
    pub call: CollectiveCall,
    /// The line that it was called from.
    pub at: Option<Line>,
    /// Host time in it, waits included.
    pub ns: u64,
    /// As a share of the training thread's wall time.
    pub share: Share,
    /// The part of it in which the thread waited.
    pub wait_ns: u64,
    /// As a share of the training thread's wall time.
    pub wait_share: Share,
    /// The part of the waits in which another rank of the recording had not arrived: by the rank
    /// that arrived last, and its line, in descending order of time.
    pub late: Vec<Late>,
}

impl CollectiveTime {
    /// The part of the waits that another rank caused.
    pub fn late_ns(&self) -> u64 {
        self.late.iter().map(|late| late.ns).sum()
    }
}

/// The collectives of one training thread.
#[derive(Clone, Debug, Default)]
pub struct ProcessCollectives {
    /// The process; `None` only in the default value.
    pub process: Option<ProcessId>,
    /// The training thread's wall time.
    pub wall_ns: u64,
    /// Host time in collectives and in wrappers around them.
    pub ns: u64,
    /// Number of other ranks of the job in the recording.
    pub peers: usize,
    /// Ranks in the job, from the environment; `None` if it is not set.
    pub world_size: Option<u32>,
    /// Collectives by name, wrapper and line, by descending time. They add up to `ns`.
    pub rows: Vec<CollectiveTime>,
}

/// A rank: its process, and its samples by time.
struct Rank<'p> {
    process: ProcessId,
    own: Vec<&'p ProfileSample>,
    timeline: Timeline<'p>,
}

/// The collectives of every rank, in the order of `ranks`.
pub fn all(profile: &Profile, ranks: &[(ProcessId, ThreadId)]) -> Vec<ProcessCollectives> {
    let ranks: Vec<Rank<'_>> = ranks
        .iter()
        .map(|&(process, thread)| {
            let own = super::of_thread(profile, thread);
            Rank {
                process,
                timeline: Timeline::new(own.iter().copied()),
                own,
            }
        })
        .collect();
    let jobs: Vec<Option<Job<'_>>> = ranks
        .iter()
        .map(|rank| job(profile, rank.process))
        .collect();
    let mut found = Vec::with_capacity(ranks.len());
    for (rank, job) in ranks.iter().zip(&jobs) {
        let peers: Vec<&Rank<'_>> = ranks
            .iter()
            .zip(&jobs)
            .filter(|(other, theirs)| {
                other.process != rank.process && job.is_some() && *theirs == job
            })
            .map(|(other, _)| other)
            .collect();
        found.push(of_rank(profile, rank, &peers));
    }
    found
}

/// What identifies a job: ranks with equal values belong together.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Job<'p> {
    world_size: Option<u32>,
    rendezvous: Vec<&'p str>,
    /// The parent of processes whose environment names no rank: `torch.multiprocessing.spawn`.
    parent: Option<i32>,
}

/// The job of a rank; `None` if the process is not a trainer.
pub(super) fn job(profile: &Profile, process: ProcessId) -> Option<Job<'_>> {
    let process = profile.process(process)?;
    let Role::Trainer {
        rank, world_size, ..
    } = process.role
    else {
        return None;
    };
    let variables = &process.info.environment;
    Some(Job {
        world_size,
        rendezvous: rendezvous(variables),
        parent: rank.is_none().then_some(process.info.parent_pid),
    })
}

/// What in a rank's environment all ranks of its job have in common.
pub(super) fn rendezvous(environment: &[(String, String)]) -> Vec<&str> {
    ["MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID"]
        .iter()
        .filter_map(|name| environment.iter().find(|(key, _)| key == name))
        .map(|(_, value)| value.as_str())
        .collect()
}

/// Sums of one row.
struct Row {
    call: CollectiveCall,
    at: Option<Line>,
    ns: u64,
    wait_ns: u64,
    late: FxHashMap<(ProcessId, Option<Line>), u64>,
}

fn of_rank(profile: &Profile, rank: &Rank<'_>, peers: &[&Rank<'_>]) -> ProcessCollectives {
    let wall_ns: u64 = rank.own.iter().map(|sample| sample.weight_ns).sum();
    let ticks: u64 = rank.own.iter().map(|sample| u64::from(sample.ticks)).sum();
    let backend = only_backend(profile, rank.process);
    let mut rows: Vec<Row> = Vec::new();
    let of_sample = rows_of(profile, rank, backend, &mut rows);
    let mut shares = Shares::new(wall_ns, ticks, rows.len() * 2);
    for (sample, row) in rank.own.iter().zip(&of_sample) {
        let mut parts = Vec::new();
        if let Some(at) = *row {
            parts.push((at, sample.weight_ns));
            if waits(sample) {
                parts.push((rows.len() + at, sample.weight_ns));
            }
        }
        shares.add(sample.weight_ns, sample.ticks, &parts);
    }
    let tick_ns = (1e9 / profile.run.rate_hz.max(1.0)) as u64;
    let peers_by_time: Vec<(ProcessId, &Timeline<'_>)> = peers
        .iter()
        .map(|peer| (peer.process, &peer.timeline))
        .collect();
    for interval in intervals(profile, &rank.own, &of_sample) {
        if let Some(row) = rows.get_mut(interval.row) {
            blame(profile, &interval, &peers_by_time, tick_ns, &mut row.late);
        }
    }
    let count = rows.len();
    let mut list: Vec<CollectiveTime> = rows
        .into_iter()
        .enumerate()
        .map(|(at, row)| row.finish(shares.share(at), shares.share(count + at)))
        .collect();
    list.sort_by_key(|row| (Reverse(row.ns), row.call, row.at));
    let role = profile.process(rank.process);
    ProcessCollectives {
        process: Some(rank.process),
        wall_ns,
        ns: list.iter().map(|row| row.ns).sum(),
        peers: peers.len(),
        world_size: role.and_then(|process| process.role.world_size()),
        rows: list,
    }
}

impl Row {
    fn finish(self, share: Share, wait_share: Share) -> CollectiveTime {
        let mut late: Vec<Late> = self
            .late
            .into_iter()
            .map(|((process, at), ns)| Late { process, at, ns })
            .collect();
        late.sort_by_key(|late| (Reverse(late.ns), late.process, late.at));
        CollectiveTime {
            call: self.call,
            at: self.at,
            ns: self.ns,
            share,
            wait_ns: self.wait_ns,
            wait_share,
            late,
        }
    }
}

/// The row of each sample of a rank; makes the rows.
fn rows_of(
    profile: &Profile,
    rank: &Rank<'_>,
    backend: Option<Backend>,
    rows: &mut Vec<Row>,
) -> Vec<Option<usize>> {
    let mut index: FxHashMap<(CollectiveCall, Option<Line>), usize> = FxHashMap::default();
    rank.own
        .iter()
        .map(|sample| {
            let mut call = profile.facts.collective(sample.collective)?;
            call.backend = call.backend.or(backend);
            let line = profile.facts.line(sample.stack);
            let at = *index.entry((call, line)).or_insert_with(|| {
                rows.push(Row {
                    call,
                    at: line,
                    ns: 0,
                    wait_ns: 0,
                    late: FxHashMap::default(),
                });
                rows.len() - 1
            });
            let row = rows.get_mut(at)?;
            row.ns = row.ns.saturating_add(sample.weight_ns);
            if waits(sample) {
                row.wait_ns = row.wait_ns.saturating_add(sample.weight_ns);
            }
            Some(at)
        })
        .collect()
}

/// Whether a sample in a collective is a wait.
pub(super) fn waits(sample: &ProfileSample) -> bool {
    matches!(
        sample.activity,
        Activity::CollectiveWait | Activity::LockWait | Activity::Sleep | Activity::Io
    )
}

/// The backend whose threads a process has; `None` if there are several, or none.
fn only_backend(profile: &Profile, process: ProcessId) -> Option<Backend> {
    let threads = profile.threads.iter().enumerate();
    let mut backends: Vec<Backend> = threads
        .filter(|(_, thread)| thread.process == process)
        .filter_map(|(at, _)| profile.facts.backend(ThreadId::from_index(at)))
        .collect();
    backends.sort_unstable();
    backends.dedup();
    match backends.as_slice() {
        [only] => Some(*only),
        _ => None,
    }
}

/// The collectives of `process`.
pub fn of(all: &[ProcessCollectives], process: ProcessId) -> Option<&ProcessCollectives> {
    all.iter().find(|each| each.process == Some(process))
}
