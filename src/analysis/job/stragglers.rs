//! Ranks that the others wait for.
//!
//! Ranks step together, so a step lasts equally long on all of them, and a rank that needs less
//! time of its own waits for the others: in a collective, or, with NCCL, for its device, which
//! spins in one. The rank that waits clearly less than the others is the one that they wait for,
//! and what it does for longer than they do is the reason. Waits of a rank are compared with the
//! median of the ranks that do the same work, in each bin of steps, so no clocks are needed.
//!
//! With NCCL the same caution as in [`slow_rank`](crate::analysis::slow_rank) holds: a busy device
//! hides the work of its host.

use super::arrivals::{Arrival, arrivals};
use super::change::{Change, best_split, probability};
use super::ranks::{BinTimes, Class, Doing, Rank};
use crate::analysis::intervals::Share;
use crate::model::reduction::Bin;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::ops::Range;

/// Minimum difference between the waits of a rank and the others', as a share of the time.
pub(super) const NOTABLE: f64 = 0.05;
/// The lower end of the difference's interval must be this part of it: with many ranks some differ
/// by chance.
pub(super) const SURE: f64 = 0.25;
/// A rank that costs less than this part of what the slowest costs is not named next to it: it
/// suffers from the same.
const BESIDE: f64 = 0.25;
/// This part of the difference must be idle time of its device.
const IDLE: f64 = 0.5;
/// A host that waits for less than this share of the time is what a step waits for.
const HARDLY: f64 = 0.05;
/// Lines with less than this part of the first are not listed.
pub(super) const WORTH: f64 = 0.1;
const MOST_LINES: usize = 5;
/// With fewer steps or bins nothing is said of a rank.
const FEW_STEPS: u64 = 10;
const FEW_BINS: usize = 8;
/// Ranks whose steps differ by more from the median in the same bins do not step together with it.
const ALIKE: f64 = 0.05;
/// In larger groups the median of all stands for that of the others.
const SMALL: usize = 16;
/// Of so many others, evenly chosen, the median stands for that of all: each rank is compared.
const MANY: usize = 256;
/// A change is claimed if it is less probable by chance.
const CHANCE: f64 = 0.01;
/// This part of a run at either end is its start and its end: what is slow up to there is slow all
/// the time.
const ENDS: f64 = 0.08;

/// A rank that the others wait for.
#[derive(Clone, Debug, PartialEq)]
pub struct Straggler {
    /// Index of the rank.
    pub rank: usize,
    /// Its waits for others, and the median of the others', as shares of the time in which it is
    /// slow.
    pub waits: Share,
    pub others_waits: Share,
    /// How much less it waits: what each step lasts longer than with it as fast as the median.
    pub less: Share,
    /// The same in seconds per step.
    pub per_step_s: f64,
    /// Mean length of a step in that time, s.
    pub slow_step_s: f64,
    /// How much longer it is without a CPU than the median of the others, as a share of that time.
    pub without_cpu: f64,
    /// That time, as a share of its time in steps.
    pub slow_part: f64,
    /// Bins of the time in which it is slow, and those in which it waited least of all.
    pub bins: usize,
    pub last_in: usize,
    /// How much less its device was busy than the median of the others; `None` if not known.
    pub device_idles: Option<f64>,
    /// Since when it is slow, and until when; empty if all the time.
    pub changes: Vec<Since>,
    /// What it does for longer than the median of the others, as shares of that time.
    pub doing: Vec<(Doing, f64)>,
}

/// A rank that waits less than the others, which is not enough to be named.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unsure {
    /// Index of the rank.
    pub rank: usize,
    /// Its waits for others, and the median of the others', as shares of the time.
    pub waits: Share,
    pub others_waits: Share,
    /// Its steps have another length than the others'; else the difference varies too much.
    pub is_out_of_step: bool,
}

/// A change of a rank's speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Since {
    /// The bins of the change: index in the rank's bins.
    pub change: Change,
    /// It became slow at the change; else it stopped being slow.
    pub began: bool,
    /// How probable such a change is by chance.
    pub chance: f64,
}

