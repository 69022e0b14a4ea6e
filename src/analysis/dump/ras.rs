//! What NCCL's RAS shows of a job: ranks that have launched fewer collectives than the others, and
//! ranks that are missing.

use crate::model::nccl_ras::{Communicator, Member, Ras};
use rustc_hash::FxHashMap;

/// Something that RAS shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RasFinding {
    /// The communicator: its hash, and its size.
    pub hash: String,
    pub size: u32,
    pub what: RasFact,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RasFact {
    /// Ranks that have launched another number of one kind of collective than most.
    Counts {
        kind: String,
        /// Number, and the ranks with it: fewest ranks first.
        odd: Vec<(u64, Vec<Member>)>,
        /// Number that most have launched, and how many these are.
        most: (u64, usize),
    },
    /// A rank without data.
    Missing { member: Member, why: &'static str },
    /// A rank with an asynchronous error, an `ncclResult_t`.
    Error { member: Member, code: i32 },
}

/// All findings, missing ranks and errors first.
pub fn findings(ras: &Ras) -> Vec<RasFinding> {
    let mut found = Vec::new();
    for communicator in &ras.communicators {
        let finding = |what| RasFinding {
            hash: communicator.hash.clone(),
            size: communicator.size,
            what,
        };
        let missing = communicator.missing.iter().map(|each| RasFact::Missing {
            member: each.member.clone(),
            why: match (each.dead, each.unresponsive) {
                (true, _) => "NCCL considers it dead",
                (false, true) => "it does not respond",
                (false, false) => "it is no longer a member, or not yet",
            },
        });
        found.extend(missing.map(finding));
        let errors = communicator
            .ranks
            .iter()
            .filter(|rank| rank.async_error != 0);
        found.extend(errors.map(|rank| {
            finding(RasFact::Error {
                member: rank.member.clone(),
                code: rank.async_error,
            })
        }));
        found.extend(counts(communicator).into_iter().map(finding));
    }
    found.sort_by_key(|finding| matches!(finding.what, RasFact::Counts { .. }));
    found
}

fn counts(communicator: &Communicator) -> Vec<RasFact> {
    let mut kinds: Vec<&str> = Vec::new();
    for (kind, _) in communicator.ranks.iter().flat_map(|rank| &rank.counts) {
        if !kinds.contains(&kind.as_str()) {
            kinds.push(kind);
        }
    }
    let of_kind = |kind: &&str| {
        let mut by_count: FxHashMap<u64, Vec<&Member>> = FxHashMap::default();
        for rank in &communicator.ranks {
            let count = rank.counts.iter().find(|(name, _)| name == kind);
            let count = count.map_or(0, |(_, count)| *count);
            by_count.entry(count).or_default().push(&rank.member);
        }
        let mut groups: Vec<(u64, Vec<&Member>)> = by_count.into_iter().collect();
        // Of equally many ranks those that have launched less are the odd ones.
        groups.sort_by_key(|(count, members)| (members.len(), *count));
        let most = groups.pop().filter(|_| !groups.is_empty())?;
        let owned = |members: Vec<&Member>| members.into_iter().cloned().collect();
        Some(RasFact::Counts {
            kind: (*kind).to_owned(),
            odd: groups
                .into_iter()
                .map(|(count, members)| (count, owned(members)))
                .collect(),
            most: (most.0, most.1.len()),
        })
    };
    kinds.iter().filter_map(of_kind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::nccl_ras::{MissingRank, RasRank};

    fn member(rank: u32) -> Member {
        Member {
            rank,
            host: "10.0.0.1".to_owned(),
            pid: 100 + rank as i32,
            is_here: true,
        }
    }

    fn communicator(counts: &[u64]) -> Communicator {
        let ranks = (0..).zip(counts).map(|(rank, &count)| RasRank {
            member: member(rank),
            async_error: 0,
            counts: vec![("Broadcast".to_owned(), 1), ("AllReduce".to_owned(), count)],
        });
        Communicator {
            hash: "0x1".to_owned(),
            size: counts.len() as u32,
            ranks: ranks.collect(),
            missing: Vec::new(),
        }
    }

    fn of(communicator: Communicator) -> Vec<RasFact> {
        let ras = Ras {
            communicators: vec![communicator],
            ..Ras::default()
        };
        findings(&ras).into_iter().map(|each| each.what).collect()
    }

    #[test]
    fn the_rank_that_is_behind_is_odd() {
        assert_eq!(of(communicator(&[5, 5, 5])), []);
        assert_eq!(of(communicator(&[])), []);
        let behind = RasFact::Counts {
            kind: "AllReduce".to_owned(),
            odd: vec![(4, vec![member(1)])],
            most: (5, 2),
        };
        assert_eq!(of(communicator(&[5, 4, 5])), [behind]);
        let two = RasFact::Counts {
            kind: "AllReduce".to_owned(),
            odd: vec![(4, vec![member(1)])],
            most: (5, 1),
        };
        assert_eq!(of(communicator(&[5, 4])), [two]);
    }

    #[test]
    fn missing_ranks_come_first() {
        let mut with_missing = communicator(&[5, 4, 5]);
        with_missing.missing.push(MissingRank {
            member: member(3),
            unresponsive: true,
            dead: false,
        });
        with_missing.ranks[0].async_error = 6;
        let found = of(with_missing);
        assert!(matches!(found[0], RasFact::Missing { .. }));
        assert!(matches!(found[1], RasFact::Error { code: 6, .. }));
        assert!(matches!(found[2], RasFact::Counts { .. }));
    }
}
