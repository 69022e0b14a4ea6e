//! The part of the schema that is about collectives.

use super::waits::{At, at};
use crate::analysis::Analysis;
use crate::analysis::collectives::{CollectiveTime, ProcessCollectives};
use crate::analysis::intervals::Share;
use crate::analysis::late_ranks::Late;
use crate::analysis::stack_facts::moment_words;
use crate::model::ids::ProcessId;
use crate::model::profile::{Profile, Role};
use crate::model::seconds::of as seconds;
use schemars::JsonSchema;
use serde::Serialize;

/// Collectives of one rank, and ranks and lines of each collective, that are listed.
const MOST: usize = 100;
const MOST_LATE: usize = 20;

/// One collective of one rank, at one line.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Collective {
    /// The rank whose host time it is; null where the environment names none.
    pub rank: Option<u32>,
    /// Its process.
    pub pid: i32,
    /// `all_reduce`, …; null for a wrapper's own work around collectives; `wait` where one is waited for that was issued
    /// elsewhere.
    pub name: Option<&'static str>,
    /// `nccl`, `gloo`, `mpi`, `ucc`; null where nothing tells.
    pub backend: Option<&'static str>,
    /// The process group: null, for no frame tells.
    pub group: Option<String>,
    /// The same in words, with the wrapper that issued it: `all_reduce (DDP bucket)`.
    pub what: String,
    /// The wrapper: `DDP bucket`, `FSDP unshard`, …; null where the script calls it itself.
    pub issuer: Option<&'static str>,
    /// Host time. With NCCL that of enqueueing.
    pub seconds: f64,
    /// As a share of the training thread's wall time.
    pub share: f64,
    /// The same with its interval.
    pub interval: Share,
    /// The part in which the thread waits.
    pub wait_s: f64,
    /// As a share of the training thread's wall time.
    pub wait_share: Share,
    /// The line; null where no Python frame was read.
    pub at: Option<At>,
    /// Which rank of the recording arrived last, and where it was, most time first.
    pub late: Vec<LateRank>,
}

/// A rank that others waited for.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct LateRank {
    /// Its rank; null where the environment names none.
    pub rank: Option<u32>,
    /// Its process.
    pub pid: i32,
    /// How long it was waited for while it was at this line.
    pub seconds: f64,
    /// The line; null where no Python frame was read.
    pub at: Option<At>,
}

/// The collectives of every rank.
pub(super) fn collectives(profile: &Profile, analysis: &Analysis) -> Vec<Collective> {
    analysis
        .collectives
        .iter()
        .flat_map(|rank| {
            rank.rows
                .iter()
                .take(MOST)
                .map(|row| collective(profile, rank, row))
        })
        .collect()
}

fn rank_and_pid(profile: &Profile, process: Option<ProcessId>) -> (Option<u32>, i32) {
    let process = process.and_then(|process| profile.processes.get(process.index()));
    process.map_or((None, 0), |process| {
        let rank = match process.role {
            Role::Trainer { rank, .. } => rank,
            _ => None,
        };
        (rank, process.info.pid)
    })
}

fn collective(profile: &Profile, own: &ProcessCollectives, row: &CollectiveTime) -> Collective {
    let (rank, pid) = rank_and_pid(profile, own.process);
    Collective {
        rank,
        pid,
        name: row.moment.name,
        backend: row.moment.backend.map(|backend| backend.name()),
        group: None,
        what: moment_words(row.moment),
        issuer: row.moment.issuer.map(|issuer| issuer.name()),
        seconds: seconds(row.ns),
        share: row.share.value,
        interval: row.share,
        wait_s: seconds(row.wait_ns),
        wait_share: row.wait_share,
        at: at(profile, row.at),
        late: row
            .late
            .iter()
            .take(MOST_LATE)
            .map(|each| late(profile, each))
            .collect(),
    }
}

fn late(profile: &Profile, late: &Late) -> LateRank {
    let (rank, pid) = rank_and_pid(profile, Some(late.process));
    LateRank {
        rank,
        pid,
        seconds: seconds(late.ns),
        at: at(profile, late.at),
    }
}
