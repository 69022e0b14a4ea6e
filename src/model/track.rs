//! Counter tracks: figures of devices and processes over time, besides the samples. Every value
//! covers a window.

use super::ids::{GpuId, TrackId};
use super::interner::Interner;
use super::named::named;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

named!(
    /// The figure of a counter track, with its unit. Its position here is its code in recordings:
    /// new ones come last.
    #[derive(Serialize, Deserialize)]
    TrackKind {
        /// Share of the window in which at least one kernel of any process ran on the device:
        /// NVML's utilization.
        Utilization = "utilization",
        /// Share of the window in which the device's memory was read or written.
        MemoryBusy = "memory_busy",
        /// Share of the window in which a multiprocessor had an active warp, mean over all of them
        /// (GPM).
        SmActive = "sm_active",
        /// Active warps on multiprocessors, as a share of the maximum (GPM).
        SmOccupancy = "sm_occupancy",
        /// Share of the window in which tensor cores worked (GPM).
        TensorActive = "tensor_active",
        /// Memory bandwidth, as a share of the maximum (GPM).
        DramActive = "dram_active",
        /// Mean power, mW.
        Power = "power",
        /// Energy taken in the window, mJ.
        Energy = "energy",
        /// Device memory in use, bytes.
        MemoryUsed = "memory_used",
        /// Device memory of one process, bytes.
        ProcessMemory = "process_memory",
        /// Clock of the multiprocessors, MHz.
        SmClock = "sm_clock",
        /// Clock of the memory, MHz.
        MemoryClock = "memory_clock",
        /// Why clocks are held down: bits of [`throttle_names`].
        Throttle = "throttle",
        /// Temperature, degrees Celsius.
        Temperature = "temperature",
        /// Sent over PCIe by the device, bytes per second.
        PcieSent = "pcie_sent",
        /// Received over PCIe by the device, bytes per second.
        PcieReceived = "pcie_received",
        /// Sent over NVLink by the device, bytes per second.
        NvlinkSent = "nvlink_sent",
        /// Received over NVLink by the device, bytes per second.
        NvlinkReceived = "nvlink_received",
        /// CPU time of a process in the window, ns.
        Cpu = "cpu",
        /// Resident memory of a process, bytes.
        Resident = "resident",
        /// Bytes that a process read from storage in the window.
        DiskRead = "disk_read",
        /// Bytes that a process wrote to storage in the window.
        DiskWritten = "disk_written",
        /// Bytes received over the network in the window, in the network namespace.
        NetworkReceived = "network_received",
        /// Bytes sent over the network in the window, in the network namespace.
        NetworkSent = "network_sent",
        /// Resident memory of a process that belongs to no file and is no shared memory, bytes.
        Anonymous = "anonymous",
        /// Swapped-out memory of a process, bytes.
        Swap = "swap",
        /// Resident shared memory of a process, bytes.
        Shared = "shared_memory",
        /// Locked memory of a process, bytes.
        Locked = "locked_memory",
        /// Memory of a process that is pinned for devices, as the kernel counts it, bytes.
        Pinned = "pinned_memory",
        /// Memory of a cgroup that the kernel cannot take back, bytes. `process` is its path in
        /// this and the next ones.
        CgroupUsed = "cgroup_used",
        /// Page cache of files of a cgroup, without shared memory, bytes.
        CgroupCache = "cgroup_cache",
        /// Shared memory of a cgroup, bytes; a part of what it uses.
        CgroupShared = "cgroup_shared",
        /// Anonymous memory of a cgroup, bytes; a part of what it uses.
        CgroupAnonymous = "cgroup_anonymous",
        /// Swapped-out memory of a cgroup, bytes.
        CgroupSwap = "cgroup_swap",
        /// Limit of a cgroup's memory, bytes; read when it changes. 0: none.
        CgroupLimit = "cgroup_limit",
        /// Memory of a cgroup from which on it is slowed down, bytes; read when it changes. 0:
        /// none.
        CgroupHigh = "cgroup_high",
        /// Times in the window that the limit of a cgroup left no memory.
        CgroupLimitHits = "cgroup_limit_hits",
        /// Processes that the kernel killed in the window for lack of memory: of a cgroup, or
        /// without a path of the machine.
        OomKills = "oom_kills",
        /// Memory in use of the `/dev/shm` that the first process sees, bytes.
        DevShmUsed = "dev_shm_used",
        /// Size of that, bytes; read when it changes.
        DevShmSize = "dev_shm_size",
        /// Memory of the machine that programs may still take, bytes.
        MachineAvailable = "machine_available",
        /// Memory of the machine, bytes; read when it changes.
        MachineMemory = "machine_memory",
        /// The signal that ended a process (signal(7)): one reading, at its end.
        EndingSignal = "ending_signal",
        /// [`TrackKind::Anonymous`] as read with the samples of a process's first thread, where it
        /// has changed by [`SAMPLED_BYTES`] since the value before. The window is the time since
        /// the reading before, in which the last part of the change came.
        SampledAnonymous = "sampled_anonymous",
        /// Anonymous memory of a forked process that no other process maps, bytes: without what it
        /// shares with its parent.
        Private = "private_memory",
        /// Device memory that torch's caching allocator has taken from the driver for a process,
        /// bytes. `process` ends with the process's number of the device (` cuda:0`) in this and
        /// the next ones.
        AllocatorReserved = "allocator_reserved",
        /// The part of it that is given to tensors, bytes.
        AllocatorAllocated = "allocator_allocated",
        /// The part of it that is given to tensors, or was and is still in use by a stream, bytes.
        AllocatorActive = "allocator_active",
        /// The free parts of segments of which another part is in use, bytes: they cannot be given
        /// back to the driver. Expandable segments are not in it.
        AllocatorInactiveSplit = "allocator_inactive_split",
        /// The highest [`TrackKind::AllocatorAllocated`] since the start, or since the program has
        /// reset it, as torch itself counts it.
        AllocatorPeak = "allocator_peak",
        /// Allocations in the window for which the device had no memory, so that the allocator gave
        /// its free segments back and tried again.
        AllocatorRetries = "allocator_retries",
        /// Allocations in the window that failed for lack of memory, as a rule after such a try.
        AllocatorFailures = "allocator_failures",
        /// [`TrackKind::AllocatorAllocated`] of all devices of a process, as read in each tick,
        /// where it has changed by [`SAMPLED_BYTES`]. Windows are those of
        /// [`TrackKind::SampledAnonymous`].
        SampledAllocated = "sampled_allocated",
        /// The highest [`TrackKind::AllocatorReserved`] since the start, or since the program has
        /// reset it, as torch itself counts it.
        AllocatorReservedPeak = "allocator_reserved_peak",
        /// Pages of hugetlbfs of a process, bytes.
        HugePages = "huge_pages",
        /// Transparent huge pages of a cgroup, bytes; a part of its anonymous memory.
        CgroupHugePages = "cgroup_huge_pages",
    }
);

