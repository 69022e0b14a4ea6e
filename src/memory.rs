//! Bounded, typed reads of another process's memory, or of a copy of it.

use crate::arch::{Architecture, Machine};
use std::cell::{Ref, RefCell};
use std::ops::Range;

/// Why memory could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Nothing is mapped there, or only part of the range is.
    #[error("unreadable memory at {0:#x}")]
    Unmapped(u64),
    /// The kernel denies it.
    #[error("permission denied reading memory")]
    PermissionDenied,
    /// The process is gone.
    #[error("the process is gone")]
    Gone,
}

/// Bytes of a file, or of a copy of memory. They are read in parts, never mapped: touching a mapped
/// page past the end of a file that has shrunk raises SIGBUS.
pub trait Bytes: Send + Sync {
    /// Size when it was opened.
    fn size(&self) -> u64;

    /// Fills `buffer` from `offset` on. `false` if the range is not available, or the file has
    /// changed since it was opened; the buffer's content is then unspecified.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> bool;

    /// Whether it is a file that was truncated or rewritten since it was opened.
    fn has_changed(&self) -> bool {
        false
    }

    /// A copy of `range`. The caller bounds its length: a sparse file has any size.
    fn copy(&self, range: Range<u64>) -> Option<Vec<u8>> {
        let length = range.end.checked_sub(range.start)?;
        if range.end > self.size() {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        self.read_at(range.start, &mut bytes).then_some(bytes)
    }
}

impl Bytes for Vec<u8> {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let found = self.get(start..start.saturating_add(buffer.len()));
        found.map(|found| buffer.copy_from_slice(found)).is_some()
    }
}

/// One range of a vectored read.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// Address in the target.
    pub address: u64,
    /// Destination; its length is the number of bytes to read.
    pub buffer: &'a mut [u8],
    /// Outcome of the read.
    pub result: Result<(), ReadError>,
}

/// Memory of a process: live, a snapshot, or with injected faults.
pub trait Memory {
    /// Fills `buffer` completely from `address`.
    ///
    /// # Errors
    /// [`ReadError`]; the buffer's content is then unspecified.
    fn read_exact(&self, address: u64, buffer: &mut [u8]) -> Result<(), ReadError>;

    /// Reads many ranges, each with its own result. Live memory uses one system call where it can.
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        for request in requests {
            request.result = self.read_exact(request.address, request.buffer);
        }
    }

    /// A little-endian u64, or a pointer.
    ///
    /// # Errors
    /// As [`Memory::read_exact`].
    fn read_u64(&self, address: u64) -> Result<u64, ReadError> {
        let mut bytes = [0; 8];
        self.read_exact(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// A little-endian u32.
    ///
    /// # Errors
    /// As [`Memory::read_exact`].
    fn read_u32(&self, address: u64) -> Result<u32, ReadError> {
        let mut bytes = [0; 4];
        self.read_exact(address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// A little-endian i32.
    ///
    /// # Errors
    /// As [`Memory::read_exact`].
    fn read_i32(&self, address: u64) -> Result<i32, ReadError> {
        Ok(self.read_u32(address)? as i32)
    }

    /// A byte.
    ///
    /// # Errors
    /// As [`Memory::read_exact`].
    fn read_u8(&self, address: u64) -> Result<u8, ReadError> {
        let mut bytes = [0; 1];
        self.read_exact(address, &mut bytes)?;
        Ok(bytes[0])
    }

    /// `length` bytes. The caller bounds the length: it comes from the target.
    ///
    /// # Errors
    /// As [`Memory::read_exact`].
    fn read_bytes(&self, address: u64, length: usize) -> Result<Vec<u8>, ReadError> {
        let mut bytes = vec![0; length];
        self.read_exact(address, &mut bytes)?;
        Ok(bytes)
    }
}

/// `N` bytes at each of `addresses`, by vectored reads.
///
/// # Errors
/// As [`Memory::read_exact`], if one of them cannot be read.
pub fn read_each<const N: usize>(
    addresses: &[u64],
    memory: &dyn Memory,
) -> Result<Vec<[u8; N]>, ReadError> {
    read_those(addresses, memory).into_iter().collect()
}

/// The same, with a result for each.
pub fn read_those<const N: usize>(
    addresses: &[u64],
    memory: &dyn Memory,
) -> Vec<Result<[u8; N], ReadError>> {
    let mut all = vec![[0; N]; addresses.len()];
    let mut requests: Vec<ReadRequest<'_>> = addresses
        .iter()
        .zip(&mut all)
        .map(|(&address, bytes)| ReadRequest {
            address,
            buffer: bytes,
            result: Ok(()),
        })
        .collect();
    memory.read_many(&mut requests);
    let results: Vec<_> = requests.iter().map(|request| request.result).collect();
    let read = results.into_iter().zip(all);
    read.map(|(result, bytes)| result.map(|()| bytes)).collect()
}

impl<M: Memory + ?Sized> Memory for &M {
    fn read_exact(&self, address: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        (**self).read_exact(address, buffer)
    }
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        (**self).read_many(requests);
    }
}

/// Copied ranges of a process's memory.
#[derive(Clone, Debug, Default)]
pub struct SnapshotMemory {
    ranges: Vec<Copied>,
    /// Addresses and lengths of what was read of it, where that is noted.
    noted: Option<RefCell<Vec<(u64, usize)>>>,
}

#[derive(Clone, Debug)]
struct Copied {
    start: u64,
    /// Only this many bytes are the copy: a reused buffer is longer than most copies.
    length: usize,
    bytes: Vec<u8>,
}

impl SnapshotMemory {
    /// Adds a copied range. Where ranges overlap, lookups try the newest first.
    pub fn insert(&mut self, address: u64, bytes: Vec<u8>) {
        let length = bytes.len();
        self.insert_part(address, bytes, length);
    }

    /// Adds the first `length` bytes of a buffer as a copied range.
    pub fn insert_part(&mut self, address: u64, bytes: Vec<u8>, length: usize) {
        self.ranges.push(Copied {
            start: address,
            length: length.min(bytes.len()),
            bytes,
        });
    }

    /// Total size of its buffers, bytes.
    pub fn buffer_bytes(&self) -> usize {
        self.ranges.iter().map(|copied| copied.bytes.len()).sum()
    }

    /// Removes all ranges and returns their buffers for reuse.
    pub fn drain(&mut self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.noted = None;
        self.ranges.drain(..).map(|copied| copied.bytes)
    }

    /// The ranges: addresses and bytes.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.ranges
            .iter()
            .filter_map(|copied| Some((copied.start, copied.bytes.get(..copied.length)?)))
    }

    /// Notes from now on what is read.
    pub fn note_reads(&mut self) {
        self.noted = Some(RefCell::default());
    }

    /// Notes nothing any more.
    pub fn forget_reads(&mut self) {
        self.noted = None;
    }

    /// Addresses and lengths of the reads that succeeded since [`Self::note_reads`]; `None` if
    /// nothing is noted.
    pub fn reads(&self) -> Option<Ref<'_, Vec<(u64, usize)>>> {
        Some(self.noted.as_ref()?.borrow())
    }

    /// The bytes of a range, without a note of it.
    pub fn find(&self, address: u64, length: usize) -> Option<&[u8]> {
        self.ranges.iter().rev().find_map(|copied| {
            let offset = usize::try_from(address.checked_sub(copied.start)?).ok()?;
            let end = offset.checked_add(length)?;
            (end <= copied.length).then(|| copied.bytes.get(offset..end))?
        })
    }
}

