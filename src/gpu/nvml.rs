//! NVML: the driver's library of management, through nvml-wrapper.

use super::{
    GpuDevice, GpuError, GpuErrorKind, GpuProcess, GpuSource, Metric, Reading, Readings, Window,
};
use crate::model::lane::{GpuInfo, LaneKind, SHARE_ONE};
use crate::os::clock::monotonic_ns;
use crate::os::nvml::{gpu_instance, memory_info_v1};
use nvml_wrapper::enum_wrappers::device::{Clock, PcieUtilCounter, Sampling, TemperatureSensor};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::{Device, GpmSample, Nvml};
use std::ffi::OsStr;
use std::path::Path;

/// Devices past which the rest is left out.
const MAX_DEVICES: u32 = 64;
/// Instances of a device: seven is the most that there are so far.
const MAX_INSTANCES: u32 = 64;
/// The same moment in two samples of a driver: longer apart, what lies between is not theirs.
const LONGEST_WINDOW_US: u64 = 2_500_000;
/// Mean that `nvmlDeviceGetPowerUsage` is of on Ampere and later, but for GA100 (nvml.h: "1 sec averaging").
const POWER_WINDOW_NS: u64 = 1_000_000_000;
/// What `nvmlDeviceGetPcieThroughput` measures over (nvml.h: "20ms").
const PCIE_WINDOW_NS: u64 = 20_000_000;

/// Two samples of GPM lie at least 100 ms apart (nvml.h, "GPM Functions"), give or take what a round comes early.
const GPM_SHORTEST_NS: u64 = 95_000_000;

/// GPM's figures: what it calls them, and the lane of each. Shares are in percent; rates are in MiB/s (nvml.h), whatever the
/// names of nvml-wrapper say.
const GPM: [(GpmMetricId, LaneKind); 8] = [
    (GpmMetricId::SmUtil, LaneKind::SmActive),
    (GpmMetricId::SmOccupancy, LaneKind::SmOccupancy),
    (GpmMetricId::AnyTensorUtil, LaneKind::TensorActive),
    (GpmMetricId::DramBwUtil, LaneKind::DramActive),
    (GpmMetricId::PcieTxPerSec, LaneKind::PcieSent),
    (GpmMetricId::PcieRxPerSec, LaneKind::PcieReceived),
    (GpmMetricId::NvlinkTotalTxPerSec, LaneKind::NvlinkSent),
    (GpmMetricId::NvlinkTotalRxPerSec, LaneKind::NvlinkReceived),
];

/// NVML, loaded and at work.
#[derive(Debug)]
pub struct NvmlSource {
    /// Never unloaded: a call that hangs in the driver may be inside of it until the end.
    nvml: &'static Nvml,
    driver: String,
}

impl NvmlSource {
    /// Loads the library, from `library` or from where it is found, and asks it to begin. This may take seconds where no
    /// other program keeps the driver awake.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open(library: Option<&Path>) -> Result<Self, GpuError> {
        let name = library.map_or(OsStr::new("libnvidia-ml.so.1"), Path::as_os_str);
        let nvml = Nvml::builder()
            .lib_path(name)
            .init()
            .map_err(|error| failed_to_open(name, &error))?;
        let driver = nvml.sys_driver_version().unwrap_or_default();
        Ok(Self {
            nvml: Box::leak(Box::new(nvml)),
            driver,
        })
    }
}

fn failed_to_open(name: &OsStr, error: &NvmlError) -> GpuError {
    let name = name.to_string_lossy();
    let reason = match error {
        NvmlError::LibloadingError(cause) => {
            let cause = cause.to_string();
            if cause.contains("No such file") {
                format!("{name} was not found: no NVIDIA driver here, or not in this container")
            } else {
                format!("{name} cannot be loaded: {cause}")
            }
        }
        NvmlError::DriverNotLoaded => "the NVIDIA driver is not loaded".to_owned(),
        NvmlError::LibRmVersionMismatch => {
            "driver mismatch: NVML's library and the kernel's driver are of different versions"
                .to_owned()
        }
        NvmlError::NoPermission | NvmlError::OperatingSystem => {
            format!("no permission to talk to the NVIDIA driver: {error}")
        }
        other => format!("NVML does not work: {other}"),
    };
    GpuError {
        kind: match error {
            NvmlError::LibloadingError(_) | NvmlError::FailedToLoadSymbol(_) => {
                GpuErrorKind::Unsupported
            }
            NvmlError::NoPermission | NvmlError::OperatingSystem => GpuErrorKind::Denied,
            _ => GpuErrorKind::Failed,
        },
        reason,
    }
}

