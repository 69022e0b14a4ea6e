//! One device, read through NVML.

use crate::gpu::{
    GpuDevice, GpuError, GpuErrorKind, GpuProcess, Metric, Reading, Readings, Window,
};
use crate::model::track::{GpuInfo, SHARE_ONE, TrackKind};
use crate::os::clock::monotonic_ns;
use crate::os::nvml::memory_info_v1;
use nvml_wrapper::enum_wrappers::device::{Clock, PcieUtilCounter, Sampling, TemperatureSensor};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::{Device, GpmSample, Nvml};

/// Longest interval between two buffered samples, µs: above it the second does not cover the time
/// since the first.
const LONGEST_WINDOW_US: u64 = 2_500_000;
/// Averaging time of `nvmlDeviceGetPowerUsage` on Ampere and later, except GA100 (nvml.h: "1 sec
/// averaging").
const POWER_WINDOW_NS: u64 = 1_000_000_000;
/// Measuring time of `nvmlDeviceGetPcieThroughput` (nvml.h: "20ms").
const PCIE_WINDOW_NS: u64 = 20_000_000;

/// Two GPM samples must be at least 100 ms apart (nvml.h, "GPM Functions"); a round may be slightly
/// early.
const GPM_SHORTEST_NS: u64 = 95_000_000;

/// GPM metrics and their counter tracks. Shares are in percent; rates are in MiB/s (nvml.h),
/// although the names in nvml-wrapper suggest otherwise.
const GPM: [(GpmMetricId, TrackKind); 8] = [
    (GpmMetricId::SmUtil, TrackKind::SmActive),
    (GpmMetricId::SmOccupancy, TrackKind::SmOccupancy),
    (GpmMetricId::AnyTensorUtil, TrackKind::TensorActive),
    (GpmMetricId::DramBwUtil, TrackKind::DramActive),
    (GpmMetricId::PcieTxPerSec, TrackKind::PcieSent),
    (GpmMetricId::PcieRxPerSec, TrackKind::PcieReceived),
    (GpmMetricId::NvlinkTotalTxPerSec, TrackKind::NvlinkSent),
    (GpmMetricId::NvlinkTotalRxPerSec, TrackKind::NvlinkReceived),
];

/// Used and total memory, bytes, by whichever call the driver supports.
pub(super) fn memory(device: &Device<'_>) -> Result<(u64, u64), NvmlError> {
    match device.memory_info() {
        Err(NvmlError::FailedToLoadSymbol(_)) => memory_info_v1(device),
        other => other.map(|memory| (memory.used, memory.total)),
    }
}

/// A device, or an instance of one.
pub(super) struct NvmlDevice {
    nvml: &'static Nvml,
    device: Device<'static>,
    info: GpuInfo,
    /// For an instance: its device, and its GPU instance id there.
    parent: Option<Device<'static>>,
    instance_id: Option<u32>,
    /// Newest timestamps of buffered samples, µs: utilization, memory.
    newest_us: [u64; 2],
    /// Last reading of the energy counter, mJ, and its time, ns.
    energy: Option<(u64, u64)>,
    gpm: Option<(GpmSample<'static>, u64)>,
    gpm_supported: Option<bool>,
    /// Whether power is a mean over [`POWER_WINDOW_NS`] and not instantaneous.
    power_is_mean: bool,
    /// Whether GPM does not report PCIe rates, so that the slow call is needed.
    needs_pcie: bool,
}

impl NvmlDevice {
    pub(super) fn new(nvml: &'static Nvml, device: Device<'static>, info: GpuInfo) -> Self {
        // GA100 is compute capability 8.0.
        let power_is_mean = device
            .cuda_compute_capability()
            .is_ok_and(|at| at.major > 8 || (at.major == 8 && at.minor > 0));
        Self {
            nvml,
            device,
            info,
            parent: None,
            instance_id: None,
            newest_us: [0; 2],
            energy: None,
            gpm: None,
            gpm_supported: None,
            power_is_mean,
            needs_pcie: false,
        }
    }

    /// Makes it an instance of `parent`, with its GPU instance id there.
    pub(super) fn of(self, parent: Option<Device<'static>>, instance_id: Option<u32>) -> Self {
        Self {
            parent,
            instance_id,
            ..self
        }
    }

