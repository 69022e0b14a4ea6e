//! What is recorded besides samples and the tables that these point into.

use super::progress::{Condition, ProgressPoint};
use super::quality::Quality;
use super::run::{ClockPair, Loss};
use super::track::CounterTracks;

/// What segment, recording and profile hold alike. Ids are those of the tables next to it, of
/// [`CounterTracks`] its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sideband {
    /// Readings of counters, by time; of a segment by the order in which they were taken.
    pub points: Vec<ProgressPoint>,
    /// In the order in which they became known.
    pub conditions: Vec<Condition>,
    /// Counter tracks of devices and processes; but for a segment's, points by counter track and
    /// end.
    pub tracks: CounterTracks,
    pub quality: Quality,
    /// In the order of the file.
    pub clocks: Vec<ClockPair>,
    pub losses: Vec<Loss>,
}
