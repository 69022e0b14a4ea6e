//! Ranks by parallel group: what the ranks with the same index along a dimension have in common,
//! and which of them differ from the others of their group.
//!
//! Along a dimension that divides the work (pipeline stages), groups are compared with the median
//! of all ranks. Along others each rank is compared with the median of its own stage, and a group
//! by the median of these differences: its ranks may be of several stages. The median is a rank, so
//! that a difference is one of two ranks and has their interval.

use super::mesh::{Group, divides_work};
use super::parallel::Parallel;
use super::ranks::{BinTimes, Class, Doing, Rank};
use super::stragglers::{Compared, NOTABLE, SURE, WORTH, doing, mean_step_s, median};
use crate::analysis::intervals::Share;
use rustc_hash::FxHashSet;
use std::array::from_fn;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Larger dimensions have no rows.
const MOST_ROWS: u32 = 64;
/// With fewer ranks it is not known which one differs.
const FEW_RANKS: usize = 3;
/// Of more outliers of a group only their number is kept.
const MOST_OUTLIERS: usize = 16;
/// Lines that a group's ranks have in common.
const MOST_COMMON: usize = 3;

/// A part of a rank's time in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Waits for other ranks and for its device: the rest is its own time.
    Waits,
    Class(Class),
}

/// The parts in which ranks are compared. The other classes are waits.
const PARTS: [Part; 7] = [
    Part::Waits,
    Part::Class(Class::Computation),
    Part::Class(Class::CommunicationCall),
    Part::Class(Class::Input),
    Part::Class(Class::Python),
    Part::Class(Class::CpuWait),
    Part::Class(Class::Other),
];
const WAITS: usize = 0;

impl Part {
    fn of(self, times: &BinTimes) -> f32 {
        match self {
            Self::Waits => times.waits,
            Self::Class(class) => times.of(class),
        }
    }
}

/// A part that is clearly larger or smaller than that of the median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    pub part: Part,
    /// How much larger, as a share of the time; negative if it is smaller.
    pub more: Share,
}

/// A line of the rank with the median of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Common {
    pub doing: Doing,
    /// Of its time.
    pub share: f64,
    /// Ranks of the group, with itself, that spend nearly as much there.
    pub alike: usize,
}

/// A rank that differs from the median of its group.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlier {
    /// Index of the rank.
    pub rank: usize,
    /// The largest first.
    pub differs: Vec<Difference>,
    /// What it does for longer than the median of its group, as shares of the time.
    pub doing: Vec<(Doing, f64)>,
}

/// The ranks with the same index along a dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupTimes {
    /// Index along the dimension.
    pub at: u32,
    /// Indices of its ranks.
    pub ranks: Vec<usize>,
    /// Those that have enough steps, and step together with the others of their stage.
    pub compared: usize,
    /// The median of the mean lengths of a step, s.
    pub step_s: Option<f64>,
    /// Medians by class, as shares of the time.
    pub classes: [f64; Class::COUNT],
    /// In what its median differs, the largest first; empty if in nothing that is clear.
    pub differs: Vec<Difference>,
    pub common: Vec<Common>,
    /// Those that differ most.
    pub outliers: Vec<Outlier>,
    /// The number of all.
    pub all_outliers: usize,
}

/// The groups along a dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct ByGroup {
    pub dimension: String,
    /// Groups are compared with the median of all ranks; else ranks with that of their stage.
    pub of_all: bool,
    /// By index.
    pub groups: Vec<GroupTimes>,
}

/// The groups along each dimension of up to 64 of them, outermost first. `stages` are the groups of
/// ranks that do the same work.
pub fn by_group(ranks: &[Rank], parallel: &Parallel, stages: &[(Group, Compared)]) -> Vec<ByGroup> {
    let dimensions = parallel.dimensions.iter();
    let dimensions = dimensions.filter(|(_, size)| (2..=MOST_ROWS).contains(size));
    let names: Vec<&str> = dimensions.map(|(name, _)| name.as_str()).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let places: Vec<Vec<(&str, u32)>> = ranks
        .iter()
        .map(|rank| {
            let number = rank.facts.rank;
            number.map_or(Vec::new(), |number| parallel.coordinates(number))
        })
        .collect();
    let times = Times::new(ranks, stages);
    let mut found = Vec::new();
    for name in names {
        let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (rank, place) in places.iter().enumerate() {
            if let Some(&(_, at)) = place.iter().find(|(each, _)| *each == name) {
                groups.entry(at).or_default().push(rank);
            }
        }
        if groups.len() > 1 {
            found.push(times.along(name, groups));
        }
    }
    found
}

/// The rank with the median of each of [`PARTS`].
type Medians = [usize; PARTS.len()];

struct Times<'r> {
    ranks: &'r [Rank],
    /// By rank.
    seconds: Vec<f64>,
    /// By rank and [`PARTS`], as shares of the time.
    shares: Vec<[f64; PARTS.len()]>,
    /// By rank: index of its stage, if it was compared there.
    stages: Vec<Option<usize>>,
}