    fn samples(
        &mut self,
        which: usize,
        kind: TrackKind,
        readings: &mut Readings,
    ) -> Result<(), GpuError> {
        let sampling = [Sampling::GpuUtilization, Sampling::MemoryUtilization][which];
        let since = self.newest_us[which];
        let samples = match self.device.samples(sampling, since) {
            Ok(samples) => samples,
            // No newer samples.
            Err(NvmlError::NotFound | NvmlError::NoData) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let mut stamped: Vec<(u64, u64)> = samples
            .into_iter()
            .filter(|sample| sample.timestamp > since)
            .filter_map(|sample| Some((sample.timestamp, percent(&sample.value)?)))
            .collect();
        stamped.sort_by_key(|(stamp, _)| *stamp);
        stamped.dedup_by_key(|(stamp, _)| *stamp);
        let mut previous = since;
        for (stamp, value) in stamped {
            // The window of the very first sample is not known.
            if previous > 0 && stamp - previous <= LONGEST_WINDOW_US {
                readings.values.push(Reading {
                    kind,
                    window: Window::Driver(previous, stamp),
                    value,
                });
            }
            previous = stamp;
        }
        self.newest_us[which] = previous;
        Ok(())
    }

    fn energy(&mut self, readings: &mut Readings) -> Result<(), GpuError> {
        let before = monotonic_ns();
        let counter_mj = self.device.total_energy_consumption()?;
        let after = monotonic_ns();
        let now = before + (after - before) / 2;
        if let Some((last_mj, last_ns)) = self.energy.replace((counter_mj, now))
            // The counter restarts when the driver is loaded.
            && counter_mj >= last_mj
        {
            readings.values.push(Reading {
                kind: TrackKind::Energy,
                window: Window::Monotonic(last_ns, now),
                value: counter_mj - last_mj,
            });
        }
        Ok(())
    }

    fn performance(&mut self, readings: &mut Readings) -> Result<(), GpuError> {
        let (device, instance) = match (&self.parent, self.instance_id) {
            (Some(parent), Some(instance)) => (parent, Some(instance)),
            _ => (&self.device, None),
        };
        let supported = match self.gpm_supported {
            Some(known) => known,
            None => device.gpm_support()?,
        };
        self.gpm_supported = Some(supported);
        if !supported {
            return Err(GpuError {
                kind: GpuErrorKind::Unsupported,
                reason: "GPM needs Hopper or later".to_owned(),
            });
        }
        let before = monotonic_ns();
        if let Some((_, last_ns)) = self.gpm
            && before.saturating_sub(last_ns) < GPM_SHORTEST_NS
        {
            return Ok(());
        }
        let sample = match instance {
            Some(instance) => device.gpm_mig_sample(instance)?,
            None => device.gpm_sample()?,
        };
        let now = before + (monotonic_ns() - before) / 2;
        if let Some((last, last_ns)) = &self.gpm {
            let wanted = GPM.map(|(id, _)| id);
            let results = gpm_metrics_get(self.nvml, last, &sample, &wanted)?;
            for ((_, kind), result) in GPM.into_iter().zip(results) {
                match result
                    .map_err(GpuError::from)
                    .map(|result| gpm_value(kind, result.value))
                {
                    Ok(Some(value)) => {
                        readings.values.push(Reading {
                            kind,
                            window: Window::Monotonic(*last_ns, now),
                            value,
                        });
                    }
                    Ok(None) => {}
                    Err(_) if matches!(kind, TrackKind::PcieSent | TrackKind::PcieReceived) => {
                        self.needs_pcie = true;
                    }
                    Err(error) => readings.failed.push((kind, error)),
                }
            }
        }
        self.gpm = Some((sample, now));
        Ok(())
    }

    fn pcie(&mut self, readings: &mut Readings) -> Result<(), GpuError> {
        if self.gpm_supported == Some(true) && !self.needs_pcie {
            return Ok(());
        }
        for (counter, kind) in [
            (PcieUtilCounter::Send, TrackKind::PcieSent),
            (PcieUtilCounter::Receive, TrackKind::PcieReceived),
        ] {
            let kilobytes = self.device.pcie_throughput(counter)?;
            let now = monotonic_ns();
            readings.values.push(Reading {
                kind,
                window: Window::Monotonic(now.saturating_sub(PCIE_WINDOW_NS), now),
                value: u64::from(kilobytes) * 1000,
            });
        }
        Ok(())
    }
}

/// A share in percent as a counter track's value; `None` for what is none.
fn percent(value: &SampleValue) -> Option<u64> {
    let percent = match *value {
        SampleValue::U32(value) => f64::from(value),
        SampleValue::U64(value) => value as f64,
        SampleValue::I64(value) => value as f64,
        SampleValue::F64(value) => value,
    };
    share(percent)
}

fn share(percent: f64) -> Option<u64> {
    // Rounding takes GPM's figures a little over.
    (percent.is_finite() && (0.0..=105.0).contains(&percent))
        .then(|| ((percent.min(100.0) / 100.0) * SHARE_ONE as f64).round() as u64)
}

fn gpm_value(kind: TrackKind, value: f64) -> Option<u64> {
    const MIB: f64 = 1_048_576.0;
    match kind {
        TrackKind::PcieSent
        | TrackKind::PcieReceived
        | TrackKind::NvlinkSent
        | TrackKind::NvlinkReceived => {
            (value.is_finite() && (0.0..1e9).contains(&value)).then(|| (value * MIB).round() as u64)
        }
        _ => share(value),
    }
}

impl GpuDevice for NvmlDevice {
    fn info(&self) -> &GpuInfo {
        &self.info
    }

