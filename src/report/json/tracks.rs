//! The part of the schema about devices and the host. What was not measured is null.

use crate::analysis::Analysis;
use crate::analysis::ends::{End, Reason};
use crate::analysis::memory_growth::{Cause, Growth, Rate};
use crate::analysis::memory_limits::MemoryLimit;
use crate::analysis::tracks::{Device, DeviceProcess, Figure, HostProcess, Missing, TrackSummary};
use crate::model::containers::GrowingContainer;
use crate::model::facts::Line;
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use crate::model::track::{TrackKind, throttle_names};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Version of this part. Keys are only ever added within a version.
pub const VERSION: u32 = 1;

/// A GPU that was recorded, or an instance of one. Means are over the windows that were measured.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Gpu {
    /// [`VERSION`].
    pub version: u32,
    /// The driver's number.
    pub index: u32,
    /// The number of a MIG instance.
    pub mig: Option<u32>,
    /// `GPU-…`, `MIG-…`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Version of the driver.
    pub driver: String,
    /// Bus address.
    pub pci: String,
    /// Share of time in which any process's kernel ran.
    pub utilization: Option<f64>,
    /// The same for memory reads and writes.
    pub memory_busy: Option<f64>,
    /// Share of multiprocessors with an active warp.
    pub sm_active: Option<f64>,
    /// Active warps as a share of the maximum.
    pub sm_occupancy: Option<f64>,
    /// Share of time in which tensor cores worked.
    pub tensor_active: Option<f64>,
    /// Memory bandwidth, as a share of the maximum.
    pub dram_active: Option<f64>,
    /// Mean power.
    pub power_w: Option<f64>,
    /// Source of `power_w`: `energy`, the counter, or `power`, its readings.
    pub power_from: Option<&'static str>,
    /// Power limit.
    pub power_limit_w: Option<f64>,
    /// Energy taken in `energy_s` seconds.
    pub energy_j: Option<f64>,
    /// The time that `energy_j` was measured over.
    pub energy_s: Option<f64>,
    /// Device memory.
    pub memory: Option<Memory>,
    /// Mean clock of the multiprocessors.
    pub sm_clock_mhz: Option<f64>,
    /// Mean clock of the memory.
    pub memory_clock_mhz: Option<f64>,
    /// Highest temperature.
    pub temperature_c: Option<f64>,
    /// Share of time in which clocks were held down, by reason; null if it was not read.
    pub throttle: Option<BTreeMap<&'static str, f64>>,
    /// Bytes per second over PCIe.
    pub pcie_received_bytes_s: Option<f64>,
    /// The same, sent.
    pub pcie_sent_bytes_s: Option<f64>,
    /// Bytes per second over NVLink.
    pub nvlink_received_bytes_s: Option<f64>,
    /// The same, sent.
    pub nvlink_sent_bytes_s: Option<f64>,
    /// Length of a window of `utilization`.
    pub window_ms: Option<f64>,
    /// Length of a window of `sm_active` and similar figures.
    pub gpm_window_ms: Option<f64>,
    /// Share of the recording that windows of `utilization` cover.
    pub covered: Option<f64>,
    /// How the driver's clock was determined.
    pub clock: Option<String>,
    /// Maximum error of its timestamps on CLOCK_MONOTONIC.
    pub clock_error_us: Option<f64>,
    /// Processes that used it.
    pub processes: Vec<DeviceProcess>,
    /// What was not measured.
    pub missing: Vec<Gap>,
}

/// Device memory.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
pub struct Memory {
    /// Size; null if unknown.
    pub total_bytes: Option<u64>,
    /// Mean use.
    pub mean_bytes: f64,
    /// Peak use.
    pub max_bytes: f64,
}

/// What was not measured.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Gap {
    /// The counter tracks; empty for all.
    #[serde(rename = "lanes")]
    pub tracks: Vec<&'static str>,
    /// Start, seconds from the start of the recording.
    pub from_s: f64,
    /// End; null for the end of the recording.
    pub to_s: Option<f64>,
    pub reason: String,
}