impl<'r> Times<'r> {
    fn new(ranks: &'r [Rank], stages: &[(Group, Compared)]) -> Self {
        let seconds: Vec<f64> = ranks.iter().map(|rank| rank.seconds().max(1e-9)).collect();
        let shares = ranks.iter().zip(&seconds).map(|(rank, seconds)| {
            PARTS.map(|part| {
                let of_bins = rank.times.iter().map(|times| f64::from(part.of(times)));
                of_bins.sum::<f64>() / seconds
            })
        });
        let shares = shares.collect();
        let mut of_rank = vec![None; ranks.len()];
        for (stage, (group, found)) in stages.iter().enumerate() {
            let left_out = found.too_short.iter().chain(&found.out_of_step);
            let left_out: FxHashSet<&usize> = left_out.collect();
            for rank in group.ranks.iter().filter(|rank| !left_out.contains(rank)) {
                if let Some(of_rank) = of_rank.get_mut(*rank) {
                    *of_rank = Some(stage);
                }
            }
        }
        Self {
            ranks,
            seconds,
            shares,
            stages: of_rank,
        }
    }

    fn stage(&self, rank: usize) -> Option<usize> {
        self.stages.get(rank).copied().flatten()
    }

    fn share(&self, rank: usize, part: usize) -> f64 {
        let shares = self.shares.get(rank);
        shares.map_or(0.0, |shares| shares[part])
    }

    fn of_line(&self, rank: usize, doing: &Doing) -> f64 {
        let own = self.ranks.get(rank).and_then(|rank| rank.own.get(doing));
        own.map_or(0.0, |own| own / self.seconds[rank])
    }

    /// Ranks that were compared, by stage.
    fn by_stage(&self, ranks: &[usize]) -> BTreeMap<usize, Vec<usize>> {
        let mut of_stage: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &rank in ranks {
            if let Some(stage) = self.stage(rank) {
                of_stage.entry(stage).or_default().push(rank);
            }
        }
        of_stage
    }

    /// Of two in the middle the one that has more time of its own, in all parts.
    fn medians(&self, ranks: &[usize]) -> Medians {
        from_fn(|part| {
            let mut all = ranks.to_vec();
            all.sort_by(|&a, &b| self.share(a, part).total_cmp(&self.share(b, part)));
            let middle = match part {
                WAITS => (all.len().max(1) - 1) / 2,
                _ => all.len() / 2,
            };
            all.get(middle).copied().unwrap_or_default()
        })
    }

    /// In what a rank clearly differs from another one. Intervals are made only where the shares
    /// differ enough.
    fn difference(&self, rank: usize, from: usize, part: usize) -> Option<Difference> {
        if (self.share(rank, part) - self.share(from, part)).abs() < NOTABLE {
            return None;
        }
        let (rank, from) = (self.ranks.get(rank)?, self.ranks.get(from)?);
        let more = |of: &dyn Fn(&BinTimes) -> f32| {
            let more = rank.share(|_| true, of);
            more.minus(&from.share(|_| true, of))
        };
        // The end of the interval that is nearer to no difference.
        let least = |more: &Share| match more.value < 0.0 {
            true => -more.high,
            false => more.low,
        };
        let of = PARTS[part];
        let found = more(&|times| of.of(times));
        let size = found.value.abs();
        let mut is_clear = size >= NOTABLE && least(&found) >= SURE * size;
        if of == Part::Waits {
            // A rank that waits where the launch queue is full seems to launch.
            let with_launches = more(&|times| times.waits_or_launches);
            is_clear &= with_launches.value * found.value > 0.0 && least(&with_launches) > 0.0;
        }
        is_clear.then_some(Difference {
            part: of,
            more: found,
        })
    }

    fn along(&self, name: &str, groups: BTreeMap<u32, Vec<usize>>) -> ByGroup {
        let members: Vec<usize> = groups.values().flatten().copied().collect();
        let mut of_stage = self.by_stage(&members);
        let of_all = divides_work(name) || of_stage.len() < 2;
        if of_all {
            let all: Vec<usize> = of_stage.into_values().flatten().collect();
            of_stage = BTreeMap::from([(0, all)]);
        }
        let medians = of_stage.iter();
        let medians = medians.map(|(&stage, ranks)| (stage, self.medians(ranks)));
        let medians: BTreeMap<usize, Medians> = medians.collect();
        let of_rank = |rank: usize| {
            let stage = self.stage(rank)?;
            medians.get(if of_all { &0 } else { &stage })
        };
        let groups = groups.into_iter();
        ByGroup {
            dimension: name.to_owned(),
            of_all,
            groups: groups
                .map(|(at, ranks)| self.group(at, ranks, of_rank))
                .collect(),
        }
    }

