//! Lanes of devices and processes, from version 2 on.

use super::column::{ColumnReader, ColumnWriter, Corrupt};
use super::rows::Rows;
use super::tables::LaneColumns;
use crate::model::lane::Lanes;
use serde::{Deserialize, Serialize};

/// [`Lanes`] in a file.
#[derive(Serialize, Deserialize)]
pub(super) struct WireLanes<C> {
    gpus: Rows<C>,
    clocks: Rows<C>,
    lanes: Rows<C>,
    points: LaneColumns<C>,
    gaps: Rows<C>,
}

impl WireLanes<ColumnWriter> {
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

impl WireLanes<ColumnReader<'_>> {
    pub(super) fn decode(self) -> Result<Lanes, Corrupt> {
        Ok(Lanes {
            gpus: self.gpus.decode()?,
            clocks: self.clocks.decode()?,
            lanes: self.lanes.decode()?.into(),
            points: self.points.decode()?,
            gaps: self.gaps.decode()?,
        })
    }
}
