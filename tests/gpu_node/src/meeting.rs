//! Where ranks meet: a file that all ranks of a communicator map.
//!
//! Each rank has a lane: a ring of slots, one for each collective, with the moment at which the
//! rank's device came to it and the bytes that it brought. A slot is used again when all ranks have
//! read it.

use crate::node::DEVICES;
use crate::shared;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};

/// As many ranks can meet: a device has one of a communicator.
pub const RANKS: usize = DEVICES;
/// What a rank may bring to a collective, bytes. Larger messages move nothing.
pub const SMALL: usize = 64 << 10;
/// A rank is ahead of the others by no more collectives.
const RING: usize = 1024;

#[repr(C)]
struct Member {
    come_ns: AtomicU64,
    color: AtomicI32,
    key: AtomicI32,
}

#[repr(C)]
struct Slot {
    /// Of the collective, from 1 on; written last.
    number: AtomicU64,
    arrived_ns: AtomicU64,
    /// What the rank takes the collective to be.
    shape: AtomicU64,
    /// Ranks that have yet to read.
    readers: AtomicU64,
}

#[repr(C)]
struct Lane {
    slots: [Slot; RING],
    data: [[u8; SMALL]; RING],
}

const HEADER: usize = RANKS * size_of::<Member>();

/// The file of a communicator, as one of its processes maps it.
pub struct Meeting {
    map: *mut u8,
    ranks: usize,
}

// SAFETY: all that is shared are atomics, and data that its slot's number publishes.
unsafe impl Send for Meeting {}
// SAFETY: as above.
unsafe impl Sync for Meeting {}

impl Meeting {
    /// # Errors
    /// More ranks than fit; what the kernel says of the file.
    pub fn open(path: &Path, ranks: usize) -> std::io::Result<Self> {
        if ranks > RANKS {
            return Err(std::io::Error::other(format!("more than {RANKS} ranks")));
        }
        let map = shared(path, Self::bytes(ranks) as u64)?;
        Ok(Self { map, ranks })
    }

    fn bytes(ranks: usize) -> usize {
        HEADER + ranks * size_of::<Lane>()
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    fn member(&self, rank: usize) -> &Member {
        assert!(rank < self.ranks);
        // SAFETY: the mapping begins with RANKS of them, which are zeros when new.
        unsafe { &*self.map.cast::<Member>().add(rank) }
    }

    fn lane(&self, rank: usize) -> *mut Lane {
        assert!(rank < self.ranks);
        // SAFETY: the mapping has one for each rank.
        unsafe { self.map.add(HEADER).cast::<Lane>().add(rank) }
    }

    fn slot(&self, rank: usize, number: u64) -> &Slot {
        // SAFETY: in the mapping; atomics, which are zeros when new.
        unsafe { &(*self.lane(rank)).slots[number as usize % RING] }
    }

    /// A rank has come, with what it says of itself.
    pub fn come(&self, rank: usize, color: i32, key: i32, at_ns: u64) {
        let member = self.member(rank);
        member.color.store(color, Release);
        member.key.store(key, Release);
        member.come_ns.store(at_ns, Release);
    }

    /// When the last rank came; `None` while one has not.
    pub fn complete_ns(&self) -> Option<u64> {
        let mut times = (0..self.ranks).map(|rank| self.member(rank).come_ns.load(Acquire));
        times.try_fold(0, |last, time| (time != 0).then_some(last.max(time)))
    }

    /// What a rank that has come said of itself: color and key.
    pub fn said(&self, rank: usize) -> (i32, i32) {
        let member = self.member(rank);
        (member.color.load(Acquire), member.key.load(Acquire))
    }

    /// Whether a rank's slot for a collective is free.
    pub fn has_room(&self, rank: usize, number: u64) -> bool {
        let slot = self.slot(rank, number);
        let before = number.saturating_sub(RING as u64);
        before == 0 || (slot.number.load(Acquire) == before && slot.readers.load(Acquire) == 0)
    }

    /// A rank's device has come to a collective for which it [has room](Self::has_room).
    pub fn arrive(&self, rank: usize, number: u64, shape: u64, at_ns: u64, brought: &[u8]) {
        // SAFETY: the slot is this rank's until its number is written; the lane has room for it.
        unsafe {
            let data = &raw mut (*self.lane(rank)).data[number as usize % RING];
            let length = brought.len().min(SMALL);
            data.cast::<u8>()
                .copy_from_nonoverlapping(brought.as_ptr(), length);
        }
        let slot = self.slot(rank, number);
        slot.arrived_ns.store(at_ns, Release);
        slot.shape.store(shape, Release);
        slot.readers.store(self.ranks as u64, Release);
        slot.number.store(number, Release);
    }

    /// When the last device came to a collective; `None` while one has not, or for ever where ranks
    /// take it to be different things.
    pub fn met_ns(&self, number: u64, shape: u64) -> Option<u64> {
        let mut times = (0..self.ranks).map(|rank| {
            let slot = self.slot(rank, number);
            let come = slot.number.load(Acquire) == number && slot.shape.load(Acquire) == shape;
            come.then(|| slot.arrived_ns.load(Acquire))
        });
        times.try_fold(0, |last, time| Some(last.max(time?)))
    }

    /// What a rank brought to a collective to which all have come, until [`Meeting::leave`].
    pub fn brought(&self, rank: usize, number: u64) -> &[u8] {
        // SAFETY: in the mapping, and not written before all ranks have left.
        unsafe { &(*self.lane(rank)).data[number as usize % RING] }
    }

    /// One rank has read all that it needs of a collective.
    pub fn leave(&self, number: u64) {
        for rank in 0..self.ranks {
            self.slot(rank, number).readers.fetch_sub(1, AcqRel);
        }
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        // SAFETY: mapped by `open` with this length; references to it end with it.
        unsafe { libc::munmap(self.map.cast(), Self::bytes(self.ranks)) };
    }
}

/// Rings when a device has come to a collective of any rank of the node.
pub struct Bell(&'static AtomicU32);

impl Bell {
    /// # Errors
    /// What the kernel says of the file.
    pub fn open(folder: &Path) -> std::io::Result<Self> {
        let map = shared(&folder.join("bell"), 4096)?;
        // SAFETY: the mapping is aligned, zeros when new, and never unmapped.
        Ok(Self(unsafe { &*map.cast::<AtomicU32>() }))
    }

    /// How often it has rung.
    pub fn rung(&self) -> u32 {
        self.0.load(Acquire)
    }

    pub fn ring(&self) {
        self.0.fetch_add(1, AcqRel);
        // SAFETY: a futex that other processes share; nothing but the address is passed.
        unsafe { libc::syscall(libc::SYS_futex, self.0, libc::FUTEX_WAKE, i32::MAX) };
    }

    /// Returns when it has rung more often than this, or after a while.
    pub fn wait(&self, rung: u32, most: std::time::Duration) {
        let most = libc::timespec {
            tv_sec: most.as_secs() as libc::time_t,
            tv_nsec: most.subsec_nanos().into(),
        };
        // SAFETY: as above; the time is a local one. It also returns for a signal.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.0,
                libc::FUTEX_WAIT,
                rung,
                &raw const most,
            )
        };
    }
}
