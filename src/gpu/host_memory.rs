//! Counter tracks of the host's memory: of cgroups and their limits, `/dev/shm`, the machine, and
//! what few processes have.

use super::batch::Batch;
use super::feed::Sampled;
use crate::model::track::TrackKind;
use crate::os::clock::monotonic_ns;
use crate::os::memory_cgroup::MemoryGroup;
use crate::os::private_memory::private_memory;
use crate::os::process_usage::{dev_shm, further_memory, machine_memory, machine_oom_kills};
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// Time between two readings.
const PERIOD: Duration = Duration::from_secs(1);
/// Time between two checks whether a process is in another cgroup.
const MOVES: Duration = Duration::from_secs(30);
/// Time after which a level that has not changed is recorded again, ns.
const AGAIN_NS: u64 = 30_000_000_000;
/// Time between two readings of what forked processes share, and how many of these are read.
const SHARED: Duration = Duration::from_secs(2);
const MAX_FORKED: usize = 16;
/// Most cgroups that are polled, ancestors with a limit included.
const MAX_GROUPS: usize = 64;

/// What is polled, and the last readings.
#[derive(Default)]
pub(super) struct HostMemory {
    /// When all was read.
    read: Option<Instant>,
    /// When what forked processes share was read.
    shared_read: Option<Instant>,
    /// When the cgroups of a process were listed.
    listed: FxHashMap<i32, Instant>,
    groups: Vec<MemoryGroup>,
    /// Levels that are recorded when they change, and readings of counters, with their time
    /// (CLOCK_MONOTONIC), by kind and path.
    last: FxHashMap<(TrackKind, String), (u64, u64)>,
    /// Processes whose levels were not always 0.
    nonzero: FxHashMap<i32, u8>,
}

impl HostMemory {
    /// Reads all if it is time, or if this is the `last` round: what ended the processes shows in
    /// it.
    pub(super) fn round(&mut self, sampled: &[Sampled], batch: &mut Batch, last: bool) {
        let now = Instant::now();
        // The thread's own period may end a little early.
        let is_due = |read: Instant| now.duration_since(read) + PERIOD / 10 >= PERIOD;
        // A process that is new may end before the next reading.
        let is_new = |process: &Sampled| !self.listed.contains_key(&process.pid);
        if !last && !self.read.is_none_or(is_due) && !sampled.iter().any(is_new) {
            return;
        }
        self.read = Some(now);
        for process in sampled {
            self.process(process, batch);
            self.list_groups(process.pid, now);
        }
        if self
            .shared_read
            .is_none_or(|read| now - read + PERIOD / 2 >= SHARED)
        {
            self.shared_read = Some(now);
            let forked = sampled.iter().filter(|process| process.is_forked);
            for process in forked.take(MAX_FORKED) {
                if let Some(bytes) = private_memory(process.pid) {
                    let (kind, now_ns) = (TrackKind::Private, monotonic_ns());
                    batch.put_of(kind, process.pid, &process.name, now_ns, now_ns, bytes);
                }
            }
        }
        let is_sampled = |pid: i32| sampled.iter().any(|process| process.pid == pid);
        self.listed.retain(|pid, _| is_sampled(*pid));
        self.nonzero.retain(|pid, _| is_sampled(*pid));
        // Also those whose processes have ended: why they did shows afterwards.
        for group in std::mem::take(&mut self.groups) {
            if self.group(&group, batch) {
                self.groups.push(group);
            }
        }
        if let Some((used, size)) = sampled.iter().find_map(|process| dev_shm(process.pid)) {
            level(batch, TrackKind::DevShmUsed, "", used);
            self.setting(batch, TrackKind::DevShmSize, "", size);
        }
        if let Some((available, all)) = machine_memory() {
            level(batch, TrackKind::MachineAvailable, "", available);
            self.setting(batch, TrackKind::MachineMemory, "", all);
        }
        self.rise(batch, TrackKind::OomKills, "", machine_oom_kills());
    }