/// Least change of [`TrackKind::SampledAnonymous`] and [`TrackKind::SampledAllocated`] that is
/// recorded, bytes.
pub const SAMPLED_BYTES: u64 = 64 << 10;

/// The unit of a counter track's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackUnit {
    /// Millionths.
    Share,
    Milliwatts,
    Millijoules,
    Bytes,
    BytesInWindow,
    BytesPerSecond,
    Megahertz,
    Celsius,
    NanosecondsInWindow,
    Bits,
    /// A plain number.
    Number,
}

/// A share of 1 as a counter track's value.
pub const SHARE_ONE: u64 = 1_000_000;

impl TrackKind {
    /// Whether it is read only when it changes, or has happened: then it has no mean.
    pub fn is_occasional(self) -> bool {
        matches!(
            self,
            Self::CgroupLimit
                | Self::CgroupHigh
                | Self::CgroupSwap
                | Self::CgroupLimitHits
                | Self::OomKills
                | Self::DevShmSize
                | Self::MachineMemory
                | Self::EndingSignal
                | Self::SampledAnonymous
                | Self::AllocatorRetries
                | Self::AllocatorFailures
                | Self::SampledAllocated
        )
    }

    /// Whether it is a figure of torch's allocator, by process and device.
    pub fn is_of_allocator(self) -> bool {
        matches!(
            self,
            Self::AllocatorReserved
                | Self::AllocatorAllocated
                | Self::AllocatorActive
                | Self::AllocatorInactiveSplit
                | Self::AllocatorPeak
                | Self::AllocatorReservedPeak
                | Self::AllocatorRetries
                | Self::AllocatorFailures
        )
    }

