//! Hosts' clocks, aligned by what is simultaneous.
//!
//! Wall clocks of hosts differ by milliseconds and more. A collective ends on all of its ranks at
//! nearly the same time, and each rank's samples show when, to about a tick; over hundreds of steps
//! the mean difference between two hosts is known to a small part of one. The difference may grow:
//! clocks drift by some parts in a million. So a line is fitted to the differences: first by the
//! median of the slopes of all pairs (Theil 1950, Sen 1968), which outliers do not move, then by
//! least squares over what lies near it.
//!
//! A thread is polled once in each interval of a tick, at a random time in it. So a collective that
//! was seen to go on at one poll, and not at the next, ended in between: on average half a tick
//! after the poll if it lasted for long; sooner if it lasts for less than a tick, as on the rank
//! that arrives last ([`lag`]).
//!
//! Where the thread sleeps in the collective, the kernel's times tell more: for how long it ran and
//! waited for a CPU until the next poll. A rank that waits for a CPU after its collective has ended
//! looks as if it were still in it; by these times it does not. The first rank of a host that woke
//! is taken: what wakes a rank, a thread that reads its sockets, may itself wait for a CPU, which
//! only makes it later. (Of 40 recorded jobs of 8 Gloo ranks on two CPUs, half of the ranks on each
//! of two hosts, clocks were off by 0.21 ms in the median and 0.81 at most; by the mean of the
//! ranks 0.56 and 1.32.)
//!
//! A thread that waits for a device may spin, and then it has no sleep: its ends are known by polls
//! only, and the mean of the host's ranks is taken. A rank that arrives last has still to launch
//! what follows, and its wait ends later; it is seen to wait seldom, and left out. (Of 4 recorded
//! jobs of 4 ranks with NCCL that spin on two CPUs, two on each host, clocks were off by 0.3, 0.8,
//! 1.0 and 1.0 ms; with step numbers alone, and without the ends around which a rank had no CPU for
//! a tenth of a tick, by 0.8 to 3.6.)
//!
//! Which steps of two hosts are the same shows in their lengths, which vary alike; where they do
//! not, in counters that count alike on all ranks (an optimizer's `state`, a trainer's steps).

use super::lines::{least_squares, robust_line};
use super::ranks::Rank;
use super::same_steps::{Steps, best_shift, by_step, by_time, differences, mean_distance, step_s};
use crate::model::reduction::{Reduction, SyncEnd};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Ends that an alignment needs.
const FEWEST: usize = 30;
/// A difference that is farther from the line is an outlier. Each end is off by up to a tick, and
/// polls come at nearly equal intervals: differences lie a tick apart from each other, so that
/// their own spread is no measure.
const OUTLIER_TICKS: f64 = 3.0;
/// The same where ends are known by polls only: ranks that spin are seen later by chance.
const OUTLIER_TICKS_POLLED: f64 = 6.0;
/// Wall clocks are not off by more, s, and not by more steps.
const MOST_OFF_S: f64 = 10.0;
const MOST_SHIFTS: f64 = 500.0;
/// Numbers of steps of ranks on one host differ by no more from what their times suggest.
const FEW_SHIFTS: i64 = 4;
/// Where steps are at least so long, in ticks, or ends are known exactly, the same step of two
/// ranks of a host is the one that ends next to it: a rank's numbers may be one too high from a
/// step on.
const LONG_STEP_TICKS: f64 = 2.0;
/// A rank that is seen to wait in less than this part of the steps in which others are arrives
/// last.
const SELDOM: f64 = 2.0 / 3.0;
/// Standard errors by which the scatter of the next best shift must be larger: that of a logarithm
/// of a standard deviation of `n` values is 0.7 by the square root of `n`.
const SURE: f64 = 3.0;
/// Recordings of one host have one clock if their offsets between wall clock and CLOCK_MONOTONIC do
/// not differ by more, ns; containers of the same name may be on different hosts.
const SAME_CLOCK_NS: i64 = 200_000_000;

