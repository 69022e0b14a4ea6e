//! What flight recorders of a job's ranks say together: which ranks have not called a collective
//! that others are in.

use crate::model::flight::{Call, FlightDump};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Collectives whose inputs have the same sizes on all ranks
/// (torch/distributed/flight_recorder/components/utils.py, 2.15.0).
const SAME_SIZES: &[&str] = &["all_reduce", "broadcast", "reduce", "all_gather"];

/// A call, and the ranks that made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Called {
    pub ranks: Vec<u32>,
    pub operation: String,
    pub inputs: String,
    pub is_done: bool,
    /// The innermost frame outside of torch: function, file and line.
    pub at: Option<(String, String, u32)>,
}

/// Something that a process group's ranks do not agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Disagreement {
    /// They call different collectives.
    Different,
    /// Some have not called it.
    Behind {
        /// These, and the number of the last that they have called.
        ranks: Vec<u32>,
        last: u64,
        /// Their last calls in this group.
        lasts: Vec<Called>,
        /// Those of them that are in a collective of another group: they wait, too.
        wait_elsewhere: Vec<u32>,
    },
    /// All that have a dump have called it, and it has not ended.
    NotDone,
}

/// A collective at which a process group stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub group: String,
    pub description: String,
    /// Ranks with a dump that have used the group.
    pub members: Vec<u32>,
    /// Ranks of the group without a dump: what they have called is not known.
    pub without_dump: Vec<u32>,
    /// The collective's number in the group.
    pub number: u64,
    /// How it was called.
    pub calls: Vec<Called>,
    pub what: Disagreement,
}

impl Finding {
    /// Those who keep the others waiting come first.
    fn order(&self) -> u8 {
        match &self.what {
            Disagreement::Different => 0,
            Disagreement::Behind {
                ranks,
                wait_elsewhere,
                ..
            } if wait_elsewhere.len() < ranks.len() => 1,
            Disagreement::NotDone => 2,
            Disagreement::Behind { .. } => 3,
        }
    }
}

/// The findings for all process groups, the likeliest cause first.
pub fn findings(dumps: &BTreeMap<u32, FlightDump>) -> Vec<Finding> {
    let groups: BTreeSet<&(String, String)> = dumps
        .values()
        .flat_map(|dump| dump.calls.iter().map(|call| &call.group))
        .collect();
    let found = groups.into_iter().filter_map(|group| finding(dumps, group));
    let mut found: Vec<Finding> = found.collect();
    found.sort_by_key(Finding::order);
    found
}

fn finding(dumps: &BTreeMap<u32, FlightDump>, group: &(String, String)) -> Option<Finding> {
    let mut positions: BTreeMap<u32, u64> = BTreeMap::new();
    for (&rank, dump) in dumps {
        let newest = collectives(dump, group).map(|call| call.number).max();
        let said = dump.enqueued.get(&group.0).copied();
        if let Some(position) = newest.max(said) {
            positions.insert(rank, position);
        }
    }
    let (&least, &most) = (positions.values().min()?, positions.values().max()?);
    let members: Vec<u32> = positions.keys().copied().collect();
    let listed: BTreeSet<u32> = dumps
        .values()
        .filter_map(|dump| dump.members.get(&group.0))
        .flatten()
        .copied()
        .collect();
    let without_dump: Vec<u32> = listed
        .into_iter()
        .filter(|rank| !dumps.contains_key(rank))
        .collect();
    let made = |number: u64, ranks: &[u32]| {
        let calls = ranks.iter().filter_map(|rank| {
            let mut own = collectives(dumps.get(rank)?, group);
            Some((*rank, own.find(|call| call.number == number)?))
        });
        called(calls)
    };
    let finding = |number: u64, what: Disagreement| Finding {
        group: group.0.clone(),
        description: group.1.clone(),
        members: members.clone(),
        without_dump: without_dump.clone(),
        number,
        calls: made(number, &members),
        what,
    };
    // The first that is not the same everywhere, of those that all have kept.
    let oldest = members.iter().filter_map(|rank| {
        let numbers = collectives(dumps.get(rank)?, group).map(|call| call.number);
        numbers.min()
    });
    for number in oldest.max().unwrap_or(u64::MAX)..=least {
        let kinds: BTreeSet<(String, String)> = made(number, &members)
            .into_iter()
            .map(|call| match SAME_SIZES.contains(&call.operation.as_str()) {
                true => (call.operation, call.inputs),
                false => (call.operation, String::new()),
            })
            .collect();
        if kinds.len() > 1 {
            return Some(finding(number, Disagreement::Different));
        }
    }
    if least < most {
        let behind = positions.iter().filter(|(_, at)| **at == least);
        let ranks: Vec<u32> = behind.map(|(rank, _)| *rank).collect();
        let elsewhere = |rank: &u32| {
            let own = dumps.get(rank);
            own.is_some_and(|dump| {
                let mut others = dump.calls.iter().filter(|call| call.group != *group);
                others.any(|call| !call.is_done)
            })
        };
        let what = Disagreement::Behind {
            last: least,
            lasts: made(least, &ranks),
            wait_elsewhere: ranks.iter().copied().filter(elsewhere).collect(),
            ranks,
        };
        return Some(finding(least + 1, what));
    }
    let is_open = made(most, &members).iter().any(|call| !call.is_done);
    is_open.then(|| finding(most, Disagreement::NotDone))
}

