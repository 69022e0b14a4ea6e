//! Lanes of devices and processes, from version 2 on.

use super::column::{ColumnReader, ColumnWriter, Corrupt};
use super::rows::{RowBytes, Rows};
use super::tables::LaneColumns;
use crate::model::lane::Lanes;
use serde::{Deserialize, Serialize};

/// [`Lanes`] in a file.
#[derive(Serialize, Deserialize)]
pub(super) struct WireLanes<C, B> {
    gpus: Rows<B>,
    clocks: Rows<B>,
    lanes: Rows<B>,
    points: LaneColumns<C>,
    gaps: Rows<B>,
}

impl WireLanes<ColumnWriter, RowBytes> {
    pub(super) fn encode(lanes: &Lanes) -> Result<Self, Corrupt> {
        Ok(Self {
            gpus: Rows::encode(&lanes.gpus)?,
            clocks: Rows::encode(&lanes.clocks)?,
            lanes: Rows::encode(&lanes.lanes)?,
            points: LaneColumns::encode(lanes.points.iter())?,
            gaps: Rows::encode(&lanes.gaps)?,
        })
    }
}

impl WireLanes<ColumnReader<'_>, &[u8]> {
    pub(super) fn decode(self) -> Result<Lanes, Corrupt> {
        Ok(Lanes {
            gpus: self.gpus.decode()?,
            clocks: self.clocks.decode()?,
            lanes: self.lanes.decode()?,
            points: self.points.decode()?,
            gaps: self.gaps.decode()?,
        })
    }
}