    fn group<'m>(
        &self,
        at: u32,
        ranks: Vec<usize>,
        medians: impl Fn(usize) -> Option<&'m Medians>,
    ) -> GroupTimes {
        let of_stage = self.by_stage(&ranks);
        let compared: Vec<usize> = of_stage.values().flatten().copied().collect();
        let all = || ranks.iter().filter_map(|&rank| self.ranks.get(rank));
        let with_steps = || all().filter(|rank| rank.facts.steps > 0);
        let class = |class: usize| {
            median(all().map(|rank| {
                let total: f64 = rank.totals.iter().sum();
                rank.totals[class] / total.max(f64::MIN_POSITIVE)
            }))
        };
        let mut differs: Vec<Difference> = (0..PARTS.len())
            .filter_map(|part| self.of_group(&compared, part, &medians))
            .collect();
        sort(&mut differs);
        let mut outliers: Vec<Outlier> = of_stage
            .values()
            .flat_map(|ranks| self.outliers(ranks))
            .collect();
        outliers.sort_by_key(|outlier| (Reverse(largest(&outlier.differs)), outlier.rank));
        let all_outliers = outliers.len();
        outliers.truncate(MOST_OUTLIERS);
        for outlier in &mut outliers {
            let stage = self.stage(outlier.rank);
            let others = stage.and_then(|stage| of_stage.get(&stage));
            outlier.doing = self.lines(outlier.rank, others.map_or(&[][..], Vec::as_slice));
        }
        GroupTimes {
            at,
            compared: compared.len(),
            step_s: with_steps()
                .next()
                .map(|_| median(with_steps().map(mean_step_s))),
            classes: from_fn(class),
            differs,
            common: self.common(&compared),
            outliers,
            all_outliers,
            ranks,
        }
    }

    /// In what the ranks of a group differ from the medians: the median of their differences, of
    /// two in the middle the smaller one.
    fn of_group<'m>(
        &self,
        ranks: &[usize],
        part: usize,
        medians: impl Fn(usize) -> Option<&'m Medians>,
    ) -> Option<Difference> {
        let from = ranks.iter().filter_map(|&rank| {
            let from = medians(rank)?[part];
            let more = self.share(rank, part) - self.share(from, part);
            Some((more, rank, from))
        });
        let mut all: Vec<(f64, usize, usize)> = from.collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let lower = all.get((all.len().max(1) - 1) / 2)?;
        let upper = all.get(all.len() / 2)?;
        if lower.0 * upper.0 <= 0.0 {
            return None;
        }
        let &(_, rank, from) = match lower.0.abs() < upper.0.abs() {
            true => lower,
            false => upper,
        };
        self.difference(rank, from, part)
    }

    /// Ranks that differ from the median of `ranks`, which are of one stage; without their lines.
    /// Where half of the ranks do in a part, it is none of them.
    fn outliers(&self, ranks: &[usize]) -> Vec<Outlier> {
        if ranks.len() < FEW_RANKS {
            return Vec::new();
        }
        let mut of_rank: BTreeMap<usize, Vec<Difference>> = BTreeMap::new();
        for (part, from) in self.medians(ranks).into_iter().enumerate() {
            let found = ranks.iter().filter_map(|&rank| {
                let difference = self.difference(rank, from, part)?;
                Some((rank, difference))
            });
            let found: Vec<(usize, Difference)> = found.collect();
            if 2 * found.len() < ranks.len() {
                for (rank, difference) in found {
                    of_rank.entry(rank).or_default().push(difference);
                }
            }
        }
        let outlier = |(rank, mut differs): (usize, Vec<Difference>)| {
            sort(&mut differs);
            Outlier {
                rank,
                differs,
                doing: Vec::new(),
            }
        };
        of_rank.into_iter().map(outlier).collect()
    }

    /// Lines at which a rank clearly spends more than the median of the others.
    fn lines(&self, rank: usize, others: &[usize]) -> Vec<(Doing, f64)> {
        let mut lines = doing(self.ranks, others, rank, 1.0);
        lines.retain(|&(_, more)| more >= NOTABLE);
        lines
    }

    /// The lines at which the rank with the median spends most, in how many ranks that is so.
    fn common(&self, ranks: &[usize]) -> Vec<Common> {
        let middle = self.medians(ranks)[WAITS];
        let Some(rank) = self.ranks.get(middle).filter(|_| !ranks.is_empty()) else {
            return Vec::new();
        };
        let mut lines: Vec<(Doing, f64)> = rank
            .own
            .keys()
            .map(|doing| (*doing, self.of_line(middle, doing)))
            .filter(|&(_, share)| share >= NOTABLE)
            .collect();
        lines.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        lines.truncate(MOST_COMMON);
        let most = lines.first().map_or(0.0, |line| line.1);
        lines.retain(|line| line.1 >= WORTH * most);
        let common = |(doing, share): (Doing, f64)| {
            let near = NOTABLE.min(share / 2.0);
            let is_alike = |rank: &&usize| (self.of_line(**rank, &doing) - share).abs() < near;
            Common {
                doing,
                share,
                alike: ranks.iter().filter(is_alike).count(),
            }
        };
        lines.into_iter().map(common).collect()
    }
}

fn sort(differs: &mut [Difference]) {
    differs.sort_by(|a, b| b.more.value.abs().total_cmp(&a.more.value.abs()));
}

/// The size of the largest, in millionths.
fn largest(differs: &[Difference]) -> u64 {
    let first = differs.first();
    first.map_or(0, |first| (first.more.value.abs() * 1e6) as u64)
}
