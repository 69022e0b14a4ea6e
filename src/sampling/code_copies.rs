//! Copies code objects together with the stack that refers to them: a code object that runs once,
//! such as a module's at its import, is freed right afterwards.

use super::capture::Buffers;
use super::raw::RawSample;
use crate::arch::{Architecture, Machine};
use crate::memory::{Memory, ReadRequest, SnapshotMemory};
use crate::os::resident::ResidentMemory;
use crate::python::code_fields::{CodeFields, CodePart};
use crate::python::discover::Interpreter;
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::Hasher;

/// New code objects that are copied while their thread is stopped: three reads of some 5 us. The
/// others are copied after it was resumed.
const MAX_WHILE_STOPPED: usize = 32;
/// Maximum number of new code objects copied per stack.
const MAX_NEW: usize = 1024;
/// Bytes that are copied of a part of unknown length, up to the end of its page: covers nearly all
/// names, paths and line tables.
const LIKELY_BYTES: usize = 512;
/// Maximum bytes of one part, and of all parts of one copy.
const MAX_PART_BYTES: usize = 64 << 10;
const MAX_COPY_BYTES: usize = 512 << 10;
/// Maximum number of code objects that are remembered: 2 MB.
const MAX_SEEN: usize = 1 << 17;
const PAGE: u64 = Machine::PAGE_BYTES;

/// After this many successive copies that found the same code object at an address, it is assumed
/// to be permanent.
const STAYS: u8 = 16;

/// Which code objects of a process were copied, by address.
#[derive(Debug, Default)]
pub(super) struct CodeCopies {
    seen: FxHashMap<u64, Copied>,
}

/// What was last copied from an address.
#[derive(Clone, Copy, Debug, Default)]
struct Copied {
    /// Of the fields that stay the same while the code object lives.
    digest: u64,
    /// The address was reused for another code object: this many more copies are made while the
    /// thread is stopped.
    reused: u8,
}

impl CodeCopies {
    /// Another program runs, or its interpreter was found.
    pub(super) fn forget(&mut self) {
        self.seen.clear();
    }

    /// Copies the code objects of `sample` that are new, or whose addresses have been reused. The
    /// thread is stopped, so their number is limited.
    pub(super) fn copy_new(
        &mut self,
        interpreter: &Interpreter,
        memory: &ResidentMemory,
        buffers: &mut Buffers,
        sample: &mut RawSample,
    ) {
        let mut new = Vec::new();
        let mut last = 0;
        for frame in &sample.python.frames {
            let code = frame.code_address;
            // Recursion repeats code objects.
            if std::mem::replace(&mut last, code) == code {
                continue;
            }
            let stays = self.seen.get(&code).is_some_and(|seen| seen.reused == 0);
            if stays || new.contains(&code) {
                continue;
            }
            new.push(code);
            if new.len() == MAX_WHILE_STOPPED {
                break;
            }
        }
        if !new.is_empty() {
            self.copy(interpreter, memory, buffers, &new, &mut sample.codes);
        }
    }

    /// Copies the identifying fields of the known code objects, and all fields of those that have
    /// changed or were skipped. Called right after the thread was resumed, or was read without a
    /// stop.
    pub(super) fn copy_rest(
        &mut self,
        interpreter: &Interpreter,
        memory: &ResidentMemory,
        buffers: &mut Buffers,
        sample: &mut RawSample,
    ) {
        let fields = CodeFields::of(interpreter);
        let mut codes: Vec<u64> = Vec::new();
        let frames = &sample.python.frames;
        codes.extend(frames.iter().map(|frame| frame.code_address));
        codes.sort_unstable();
        codes.dedup();
        codes.retain(|&code| !fields.is_copied(code, &sample.codes));
        let wanted: Vec<_> = codes.iter().map(|&code| fields.identity(code)).collect();
        let mut other = Vec::new();
        for (code, (address, length), bytes) in read(memory, buffers, &codes, &wanted) {
            let known = self.seen.get(&code);
            if known.is_some_and(|known| known.digest == digest(&bytes[..length])) {
                sample.codes.insert_part(address, bytes, length);
            } else {
                buffers.put_back(bytes);
                other.push(code);
            }
        }
        other.truncate(MAX_NEW);
        for some in other.chunks(MAX_WHILE_STOPPED) {
            self.copy(interpreter, memory, buffers, some, &mut sample.codes);
        }
    }

