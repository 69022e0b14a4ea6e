//! Where the ranks of a dump are in their parallel groups.

use crate::analysis::job::parallel::Parallel;
use crate::model::dump::DumpedProcess;
use crate::model::parallel::{Dimension, parse_dimensions};
use rustc_hash::FxHashMap;

/// Where ranks are along each dimension, by the groups that these hold; nothing is known where they
/// contradict each other.
pub fn parallel<'d>(processes: impl Iterator<Item = &'d DumpedProcess>) -> Parallel {
    // Ranks of one group hold the same text, which names all of its members.
    let mut parsed: FxHashMap<&str, Option<Vec<Dimension>>> = FxHashMap::default();
    let held = processes.filter_map(|process| {
        let dimensions = parsed
            .entry(&process.groups)
            .or_insert_with_key(|text| parse_dimensions(text));
        Some((process.role.rank()?, dimensions.clone()?))
    });
    let held: Vec<(u32, Vec<Dimension>)> = held.collect();
    Parallel::of_groups(&held).unwrap_or_default()
}

/// What all of `ranks` have in common: dimensions and their index along them. Empty without a mesh
/// of two dimensions, whose index would be the rank again.
pub fn shared(parallel: &Parallel, ranks: impl IntoIterator<Item = u32>) -> Vec<(&str, u32)> {
    let divides = |name: &str| {
        let mut all = parallel.dimensions.iter();
        all.any(|(other, size)| other == name && *size > 1)
    };
    let count = parallel.dimensions.iter().filter(|(_, size)| *size > 1);
    let mut ranks = ranks.into_iter();
    let first = ranks.next().filter(|_| count.count() > 1);
    let mut found = first.map_or(Vec::new(), |rank| parallel.coordinates(rank));
    found.retain(|(name, _)| divides(name));
    for rank in ranks {
        if found.is_empty() {
            break;
        }
        let own = parallel.coordinates(rank);
        found.retain(|each| own.contains(each));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::built::process;
    use super::*;
    use crate::model::profile::Role;

    fn rank(number: u32, groups: &str) -> DumpedProcess {
        DumpedProcess {
            role: Role::Trainer {
                rank: Some(number),
                local_rank: None,
                world_size: Some(8),
            },
            groups: groups.to_owned(),
            ..process(number as i32, Vec::new())
        }
    }

    #[test]
    fn ranks_are_placed_by_the_groups_that_others_hold() {
        // pp=2, dp=4: those of rank 5, and of rank 2.
        let all = [
            rank(5, "pp=1,5;dp=4-7;cp=5"),
            rank(2, "pp=2,6;dp=0-3;cp=2"),
            rank(9, ""),
        ];
        let found = parallel(all.iter());
        assert_eq!(shared(&found, [5]), [("pp", 1), ("dp", 1)]);
        // Of this one there is no process.
        assert_eq!(shared(&found, [7]), [("dp", 3)]);
        assert_eq!(shared(&found, [1, 2]), [("pp", 0)]);
        assert_eq!(shared(&found, [2, 6]), [("dp", 2)]);
        assert!(shared(&found, [1, 6]).is_empty());
        assert!(shared(&found, [9]).is_empty() && shared(&found, []).is_empty());
    }

    #[test]
    fn one_dimension_and_contradictions_place_nobody() {
        let one = [rank(0, "dp=0-7"), rank(1, "dp=0-7")];
        assert!(shared(&parallel(one.iter()), [1]).is_empty());
        let other = [rank(0, "pp=0,4;dp=0-3"), rank(1, "tp=0,1;dp=1-7:2")];
        assert!(shared(&parallel(other.iter()), [1]).is_empty());
    }
}
