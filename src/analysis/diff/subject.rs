//! Which process of a recording is compared.

use crate::model::ids::ProcessId;
use crate::model::profile::{Profile, Role};

/// The process that represents a recording: the trainer of that rank, else the first trainer with
/// samples, else the first process with samples.
pub fn subject(profile: &Profile, rank: Option<u32>) -> Option<ProcessId> {
    let sampled = sampled(profile);
    let is_asked_for = |role: Role| rank.is_none() || role.rank() == rank;
    profile
        .processes
        .iter()
        .zip(sampled)
        .enumerate()
        .filter(|(_, (process, sampled))| *sampled && is_asked_for(process.role))
        .map(|(index, (process, _))| (ProcessId::from_index(index), process.role))
        .min_by_key(|&(process, role)| (order(role), process))
        .map(|(process, _)| process)
}

/// The ranks that a recording has samples of, in order.
pub fn ranks(profile: &Profile) -> Vec<u32> {
    let trainers = profile.processes.iter().zip(sampled(profile));
    let mut ranks: Vec<u32> = trainers
        .filter_map(|(process, sampled)| process.role.rank().filter(|_| sampled))
        .collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// The ranks that all recordings have samples of, if there are several.
pub fn common_ranks<'p>(profiles: impl IntoIterator<Item = &'p Profile>) -> Vec<u32> {
    let mut profiles = profiles.into_iter();
    let mut common = profiles.next().map(ranks).unwrap_or_default();
    for profile in profiles {
        let own = ranks(profile);
        common.retain(|rank| own.contains(rank));
    }
    if common.len() < 2 { Vec::new() } else { common }
}

fn order(role: Role) -> (u8, u32) {
    match role {
        Role::Trainer {
            rank: Some(rank), ..
        } => (0, rank),
        Role::Trainer { rank: None, .. } => (1, 0),
        Role::DataLoaderWorker { number, .. } => (2, number),
        Role::Launcher => (3, 0),
        Role::Other => (4, 0),
    }
}

/// By process: whether its training thread has samples.
fn sampled(profile: &Profile) -> Vec<bool> {
    let mut sampled = vec![false; profile.processes.len()];
    for sample in &profile.samples {
        let Some(thread) = profile.thread(sample.thread) else {
            continue;
        };
        let process = profile.process(thread.process);
        if process.is_some_and(|process| process.training_thread == Some(sample.thread))
            && let Some(sampled) = sampled.get_mut(thread.process.index())
        {
            *sampled = true;
        }
    }
    sampled
}
