//! Processes that a signal ended, and whether lack of memory was the reason.
//!
//! The kernel kills by SIGKILL, which others send, too. What tells them apart are its counters of
//! such kills: of a cgroup, which are of its processes alone, and of the machine. A write to memory
//! of a tmpfs that is full raises SIGBUS (mmap(2)).

use super::memory_limits::at;
use super::tracks::{of_kind, of_pid, points, tracks_of};
use crate::model::ids::ProcessId;
use crate::model::profile::Profile;
use crate::model::track::{TrackKind, TrackPoint};
use std::path::Path;

/// SIGBUS and SIGKILL, on all architectures of Linux that torchspy runs on (signal(7)).
pub const SIGBUS: u64 = 7;
pub const SIGKILL: u64 = 9;
/// Time within which a process that is killed has ended, ns: all of its memory is freed first.
const DIES_NS: u64 = 10_000_000_000;
/// From this part on a tmpfs counts as full: the rest may have been taken, and given back by the
/// end of the process, since the last reading.
const FULL: f64 = 0.95;
/// From this part on it may have been full.
const PERHAPS_FULL: f64 = 0.5;

/// Why a process was ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// By the kernel, since a cgroup was at its limit.
    CgroupLimit { path: String, limit_bytes: u64 },
    /// By the kernel, since memory was short on the machine, or at a limit that torchspy does not
    /// see: of a cgroup outside of its container. `path` is the process's own cgroup.
    OutOfMemory { path: String },
    /// The kernel killed a process of the machine for lack of memory at that time, perhaps this
    /// one.
    MachinePerhaps,
    /// A write to `/dev/shm`, which was full, or `perhaps` was.
    DevShm {
        used_bytes: u64,
        size_bytes: u64,
        perhaps: bool,
    },
}

/// A process that a signal ended.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    pub process: Option<ProcessId>,
    pub pid: i32,
    pub signal: u64,
    /// When its end was seen, CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Its resident memory at the last reading, bytes.
    pub resident_bytes: Option<u64>,
    /// `None` where nothing shows one.
    pub reason: Option<Reason>,
}

/// Processes that a signal ended, in this order.
pub fn ends(profile: &Profile) -> Vec<End> {
    let mut ends: Vec<End> = tracks_of(profile, TrackKind::EndingSignal)
        .filter_map(|(track, info)| {
            let point = points(profile, track).last()?;
            let mut all = profile.processes.iter();
            let process = all.rposition(|process| process.info.pid == info.pid);
            Some(End {
                process: process.map(ProcessId::from_index),
                pid: info.pid,
                signal: point.value,
                time_ns: point.end_ns,
                resident_bytes: resident(profile, info.pid, point.end_ns),
                reason: None,
            })
        })
        .collect();
    ends.sort_by_key(|end| end.time_ns);
    let mut kills = kills(profile);
    for end in &mut ends {
        end.reason = match end.signal {
            SIGKILL => killed(profile, &mut kills, end.time_ns),
            SIGBUS => dev_shm(profile, end.time_ns),
            _ => None,
        };
    }
    ends
}

fn resident(profile: &Profile, pid: i32, time_ns: u64) -> Option<u64> {
    let before = of_pid(profile, TrackKind::Resident, pid)?.iter();
    let last = before.rev().find(|point| point.end_ns <= time_ns)?;
    Some(last.value).filter(|&bytes| bytes > 0)
}

/// Kills that a counter has counted in a window, of which `left` are not explained.
struct Kills {
    /// Empty for the machine.
    path: String,
    window: TrackPoint,
    left: u64,
}

/// Those of cgroups, the innermost first, and then of the machine.
fn kills(profile: &Profile) -> Vec<Kills> {
    let mut all: Vec<Kills> = tracks_of(profile, TrackKind::OomKills)
        .flat_map(|(track, info)| {
            points(profile, track).iter().map(|window| Kills {
                path: info.process.clone(),
                window: *window,
                left: window.value,
            })
        })
        .collect();
    all.sort_by_key(|kills| std::cmp::Reverse(kills.path.len()));
    all
}

/// Whether what happened in a window may have ended a process at this time.
fn may_end(window: &TrackPoint, time_ns: u64) -> bool {
    window.start_ns < time_ns && time_ns < window.end_ns.saturating_add(DIES_NS)
}

fn killed(profile: &Profile, all: &mut [Kills], time_ns: u64) -> Option<Reason> {
    let first = all
        .iter()
        .position(|kills| kills.left > 0 && may_end(&kills.window, time_ns))?;
    let path = all.get(first)?.path.clone();
    // In version 2 the counters of a cgroup's ancestors have counted it, too, and the machine's.
    for kills in all
        .iter_mut()
        .filter(|kills| may_end(&kills.window, time_ns))
        .filter(|kills| kills.path.is_empty() || Path::new(&path).starts_with(&kills.path))
    {
        kills.left = kills.left.saturating_sub(1);
    }
    if path.is_empty() {
        return Some(Reason::MachinePerhaps);
    }
    let at_limit = tracks_of(profile, TrackKind::CgroupLimitHits)
        .filter(|(_, info)| Path::new(&path).starts_with(&info.process))
        .filter(|(track, _)| {
            let mut windows = points(profile, *track).iter();
            windows.any(|window| may_end(window, time_ns))
        })
        .max_by_key(|(_, info)| info.process.len());
    Some(match at_limit {
        Some((_, info)) => Reason::CgroupLimit {
            limit_bytes: at(
                of_kind(profile, TrackKind::CgroupLimit, &info.process),
                time_ns,
            ),
            path: info.process.clone(),
        },
        None => Reason::OutOfMemory { path },
    })
}

fn dev_shm(profile: &Profile, time_ns: u64) -> Option<Reason> {
    let size_bytes = at(of_kind(profile, TrackKind::DevShmSize, ""), time_ns);
    let used = of_kind(profile, TrackKind::DevShmUsed, "").iter();
    let before = used
        .filter(|point| point.end_ns <= time_ns && point.end_ns.saturating_add(DIES_NS) > time_ns);
    let used_bytes = before.map(|point| point.value).max()?;
    let share = used_bytes as f64 / size_bytes.max(1) as f64;
    (size_bytes > 0 && share >= PERHAPS_FULL).then_some(Reason::DevShm {
        used_bytes,
        size_bytes,
        perhaps: share < FULL,
    })
}
