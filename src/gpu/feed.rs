//! Channels between the collectors and the recording: sampled processes one way, counter tracks the
//! other. Neither side blocks.

use crate::model::track::{CounterTracks, GpuInfo, TrackGap, TrackMerger};
use crate::os::clock::monotonic_ns;
use crossbeam_channel::{Receiver, Sender};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the end of a recording waits for the last values. A call that hangs is abandoned.
const PATIENCE: Duration = Duration::from_millis(400);
/// Values and gaps above which batches wait for the next segment; a segment can hold more (see
/// format_v1).
const MAX_POINTS: usize = 1 << 18;
const MAX_GAPS: usize = 1 << 12;
/// A call that takes this long is a gap.
pub(super) const LONG_CALL_NS: u64 = 1_000_000_000;

/// A sampled process, as the collectors need it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sampled {
    pub pid: i32,
    /// Its name, for display.
    pub name: String,
    /// Whether libcuda is mapped.
    pub has_cuda: bool,
    /// Whether its parent is a sampled process of the same program: it may share memory with it.
    pub is_forked: bool,
    /// Its CUDA_VISIBLE_DEVICES.
    pub visible: Option<String>,
}

/// The driver call of one thread that is in progress, if any.
#[derive(Debug, Default)]
pub(super) struct Call {
    gpu: Option<GpuInfo>,
    recorded: AtomicBool,
    since_ns: AtomicU64,
}

impl Call {
    pub(super) fn begin(&self) -> u64 {
        let now_ns = monotonic_ns();
        self.since_ns.store(now_ns, Ordering::Relaxed);
        now_ns
    }

    /// Whether the device is recorded, and not only checked for use.
    pub(super) fn set_recorded(&self, recorded: bool) {
        self.recorded.store(recorded, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.since_ns.store(0, Ordering::Relaxed);
    }
}

/// State shared by the collectors and the recording.
#[derive(Debug, Default)]
pub(super) struct Shared {
    sampled: Mutex<Arc<[Sampled]>>,
    calls: Mutex<Vec<Arc<Call>>>,
    /// Whether the driver lists a sampled process on any device.
    listed: AtomicBool,
}

impl Shared {
    pub(super) fn sampled(&self) -> Arc<[Sampled]> {
        self.sampled
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The driver lists a sampled process on some device, so its lists show our pids.
    pub(super) fn set_listed(&self) {
        self.listed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_listed(&self) -> bool {
        self.listed.load(Ordering::Relaxed)
    }

    /// Number of recorded devices.
    pub(super) fn recorded(&self) -> usize {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let recorded = |call: &&Arc<Call>| call.recorded.load(Ordering::Relaxed);
        calls.iter().filter(recorded).count()
    }

    /// Registers a slot for calls of a device, or of the library itself.
    pub(super) fn call(&self, gpu: Option<&GpuInfo>) -> Arc<Call> {
        let call = Arc::new(Call {
            gpu: gpu.cloned(),
            recorded: AtomicBool::new(false),
            since_ns: AtomicU64::new(0),
        });
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push(call.clone());
        call
    }
}

/// The recording's side of the channels.
#[derive(Debug)]
pub struct TrackFeed {
    pub(super) shared: Arc<Shared>,
    batches: Receiver<CounterTracks>,
    /// Dropping it ends the collectors.
    stop: Option<Sender<()>>,
}

impl TrackFeed {
    pub(super) fn new(
        shared: Arc<Shared>,
        batches: Receiver<CounterTracks>,
        stop: Sender<()>,
    ) -> Self {
        Self {
            shared,
            batches,
            stop: Some(stop),
        }
    }

    /// Publishes the sampled processes to the collectors. Never blocks.
    pub fn tell(&self, sampled: Vec<Sampled>) {
        if let Ok(mut known) = self.shared.sampled.try_lock()
            && **known != *sampled
        {
            *known = sampled.into();
        }
    }

    /// Takes the values collected since the last call.
    pub fn take(&self) -> CounterTracks {
        let mut merger = TrackMerger::default();
        while has_room(&merger)
            && let Ok(batch) = self.batches.try_recv()
        {
            merger.add(&batch);
        }
        merger.finish()
    }

    /// Ends collecting and takes the remaining values that arrive within 400 ms. Driver
    /// calls that have not returned become gaps.
    pub fn take_last(&mut self) -> CounterTracks {
        self.stop = None;
        let mut merger = TrackMerger::default();
        let deadline = Instant::now() + PATIENCE;
        // Until the last collector has ended, or the deadline.
        while has_room(&merger)
            && let Ok(batch) = self.batches.recv_deadline(deadline)
        {
            merger.add(&batch);
        }
        merger.add(&self.hanging());
        merger.finish()
    }

    fn hanging(&self) -> CounterTracks {
        let now_ns = monotonic_ns();
        let mut tracks = CounterTracks::default();
        let calls = self.shared.calls.lock();
        for call in calls.unwrap_or_else(PoisonError::into_inner).iter() {
            let since_ns = call.since_ns.load(Ordering::Relaxed);
            if since_ns == 0 || now_ns.saturating_sub(since_ns) < PATIENCE.as_nanos() as u64 {
                continue;
            }
            let gpu = call.gpu.as_ref().map(|info| {
                tracks.gpus.push(GpuInfo {
                    recorded: call.recorded.load(Ordering::Relaxed),
                    ..info.clone()
                });
                crate::model::ids::GpuId::from_index(tracks.gpus.len() - 1)
            });
            tracks.gaps.push(TrackGap {
                gpu,
                kind: None,
                start_ns: since_ns,
                end_ns: now_ns,
                reason: "the driver did not answer".to_owned(),
            });
        }
        tracks
    }
}

fn has_room(merger: &TrackMerger) -> bool {
    let tracks = merger.tracks();
    tracks.points.len() < MAX_POINTS && tracks.gaps.len() < MAX_GAPS
}
