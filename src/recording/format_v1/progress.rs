//! Readings of counters, from version 2 on.

use super::column::{ColumnReader, ColumnWriter, Corrupt, row_count};
use super::tables::{MAX_ROWS, count_of};
use crate::model::ids::{CounterId, ThreadId};
use crate::model::progress::ProgressPoint;
use serde::{Deserialize, Serialize};

/// [`ProgressPoint`]s in a file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct PointColumns<C> {
    count: u32,
    counter: C,
    thread: C,
    time: C,
    waited: C,
    value: C,
}

impl PointColumns<ColumnWriter> {
    pub(super) fn encode(points: &[ProgressPoint]) -> Result<Self, Corrupt> {
        let mut columns = Self {
            count: count_of(points.len(), MAX_ROWS)?,
            ..Self::default()
        };
        for point in points {
            columns.counter.put_delta(u64::from(point.counter.0));
            columns.thread.put_delta(u64::from(point.thread.0));
            columns.time.put_delta(point.time_ns);
            columns
                .waited
                .put(point.time_ns.saturating_sub(point.before_ns));
            columns.value.put_delta(point.value);
        }
        Ok(columns)
    }
}

impl PointColumns<ColumnReader<'_>> {
    pub(super) fn decode(mut self) -> Result<Vec<ProgressPoint>, Corrupt> {
        let count = row_count(self.count, MAX_ROWS, &[&self.counter, &self.time])?;
        let mut points = Vec::with_capacity(count);
        for _ in 0..count {
            let counter = CounterId(self.counter.get_delta_as()?);
            let thread = ThreadId(self.thread.get_delta_as()?);
            let time_ns = self.time.get_delta()?;
            points.push(ProgressPoint {
                counter,
                thread,
                before_ns: time_ns.saturating_sub(self.waited.get()?),
                time_ns,
                value: self.value.get_delta()?,
            });
        }
        Ok(points)
    }
}
