//! How near memory came to its limits: those of cgroups, the machine, and `/dev/shm`.

use super::memory_growth::{Growth, Rate};
use super::tracks::{of_kind, points, tracks_of};
use crate::model::profile::Profile;
use crate::model::track::{TrackKind, TrackPoint};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::Path;

/// Whose limit it is.
#[derive(Clone, Debug, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitOf {
    /// `memory.max` of a cgroup.
    Cgroup,
    /// The machine's memory.
    Machine,
    /// The size of the `/dev/shm` that the first process sees.
    DevShm,
}

/// A limit, and the reading at which least was left below it.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct MemoryLimit {
    /// `cgroup`, `machine` or `dev_shm`.
    pub of: LimitOf,
    /// Path of the cgroup; empty for others.
    pub path: String,
    /// The limit at that reading.
    pub limit_bytes: u64,
    /// Memory in use at that reading, without page cache that the kernel can take back.
    pub peak_bytes: u64,
    /// Memory in use at the last reading.
    pub last_bytes: u64,
    /// Seconds until it is reached at the rate by which processes grow, from the last reading on;
    /// null where none grows, for all but the nearest limit, and where processes are in other
    /// cgroups, too.
    pub seconds_left: Option<Rate>,
}

impl MemoryLimit {
    /// The largest part of it that was in use, 0 to 1 and more where it was lowered.
    pub fn share(&self) -> f64 {
        self.peak_bytes as f64 / self.limit_bytes.max(1) as f64
    }

    fn left(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.peak_bytes)
    }
}

/// All limits that were read: of cgroups and the machine, that with least left first, and then
/// `/dev/shm`.
pub fn limits(profile: &Profile, growing: &[Growth]) -> Vec<MemoryLimit> {
    let mut found: Vec<MemoryLimit> = tracks_of(profile, TrackKind::CgroupUsed)
        .filter_map(|(track, info)| {
            let limits = of_kind(profile, TrackKind::CgroupLimit, &info.process);
            let used = points(profile, track).iter();
            let readings = used.map(|point| (point.value, at(limits, point.end_ns)));
            nearest(LimitOf::Cgroup, &info.process, readings)
        })
        .collect();
    let memory = of_kind(profile, TrackKind::MachineMemory, "");
    let available = of_kind(profile, TrackKind::MachineAvailable, "").iter();
    let readings = available.map(|point| {
        let all = at(memory, point.end_ns);
        (all.saturating_sub(point.value), all)
    });
    found.extend(nearest(LimitOf::Machine, "", readings));
    found.sort_by_key(MemoryLimit::left);
    if let Some(binding) = found.first_mut()
        && has_all(profile, binding)
    {
        binding.seconds_left = seconds_left(binding, growing);
    }
    let size = of_kind(profile, TrackKind::DevShmSize, "");
    let used = of_kind(profile, TrackKind::DevShmUsed, "").iter();
    let readings = used.map(|point| (point.value, at(size, point.end_ns)));
    found.extend(nearest(LimitOf::DevShm, "", readings));
    found
}

/// The readings `(used, limit)` as one limit; none where it never was known.
fn nearest(
    of: LimitOf,
    path: &str,
    readings: impl Iterator<Item = (u64, u64)>,
) -> Option<MemoryLimit> {
    let readings: Vec<(u64, u64)> = readings.filter(|&(_, limit)| limit > 0).collect();
    let nearest = readings
        .iter()
        .min_by_key(|(used, limit)| limit.saturating_sub(*used))?;
    Some(MemoryLimit {
        of,
        path: path.to_owned(),
        limit_bytes: nearest.1,
        peak_bytes: nearest.0,
        last_bytes: readings.last()?.0,
        seconds_left: None,
    })
}

/// Whether all processes are within the limit. Which of them is in which cgroup is not recorded,
/// but the cgroup of each is, and those above it with a limit: none may lie elsewhere.
fn has_all(profile: &Profile, limit: &MemoryLimit) -> bool {
    let own = Path::new(&limit.path);
    limit.of != LimitOf::Cgroup
        || tracks_of(profile, TrackKind::CgroupUsed).all(|(_, info)| {
            let other = Path::new(&info.process);
            other.starts_with(own) || own.starts_with(other)
        })
}

fn seconds_left(limit: &MemoryLimit, growing: &[Growth]) -> Option<Rate> {
    let left = limit.limit_bytes.saturating_sub(limit.last_bytes);
    seconds_until(left, growing)
}

/// Seconds until processes that grow have taken so much more, bytes.
pub(super) fn seconds_until(left: u64, growing: &[Growth]) -> Option<Rate> {
    let sum = |rate: fn(&Growth) -> f64| left as f64 / growing.iter().map(rate).sum::<f64>();
    let seconds = Rate {
        value: sum(|growth| growth.per_second.value),
        low: sum(|growth| growth.per_second.high),
        high: sum(|growth| growth.per_second.low),
    };
    (!growing.is_empty() && seconds.high.is_finite() && seconds.low >= 0.0).then_some(seconds)
}

/// A level that is read when it changes, at a time; that of its first reading before that one: both
/// are of one round.
pub(super) fn at(levels: &[TrackPoint], time_ns: u64) -> u64 {
    let after = levels.partition_point(|point| point.end_ns <= time_ns);
    let point = levels.get(after.saturating_sub(1));
    point.map_or(0, |point| point.value)
}
