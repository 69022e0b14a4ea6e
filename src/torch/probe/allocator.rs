//! What torch's caching allocator of CUDA memory holds, and what it has given to tensors.
//!
//! libc10_cuda exports a variable with the address of the allocator in use
//! (`c10::cuda::CUDACachingAllocator::allocator`, c10/cuda/CUDACachingAllocator.h). The class of
//! that object is named by the type information before its virtual table (Itanium C++ ABI, 2.5.2
//! and 2.9.4). torch's own allocator has a vector with an object for each device, and each of these
//! has a `DeviceStats` (c10/core/CachingDeviceAllocator.h), which are counted whether anybody asks
//! for them or not. Both headers are installed with torch. The classes around them are not, so
//! these two members are searched for: the vector by its three pointers, the statistics by six
//! arrays in a row each of which has the sum of two pools. What is not found so is not read. (torch
//! 2.15 has the vector at byte 22,584, the statistics at byte 40 of a device's object, and a table
//! of 32 bytes between the sixth array and the next, which earlier versions do not have.)

use crate::memory::Memory;

/// The exported variable.
pub const VARIABLE: &str = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";
/// The library that exports it.
pub const LIBRARY: &str = "libc10_cuda.so";

/// The name of the class in its type information. Another one asks the driver for each tensor
/// (`backend:cudaMallocAsync`), or is the user's.
const NATIVE: &[u8] = b"N3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE\0";
/// Most bytes of the allocator in which its vector is searched for.
const MAX_OBJECT: usize = 1 << 16;
/// Most devices: torch itself is compiled for 120 (c10/cuda/CUDAMacros.h).
const MAX_DEVICES: usize = 128;
/// Bytes of a device's object in which its statistics may begin, after a mutex.
const MAX_STATISTICS: usize = 512;
/// Most bytes between the sixth array and the next.
const MAX_GAP: usize = 128;
/// `CachingAllocator::Stat` (c10/core/Allocator.h): `current`, `peak`, `allocated`, `freed`. An
/// array has one for all, one for small and one for large blocks.
const STAT: usize = 32;
const ARRAY: usize = 3 * STAT;
/// Arrays before the gap: numbers of allocations, segments, active and inactive blocks, and bytes
/// allocated and reserved.
const FIRST: usize = 6;
const ALLOCATED: usize = 4 * ARRAY;
const RESERVED: usize = 5 * ARRAY;
/// Arrays after it, in bytes: active, inactive split, requested.
const REST: usize = 3;
/// Then two numbers: allocations that were tried again, and such that failed.
const COUNTS: usize = 16;
/// Searches in a row, and then calls between two: a process may hold no memory for long, or never.
const OFTEN: u32 = 20;
const PAUSE: u32 = 10;
/// Most vectors that are followed in a search.
const MAX_VECTORS: usize = 32;
/// Tries to read what does not change meanwhile.
const TRIES: usize = 3;

/// Why an allocator is not read.
pub const OTHER: &str = "it is not torch's own, but cudaMallocAsync or a pluggable one";
/// The same; the two look alike.
pub const NOTHING: &str = "it has held no memory yet, or this torch has it in an unknown layout";

/// The memory of a device that torch's allocator of one process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// The process's number of the device: `cuda:0`.
    pub device: usize,
    /// Given to tensors, bytes.
    pub allocated: u64,
    /// The most that was given to tensors since the start, or since the program has reset it.
    pub peak: u64,
    /// Taken from the driver, bytes.
    pub reserved: u64,
    /// The most that was taken from the driver since the start, or since the program has reset it.
    pub reserved_peak: u64,
    /// Given to tensors, or freed and still in use by a stream.
    pub active: u64,
    /// Free parts of segments of which another part is in use: they cannot be given back.
    pub inactive_split: u64,
    /// Allocations for which the device had no memory, so that the allocator gave its free
    /// segments back and tried again.
    pub retries: u64,
    /// Allocations that failed, as a rule after such a try.
    pub failures: u64,
    /// All that was ever given to tensors, since the start or since the program has reset it.
    pub total: u64,
}

/// The allocator of one process.
#[derive(Clone, Debug)]
pub struct AllocatorProbe {
    variable: u64,
    found: Option<Found>,
    unread: Option<&'static str>,
    /// Searches that found nothing, and calls until the next one.
    failed: u32,
    pause: u32,
}

#[derive(Clone, Debug)]
struct Found {
    allocator: u64,
    /// Addresses of the devices' statistics.
    statistics: Vec<u64>,
    /// Bytes between the sixth array and the next.
    gap: usize,
    /// Addresses of the numbers of bytes that are allocated.
    allocated: Vec<u64>,
}

