//! A second of recording with all the tables that it needs: the unit that is written, checked and,
//! if corrupt, lost.

use super::module::SymbolInfo;
use super::sample::Sample;
use super::sideband::Sideband;
use super::tables::Tables;

/// Everything that one flush writes. All ids are those of its own tables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Segment {
    /// Counts from 0; a missing number is a lost segment.
    pub index: u64,
    /// Start and end of its interval, CLOCK_MONOTONIC.
    pub start_ns: u64,
    pub end_ns: u64,
    /// The tables that the rest refers to, and processes that are new or have changed.
    pub tables: Tables,
    /// Symbols of the native frames here, as far as they had been loaded. Later segments may add
    /// what is missing.
    pub symbols: Vec<SymbolInfo>,
    /// Samples by start.
    pub samples: Vec<Sample>,
    pub sideband: Sideband,
    /// Whether this is the last segment of a recording that ended in order.
    pub last: bool,
}
