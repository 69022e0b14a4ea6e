//! Batches of values and gaps for the recording.

use super::GpuError;
use crate::model::ids::{GpuId, LaneId};
use crate::model::lane::{GpuInfo, LaneGap, LaneInfo, LaneKind, LanePoint, Lanes};
use crossbeam_channel::{Sender, TrySendError};
use rustc_hash::FxHashMap;

/// Most values that are kept while the channel is full: minutes of one device.
const MAX_POINTS: usize = 1 << 16;
/// Most gaps likewise: a metric that fails intermittently has at most one per second.
const MAX_GAPS: usize = 1 << 10;

/// Values of one thread since its last send.
#[derive(Debug, Default)]
pub(super) struct Batch {
    lanes: Lanes,
    /// Failing counter tracks: since when, and why.
    failing: FxHashMap<LaneKind, (u64, String)>,
}

impl Batch {
    /// A batch of one device, or of the host (`None`).
    pub(super) fn new(gpu: Option<&GpuInfo>) -> Self {
        let mut batch = Self::default();
        batch.lanes.gpus.extend(gpu.cloned());
        batch
    }

    pub(super) fn gpu(&self) -> Option<GpuId> {
        (!self.lanes.gpus.is_empty()).then_some(GpuId(0))
    }

    /// The device's description, to be completed.
    pub(super) fn gpu_info(&mut self) -> Option<&mut GpuInfo> {
        self.lanes.gpus.first_mut()
    }

    pub(super) fn put(&mut self, kind: LaneKind, start_ns: u64, end_ns: u64, value: u64) {
        self.works(kind, end_ns);
        self.put_of(kind, 0, "", start_ns, end_ns, value);
    }

    /// A failing call succeeds again: ends its gap.
    pub(super) fn works(&mut self, kind: LaneKind, now_ns: u64) {
        if let Some((since_ns, reason)) = self.failing.remove(&kind) {
            self.gap(Some(kind), since_ns, now_ns, reason);
        }
    }

    /// Adds a value of a process.
    pub(super) fn put_of(
        &mut self,
        kind: LaneKind,
        pid: i32,
        process: &str,
        start_ns: u64,
        end_ns: u64,
        value: u64,
    ) {
        let point = LanePoint {
            lane: LaneId(0),
            start_ns,
            end_ns,
            value,
        };
        if self.lanes.points.len() >= MAX_POINTS || !point.is_believable() {
            return;
        }
        let info = LaneInfo {
            kind,
            gpu: self.gpu(),
            pid,
            process: process.to_owned(),
        };
        let lane = self.lanes.lanes.intern(&info);
        self.lanes.points.push(LanePoint { lane, ..point });
    }

    /// A call failed and may succeed later: begins a gap.
    pub(super) fn fails(&mut self, kind: LaneKind, now_ns: u64, error: &GpuError) {
        self.failing
            .entry(kind)
            .or_insert_with(|| (now_ns, error.reason.clone()));
    }

    /// Adds a gap; `end_ns` 0 means up to the end of the recording.
    pub(super) fn gap(
        &mut self,
        kind: Option<LaneKind>,
        start_ns: u64,
        end_ns: u64,
        reason: String,
    ) {
        let gpu = self.gpu();
        if self.lanes.gaps.len() >= MAX_GAPS {
            return;
        }
        self.lanes.gaps.push(LaneGap {
            gpu,
            kind,
            start_ns,
            end_ns,
            reason,
        });
    }

    /// Sets the relation of the driver's clock to CLOCK_MONOTONIC.
    pub(super) fn clock(&mut self, clock: crate::model::lane::GpuClock) {
        self.lanes.clocks.clear();
        self.lanes.clocks.push(clock);
    }

    /// Sends the batch; keeps it if the channel is full.
    pub(super) fn send(&mut self, to: &Sender<Lanes>) {
        // Each batch includes the device, even without values.
        let gpus = self.lanes.gpus.clone();
        match to.try_send(std::mem::take(&mut self.lanes)) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => self.lanes.gpus = gpus,
            Err(TrySendError::Full(kept)) => self.lanes = kept,
        }
    }

    /// Ends the gaps of all failing counter tracks.
    pub(super) fn end_gaps(&mut self, now_ns: u64) {
        let failing = std::mem::take(&mut self.failing);
        for (kind, (since_ns, reason)) in failing {
            self.gap(Some(kind), since_ns, now_ns, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuErrorKind;

    #[test]
    fn what_a_driver_cannot_mean_is_left_out() {
        let mut batch = Batch::new(Some(&GpuInfo::default()));
        batch.put(LaneKind::Energy, 1, 2, u64::MAX);
        batch.put(LaneKind::Energy, 2, 1, 5);
        batch.put(LaneKind::Energy, 1, u64::MAX, 5);
        batch.put(LaneKind::Energy, u64::MAX - 1, u64::MAX, 5);
        assert!(batch.lanes.points.is_empty());
        for _ in 0..2 * MAX_GAPS {
            batch.gap(None, 1, 2, String::new());
        }
        assert_eq!(batch.lanes.gaps.len(), MAX_GAPS);
    }

    #[test]
    fn a_failing_lane_is_a_gap_until_it_works_again() {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        let mut batch = Batch::new(Some(&GpuInfo::default()));
        let error = GpuError {
            kind: GpuErrorKind::Failed,
            reason: "busy".to_owned(),
        };
        batch.put(LaneKind::Power, 1, 2, 100);
        batch.fails(LaneKind::Power, 5, &error);
        batch.fails(LaneKind::Power, 6, &error);
        batch.put(LaneKind::Power, 8, 9, 100);
        batch.fails(LaneKind::Energy, 20, &error);
        batch.end_gaps(30);
        batch.send(&sender);
        // No room: it is kept.
        batch.put(LaneKind::Power, 40, 41, 7);
        batch.send(&sender);
        let first = receiver.recv().unwrap();
        let gaps: Vec<_> = first
            .gaps
            .iter()
            .map(|gap| (gap.kind, gap.start_ns, gap.end_ns))
            .collect();
        assert_eq!(
            gaps,
            [
                (Some(LaneKind::Power), 5, 9),
                (Some(LaneKind::Energy), 20, 30)
            ]
        );
        assert_eq!(first.points.len(), 2);
        batch.send(&sender);
        let second = receiver.recv().unwrap();
        assert_eq!((second.gpus.len(), second.points.len()), (1, 1));
    }
}