/// Use of the host.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Host {
    /// [`VERSION`].
    pub version: u32,
    /// Processes.
    pub processes: Vec<HostUse>,
    /// Bytes received in the network namespace of the first process, without the loopback device.
    pub network_received_bytes: Option<f64>,
    /// The same, sent.
    pub network_sent_bytes: Option<f64>,
    /// Limits of memory that were read: of cgroups and the machine, that with least left first,
    /// and then `/dev/shm`.
    pub memory_limits: Vec<MemoryLimit>,
    /// Processes that a signal ended.
    pub ended_by_signal: Vec<Ended>,
}

/// A process that a signal ended.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Ended {
    /// Its pid.
    pub pid: i32,
    /// Its rank.
    pub rank: Option<u32>,
    /// The signal (signal(7)).
    pub signal: u64,
    /// When its end was seen, seconds from the start of the recording.
    pub at_s: f64,
    /// Its resident memory at the last reading.
    pub rss_bytes: Option<u64>,
    /// `cgroup_limit` (killed by the kernel at a cgroup's limit), `out_of_memory` (killed by the
    /// kernel, at a limit that was not seen), `machine_out_of_memory` (the kernel killed a process
    /// of the machine at that time), `dev_shm_full` (a bus error); null if nothing shows one.
    pub reason: Option<&'static str>,
    /// Whether the reason is only likely.
    pub perhaps: bool,
    /// Path of the cgroup, for reasons that name one.
    pub cgroup: Option<String>,
    /// Its limit, or the size of `/dev/shm`.
    pub limit_bytes: Option<u64>,
}

/// Use of the host by a process.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct HostUse {
    /// Its pid.
    pub pid: i32,
    /// Its rank.
    pub rank: Option<u32>,
    /// Mean number of CPUs in use.
    pub cpus: Option<f64>,
    /// Peak resident memory.
    pub rss_max_bytes: Option<f64>,
    /// Peak of what is swapped out; null if it always was 0, or was not read. So are the next ones.
    pub swap_max_bytes: Option<f64>,
    /// Peak resident shared memory.
    pub shared_max_bytes: Option<f64>,
    /// Peak locked memory.
    pub locked_max_bytes: Option<f64>,
    /// Peak memory that is pinned for devices, as the kernel counts it.
    pub pinned_max_bytes: Option<f64>,
    /// How its memory grows; null if it does not.
    pub memory_growth: Option<MemoryGrowth>,
    /// How the device memory that torch's allocator gives to its tensors grows; null if it does
    /// not, or was not read.
    pub device_memory_growth: Option<MemoryGrowth>,
    /// Bytes read from storage.
    pub disk_read_bytes: Option<f64>,
    /// Bytes sent to storage.
    pub disk_written_bytes: Option<f64>,
}

/// Memory that grew for as long as the recording lasted, without its first quarter.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct MemoryGrowth {
    /// By how much.
    pub bytes: f64,
    /// In which time.
    pub seconds: f64,
    /// Bytes a second.
    pub per_second: Rate,
    /// Bytes for each step; null where steps were not timed.
    pub per_step: Option<Rate>,
    /// Bytes for each epoch; null where none was complete.
    pub per_epoch: Option<Rate>,
    /// The list, dictionary, set or deque that holds at least half of it; null if none is known.
    pub container: Option<GrowingContainer>,
    /// The line that raised at least half of it; of a worker that copies what it shared, the line
    /// that its main thread ran for longest. Null if a container is known, or no line is.
    pub line: Option<GrowthLine>,
    /// Whether it is memory that the process shared with its parent, and copies when it touches it.
    pub copied: bool,
    /// The share of the growth that the container or line explains, about 1 if it is all of it;
    /// null for what is copied.
    pub explained: Option<f64>,
    /// A container that gets tensors which keep the graphs that computed them: how much of the
    /// growth these are is not known. Null if there is none, or if `container` is known.
    pub keeps_graphs: Option<GrowingContainer>,
}

/// A line of code.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct GrowthLine {
    pub file: String,
    pub line: u32,
    pub function: String,
}

/// The devices of a profile.
pub(super) fn gpus(profile: &Profile, analysis: &Analysis) -> Vec<Gpu> {
    let devices = analysis.tracks.devices.iter();
    devices.map(|device| gpu(profile, device)).collect()
}

