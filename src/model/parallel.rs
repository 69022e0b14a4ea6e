//! Parallel groups of a rank: the ranks that it computes with along each dimension of a device
//! mesh.
//!
//! As text: `dp=0-24:8;tp=0-7`, dimensions from the outermost to the innermost. Ranks with a
//! constant distance are a run, so a rank of a regular mesh of 10,000 ranks needs some tens of
//! bytes.

use super::named::named;
use serde::{Deserialize, Serialize};

/// The variable in which the user names the dimensions of the job's mesh: `dp=16,tp=8`.
pub const USERS_MESH: &str = "TORCHSPY_MESH";
/// Dimensions of a rank that are kept.
pub const MOST_DIMENSIONS: usize = 16;
/// Ranks of a group that are kept.
pub const MOST_MEMBERS: usize = 1 << 16;
/// Runs of ranks of a group that are kept: what is less regular is dropped, not cut.
const MOST_RUNS: usize = 256;
/// Characters of a dimension's name that are kept.
const MOST_NAME: usize = 32;

named!(
    /// How a rank's parallel groups are known.
    #[derive(Serialize, Deserialize)]
    GroupSource {
        /// `--mesh` of the report.
        Option = "--mesh",
        /// `TORCHSPY_MESH` of the rank's environment.
        Environment = "environment",
        /// A `DeviceMesh` of `torch.distributed` in the rank.
        DeviceMesh = "device mesh",
        /// Global variables of `megatron.core.parallel_state` in the rank.
        Megatron = "Megatron",
        /// It is not known.
        None = "none",
    }
);

/// Ranks `first`, `first + distance`, … up to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Run {
    first: u32,
    last: u32,
    /// At least 1.
    distance: u32,
}

impl Run {
    fn count(self) -> u32 {
        ((self.last - self.first) / self.distance).saturating_add(1)
    }

    fn ranks(self) -> impl Iterator<Item = u32> {
        (self.first..=self.last).step_by(self.distance as usize)
    }

    fn parse(text: &str) -> Option<Self> {
        let (range, distance) = text.split_once(':').unwrap_or((text, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let [first, last, distance] = [first, last, distance].map(|number| number.parse().ok());
        let (first, last, distance): (u32, u32, u32) = (first?, last?, distance?);
        let holds = distance > 0 && last.checked_sub(first)? % distance == 0;
        holds.then_some(Self {
            first,
            last,
            distance,
        })
    }
}

/// A rank's group along one dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dimension {
    /// As the user or a library named it.
    pub name: String,
    runs: Vec<Run>,
}

impl Dimension {
    /// The group of `members`, in the order of the dimension. `None` if it is empty, too large or
    /// too irregular.
    pub fn new(name: &str, members: &[u32]) -> Option<Self> {
        if members.is_empty() || members.len() > MOST_MEMBERS {
            return None;
        }
        let mut runs: Vec<Run> = Vec::new();
        for &rank in members {
            let grown = runs.last().copied().and_then(|run| {
                let distance = rank
                    .checked_sub(run.last)
                    .filter(|&distance| distance > 0)?;
                let is_next = run.count() == 1 || distance == run.distance;
                is_next.then_some(Run {
                    first: run.first,
                    last: rank,
                    distance,
                })
            });
            match (runs.last_mut(), grown) {
                (Some(last), Some(grown)) => *last = grown,
                _ => runs.push(Run {
                    first: rank,
                    last: rank,
                    distance: 1,
                }),
            }
        }
        let name = name.chars().take(MOST_NAME).map(|letter| match letter {
            '=' | ';' | ',' => '_',
            letter if letter.is_control() => '_',
            letter => letter,
        });
        (runs.len() <= MOST_RUNS).then(|| Self {
            name: name.collect(),
            runs,
        })
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.runs.iter().map(|run| run.count()).sum()
    }

    /// The ranks, in the order of the dimension.
    pub fn members(&self) -> impl Iterator<Item = u32> {
        self.runs.iter().flat_map(|run| run.ranks())
    }

    /// `0-24:8,32`.
    pub fn ranks(&self) -> String {
        let runs = self
            .runs
            .iter()
            .map(|run| match (run.count(), run.distance) {
                (1, _) => run.first.to_string(),
                (2, _) => format!("{},{}", run.first, run.last),
                (_, 1) => format!("{}-{}", run.first, run.last),
                (_, distance) => format!("{}-{}:{distance}", run.first, run.last),
            });
        runs.collect::<Vec<_>>().join(",")
    }
}

/// The dimensions of a rank as text; empty if there are none.
pub fn text_of(dimensions: &[Dimension]) -> String {
    let each = dimensions.iter();
    let each = each.map(|each| format!("{}={}", each.name, each.ranks()));
    each.collect::<Vec<_>>().join(";")
}

/// Parses the result of [`text_of`]; `None` if it is not one.
pub fn parse_dimensions(text: &str) -> Option<Vec<Dimension>> {
    let mut found: Vec<Dimension> = Vec::new();
    for part in text.split(';') {
        let (name, ranks) = part.split_once('=')?;
        let runs: Vec<Run> = ranks.split(',').map(Run::parse).collect::<Option<_>>()?;
        let is_new = found.iter().all(|other| other.name != name);
        if name.is_empty() || !is_new || found.len() >= MOST_DIMENSIONS {
            return None;
        }
        let members = runs.iter().flat_map(|run| run.ranks());
        let members: Vec<u32> = members.take(MOST_MEMBERS + 1).collect();
        found.push(Dimension::new(name, &members)?);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(members: &[u32]) -> String {
        Dimension::new("dp", members).unwrap().ranks()
    }

    #[test]
    fn ranks_with_a_constant_distance_are_a_run() {
        assert_eq!(text(&[3]), "3");
        assert_eq!(text(&[0, 2]), "0,2");
        assert_eq!(text(&[0, 1, 2, 3]), "0-3");
        assert_eq!(text(&[5, 13, 21, 29, 31]), "5-29:8,31");
        assert_eq!(text(&[3, 2, 1, 0]), "3,2,1,0");
        let all: Vec<u32> = (0..10_000).collect();
        assert_eq!(text(&all), "0-9999");
        let irregular: Vec<u32> = all.iter().map(|rank| rank * rank).collect();
        assert_eq!(Dimension::new("dp", &irregular[..2000]), None);
        assert_eq!(Dimension::new("dp", &[]), None);
    }

    #[test]
    fn names_do_not_end_their_part() {
        let odd = Dimension::new("a=b;c,d\n", &[0, 1]).unwrap();
        let all = [odd, Dimension::new("tp", &[1, 4]).unwrap()];
        assert_eq!(text_of(&all), "a_b_c_d_=0,1;tp=1,4");
        assert_eq!(parse_dimensions(&text_of(&all)).unwrap(), all);
        for wrong in [
            "", "dp", "dp=", "=1", "dp=1-", "dp=3-1", "dp=0-4:3", "dp=1:0", "a=1;a=2",
        ] {
            assert_eq!(parse_dimensions(wrong), None, "{wrong}");
        }
        assert_eq!(parse_dimensions("dp=0-4294967295"), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(members in prop::collection::vec(0_u32..100, 1..40)) {
            let dimension = Dimension::new("x", &members).unwrap();
            prop_assert_eq!(dimension.members().collect::<Vec<_>>(), members.clone());
            prop_assert_eq!(dimension.size() as usize, members.len());
            let read = parse_dimensions(&text_of(std::slice::from_ref(&dimension))).unwrap();
            prop_assert_eq!(read[0].members().collect::<Vec<_>>(), members);
        }
    }
}
