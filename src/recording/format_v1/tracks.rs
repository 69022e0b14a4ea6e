//! Counter tracks of devices and processes, from version 2 on.

use super::column::{ColumnReader, ColumnWriter, Corrupt};
use super::rows::Rows;
use super::tables::TrackColumns;
use crate::model::track::CounterTracks;
use serde::{Deserialize, Serialize};

/// [`CounterTracks`] in a file.
#[derive(Serialize, Deserialize)]
pub(super) struct WireTracks<C> {
    gpus: Rows<C>,
    clocks: Rows<C>,
    tracks: Rows<C>,
    points: TrackColumns<C>,
    gaps: Rows<C>,
}

impl WireTracks<ColumnWriter> {
    pub(super) fn encode(tracks: &CounterTracks) -> Result<Self, Corrupt> {
        Ok(Self {
            gpus: Rows::encode(&tracks.gpus)?,
            clocks: Rows::encode(&tracks.clocks)?,
            tracks: Rows::encode(&tracks.tracks)?,
            points: TrackColumns::encode(tracks.points.iter())?,
            gaps: Rows::encode(&tracks.gaps)?,
        })
    }
}

impl WireTracks<ColumnReader<'_>> {
    pub(super) fn decode(self) -> Result<CounterTracks, Corrupt> {
        Ok(CounterTracks {
            gpus: self.gpus.decode()?,
            clocks: self.clocks.decode()?,
            tracks: self.tracks.decode()?.into(),
            points: self.points.decode()?,
            gaps: self.gaps.decode()?,
        })
    }
}
