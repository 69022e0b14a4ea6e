//! A second of recording with all the tables that it needs: the unit that is written, checked and,
//! if corrupt, lost.

use super::ids::ProcessId;
use super::module::SymbolInfo;
use super::process::ProcessInfo;
use super::progress::Condition;
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
    /// Samples by start; of a segment that was read from a file, by thread and start.
    pub samples: Vec<Sample>,
    pub sideband: Sideband,
    /// Whether this is the last segment of a recording that ended in order.
    pub last: bool,
}

impl Segment {
    /// Adds a condition of `process`, which need not be in the tables.
    pub fn add_condition(&mut self, process: &ProcessInfo, name: &str, value: String) {
        let processes = &mut self.tables.processes;
        let at = processes.iter().position(|each| each == process);
        let at = at.unwrap_or_else(|| {
            processes.push(process.clone());
            processes.len() - 1
        });
        self.sideband.conditions.push(Condition {
            process: ProcessId::from_index(at),
            name: name.to_owned(),
            value,
        });
    }
}