impl AllocatorProbe {
    /// `variable`: the address of [`VARIABLE`].
    pub fn new(variable: u64) -> Self {
        Self {
            variable,
            found: None,
            unread: Some(NOTHING),
            failed: 0,
            pause: 0,
        }
    }

    /// The devices on which it has held memory. Empty before it has held any, and for an allocator
    /// that is not torch's own.
    pub fn read(&mut self, memory: &dyn Memory) -> Vec<DeviceMemory> {
        let Some(allocator) = memory.read_u64(self.variable).ok().filter(|&at| at != 0) else {
            return Vec::new();
        };
        if self
            .found
            .as_ref()
            .is_none_or(|known| known.allocator != allocator)
        {
            self.found = None;
            if self.pause > 0 {
                self.pause -= 1;
                return Vec::new();
            }
            self.found = find(allocator, memory);
            self.unread = match (&self.found, is_native(allocator, memory)) {
                (Some(_), _) => None,
                (None, Some(false)) => Some(OTHER),
                (None, _) => Some(NOTHING),
            };
            if self.found.is_none() {
                self.failed = self.failed.saturating_add(1);
                self.pause = if self.failed < OFTEN { 0 } else { PAUSE };
            }
        }
        let Some(found) = &self.found else {
            return Vec::new();
        };
        let all = found.statistics.iter().enumerate();
        let read = all.filter_map(|(device, &at)| of_device(device, at, found.gap, memory));
        read.filter(|device| device.reserved > 0 || device.peak > 0)
            .collect()
    }

    /// Why [`Self::read`] has found nothing; `None` if it has.
    pub fn unread(&self) -> Option<&'static str> {
        self.unread
    }

    /// Addresses of the numbers of bytes that are allocated, a word for each device; empty until
    /// [`Self::read`] has found them.
    pub fn words(&self) -> &[u64] {
        self.found.as_ref().map_or(&[], |found| &found.allocated)
    }
}

/// Whether it is torch's own, by the name of its class.
fn is_native(allocator: u64, memory: &dyn Memory) -> Option<bool> {
    let information = memory
        .read_u64(memory.read_u64(allocator).ok()?.checked_sub(8)?)
        .ok()?;
    let name = memory.read_u64(information.checked_add(8)?).ok()?;
    // A shorter name may end where memory does.
    let found = start_of(name, NATIVE.len(), memory);
    (!found.is_empty()).then(|| found == NATIVE)
}

/// Finds the members of an allocator.
fn find(allocator: u64, memory: &dyn Memory) -> Option<Found> {
    is_native(allocator, memory).filter(|&is_native| is_native)?;
    let object = start_of(allocator, MAX_OBJECT, memory);
    let words: Vec<u64> = object.chunks_exact(8).map(word_of).collect();
    let vectors = words
        .windows(3)
        .filter_map(|vector| pointers(vector, memory));
    vectors.take(MAX_VECTORS).find_map(|devices| {
        let all: Vec<Vec<u8>> = devices
            .iter()
            .map(|&at| {
                start_of(
                    at,
                    MAX_STATISTICS + FIRST * ARRAY + MAX_GAP + REST * ARRAY,
                    memory,
                )
            })
            .collect();
        // One of them must have held memory: zeroes look alike wherever they are.
        let has_held = |place: &usize| {
            let mut all = all.iter();
            all.any(|device| amount(device, place + RESERVED).is_some_and(|bytes| bytes > 0))
        };
        let mut places = (0..MAX_STATISTICS).step_by(8).filter(has_held);
        let (place, gap) = places.find_map(|place| Some((place, gap_of(&all, place)?)))?;
        let statistics: Vec<u64> = devices.iter().map(|at| at + place as u64).collect();
        Some(Found {
            allocator,
            gap,
            allocated: statistics.iter().map(|at| at + ALLOCATED as u64).collect(),
            statistics,
        })
    })
}

/// The elements of a `std::vector` of pointers, none of which is null: begin, end, end of its
/// memory.
fn pointers(vector: &[u64], memory: &dyn Memory) -> Option<Vec<u64>> {
    let &[begin, end, limit] = vector else {
        return None;
    };
    let is_aligned = [begin, end, limit].iter().all(|at| at.is_multiple_of(8));
    let bytes = usize::try_from(end.checked_sub(begin)?).ok()?;
    if begin == 0 || bytes == 0 || limit < end || bytes > 8 * MAX_DEVICES || !is_aligned {
        return None;
    }
    let all = memory.read_bytes(begin, bytes).ok()?;
    let all: Vec<u64> = all.chunks_exact(8).map(word_of).collect();
    let is_object = |at: &u64| *at != 0 && at.is_multiple_of(8) && *at < 1 << 56;
    all.iter().all(is_object).then_some(all)
}

