//! What NCCL's RAS shows of a job: ranks that have launched fewer collectives than the others, and
//! ranks that are missing.

use crate::analysis::progress::standstill::Standstill;
use crate::model::nccl_ras::{
    Communicator, KeptRas, Member, OddRanks, Ras, RasAnswer, RasFact, RasFinding, RasSummary,
};
use crate::model::profile::Profile;
use crate::model::progress::facts;
use rustc_hash::FxHashMap;

/// Findings of an answer that are listed, and of each the counts, and the ranks of each count: the
/// text of one condition of a recording has room for it.
const FINDINGS: usize = 16;
const COUNTS: usize = 4;
/// Kinds of collectives that are compared.
const KINDS: usize = 32;
const MEMBERS: usize = 8;

/// What is odd in an answer.
pub fn summary(answer: &RasAnswer) -> RasSummary {
    let address = answer.address.clone();
    let ras = match &answer.ras {
        Ok(ras) => ras,
        Err(why) => {
            return RasSummary {
                address,
                error: Some(why.clone()),
                ..RasSummary::default()
            };
        }
    };
    let mut findings = findings(ras);
    let more = findings.len().saturating_sub(FINDINGS) as u64;
    findings.truncate(FINDINGS);
    RasSummary {
        address,
        error: None,
        nccl_version: ras.nccl_version.clone(),
        job: ras.job,
        may_be_others: ras.may_be_others,
        communicators: ras.communicators.len() as u64,
        unread: ras
            .communicators
            .iter()
            .filter(|each| is_unread(each))
            .count() as u64,
        findings,
        more,
    }
}

/// Whether something is odd in it that was not read. Of those in which nothing is, the text form
/// has no hash, and the JSON has all ranks.
fn is_unread(communicator: &Communicator) -> bool {
    !communicator.hash.is_empty()
        && communicator.ranks.is_empty()
        && communicator.unnamed.is_empty()
        && communicator.missing.is_empty()
        && communicator.unnamed_missing == 0
}

/// The last answer in a recording, if no step has ended since. `standstill` is that of a process;
/// `None` if no step of it was seen at all.
pub fn kept(profile: &Profile, standstill: Option<Option<Standstill>>) -> Option<KeptRas> {
    let mut conditions = profile.sideband.conditions.iter().rev();
    let kept = conditions.find(|each| each.name == facts::NCCL_RAS)?;
    let kept = KeptRas::parse(&kept.value)?;
    let since_ns = standstill.map_or(Some(0), |still| Some(still?.since_ns))?;
    (kept.time_ns >= since_ns).then_some(kept)
}

/// All findings, missing ranks and errors first.
fn findings(ras: &Ras) -> Vec<RasFinding> {
    let mut found = Vec::new();
    for communicator in &ras.communicators {
        let finding = |what| RasFinding {
            hash: communicator.hash.clone(),
            size: communicator.size,
            what,
        };
        let missing = communicator.missing.iter().map(|each| RasFact::Missing {
            member: each.member.clone(),
            unresponsive: each.unresponsive,
            dead: each.dead,
        });
        found.extend(missing.map(finding));
        if communicator.unnamed_missing > 0 {
            let ranks = u64::from(communicator.unnamed_missing);
            found.push(finding(RasFact::MissingUnnamed { ranks }));
        }
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
    let named = communicator.ranks.iter().flat_map(|rank| &rank.counts);
    let named = named.map(|(kind, _)| kind);
    let unnamed = communicator.unnamed.iter().map(|each| &each.collective);
    let mut kinds: Vec<&str> = Vec::new();
    for kind in named.chain(unnamed) {
        if kinds.len() < KINDS && !kinds.contains(&kind.as_str()) {
            kinds.push(kind);
        }
    }
    let of_kind = |kind: &&str| {
        // Ranks with each count: those that are named, and how many they are.
        let mut by_count: FxHashMap<u64, (Vec<&Member>, u64)> = FxHashMap::default();
        for rank in &communicator.ranks {
            // The text form has no counts of kinds in which a rank is not odd.
            if let Some((_, count)) = rank.counts.iter().find(|(name, _)| name == kind) {
                let (members, ranks) = by_count.entry(*count).or_default();
                members.push(&rank.member);
                *ranks += 1;
            }
        }
        for each in &communicator.unnamed {
            if each.collective == *kind {
                by_count.entry(each.launched).or_default().1 += u64::from(each.ranks);
            }
        }
        let mut groups: Vec<(u64, (Vec<&Member>, u64))> = by_count.into_iter().collect();
        // Of equally many ranks those that have launched less are the odd ones.
        groups.sort_by_key(|(count, (_, ranks))| (*ranks, *count));
        let most = groups.pop().filter(|_| !groups.is_empty())?;
        let odd = groups.into_iter().take(COUNTS);
        Some(RasFact::Counts {
            collective: (*kind).to_owned(),
            odd: odd
                .map(|(launched, (members, ranks))| OddRanks {
                    launched,
                    ranks,
                    members: members.into_iter().take(MEMBERS).cloned().collect(),
                })
                .collect(),
            most: most.0,
            others: most.1.1,
        })
    };
    kinds.iter().filter_map(of_kind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::nccl_ras::{MissingRank, RasRank, UnnamedRanks};

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
            ..Communicator::default()
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
        let odd = |launched| OddRanks {
            launched,
            ranks: 1,
            members: vec![member(1)],
        };
        let behind = RasFact::Counts {
            collective: "AllReduce".to_owned(),
            odd: vec![odd(4)],
            most: 5,
            others: 2,
        };
        assert_eq!(of(communicator(&[5, 4, 5])), [behind]);
        let two = RasFact::Counts {
            collective: "AllReduce".to_owned(),
            odd: vec![odd(4)],
            most: 5,
            others: 1,
        };
        assert_eq!(of(communicator(&[5, 4])), [two]);
    }

    #[test]
    fn ranks_without_names_count_too() {
        let unnamed = |collective: &str, launched, ranks| UnnamedRanks {
            collective: collective.to_owned(),
            launched,
            ranks,
        };
        let mut named = communicator(&[4]);
        named.size = 8;
        named.unnamed = vec![unnamed("AllReduce", 5, 7), unnamed("Broadcast", 1, 7)];
        named.unnamed_missing = 2;
        let odd = |ranks, members| {
            vec![OddRanks {
                launched: 4,
                ranks,
                members,
            }]
        };
        let behind = |odd, others| RasFact::Counts {
            collective: "AllReduce".to_owned(),
            odd,
            most: 5,
            others,
        };
        let missing = RasFact::MissingUnnamed { ranks: 2 };
        assert_eq!(of(named), [missing, behind(odd(1, vec![member(0)]), 7)]);
        // Of two halves none is named.
        let mut halves = communicator(&[]);
        halves.unnamed = vec![unnamed("AllReduce", 5, 4), unnamed("AllReduce", 4, 4)];
        assert_eq!(of(halves), [behind(odd(4, Vec::new()), 4)]);
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
