//! One thread per device: a call that hangs blocks no other device.

use super::batch::Batch;
use super::driver_clock::{DriverClock, Now};
use super::feed::{Call, LONG_CALL_NS, Sampled, Shared};
use super::pace::{Pace, SHORTEST};
use super::select::GpuChoice;
use super::{GpuDevice, GpuError, GpuErrorKind, GpuProcess, Metric, Reading, Readings, Window};
use crate::model::gpu_name::visible_devices;
use crate::model::ids::GpuId;
use crate::model::track::{CounterTracks, GpuClock, TrackKind};
use crate::os::clock::{boottime_ns, monotonic_ns, thread_cpu_ns, wall_ns};
use crate::os::process_usage::process_name;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ticks between two polls of a device's processes, and between two batches.
const PROCESS_TICKS: u64 = 10;
const SEND_TICKS: u64 = 5;
/// Ticks for which an unused device is polled often: a recording may be short.
const EARLY_TICKS: u64 = 50;
/// Number of polls after which an empty list of processes means "not used".
const PATIENT_POLLS: u32 = 25;
/// Most processes per device that are recorded.
const MAX_PROCESSES: usize = 256;

/// A collector's channels: values out, stop and shared state in.
pub(super) struct Channels {
    pub(super) batches: Sender<CounterTracks>,
    pub(super) stop: Receiver<()>,
    pub(super) shared: Arc<Shared>,
}

pub(super) struct DeviceThread {
    device: Box<dyn GpuDevice>,
    choice: GpuChoice,
    ends: Channels,
    call: Arc<Call>,
    batch: Batch,
    clock: DriverClock,
    pace: Pace,
    /// Whether it is recorded, and not only checked for use.
    active: bool,
    /// Whether the driver listed a sampled process on it.
    was_listed: bool,
    /// Polls in which no list had a sampled process although one has loaded CUDA.
    hinted_polls: u32,
    unsupported: FxHashSet<Metric>,
    names: FxHashMap<i32, String>,
    readings: Readings,
    began_ns: u64,
}

/// Whether the device can still be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Alive,
    Lost,
}

impl DeviceThread {
    pub(super) fn new(
        device: Box<dyn GpuDevice>,
        choice: GpuChoice,
        ends: Channels,
        began_ns: u64,
    ) -> Self {
        let active = choice.takes(device.info());
        let mut batch = Batch::new(Some(device.info()));
        if let Some(info) = batch.gpu_info() {
            info.recorded = active;
        }
        let call = ends.shared.call(Some(device.info()));
        call.set_recorded(active);
        Self {
            call,
            device,
            choice,
            ends,
            batch,
            clock: DriverClock::default(),
            pace: Pace::default(),
            active,
            was_listed: false,
            hinted_polls: 0,
            unsupported: FxHashSet::default(),
            names: FxHashMap::default(),
            readings: Readings::default(),
            began_ns,
        }
    }