/// Why there is no device, in words; empty if there are some and nothing is missing for all of
/// them.
pub(super) fn gpus_missing(tracks: &TrackSummary) -> Vec<String> {
    let mut missing = tracks.missing.clone();
    if tracks.devices.is_empty() && missing.is_empty() && !tracks.unused.is_empty() {
        missing.push("no sampled process used a GPU".to_owned());
    }
    missing
}

/// The host; null if its counter tracks were not recorded.
pub(super) fn host(profile: &Profile, analysis: &Analysis) -> Option<Host> {
    let tracks = &analysis.tracks;
    if tracks.processes.is_empty() {
        return None;
    }
    let total = |kind| {
        let figure = tracks.host.iter().find(|figure| figure.kind == kind);
        figure.map(|figure| figure.total)
    };
    Some(Host {
        version: VERSION,
        processes: tracks
            .processes
            .iter()
            .map(|process| host_use(profile, analysis, process))
            .collect(),
        network_received_bytes: total(TrackKind::NetworkReceived),
        network_sent_bytes: total(TrackKind::NetworkSent),
        memory_limits: analysis.limits.clone(),
        ended_by_signal: analysis
            .ends
            .iter()
            .map(|end| ended(profile, end))
            .collect(),
    })
}

fn ended(profile: &Profile, end: &End) -> Ended {
    let (reason, perhaps, cgroup, limit_bytes) = match &end.reason {
        None => (None, false, None, None),
        Some(Reason::CgroupLimit { path, limit_bytes }) => {
            let limit = Some(*limit_bytes).filter(|&limit| limit > 0);
            (Some("cgroup_limit"), false, Some(path), limit)
        }
        Some(Reason::OutOfMemory { path }) => (Some("out_of_memory"), false, Some(path), None),
        Some(Reason::MachinePerhaps) => (Some("machine_out_of_memory"), true, None, None),
        Some(Reason::DevShm {
            size_bytes,
            perhaps,
            ..
        }) => (Some("dev_shm_full"), *perhaps, None, Some(*size_bytes)),
    };
    Ended {
        pid: end.pid,
        rank: end.process.and_then(|id| profile.pid_and_rank(id).1),
        signal: end.signal,
        at_s: seconds(end.time_ns.saturating_sub(profile.start_ns)),
        rss_bytes: end.resident_bytes,
        reason,
        perhaps,
        cgroup: cgroup.cloned(),
        limit_bytes,
    }
}

fn host_use(profile: &Profile, analysis: &Analysis, process: &HostProcess) -> HostUse {
    let growth = |growing: &[Growth]| {
        let own = growing.iter().find(|growth| growth.pid == process.pid);
        own.map(|growth| memory_growth(profile, growth))
    };
    let figure = |kind| process.figures.iter().find(|figure| figure.kind == kind);
    let high = |kind| figure(kind).map(|figure| figure.high);
    HostUse {
        pid: process.pid,
        rank: process.process.and_then(|id| profile.pid_and_rank(id).1),
        cpus: figure(TrackKind::Cpu).map(|figure| figure.mean),
        rss_max_bytes: high(TrackKind::Resident),
        swap_max_bytes: high(TrackKind::Swap),
        shared_max_bytes: high(TrackKind::Shared),
        locked_max_bytes: high(TrackKind::Locked),
        pinned_max_bytes: high(TrackKind::Pinned),
        memory_growth: growth(&analysis.growing),
        device_memory_growth: growth(&analysis.growing_on_devices),
        disk_read_bytes: figure(TrackKind::DiskRead).map(|figure| figure.total),
        disk_written_bytes: figure(TrackKind::DiskWritten).map(|figure| figure.total),
    }
}

fn memory_growth(profile: &Profile, growth: &Growth) -> MemoryGrowth {
    MemoryGrowth {
        bytes: growth.bytes,
        seconds: growth.length_ns as f64 / 1e9,
        per_second: growth.per_second,
        per_step: growth.per_step,
        per_epoch: growth.per_epoch,
        container: match &growth.cause {
            Some(Cause::Container(container, _)) => Some(container.clone()),
            _ => None,
        },
        line: match &growth.cause {
            Some(Cause::Line(line, _) | Cause::Copied(Some((line, _)))) => {
                growth_line(profile, *line)
            }
            _ => None,
        },
        copied: matches!(growth.cause, Some(Cause::Copied(_))),
        explained: growth.cause.as_ref().and_then(|cause| match cause {
            Cause::Container(_, share) | Cause::Line(_, share) => Some(*share),
            Cause::Copied(_) => None,
        }),
        keeps_graphs: growth.graphs.clone(),
    }
}