    /// Whether the first readers of counter tracks do not know it: they take a table with it for
    /// damaged.
    pub fn is_later(self) -> bool {
        self >= Self::SampledAnonymous
    }

    /// Whether a value holds until the next one is read.
    pub fn is_level(self) -> bool {
        use TrackUnit::{Bits, Bytes, Celsius, Megahertz, Milliwatts};
        matches!(self.unit(), Bytes | Milliwatts | Megahertz | Bits | Celsius)
    }

    pub fn unit(self) -> TrackUnit {
        match self {
            Self::Utilization
            | Self::MemoryBusy
            | Self::SmActive
            | Self::SmOccupancy
            | Self::TensorActive
            | Self::DramActive => TrackUnit::Share,
            Self::Power => TrackUnit::Milliwatts,
            Self::Energy => TrackUnit::Millijoules,
            Self::MemoryUsed
            | Self::ProcessMemory
            | Self::Resident
            | Self::Anonymous
            | Self::SampledAnonymous
            | Self::AllocatorReserved
            | Self::AllocatorAllocated
            | Self::AllocatorActive
            | Self::AllocatorInactiveSplit
            | Self::AllocatorPeak
            | Self::AllocatorReservedPeak
            | Self::HugePages
            | Self::CgroupHugePages
            | Self::SampledAllocated
            | Self::Private
            | Self::Swap
            | Self::Shared
            | Self::Locked
            | Self::Pinned
            | Self::CgroupUsed
            | Self::CgroupCache
            | Self::CgroupShared
            | Self::CgroupAnonymous
            | Self::CgroupSwap
            | Self::CgroupLimit
            | Self::CgroupHigh
            | Self::DevShmUsed
            | Self::DevShmSize
            | Self::MachineAvailable
            | Self::MachineMemory => TrackUnit::Bytes,
            Self::CgroupLimitHits
            | Self::OomKills
            | Self::EndingSignal
            | Self::AllocatorRetries
            | Self::AllocatorFailures => TrackUnit::Number,
            Self::SmClock | Self::MemoryClock => TrackUnit::Megahertz,
            Self::Throttle => TrackUnit::Bits,
            Self::Temperature => TrackUnit::Celsius,
            Self::PcieSent | Self::PcieReceived | Self::NvlinkSent | Self::NvlinkReceived => {
                TrackUnit::BytesPerSecond
            }
            Self::Cpu => TrackUnit::NanosecondsInWindow,
            Self::DiskRead | Self::DiskWritten | Self::NetworkReceived | Self::NetworkSent => {
                TrackUnit::BytesInWindow
            }
        }
    }
}

/// A GPU, or a MIG instance of one, as its driver names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GpuInfo {
    /// `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// The driver's number of the device; for a MIG instance its device's.
    pub index: u32,
    /// The number of a MIG instance on its device; `None` for a whole device.
    pub mig: Option<u32>,
    pub name: String,
    pub driver: String,
    pub pci: String,
    /// Memory, bytes; 0 if unknown.
    pub memory_bytes: u64,
    /// Power limit, mW; 0 if unknown.
    pub power_limit_mw: u64,
    /// Whether it was recorded, and not only detected.
    pub recorded: bool,
}

