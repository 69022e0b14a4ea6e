//! Counter tracks of the host: CPU time, memory, storage and network of the sampled processes.

use super::batch::Batch;
use super::device_thread::Channels;
use super::feed::Sampled;
use super::host_memory::HostMemory;
use super::pace::Pace;
use crate::model::track::TrackKind;
use crate::os::clock::{monotonic_ns, process_cpu_ns, thread_cpu_ns};
use crate::os::process_usage::{network_bytes, resident, storage_bytes};
use crossbeam_channel::RecvTimeoutError;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// Polls may use a fifth of the devices' CPU budget; more expensive ones are less frequent.
const SHARE_OF_BUDGET: usize = 5;
/// Most processes that are polled.
const MAX_PROCESSES: usize = 512;

/// The last reading of a counter.
#[derive(Clone, Copy)]
struct Last {
    time_ns: u64,
    value: u64,
}

/// The thread that polls the host's counters.
pub(super) struct HostThread {
    ends: Channels,
    batch: Batch,
    last: FxHashMap<(TrackKind, i32), Last>,
    memory: HostMemory,
    /// Shortest time between two polls.
    period: Duration,
}

impl HostThread {
    pub(super) fn new(ends: Channels, period: Duration) -> Self {
        Self {
            ends,
            batch: Batch::new(None),
            last: FxHashMap::default(),
            memory: HostMemory::default(),
            period,
        }
    }

    /// Polls until the recording ends.
    pub(super) fn run(mut self) {
        let mut pace = Pace::default();
        loop {
            let began = (Instant::now(), thread_cpu_ns());
            self.round(false);
            self.batch.send(&self.ends.batches);
            pace.spent(thread_cpu_ns().saturating_sub(began.1));
            let left = self
                .period
                .max(pace.period(SHARE_OF_BUDGET))
                .saturating_sub(began.0.elapsed());
            match self.ends.stop.recv_timeout(left) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                    self.round(true);
                    self.batch.send(&self.ends.batches);
                    return;
                }
            }
        }
    }

    fn round(&mut self, last: bool) {
        let sampled = self.ends.shared.sampled();
        for process in sampled.iter().take(MAX_PROCESSES) {
            self.process(process);
        }
        if let Some(root) = sampled.first()
            && let Some((received, sent)) = network_bytes(root.pid)
        {
            let host = Sampled::default();
            self.count(TrackKind::NetworkReceived, &host, received);
            self.count(TrackKind::NetworkSent, &host, sent);
        }
        let polled = &sampled[..sampled.len().min(MAX_PROCESSES)];
        self.memory.round(polled, &mut self.batch, last);
        let is_sampled = |pid: i32| sampled.iter().any(|process| process.pid == pid);
        self.last
            .retain(|(_, pid), _| *pid == 0 || is_sampled(*pid));
    }

    fn process(&mut self, process: &Sampled) {
        if let Some(cpu_ns) = process_cpu_ns(process.pid) {
            self.count(TrackKind::Cpu, process, cpu_ns);
        }
        if let Some(resident) = resident(process.pid) {
            self.level(TrackKind::Resident, process, resident.all);
            self.level(TrackKind::Anonymous, process, resident.anonymous);
        }
        if let Some((read, written)) = storage_bytes(process.pid) {
            self.count(TrackKind::DiskRead, process, read);
            self.count(TrackKind::DiskWritten, process, written);
        }
    }

    /// Adds a level that was read now.
    fn level(&mut self, kind: TrackKind, process: &Sampled, value: u64) {
        let now_ns = monotonic_ns();
        let (pid, name) = (process.pid, &process.name);
        self.batch.put_of(kind, pid, name, now_ns, now_ns, value);
    }

    /// Adds the increase of a counter since its last reading.
    fn count(&mut self, kind: TrackKind, process: &Sampled, value: u64) {
        let now = Last {
            time_ns: monotonic_ns(),
            value,
        };
        let last = self.last.insert((kind, process.pid), now);
        if let Some(last) = last
            && value >= last.value
        {
            let (pid, name) = (process.pid, &process.name);
            let rise = value - last.value;
            self.batch
                .put_of(kind, pid, name, last.time_ns, now.time_ns, rise);
        }
    }
}
