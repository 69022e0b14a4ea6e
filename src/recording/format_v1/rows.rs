//! Tables of small structures, field by field in postcard's encoding, as the model derives it:
//! processes, modules, counters, and the sampler's figures.
//!
//! The order of a structure's fields, and of an enumeration's variants, is part of the format:
//! what the model adds to one of these is skipped there (`serde(skip)`) and written after all else
//! ([`WireCounts`]). A test compares the bytes with those of an older file.

use super::column::Corrupt;
use crate::model::quality::Quality;
use serde::{Deserialize, Serialize};

/// Most bytes of one table of rows. A row is at most some tens of times larger in memory than here.
pub(super) const MAX_ROW_BYTES: usize = 4 << 20;

/// Rows one after another.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Rows<B> {
    count: u32,
    bytes: B,
}

/// Bytes of rows being written.
#[derive(Debug, Default)]
pub(super) struct RowBytes(Vec<u8>);

impl Serialize for RowBytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl Rows<RowBytes> {
    /// Writes all of `items`.
    pub(super) fn encode<T: Serialize>(items: &[T]) -> Result<Self, Corrupt> {
        let mut bytes = Vec::new();
        for item in items {
            bytes =
                postcard::to_extend(item, bytes).map_err(|_| Corrupt("a row cannot be written"))?;
        }
        if bytes.len() > MAX_ROW_BYTES {
            return Err(Corrupt("a table is too large"));
        }
        Ok(Self {
            count: u32::try_from(items.len()).map_err(|_| Corrupt("a table is too large"))?,
            bytes: RowBytes(bytes),
        })
    }
}

impl<'a> Rows<&'a [u8]> {
    /// Reads all rows.
    pub(super) fn decode<T: Deserialize<'a>>(self) -> Result<Vec<T>, Corrupt> {
        // Every row here has a field that takes a byte.
        if self.bytes.len() > MAX_ROW_BYTES || self.count as usize > self.bytes.len() {
            return Err(Corrupt("a table declares more rows than it has"));
        }
        let mut rows = Vec::new();
        let mut bytes = self.bytes;
        for _ in 0..self.count {
            let (row, rest) =
                postcard::take_from_bytes(bytes).map_err(|_| Corrupt("a row is no row"))?;
            rows.push(row);
            bytes = rest;
        }
        Ok(rows)
    }
}

/// Counts after [`Quality`]'s own row, at the end of a segment. A later torchspy may write more of
/// them, and an earlier one wrote fewer.
#[derive(Serialize, Deserialize)]
pub(super) struct WireCounts(Vec<u64>);

impl WireCounts {
    pub(super) fn of(quality: &Quality) -> Self {
        Self(vec![
            quality.calls_cut_short,
            quality.calls_left_running,
            quality.privileges_lost,
            quality.skipped_for_late_stop,
            quality.skipped_for_turn,
        ])
    }

    pub(super) fn fill(&self, quality: &mut Quality) {
        let count = |at: usize| self.0.get(at).copied().unwrap_or(0);
        quality.calls_cut_short = count(0);
        quality.calls_left_running = count(1);
        quality.privileges_lost = count(2);
        quality.skipped_for_late_stop = count(3);
        quality.skipped_for_turn = count(4);
    }
}
