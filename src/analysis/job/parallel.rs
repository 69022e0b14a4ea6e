//! Where ranks are in their parallel groups: by `--mesh`, or by what the ranks themselves hold.
//!
//! A rank knows its own groups, and in each of them its peers. From the groups of the ranks that
//! were recorded follows where others are, too. Ranks that contradict each other are not believed.

use super::mesh::Mesh;
use super::ranks::Rank;
use crate::model::parallel::{Dimension, GroupSource, parse_dimensions};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Where ranks are along each dimension.
#[derive(Clone, Debug)]
pub struct Parallel {
    /// How it is known.
    pub source: GroupSource,
    /// Name and size of each dimension, outermost first.
    pub dimensions: Vec<(String, u32)>,
    /// Why the groups that the ranks hold are not used.
    pub conflict: Option<String>,
    places: Places,
}

/// A group's number among those of its dimension, and a rank's index in it, by the dimension's
/// index and the rank.
type Seats = FxHashMap<(usize, u32), (usize, u32)>;

#[derive(Clone, Debug)]
enum Places {
    Mesh(Mesh),
    Seats(Seats),
}

impl Default for Parallel {
    fn default() -> Self {
        Self {
            source: GroupSource::None,
            dimensions: Vec::new(),
            conflict: None,
            places: Places::Seats(Seats::default()),
        }
    }
}

impl Parallel {
    /// The groups of `ranks`: those of `mesh` if it is given.
    pub fn of(ranks: &[Rank], mesh: Option<&Mesh>) -> Self {
        if let Some(mesh) = mesh {
            return Self {
                source: GroupSource::Option,
                dimensions: mesh.dimensions.clone(),
                conflict: None,
                places: Places::Mesh(mesh.clone()),
            };
        }
        let Some((source, held)) = held(ranks) else {
            return Self::default();
        };
        match Self::of_groups(&held) {
            Ok(found) => Self { source, ..found },
            Err(why) => Self {
                conflict: Some(why),
                ..Self::default()
            },
        }
    }

    /// Where ranks with these groups are, and the other ranks in them.
    ///
    /// # Errors
    /// In what they contradict each other.
    pub fn of_groups(held: &[(u32, Vec<Dimension>)]) -> Result<Self, String> {
        let (dimensions, seats) = agreed(held)?;
        Ok(Self {
            dimensions,
            places: Places::Seats(seats),
            ..Self::default()
        })
    }

    /// Where a rank is along each dimension in which that is known.
    pub fn coordinates(&self, rank: u32) -> Vec<(&str, u32)> {
        match &self.places {
            Places::Mesh(mesh) => mesh.coordinates(rank),
            Places::Seats(seats) => {
                let all = self.dimensions.iter().enumerate();
                let known = all.filter_map(|(at, (name, _))| {
                    let &(_, index) = seats.get(&(at, rank))?;
                    Some((name.as_str(), index))
                });
                known.collect()
            }
        }
    }

    /// The same in words: `dp=1, tp=0`; empty if nothing is known.
    pub fn place(&self, rank: Option<u32>) -> String {
        let all = rank.map_or(Vec::new(), |rank| self.coordinates(rank));
        let all = all.iter().map(|(name, at)| format!("{name}={at}"));
        all.collect::<Vec<_>>().join(", ")
    }
}

/// Ranks with the groups that they hold.
type Held = Vec<(u32, Vec<Dimension>)>;

/// The groups that ranks hold, of the source that most of them have.
fn held(ranks: &[Rank]) -> Option<(GroupSource, Held)> {
    let mut of_source: BTreeMap<GroupSource, Held> = BTreeMap::new();
    for rank in ranks {
        if let (Some(number), Some((source, text))) = (rank.facts.rank, &rank.facts.groups)
            && let Some(dimensions) = parse_dimensions(text)
        {
            of_source
                .entry(*source)
                .or_default()
                .push((number, dimensions));
        }
    }
    let mut all = of_source.into_iter().rev();
    let first = all.next()?;
    Some(all.fold(first, |most, each| {
        if each.1.len() >= most.1.len() {
            each
        } else {
            most
        }
    }))
}

type Agreed = (Vec<(String, u32)>, Seats);

/// The dimensions of all ranks and their seats, or in what they contradict each other.
fn agreed(held: &[(u32, Vec<Dimension>)]) -> Result<Agreed, String> {
    let shape = |dimensions: &[Dimension]| -> Vec<(String, u32)> {
        let all = dimensions.iter();
        all.map(|each| (each.name.clone(), each.size())).collect()
    };
    let Some((first, dimensions)) = held.first() else {
        return Ok((Vec::new(), Seats::default()));
    };
    let shared = shape(dimensions);
    let mut seats = Seats::default();
    let mut groups: FxHashMap<(usize, &Dimension), usize> = FxHashMap::default();
    for (rank, dimensions) in held {
        let own = shape(dimensions);
        if own != shared {
            return Err(format!(
                "rank {first} is on a mesh of {}, and rank {rank} on one of {}",
                sizes(&shared),
                sizes(&own)
            ));
        }
        for (at, dimension) in dimensions.iter().enumerate() {
            let next = groups.len();
            let group = *groups.entry((at, dimension)).or_insert(next);
            if group == next {
                for (index, member) in (0..).zip(dimension.members()) {
                    seats.entry((at, member)).or_insert((group, index));
                }
            }
            let is_in_it = seats.get(&(at, *rank)).is_some_and(|seat| seat.0 == group);
            if !is_in_it {
                return Err(format!(
                    "rank {rank} has the {} group {}, which is not what other ranks have",
                    dimension.name,
                    dimension.ranks()
                ));
            }
        }
    }
    Ok((shared, seats))
}

/// `dp=2, tp=4`.
pub fn sizes(dimensions: &[(String, u32)]) -> String {
    let all = dimensions.iter();
    let all = all.map(|(name, size)| format!("{name}={size}"));
    all.collect::<Vec<_>>().join(", ")
}