    /// Copies code objects with all that they point to, in one or two reads.
    fn copy(
        &mut self,
        interpreter: &Interpreter,
        memory: &ResidentMemory,
        buffers: &mut Buffers,
        codes: &[u64],
        copies: &mut SnapshotMemory,
    ) {
        let fields = CodeFields::of(interpreter);
        let heads: Vec<_> = codes.iter().map(|&code| fields.head(code)).collect();
        let (mut parts, mut ranges) = (Vec::<CodePart>::new(), Vec::new());
        if self.seen.len() >= MAX_SEEN {
            self.seen.clear();
        }
        for (code, (address, length), bytes) in read(memory, buffers, codes, &heads) {
            let head = &bytes[..length];
            for part in fields.parts(head) {
                if !parts.iter().any(|known| known.address == part.address) {
                    ranges.push((part.address, likely_length(part)));
                    parts.push(part);
                }
            }
            self.take_in(code, digest(fields.identity_in(head)));
            copies.insert_part(address, bytes, length);
        }
        let (mut longer, mut lengths) = (Vec::new(), Vec::new());
        let mut left = MAX_COPY_BYTES;
        for (part, (address, length), bytes) in read(memory, buffers, &parts, &ranges) {
            let full = fields.length(part, &bytes[..length]);
            if full > length && full <= MAX_PART_BYTES.min(left) {
                left -= full;
                longer.push(part);
                lengths.push((address, full));
                buffers.put_back(bytes);
            } else {
                copies.insert_part(address, bytes, length);
            }
        }
        for (_, (address, length), bytes) in read(memory, buffers, &longer, &lengths) {
            copies.insert_part(address, bytes, length);
        }
    }
}

impl CodeCopies {
    fn take_in(&mut self, code: u64, digest: u64) {
        let known = self.seen.get(&code).copied();
        let reused = match known {
            None => 0,
            Some(known) if known.digest == digest => known.reused.saturating_sub(1),
            Some(_) => STAYS,
        };
        self.seen.insert(code, Copied { digest, reused });
    }
}

/// Up to the end of the page: the next page may not be mapped, and a vectored read ends at the
/// first page that is not.
fn likely_length(part: CodePart) -> usize {
    let in_page = (PAGE - part.address % PAGE) as usize;
    LIKELY_BYTES.min(in_page).max(part.header)
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

/// Reads `ranges` (address and length), each for the item of `of` with the same index, in as few
/// system calls as possible. Ranges that are not mapped are skipped.
fn read<T: Copy>(
    memory: &ResidentMemory,
    buffers: &mut Buffers,
    of: &[T],
    ranges: &[(u64, usize)],
) -> Vec<(T, (u64, usize), Vec<u8>)> {
    let mut pieces: Vec<Vec<u8>> = ranges
        .iter()
        .map(|&(_, length)| buffers.take(length))
        .collect();
    let mut requests: Vec<ReadRequest<'_>> = ranges
        .iter()
        .zip(&mut pieces)
        .map(|(&(address, length), piece)| ReadRequest {
            address,
            buffer: &mut piece[..length],
            result: Ok(()),
        })
        .collect();
    memory.read_many(&mut requests);
    let is_read: Vec<bool> = requests
        .iter()
        .map(|request| request.result.is_ok())
        .collect();
    let mut found = Vec::with_capacity(ranges.len());
    for (((&of, &range), piece), is_read) in of.iter().zip(ranges).zip(pieces).zip(is_read) {
        match is_read {
            true => found.push((of, range, piece)),
            false => buffers.put_back(piece),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_was_used_again_is_copied_until_it_stays() {
        let mut copies = CodeCopies::default();
        copies.take_in(8, 1);
        assert_eq!(copies.seen[&8].reused, 0);
        copies.take_in(8, 2);
        assert_eq!(copies.seen[&8].reused, STAYS);
        for _ in 0..STAYS {
            copies.take_in(8, 2);
        }
        assert_eq!(copies.seen[&8].reused, 0);
    }

    #[test]
    fn what_cannot_be_read_does_not_cost_the_others() {
        let memory = ResidentMemory::new(std::process::id() as i32);
        let words = [1_u64, 2, 3];
        let address = words.as_ptr() as u64;
        let ranges = [
            (address, 8),
            (16, 8),
            (address + 8, 8),
            (24, 8),
            (address + 16, 8),
        ];
        let found = read(&memory, &mut Buffers::default(), &[0, 1, 2, 3, 4], &ranges);
        let of: Vec<(i32, u8)> = found.iter().map(|(of, _, bytes)| (*of, bytes[0])).collect();
        assert_eq!(of, [(0, 1), (2, 2), (4, 3)]);
    }
}
