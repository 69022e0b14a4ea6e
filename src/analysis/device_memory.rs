//! Device memory that torch's caching allocator held, by process and device.

use super::gpu_overlay::device_of;
use super::memory_growth::{Growth, Rate};
use super::memory_limits::seconds_until;
use super::tracks::{TrackSummary, of_pid, points, tracks_of};
use crate::model::ids::ProcessId;
use crate::model::profile::Profile;
use crate::model::progress::facts;
use crate::model::track::{TrackInfo, TrackKind, TrackPoint};
use schemars::JsonSchema;
use serde::Serialize;

/// Readings of the driver and of the allocator are compared that are not further apart, ns.
const TOGETHER_NS: u64 = 1_500_000_000;
/// Such pairs that are needed.
const FEWEST: usize = 3;
/// The last part of the recording, as its divisor, whose highest reading counts as the peak: that
/// of the whole run may be of its start.
const LATE: u64 = 10;

/// What torch's caching allocator of one process held of one device.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct DeviceMemory {
    #[serde(skip)]
    #[schemars(skip)]
    pub process: Option<ProcessId>,
    /// The process.
    pub pid: i32,
    pub rank: Option<u32>,
    /// The process's number of the device: 0 is `cuda:0`.
    pub device: u32,
    /// The most that was given to tensors, as torch counts it itself: since the program's start, or
    /// since the program has reset it.
    pub peak_bytes: u64,
    /// Given to tensors at the last reading.
    pub allocated_bytes: u64,
    /// The most that was taken from the driver, as torch counts it itself, like `peak_bytes`; in
    /// recordings of earlier versions that of one reading a second.
    pub reserved_peak_bytes: u64,
    /// Taken from the driver at the last reading.
    pub reserved_bytes: u64,
    /// At the reading with most of it: free parts of segments of which another part was in use,
    /// which the allocator cannot give back. Expandable segments are not in it.
    pub inactive_split_peak_bytes: u64,
    /// The share of what was taken from the driver then that this was, 0 to 1.
    pub inactive_split_share: f64,
    /// What the process has of the device besides, by the driver: CUDA's context and kernels,
    /// NCCL. Null where the driver does not tell, or where the process has several devices.
    pub beside_bytes: Option<u64>,
    /// Allocations for which the device had no memory, so that the allocator gave its free segments
    /// back and tried again.
    pub retries: u64,
    /// Allocations that failed, as a rule after such a try.
    pub failures: u64,
    /// Seconds until the device has no memory left at the rate by which the tensors of all its
    /// processes grow, by what they had at most in the last tenth of the recording; null where they
    /// do not, where the driver does not tell, or where the process has several devices.
    pub seconds_left: Option<Rate>,
}

/// All allocators that were read, by process and device; `growing`: processes whose tensors grow.
pub fn all(profile: &Profile, summary: &TrackSummary, growing: &[Growth]) -> Vec<DeviceMemory> {
    let reserved: Vec<&TrackInfo> = tracks_of(profile, TrackKind::AllocatorReserved)
        .map(|(_, info)| info)
        .collect();
    let of = |info: &&TrackInfo| {
        let mut device = device(profile, info)?;
        let mut processes = profile.processes.iter();
        let own = processes.rposition(|process| process.info.pid == info.pid);
        device.process = own.map(ProcessId::from_index);
        device.rank = device.process.and_then(|id| profile.pid_and_rank(id).1);
        if reserved
            .iter()
            .filter(|other| other.pid == info.pid)
            .count()
            == 1
        {
            let own = readings(profile, info);
            device.beside_bytes = beside(profile, info.pid, own);
            device.seconds_left = seconds_left(profile, summary, &device, growing);
        }
        Some(device)
    };
    let mut all: Vec<DeviceMemory> = reserved.iter().filter_map(of).collect();
    all.sort_by_key(|each| (each.rank.is_none(), each.rank, each.pid, each.device));
    all
}

/// Processes that have device memory by the driver, or might, but of whose allocator nothing was
/// read, and why.
pub fn unread(profile: &Profile) -> Vec<(ProcessId, &str)> {
    let has = |kind: TrackKind, pid: i32| tracks_of(profile, kind).any(|(_, info)| info.pid == pid);
    let mut all: Vec<(ProcessId, &str)> = Vec::new();
    for condition in profile.sideband.conditions.iter().rev() {
        let (pid, _) = profile.pid_and_rank(condition.process);
        if condition.name == facts::ALLOCATOR_UNREAD
            && !all.iter().any(|(process, _)| *process == condition.process)
            && !has(TrackKind::AllocatorReserved, pid)
            && has(TrackKind::ProcessMemory, pid)
        {
            all.push((condition.process, condition.value.as_str()));
        }
    }
    all.sort_unstable();
    all
}