/// What was found in one group of ranks that do the same work.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compared {
    /// By descending cost.
    pub stragglers: Vec<Straggler>,
    /// Ranks that may be late.
    pub unsure: Vec<Unsure>,
    /// Number of ranks that wait clearly less, and of which it is not seen that the others wait for
    /// them: their devices are as busy as the others', or of unknown utilization, or they seem to
    /// launch kernels all that time.
    pub hidden: usize,
    /// Ranks wait less than others, and these are too many, or it is now one and now another.
    pub is_uneven: bool,
    /// Mean length of a step, s.
    pub step_s: Option<f64>,
    /// The same if the slowest rank were as fast as the median: `step_s` less what it costs.
    pub ideal_step_s: Option<f64>,
    /// Ranks that were compared.
    pub compared: usize,
    /// What each of these waits for others, and how often it is the last; empty of fewer than two.
    pub arrivals: Vec<Arrival>,
    /// Indices of ranks with too few steps.
    pub too_short: Vec<usize>,
    /// Indices of ranks that do not step together with the others.
    pub out_of_step: Vec<usize>,
}

/// Bins of `ranks` are brought to a common width before.
pub fn compare(ranks: &[Rank], group: &[usize]) -> Compared {
    let mut found = Compared::default();
    let mut together: Vec<usize> = Vec::new();
    for &at in group {
        let Some(rank) = ranks.get(at) else { continue };
        match rank.facts.steps >= FEW_STEPS && rank.facts.bins.len() >= FEW_BINS {
            true => together.push(at),
            false => found.too_short.push(at),
        }
    }
    let lengths = relative_lengths(ranks, &together);
    let together: Vec<(usize, f64)> = together.into_iter().zip(lengths).collect();
    let is_alike = |(_, length): &(usize, f64)| (length - 1.0).abs() <= ALIKE;
    let (alike, out): (Vec<_>, Vec<_>) = together.into_iter().partition(is_alike);
    let together: Vec<usize> = alike.into_iter().map(|(at, _)| at).collect();
    found.out_of_step = out.into_iter().map(|(at, _)| at).collect();
    found.compared = together.len();
    if together.len() < 2 {
        return found;
    }
    let step_s = |&at: &usize| ranks.get(at).map(mean_step_s);
    let middle_s = median(together.iter().filter_map(step_s));
    found.step_s = Some(middle_s);
    found.arrivals = arrivals(ranks, &together);
    let series = Series::new(ranks, &together);
    let mut stragglers: Vec<Straggler> = Vec::new();
    for member in 0..together.len() {
        match straggler(ranks, &together, &series, member) {
            Some(Ok(late)) => stragglers.push(late),
            Some(Err(Doubt::Unsure(unsure))) => found.unsure.push(unsure),
            Some(Err(Doubt::Hidden)) => found.hidden += 1,
            Some(Err(Doubt::Uneven)) => found.is_uneven = true,
            None => {}
        }
    }
    let out = found.out_of_step.iter();
    let out = out.filter_map(|&at| less_on_average(ranks, &together, at, true));
    found.unsure.extend(out);
    let cost = |each: &Straggler| each.less.value * each.slow_part;
    stragglers.sort_by(|a, b| cost(b).total_cmp(&cost(a)));
    let most = stragglers.first().map_or(0.0, cost);
    stragglers.retain(|each| cost(each) >= BESIDE * most);
    let less = |each: &Unsure| each.others_waits.value - each.waits.value;
    found.unsure.retain(|each| less(each) >= BESIDE * most);
    // Where most of the ranks wait less than the others, work is shared unevenly; nobody is late.
    // Of two ranks each may have a part of the run in which it does.
    if 2 * stragglers.len() > together.len() {
        stragglers.clear();
        found.is_uneven = true;
    }
    let most = stragglers.first().map_or(0.0, cost);
    found.ideal_step_s = Some(middle_s * (1.0 - most));
    found.stragglers = stragglers;
    found
}