impl From<NvmlError> for GpuError {
    fn from(error: NvmlError) -> Self {
        let (kind, reason) = match &error {
            NvmlError::NotSupported => (
                GpuErrorKind::Unsupported,
                "this GPU has no such figure".to_owned(),
            ),
            NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => (
                GpuErrorKind::Unsupported,
                "this driver is too old for it".to_owned(),
            ),
            NvmlError::GpuLost => (GpuErrorKind::Lost, "the GPU fell off the bus".to_owned()),
            NvmlError::NoPermission => (GpuErrorKind::Denied, "no permission".to_owned()),
            other => (GpuErrorKind::Failed, other.to_string()),
        };
        Self { kind, reason }
    }
}

impl GpuSource for NvmlSource {
    fn devices(&self) -> Result<(Vec<Box<dyn GpuDevice>>, Vec<String>), GpuError> {
        let count = self.nvml.device_count()?;
        let mut devices: Vec<Box<dyn GpuDevice>> = Vec::new();
        let mut missing = Vec::new();
        if count > MAX_DEVICES {
            missing.push(format!(
                "{count} GPUs: only the first {MAX_DEVICES} are looked at"
            ));
        }
        for index in 0..count.min(MAX_DEVICES) {
            match self.nvml.device_by_index(index) {
                Ok(device) => self.with_instances(index, device, &mut devices, &mut missing),
                Err(error) => missing.push(format!("GPU {index}: {}", GpuError::from(error))),
            }
        }
        Ok((devices, missing))
    }
}

impl NvmlSource {
    /// A device, or the instances that it is split into.
    fn with_instances(
        &self,
        index: u32,
        device: Device<'static>,
        devices: &mut Vec<Box<dyn GpuDevice>>,
        missing: &mut Vec<String>,
    ) {
        // NVML_DEVICE_MIG_ENABLE is 1.
        let is_split = device.mig_mode().is_ok_and(|mode| mode.current == 1);
        if is_split {
            let count = device.mig_device_count().unwrap_or(0).min(MAX_INSTANCES);
            let mut found = 0;
            for number in 0..count {
                // Places without an instance are NOT_FOUND.
                if let Ok(instance) = device.mig_device_by_index(number) {
                    found += 1;
                    let info = self.info(&instance, index, Some(number));
                    let instance_id = gpu_instance(&instance).ok();
                    devices.push(Box::new(NvmlDevice {
                        parent: self.nvml.device_by_index(index).ok(),
                        instance_id,
                        ..NvmlDevice::new(self.nvml, instance, info)
                    }));
                }
            }
            if found == 0 {
                missing.push(format!(
                    "GPU {index} is in MIG mode and has no instance: nothing can run on it"
                ));
            }
        }
        let info = self.info(&device, index, None);
        devices.push(Box::new(NvmlDevice::new(self.nvml, device, info)));
    }

    fn info(&self, device: &Device<'static>, index: u32, mig: Option<u32>) -> GpuInfo {
        let memory = memory(device).map(|(_, total)| total);
        GpuInfo {
            uuid: device.uuid().unwrap_or_default(),
            index,
            mig,
            name: device.name().unwrap_or_default(),
            driver: self.driver.clone(),
            pci: device.pci_info().map(|pci| pci.bus_id).unwrap_or_default(),
            memory_bytes: memory.unwrap_or(0),
            power_limit_mw: device.power_management_limit().unwrap_or(0).into(),
            recorded: false,
        }
    }
}