    fn read(&mut self, metric: Metric, readings: &mut Readings) -> Result<(), GpuError> {
        let mut put = |kind, window, value| {
            readings.values.push(Reading {
                kind,
                window,
                value,
            });
        };
        match metric {
            Metric::Utilization => return self.samples(0, TrackKind::Utilization, readings),
            Metric::MemoryBusy => return self.samples(1, TrackKind::MemoryBusy, readings),
            Metric::Energy => return self.energy(readings),
            Metric::Performance => return self.performance(readings),
            Metric::Pcie => return self.pcie(readings),
            Metric::Power => {
                let milliwatts = self.device.power_usage()?;
                let now = monotonic_ns();
                let window = match self.power_is_mean {
                    true => Window::Monotonic(now.saturating_sub(POWER_WINDOW_NS), now),
                    false => Window::Instant,
                };
                put(TrackKind::Power, window, milliwatts.into());
            }
            Metric::Memory => {
                let (used, _) = memory(&self.device)?;
                put(TrackKind::MemoryUsed, Window::Instant, used);
            }
            Metric::Clocks => {
                let sm = self.device.clock_info(Clock::SM)?;
                put(TrackKind::SmClock, Window::Instant, sm.into());
                let memory = self.device.clock_info(Clock::Memory)?;
                put(TrackKind::MemoryClock, Window::Instant, memory.into());
            }
            Metric::Throttle => {
                let reasons = self.device.current_throttle_reasons()?;
                put(TrackKind::Throttle, Window::Instant, reasons.bits());
            }
            Metric::Temperature => {
                let celsius = self.device.temperature(TemperatureSensor::Gpu)?;
                put(TrackKind::Temperature, Window::Instant, celsius.into());
            }
        }
        Ok(())
    }

    fn processes(&mut self) -> Result<Vec<GpuProcess>, GpuError> {
        let asked = self.parent.as_ref().unwrap_or(&self.device);
        let listed = match asked.running_compute_processes() {
            Err(NvmlError::FailedToLoadSymbol(_)) => asked.running_compute_processes_v2(),
            other => other,
        }?;
        let own = self.instance_id.filter(|_| self.parent.is_some());
        Ok(listed
            .into_iter()
            .filter(|process| own.is_none() || process.gpu_instance_id == own)
            .filter_map(|process| {
                Some(GpuProcess {
                    pid: i32::try_from(process.pid).ok()?,
                    memory_bytes: match process.used_gpu_memory {
                        UsedGpuMemory::Used(bytes) => Some(bytes),
                        UsedGpuMemory::Unavailable => None,
                    },
                })
            })
            .collect())
    }
}
