//! Memory that a walk of Python frames has read. Where all of it is the same later on, so are the
//! frames: a single short read shows it.

use crate::memory::{Memory, ReadError};
use crate::os::clock::monotonic_ns;
use crate::os::resident::ResidentMemory;
use std::cell::RefCell;
use std::io::IoSliceMut;

/// For how long a footprint is of use, ns. Until then a code object that is freed, with another one
/// at its address that has come as far in the same frame, is shown under the old one's name.
const MAX_AGE_NS: u64 = 10_000_000;
/// Ranges that are not further apart are read as one, bytes.
const MAX_GAP: u64 = 512;
/// Most ranges and bytes that are read.
const MAX_SPANS: usize = 64;
const MAX_BYTES: usize = 64 << 10;

/// What was read, and when.
#[derive(Debug, Default)]
pub(super) struct Footprint {
    noted: Vec<Noted>,
    /// The content of all that was noted.
    bytes: Vec<u8>,
    /// Addresses and lengths of what is read to compare; empty before [`Self::seal`].
    spans: Vec<(u64, usize)>,
    /// When it was sealed, CLOCK_MONOTONIC.
    sealed_ns: u64,
    now: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Noted {
    address: u64,
    length: usize,
    /// Where it is in `bytes`, and, once sealed, in what is read.
    then: usize,
    now: usize,
}

impl Footprint {
    pub(super) fn clear(&mut self) {
        self.noted.clear();
        self.bytes.clear();
        self.spans.clear();
    }

    /// Adds what was read at an address.
    pub(super) fn note(&mut self, address: u64, bytes: &[u8]) {
        if self.bytes.len() > MAX_BYTES {
            return;
        }
        self.noted.push(Noted {
            address,
            length: bytes.len(),
            then: self.bytes.len(),
            now: 0,
        });
        self.bytes.extend_from_slice(bytes);
    }

    /// All is noted. What is too much is of no use.
    pub(super) fn seal(&mut self) {
        self.noted.sort_unstable();
        self.spans.clear();
        let (mut total, mut end) = (0, 0);
        for noted in &mut self.noted {
            let to = noted.address.saturating_add(noted.length as u64);
            match self.spans.last_mut() {
                Some((start, length)) if noted.address <= end + MAX_GAP => {
                    noted.now = total - *length + (noted.address - *start) as usize;
                    total -= *length;
                    end = end.max(to);
                    *length = (end - *start) as usize;
                    total += *length;
                }
                _ => {
                    noted.now = total;
                    end = to;
                    self.spans.push((noted.address, noted.length));
                    total += noted.length;
                }
            }
        }
        let is_too_much = total.max(self.bytes.len()) > MAX_BYTES;
        if is_too_much || self.spans.len() > MAX_SPANS {
            return self.clear();
        }
        self.now.resize(total, 0);
        self.sealed_ns = monotonic_ns();
    }

    /// Whether there is one, and all of it is the same now.
    pub(super) fn is_unchanged(&mut self, memory: &ResidentMemory) -> bool {
        if self.spans.is_empty() || monotonic_ns() > self.sealed_ns + MAX_AGE_NS {
            return false;
        }
        let mut addresses = Vec::with_capacity(self.spans.len());
        let mut slices = Vec::with_capacity(self.spans.len());
        let mut rest = &mut self.now[..];
        for &(address, length) in &self.spans {
            let (here, behind) = rest.split_at_mut(length);
            addresses.push(address);
            slices.push(IoSliceMut::new(here));
            rest = behind;
        }
        let read = memory.read_vector(&addresses, &mut slices);
        let is_same = |noted: &Noted| {
            let now = &self.now[noted.now..noted.now + noted.length];
            *now == self.bytes[noted.then..noted.then + noted.length]
        };
        read == Ok(self.now.len()) && self.noted.iter().all(is_same)
    }
}

/// Notes what is read of other memory.
pub(super) struct NotedMemory<'a> {
    behind: &'a dyn Memory,
    footprint: RefCell<&'a mut Footprint>,
}

impl<'a> NotedMemory<'a> {
    pub(super) fn new(behind: &'a dyn Memory, footprint: &'a mut Footprint) -> Self {
        Self {
            behind,
            footprint: RefCell::new(footprint),
        }
    }
}

impl Memory for NotedMemory<'_> {
    fn read_exact(&self, address: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        self.behind.read_exact(address, buffer)?;
        self.footprint.borrow_mut().note(address, buffer);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_has_to_be_the_same_and_nothing_else() {
        let mut words = [7_u64; 400];
        let start = words.as_ptr() as u64;
        let memory = ResidentMemory::new(std::process::id() as i32);
        let mut footprint = Footprint::default();
        let noted = NotedMemory::new(&memory, &mut footprint);
        for index in [391, 0, 2, 390, 2] {
            assert_eq!(noted.read_u64(start + 8 * index), Ok(7));
        }
        assert!(!footprint.is_unchanged(&memory), "it is not sealed");
        footprint.seal();
        assert_eq!(footprint.spans, [(start, 24), (start + 3120, 16)]);
        let mut set = |index: usize, word| {
            words[index] = word;
            std::hint::black_box(&words);
            footprint.is_unchanged(&memory)
        };
        assert!(set(1, 8), "between two words that were read");
        assert!(set(392, 8), "behind the last one");
        for index in [0, 2, 390, 391] {
            assert!(!set(index, 8), "{index}");
            assert!(set(index, 7), "{index}");
        }
        footprint.clear();
        assert!(!footprint.is_unchanged(&memory));
    }
}