/// How a host's clock was aligned.
#[derive(Clone, Debug, PartialEq)]
pub enum Alignment {
    /// The others are aligned with it.
    Reference,
    /// By the ends of collectives, or of waits for devices.
    Ends {
        /// Steps whose ends were compared.
        steps: usize,
        /// 95 % interval of the offset, s: plus or minus.
        error_s: f64,
    },
    /// By the wall clocks alone, for this reason.
    WallClock(&'static str),
}

/// The clock of a host.
#[derive(Clone, Debug, PartialEq)]
pub struct Clock {
    pub host: String,
    /// Indices of its recordings.
    pub recordings: Vec<usize>,
    /// Wall clock minus CLOCK_MONOTONIC, ns.
    pub wall_ns: i64,
    /// How far its wall clock is ahead of the reference's, s, at the middle of the run.
    pub ahead_s: f64,
    /// By how much more each second, s/s.
    pub drift: f64,
    /// The middle of the run by its wall clock, ns since 1970.
    pub middle_ns: i64,
    pub alignment: Alignment,
}

impl Clock {
    /// A time of CLOCK_MONOTONIC by the reference's wall clock, ns since 1970.
    pub fn reference_ns(&self, monotonic_ns: u64) -> i64 {
        let wall = i64::try_from(monotonic_ns)
            .unwrap_or(i64::MAX)
            .saturating_add(self.wall_ns);
        let since_middle = wall.saturating_sub(self.middle_ns) as f64;
        let ahead = self.ahead_s * 1e9 + self.drift * since_middle;
        wall.saturating_sub(ahead as i64)
    }
}

/// Offset of a recording's wall clock to its CLOCK_MONOTONIC, ns.
pub fn wall_offset_ns(reduction: &Reduction) -> i64 {
    let ns = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    ns(reduction.started_wall_ns).saturating_sub(ns(reduction.started_ns))
}

/// Ends of a host's steps.
struct Ends {
    /// By step the mean of its ranks, by the wall clock, in seconds since the run's start. The same
    /// steps of two hosts are found by them: the first rank alone is off by a step at times.
    by_step: Steps,
    /// By step when the first of its ranks woke; if ends are known by polls only, the mean.
    ends: Steps,
    by_wakes: bool,
    /// Ranks that it is of.
    ranks: usize,
    /// How far the mean end of each rank is from that of all, s: some wake up later than others.
    deviations: Vec<f64>,
    /// Numbers of steps count from the program's start, and are exact.
    counts_from_start: bool,
    /// As in [`crate::model::reduction::ReducedRank::counted`].
    counted: Option<(String, i64)>,
}

/// Clocks of all hosts: `recordings` by host and [`wall_offset_ns`], and their ranks.
pub fn clocks(recordings: &[(String, i64)], ranks: &[Rank]) -> Vec<Clock> {
    let mut clocks = hosts(recordings);
    let Some(from_ns) = clocks.first().map(|clock| {
        let starts = ranks.iter().map(|rank| rank.facts.start_ns).min();
        i64::try_from(starts.unwrap_or(0))
            .unwrap_or(0)
            .saturating_add(clock.wall_ns)
    }) else {
        return clocks;
    };
    let mut of_clock: Vec<Vec<&Rank>> = vec![Vec::new(); clocks.len()];
    let owner: FxHashMap<usize, usize> = clocks
        .iter()
        .enumerate()
        .flat_map(|(at, clock)| clock.recordings.iter().map(move |&each| (each, at)))
        .collect();
    for rank in ranks {
        if let Some(list) = owner
            .get(&rank.recording)
            .and_then(|&at| of_clock.get_mut(at))
        {
            list.push(rank);
        }
    }
    let ends: Vec<Option<Ends>> = clocks
        .iter()
        .zip(&of_clock)
        .map(|(clock, ranks)| ends(clock, ranks, from_ns))
        .collect();
    // The first host with hardly fewer steps than any other is the reference.
    let steps = |ends: &Option<Ends>| ends.as_ref().map_or(0, |ends| ends.by_step.len());
    let most = ends.iter().map(steps).max().unwrap_or(0);
    let reference = ends.iter().position(|ends| 10 * steps(ends) >= 9 * most);
    let reference = reference.unwrap_or(0);
    let between_ranks_s = between_ranks_s(ends.iter().flatten());
    let tick_s = ranks.iter().map(tick_ns).fold(0.0, f64::max) / 1e9;
    let to = ends.get(reference).and_then(Option::as_ref);
    for (at, clock) in clocks.iter_mut().enumerate() {
        if at == reference {
            clock.alignment = Alignment::Reference;
            continue;
        }
        match (to, ends.get(at).and_then(Option::as_ref)) {
            (Some(to), Some(own)) => align(clock, own, to, from_ns, between_ranks_s, tick_s),
            _ => {
                clock.alignment = Alignment::WallClock("too few collectives were seen to end");
            }
        }
    }
    clocks
}

/// Standard deviation of the mean ends of ranks that have one clock, s; 0 if no host has several.
fn between_ranks_s<'e>(hosts: impl Iterator<Item = &'e Ends>) -> f64 {
    let (mut squares, mut freedom) = (0.0, 0.0);
    for host in hosts.filter(|host| host.deviations.len() > 1) {
        squares += host.deviations.iter().map(|each| each.powi(2)).sum::<f64>();
        freedom += host.deviations.len() as f64 - 1.0;
    }
    (squares / f64::max(freedom, 1.0)).sqrt()
}

