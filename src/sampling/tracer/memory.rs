//! Reads the memory of processes with the samples of their first threads, after these run again:
//! where it rose, the stacks before and after show in which code.

use super::Tracer;
use crate::memory::Memory;
use crate::model::track::{CounterTracks, SAMPLED_BYTES, TrackInfo, TrackKind, TrackPoint};
use crate::os::clock::monotonic_ns;
use crate::os::process_usage::ResidentFile;
use crate::os::vm_read::ProcessMemory;
use crate::sampling::schedule::Tick;
use crate::sampling::session::IdleThreads;

/// Most readings of a segment: one a tick, of some processes.
const MAX_READINGS: usize = 1 << 16;

/// Readings of one figure, one in a tick.
#[derive(Debug, Default)]
struct Readings {
    /// End of the last tick with a reading, and when it was read; 0 without one.
    tick_ns: u64,
    read_ns: u64,
    /// The last value that was recorded, bytes.
    recorded: Option<u64>,
}

impl Readings {
    /// Reads once in a tick. Returns the window and the value if it is worth a record.
    fn take(&mut self, tick: Tick, read: impl FnOnce() -> Option<u64>) -> Option<(u64, u64, u64)> {
        if self.tick_ns == tick.end_ns {
            return None;
        }
        let bytes = read()?;
        let now_ns = monotonic_ns();
        let since_ns = match self.read_ns {
            0 => now_ns,
            before_ns => before_ns,
        };
        (self.tick_ns, self.read_ns) = (tick.end_ns, now_ns);
        let has_changed = |before: u64| before.abs_diff(bytes) >= SAMPLED_BYTES;
        if !self.recorded.is_none_or(has_changed) {
            return None;
        }
        self.recorded = Some(bytes);
        Some((since_ns, now_ns, bytes))
    }
}

/// Readings of a process's anonymous memory.
#[derive(Debug)]
pub(super) struct ResidentReadings {
    file: ResidentFile,
    readings: Readings,
}

impl ResidentReadings {
    pub(super) fn new(pid: i32) -> Self {
        Self {
            file: ResidentFile::open(pid),
            readings: Readings::default(),
        }
    }
}

/// Readings of the device memory that torch's allocator has given to a process's tensors.
#[derive(Debug)]
pub(super) struct AllocatedReadings {
    memory: ProcessMemory,
    /// Addresses of the bytes, a word for each device. Empty until they are known.
    words: Vec<u64>,
    readings: Readings,
}

impl AllocatedReadings {
    pub(super) fn new(pid: i32) -> Self {
        Self {
            memory: ProcessMemory::new(pid),
            words: Vec::new(),
            readings: Readings::default(),
        }
    }

    /// Another program runs: nothing is read until its words are known.
    pub(super) fn forget(&mut self) {
        self.words.clear();
        self.memory.open_again();
    }

    /// Reads these words from now on.
    pub(super) fn set(&mut self, words: Vec<u64>) {
        self.words = words;
    }
}

/// The sum over all devices; `None` if that is no number of bytes.
fn sum_of(words: &[u64], memory: &dyn Memory) -> Option<u64> {
    let values = words.iter().map(|&at| memory.read_u64(at).ok());
    values
        .map(|value| value.filter(|&bytes| bytes < 1 << 56))
        .sum()
}

impl Tracer {
    /// Reads the memory of each process whose first thread was polled in this tick and does not
    /// sleep on: what changes meanwhile is found when it wakes. Device memory of tensors is read in
    /// each tick: while the first thread waits in `backward()`, autograd's threads change it.
    pub(super) fn read_memory(&mut self, tick: Tick) {
        let is_loose = self.options.idle_threads == IdleThreads::Loose;
        if self.options.once || is_loose || !self.looks {
            return;
        }
        for process in &mut self.processes {
            // No read may come between a request to stop and the resume.
            if self.capture.is_outstanding_of(process.pid) {
                continue;
            }
            let is_read = process
                .active_first_thread()
                .is_some_and(|at| process.threads[at].ledger.accounted_to().ns >= tick.end_ns);
            let pid = process.pid;
            if is_read {
                let ResidentReadings { file, readings } = &mut process.resident;
                let reading = readings.take(tick, || Some(file.read()?.anonymous));
                record(TrackKind::SampledAnonymous, pid, reading, &mut self.memory);
            }
            let AllocatedReadings {
                memory,
                words,
                readings,
            } = &mut process.allocated;
            if !words.is_empty() {
                let reading = readings.take(tick, || sum_of(words, memory));
                record(TrackKind::SampledAllocated, pid, reading, &mut self.memory);
            }
        }
    }
}

fn record(
    kind: TrackKind,
    pid: i32,
    reading: Option<(u64, u64, u64)>,
    readings: &mut CounterTracks,
) {
    let Some((start_ns, end_ns, value)) = reading else {
        return;
    };
    if readings.points.len() >= MAX_READINGS {
        return;
    }
    let track = readings.tracks.intern(&TrackInfo {
        kind,
        gpu: None,
        pid,
        process: String::new(),
    });
    readings.points.push(TrackPoint {
        track,
        start_ns,
        end_ns,
        value,
    });
}
