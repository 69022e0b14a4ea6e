//! How much of the waits in collectives is for ranks that arrive later, and how often a rank is the
//! last.
//!
//! Before the last rank of a collective arrives the others wait for it; after that all ranks wait
//! equally long, for the transfer. So what the last one waits is transfer, and what another one
//! waits longer is for others. Bins hold many collectives: where now one rank is the last and now
//! another, each of them waits for others, too. So what the rank with the least waits of a bin
//! waits is the most that transfers can have taken, and what others wait longer is the least that
//! they waited for others. A rank without a recording, or of a group with other work, may be the
//! last: the same holds. It does not where transfers of some ranks take longer than those of
//! others.
//!
//! Waits are sampled, and the least of many samples is below the truth. So which rank waits least
//! is told by the bins around a bin, and only how long it waits by the bin itself.

use super::ranks::{BinTimes, Class, Rank};
use rustc_hash::FxHashMap;

/// Bins on either side of a bin by which the last rank is told.
const AROUND: usize = 8;

/// A rank among those that it is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// Index of the rank.
    pub rank: usize,
    /// Its waits in collectives for ranks that arrive later, at least, s.
    pub for_others_s: f64,
    /// The part of its bins in which it waited least of all, 0 to 1. Waits are those for other
    /// ranks or for the device.
    pub last_in: f64,
}

/// What holds for a bin; shares are of its time.
struct Least {
    /// Waits in collectives around the bin, of the rank that waits least there, and in the bin
    /// itself.
    around: f64,
    in_collectives: f64,
    /// All waits, the least and the most of any rank.
    waits: f64,
    most_waits: f64,
}

/// One for each of `members`, which step together.
pub(super) fn arrivals(ranks: &[Rank], members: &[usize]) -> Vec<Arrival> {
    let members = || {
        let members = members.iter();
        members.filter_map(|&at| Some((at, ranks.get(at)?)))
    };
    let mut of_bin: FxHashMap<u64, Least> = FxHashMap::default();
    for (_, rank) in members() {
        for (at, (bin, times)) in rank.bins().enumerate() {
            let length_s = Rank::length_s(bin).max(1e-9);
            let waits = f64::from(times.waits) / length_s;
            let around = around(rank, at);
            let least = of_bin.entry(bin.index).or_insert(Least {
                around: f64::INFINITY,
                in_collectives: 0.0,
                waits,
                most_waits: waits,
            });
            if around < least.around {
                least.around = around;
                least.in_collectives = in_collectives(times) / length_s;
            }
            least.waits = least.waits.min(waits);
            least.most_waits = least.most_waits.max(waits);
        }
    }
    let arrival = |(at, rank): (usize, &Rank)| {
        let mut for_others_s = 0.0_f64;
        let mut last = 0_usize;
        for (bin, times) in rank.bins() {
            let Some(least) = of_bin.get(&bin.index) else {
                continue;
            };
            let length_s = Rank::length_s(bin).max(1e-9);
            for_others_s += in_collectives(times) - least.in_collectives * length_s;
            let waits = f64::from(times.waits) / length_s;
            last += usize::from(waits <= least.waits && waits < least.most_waits);
        }
        Arrival {
            rank: at,
            for_others_s: for_others_s.max(0.0),
            last_in: last as f64 / rank.facts.bins.len().max(1) as f64,
        }
    };
    members().map(arrival).collect()
}

fn in_collectives(times: &BinTimes) -> f64 {
    f64::from(times.of(Class::CommunicationWait))
}

/// Waits in collectives in the bins around one of a rank, as a share of their time.
fn around(rank: &Rank, at: usize) -> f64 {
    let from = at.saturating_sub(AROUND);
    let bins = rank
        .bins()
        .enumerate()
        .skip(from)
        .take(at - from + AROUND + 1);
    let others = bins.filter(|&(other, _)| other != at);
    let (waits, all) = others.fold((0.0, 0.0), |(waits, all), (_, (bin, times))| {
        (waits + in_collectives(times), all + Rank::length_s(bin))
    });
    waits / all.max(1e-9)
}
