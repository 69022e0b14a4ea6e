//! Batches of values and gaps for the recording.

use super::GpuError;
use crate::model::ids::{GpuId, TrackId};
use crate::model::track::{CounterTracks, GpuInfo, TrackGap, TrackInfo, TrackKind, TrackPoint};
use crossbeam_channel::{Sender, TrySendError};
use rustc_hash::FxHashMap;

/// Most values that are kept while the channel is full: minutes of one device.
const MAX_POINTS: usize = 1 << 16;
/// Most gaps likewise: a metric that fails intermittently has at most one per second.
const MAX_GAPS: usize = 1 << 10;

/// Values of one thread since its last send.
#[derive(Debug, Default)]
pub(super) struct Batch {
    tracks: CounterTracks,
    /// Failing counter tracks: since when, and why.
    failing: FxHashMap<TrackKind, (u64, String)>,
}

impl Batch {
    /// A batch of one device, or of the host (`None`).
    pub(super) fn new(gpu: Option<&GpuInfo>) -> Self {
        let mut batch = Self::default();
        batch.tracks.gpus.extend(gpu.cloned());
        batch
    }

    pub(super) fn gpu(&self) -> Option<GpuId> {
        (!self.tracks.gpus.is_empty()).then_some(GpuId(0))
    }

    /// The device's description, to be completed.
    pub(super) fn gpu_info(&mut self) -> Option<&mut GpuInfo> {
        self.tracks.gpus.first_mut()
    }

    pub(super) fn put(&mut self, kind: TrackKind, start_ns: u64, end_ns: u64, value: u64) {
        self.works(kind, end_ns);
        self.put_of(kind, 0, "", start_ns, end_ns, value);
    }

    /// A failing call succeeds again: ends its gap.
    pub(super) fn works(&mut self, kind: TrackKind, now_ns: u64) {
        if let Some((since_ns, reason)) = self.failing.remove(&kind) {
            self.gap(Some(kind), since_ns, now_ns, reason);
        }
    }

    /// Adds a value of a process.
    pub(super) fn put_of(
        &mut self,
        kind: TrackKind,
        pid: i32,
        process: &str,
        start_ns: u64,
        end_ns: u64,
        value: u64,
    ) {
        let point = TrackPoint {
            track: TrackId(0),
            start_ns,
            end_ns,
            value,
        };
        if self.tracks.points.len() >= MAX_POINTS || !point.is_believable() {
            return;
        }
        let info = TrackInfo {
            kind,
            gpu: self.gpu(),
            pid,
            process: process.to_owned(),
        };
        let track = self.tracks.tracks.intern(&info);
        self.tracks.points.push(TrackPoint { track, ..point });
    }

    /// A call failed and may succeed later: begins a gap.
    pub(super) fn fails(&mut self, kind: TrackKind, now_ns: u64, error: &GpuError) {
        self.failing
            .entry(kind)
            .or_insert_with(|| (now_ns, error.reason.clone()));
    }

    /// Adds a gap; `end_ns` 0 means up to the end of the recording.
    pub(super) fn gap(
        &mut self,
        kind: Option<TrackKind>,
        start_ns: u64,
        end_ns: u64,
        reason: String,
    ) {
        let gpu = self.gpu();
        if self.tracks.gaps.len() >= MAX_GAPS {
            return;
        }
        self.tracks.gaps.push(TrackGap {
            gpu,
            kind,
            start_ns,
            end_ns,
            reason,
        });
    }

    /// Sets the relation of the driver's clock to CLOCK_MONOTONIC.
    pub(super) fn clock(&mut self, clock: crate::model::track::GpuClock) {
        self.tracks.clocks.clear();
        self.tracks.clocks.push(clock);
    }

    /// Sends the batch; keeps it if the channel is full.
    pub(super) fn send(&mut self, to: &Sender<CounterTracks>) {
        // Each batch includes the device, even without values.
        let gpus = self.tracks.gpus.clone();
        match to.try_send(std::mem::take(&mut self.tracks)) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => self.tracks.gpus = gpus,
            Err(TrySendError::Full(kept)) => self.tracks = kept,
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
        batch.put(TrackKind::Energy, 1, 2, u64::MAX);
        batch.put(TrackKind::Energy, 2, 1, 5);
        batch.put(TrackKind::Energy, 1, u64::MAX, 5);
        batch.put(TrackKind::Energy, u64::MAX - 1, u64::MAX, 5);
        assert!(batch.tracks.points.is_empty());
        for _ in 0..2 * MAX_GAPS {
            batch.gap(None, 1, 2, String::new());
        }
        assert_eq!(batch.tracks.gaps.len(), MAX_GAPS);
    }

    #[test]
    fn a_failing_track_is_a_gap_until_it_works_again() {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        let mut batch = Batch::new(Some(&GpuInfo::default()));
        let error = GpuError {
            kind: GpuErrorKind::Failed,
            reason: "busy".to_owned(),
        };
        batch.put(TrackKind::Power, 1, 2, 100);
        batch.fails(TrackKind::Power, 5, &error);
        batch.fails(TrackKind::Power, 6, &error);
        batch.put(TrackKind::Power, 8, 9, 100);
        batch.fails(TrackKind::Energy, 20, &error);
        batch.end_gaps(30);
        batch.send(&sender);
        // No room: it is kept.
        batch.put(TrackKind::Power, 40, 41, 7);
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
                (Some(TrackKind::Power), 5, 9),
                (Some(TrackKind::Energy), 20, 30)
            ]
        );
        assert_eq!(first.points.len(), 2);
        batch.send(&sender);
        let second = receiver.recv().unwrap();
        assert_eq!((second.gpus.len(), second.points.len()), (1, 1));
    }
}
