//! Readings of torch's allocator of device memory, each second. (The tracer reads what it has given
//! to tensors in each tick.)

use crate::memory::Memory;
use crate::model::track::{CounterTracks, TrackInfo, TrackKind, TrackPoint};
use crate::os::clock::monotonic_ns;
use crate::torch::probe::allocator::{AllocatorProbe, DeviceMemory};
use rustc_hash::FxHashMap;

/// The allocator of one process, and its last readings.
pub(super) struct AllocatorReadings {
    probe: AllocatorProbe,
    /// By device: the first reading, and the last one with its time.
    known: FxHashMap<usize, (DeviceMemory, u64, DeviceMemory)>,
    /// The newest readings, which were not added yet.
    new: Vec<DeviceMemory>,
    /// The addresses that were last published.
    published: Vec<u64>,
}

impl AllocatorReadings {
    /// `variable`: the address of [`crate::torch::probe::allocator::VARIABLE`]; 0 if the library
    /// has none.
    pub(super) fn new(variable: u64) -> Self {
        Self {
            probe: AllocatorProbe::new(variable),
            known: FxHashMap::default(),
            new: Vec::new(),
            published: Vec::new(),
        }
    }

    /// Reads the figures of each device. Returns whether it holds memory of any.
    pub(super) fn read(&mut self, memory: &dyn Memory) -> bool {
        self.new = self.probe.read(memory);
        !self.new.is_empty()
    }

    /// Why nothing was found to read; `None` if something was.
    pub(super) fn unread(&self) -> Option<&'static str> {
        self.probe.unread()
    }

    /// Adds the figures that were read. `is_forked`: its parent runs the same program and holds
    /// memory, so that this may be a copy of the parent's allocator, which counts as its own once
    /// it changes.
    pub(super) fn add(
        &mut self,
        (pid, name): (i32, &str),
        is_forked: bool,
        tracks: &mut CounterTracks,
    ) {
        let now_ns = monotonic_ns();
        for now in std::mem::take(&mut self.new) {
            let before = self.known.get(&now.device).copied();
            let first = before.map_or(now, |(first, ..)| first);
            self.known.insert(now.device, (first, now_ns, now));
            if is_forked && first.total == now.total {
                continue;
            }
            let process = format!("{name} cuda:{}", now.device);
            let mut put = |kind: TrackKind, start_ns: u64, value: u64| {
                let track = tracks.tracks.intern(&TrackInfo {
                    kind,
                    gpu: None,
                    pid,
                    process: process.clone(),
                });
                tracks.points.push(TrackPoint {
                    track,
                    start_ns,
                    end_ns: now_ns,
                    value,
                });
            };
            put(TrackKind::AllocatorReserved, now_ns, now.reserved);
            put(TrackKind::AllocatorAllocated, now_ns, now.allocated);
            put(TrackKind::AllocatorActive, now_ns, now.active);
            put(
                TrackKind::AllocatorInactiveSplit,
                now_ns,
                now.inactive_split,
            );
            put(TrackKind::AllocatorPeak, now_ns, now.peak);
            put(TrackKind::AllocatorReservedPeak, now_ns, now.reserved_peak);
            // What came before the first reading may be of a time before the recording.
            if let Some((_, since_ns, before)) = before {
                let counts = [
                    (TrackKind::AllocatorRetries, before.retries, now.retries),
                    (TrackKind::AllocatorFailures, before.failures, now.failures),
                ];
                for (kind, before, now) in counts {
                    if now > before {
                        put(kind, since_ns, now - before);
                    }
                }
            }
        }
    }

    /// The addresses of what it has given to tensors, for the devices that it has held memory of,
    /// if they are others than at the last call.
    pub(super) fn changed_words(&mut self, is_forked: bool) -> Option<Vec<u64>> {
        let is_own =
            |first: &DeviceMemory, last: &DeviceMemory| !is_forked || first.total != last.total;
        let all = self.probe.words().iter().enumerate();
        let own = all.filter(|(device, _)| {
            let known = self.known.get(device);
            known.is_some_and(|(first, _, last)| is_own(first, last))
        });
        let words: Vec<u64> = own.map(|(_, &at)| at).collect();
        if words == self.published {
            return None;
        }
        self.published.clone_from(&words);
        Some(words)
    }
}
