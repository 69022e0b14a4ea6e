//! Lanes of devices and processes, from version 2 on.

use super::column::{ColumnReader, ColumnWriter, Corrupt, bounded, row_count};
use super::rows::{RowBytes, Rows};
use super::tables::{MAX_ROWS, count_of};
use crate::model::ids::{GpuId, LaneId};
use crate::model::lane::{GpuClock, GpuInfo, LaneGap, LaneInfo, LaneKind, LanePoint, Lanes};
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
            gpus: Rows::encode(&lanes.gpus, WireGpu::of)?,
            clocks: Rows::encode(&lanes.clocks, WireClock::of)?,
            lanes: Rows::encode(&lanes.lanes, WireLane::of)?,
            points: PointColumns::encode(&lanes.points)?,
            gaps: Rows::encode(&lanes.gaps, WireGap::of)?,
        })
    }
}

impl WireLanes<ColumnReader<'_>, &[u8]> {
    pub(super) fn decode(self) -> Result<Lanes, Corrupt> {
        Ok(Lanes {
            gpus: self.gpus.decode(WireGpu::model)?,
            clocks: self.clocks.decode(WireClock::model)?,
            lanes: self.lanes.decode(WireLane::model)?,
            points: self.points.decode()?,
            gaps: self.gaps.decode(WireGap::model)?,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct WireGpu<'a> {
    uuid: &'a str,
    index: u32,
    mig: Option<u32>,
    name: &'a str,
    driver: &'a str,
    pci: &'a str,
    memory_bytes: u64,
    power_limit_mw: u64,
    recorded: bool,
}

impl<'a> WireGpu<'a> {
    fn of(gpu: &'a GpuInfo) -> Self {
        Self {
            uuid: bounded(&gpu.uuid),
            index: gpu.index,
            mig: gpu.mig,
            name: bounded(&gpu.name),
            driver: bounded(&gpu.driver),
            pci: bounded(&gpu.pci),
            memory_bytes: gpu.memory_bytes,
            power_limit_mw: gpu.power_limit_mw,
            recorded: gpu.recorded,
        }
    }

    fn model(self) -> Result<GpuInfo, Corrupt> {
        Ok(GpuInfo {
            uuid: self.uuid.to_owned(),
            index: self.index,
            mig: self.mig,
            name: self.name.to_owned(),
            driver: self.driver.to_owned(),
            pci: self.pci.to_owned(),
            memory_bytes: self.memory_bytes,
            power_limit_mw: self.power_limit_mw,
            recorded: self.recorded,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct WireClock<'a> {
    gpu: u32,
    monotonic_ns: u64,
    driver_ns: u64,
    error_ns: u64,
    clock: &'a str,
}

impl<'a> WireClock<'a> {
    fn of(clock: &'a GpuClock) -> Self {
        Self {
            gpu: clock.gpu.0,
            monotonic_ns: clock.monotonic_ns,
            driver_ns: clock.driver_ns,
            error_ns: clock.error_ns,
            clock: bounded(&clock.clock),
        }
    }

    fn model(self) -> Result<GpuClock, Corrupt> {
        Ok(GpuClock {
            gpu: GpuId(self.gpu),
            monotonic_ns: self.monotonic_ns,
            driver_ns: self.driver_ns,
            error_ns: self.error_ns,
            clock: self.clock.to_owned(),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct WireLane<'a> {
    kind: u32,
    gpu: Option<u32>,
    pid: i32,
    process: &'a str,
}

impl<'a> WireLane<'a> {
    fn of(lane: &'a LaneInfo) -> Self {
        Self {
            kind: kind_code(lane.kind),
            gpu: lane.gpu.map(|gpu| gpu.0),
            pid: lane.pid,
            process: bounded(&lane.process),
        }
    }

    fn model(self) -> Result<LaneInfo, Corrupt> {
        Ok(LaneInfo {
            kind: kind_of(self.kind)?,
            gpu: self.gpu.map(GpuId),
            pid: self.pid,
            process: self.process.to_owned(),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct WireGap<'a> {
    gpu: Option<u32>,
    kind: Option<u32>,
    start_ns: u64,
    end_ns: u64,
    reason: &'a str,
}

impl<'a> WireGap<'a> {
    fn of(gap: &'a LaneGap) -> Self {
        Self {
            gpu: gap.gpu.map(|gpu| gpu.0),
            kind: gap.kind.map(kind_code),
            start_ns: gap.start_ns,
            end_ns: gap.end_ns,
            reason: bounded(&gap.reason),
        }
    }

    fn model(self) -> Result<LaneGap, Corrupt> {
        Ok(LaneGap {
            gpu: self.gpu.map(GpuId),
            kind: self.kind.map(kind_of).transpose()?,
            start_ns: self.start_ns,
            end_ns: self.end_ns,
            reason: self.reason.to_owned(),
        })
    }
}

/// The place of a kind in [`LaneKind::ALL`], which only grows at its end.
fn kind_code(kind: LaneKind) -> u32 {
    kind as u32
}

fn kind_of(code: u32) -> Result<LaneKind, Corrupt> {
    let kind = LaneKind::ALL.get(code as usize).copied();
    kind.ok_or(Corrupt("an unknown code"))
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
            count: count_of(points, MAX_ROWS)?,
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