fn collectives<'d>(
    dump: &'d FlightDump,
    group: &'d (String, String),
) -> impl Iterator<Item = &'d Call> {
    let own = dump.calls.iter().filter(move |call| call.group == *group);
    own.filter(|call| !call.is_point_to_point)
}

/// Calls that are the same, together.
fn called<'d>(calls: impl Iterator<Item = (u32, &'d Call)>) -> Vec<Called> {
    let mut all: Vec<Called> = Vec::new();
    for (rank, call) in calls {
        let at = call.frames.iter().find(|(_, file, _)| !is_torch(file));
        let new = Called {
            ranks: Vec::new(),
            operation: call.operation.clone(),
            inputs: call.inputs.clone(),
            is_done: call.is_done,
            at: at.or(call.frames.first()).cloned(),
        };
        let same = |each: &&mut Called| {
            let ranks = each.ranks.clone();
            **each
                == Called {
                    ranks,
                    ..new.clone()
                }
        };
        match all.iter_mut().find(same) {
            Some(each) => each.ranks.push(rank),
            None => all.push(Called {
                ranks: vec![rank],
                ..new
            }),
        }
    }
    all
}

fn is_torch(file: &str) -> bool {
    file.contains("/torch/") && file.contains("-packages/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(group: &str, number: u64, operation: &str, is_done: bool) -> Call {
        Call {
            group: (group.to_owned(), String::new()),
            number,
            operation: operation.to_owned(),
            inputs: "[4] Float".to_owned(),
            is_done,
            frames: vec![
                (
                    "all_reduce".to_owned(),
                    "/x/site-packages/torch/distributed/distributed_c10d.py".to_owned(),
                    1,
                ),
                ("step".to_owned(), "train.py".to_owned(), number as u32),
            ],
            ..Call::default()
        }
    }

    fn job(ranks: &[&[Call]]) -> Vec<Finding> {
        let dumps = ranks.iter().zip(0..).map(|(calls, rank)| {
            let dump = FlightDump {
                calls: calls.to_vec(),
                ..FlightDump::default()
            };
            (rank, dump)
        });
        findings(&dumps.collect())
    }

    #[test]
    fn the_rank_that_has_not_called_is_behind() {
        let done = |number| call("0", number, "all_reduce", true);
        let open = |number| call("0", number, "all_reduce", false);
        let found = job(&[&[done(1), open(2)], &[done(1)], &[done(1), open(2)]]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].number, 2);
        assert_eq!(found[0].calls[0].ranks, [0, 2]);
        let at = found[0].calls[0].at.as_ref().unwrap();
        assert_eq!((at.0.as_str(), at.2), ("step", 2));
        let Disagreement::Behind {
            ranks,
            last,
            lasts,
            wait_elsewhere,
        } = &found[0].what
        else {
            panic!("{found:?}");
        };
        assert_eq!(
            (&ranks[..], *last, &wait_elsewhere[..]),
            (&[1][..], 1, &[][..])
        );
        assert_eq!(lasts[0].operation, "all_reduce");
    }

    #[test]
    fn a_rank_without_a_dump_may_be_the_one() {
        let dump = FlightDump {
            calls: vec![call("0", 1, "all_reduce", false)],
            members: [("0".to_owned(), vec![0, 1, 2])].into_iter().collect(),
            ..FlightDump::default()
        };
        let found = findings(&[(0, dump.clone()), (1, dump)].into_iter().collect());
        assert_eq!(found[0].what, Disagreement::NotDone);
        assert_eq!(found[0].without_dump, [2]);
    }

    #[test]
    fn who_waits_elsewhere_is_not_the_first_cause() {
        let found = job(&[
            &[call("0", 1, "all_reduce", false)],
            &[
                call("0", 0, "all_reduce", true),
                call("1", 1, "broadcast", false),
            ],
            &[
                call("0", 1, "all_reduce", false),
                call("1", 0, "broadcast", true),
            ],
        ]);
        let groups: Vec<&str> = found.iter().map(|each| each.group.as_str()).collect();
        // Rank 2 waits in group 0 and rank 1 in group 1: neither is the only cause.
        assert_eq!(groups.len(), 2);
        let waits = |finding: &Finding| match &finding.what {
            Disagreement::Behind { wait_elsewhere, .. } => wait_elsewhere.clone(),
            _ => Vec::new(),
        };
        assert_eq!(waits(&found[0]), [1]);
        assert_eq!(waits(&found[1]), [2]);
    }

    #[test]
    fn different_calls_come_first() {
        let found = job(&[
            &[call("0", 1, "all_reduce", false)],
            &[call("0", 1, "all_gather", false)],
        ]);
        assert_eq!(found[0].what, Disagreement::Different);
        assert_eq!(found[0].calls.len(), 2);
        let all = job(&[
            &[
                call("0", 1, "all_reduce", true),
                call("0", 2, "barrier", false),
            ],
            &[
                call("0", 1, "all_reduce", true),
                call("0", 2, "barrier", false),
            ],
        ]);
        assert_eq!(all[0].what, Disagreement::NotDone);
        let over = job(&[
            &[call("0", 1, "barrier", true)],
            &[call("0", 1, "barrier", true)],
        ]);
        assert_eq!(over, []);
    }
}