/// One clock for each host, not aligned yet.
fn hosts(recordings: &[(String, i64)]) -> Vec<Clock> {
    let mut clocks: Vec<Clock> = Vec::new();
    for (index, (host, wall_ns)) in recordings.iter().enumerate() {
        let same = clocks.iter_mut().find(|clock| {
            clock.host == *host && clock.wall_ns.abs_diff(*wall_ns) as i64 <= SAME_CLOCK_NS
        });
        match same {
            Some(clock) => clock.recordings.push(index),
            None => clocks.push(Clock {
                host: host.clone(),
                recordings: vec![index],
                wall_ns: *wall_ns,
                ahead_s: 0.0,
                drift: 0.0,
                middle_ns: 0,
                alignment: Alignment::WallClock("no other host"),
            }),
        }
    }
    clocks
}

/// The ends of the steps of a host's ranks, by the numbers of one of them; `None` if too few are
/// known.
fn ends(clock: &Clock, ranks: &[&Rank], from_ns: i64) -> Option<Ends> {
    let seconds = |at: f64| (at + clock.wall_ns as f64 - from_ns as f64) / 1e9;
    let woke = |rank: &&Rank| -> Option<Steps> {
        let ends = rank.facts.sync_ends.iter();
        let woke = ends.filter_map(|end| Some((end.step, seconds(end.woke_ns? as f64))));
        let woke: Steps = woke.collect();
        let is_enough = woke.len() >= FEWEST && 2 * woke.len() > rank.facts.sync_ends.len();
        is_enough.then_some(woke)
    };
    let polled = |rank: &&Rank| -> Steps {
        let after_ns = (lag(ticks_in_it(rank)) - 0.5) * tick_ns(rank);
        let at = |end: &SyncEnd| seconds(end.end_ns as f64 + after_ns);
        let ends = rank.facts.sync_ends.iter();
        ends.map(|end| (end.step, at(end))).collect()
    };
    let woken = ranks.iter().filter_map(|rank| Some((*rank, woke(rank)?)));
    let mut all: Vec<(&Rank, Steps)> = woken.collect();
    let by_wakes = 2 * all.len() >= ranks.len() && !all.is_empty();
    if !by_wakes {
        all = ranks.iter().map(|rank| (*rank, polled(rank))).collect();
        all.retain(|(_, own)| own.len() >= FEWEST);
    }
    // Of a rank with many, one part in so many is kept.
    let seen = |(rank, own): &(&Rank, Steps)| own.len() as u64 * rank.facts.sync_every.max(1);
    let most = all.iter().map(seen).max()?;
    if !by_wakes {
        all.retain(|each| seen(each) as f64 >= SELDOM * most as f64);
    }
    let (_, numbering) = all.iter().max_by_key(|(_, own)| own.len())?.clone();
    let step_s = step_s(&numbering);
    // Ranks whose steps were counted from different ones on; they have one clock, so the least
    // difference is that of the same steps.
    let mut counted: Vec<(String, i64)> = Vec::new();
    let all: Vec<Steps> = all
        .into_iter()
        .filter_map(|(rank, own)| {
            let shift = best_shift(&own, &numbering, FEW_SHIFTS, &mean_distance)?.0;
            let ahead = rank.facts.counted.clone();
            counted.extend(ahead.and_then(|(what, by)| Some((what, by.checked_sub(shift)?))));
            let own = match by_wakes || step_s >= LONG_STEP_TICKS * tick_ns(rank) / 1e9 {
                true => by_time(own, &numbering, shift, step_s),
                false => {
                    let own = own.into_iter();
                    own.map(|(step, at)| (step.saturating_add_signed(shift), at))
                        .collect()
                }
            };
            (own.len() >= FEWEST).then_some(own)
        })
        .collect();
    let of_step = by_step(&all);
    let mean = |ends: &[f64]| ends.iter().sum::<f64>() / ends.len() as f64;
    let earliest = |ends: &[f64]| ends.iter().copied().fold(f64::INFINITY, f64::min);
    let of_each = |all: &BTreeMap<u64, Vec<f64>>, figure: &dyn Fn(&[f64]) -> f64| -> Steps {
        all.iter()
            .map(|(&step, ends)| (step, figure(ends)))
            .collect()
    };
    let means = of_each(&of_step, &mean);
    let deviation = |own: &Steps| {
        let rest = own.iter();
        let rest = rest.filter_map(|(step, at)| Some(at - means.get(step)?));
        rest.sum::<f64>() / own.len() as f64
    };
    let deviations: Vec<f64> = all.iter().map(deviation).collect();
    // All ranks of the host that have such a counter must agree on it.
    let agree = counted.windows(2).all(|two| two[0] == two[1]);
    (!all.is_empty()).then_some(Ends {
        deviations,
        ranks: all.len(),
        ends: match by_wakes {
            true => of_each(&of_step, &earliest),
            false => means.clone(),
        },
        by_wakes,
        by_step: means,
        counts_from_start: ranks.iter().all(|rank| rank.facts.counts_from_start),
        counted: counted.pop().filter(|_| agree),
    })
}

