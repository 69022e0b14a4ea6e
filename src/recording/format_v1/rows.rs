//! Tables of small structures, field by field in postcard's encoding, as the model derives it:
//! processes, modules, counters, and the sampler's figures.
//!
//! The order of a structure's fields, and of an enumeration's variants, is part of the format:
//! what the model adds to one of these is skipped there (`serde(skip)`) and written after all else
//! ([`WireCounts`]). A test compares the bytes with those of an older file.

use super::column::{ColumnReader, ColumnWriter, Corrupt};
use super::columns::count_of;
use crate::model::quality::Quality;
use serde::{Deserialize, Serialize};

/// Most bytes of one table of rows. A row is at most some tens of times larger in memory than here.
pub(super) const MAX_ROW_BYTES: usize = 4 << 20;

/// Rows one after another.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Rows<C> {
    count: u32,
    rows: C,
}

impl Rows<ColumnWriter> {
    /// Writes all of `items`.
    pub(super) fn encode<T: Serialize>(items: &[T]) -> Result<Self, Corrupt> {
        let mut rows = ColumnWriter::default();
        items.iter().try_for_each(|item| rows.put_row(item))?;
        if rows.length() > MAX_ROW_BYTES {
            return Err(Corrupt("a table is too large"));
        }
        let count = count_of(items.len(), MAX_ROW_BYTES)?;
        Ok(Self { count, rows })
    }
}

impl<'a> Rows<ColumnReader<'a>> {
    /// Reads all rows.
    pub(super) fn decode<T: Deserialize<'a>>(mut self) -> Result<Vec<T>, Corrupt> {
        // Every row here has a field that takes a byte.
        if self.rows.length() > MAX_ROW_BYTES || !self.rows.has_rows(self.count as usize) {
            return Err(Corrupt("a table declares more rows than it has"));
        }
        (0..self.count).map(|_| self.rows.get_row()).collect()
    }
}

/// Counts that are always written.
const FIRST_COUNTS: usize = 5;

/// Counts after [`Quality`]'s own row, at the end of a segment. A later torchspy may write more of
/// them, and an earlier one wrote fewer.
#[derive(Serialize, Deserialize)]
pub(super) struct WireCounts(Vec<u64>);

impl WireCounts {
    pub(super) fn of(quality: &Quality) -> Self {
        let mut counts = vec![
            quality.calls_cut_short,
            quality.calls_left_running,
            quality.privileges_lost,
            quality.skipped_for_late_stop,
            quality.skipped_for_turn,
            quality.python_later,
            quality.samples_missed,
            quality.samples_refused,
        ];
        // Those that were added later are written where there are any.
        while counts.len() > FIRST_COUNTS && counts.last() == Some(&0) {
            counts.pop();
        }
        Self(counts)
    }

    pub(super) fn fill(&self, quality: &mut Quality) {
        let count = |at: usize| self.0.get(at).copied().unwrap_or(0);
        quality.calls_cut_short = count(0);
        quality.calls_left_running = count(1);
        quality.privileges_lost = count(2);
        quality.skipped_for_late_stop = count(3);
        quality.skipped_for_turn = count(4);
        quality.python_later = count(5);
        quality.samples_missed = count(6);
        quality.samples_refused = count(7);
    }
}