    /// Polls until the recording ends or the device is lost.
    pub(super) fn run(mut self) {
        self.batch.send(&self.ends.batches);
        let mut tick = 0_u64;
        loop {
            let began = (Instant::now(), thread_cpu_ns());
            if self.round(tick) == Health::Lost {
                break;
            }
            self.pace.spent(thread_cpu_ns().saturating_sub(began.1));
            if tick.is_multiple_of(SEND_TICKS) || self.period() > SHORTEST * 2 {
                self.batch.send(&self.ends.batches);
            }
            let period = if self.active {
                self.period()
            } else if tick < EARLY_TICKS {
                Duration::from_millis(200)
            } else {
                Duration::from_secs(1)
            };
            let left = period.saturating_sub(began.0.elapsed());
            match self.ends.stop.recv_timeout(left) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                    self.round(0);
                    break;
                }
            }
            tick += (period.as_nanos() / SHORTEST.as_nanos()).max(1) as u64;
        }
        self.batch.end_gaps(monotonic_ns());
        self.batch.send(&self.ends.batches);
    }

    /// Time between rounds. Recorded devices share one budget.
    fn period(&self) -> Duration {
        self.pace.period(self.ends.shared.recorded())
    }

    /// Reads all metrics that are due. Ticks may be skipped: metrics due in between are read now.
    fn round(&mut self, tick: u64) -> Health {
        let step = (self.period().as_nanos() / SHORTEST.as_nanos()).max(1) as u64;
        let due = |every: u64| tick % every < step;
        if (!self.active || due(PROCESS_TICKS)) && self.poll_processes() == Health::Lost {
            return Health::Lost;
        }
        if !self.active {
            return Health::Alive;
        }
        for (metric, every) in Metric::ALL {
            if due(every) && self.read(metric) == Health::Lost {
                return Health::Lost;
            }
        }
        Health::Alive
    }

    fn read(&mut self, metric: Metric) -> Health {
        if self.unsupported.contains(&metric) {
            return Health::Alive;
        }
        let began_ns = self.call.begin();
        self.readings.values.clear();
        self.readings.failed.clear();
        let result = self.device.read(metric, &mut self.readings);
        let ended_ns = monotonic_ns();
        self.call.end();
        self.took(began_ns, ended_ns);
        let values = std::mem::take(&mut self.readings.values);
        self.take(&values, ended_ns);
        self.readings.values = values;
        for (kind, error) in std::mem::take(&mut self.readings.failed) {
            self.batch.fails(kind, began_ns, &error);
        }
        match result {
            Ok(()) => Health::Alive,
            Err(error) => self.failed(metric, began_ns, &error),
        }
    }

    /// Records a gap for a long call: nothing else of the device is read during it.
    fn took(&mut self, began_ns: u64, ended_ns: u64) {
        if ended_ns.saturating_sub(began_ns) >= LONG_CALL_NS {
            self.batch.gap(
                None,
                began_ns,
                ended_ns,
                "a call of the driver took long".to_owned(),
            );
        }
    }

    fn take(&mut self, values: &[Reading], now_ns: u64) {
        let newest = values.iter().filter_map(|reading| match reading.window {
            Window::Driver(_, end_us) => Some(end_us),
            _ => None,
        });
        let mut relation = None;
        if let Some(newest_us) = newest.max() {
            let now = read_clocks();
            self.clock.observe(newest_us, now);
            relation = self.clock.relation(now);
            if let Some(relation) = relation {
                let driver_ns = i128::from(now.monotonic_ns) - relation.offset_ns;
                self.batch.clock(GpuClock {
                    gpu: GpuId(0),
                    monotonic_ns: now.monotonic_ns,
                    driver_ns: u64::try_from(driver_ns).unwrap_or(0),
                    error_ns: relation.error_ns,
                    clock: relation.clock.to_owned(),
                });
            }
        }
        for reading in values {
            let window = match reading.window {
                Window::Instant => Some((now_ns, now_ns)),
                Window::Monotonic(start_ns, end_ns) => Some((start_ns, end_ns)),
                Window::Driver(start_us, end_us) => relation.and_then(|relation| {
                    Some((
                        relation.monotonic_ns(start_us)?,
                        relation.monotonic_ns(end_us)?,
                    ))
                }),
            };
            // The driver's buffer has samples from before the recording.
            if let Some((start_ns, end_ns)) = window
                && end_ns > self.began_ns
            {
                self.batch
                    .put(reading.kind, start_ns, end_ns, reading.value);
            }
        }
    }

    fn failed(&mut self, metric: Metric, now_ns: u64, error: &GpuError) -> Health {
        match error.kind {
            GpuErrorKind::Lost => {
                self.batch.gap(None, now_ns, 0, error.reason.clone());
                return Health::Lost;
            }
            GpuErrorKind::Unsupported | GpuErrorKind::Denied => {
                self.unsupported.insert(metric);
                let is_instance = self.device.info().mig.is_some();
                for &kind in metric.kinds() {
                    let reason = match (is_instance, error.kind) {
                        (true, GpuErrorKind::Unsupported) => {
                            format!("not available for a MIG instance: {}", error.reason)
                        }
                        _ => error.reason.clone(),
                    };
                    self.batch.gap(Some(kind), now_ns, 0, reason);
                }
            }
            GpuErrorKind::Failed => {
                for &kind in metric.kinds() {
                    self.batch.fails(kind, now_ns, error);
                }
            }
        }
        Health::Alive
    }

    /// Finds out which processes use the device: from the driver's list, or, where that does not
    /// have the sampled processes, from the devices visible to them.
    fn poll_processes(&mut self) -> Health {
        let sampled = self.ends.shared.sampled();
        let began_ns = self.call.begin();
        let listed = self.device.processes();
        let now_ns = monotonic_ns();
        self.call.end();
        self.took(began_ns, now_ns);
        let listed = match listed {
            Ok(listed) => {
                self.batch.works(TrackKind::ProcessMemory, now_ns);
                listed
            }
            Err(error) if error.kind == GpuErrorKind::Lost => {
                self.batch.gap(None, began_ns, 0, error.reason);
                return Health::Lost;
            }
            Err(error) => {
                self.batch.fails(TrackKind::ProcessMemory, began_ns, &error);
                Vec::new()
            }
        };
        if self.choice == GpuChoice::Used {
            self.active = self.is_used(&listed, &sampled);
            self.call.set_recorded(self.active);
            if let Some(info) = self.batch.gpu_info() {
                info.recorded = self.active;
            }
        }
        self.names
            .retain(|pid, _| listed.iter().any(|process| process.pid == *pid));
        if self.active {
            for process in listed.iter().take(MAX_PROCESSES) {
                let name = match sampled.iter().find(|known| known.pid == process.pid) {
                    Some(known) => known.name.clone(),
                    None => {
                        let name = self.names.entry(process.pid);
                        name.or_insert_with(|| process_name(process.pid)).clone()
                    }
                };
                let bytes = process.memory_bytes.unwrap_or(0);
                let kind = TrackKind::ProcessMemory;
                self.batch
                    .put_of(kind, process.pid, &name, now_ns, now_ns, bytes);
            }
        }
        Health::Alive
    }

    /// Whether the sampled processes use the device. Stays true once they were listed.
    fn is_used(&mut self, listed: &[GpuProcess], sampled: &[Sampled]) -> bool {
        let is_sampled =
            |process: &GpuProcess| sampled.iter().any(|known| known.pid == process.pid);
        if self.was_listed || listed.iter().any(is_sampled) {
            self.was_listed = true;
            self.ends.shared.set_listed();
            return true;
        }
        if self.ends.shared.is_listed() {
            return false;
        }
        // Processes that have ended give no hint any more.
        if self.active {
            return true;
        }
        if !self.is_hinted(sampled) {
            return false;
        }
        // A process that has loaded CUDA may be about to use the device: an empty list is
        // meaningful only after a while.
        self.hinted_polls += 1;
        let foreign = |process: &GpuProcess| process_name(process.pid).is_empty();
        self.hinted_polls > PATIENT_POLLS || listed.iter().any(foreign)
    }

    /// Whether a sampled process has loaded CUDA and this device is visible to it. In a container
    /// the driver lists the host's pids, never ours.
    fn is_hinted(&self, sampled: &[Sampled]) -> bool {
        let info = self.device.info();
        sampled
            .iter()
            .filter(|process| process.has_cuda)
            .any(
                |process| match visible_devices(process.visible.as_deref()) {
                    Some(names) => names.iter().any(|name| name.is_of(info)),
                    None => true,
                },
            )
    }
}

fn read_clocks() -> Now {
    let before_ns = monotonic_ns();
    let (realtime_ns, boottime_ns) = (wall_ns(), boottime_ns());
    let after_ns = monotonic_ns();
    Now {
        monotonic_ns: before_ns + (after_ns - before_ns) / 2,
        realtime_ns,
        boottime_ns,
        took_ns: after_ns - before_ns,
    }
}