/// How long a rank is in the last collective of a step, in ticks, on average.
fn ticks_in_it(rank: &Rank) -> f64 {
    let ends = rank.facts.sync_ends.iter();
    let ticks: u64 = ends.map(|end| u64::from(end.ticks)).sum();
    let steps = rank.facts.steps as f64 / rank.facts.sync_every.max(1) as f64;
    ticks as f64 / steps.max(1.0)
}

/// How long after the middle of the last tick whose poll saw it a collective ends that lasts for
/// `lasts`, on average; both in ticks: half of `lasts` if that is short, half a tick if it is long.
///
/// Its end is at any part `f` of a tick. Either the poll of that tick is before it, and after the
/// beginning; or it is after it, and the poll of the tick before is the last that saw it, if the
/// collective had begun.
fn lag(lasts: f64) -> f64 {
    const PARTS: u32 = 100;
    let (mut sum, mut seen) = (0.0, 0.0);
    for part in 0..PARTS {
        let f = (f64::from(part) + 0.5) / f64::from(PARTS);
        let in_this = f.min(lasts);
        let in_last = (1.0 - f) * (lasts - f).clamp(0.0, 1.0);
        sum += in_this * (f - 0.5) + in_last * (f + 0.5);
        seen += in_this + in_last;
    }
    if seen > 0.0 { sum / seen } else { 0.0 }
}