    fn process(&mut self, process: &Sampled, batch: &mut Batch) {
        let Some(memory) = further_memory(process.pid) else {
            return;
        };
        let levels = [
            (TrackKind::Swap, memory.swap),
            (TrackKind::Shared, memory.shared),
            (TrackKind::Locked, memory.locked),
            (TrackKind::Pinned, memory.pinned),
            (TrackKind::HugePages, memory.huge),
        ];
        let now_ns = monotonic_ns();
        let nonzero = self.nonzero.entry(process.pid).or_default();
        for (at, (kind, value)) in levels.into_iter().enumerate() {
            *nonzero |= u8::from(value > 0) << at;
            if *nonzero & 1 << at != 0 {
                batch.put_of(kind, process.pid, &process.name, now_ns, now_ns, value);
            }
        }
    }

    fn list_groups(&mut self, pid: i32, now: Instant) {
        let listed = self.listed.get(&pid);
        if listed.is_some_and(|listed| now.duration_since(*listed) < MOVES) {
            return;
        }
        self.listed.insert(pid, now);
        // Of its ancestors those that have a limit. Without any limit the root is the machine.
        let all = MemoryGroup::of(pid).into_iter().enumerate();
        let polled = all.filter(|(at, group)| {
            let is_root = group.path == "/";
            (*at == 0 && !is_root) || group.limit().is_some()
        });
        for (_, group) in polled {
            if self.groups.len() < MAX_GROUPS && !self.groups.contains(&group) {
                self.groups.push(group);
            }
        }
    }

    /// Whether it is still there.
    fn group(&mut self, group: &MemoryGroup, batch: &mut Batch) -> bool {
        let Some(memory) = group.read() else {
            return false;
        };
        let path = group.path.as_str();
        level(batch, TrackKind::CgroupUsed, path, memory.used);
        level(batch, TrackKind::CgroupCache, path, memory.cache);
        level(batch, TrackKind::CgroupShared, path, memory.shared);
        level(batch, TrackKind::CgroupAnonymous, path, memory.anonymous);
        if let Some(huge) = memory.huge {
            level(batch, TrackKind::CgroupHugePages, path, huge);
        }
        if let Some(swap) = memory.swap {
            self.setting(batch, TrackKind::CgroupSwap, path, swap);
        }
        let limit = memory.limit.unwrap_or(0);
        self.setting(batch, TrackKind::CgroupLimit, path, limit);
        let high = memory.high.unwrap_or(0);
        self.setting(batch, TrackKind::CgroupHigh, path, high);
        self.rise(batch, TrackKind::CgroupLimitHits, path, memory.limit_hits);
        self.rise(batch, TrackKind::OomKills, path, memory.oom_kills);
        true
    }

    /// Adds a level that seldom changes, if it has; none that has always been 0.
    fn setting(&mut self, batch: &mut Batch, kind: TrackKind, path: &str, value: u64) {
        let now_ns = monotonic_ns();
        let last = self.last.entry((kind, path.to_owned())).or_default();
        // Each file of a session that writes many has it.
        let is_old = value > 0 && now_ns.saturating_sub(last.0) >= AGAIN_NS;
        if last.1 != value || is_old {
            *last = (now_ns, value);
            level(batch, kind, path, value);
        }
    }

    /// Adds the increase of a counter since its last reading, if there is one.
    fn rise(&mut self, batch: &mut Batch, kind: TrackKind, path: &str, value: Option<u64>) {
        let Some(value) = value else {
            return;
        };
        let now_ns = monotonic_ns();
        let last = self.last.insert((kind, path.to_owned()), (now_ns, value));
        if let Some((last_ns, before)) = last
            && value > before
        {
            batch.put_of(kind, 0, path, last_ns, now_ns, value - before);
        }
    }
}

fn level(batch: &mut Batch, kind: TrackKind, path: &str, value: u64) {
    let now_ns = monotonic_ns();
    batch.put_of(kind, 0, path, now_ns, now_ns, value);
}