/// `most` bytes from an address on, or fewer where a page is missing.
fn start_of(address: u64, most: usize, memory: &dyn Memory) -> Vec<u8> {
    const PAGE: u64 = 4096;
    let mut bytes = Vec::new();
    while bytes.len() < most
        && let Some(next) = address.checked_add(bytes.len() as u64)
        && let Ok(part) = memory.read_bytes(
            next,
            (most - bytes.len()).min((PAGE - next % PAGE) as usize),
        )
    {
        bytes.extend(part);
    }
    bytes
}

fn word_of(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

/// A count or a number of bytes at an offset: never negative.
fn amount(bytes: &[u8], at: usize) -> Option<u64> {
    let word = word_of(bytes.get(at..at.checked_add(8)?)?);
    (word <= 1 << 62).then_some(word)
}

/// The sum of an array: `current`, `peak`, `allocated` and `freed`. `None` if it is not three times
/// a `Stat`, the first of which is the sum of the others.
fn array(bytes: &[u8], at: usize) -> Option<[u64; 4]> {
    let stat = |pool: usize| -> Option<[u64; 4]> {
        let figure = |number: usize| amount(bytes, at + pool * STAT + 8 * number);
        Some([figure(0)?, figure(1)?, figure(2)?, figure(3)?])
    };
    let (all, small, large) = (stat(0)?, stat(1)?, stat(2)?);
    // The peak of a sum is not the sum of the peaks.
    let is_sum = |figure: usize| all[figure] == small[figure] + large[figure];
    let is_whole = [0, 2, 3].into_iter().all(is_sum)
        && [all, small, large].iter().all(|stat| stat[0] <= stat[1]);
    is_whole.then_some(all)
}

/// The bytes between the sixth array and the next if the statistics of all devices begin at
/// `place`.
fn gap_of(devices: &[Vec<u8>], place: usize) -> Option<usize> {
    let firsts =
        |device: &Vec<u8>| (0..FIRST).all(|number| array(device, place + number * ARRAY).is_some());
    if !devices.iter().all(firsts) {
        return None;
    }
    let mut gaps = (0..=MAX_GAP).step_by(8);
    gaps.find(|&gap| {
        let figures = |device: &Vec<u8>| figures(device.get(place..)?, gap);
        let all: Option<Vec<DeviceMemory>> = devices.iter().map(figures).collect();
        all.is_some_and(|all| {
            all.iter()
                .any(|device| device.reserved > 0 && device.peak > 0)
        })
    })
}

/// The figures of statistics, if they agree with each other.
fn figures(bytes: &[u8], gap: usize) -> Option<DeviceMemory> {
    for number in 0..FIRST {
        array(bytes, number * ARRAY)?;
    }
    let rest = FIRST * ARRAY + gap;
    let [allocated, peak, total, _] = array(bytes, ALLOCATED)?;
    let [reserved, reserved_peak, ..] = array(bytes, RESERVED)?;
    let [active, active_peak, ..] = array(bytes, rest)?;
    let [inactive_split, ..] = array(bytes, rest + ARRAY)?;
    let [requested, requested_peak, ..] = array(bytes, rest + 2 * ARRAY)?;
    // A block is active, and requested, until no stream uses it any more.
    let agree = allocated <= active
        && active <= reserved
        && requested <= active
        && peak <= active_peak
        && requested_peak <= active_peak;
    let counts = rest + REST * ARRAY;
    agree.then_some(DeviceMemory {
        device: 0,
        allocated,
        peak,
        reserved,
        reserved_peak,
        active,
        inactive_split,
        retries: amount(bytes, counts).unwrap_or(0),
        failures: amount(bytes, counts + 8).unwrap_or(0),
        total,
    })
}

/// The figures of a device. The program may change them while they are read: then they do not
/// agree.
fn of_device(device: usize, at: u64, gap: usize, memory: &dyn Memory) -> Option<DeviceMemory> {
    let length = FIRST * ARRAY + gap + REST * ARRAY + COUNTS;
    let mut tries = (0..TRIES).map(|_| figures(&memory.read_bytes(at, length).ok()?, gap));
    let figures = tries.find_map(|figures| figures)?;
    Some(DeviceMemory { device, ..figures })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SnapshotMemory;
    use proptest::prelude::*;

    const AT: u64 = 0x10_0000;
    const PLACE: usize = 40;

    fn put(bytes: &mut [u8], at: usize, words: &[u64]) {
        for (slot, word) in bytes[at..].chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// An array whose sum has these `current`, `peak`, `allocated` and `freed`.
    fn put_array(bytes: &mut [u8], at: usize, sum: [u64; 4]) {
        let small = sum.map(|figure| figure / 3);
        let large = [0, 1, 2, 3].map(|figure: usize| sum[figure] - small[figure]);
        put(bytes, at, &[sum, small, large].concat());
    }

    fn device(gap: usize, scale: u64) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        let stat = |now: u64| {
            [
                now * scale,
                2 * now * scale,
                5 * now * scale,
                4 * now * scale,
            ]
        };
        for (number, now) in [7, 2, 8, 1, 600, 1000].into_iter().enumerate() {
            put_array(&mut bytes, PLACE + number * ARRAY, stat(now));
        }
        let rest = PLACE + FIRST * ARRAY + gap;
        // A table lies between.
        put(&mut bytes, rest - gap, &vec![AT + 8; gap / 8]);
        // More is requested than is allocated: a stream still uses what was freed.
        for (number, now) in [700, 90, 650].into_iter().enumerate() {
            put_array(&mut bytes, rest + number * ARRAY, stat(now));
        }
        put(&mut bytes, rest + REST * ARRAY, &[3 * scale, scale]);
        bytes
    }

    /// A process with an allocator of this class that has these devices.
    fn process(class: &[u8], devices: Vec<Vec<u8>>) -> SnapshotMemory {
        let mut memory = SnapshotMemory::default();
        let mut words = |at: u64, words: &[u64]| {
            let mut bytes = vec![0; 8 * words.len()];
            put(&mut bytes, 0, words);
            memory.insert(at, bytes);
        };
        let [object, table, information, vector] = [1, 2, 3, 4].map(|part| AT + (part << 16));
        words(AT, &[object]);
        words(table, &[information, 0]);
        words(information, &[0, information + 0x100]);
        let all: Vec<u64> = (0..devices.len() as u64)
            .map(|number| AT + ((5 + number) << 16))
            .collect();
        words(vector, &all);
        let mut bytes = vec![0; 1 << 15];
        let end = vector + 8 * all.len() as u64;
        put(&mut bytes, 0, &[table + 8]);
        // Others that look a little like it.
        put(&mut bytes, 4352, &[vector, 0x3f00_0000_0000_033f, 0]);
        put(&mut bytes, 8000, &[vector, vector, vector]);
        put(&mut bytes, 22_584, &[vector, end, end]);
        memory.insert(object, bytes);
        memory.insert(information + 0x100, class.to_vec());
        for (at, device) in all.into_iter().zip(devices) {
            memory.insert(at, device);
        }
        memory
    }

    #[test]
    fn statistics_are_found_with_and_without_a_table_between_them() {
        for gap in [0, 32, 48] {
            let memory = process(NATIVE, vec![device(gap, 0), device(gap, 10)]);
            let mut probe = AllocatorProbe::new(AT);
            assert!(probe.words().is_empty());
            let expected = DeviceMemory {
                device: 1,
                allocated: 6000,
                peak: 12_000,
                reserved: 10_000,
                reserved_peak: 20_000,
                active: 7000,
                inactive_split: 900,
                retries: 30,
                failures: 10,
                total: 30_000,
            };
            assert_eq!(probe.read(&memory), [expected], "{gap}");
            let words: Vec<u64> = probe
                .words()
                .iter()
                .map(|&at| memory.read_u64(at).unwrap())
                .collect();
            assert_eq!(words, [0, 6000]);
        }
    }

    #[test]
    fn what_is_not_torchs_own_or_has_held_nothing_is_not_read() {
        let other =
            b"N3c104cuda20CUDACachingAllocator15CudaMallocAsync24CudaMallocAsyncAllocatorE\0";
        for (class, scale, why) in [(&other[..], 10, OTHER), (NATIVE, 0, NOTHING)] {
            let memory = process(class, vec![device(32, scale)]);
            let mut probe = AllocatorProbe::new(AT);
            assert_eq!(probe.read(&memory), []);
            assert_eq!(probe.unread(), Some(why));
        }
        assert_eq!(AllocatorProbe::new(AT).read(&SnapshotMemory::default()), []);
    }

    #[test]
    fn a_read_between_two_changes_is_left_out() {
        let mut memory = process(NATIVE, vec![device(32, 10)]);
        let mut probe = AllocatorProbe::new(AT);
        assert_eq!(probe.read(&memory).len(), 1);
        assert_eq!(probe.unread(), None);
        let mut torn = device(32, 10);
        put(&mut torn, PLACE + ALLOCATED, &[6512, 12_000]);
        memory.insert(AT + (5 << 16), torn);
        assert_eq!(probe.read(&memory), []);
    }

    proptest! {
        #[test]
        fn hostile_memory_does_no_harm(
            device in proptest::collection::vec(any::<u8>(), 0..3000),
            word in any::<u64>(),
            at in 0_usize..4000,
        ) {
            let mut object = vec![0_u8; 4096];
            put(&mut object, at.min(4088) & !7, &[word]);
            let mut memory = process(NATIVE, vec![device]);
            memory.insert(AT + (1 << 16) + 4096, object);
            AllocatorProbe::new(AT).read(&memory);
        }
    }
}
