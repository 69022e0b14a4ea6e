//! Recorded data besides samples and the tables that samples refer to.

use super::progress::{Condition, ProgressPoint};
use super::quality::Quality;
use super::run::{ClockPair, Loss};
use super::track::CounterTracks;

/// Data that segment, recording and profile have in common. Ids refer to the tables next to it,
/// those of [`CounterTracks`] to its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sideband {
    /// Readings of counters by time; in a segment in the order in which they were taken.
    pub points: Vec<ProgressPoint>,
    /// In the order in which they became known.
    pub conditions: Vec<Condition>,
    /// Counter tracks of devices and processes; except in a segment, points are sorted by counter
    /// track and end.
    pub tracks: CounterTracks,
    pub quality: Quality,
    /// In the order of the file.
    pub clocks: Vec<ClockPair>,
    pub losses: Vec<Loss>,
}
