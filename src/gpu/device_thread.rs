//! One device, one thread: a call that hangs holds up no other device.

use super::batch::Batch;
use super::driver_clock::{DriverClock, Now};
use super::feed::{Call, LONG_CALL_NS, Sampled, Shared};
use super::pace::{Pace, SHORTEST};
use super::select::GpuChoice;
use super::{GpuDevice, GpuError, GpuErrorKind, GpuProcess, Metric, Reading, Readings, Window};
use crate::model::gpu_name::visible_devices;
use crate::model::ids::GpuId;
use crate::model::lane::{GpuClock, LaneKind, Lanes};
use crate::os::clock::{boottime_ns, monotonic_ns, thread_cpu_ns, wall_ns};
use crate::os::process_usage::process_name;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ticks from one look at a device's processes to the next, and from one batch to the next.
const PROCESS_TICKS: u64 = 10;
const SEND_TICKS: u64 = 5;
/// For as long a device that is not used is looked at often: a recording may be short.
const EARLY_TICKS: u64 = 50;
/// Looks for which an empty list of processes is believed.
const PATIENT_LOOKS: u32 = 25;
/// Processes of a device that are named.
const MAX_PROCESSES: usize = 256;

/// Where a device's lanes go, and what ends the thread.
pub(super) struct Ends {
    pub(super) batches: Sender<Lanes>,
    pub(super) stop: Receiver<()>,
    pub(super) shared: Arc<Shared>,
}

pub(super) struct DeviceThread {
    device: Box<dyn GpuDevice>,
    choice: GpuChoice,
    ends: Ends,
    call: Arc<Call>,
    batch: Batch,
    clock: DriverClock,
    pace: Pace,
    /// Whether it is recorded, and not only looked at.
    active: bool,
    /// Whether the driver listed a sampled process on it.
    was_listed: bool,
    /// Looks at which no list showed a sampled process, and one had CUDA.
    hinted_looks: u32,
    unsupported: FxHashSet<Metric>,
    names: FxHashMap<i32, String>,
    readings: Readings,
    began_ns: u64,
}

/// Whether the device can still be asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Alive,
    Lost,
}

impl DeviceThread {
    pub(super) fn new(
        device: Box<dyn GpuDevice>,
        choice: GpuChoice,
        ends: Ends,
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
            hinted_looks: 0,
            unsupported: FxHashSet::default(),
            names: FxHashMap::default(),
            readings: Readings::default(),
            began_ns,
        }
    }

    /// Works until the recording ends or the device is gone.
    pub(super) fn run(mut self) {
        self.batch.send(&self.ends.batches);
        let mut tick = 0_u64;
        loop {
            let began = (Instant::now(), thread_cpu_ns());
            if self.round(tick) == Health::Lost {
                break;
            }
            // What is worth knowing by a fraction of a second is asked at each round; the rest by the clock.
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

    /// Time between rounds. Devices that are recorded share one budget.
    fn period(&self) -> Duration {
        self.pace.period(self.ends.shared.recorded())
    }

    /// Reads what is due at this tick. Ticks may be passed over: what came due in between is read now.
    fn round(&mut self, tick: u64) -> Health {
        let step = (self.period().as_nanos() / SHORTEST.as_nanos()).max(1) as u64;
        let due = |every: u64| tick % every < step;
        if (!self.active || due(PROCESS_TICKS)) && self.look_at_processes() == Health::Lost {
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

    /// While a call takes long, nothing else is read of the device.
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
                Window::Moment => Some((now_ns, now_ns)),
                Window::Monotonic(start_ns, end_ns) => Some((start_ns, end_ns)),
                Window::Driver(start_us, end_us) => relation.and_then(|relation| {
                    Some((
                        relation.monotonic_ns(start_us)?,
                        relation.monotonic_ns(end_us)?,
                    ))
                }),
            };
            // The driver's buffer reaches back to what was before the recording.
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
                            format!("not told of a MIG instance: {}", error.reason)
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

    /// Who uses the device: by the driver's list, and where that does not show the sampled processes, by what they may see.
    fn look_at_processes(&mut self) -> Health {
        let sampled = self.ends.shared.sampled();
        let began_ns = self.call.begin();
        let listed = self.device.processes();
        let now_ns = monotonic_ns();
        self.call.end();
        self.took(began_ns, now_ns);
        let listed = match listed {
            Ok(listed) => {
                self.batch.works(LaneKind::ProcessMemory, now_ns);
                listed
            }
            Err(error) if error.kind == GpuErrorKind::Lost => {
                self.batch.gap(None, began_ns, 0, error.reason);
                return Health::Lost;
            }
            Err(error) => {
                self.batch.fails(LaneKind::ProcessMemory, began_ns, &error);
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
                let kind = LaneKind::ProcessMemory;
                self.batch
                    .put_of(kind, process.pid, &name, now_ns, now_ns, bytes);
            }
        }
        Health::Alive
    }

    /// Whether the sampled processes use the device. Once they were seen to, they do.
    fn is_used(&mut self, listed: &[GpuProcess], sampled: &[Sampled]) -> bool {
        let is_sampled =
            |process: &GpuProcess| sampled.iter().any(|known| known.pid == process.pid);
        if self.was_listed || listed.iter().any(is_sampled) {
            self.was_listed = true;
            self.ends.shared.set_listed();
            return true;
        }
        if self.ends.shared.is_listed() || !self.is_hinted(sampled) {
            return false;
        }
        // A process that has loaded CUDA may be about to use the device: an empty list means something only after a while.
        self.hinted_looks += 1;
        let foreign = |process: &GpuProcess| process_name(process.pid).is_empty();
        self.hinted_looks > PATIENT_LOOKS || listed.iter().any(foreign)
    }

    /// Whether a sampled process has CUDA and may see this device. In a container the driver's pids are the host's: no list
    /// shows ours.
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
