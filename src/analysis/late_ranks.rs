//! Which rank the others wait for.
//!
//! Ranks of one recording share a clock. In each interval in which a rank waits in a collective,
//! the other ranks that are in none have not arrived. The others wait for the last of them; the
//! code that its training thread executed during that time is the reason. The rest of the interval,
//! after all have arrived, is the collective itself. Ranks in other recordings are not seen: see
//! [`job`](super::job).

use super::collectives::{CollectiveTime, waits};
use super::timeline::Timeline;
use crate::model::collective::CollectiveCall;
use crate::model::facts::Line;
use crate::model::ids::{FunctionId, ProcessId};
use crate::model::profile::{Profile, ProfileSample};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// A rank that arrived last, and its line at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Late {
    pub process: ProcessId,
    /// The nearest line of the user's own code; `None` if there is none.
    pub at: Option<Line>,
    /// How long the others waited for it there.
    pub ns: u64,
}

/// An interval in which a rank waits in one collective.
pub(super) struct Interval {
    from_ns: u64,
    to_ns: u64,
    /// The row of the collective.
    pub(super) row: usize,
}

/// Where a rank was that had not arrived: line, start, end.
type Missing = (Option<Line>, u64, u64);

/// Merges successive samples of one wait into an interval.
pub(super) fn intervals(
    profile: &Profile,
    own: &[&ProfileSample],
    of_sample: &[Option<usize>],
) -> Vec<Interval> {
    let mut intervals: Vec<Interval> = Vec::new();
    for (sample, row) in own.iter().zip(of_sample) {
        let Some(row) = *row else { continue };
        let arrived = profile
            .facts
            .collective(sample.collective)
            .is_some_and(CollectiveCall::has_arrived);
        if !arrived || !waits(sample) {
            continue;
        }
        let end = sample.start_ns.saturating_add(sample.weight_ns);
        match intervals.last_mut() {
            Some(last) if last.row == row && last.to_ns == sample.start_ns => last.to_ns = end,
            _ => intervals.push(Interval {
                from_ns: sample.start_ns,
                to_ns: end,
                row,
            }),
        }
    }
    intervals
}

/// Charges an interval to the rank that arrived last in it, at the lines that it executed before.
pub(super) fn blame(
    profile: &Profile,
    interval: &Interval,
    peers: &[(ProcessId, &Timeline<'_>)],
    tick_ns: u64,
    sums: &mut FxHashMap<(ProcessId, Option<Line>), u64>,
) {
    let mut last: Option<(u64, ProcessId, Vec<Missing>)> = None;
    for &(peer, timeline) in peers {
        let missing = missing(profile, interval, timeline, tick_ns);
        let Some(&(_, _, arrived_ns)) = missing.last() else {
            continue;
        };
        if last
            .as_ref()
            .is_none_or(|(latest, _, _)| arrived_ns > *latest)
        {
            last = Some((arrived_ns, peer, missing));
        }
    }
    let Some((_, process, missing)) = last else {
        return;
    };
    for (line, from_ns, to_ns) in missing {
        let sum = sums.entry((process, line)).or_default();
        *sum = sum.saturating_add(to_ns - from_ns);
    }
}

/// Where a peer was in an interval before it arrived: line, start, end. What it does after its
/// arrival, in the last two ticks of the interval, is the next step, which it began while the
/// waiting rank was still waking up.
fn missing(
    profile: &Profile,
    interval: &Interval,
    peer: &Timeline<'_>,
    tick_ns: u64,
) -> Vec<Missing> {
    let mut found: Vec<Missing> = Vec::new();
    let mut since_arrival: Option<usize> = None;
    for piece in peer.within(interval.from_ns, interval.to_ns) {
        let arrived = profile
            .facts
            .collective(piece.sample.collective)
            .is_some_and(CollectiveCall::has_arrived);
        if arrived {
            since_arrival = Some(found.len());
        } else {
            let line = profile.facts.line(piece.sample.stack);
            found.push((line, piece.from_ns, piece.to_ns));
        }
    }
    if let Some(first) = since_arrival
        && let Some(&(_, from, _)) = found.get(first)
        && interval.to_ns - from <= tick_ns.saturating_mul(2)
    {
        found.truncate(first);
    }
    found
}

/// The rank that was last for the most time; for how long; and its most frequent line, from its
/// most frequent function.
pub fn last_rank(row: &CollectiveTime) -> Option<(ProcessId, u64, Option<Line>)> {
    let process = row
        .late
        .iter()
        .map(|late| late.process)
        .max_by_key(|&process| (sum(of_process(row, process)), Reverse(process)))?;
    let of_function = |function: Option<FunctionId>| {
        sum(of_process(row, process).filter(|late| late.at.map(|(each, _)| each) == function))
    };
    // Lines are sorted, so the first of the best function is its best.
    let best = of_process(row, process)
        .map(|late| late.at)
        .min_by_key(|at| Reverse(of_function(at.map(|(function, _)| function))))
        .flatten();
    Some((process, sum(of_process(row, process)), best))
}

fn of_process(row: &CollectiveTime, process: ProcessId) -> impl Iterator<Item = &Late> {
    row.late.iter().filter(move |late| late.process == process)
}

fn sum<'l>(late: impl Iterator<Item = &'l Late>) -> u64 {
    late.map(|each| each.ns).sum()
}
