//! Lanes of devices and processes, from version 2 on.

use super::column::{ColumnReader, ColumnWriter, Corrupt, row_count};
use super::rows::{RowBytes, Rows};
use super::tables::{MAX_ROWS, count_of};
use crate::model::ids::LaneId;
use crate::model::lane::{LanePoint, Lanes};
use serde::{Deserialize, Serialize};

/// [`Lanes`] in a file.
#[derive(Serialize, Deserialize)]
pub(super) struct WireLanes<C, B> {
    gpus: Rows<B>,
    clocks: Rows<B>,
    lanes: Rows<B>,
    points: PointColumns<C>,
    gaps: Rows<B>,
}

impl WireLanes<ColumnWriter, RowBytes> {
    pub(super) fn encode(lanes: &Lanes) -> Result<Self, Corrupt> {
        Ok(Self {
            gpus: Rows::encode(&lanes.gpus)?,
            clocks: Rows::encode(&lanes.clocks)?,
            lanes: Rows::encode(&lanes.lanes)?,
            points: PointColumns::encode(&lanes.points)?,
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

/// [`LanePoint`]s in a file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct PointColumns<C> {
    count: u32,
    lane: C,
    end: C,
    length: C,
    value: C,
}

impl PointColumns<ColumnWriter> {
    fn encode(points: &[LanePoint]) -> Result<Self, Corrupt> {
        let mut columns = Self {
            count: count_of(points.len(), MAX_ROWS)?,
            ..Self::default()
        };
        for point in points {
            columns.lane.put_delta(u64::from(point.lane.0));
            columns.end.put_delta(point.end_ns);
            columns
                .length
                .put(point.end_ns.saturating_sub(point.start_ns));
            columns.value.put_delta(point.value);
        }
        Ok(columns)
    }
}

impl PointColumns<ColumnReader<'_>> {
    fn decode(mut self) -> Result<Vec<LanePoint>, Corrupt> {
        let count = row_count(self.count, MAX_ROWS, &[&self.lane, &self.end])?;
        let mut points = Vec::with_capacity(count);
        for _ in 0..count {
            let lane = LaneId(self.lane.get_delta_as()?);
            let end_ns = self.end.get_delta()?;
            points.push(LanePoint {
                lane,
                start_ns: end_ns.saturating_sub(self.length.get()?),
                end_ns,
                value: self.value.get_delta()?,
            });
        }
        Ok(points)
    }
}