fn tick_ns(rank: &Rank) -> f64 {
    rank.facts.wall_ns as f64 / rank.facts.ticks.max(1) as f64
}

fn align(
    clock: &mut Clock,
    own: &Ends,
    to: &Ends,
    from_ns: i64,
    between_ranks_s: f64,
    tick_s: f64,
) {
    // Lengths of steps vary alike on all ranks: differences of the same steps scatter least.
    let step_s = step_s(&own.by_step).max(1e-4);
    let most = (MOST_OFF_S / step_s).clamp(1.0, MOST_SHIFTS) as i64;
    let scatter = |all: &[(f64, f64)]| least_squares(all).1;
    let found = best_shift(&own.by_step, &to.by_step, most, &scatter);
    let Some((shift, best, next)) = found else {
        clock.alignment = Alignment::WallClock("too few steps were seen on both hosts");
        return;
    };
    let unclear = (SURE / (own.by_step.len() as f64).sqrt()).exp();
    let is_distinct = next > unclear * best;
    let counts_from_start = own.counts_from_start && to.counts_from_start;
    let counted = match (&own.counted, &to.counted) {
        (Some((what, ahead)), Some((other, by))) if what == other => ahead.checked_sub(*by),
        _ => None,
    };
    // Two counters may be of different optimizers all the same.
    let counted = counted.filter(|&shift| {
        let all = differences(&own.by_step, &to.by_step, shift);
        2 * all.len() >= own.by_step.len() && scatter(&all) <= unclear * best
    });
    let shift = match (is_distinct, counted, counts_from_start) {
        (true, ..) => shift,
        (false, Some(shift), _) => shift,
        (false, None, true) => 0,
        (false, None, false) => {
            clock.alignment = Alignment::WallClock(
                "all steps are equally long: it is not known which are the same",
            );
            return;
        }
    };
    let mut all = differences(&own.ends, &to.ends, shift);
    if all.len() < FEWEST {
        all = differences(&own.by_step, &to.by_step, shift);
    }
    if all.len() < FEWEST {
        clock.alignment = Alignment::WallClock("too few steps were seen on both hosts");
        return;
    }
    let rough = robust_line(&all);
    let limit_s = tick_s
        * match own.by_wakes && to.by_wakes {
            true => OUTLIER_TICKS,
            false => OUTLIER_TICKS_POLLED,
        };
    let near: Vec<(f64, f64)> = (all.iter().copied())
        .filter(|point| (point.1 - rough.at(point.0)).abs() <= limit_s)
        .collect();
    let (line, scatter_s, times) = least_squares(&near);
    let farthest = all.iter().map(|point| (point.0 - line.middle_s).abs());
    let farthest = farthest.fold(0.0, f64::max).powi(2) / times.max(f64::MIN_POSITIVE);
    let error_s = 1.96 * scatter_s * (1.0 / near.len() as f64 + farthest).sqrt();
    let of_ranks = 1.96 * between_ranks_s * (1.0 / own.ranks as f64 + 1.0 / to.ranks as f64).sqrt();
    clock.ahead_s = line.offset_s;
    clock.drift = line.drift;
    clock.middle_ns = from_ns.saturating_add((line.middle_s * 1e9) as i64);
    clock.alignment = Alignment::Ends {
        steps: near.len(),
        error_s: error_s.hypot(of_ranks),
    };
}

#[cfg(test)]
mod tests {
    use super::lag;

    #[test]
    fn what_lasts_for_less_than_a_tick_ends_sooner_after_the_last_poll() {
        assert!((lag(0.1) - 0.05).abs() < 0.001);
        assert!((lag(1.0) - 0.4).abs() < 0.001);
        assert!((lag(2.0) - 0.5).abs() < 0.001);
        assert_eq!(lag(50.0), lag(2.0));
        assert_eq!(lag(0.0), 0.0);
    }
}
