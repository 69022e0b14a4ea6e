//! Which ranks are rows of the heatmap, and which bars are shown.

use crate::analysis::job::Job;
use crate::analysis::job::ranks::Class;
use crate::report::label::{SHORT, clean, counted, ranges};
use crate::report::tables::job::RankRow;
use crate::report::text::job::rank_name;
use serde::Serialize;
use std::collections::BTreeMap;

/// Rows of the heatmap. Of larger jobs neighbouring ranks are put together.
const MOST_ROWS: usize = 1000;
/// Ranks that arrive last and keep a row, or a bar, of their own.
const MOST_LATE_ROWS: usize = 200;
const MOST_LATE_BARS: usize = 16;
/// Bars that are not of ranks that arrive last.
const MOST_BARS: usize = 64;

/// Longest list of ranks, characters.
const LONGEST: usize = 60;

/// A row of the heatmap: a rank, or neighbouring ones.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) host: String,
    /// Of one rank.
    pub(super) pid: Option<i32>,
    /// Ranks in it. The figures of several are their medians.
    pub(super) ranks: usize,
    pub(super) late: bool,
    pub(super) step_ms: Option<f64>,
    /// Indices of its ranks.
    #[serde(skip)]
    pub(super) members: Vec<usize>,
}

/// A bar of the distributed view.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) host: String,
    pub(super) late: bool,
    /// Ranks whose medians it has.
    pub(super) ranks: usize,
    pub(super) step_ms: Option<f64>,
    /// By class, of the time in steps.
    pub(super) shares: [f64; Class::COUNT],
}

/// The rows, by rank.
pub(super) fn rows(job: &Job, facts: &[RankRow]) -> Vec<Row> {
    if facts.len() <= MOST_ROWS {
        return (0..facts.len()).map(|at| row(facts, vec![at])).collect();
    }
    let late: Vec<usize> = late(job).take(MOST_LATE_ROWS).collect();
    // Ranks of different work are not put together, unless hardly any do the same.
    let mut parts: Vec<Vec<usize>> = match job.groups.len() {
        0..=100 => job
            .groups
            .iter()
            .map(|(group, _)| group.ranks.clone())
            .collect(),
        _ => vec![(0..facts.len()).collect()],
    };
    for part in &mut parts {
        part.retain(|at| !late.contains(at));
    }
    let places = MOST_ROWS - late.len() - parts.len();
    let size = facts.len().div_ceil(places.max(1)).max(1);
    let chunks = parts.iter().flat_map(|part| part.chunks(size));
    let mut members: Vec<Vec<usize>> = chunks.map(<[usize]>::to_vec).collect();
    members.extend(late.into_iter().map(|at| vec![at]));
    members.sort();
    members.into_iter().map(|each| row(facts, each)).collect()
}

/// Ranks that arrive last, by descending cost.
fn late(job: &Job) -> impl Iterator<Item = usize> {
    job.stragglers().map(|(_, each)| each.rank)
}

fn row(facts: &[RankRow], members: Vec<usize>) -> Row {
    let bar = bar(facts, &members);
    Row {
        pid: match members[..] {
            [one] => facts.get(one).map(|rank| rank.pid),
            _ => None,
        },
        name: bar.name,
        host: bar.host,
        ranks: bar.ranks,
        late: bar.late,
        step_ms: bar.step_ms,
        members,
    }
}

fn bar(facts: &[RankRow], members: &[usize]) -> Bar {
    let own: Vec<&RankRow> = members.iter().filter_map(|&at| facts.get(at)).collect();
    let mut hosts: Vec<&str> = own.iter().map(|rank| rank.host.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let mut numbers: Vec<u32> = own.iter().filter_map(|rank| rank.rank).collect();
    Bar {
        name: match own[..] {
            [one] => rank_name(one.rank, one.pid),
            _ if numbers.is_empty() => counted(own.len() as u64, "process"),
            _ => clean(&format!("ranks {}", ranges(&mut numbers)), LONGEST),
        },
        host: match hosts[..] {
            [one] => clean(one, SHORT),
            _ => counted(hosts.len() as u64, "host"),
        },
        late: own.iter().any(|rank| rank.arrives_last),
        ranks: own.len(),
        step_ms: median(own.iter().filter_map(|rank| rank.step_ms)),
        shares: std::array::from_fn(|class| {
            median(own.iter().map(|rank| shares(rank)[class])).unwrap_or(0.0)
        }),
    }
}

fn shares(rank: &RankRow) -> [f64; Class::COUNT] {
    [
        rank.computation,
        rank.communication_call,
        rank.communication_wait,
        rank.input,
        rank.gpu_wait,
        rank.python,
        rank.cpu_wait,
        rank.other,
    ]
}

pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    let (middle, is_even) = (values.len() / 2, values.len().is_multiple_of(2));
    if values.is_empty() {
        return None;
    }
    let (below, &mut upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let lower = below.iter().copied().max_by(f64::total_cmp);
    Some(match lower.filter(|_| is_even) {
        Some(lower) => (lower + upper) / 2.0,
        None => upper,
    })
}

/// The bars: ranks that arrive last, then all others, or their medians by host, group or number.
pub(super) fn bars(job: &Job, facts: &[RankRow]) -> Vec<Bar> {
    let is_small = facts.len() <= MOST_BARS;
    let most = if is_small { MOST_BARS } else { MOST_LATE_BARS };
    let first: Vec<usize> = late(job).take(most).collect();
    let rest = || (0..facts.len()).filter(|at| !first.contains(at));
    let mut parts: Vec<Vec<usize>> = Vec::new();
    if is_small {
        parts.extend(rest().map(|at| vec![at]));
    } else {
        let mut by_host: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for at in rest() {
            by_host.entry(&facts[at].host).or_default().push(at);
        }
        let groups = job.groups.iter().map(|(group, _)| {
            let own = group.ranks.iter().copied();
            own.filter(|at| !first.contains(at)).collect::<Vec<_>>()
        });
        let rest: Vec<usize> = rest().collect();
        match (by_host.len(), job.groups.len()) {
            (2..=MOST_BARS, _) => parts.extend(by_host.into_values()),
            (_, 2..=MOST_BARS) => parts.extend(groups),
            _ => {
                let size = rest.len().div_ceil(MOST_BARS).max(1);
                parts.extend(rest.chunks(size).map(<[usize]>::to_vec));
            }
        }
    }
    parts.retain(|part| !part.is_empty());
    parts.sort();
    let late = first.into_iter().map(|at| vec![at]);
    let all = late.chain(parts);
    all.map(|members| bar(facts, &members)).collect()
}