/// Time of each of these ranks in steps, over what the median rank needs for the same steps; 0
/// where no other rank has them. The counters of one may have been found later than those of
/// another, and not all steps are alike.
fn relative_lengths(ranks: &[Rank], members: &[usize]) -> Vec<f64> {
    let step_s = |bin: &Bin| Rank::length_s(bin) / f64::from(bin.steps.max(1));
    let members: Vec<&Rank> = members.iter().filter_map(|&at| ranks.get(at)).collect();
    let mut of_bin: FxHashMap<u64, Vec<f64>> = FxHashMap::default();
    for bin in members.iter().flat_map(|rank| &rank.facts.bins) {
        of_bin.entry(bin.index).or_default().push(step_s(bin));
    }
    let shared = of_bin.into_iter().filter(|(_, lengths)| lengths.len() > 1);
    let medians: FxHashMap<u64, f64> = shared
        .map(|(bin, lengths)| (bin, median(lengths.into_iter())))
        .collect();
    let relative = |rank: &&Rank| {
        let (mut own_s, mut usual_s) = (0.0, 0.0);
        for bin in &rank.facts.bins {
            if let Some(median_s) = medians.get(&bin.index) {
                own_s += Rank::length_s(bin);
                usual_s += median_s * f64::from(bin.steps);
            }
        }
        if usual_s > 0.0 { own_s / usual_s } else { 0.0 }
    };
    members.iter().map(relative).collect()
}

pub(super) fn mean_step_s(rank: &Rank) -> f64 {
    rank.seconds() / rank.facts.steps.max(1) as f64
}

pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => (values[count / 2 - 1] + values[count / 2]) / 2.0,
    }
}

/// Waits by bin, as shares of the bin's time, of all ranks that are compared.
struct Series {
    /// By member: bin's index and share.
    waits: Vec<FxHashMap<u64, f64>>,
    /// The median of all by bin, and the least.
    median: FxHashMap<u64, f64>,
    least: FxHashMap<u64, f64>,
}

impl Series {
    fn new(ranks: &[Rank], members: &[usize]) -> Self {
        let waits: Vec<FxHashMap<u64, f64>> = members
            .iter()
            .filter_map(|&at| ranks.get(at))
            .map(|rank| {
                let share = |(bin, times): (&Bin, &BinTimes)| {
                    let length = Rank::length_s(bin).max(1e-9);
                    (bin.index, f64::from(times.waits) / length)
                };
                rank.bins().map(share).collect()
            })
            .collect();
        let mut of_bin: FxHashMap<u64, Vec<f64>> = FxHashMap::default();
        for own in &waits {
            for (&bin, &share) in own {
                of_bin.entry(bin).or_default().push(share);
            }
        }
        let least = |shares: &Vec<f64>| shares.iter().copied().fold(f64::MAX, f64::min);
        Self {
            least: of_bin
                .iter()
                .map(|(&bin, shares)| (bin, least(shares)))
                .collect(),
            median: of_bin
                .into_iter()
                .map(|(bin, shares)| (bin, median(shares.into_iter())))
                .collect(),
            waits,
        }
    }

    /// The median of the others than `member` in a bin.
    fn others(&self, member: usize, bin: u64) -> f64 {
        if self.waits.len() > SMALL {
            return self.median.get(&bin).copied().unwrap_or(0.0);
        }
        let others = self
            .waits
            .iter()
            .enumerate()
            .filter(|&(at, _)| at != member);
        median(others.filter_map(|(_, own)| own.get(&bin).copied()))
    }
}

/// Why a rank that waits less than the others is not named.
enum Doubt {
    Unsure(Unsure),
    /// See [`Compared::hidden`].
    Hidden,
    /// See [`Compared::is_uneven`].
    Uneven,
}

