//! Memory that a stack was found in. Where all of it is the same later on, so is the stack: a
//! single short read shows it.

use crate::arch::{Architecture, Machine};
use crate::memory::{Memory, ReadError, SnapshotMemory};
use crate::os::clock::monotonic_ns;
use crate::os::resident::ResidentMemory;
use std::cell::RefCell;
use std::io::IoSliceMut;

/// For how long a footprint of frames alone is of use, ns. Until then a code object that is freed,
/// with another one at its address that has come as far in the same frame, is shown under the old
/// one's name.
const FRAMES_AGE_NS: u64 = 10_000_000;
/// The same of a footprint that holds the code objects, too. Until then a library that is unloaded,
/// with another one at its address, is shown under the old one's name.
const STACK_AGE_NS: u64 = 10_000_000_000;
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
    /// Until when it is of use, CLOCK_MONOTONIC.
    until_ns: u64,
    now: Vec<u8>,
    /// Which stack was found in it.
    stack: u64,
    /// Addresses of words that were read, and that changed while the stack stayed the same; sorted.
    changing: Vec<u64>,
    /// From here on `bytes` are of code objects.
    codes_from: usize,
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

    /// Of a whole stack: the words that were read of `memory`, which notes that, and `codes`, the
    /// code objects of its frames. `stack` tells stacks apart, with the addresses of their frames.
    /// `None` where reads were not noted.
    pub(super) fn of_stack(
        memory: &SnapshotMemory,
        codes: &SnapshotMemory,
        stack: impl FnOnce() -> u64,
    ) -> Option<Self> {
        let reads = memory.reads()?;
        let mut words: Vec<_> = reads.iter().copied().flat_map(words_of).collect();
        words.sort_unstable();
        words.dedup();
        let mut footprint = Self {
            stack: stack(),
            ..Self::default()
        };
        for (address, length) in words {
            footprint.note(address, memory.find(address, length)?);
        }
        footprint.codes_from = footprint.bytes.len();
        for (address, bytes) in codes.ranges() {
            footprint.note(address, bytes);
        }
        footprint.noted.sort_unstable();
        Some(footprint)
    }

    /// Leaves out what has changed since an earlier footprint of the same stack: saved registers
    /// that lead to no frame, mostly. A frame is found by adding a constant to a word, so that a
    /// word that changed while no frame did had no part in it. What identifies code objects stays:
    /// another one may be at the same address.
    pub(super) fn leave_out_changing(&mut self, earlier: &Self) {
        if earlier.stack != self.stack {
            return;
        }
        self.changing.clone_from(&earlier.changing);
        let mut others = earlier.noted.iter().peekable();
        for noted in &self.noted {
            while others
                .next_if(|other| other.address < noted.address)
                .is_some()
            {}
            if let Some(other) = others.peek().filter(|other| other.address == noted.address)
                && other.length == noted.length
                && noted.then < self.codes_from
                && earlier.then(other) != self.then(noted)
            {
                self.changing.push(noted.address);
            }
        }
        self.changing.sort_unstable();
        let (changing, codes_from) = (&self.changing, self.codes_from);
        self.noted.retain(|noted| {
            noted.then >= codes_from || changing.binary_search(&noted.address).is_err()
        });
    }

    fn then(&self, noted: &Noted) -> &[u8] {
        &self.bytes[noted.then..noted.then + noted.length]
    }

    /// All of the stack is noted. Returns whether it is of use: not if that is too much.
    pub(super) fn seal_stack(&mut self) -> bool {
        self.seal_for(STACK_AGE_NS);
        !self.spans.is_empty()
    }

    /// All of the frames is noted. What is too much is of no use.
    pub(super) fn seal(&mut self) {
        self.noted.sort_unstable();
        self.seal_for(FRAMES_AGE_NS);
    }

    fn seal_for(&mut self, age_ns: u64) {
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
        self.until_ns = monotonic_ns() + age_ns;
    }

    /// Whether all of it is the same now. `None` without one, or if it is too old.
    pub(super) fn is_unchanged(&mut self, memory: &ResidentMemory) -> Option<bool> {
        if self.spans.is_empty() || monotonic_ns() > self.until_ns {
            return None;
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
        Some(read == Ok(self.now.len()) && self.noted.iter().all(is_same))
    }
}