fn growth_line(profile: &Profile, (function, line): Line) -> Option<GrowthLine> {
    let function = profile.function(function)?;
    Some(GrowthLine {
        file: function.file.clone(),
        line,
        function: function.name.clone(),
    })
}

fn gpu(profile: &Profile, device: &Device) -> Gpu {
    let info = &device.info;
    let mean = |kind| device.figure(kind).map(|figure| figure.mean);
    let window = |kind| {
        let figure = device.figure(kind)?;
        Some(figure.window_ns as f64 / 1e6)
    };
    let length_ns = profile.end_ns.saturating_sub(profile.start_ns).max(1) as f64;
    let energy = device.energy_j();
    let power_w = device.power_w();
    Gpu {
        version: VERSION,
        index: info.index,
        mig: info.mig,
        uuid: info.uuid.clone(),
        name: info.name.clone(),
        driver: info.driver.clone(),
        pci: info.pci.clone(),
        utilization: mean(TrackKind::Utilization),
        memory_busy: mean(TrackKind::MemoryBusy),
        sm_active: mean(TrackKind::SmActive),
        sm_occupancy: mean(TrackKind::SmOccupancy),
        tensor_active: mean(TrackKind::TensorActive),
        dram_active: mean(TrackKind::DramActive),
        power_w,
        power_from: power_w.map(|_| if energy.is_some() { "energy" } else { "power" }),
        power_limit_w: (info.power_limit_mw > 0).then(|| info.power_limit_mw as f64 / 1e3),
        energy_j: energy.map(|(joules, _)| joules),
        energy_s: energy.map(|(_, covered_ns)| seconds(covered_ns)),
        memory: device.figure(TrackKind::MemoryUsed).map(|figure| Memory {
            total_bytes: (info.memory_bytes > 0).then_some(info.memory_bytes),
            mean_bytes: figure.mean,
            max_bytes: figure.high,
        }),
        sm_clock_mhz: mean(TrackKind::SmClock),
        memory_clock_mhz: mean(TrackKind::MemoryClock),
        temperature_c: device
            .figure(TrackKind::Temperature)
            .map(|figure| figure.high),
        throttle: device.throttled.as_ref().map(|reasons| {
            let named = |&(bit, share): &(u64, f64)| Some((throttle_names(bit).next()?, share));
            reasons.iter().filter_map(named).collect()
        }),
        pcie_received_bytes_s: mean(TrackKind::PcieReceived),
        pcie_sent_bytes_s: mean(TrackKind::PcieSent),
        nvlink_received_bytes_s: mean(TrackKind::NvlinkReceived),
        nvlink_sent_bytes_s: mean(TrackKind::NvlinkSent),
        window_ms: window(TrackKind::Utilization),
        gpm_window_ms: window(TrackKind::SmActive),
        covered: device
            .figure(TrackKind::Utilization)
            .map(|figure: &Figure| figure.covered_ns as f64 / length_ns),
        clock: device.clock.as_ref().map(|clock| clock.clock.clone()),
        clock_error_us: device
            .clock
            .as_ref()
            .map(|clock| clock.error_ns as f64 / 1e3),
        processes: device.processes.clone(),
        missing: gaps(profile, device),
    }
}

fn gaps(profile: &Profile, device: &Device) -> Vec<Gap> {
    let since = |ns: u64| seconds(ns.saturating_sub(profile.start_ns));
    let gap = |missing: &Missing| Gap {
        tracks: missing.kinds.iter().map(|kind| kind.name()).collect(),
        from_s: since(missing.start_ns),
        to_s: (missing.end_ns > 0).then(|| since(missing.end_ns)),
        reason: missing.reason.clone(),
    };
    device.missing.iter().map(gap).collect()
}
