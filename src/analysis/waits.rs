//! What the training thread waited for, the line, and the owner.
//!
//! Waits are wall time of the training thread. Time in which it was runnable without a CPU is a
//! wait, too, and so is time in which an operator waits for its slowest OpenMP thread.

use super::input_queue::{self, InlineInput, WorkerActivity};
use super::intervals::{Share, Shares};
use super::timeline::Timeline;
use crate::model::facts::Line;
use crate::model::ids::{NameId, ProcessId, ThreadId};
use crate::model::profile::{Profile, ProfileSample};
use crate::model::sample::Gil;
use crate::model::wait::WaitKind;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;

/// The thread that held the interpreter's lock while the training thread waited for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub thread: ThreadId,
    /// Its line, if its stack was read at that time.
    pub at: Option<Line>,
    pub ns: u64,
}

/// One thing that the training thread waited for, at one line.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitTime {
    pub kind: WaitKind,
    /// Label of the wait.
    pub what: String,
    /// The nearest line of the user's own code, or of a package's if there is none.
    pub at: Option<Line>,
    pub ns: u64,
    /// As a share of the thread's wall time.
    pub share: Share,
    /// For waits for the GIL: who held it, by descending time.
    pub holders: Vec<Holder>,
}

/// The waits of one training thread.
#[derive(Clone, Debug, Default)]
pub struct ProcessWaits {
    /// The process; `None` only in the default value.
    pub process: Option<ProcessId>,
    /// The training thread's wall time.
    pub wall_ns: u64,
    /// All waits together.
    pub ns: u64,
    /// As a share of the wall time.
    pub share: Share,
    /// Waits, most time first. They add up to `ns`.
    pub rows: Vec<WaitTime>,
    /// By kind, most time first.
    pub kinds: Vec<(WaitKind, u64, Share)>,
    /// What the DataLoader's workers did while the thread waited for them.
    pub worker_activity: Option<WorkerActivity>,
    /// What the thread itself did to make batches, without workers.
    pub inline: Option<InlineInput>,
}

/// What two waits of one row have in common. Waits for a CPU have no label.
type Key = (WaitKind, Option<NameId>, Option<Line>);

/// Samples with the rows that they belong to.
#[derive(Default)]
struct Rows {
    keys: Vec<Key>,
    index: FxHashMap<Key, usize>,
}

impl Rows {
    fn at(&mut self, key: Key) -> usize {
        let keys = &mut self.keys;
        *self.index.entry(key).or_insert_with(|| {
            keys.push(key);
            keys.len() - 1
        })
    }
}

const NO_CPU: &str = "no CPU (run queue, quota)";

/// The waits of `process`, whose training thread is `thread`.
pub fn waits(profile: &Profile, process: ProcessId, thread: ThreadId) -> ProcessWaits {
    let own: Vec<&ProfileSample> = super::of_thread(profile, thread);
    let wall_ns = own.iter().map(|sample| sample.weight_ns).sum();
    let ticks = own.iter().map(|sample| u64::from(sample.ticks)).sum();
    let mut rows = Rows::default();
    let parts: Vec<[Option<(usize, u64)>; 2]> = own
        .iter()
        .map(|sample| {
            let queue_ns = sample.queue_ns.min(sample.weight_ns);
            let at = profile.facts.line(sample.stack);
            let main = sample.wait.map(|wait| {
                let row = rows.at((wait.kind, Some(wait.label), at));
                (row, sample.weight_ns - queue_ns)
            });
            let queue = (queue_ns > 0).then(|| (rows.at((WaitKind::Cpu, None, at)), queue_ns));
            [main, queue]
        })
        .collect();
    let mut by_row = Shares::new(wall_ns, ticks, rows.keys.len());
    // The category after the kinds: any of them.
    let mut by_kind = Shares::new(wall_ns, ticks, WaitKind::ALL.len() + 1);
    let mut row_ns = vec![0_u64; rows.keys.len()];
    for (sample, parts) in own.iter().zip(&parts) {
        let found: Vec<(usize, u64)> = parts.iter().flatten().copied().collect();
        let any = (WaitKind::ALL.len(), found.iter().map(|&(_, ns)| ns).sum());
        let kinds: Vec<(usize, u64)> = found
            .iter()
            .filter_map(|&(row, ns)| Some((kind_index(rows.keys.get(row)?.0), ns)))
            .chain([any])
            .collect();
        by_row.add(sample.weight_ns, sample.ticks, &found);
        by_kind.add(sample.weight_ns, sample.ticks, &kinds);
        for (row, ns) in found {
            if let Some(sum) = row_ns.get_mut(row) {
                *sum = sum.saturating_add(ns);
            }
        }
    }
    let mut holders = gil_holders(profile, process, thread, &own, &parts, &rows);
    let mut list: Vec<WaitTime> = rows
        .keys
        .iter()
        .enumerate()
        .map(|(row, &(kind, what, at))| WaitTime {
            kind,
            what: what
                .map_or(NO_CPU, |what| profile.facts.names.get(what))
                .to_owned(),
            at,
            ns: row_ns.get(row).copied().unwrap_or(0),
            share: by_row.share(row),
            holders: holders.remove(&row).unwrap_or_default(),
        })
        .filter(|row| row.ns > 0)
        .collect();
    list.sort_by(|a, b| {
        (Reverse(a.ns), a.kind, &a.what, a.at).cmp(&(Reverse(b.ns), b.kind, &b.what, b.at))
    });
    ProcessWaits {
        process: Some(process),
        wall_ns,
        ns: list.iter().map(|row| row.ns).sum(),
        share: by_kind.share(WaitKind::ALL.len()),
        kinds: kinds(&list, &by_kind),
        rows: list,
        worker_activity: input_queue::worker_activity(profile, process, &own),
        inline: input_queue::inline(profile, &own, wall_ns, ticks),
    }
}

