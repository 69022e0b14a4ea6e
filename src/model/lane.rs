//! Lanes: what devices and processes did and took over time, beside the samples. Every value speaks
//! of a window.

use super::ids::{GpuId, LaneId};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// What a lane's values are, and in what unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LaneKind {
    /// Share of the window in which at least one kernel ran on the device, whoever's: NVML's
    /// utilization.
    Utilization,
    /// Share of the window in which the device's memory was read or written.
    MemoryBusy,
    /// Share of the window in which a multiprocessor had a warp, averaged over all of them (GPM).
    SmActive,
    /// Warps on multiprocessors, of as many as fit (GPM).
    SmOccupancy,
    /// Share of the window in which tensor cores worked (GPM).
    TensorActive,
    /// Memory bandwidth, of what the device has (GPM).
    DramActive,
    /// Mean power, mW.
    Power,
    /// Energy taken in the window, mJ.
    Energy,
    /// Device memory in use, bytes.
    MemoryUsed,
    /// Device memory of one process, bytes.
    ProcessMemory,
    /// Clock of the multiprocessors, MHz.
    SmClock,
    /// Clock of the memory, MHz.
    MemoryClock,
    /// Why clocks are held down: bits of [`throttle_names`].
    Throttle,
    /// Temperature, degrees Celsius.
    Temperature,
    /// Sent over PCIe by the device, bytes a second.
    PcieSent,
    /// Received over PCIe by the device, bytes a second.
    PcieReceived,
    /// Sent over NVLink by the device, bytes a second.
    NvlinkSent,
    /// Received over NVLink by the device, bytes a second.
    NvlinkReceived,
    /// CPU time of a process in the window, ns.
    Cpu,
    /// Resident memory of a process, bytes.
    Resident,
    /// Bytes that a process caused to be read from storage in the window.
    DiskRead,
    /// Bytes that a process caused to be sent to storage in the window.
    DiskWritten,
    /// Bytes that came over the network in the window, of the network namespace.
    NetworkReceived,
    /// Bytes that went over the network in the window, of the network namespace.
    NetworkSent,
}

/// What the numbers of a lane count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneUnit {
    /// Millionths.
    Share,
    /// mW.
    Milliwatts,
    /// mJ in the window.
    Millijoules,
    /// Bytes.
    Bytes,
    /// Bytes in the window.
    BytesInWindow,
    /// Bytes a second.
    BytesPerSecond,
    /// MHz.
    Megahertz,
    /// Degrees Celsius.
    Celsius,
    /// ns in the window.
    NanosecondsInWindow,
    /// A set of bits.
    Bits,
}

/// A share of one, as a lane's value.
pub const SHARE_ONE: u64 = 1_000_000;

impl LaneKind {
    /// All of them, each at the place of its code in recordings: new ones come last.
    pub const ALL: [Self; 24] = [
        Self::Utilization,
        Self::MemoryBusy,
        Self::SmActive,
        Self::SmOccupancy,
        Self::TensorActive,
        Self::DramActive,
        Self::Power,
        Self::Energy,
        Self::MemoryUsed,
        Self::ProcessMemory,
        Self::SmClock,
        Self::MemoryClock,
        Self::Throttle,
        Self::Temperature,
        Self::PcieSent,
        Self::PcieReceived,
        Self::NvlinkSent,
        Self::NvlinkReceived,
        Self::Cpu,
        Self::Resident,
        Self::DiskRead,
        Self::DiskWritten,
        Self::NetworkReceived,
        Self::NetworkSent,
    ];

    /// Its name in texts for machines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Utilization => "utilization",
            Self::MemoryBusy => "memory_busy",
            Self::SmActive => "sm_active",
            Self::SmOccupancy => "sm_occupancy",
            Self::TensorActive => "tensor_active",
            Self::DramActive => "dram_active",
            Self::Power => "power",
            Self::Energy => "energy",
            Self::MemoryUsed => "memory_used",
            Self::ProcessMemory => "process_memory",
            Self::SmClock => "sm_clock",
            Self::MemoryClock => "memory_clock",
            Self::Throttle => "throttle",
            Self::Temperature => "temperature",
            Self::PcieSent => "pcie_sent",
            Self::PcieReceived => "pcie_received",
            Self::NvlinkSent => "nvlink_sent",
            Self::NvlinkReceived => "nvlink_received",
            Self::Cpu => "cpu",
            Self::Resident => "resident",
            Self::DiskRead => "disk_read",
            Self::DiskWritten => "disk_written",
            Self::NetworkReceived => "network_received",
            Self::NetworkSent => "network_sent",
        }
    }

    /// What its numbers count.
    pub fn unit(self) -> LaneUnit {
        match self {
            Self::Utilization
            | Self::MemoryBusy
            | Self::SmActive
            | Self::SmOccupancy
            | Self::TensorActive
            | Self::DramActive => LaneUnit::Share,
            Self::Power => LaneUnit::Milliwatts,
            Self::Energy => LaneUnit::Millijoules,
            Self::MemoryUsed | Self::ProcessMemory | Self::Resident => LaneUnit::Bytes,
            Self::SmClock | Self::MemoryClock => LaneUnit::Megahertz,
            Self::Throttle => LaneUnit::Bits,
            Self::Temperature => LaneUnit::Celsius,
            Self::PcieSent | Self::PcieReceived | Self::NvlinkSent | Self::NvlinkReceived => {
                LaneUnit::BytesPerSecond
            }
            Self::Cpu => LaneUnit::NanosecondsInWindow,
            Self::DiskRead | Self::DiskWritten | Self::NetworkReceived | Self::NetworkSent => {
                LaneUnit::BytesInWindow
            }
        }
    }
}

