//! GPU metrics from the driver, collected alongside the samples.
//!
//! ```text
//! GpuSource ──devices──▶ collector (a thread per device) ──Counter tracks──▶ feed ──▶ the segment that is written next
//! ```
//!
//! Nothing here can block the sampler: a driver call that blocks or fails leaves a gap in the
//! counter tracks of its device.

mod batch;
pub mod collector;
mod device_thread;
pub mod driver_clock;
pub mod feed;
pub mod host;
mod host_memory;
pub mod nvml;
pub mod pace;
pub mod select;

use crate::model::track::{GpuInfo, TrackKind};

/// The metrics that one driver call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Metric {
    /// Utilization, buffered by the driver with its own time stamps.
    Utilization,
    /// Share of time in which memory was busy, buffered likewise.
    MemoryBusy,
    Power,
    Energy,
    Memory,
    Clocks,
    /// Reasons for reduced clocks.
    Throttle,
    Temperature,
    /// PCIe throughput; the call blocks for 20 ms while the driver measures it.
    Pcie,
    /// GPM: multiprocessors, tensor cores, memory bandwidth, PCIe and NVLink.
    Performance,
}

impl Metric {
    /// All metrics, with the number of ticks between two readings.
    pub const ALL: [(Self, u64); 10] = [
        (Self::Performance, 1),
        (Self::Energy, 1),
        (Self::Utilization, 5),
        (Self::MemoryBusy, 5),
        (Self::Power, 5),
        (Self::Throttle, 5),
        (Self::Clocks, 5),
        (Self::Memory, 5),
        (Self::Temperature, 10),
        (Self::Pcie, 10),
    ];

    /// The counter tracks that it fills.
    pub fn kinds(self) -> &'static [TrackKind] {
        match self {
            Self::Utilization => &[TrackKind::Utilization],
            Self::MemoryBusy => &[TrackKind::MemoryBusy],
            Self::Power => &[TrackKind::Power],
            Self::Energy => &[TrackKind::Energy],
            Self::Memory => &[TrackKind::MemoryUsed],
            Self::Clocks => &[TrackKind::SmClock, TrackKind::MemoryClock],
            Self::Throttle => &[TrackKind::Throttle],
            Self::Temperature => &[TrackKind::Temperature],
            Self::Pcie => &[TrackKind::PcieSent, TrackKind::PcieReceived],
            Self::Performance => &[
                TrackKind::SmActive,
                TrackKind::SmOccupancy,
                TrackKind::TensorActive,
                TrackKind::DramActive,
                TrackKind::NvlinkSent,
                TrackKind::NvlinkReceived,
            ],
        }
    }
}

/// The interval that a value covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Start and end, CLOCK_MONOTONIC, ns.
    Monotonic(u64, u64),
    /// Start and end in the driver's own timestamps, µs.
    Driver(u64, u64),
    /// An instantaneous value, at the time of the reading.
    Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub kind: TrackKind,
    /// The interval that the value covers.
    pub window: Window,
    pub value: u64,
}

/// Results of a driver call.
#[derive(Debug, Default)]
pub struct Readings {
    pub values: Vec<Reading>,
    /// Counter tracks that the call did not fill, and why.
    pub failed: Vec<(TrackKind, GpuError)>,
}

/// Why a driver call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuErrorKind {
    /// The device or the driver does not have this metric; later calls fail, too.
    Unsupported,
    Lost,
    /// The user lacks the permission.
    Denied,
    /// Anything else; the next call may succeed.
    Failed,
}

#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct GpuError {
    pub kind: GpuErrorKind,
    pub reason: String,
}

/// A process that has a context on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    /// Its pid in the driver's pid namespace.
    pub pid: i32,
    /// Device memory that it uses; `None` where the driver does not report it.
    pub memory_bytes: Option<u64>,
}

/// A device, or an instance of one.
pub trait GpuDevice: Send {
    fn info(&self) -> &GpuInfo;

    /// Reads the values of one driver call.
    ///
    /// # Errors
    /// The call returned no value.
    fn read(&mut self, metric: Metric, readings: &mut Readings) -> Result<(), GpuError>;

    /// Processes that use the device.
    ///
    /// # Errors
    /// The error of the driver.
    fn processes(&mut self) -> Result<Vec<GpuProcess>, GpuError>;
}

#[derive(Default)]
pub struct Found {
    /// Devices, and instances of devices.
    pub devices: Vec<Box<dyn GpuDevice>>,
    /// Human-readable reasons for devices that are missing.
    pub missing: Vec<String>,
}

pub trait GpuSource {
    /// Lists the devices.
    ///
    /// # Errors
    /// The source is not available.
    fn devices(&self) -> Result<Found, GpuError>;
}
