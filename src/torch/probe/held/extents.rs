//! Which bytes of storages are counted: each for the first tensor that covers it.

use super::tensors::Extent;
use rustc_hash::FxHashMap;

/// What a tensor adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// Bytes that no earlier tensor covers.
    Own(u64),
    /// All its bytes were counted before.
    Counted,
}

#[derive(Debug, Default)]
struct Covered {
    size: u64,
    /// Ranges, ascending and apart from each other.
    ranges: Vec<(u64, u64)>,
}

/// The bytes that were counted, by storage.
#[derive(Debug, Default)]
pub(super) struct Extents {
    storages: FxHashMap<u64, Covered>,
}

impl Extents {
    pub(super) fn add(&mut self, extent: &Extent) -> Share {
        let (start, end) = (extent.start, extent.end);
        if start >= end {
            return Share::Own(0);
        }
        let covered = self.storages.entry(extent.storage).or_default();
        covered.size = covered.size.max(extent.storage_bytes);
        // Ranges that touch it become one.
        let first = covered.ranges.partition_point(|range| range.1 < start);
        let last = covered.ranges.partition_point(|range| range.0 <= end);
        let touched = covered.ranges.get(first..last).unwrap_or_default();
        let known: u64 = touched
            .iter()
            .map(|range| range.1.min(end).saturating_sub(range.0.max(start)))
            .sum();
        let whole = touched.iter().fold((start, end), |whole, range| {
            (whole.0.min(range.0), whole.1.max(range.1))
        });
        covered.ranges.splice(first..last.max(first), [whole]);
        match (end - start).saturating_sub(known) {
            0 => Share::Counted,
            own => Share::Own(own),
        }
    }

    /// Bytes of the storages that no tensor covers.
    pub(super) fn uncovered(&self) -> u64 {
        let each = self.storages.values().map(|covered| {
            let known: u64 = covered.ranges.iter().map(|range| range.1 - range.0).sum();
            covered.size.saturating_sub(known)
        });
        each.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(storage: u64, start: u64, end: u64) -> Extent {
        Extent {
            storage,
            storage_bytes: 100,
            start,
            end,
            dtype: "float32",
            device: (0, -1),
        }
    }

    #[test]
    fn each_byte_counts_once() {
        let mut extents = Extents::default();
        for (storage, start, end, share) in [
            (8, 0, 20, Share::Own(20)),
            (8, 0, 20, Share::Counted),
            (8, 40, 60, Share::Own(20)),
            (8, 10, 50, Share::Own(20)),
            (8, 5, 55, Share::Counted),
            (8, 60, 70, Share::Own(10)),
            (8, 90, 95, Share::Own(5)),
            (8, 0, 100, Share::Own(25)),
            (16, 0, 50, Share::Own(50)),
            (16, 7, 7, Share::Own(0)),
        ] {
            assert_eq!(
                extents.add(&extent(storage, start, end)),
                share,
                "{start} to {end}"
            );
        }
        assert_eq!(extents.uncovered(), 50);
    }
}