/// `None`: it waits as the others do, or cannot be compared.
fn straggler(
    ranks: &[Rank],
    members: &[usize],
    series: &Series,
    member: usize,
) -> Option<Result<Straggler, Doubt>> {
    let at = *members.get(member)?;
    let rank = ranks.get(at)?;
    let own = series.waits.get(member)?;
    let indices: Vec<u64> = rank.facts.bins.iter().map(|bin| bin.index).collect();
    let share = |bin: &u64| own.get(bin).copied().unwrap_or(0.0);
    let less: Vec<f64> = indices
        .iter()
        .map(|bin| series.others(member, *bin) - share(bin))
        .collect();
    let mean = less.iter().sum::<f64>() / less.len().max(1) as f64;
    let split = best_split(&less);
    let most = split.map_or(mean, |split| mean.max(split.before).max(split.after));
    if most < NOTABLE {
        // In most bins it waits as the others do, and in a few long ones less. A busy device hides
        // what its host does.
        let unsure = less_on_average(ranks, members, at, false);
        let unsure = unsure.filter(|_| !rank.facts.nccl);
        return unsure.map(|unsure| Err(Doubt::Unsure(unsure)));
    }
    let (slow, changes) = slow_part(&less);
    let is_slow = |bin: u64| {
        let found = indices.binary_search(&bin);
        found.is_ok_and(|index| slow.contains(&index))
    };
    let slow_bins = || rank.facts.bins.get(slow.clone()).unwrap_or_default().iter();
    let slow_steps: u32 = slow_bins().map(|bin| bin.steps).sum();
    let slow_s: f64 = slow_bins().map(Rank::length_s).sum();
    let slow_step_s = slow_s / f64::from(slow_steps.max(1));
    let waits = rank.share(is_slow, |times| times.waits);
    let other = typical(ranks, members, at, is_slow)?;
    let others_waits = other.share(is_slow, |times| times.waits);
    let less_share = others_waits.minus(&waits);
    let (own_launches, others_launch) = (
        rank.share(is_slow, |times| times.waits_or_launches),
        other.share(is_slow, |times| times.waits_or_launches),
    );
    // A rank whose script never asks for a result waits where the launch queue is full, and seems
    // to launch.
    let surely = others_launch.minus(&own_launches).low > 0.0;
    if less_share.value < NOTABLE {
        return Some(Err(Doubt::Uneven));
    }
    if !surely {
        return Some(Err(Doubt::Hidden));
    }
    if less_share.low < SURE * less_share.value {
        return Some(Err(Doubt::Unsure(Unsure {
            rank: at,
            waits,
            others_waits,
            is_out_of_step: false,
        })));
    }
    let others = members.iter().filter(|&&each| each != at);
    let busy: Vec<f64> = others
        .filter_map(|&each| ranks.get(each)?.facts.utilization)
        .collect();
    let own_busy = rank.facts.utilization.filter(|_| !busy.is_empty());
    let device_idles = own_busy.map(|own| median(busy.into_iter()) - own);
    let slow_part = slow_s / rank.seconds().max(1e-9);
    let is_late = match (rank.facts.nccl, device_idles) {
        (false, _) => true,
        // Utilization is of all steps.
        (true, Some(idles)) => idles >= IDLE * less_share.value * slow_part,
        (true, None) => waits.value <= HARDLY,
    };
    if !is_late {
        return Some(Err(Doubt::Hidden));
    }
    let last_in = |index: &&u64| {
        let least = series.least.get(*index).copied().unwrap_or(0.0);
        is_slow(**index) && share(index) <= least
    };
    let without_cpu = |rank: &Rank| rank.share(is_slow, |times| times.of(Class::CpuWait)).value;
    Some(Ok(Straggler {
        rank: at,
        without_cpu: without_cpu(rank) - without_cpu(other),
        slow_part,
        waits,
        others_waits,
        less: less_share,
        per_step_s: less_share.value * slow_step_s,
        bins: slow.len(),
        last_in: indices.iter().filter(last_in).count(),
        device_idles,
        changes,
        slow_step_s,
        doing: doing(ranks, members, at, slow_part),
    }))
}

/// A rank that waits less than the median of the others over the whole run.
fn less_on_average(
    ranks: &[Rank],
    others: &[usize],
    at: usize,
    is_out_of_step: bool,
) -> Option<Unsure> {
    let always = |_: u64| true;
    let waits = ranks.get(at)?.share(always, |times| times.waits);
    let other = typical(ranks, others, at, always)?;
    let others_waits = other.share(always, |times| times.waits);
    let less = others_waits.minus(&waits);
    (less.value >= NOTABLE && less.low > 0.0).then_some(Unsure {
        rank: at,
        waits,
        others_waits,
        is_out_of_step,
    })
}

