//! Which ranks wait in another collective than most, or at another line.

use super::verdict::{RankGroup, compare};
use crate::model::dump::{DumpedProcess, Place};

/// Groups, and ranks of a group, that are named.
const NAMED: usize = 3;

/// `, but rank 1 in another one: barrier at train.py:142`, where all of these wait in collectives;
/// empty if they wait in the same, or if not all are seen to be in one.
pub(super) fn odd_ranks(ranks: &[&DumpedProcess]) -> String {
    let mut groups: Vec<RankGroup> = Vec::new();
    for group in compare(ranks).groups {
        let same = |other: &&mut RankGroup| (&other.what, &other.at) == (&group.what, &group.at);
        match groups.iter_mut().find(same) {
            Some(known) => known.processes.extend(group.processes),
            None => groups.push(group),
        }
    }
    if groups.len() < 2 || !groups.iter().all(|group| group.waits_for_ranks) {
        return String::new();
    }
    groups.sort_by_key(|group| group.processes.len());
    let most = groups.last().map_or(0, |group| group.processes.len());
    let has_majority = groups
        .iter()
        .filter(|group| group.processes.len() == most)
        .count()
        == 1;
    let usual = groups.last().filter(|_| has_majority).cloned();
    if has_majority {
        groups.pop();
    }
    let each = groups.iter().take(NAMED).map(|group| {
        let who = names(ranks, &group.processes);
        let what = format!("{}{}", group.what, at(group.at.as_ref()));
        match &usual {
            None => format!("{who} in {what}"),
            Some(usual) if usual.what == group.what => format!("{who} from another line: {what}"),
            Some(_) => format!("{who} in another one: {what}"),
        }
    });
    let listed: Vec<String> = each.collect();
    let more = match groups.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(", and {more} more groups"),
    };
    let differ = if has_majority {
        ""
    } else {
        "in different ones: "
    };
    format!(", but {differ}{}{more}", listed.join(", "))
}

/// `rank 1`, `ranks 1, 5, 6 and 4 more`; pids where ranks have no numbers.
fn names(ranks: &[&DumpedProcess], indices: &[usize]) -> String {
    let all = indices.iter().filter_map(|&index| ranks.get(index));
    let known: Vec<&&DumpedProcess> = all.collect();
    let by_rank = known.iter().all(|process| process.role.rank().is_some());
    let mut numbers: Vec<i64> = known
        .iter()
        .map(|process| match process.role.rank().filter(|_| by_rank) {
            Some(rank) => rank.into(),
            None => process.pid.into(),
        })
        .collect();
    numbers.sort_unstable();
    let shown = numbers.iter().take(NAMED).map(i64::to_string);
    let kind = match (by_rank, numbers.len()) {
        (true, 1) => "rank",
        (true, _) => "ranks",
        (false, _) => "pid",
    };
    let more = match numbers.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{kind} {}{more}", shown.collect::<Vec<_>>().join(", "))
}

/// ` at train.py:142`.
pub(super) fn at(place: Option<&Place>) -> String {
    let words = |at: &Place| {
        let file = at.file.rsplit('/').next().unwrap_or(&at.file);
        format!(" at {file}:{}", at.line)
    };
    place.map(words).unwrap_or_default()
}
