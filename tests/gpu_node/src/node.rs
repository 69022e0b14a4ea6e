//! The devices, in memory that all processes of the node share.
//!
//! A device keeps the spans of time in which something ran on it: a ring that writers fill without
//! a lock, and that readers look at as a driver's counters are looked at, for the recent past.

use crate::scenario::Throttle;
use crate::timeline::{Piece, Read, Timeline};
use crate::{monotonic_ns, shared};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

pub const DEVICES: usize = 16;
/// Some seconds of the quickest launches.
pub(crate) const SPANS: usize = 1 << 19;
const PROCESSES: usize = 64;
/// The end of a span that has none yet: a collective that waits for other ranks.
pub const OPEN: u64 = u64::MAX;

#[repr(C)]
struct Span {
    start: AtomicU64,
    /// 0 while the span is written, [`OPEN`] while it has no end.
    end: AtomicU64,
    /// Share of the multiprocessors, and of the memory's rate, in 1/65536.
    weights: AtomicU32,
    /// Low bits of the span's number: the place has had others.
    number: AtomicU32,
}

#[repr(C)]
struct Process {
    pid: AtomicU32,
    _pad: AtomicU32,
    memory: AtomicU64,
}

#[repr(C)]
struct Device {
    next: AtomicU64,
    /// Since when processes use it without a break, CLOCK_MONOTONIC.
    used_from: AtomicU64,
    processes: [Process; PROCESSES],
    spans: [Span; SPANS],
}

/// How much a kernel uses of a device, from 0 to 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct Use {
    pub multiprocessors: f32,
    pub memory: f32,
}

/// What ran in a stretch of time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Busy {
    /// Time in which something ran, ns.
    pub ns: f64,
    /// The same, times the use of the multiprocessors and of the memory.
    pub multiprocessors_ns: f64,
    pub memory_ns: f64,
}

impl std::ops::Add for Busy {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            ns: self.ns + other.ns,
            multiprocessors_ns: self.multiprocessors_ns + other.multiprocessors_ns,
            memory_ns: self.memory_ns + other.memory_ns,
        }
    }
}

impl std::ops::Sub for Busy {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self {
            ns: self.ns - other.ns,
            multiprocessors_ns: self.multiprocessors_ns - other.multiprocessors_ns,
            memory_ns: self.memory_ns - other.memory_ns,
        }
    }
}

/// The shared memory, and what this process has read of it.
pub struct Node {
    devices: *const Device,
    timelines: [Mutex<Timeline>; DEVICES],
}

// SAFETY: all that is shared are atomics and what mutexes guard.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

impl Node {
    /// The memory of a node's folder; made where it is not there.
    ///
    /// # Errors
    /// What the kernel says of the file.
    pub fn open(folder: &Path) -> std::io::Result<Self> {
        let bytes = DEVICES * size_of::<Device>();
        let map = shared(&folder.join("devices"), bytes as u64)?;
        Ok(Self {
            devices: map.cast_const().cast(),
            timelines: Default::default(),
        })
    }

    fn device(&self, number: usize) -> &Device {
        assert!(number < DEVICES);
        // SAFETY: the mapping holds DEVICES of them, is zeros when new, and is never unmapped.
        unsafe { &*self.devices.add(number) }
    }

    /// Something ran; returns what [`Node::end`] asks for where `end` is [`OPEN`].
    pub fn put(&self, device: usize, start: u64, end: u64, used: Use) -> u64 {
        let device = self.device(device);
        let number = device.next.fetch_add(1, AcqRel);
        let span = &device.spans[number as usize % SPANS];
        let share = |value: f32| (value.clamp(0.0, 1.0) * 65535.0) as u32;
        span.end.store(0, Release);
        span.number.store(number as u32, Release);
        span.start.store(start, Release);
        let weights = share(used.multiprocessors) << 16 | share(used.memory);
        span.weights.store(weights, Release);
        span.end.store(end, Release);
        number
    }

    /// The end of an open span.
    pub fn end(&self, device: usize, number: u64, end: u64) {
        let span = &self.device(device).spans[number as usize % SPANS];
        if span.number.load(Acquire) == number as u32 {
            span.end.store(end, Release);
        }
    }

    fn read(&self, device: usize, number: u64) -> Read {
        let device = self.device(device);
        let span = &device.spans[number as usize % SPANS];
        // A writer stores the number before these, and the end after them.
        let end = span.end.load(Acquire);
        let piece = Piece {
            start: span.start.load(Acquire),
            end,
            weights: span.weights.load(Acquire),
        };
        let own = span.number.load(Acquire) == number as u32;
        if device.next.load(Acquire) > number + SPANS as u64 {
            Read::Overwritten
        } else if own && end != 0 {
            Read::Span(piece)
        } else {
            Read::Unwritten
        }
    }

    /// What ran between two moments of CLOCK_MONOTONIC. Spans of the last 2^19 are known, and those
    /// that were known when this was last asked, for 20 s.
    pub fn busy(&self, device: usize, from: u64, to: u64) -> Busy {
        let next = self.device(device).next.load(Acquire);
        let timeline = self.timelines[device].lock();
        let mut timeline = timeline.unwrap_or_else(|error| error.into_inner());
        let read = |number| self.read(device, number);
        timeline.busy((from, to), monotonic_ns(), next, read)
    }

    /// By what factor a device is slower at a moment.
    pub fn slowdown(&self, device: usize, throttle: Option<Throttle>, at: u64) -> f64 {
        let used_from = self.device(device).used_from.load(Acquire);
        let since_s = at.saturating_sub(used_from) as f64 / 1e9;
        throttle
            .filter(|throttle| used_from > 0 && since_s >= throttle.from_s)
            .map_or(1.0, |throttle| throttle.factor)
    }

    /// The place of this process's memory on a device.
    pub fn memory(&self, device: usize) -> Option<&AtomicU64> {
        let own = std::process::id();
        let Device {
            processes,
            used_from,
            ..
        } = self.device(device);
        let found = processes
            .iter()
            .find(|process| process.pid.load(Acquire) == own);
        let free = || {
            if self.processes(device).is_empty() {
                used_from.store(monotonic_ns(), Release);
            }
            processes.iter().find(|process| {
                let pid = process.pid.load(Acquire);
                let taken = !alive(pid)
                    && process
                        .pid
                        .compare_exchange(pid, own, AcqRel, Acquire)
                        .is_ok();
                if taken {
                    process.memory.store(0, Release);
                }
                taken
            })
        };
        found.or_else(free).map(|process| &process.memory)
    }

    /// The processes that use a device, with their bytes.
    pub fn processes(&self, device: usize) -> Vec<(u32, u64)> {
        let processes = self.device(device).processes.iter();
        processes
            .map(|process| (process.pid.load(Acquire), process.memory.load(Acquire)))
            .filter(|&(pid, _)| alive(pid))
            .collect()
    }
}

fn alive(pid: u32) -> bool {
    pid != 0 && Path::new(&format!("/proc/{pid}")).exists()
}