impl Memory for SnapshotMemory {
    fn read_exact(&self, address: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        Unnoted(self).read_exact(address, buffer)?;
        if let Some(noted) = &self.noted {
            noted.borrow_mut().push((address, buffer.len()));
        }
        Ok(())
    }
}

/// A snapshot of which reads are not noted.
#[derive(Debug)]
pub struct Unnoted<'a>(pub &'a SnapshotMemory);

impl Memory for Unnoted<'_> {
    fn read_exact(&self, address: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        let found = self.0.find(address, buffer.len());
        buffer.copy_from_slice(found.ok_or(ReadError::Unmapped(address))?);
        Ok(())
    }
}

/// A snapshot in front of other memory; records the ranges that the snapshot lacked, so that the
/// next snapshot can include them. After many misses, as with a deep stack, whole blocks are read.
#[derive(Debug)]
pub struct LayeredMemory<'a, M: ?Sized> {
    snapshot: &'a SnapshotMemory,
    behind: &'a M,
    missed: RefCell<Vec<(u64, usize)>>,
    /// Blocks that were read: start address and bytes.
    blocks: RefCell<Vec<(u64, Vec<u8>)>>,
}

/// This many misses are read one by one; after that blocks are read.
const FEW_MISSES: usize = 64;
/// Size of a block: a chunk of CPython's data stack, or many of its older frames.
const BLOCK_BYTES: u64 = 16 << 10;
const PAGE_BYTES: u64 = Machine::PAGE_BYTES;
/// Most blocks: 16 MiB in total.
const MAX_BLOCKS: usize = 1024;

impl<'a, M: Memory + ?Sized> LayeredMemory<'a, M> {
    /// Reads `snapshot` first, then `behind`.
    pub fn new(snapshot: &'a SnapshotMemory, behind: &'a M) -> Self {
        Self {
            snapshot,
            behind,
            missed: RefCell::new(Vec::new()),
            blocks: RefCell::new(Vec::new()),
        }
    }

    /// Whether the limit of blocks is reached: further reads fail.
    pub fn is_spent(&self) -> bool {
        self.blocks.borrow().len() >= MAX_BLOCKS
    }

    /// Ranges that the snapshot lacked: address and length.
    pub fn into_missed(self) -> Vec<(u64, usize)> {
        self.missed.into_inner()
    }
}

