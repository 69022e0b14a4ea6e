//! What the GPU did: figures of the driver, collected beside the samples.
//!
//! ```text
//! GpuSource ──devices──▶ collector (a thread per device) ──Lanes──▶ feed ──▶ the segment that is written next
//! ```
//!
//! Nothing here can hold up the sampler: a call of the driver that blocks or fails costs a gap in the lanes of its device.

mod batch;
pub mod collector;
mod device_thread;
pub mod driver_clock;
pub mod feed;
pub mod host;
pub mod nvml;
pub mod pace;
pub mod select;

use crate::model::lane::{GpuInfo, LaneKind};

/// Figures that one call of the driver brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Metric {
    /// Utilization, buffered by the driver with its own time stamps.
    Utilization,
    /// The share of time in which memory was busy, the same way.
    MemoryBusy,
    /// Power.
    Power,
    /// The energy counter.
    Energy,
    /// Memory in use.
    Memory,
    /// Clocks.
    Clocks,
    /// Why clocks are held down.
    Throttle,
    /// Temperature.
    Temperature,
    /// PCIe, which the driver measures for 20 ms while the call waits.
    Pcie,
    /// GPM: multiprocessors, tensor cores, memory bandwidth, PCIe and NVLink.
    Performance,
}

impl Metric {
    /// All of them, with the ticks from one reading to the next.
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

    /// The lanes that it fills.
    pub fn kinds(self) -> &'static [LaneKind] {
        match self {
            Self::Utilization => &[LaneKind::Utilization],
            Self::MemoryBusy => &[LaneKind::MemoryBusy],
            Self::Power => &[LaneKind::Power],
            Self::Energy => &[LaneKind::Energy],
            Self::Memory => &[LaneKind::MemoryUsed],
            Self::Clocks => &[LaneKind::SmClock, LaneKind::MemoryClock],
            Self::Throttle => &[LaneKind::Throttle],
            Self::Temperature => &[LaneKind::Temperature],
            Self::Pcie => &[LaneKind::PcieSent, LaneKind::PcieReceived],
            Self::Performance => &[
                LaneKind::SmActive,
                LaneKind::SmOccupancy,
                LaneKind::TensorActive,
                LaneKind::DramActive,
                LaneKind::NvlinkSent,
                LaneKind::NvlinkReceived,
            ],
        }
    }
}

/// What a value speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// From one moment to another, CLOCK_MONOTONIC, ns.
    Monotonic(u64, u64),
    /// The same in the driver's own time stamps, µs.
    Driver(u64, u64),
    /// The moment of the reading.
    Moment,
}

/// A value of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// What it is.
    pub kind: LaneKind,
    /// What it speaks of.
    pub window: Window,
    /// The value.
    pub value: u64,
}

/// What a call brought.
#[derive(Debug, Default)]
pub struct Readings {
    /// Values.
    pub values: Vec<Reading>,
    /// Lanes that the call should have filled, and why it did not.
    pub failed: Vec<(LaneKind, GpuError)>,
}

/// Why a call brought nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuErrorKind {
    /// It never will: the device or the driver has no such figure.
    Unsupported,
    /// The device is gone.
    Lost,
    /// The user may not.
    Denied,
    /// Anything else; the next call may work.
    Failed,
}

/// What the driver said.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct GpuError {
    /// What kind of failure it is.
    pub kind: GpuErrorKind,
    /// Why, for people.
    pub reason: String,
}

/// A process that has a context on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    /// Its pid, as the driver sees it.
    pub pid: i32,
    /// Device memory that it has; `None` where the driver does not say.
    pub memory_bytes: Option<u64>,
}

/// A device, or an instance of one.
pub trait GpuDevice: Send {
    /// What it is.
    fn info(&self) -> &GpuInfo;

    /// Reads what one call brings.
    ///
    /// # Errors
    /// Where the call brought nothing at all.
    fn read(&mut self, metric: Metric, readings: &mut Readings) -> Result<(), GpuError>;

    /// Who uses it.
    ///
    /// # Errors
    /// What the driver said.
    fn processes(&mut self) -> Result<Vec<GpuProcess>, GpuError>;
}

/// What a source has.
#[derive(Default)]
pub struct Found {
    /// Devices, and instances of devices.
    pub devices: Vec<Box<dyn GpuDevice>>,
    /// What is missing of them, for people.
    pub missing: Vec<String>,
}

/// Where devices come from.
pub trait GpuSource {
    /// The devices.
    ///
    /// # Errors
    /// Where there is none to be had.
    fn devices(&self) -> Result<Found, GpuError>;
}