impl GpuInfo {
    /// `0`, or `0:1` for a MIG instance, as in nvidia-smi.
    pub fn label(&self) -> String {
        match self.mig {
            Some(mig) => format!("{}:{mig}", self.index),
            None => self.index.to_string(),
        }
    }
}

/// Relation of the driver's timestamps to CLOCK_MONOTONIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuClock {
    pub gpu: GpuId,
    pub monotonic_ns: u64,
    /// The same time in the driver's timestamps, ns.
    pub driver_ns: u64,
    /// Maximum error of that, in either direction.
    pub error_ns: u64,
    /// The driver's clock as determined: `realtime`, `monotonic`, `boottime`, or `unknown`.
    pub clock: String,
}

/// One figure of one device or process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TrackInfo {
    pub kind: TrackKind,
    /// The GPU, for a device's counter track.
    pub gpu: Option<GpuId>,
    /// The process by its pid, for a process's counter track; 0 for others.
    pub pid: i32,
    pub process: String,
}

/// A value, and the window that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackPoint {
    pub track: TrackId,
    /// Start of the window, CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// Its end. Equal to the start: the value was read at this time, and does not cover the time
    /// before.
    pub end_ns: u64,
    /// The value, in the unit of the counter track's kind.
    pub value: u64,
}

/// Largest plausible value: an exabyte. Leaves room to add.
const MAX_VALUE: u64 = 1 << 60;
/// Latest plausible timestamp of CLOCK_MONOTONIC: 146 years. Leaves room to add.
pub const MAX_TIME_NS: u64 = 1 << 62;
/// Longest plausible window: thirteen days.
pub const MAX_WINDOW_NS: u64 = 1 << 50;

impl TrackPoint {
    /// Whether value and window are plausible. Other points are neither written nor read.
    pub fn is_believable(&self) -> bool {
        self.value <= MAX_VALUE
            && self.end_ns <= MAX_TIME_NS
            && self
                .end_ns
                .checked_sub(self.start_ns)
                .is_some_and(|length_ns| length_ns <= MAX_WINDOW_NS)
    }
}

/// A gap of a counter track, and its reason.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TrackGap {
    /// The GPU; `None` for all.
    pub gpu: Option<GpuId>,
    /// The figure; `None` for all of the device.
    pub kind: Option<TrackKind>,
    /// Start, CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// End; 0 for the end of the recording.
    pub end_ns: u64,
    pub reason: String,
}

/// Counter tracks of all kinds. Ids are indices into its own tables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CounterTracks {
    pub gpus: Vec<GpuInfo>,
    pub clocks: Vec<GpuClock>,
    pub tracks: Interner<TrackId, TrackInfo>,
    pub points: Vec<TrackPoint>,
    pub gaps: Vec<TrackGap>,
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

pub fn throttle_names(bits: u64) -> impl Iterator<Item = &'static str> {
    THROTTLE_REASONS
        .into_iter()
        .filter(move |(bit, _)| bits & bit != 0)
        .map(|(_, name)| name)
}

impl CounterTracks {
    /// The tracks whose kind is [later](TrackKind::is_later), or not, with their points and all
    /// devices, under ids of their own.
    #[must_use]
    pub fn only(&self, later: bool) -> Self {
        let mut ids = FxHashMap::default();
        let mut part = Self {
            gpus: self.gpus.clone(),
            ..Self::default()
        };
        for (at, info) in self.tracks.iter().enumerate() {
            if info.kind.is_later() == later {
                ids.insert(TrackId::from_index(at), part.tracks.intern(info));
            }
        }
        part.points = self
            .points
            .iter()
            .filter_map(|point| {
                let track = *ids.get(&point.track)?;
                Some(TrackPoint { track, ..*point })
            })
            .collect();
        part
    }

    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
            && self.tracks.is_empty()
            && self.points.is_empty()
            && self.gaps.is_empty()
    }
}