/// A GPU, or a MIG instance of one, as its driver names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GpuInfo {
    /// `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// The driver's number of the device; of a MIG instance its device's.
    pub index: u32,
    /// The number of a MIG instance on its device; `None` for a whole device.
    pub mig: Option<u32>,
    /// Product name.
    pub name: String,
    /// Version of the driver.
    pub driver: String,
    /// Bus address.
    pub pci: String,
    /// Memory, bytes; 0 where not known.
    pub memory_bytes: u64,
    /// Power limit, mW; 0 where not known.
    pub power_limit_mw: u64,
    /// Whether it was recorded, and not only seen.
    pub recorded: bool,
}

impl GpuInfo {
    /// `0`, or `0:1` for a MIG instance, as nvidia-smi has it.
    pub fn label(&self) -> String {
        match self.mig {
            Some(mig) => format!("{}:{mig}", self.index),
            None => self.index.to_string(),
        }
    }
}

/// How the driver's time stamps relate to CLOCK_MONOTONIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuClock {
    /// Whose.
    pub gpu: GpuId,
    /// A moment of CLOCK_MONOTONIC.
    pub monotonic_ns: u64,
    /// The same moment in the driver's time stamps, ns.
    pub driver_ns: u64,
    /// How far off that may be, either way.
    pub error_ns: u64,
    /// What the driver's clock was found to be: `realtime`, `monotonic`, `boottime`, or `unknown`.
    pub clock: String,
}

/// One figure of one device or process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LaneInfo {
    /// What it is.
    pub kind: LaneKind,
    /// The GPU, of a device's lane.
    pub gpu: Option<GpuId>,
    /// The process by its pid, of a process's lane; 0 for others.
    pub pid: i32,
    /// The process's name.
    pub process: String,
}

/// A value, and the window that it speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanePoint {
    /// The lane.
    pub lane: LaneId,
    /// Start of the window, CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// Its end. Equal to the start: the value was read at this moment, and says nothing of those
    /// before.
    pub end_ns: u64,
    /// The value, in the unit of the lane's kind.
    pub value: u64,
}

/// Largest value that is believed: an exabyte. Leaves room to add.
const MAX_VALUE: u64 = 1 << 60;
/// Latest moment of CLOCK_MONOTONIC that is believed: 146 years. Leaves room to add.
const MAX_TIME_NS: u64 = 1 << 62;
/// Longest window that is believed: thirteen days.
const MAX_WINDOW_NS: u64 = 1 << 50;

impl LanePoint {
    /// Whether value and window are such as a driver or a recording may say. What is not is neither
    /// written nor read.
    pub fn is_believable(&self) -> bool {
        self.value <= MAX_VALUE
            && self.end_ns <= MAX_TIME_NS
            && self
                .end_ns
                .checked_sub(self.start_ns)
                .is_some_and(|length_ns| length_ns <= MAX_WINDOW_NS)
    }
}

/// What a lane lacks, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LaneGap {
    /// The GPU; `None` for all.
    pub gpu: Option<GpuId>,
    /// The figure; `None` for all of the device.
    pub kind: Option<LaneKind>,
    /// From when on, CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// Until when; 0: for the rest of the recording.
    pub end_ns: u64,
    /// Why, for people.
    pub reason: String,
}

/// Lanes of all kinds. Ids are indices into its own tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    /// GPUs that were seen.
    pub gpus: Vec<GpuInfo>,
    /// Their clocks.
    pub clocks: Vec<GpuClock>,
    /// The lanes.
    pub lanes: Vec<LaneInfo>,
    /// Their values.
    pub points: Vec<LanePoint>,
    /// What is missing.
    pub gaps: Vec<LaneGap>,
}

/// Why clocks are held down: bit, name. nvml.h, `nvmlClocksThrottleReason…`
/// (`nvmlClocksEventReason…` since R535).
pub const THROTTLE_REASONS: [(u64, &str); 9] = [
    (0x1, "idle"),
    (0x2, "application clocks"),
    (0x4, "power cap"),
    (0x8, "hardware slowdown"),
    (0x10, "sync boost"),
    (0x20, "thermal, by software"),
    (0x40, "thermal, by hardware"),
    (0x80, "power brake"),
    (0x100, "display clocks"),
];

