//! Reads the memory of processes with the samples of their first threads, after these run again:
//! where it rose, the stacks before and after show in which code.

use super::Tracer;
use super::process::TracedProcess;
use crate::model::track::{CounterTracks, SAMPLED_BYTES, TrackInfo, TrackKind, TrackPoint};
use crate::os::clock::monotonic_ns;
use crate::os::process_usage::ResidentFile;
use crate::sampling::schedule::Tick;
use crate::sampling::session::IdleThreads;

/// Most readings of a segment: one a tick, of some processes.
const MAX_READINGS: usize = 1 << 16;

/// Readings of one process.
#[derive(Debug)]
pub(super) struct ResidentReadings {
    file: ResidentFile,
    /// End of the last tick with a reading, and when it was read; 0 without one.
    tick_ns: u64,
    read_ns: u64,
    /// The last value that was recorded, bytes.
    recorded: Option<u64>,
}

impl ResidentReadings {
    pub(super) fn new(pid: i32) -> Self {
        Self {
            file: ResidentFile::open(pid),
            tick_ns: 0,
            read_ns: 0,
            recorded: None,
        }
    }

    /// Reads once in a tick. Returns the value and its window if it is worth a record.
    fn read(&mut self, tick: Tick) -> Option<(u64, u64, u64)> {
        if self.tick_ns == tick.end_ns {
            return None;
        }
        let bytes = self.file.read()?.anonymous;
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

impl Tracer {
    /// Reads the memory of each process whose first thread was polled in this tick and does not
    /// sleep on: what changes meanwhile is found when it wakes.
    pub(super) fn read_memory(&mut self, tick: Tick) {
        let is_loose = self.options.idle_threads == IdleThreads::Loose;
        if self.options.once || is_loose || !self.looks {
            return;
        }
        for process in &mut self.processes {
            let is_read = process
                .active_first_thread()
                .is_some_and(|at| process.threads[at].ledger.accounted_to().ns >= tick.end_ns);
            // No read may come between a request to stop and the resume.
            if is_read && !self.capture.is_outstanding_of(process.pid) {
                record(process, tick, &mut self.memory);
            }
        }
    }
}

fn record(process: &mut TracedProcess, tick: Tick, readings: &mut CounterTracks) {
    let Some((start_ns, end_ns, value)) = process.resident.read(tick) else {
        return;
    };
    if readings.points.len() >= MAX_READINGS {
        return;
    }
    let track = readings.tracks.intern(&TrackInfo {
        kind: TrackKind::SampledAnonymous,
        gpu: None,
        pid: process.pid,
        process: String::new(),
    });
    readings.points.push(TrackPoint {
        track,
        start_ns,
        end_ns,
        value,
    });
}
