//! Parallel groups: which ranks do the same work.
//!
//! Ranks of one pipeline stage do the same work, those of different stages do not. Sizes of the
//! dimensions are given as `dp=16,tp=8,pp=4`, from the outermost to the innermost: rank 1 is the
//! next one along the last dimension, as in `torch.distributed.init_device_mesh`.

use super::parallel::Parallel;
use super::ranks::Rank;
use crate::model::parallel::Dimension;
use std::collections::BTreeMap;

/// Dimensions of a device mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mesh {
    /// Name and size, outermost first.
    pub dimensions: Vec<(String, u32)>,
}

/// Why a mesh is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeshError {
    #[error("{0}: a dimension is NAME=SIZE")]
    Form(String),
    #[error("{0} is named twice")]
    Twice(String),
}

impl Mesh {
    /// Parses `dp=16,tp=8`.
    ///
    /// # Errors
    /// If it is not of that form.
    pub fn parse(text: &str) -> Result<Self, MeshError> {
        let mut dimensions: Vec<(String, u32)> = Vec::new();
        for part in text.split(',') {
            let wrong = || MeshError::Form(part.to_owned());
            let (name, size) = part.split_once('=').ok_or_else(wrong)?;
            let size: u32 = size.trim().parse().map_err(|_| wrong())?;
            let name = name.trim();
            if name.is_empty() || size == 0 {
                return Err(wrong());
            }
            if dimensions.iter().any(|(other, _)| other == name) {
                return Err(MeshError::Twice(name.to_owned()));
            }
            dimensions.push((name.to_owned(), size));
        }
        Ok(Self { dimensions })
    }

    /// Number of ranks.
    pub fn size(&self) -> u64 {
        let sizes = self.dimensions.iter().map(|&(_, size)| u64::from(size));
        sizes.fold(1, u64::saturating_mul)
    }

    /// The groups of a rank; `None` if it is not in the mesh.
    pub fn groups_of(&self, rank: u32) -> Option<Vec<Dimension>> {
        let mut distance = u32::try_from(self.size())
            .ok()
            .filter(|&size| rank < size)?;
        let all = self.coordinates(rank).into_iter().zip(&self.dimensions);
        let all = all.map(|((name, at), &(_, size))| {
            distance /= size;
            let first = rank - at * distance;
            let members = (0..size).map(|each| first + each * distance);
            Dimension::new(name, &members.collect::<Vec<_>>())
        });
        all.collect()
    }

    /// Where a rank is along each dimension.
    pub fn coordinates(&self, rank: u32) -> Vec<(&str, u32)> {
        let mut rest = rank;
        let mut found: Vec<(&str, u32)> = Vec::with_capacity(self.dimensions.len());
        for (name, size) in self.dimensions.iter().rev() {
            found.push((name, rest % size));
            rest /= size;
        }
        found.reverse();
        found
    }
}

/// Ranks that do the same work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// `pp=1`; empty if all ranks do the same work.
    pub name: String,
    /// Indices of ranks.
    pub ranks: Vec<usize>,
}

/// Dimensions along which ranks do different work.
pub(super) fn divides_work(name: &str) -> bool {
    matches!(
        name,
        "pp" | "pipe" | "pipeline" | "pipeline_parallel" | "stage"
    )
}

/// The groups of ranks that are compared with each other.
pub fn groups(ranks: &[Rank], parallel: &Parallel) -> Vec<Group> {
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, rank) in ranks.iter().enumerate() {
        let number = rank.facts.rank;
        let places = number.map_or(Vec::new(), |number| parallel.coordinates(number));
        let name = places
            .into_iter()
            .filter(|(name, _)| divides_work(name))
            .map(|(name, at)| format!("{name}={at}"))
            .collect::<Vec<_>>()
            .join(",");
        groups.entry(name).or_default().push(at);
    }
    let groups = groups.into_iter();
    groups.map(|(name, ranks)| Group { name, ranks }).collect()
}

#[cfg(test)]
mod tests {
    use super::{Mesh, MeshError};
    use crate::model::parallel::text_of;

    #[test]
    fn the_last_dimension_runs_fastest() {
        let mesh = Mesh::parse("dp=2,pp=3,tp=4").unwrap();
        assert_eq!(mesh.size(), 24);
        assert_eq!(mesh.coordinates(0), [("dp", 0), ("pp", 0), ("tp", 0)]);
        assert_eq!(mesh.coordinates(17), [("dp", 1), ("pp", 1), ("tp", 1)]);
        assert_eq!(Mesh::parse("dp"), Err(MeshError::Form("dp".to_owned())));
        assert!(matches!(Mesh::parse("a=2,a=2"), Err(MeshError::Twice(_))));
        assert!(Mesh::parse("dp=0").is_err());
        let text = |rank| mesh.groups_of(rank).map(|groups| text_of(&groups));
        assert_eq!(text(17).unwrap(), "dp=5,17;pp=13-21:4;tp=16-19");
        assert_eq!(text(24), None);
    }
}