/// The bins in which a rank is slow, and the changes at their ends.
fn slow_part(less: &[f64]) -> (Range<usize>, Vec<Since>) {
    let count = less.len();
    let edge = |share: f64| (share * count as f64) as usize;
    // What begins and ends a run is no change of speed.
    let mut searched = edge(ENDS / 2.0)..count - edge(ENDS / 2.0);
    let mut slow = 0..count;
    let mut changes: Vec<Since> = Vec::new();
    while changes.len() < 2 {
        let values = less.get(searched.clone()).unwrap_or_default();
        let split = best_split(values).and_then(|change| since(values, change));
        let Some(mut found) = split else { break };
        for at in [
            &mut found.change.at,
            &mut found.change.low,
            &mut found.change.high,
        ] {
            *at += searched.start;
        }
        let at = found.change.at;
        let is_at_an_end = match found.began {
            true => at < edge(ENDS),
            false => at > count - edge(ENDS),
        };
        let is_second = changes.iter().any(|other| other.began == found.began);
        if is_at_an_end || is_second {
            break;
        }
        match found.began {
            true => (slow.start, searched.start) = (at, at),
            false => (slow.end, searched.end) = (at, at),
        }
        changes.push(found);
    }
    changes.sort_by_key(|found| found.change.at);
    (slow, changes)
}

/// A change that is worth a word, of how much less a rank waits.
fn since(less: &[f64], change: Change) -> Option<Since> {
    let began = change.after > change.before;
    let (slow, fast) = match began {
        true => (change.after, change.before),
        false => (change.before, change.after),
    };
    // It is slow on both sides: more or less so.
    if slow < NOTABLE || fast > slow / 2.0 {
        return None;
    }
    let chance = probability(less);
    (chance <= CHANCE).then_some(Since {
        change,
        began,
        chance,
    })
}

/// All members, or [`MANY`] of them.
fn some(members: &[usize]) -> impl Iterator<Item = &usize> {
    members.iter().step_by(members.len().div_ceil(MANY).max(1))
}

/// The rank of the others whose waits are the median; of many, the median of some.
fn typical<'r>(
    ranks: &'r [Rank],
    members: &[usize],
    except: usize,
    is_chosen: impl Fn(u64) -> bool,
) -> Option<&'r Rank> {
    let mut others: Vec<(f64, &Rank)> = some(members)
        .filter(|&&each| each != except)
        .filter_map(|&each| ranks.get(each))
        .map(|rank| {
            let chosen = rank.bins().filter(|(bin, _)| is_chosen(bin.index));
            let (waits, all) = chosen.fold((0.0, 0.0), |(waits, all), (bin, times)| {
                (waits + f64::from(times.waits), all + Rank::length_s(bin))
            });
            (waits / all.max(1e-9), rank)
        })
        .collect();
    others.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Of two in the middle the one that waits less.
    others
        .get((others.len().max(1) - 1) / 2)
        .map(|&(_, rank)| rank)
}

/// What a rank does for longer than the median of the others, over the run: all of it is of the
/// part in which it is slow, `slow_part` of the time.
pub(super) fn doing(
    ranks: &[Rank],
    members: &[usize],
    at: usize,
    slow_part: f64,
) -> Vec<(Doing, f64)> {
    let with_time = |at: usize| {
        let rank = ranks.get(at)?;
        Some((rank, rank.seconds().max(1e-9)))
    };
    let Some(own) = with_time(at) else {
        return Vec::new();
    };
    let share = |(rank, seconds): (&Rank, f64), doing: &Doing| {
        rank.own.get(doing).copied().unwrap_or(0.0) / seconds
    };
    let others = some(members).filter(|&&each| each != at);
    let others: Vec<(&Rank, f64)> = others.filter_map(|&each| with_time(each)).collect();
    let mut more: Vec<(Doing, f64)> = own
        .0
        .own
        .keys()
        .map(|doing| {
            let typical = median(others.iter().map(|&other| share(other, doing)));
            (*doing, (share(own, doing) - typical) / slow_part)
        })
        .filter(|&(_, more)| more > 0.0)
        .collect();
    let order = |share: f64| Reverse((share * 1e9) as u64);
    more.sort_by_key(|&(doing, share)| (order(share), doing));
    more.truncate(MOST_LINES);
    let most = more.first().map_or(0.0, |&(_, share)| share);
    more.retain(|&(_, share)| share >= WORTH * most);
    more
}
