//! Which job is reported where a folder has recordings of several.

use super::RecordingFacts;
use super::ranks::Rank;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// What tells jobs apart: what identifies them, and their number of ranks.
pub(super) type Key = (Vec<String>, Option<u32>);

/// A job that is not reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherJob {
    /// What identifies it: rendezvous, scheduler's id. Empty where its environment says nothing.
    pub job: Vec<String>,
    /// Ranks with a recording.
    pub ranks: usize,
    /// Recordings, by name.
    pub files: Vec<String>,
}

pub(super) fn key(rank: &Rank) -> Key {
    (rank.facts.job.clone(), rank.facts.world_size)
}

/// The job with the most ranks, of several the last one, and all others.
pub(super) fn choose(
    ranks: &[Rank],
    recordings: &[RecordingFacts],
) -> Option<(Key, Vec<OtherJob>)> {
    let mut jobs: BTreeMap<Key, Vec<&Rank>> = BTreeMap::new();
    for rank in ranks {
        jobs.entry(key(rank)).or_default().push(rank);
    }
    let recording = |rank: &&Rank| recordings.get(rank.recording);
    let most = jobs.iter().max_by_key(|(key, ranks)| {
        let started = ranks.iter().filter_map(recording);
        let last = started.map(|each| each.started_wall_ns).max();
        (ranks.len(), last, Reverse(*key))
    });
    let chosen = most.map(|(key, _)| key.clone())?;
    jobs.remove(&chosen);
    let others = jobs.into_iter().map(|((job, _), ranks)| {
        let files = ranks.iter().filter_map(recording);
        let files: BTreeSet<&String> = files.map(|each| &each.file).collect();
        OtherJob {
            job,
            ranks: ranks.len(),
            files: files.into_iter().cloned().collect(),
        }
    });
    Some((chosen, others.collect()))
}