/// Reasons that hold a busy device back: neither idleness nor a setting of clocks.
pub const THROTTLE_SLOWS: u64 = 0x4 | 0x8 | 0x20 | 0x40 | 0x80;

/// Names of the reasons in `bits`.
pub fn throttle_names(bits: u64) -> impl Iterator<Item = &'static str> {
    THROTTLE_REASONS
        .into_iter()
        .filter(move |(bit, _)| bits & bit != 0)
        .map(|(_, name)| name)
}

impl Lanes {
    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
            && self.lanes.is_empty()
            && self.points.is_empty()
            && self.gaps.is_empty()
    }
}

/// Puts lanes of several sources, or of several segments, into one table.
#[derive(Clone, Debug, Default)]
pub struct LaneMerger {
    lanes: Lanes,
    ids: FxHashMap<LaneInfo, LaneId>,
    gpu_ids: FxHashMap<(String, u32, Option<u32>), GpuId>,
}

impl LaneMerger {
    /// Adds all of `other`, whose ids must be indices into its own tables; what points nowhere is
    /// left out.
    pub fn add(&mut self, other: &Lanes) {
        let gpus: Vec<GpuId> = other.gpus.iter().map(|gpu| self.gpu(gpu)).collect();
        let gpu_of = |id: GpuId| gpus.get(id.index()).copied();
        let mut ids = Vec::with_capacity(other.lanes.len());
        for info in &other.lanes {
            let info = LaneInfo {
                gpu: info.gpu.and_then(gpu_of),
                ..info.clone()
            };
            let known = &mut self.lanes.lanes;
            ids.push(*self.ids.entry(info).or_insert_with_key(|info| {
                known.push(info.clone());
                LaneId::from_index(known.len() - 1)
            }));
        }
        let points = other.points.iter().filter_map(|point| {
            Some(LanePoint {
                lane: *ids.get(point.lane.index())?,
                ..*point
            })
        });
        self.lanes.points.extend(points);
        self.lanes
            .clocks
            .extend(other.clocks.iter().filter_map(|clock| {
                Some(GpuClock {
                    gpu: gpu_of(clock.gpu)?,
                    ..clock.clone()
                })
            }));
        self.lanes.gaps.extend(other.gaps.iter().map(|gap| LaneGap {
            gpu: gap.gpu.and_then(gpu_of),
            ..gap.clone()
        }));
    }

    /// The id of a GPU. One that is known takes over what is newer.
    fn gpu(&mut self, info: &GpuInfo) -> GpuId {
        let key = (info.uuid.clone(), info.index, info.mig);
        let known = &mut self.lanes.gpus;
        let id = *self.gpu_ids.entry(key).or_insert_with(|| {
            known.push(info.clone());
            GpuId::from_index(known.len() - 1)
        });
        if let Some(known) = known.get_mut(id.index()) {
            known.clone_from(info);
        }
        id
    }

    /// What was added so far.
    pub fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// All of it, points by lane and end.
    pub fn finish(mut self) -> Lanes {
        let key = |point: &LanePoint| (point.lane, point.end_ns, point.start_ns);
        self.lanes.points.sort_by_key(key);
        self.lanes.gaps.sort_by_key(|gap| gap.start_ns);
        self.lanes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_of_two_sources_share_their_devices() {
        let gpu = |uuid: &str| GpuInfo {
            uuid: uuid.to_owned(),
            ..GpuInfo::default()
        };
        let batch = |uuid: &str, value| Lanes {
            gpus: vec![gpu("GPU-other"), gpu(uuid)],
            lanes: vec![LaneInfo {
                kind: LaneKind::Power,
                gpu: Some(GpuId(1)),
                pid: 0,
                process: String::new(),
            }],
            points: vec![LanePoint {
                lane: LaneId(0),
                start_ns: value,
                end_ns: value + 1,
                value,
            }],
            ..Lanes::default()
        };
        let mut merger = LaneMerger::default();
        merger.add(&batch("GPU-a", 7));
        merger.add(&batch("GPU-b", 5));
        merger.add(&batch("GPU-a", 3));
        let lanes = merger.finish();
        assert_eq!(lanes.gpus.len(), 3);
        assert_eq!(lanes.lanes.len(), 2);
        let points: Vec<_> = lanes
            .points
            .iter()
            .map(|point| (point.lane.0, point.value))
            .collect();
        assert_eq!(points, [(0, 3), (0, 7), (1, 5)]);
    }

    #[test]
    fn names_are_all_different() {
        let names: std::collections::BTreeSet<_> =
            LaneKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), LaneKind::ALL.len());
        for (at, kind) in LaneKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at);
        }
    }
}