/// Merges counter tracks of several sources, or of several segments, into one table.
#[derive(Clone, Debug, Default)]
pub struct TrackMerger {
    tracks: CounterTracks,
    gpu_ids: FxHashMap<(String, u32, Option<u32>), GpuId>,
}

impl TrackMerger {
    /// Adds all of `other`, whose ids must be indices into its own tables; dangling ids are
    /// dropped.
    pub fn add(&mut self, other: &CounterTracks) {
        let gpus: Vec<GpuId> = other.gpus.iter().map(|gpu| self.gpu(gpu)).collect();
        let gpu_of = |id: GpuId| gpus.get(id.index()).copied();
        let mut ids = Vec::with_capacity(other.tracks.len());
        for info in &other.tracks {
            let info = TrackInfo {
                gpu: info.gpu.and_then(gpu_of),
                ..info.clone()
            };
            ids.push(self.tracks.tracks.intern(&info));
        }
        let points = other.points.iter().filter_map(|point| {
            Some(TrackPoint {
                track: *ids.get(point.track.index())?,
                ..*point
            })
        });
        self.tracks.points.extend(points);
        self.tracks
            .clocks
            .extend(other.clocks.iter().filter_map(|clock| {
                Some(GpuClock {
                    gpu: gpu_of(clock.gpu)?,
                    ..clock.clone()
                })
            }));
        self.tracks
            .gaps
            .extend(other.gaps.iter().map(|gap| TrackGap {
                gpu: gap.gpu.and_then(gpu_of),
                ..gap.clone()
            }));
    }

    /// The id of a GPU. A known one is updated with newer facts.
    fn gpu(&mut self, info: &GpuInfo) -> GpuId {
        let key = (info.uuid.clone(), info.index, info.mig);
        let known = &mut self.tracks.gpus;
        let id = *self.gpu_ids.entry(key).or_insert_with(|| {
            known.push(info.clone());
            GpuId::from_index(known.len() - 1)
        });
        if let Some(known) = known.get_mut(id.index()) {
            known.clone_from(info);
        }
        id
    }

    /// The tables so far.
    pub fn tracks(&self) -> &CounterTracks {
        &self.tracks
    }

    /// All tables, with points sorted by counter track and end.
    pub fn finish(mut self) -> CounterTracks {
        let key = |point: &TrackPoint| (point.track, point.end_ns, point.start_ns);
        self.tracks.points.sort_by_key(key);
        self.tracks.gaps.sort_by_key(|gap| gap.start_ns);
        self.tracks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracks_of_two_sources_share_their_devices() {
        let gpu = |uuid: &str| GpuInfo {
            uuid: uuid.to_owned(),
            ..GpuInfo::default()
        };
        let batch = |uuid: &str, value| CounterTracks {
            gpus: vec![gpu("GPU-other"), gpu(uuid)],
            tracks: vec![TrackInfo {
                kind: TrackKind::Power,
                gpu: Some(GpuId(1)),
                pid: 0,
                process: String::new(),
            }]
            .into(),
            points: vec![TrackPoint {
                track: TrackId(0),
                start_ns: value,
                end_ns: value + 1,
                value,
            }],
            ..CounterTracks::default()
        };
        let mut merger = TrackMerger::default();
        merger.add(&batch("GPU-a", 7));
        merger.add(&batch("GPU-b", 5));
        merger.add(&batch("GPU-a", 3));
        let tracks = merger.finish();
        assert_eq!(tracks.gpus.len(), 3);
        assert_eq!(tracks.tracks.len(), 2);
        let points: Vec<_> = tracks
            .points
            .iter()
            .map(|point| (point.track.0, point.value))
            .collect();
        assert_eq!(points, [(0, 3), (0, 7), (1, 5)]);
    }

    #[test]
    fn names_are_all_different() {
        let names: std::collections::BTreeSet<_> =
            TrackKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), TrackKind::ALL.len());
        for (at, kind) in TrackKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, at);
        }
    }
}