fn device(profile: &Profile, info: &TrackInfo) -> Option<DeviceMemory> {
    let (_, number) = info.process.rsplit_once(" cuda:")?;
    let readings = |kind: TrackKind| {
        readings(
            profile,
            &TrackInfo {
                kind,
                ..info.clone()
            },
        )
    };
    let last = |kind| readings(kind).last().map(|point| point.value);
    let highest = |kind| readings(kind).iter().map(|point| point.value).max();
    let sum = |kind| -> u64 {
        let values = readings(kind).iter().map(|point| point.value);
        values.fold(0, u64::saturating_add)
    };
    let split = readings(TrackKind::AllocatorInactiveSplit).iter();
    let most_split = split.max_by_key(|point| point.value)?;
    // Read at the same time.
    let mut all = readings(TrackKind::AllocatorReserved).iter();
    let reserved = all.find(|point| point.end_ns == most_split.end_ns)?.value;
    Some(DeviceMemory {
        process: None,
        pid: info.pid,
        rank: None,
        device: number.parse().ok()?,
        peak_bytes: highest(TrackKind::AllocatorPeak)?,
        allocated_bytes: last(TrackKind::AllocatorAllocated)?,
        reserved_peak_bytes: highest(TrackKind::AllocatorReservedPeak)
            .max(highest(TrackKind::AllocatorReserved))?,
        reserved_bytes: last(TrackKind::AllocatorReserved)?,
        inactive_split_peak_bytes: most_split.value,
        inactive_split_share: most_split.value as f64 / reserved.max(1) as f64,
        beside_bytes: None,
        retries: sum(TrackKind::AllocatorRetries),
        failures: sum(TrackKind::AllocatorFailures),
        seconds_left: None,
    })
}

/// Until what the tensors have at most, with what else the device has in use, is all of its memory.
fn seconds_left(
    profile: &Profile,
    summary: &TrackSummary,
    own: &DeviceMemory,
    growing: &[Growth],
) -> Option<Rate> {
    growing.iter().find(|growth| growth.pid == own.pid)?;
    let device = device_of(summary, own.process?).ok()?;
    let on_it = |growth: &&Growth| {
        device_of(summary, growth.process).is_ok_and(|other| other.id == device.id)
    };
    let growing: Vec<Growth> = growing.iter().filter(on_it).cloned().collect();
    let used = points(profile, device.figure(TrackKind::MemoryUsed)?.track).last()?;
    let others = used.value.saturating_sub(own.reserved_bytes);
    let late_ns = profile.end_ns - profile.end_ns.saturating_sub(profile.start_ns) / LATE;
    let late = of_pid(profile, TrackKind::SampledAllocated, own.pid)?.iter();
    let late = late.filter(|point| point.end_ns >= late_ns);
    let peak = late.map(|point| point.value).max()?;
    let room = device.info.memory_bytes.saturating_sub(others);
    seconds_until(room.saturating_sub(peak), &growing)
}

/// What the driver says that a process has, less what its allocator had taken then: the median.
fn beside(profile: &Profile, pid: i32, reserved: &[TrackPoint]) -> Option<u64> {
    let mut of_driver = tracks_of(profile, TrackKind::ProcessMemory)
        .filter(|(_, info)| info.pid == pid)
        .map(|(track, _)| points(profile, track));
    let of_driver = of_driver.next().filter(|_| of_driver.next().is_none())?;
    let difference = |point: &TrackPoint| {
        let after = reserved.partition_point(|own| own.end_ns <= point.end_ns);
        let near = [after.checked_sub(1), Some(after)].into_iter().flatten();
        let near = near.filter_map(|at| reserved.get(at));
        let nearest = near.min_by_key(|own| own.end_ns.abs_diff(point.end_ns))?;
        let is_near = nearest.end_ns.abs_diff(point.end_ns) <= TOGETHER_NS;
        (is_near && point.value > 0).then(|| point.value.checked_sub(nearest.value))?
    };
    let mut all: Vec<u64> = of_driver.iter().filter_map(difference).collect();
    all.sort_unstable();
    (all.len() >= FEWEST).then(|| all.get(all.len() / 2).copied())?
}

fn readings<'p>(profile: &'p Profile, wanted: &TrackInfo) -> &'p [TrackPoint] {
    let mut own = tracks_of(profile, wanted.kind).filter(|(_, info)| *info == wanted);
    own.next().map_or(&[], |(track, _)| points(profile, track))
}