impl<M: Memory + ?Sized> LayeredMemory<'_, M> {
    /// Reads from the last `count` blocks.
    fn read_along(&self, count: usize, address: u64, buffer: &mut [u8]) -> Option<()> {
        let blocks = self.blocks.borrow();
        blocks.iter().rev().take(count).find_map(|(start, bytes)| {
            let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
            let source = bytes.get(offset..offset.checked_add(buffer.len())?)?;
            buffer.copy_from_slice(source);
            Some(())
        })
    }

    /// Reads the aligned block that contains the range: chains of frames lead downwards in memory,
    /// those of stacks upwards.
    fn read_block(&self, address: u64, length: usize) -> Result<(), ReadError> {
        let end = address.saturating_add(length as u64);
        let around = |size: u64| {
            let start = address & !(size - 1);
            let end = end.saturating_add(size - 1) & !(size - 1);
            let bytes = self
                .behind
                .read_bytes(start, end.saturating_sub(start) as usize)?;
            Ok((start, bytes))
        };
        // Where the block is only partly mapped, the page may be.
        let block = around(BLOCK_BYTES).or_else(|_: ReadError| around(PAGE_BYTES))?;
        self.blocks.borrow_mut().push(block);
        Ok(())
    }
}

impl<M: Memory + ?Sized> Memory for LayeredMemory<'_, M> {
    fn read_exact(&self, address: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        // A chain mostly stays in the newest block.
        if self.read_along(1, address, buffer).is_some()
            || self.snapshot.read_exact(address, buffer).is_ok()
            || self.read_along(MAX_BLOCKS, address, buffer).is_some()
        {
            return Ok(());
        }
        if self.missed.borrow().len() >= FEW_MISSES && buffer.len() as u64 <= PAGE_BYTES {
            if self.is_spent() {
                return Err(ReadError::Unmapped(address));
            }
            self.read_block(address, buffer.len())?;
            return self
                .read_along(1, address, buffer)
                .ok_or(ReadError::Unmapped(address));
        }
        self.missed.borrow_mut().push((address, buffer.len()));
        self.behind.read_exact(address, buffer)
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        let mut places = Vec::new();
        let mut left = Vec::new();
        for (place, request) in requests.iter_mut().enumerate() {
            request.result = self.snapshot.read_exact(request.address, request.buffer);
            if request.result.is_err() {
                places.push(place);
                left.push(ReadRequest {
                    address: request.address,
                    buffer: &mut *request.buffer,
                    result: Ok(()),
                });
            }
        }
        if left.is_empty() {
            return;
        }
        self.behind.read_many(&mut left);
        let results: Vec<_> = left.into_iter().map(|read| read.result).collect();
        for (place, result) in places.into_iter().zip(results) {
            requests[place].result = result;
        }
    }
}

/// Memory with injected read faults, for tests; counts the faults, so that a test can assert that
/// they happened.
#[derive(Debug)]
pub struct FaultyMemory<M> {
    inner: M,
    fail_from: u64,
    fail_to: u64,
    reached: std::cell::Cell<u64>,
}

impl<M: Memory> FaultyMemory<M> {
    /// Reads that touch `from..to` fail.
    pub fn new(inner: M, from: u64, to: u64) -> Self {
        Self {
            inner,
            fail_from: from,
            fail_to: to,
            reached: std::cell::Cell::new(0),
        }
    }

    /// Number of injected faults.
    pub fn reached(&self) -> u64 {
        self.reached.get()
    }
}

impl<M: Memory> Memory for FaultyMemory<M> {
    fn read_exact(&self, address: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        let end = address.saturating_add(buffer.len() as u64);
        if address < self.fail_to && end > self.fail_from {
            self.reached.set(self.reached.get() + 1);
            return Err(ReadError::Unmapped(address));
        }
        self.inner.read_exact(address, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts reads.
    struct Counted(SnapshotMemory, std::cell::Cell<usize>);

    impl Memory for Counted {
        fn read_exact(&self, address: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
            self.1.set(self.1.get() + 1);
            self.0.read_exact(address, buffer)
        }
    }

    #[test]
    fn a_long_chain_takes_few_reads_in_either_direction() {
        const START: u64 = 0x10_3000;
        const WORDS: u64 = 64 << 10;
        let words: Vec<u8> = (0..WORDS).flat_map(u64::to_le_bytes).collect();
        let mut behind = SnapshotMemory::default();
        behind.insert(START, words);
        let counted = Counted(behind, std::cell::Cell::new(0));
        let none = SnapshotMemory::default();
        let layered = LayeredMemory::new(&none, &counted);
        for index in (0..WORDS).chain((0..WORDS).rev()) {
            assert_eq!(layered.read_u64(START + 8 * index), Ok(index));
        }
        assert!(counted.1.get() < 200, "{}", counted.1.get());
        assert_eq!(layered.into_missed().len(), FEW_MISSES);
    }
}