fn kind_index(kind: WaitKind) -> usize {
    kind as usize
}

fn kinds(rows: &[WaitTime], shares: &Shares) -> Vec<(WaitKind, u64, Share)> {
    let mut kinds: Vec<(WaitKind, u64, Share)> = WaitKind::ALL
        .iter()
        .map(|&kind| {
            let ns = rows.iter().filter(|row| row.kind == kind).map(|row| row.ns);
            (kind, ns.sum(), shares.share(kind_index(kind)))
        })
        .filter(|&(_, ns, _)| ns > 0)
        .collect();
    kinds.sort_by_key(|&(kind, ns, _)| (Reverse(ns), kind));
    kinds
}

/// Who held the GIL, by row. The samples of the process's other threads show when they held it; the
/// rest of a wait goes to the thread that the waiting thread's own sample names.
fn gil_holders(
    profile: &Profile,
    process: ProcessId,
    thread: ThreadId,
    own: &[&ProfileSample],
    parts: &[[Option<(usize, u64)>; 2]],
    rows: &Rows,
) -> FxHashMap<usize, Vec<Holder>> {
    let is_gil = |row: usize| rows.keys.get(row).is_some_and(|key| key.0 == WaitKind::Gil);
    let mut found: FxHashMap<usize, Vec<Holder>> = FxHashMap::default();
    if !rows.keys.iter().any(|key| key.0 == WaitKind::Gil) {
        return found;
    }
    let named: FxHashSet<ThreadId> = own.iter().filter_map(|sample| sample.gil_holder).collect();
    // Of some hundred threads few ever have the lock.
    let others = Timeline::new(profile.samples.iter().filter(|sample| {
        (sample.gil == Gil::Held || named.contains(&sample.thread))
            && sample.thread != thread
            && profile
                .thread(sample.thread)
                .is_some_and(|info| info.process == process)
    }));
    let mut sums: FxHashMap<(usize, ThreadId, Option<Line>), u64> = FxHashMap::default();
    for (sample, parts) in own.iter().zip(parts) {
        let Some(row) = parts.first().copied().flatten().map(|(row, _)| row) else {
            continue;
        };
        if is_gil(row) {
            for (holder, at, ns) in holders_of(profile, &others, sample) {
                let sum = sums.entry((row, holder, at)).or_default();
                *sum = sum.saturating_add(ns);
            }
        }
    }
    for ((row, thread, at), ns) in sums {
        found
            .entry(row)
            .or_default()
            .push(Holder { thread, at, ns });
    }
    for holders in found.values_mut() {
        *holders = by_function(std::mem::take(holders));
    }
    found
}

/// Merges holders by thread and function, with the line that each was at most.
fn by_function(mut lines: Vec<Holder>) -> Vec<Holder> {
    lines.sort_by_key(|holder| (Reverse(holder.ns), holder.thread, holder.at));
    let function = |holder: &Holder| (holder.thread, holder.at.map(|(function, _)| function));
    let mut merged: Vec<Holder> = Vec::new();
    for line in lines {
        match merged
            .iter_mut()
            .find(|holder| function(holder) == function(&line))
        {
            Some(holder) => holder.ns = holder.ns.saturating_add(line.ns),
            None => merged.push(line),
        }
    }
    merged.sort_by_key(|holder| (Reverse(holder.ns), holder.thread, holder.at));
    merged
}

/// Who held the lock during one wait, and for how long. No time counts twice.
fn holders_of(
    profile: &Profile,
    others: &Timeline<'_>,
    wait: &ProfileSample,
) -> Vec<(ThreadId, Option<Line>, u64)> {
    let end = wait.start_ns.saturating_add(wait.weight_ns);
    let mut holders = Vec::new();
    let mut at_ns = wait.start_ns;
    for piece in others.within(wait.start_ns, end) {
        let from = piece.from_ns.max(at_ns);
        if piece.sample.gil == Gil::Held && piece.to_ns > from {
            let line = profile.facts.of(piece.sample.stack).python_leaf;
            holders.push((piece.sample.thread, line, piece.to_ns - from));
            at_ns = piece.to_ns;
        }
    }
    let told_ns: u64 = holders.iter().map(|&(_, _, ns)| ns).sum();
    if told_ns < wait.weight_ns
        && let Some(holder) = wait.gil_holder
    {
        let line = others
            .within(wait.start_ns, end)
            .filter(|piece| piece.sample.thread == holder)
            .max_by_key(|piece| piece.length_ns())
            .and_then(|piece| profile.facts.of(piece.sample.stack).python_leaf);
        holders.push((holder, line, wait.weight_ns - told_ns));
    }
    // A part of the time it had no CPU, which is no wait for the lock.
    let own_ns = wait.weight_ns.saturating_sub(wait.queue_ns);
    for (_, _, ns) in &mut holders {
        let scaled = u128::from(*ns) * u128::from(own_ns) / u128::from(wait.weight_ns.max(1));
        *ns = u64::try_from(scaled).unwrap_or(*ns);
    }
    holders
}

/// The waits of every trainer, and of the primary process.
pub fn all(profile: &Profile, processes: &[(ProcessId, ThreadId)]) -> Vec<ProcessWaits> {
    processes
        .iter()
        .map(|&(process, thread)| waits(profile, process, thread))
        .collect()
}

/// The waits of `process`.
pub fn of(all: &[ProcessWaits], process: ProcessId) -> Option<&ProcessWaits> {
    all.iter().find(|waits| waits.process == Some(process))
}