/// Used and total memory, bytes, by whichever call the driver has.
fn memory(device: &Device<'_>) -> Result<(u64, u64), NvmlError> {
    match device.memory_info() {
        Err(NvmlError::FailedToLoadSymbol(_)) => memory_info_v1(device),
        other => other.map(|memory| (memory.used, memory.total)),
    }
}

/// A device, or an instance of one.
struct NvmlDevice {
    nvml: &'static Nvml,
    device: Device<'static>,
    info: GpuInfo,
    /// Of an instance: its device, and its number there.
    parent: Option<Device<'static>>,
    instance_id: Option<u32>,
    /// Newest time stamps of buffered samples, µs: utilization, memory.
    newest_us: [u64; 2],
    /// The energy counter when it was last read, and when that was.
    energy: Option<(u64, u64)>,
    gpm: Option<(GpmSample<'static>, u64)>,
    gpm_supported: Option<bool>,
    /// Whether power is a mean over [`POWER_WINDOW_NS`], and not of the moment.
    power_is_mean: bool,
    /// Whether GPM does not give PCIe's figures: the slow call has to.
    needs_pcie: bool,
}

impl NvmlDevice {
    fn new(nvml: &'static Nvml, device: Device<'static>, info: GpuInfo) -> Self {
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

    fn samples(
        &mut self,
        which: usize,
        kind: LaneKind,
        readings: &mut Readings,
    ) -> Result<(), GpuError> {
        let sampling = [Sampling::GpuUtilization, Sampling::MemoryUtilization][which].clone();
        let since = self.newest_us[which];
        let samples = match self.device.samples(sampling, since) {
            Ok(samples) => samples,
            // Nothing newer than what was seen.
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
            // The first of all has no window that is known.
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
            // The counter starts again when the driver is loaded.
            && counter_mj >= last_mj
        {
            readings.values.push(Reading {
                kind: LaneKind::Energy,
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
                    Err(_) if matches!(kind, LaneKind::PcieSent | LaneKind::PcieReceived) => {
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
            (PcieUtilCounter::Send, LaneKind::PcieSent),
            (PcieUtilCounter::Receive, LaneKind::PcieReceived),
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

/// A share in percent as a lane's value; `None` for what is none.
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

fn gpm_value(kind: LaneKind, value: f64) -> Option<u64> {
    const MIB: f64 = 1_048_576.0;
    match kind {
        LaneKind::PcieSent
        | LaneKind::PcieReceived
        | LaneKind::NvlinkSent
        | LaneKind::NvlinkReceived => {
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
            Metric::Utilization => return self.samples(0, LaneKind::Utilization, readings),
            Metric::MemoryBusy => return self.samples(1, LaneKind::MemoryBusy, readings),
            Metric::Energy => return self.energy(readings),
            Metric::Performance => return self.performance(readings),
            Metric::Pcie => return self.pcie(readings),
            Metric::Power => {
                let milliwatts = self.device.power_usage()?;
                let now = monotonic_ns();
                let window = match self.power_is_mean {
                    true => Window::Monotonic(now.saturating_sub(POWER_WINDOW_NS), now),
                    false => Window::Moment,
                };
                put(LaneKind::Power, window, milliwatts.into());
            }
            Metric::Memory => {
                let (used, _) = memory(&self.device)?;
                put(LaneKind::MemoryUsed, Window::Moment, used);
            }
            Metric::Clocks => {
                let sm = self.device.clock_info(Clock::SM)?;
                put(LaneKind::SmClock, Window::Moment, sm.into());
                let memory = self.device.clock_info(Clock::Memory)?;
                put(LaneKind::MemoryClock, Window::Moment, memory.into());
            }
            Metric::Throttle => {
                let reasons = self.device.current_throttle_reasons()?;
                put(LaneKind::Throttle, Window::Moment, reasons.bits());
            }
            Metric::Temperature => {
                let celsius = self.device.temperature(TemperatureSensor::Gpu)?;
                put(LaneKind::Temperature, Window::Moment, celsius.into());
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