/// The words, or parts of words, of a range.
fn words_of((address, length): (u64, usize)) -> impl Iterator<Item = (u64, usize)> {
    let end = address.saturating_add(length as u64);
    let first = address & !(WORD - 1);
    (first..end).step_by(WORD as usize).map(move |word| {
        let start = word.max(address);
        (start, (end.min(word.saturating_add(WORD)) - start) as usize)
    })
}

const WORD: u64 = Machine::POINTER_BYTES;

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

    /// The footprint of a stack in words of our own, of which the first four are read.
    fn of_words(words: &[u64; 8], stack: u64) -> Footprint {
        of_words_and_code(words, stack, &[])
    }

    fn of_words_and_code(words: &[u64; 8], stack: u64, code: &[u64]) -> Footprint {
        let mut codes = SnapshotMemory::default();
        let bytes: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
        if !code.is_empty() {
            codes.insert(code.as_ptr() as u64, bytes);
        }
        let mut memory = SnapshotMemory::default();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        memory.insert(words.as_ptr() as u64, bytes);
        assert!(Footprint::of_stack(&memory, &codes, || stack).is_none());
        memory.note_reads();
        assert!(memory.read_bytes(words.as_ptr() as u64, 32).is_ok());
        assert!(memory.read_u64(words.as_ptr() as u64 + 8).is_ok());
        Footprint::of_stack(&memory, &codes, || stack).unwrap()
    }

    #[test]
    fn another_code_object_at_the_same_address_is_noticed() {
        let (words, mut code) = ([7; 8], [1_u64; 4]);
        let memory = ResidentMemory::new(std::process::id() as i32);
        let first = of_words_and_code(&words, 1, &code);
        code[2] = 2;
        let mut second = of_words_and_code(&words, 1, std::hint::black_box(&code));
        second.leave_out_changing(&first);
        assert!(second.seal_stack());
        assert_eq!(second.is_unchanged(&memory), Some(true));
        code[2] = 3;
        assert_eq!(std::hint::black_box(&code)[2], 3);
        assert_eq!(second.is_unchanged(&memory), Some(false));
    }

    #[test]
    fn what_changes_while_the_stack_does_not_is_left_out() {
        let mut words = [7_u64; 8];
        let memory = ResidentMemory::new(std::process::id() as i32);
        let mut first = of_words(&words, 1);
        assert!(first.seal_stack());
        assert_eq!(first.is_unchanged(&memory), Some(true));
        words[5] = 8;
        assert_eq!(std::hint::black_box(&words)[5], 8);
        assert_eq!(first.is_unchanged(&memory), Some(true), "it was not read");
        words[1] = 8;
        assert_eq!(std::hint::black_box(&words)[1], 8);
        assert_eq!(first.is_unchanged(&memory), Some(false));
        // Another stack, in which this word may be what makes it another.
        let mut other = of_words(&words, 2);
        other.leave_out_changing(&first);
        assert!(other.seal_stack());
        assert_eq!(other.is_unchanged(&memory), Some(true));
        // The same stack.
        let mut second = of_words(&words, 1);
        second.leave_out_changing(&first);
        assert!(second.seal_stack());
        for (index, is_same) in [(1, true), (0, false), (3, false)] {
            let before = std::mem::replace(&mut words[index], 9);
            assert_eq!(std::hint::black_box(&words)[index], 9);
            assert_eq!(second.is_unchanged(&memory), Some(is_same), "word {index}");
            assert_eq!(other.is_unchanged(&memory), Some(false), "word {index}");
            words[index] = before;
        }
        // What was left out stays so, although it does not change now.
        let mut third = of_words(&words, 1);
        third.leave_out_changing(&second);
        assert!(third.seal_stack());
        words[1] = 10;
        assert_eq!(std::hint::black_box(&words)[1], 10);
        assert_eq!(third.is_unchanged(&memory), Some(true));
    }

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
        assert_eq!(footprint.is_unchanged(&memory), None, "it is not sealed");
        footprint.seal();
        assert_eq!(footprint.spans, [(start, 24), (start + 3120, 16)]);
        let mut set = |index: usize, word| {
            words[index] = word;
            std::hint::black_box(&words);
            footprint.is_unchanged(&memory) == Some(true)
        };
        assert!(set(1, 8), "between two words that were read");
        assert!(set(392, 8), "behind the last one");
        for index in [0, 2, 390, 391] {
            assert!(!set(index, 8), "{index}");
            assert!(set(index, 7), "{index}");
        }
        footprint.clear();
        assert_eq!(footprint.is_unchanged(&memory), None);
    }
}
