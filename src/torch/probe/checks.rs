//! Checks of a few bytes of memory: whether an object is unchanged.

use crate::memory::{Memory, ReadError, ReadRequest};
use rustc_hash::FxHasher;
use std::hash::Hasher;

/// Maximum number of bytes of a check.
pub(super) const MAX_BYTES: usize = 4096;

/// A range of bytes, and its expected content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check {
    address: u64,
    length: u32,
    /// The bytes themselves up to a word, else their hash.
    expected: u64,
}

impl Check {
    /// A check that expects the present content of `length` bytes; at most [`MAX_BYTES`].
    pub(super) fn take(
        address: u64,
        length: usize,
        memory: &dyn Memory,
    ) -> Result<Self, ReadError> {
        let length = length.min(MAX_BYTES);
        let bytes = memory.read_bytes(address, length)?;
        Ok(Self {
            address,
            length: length as u32,
            expected: digest(&bytes),
        })
    }

    /// A word that may have any value: only its value is read.
    pub(super) fn word(address: u64) -> Self {
        Self {
            address,
            length: 8,
            expected: 0,
        }
    }

    /// Whether the bytes are unchanged.
    pub(super) fn holds(&self, memory: &dyn Memory) -> bool {
        Self::take(self.address, self.length as usize, memory)
            .is_ok_and(|now| now.expected == self.expected)
    }
}

fn digest(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    if let Some(start) = word.get_mut(..bytes.len()) {
        start.copy_from_slice(bytes);
        return u64::from_le_bytes(word);
    }
    let mut hasher = FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

/// The present content of checks, from one vectored read.
pub(super) struct Answers<'c> {
    checks: &'c [Check],
    now: Vec<Option<u64>>,
    is_gone: bool,
}

impl<'c> Answers<'c> {
    pub(super) fn read(checks: &'c [Check], memory: &dyn Memory) -> Self {
        let total = checks.iter().map(|check| check.length as usize).sum();
        let mut bytes = vec![0; total];
        let mut rest: &mut [u8] = &mut bytes;
        let mut requests: Vec<ReadRequest<'_>> = Vec::with_capacity(checks.len());
        for check in checks {
            let (buffer, after) = std::mem::take(&mut rest).split_at_mut(check.length as usize);
            rest = after;
            requests.push(ReadRequest {
                address: check.address,
                buffer,
                result: Ok(()),
            });
        }
        memory.read_many(&mut requests);
        let now = requests
            .iter()
            .map(|request| request.result.is_ok().then(|| digest(request.buffer)))
            .collect();
        let is_gone = requests
            .iter()
            .any(|request| request.result == Err(ReadError::Gone));
        Self {
            checks,
            now,
            is_gone,
        }
    }

    /// Whether the process has ended.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Whether all checks of a range hold.
    pub(super) fn all_hold(&self, range: std::ops::Range<usize>) -> bool {
        let checks = self.checks.get(range.clone()).unwrap_or(&[]);
        let now = self.now.get(range).unwrap_or(&[]);
        checks
            .iter()
            .zip(now)
            .all(|(check, now)| *now == Some(check.expected))
    }

    /// The word that a check has read.
    pub(super) fn word_at(&self, index: usize) -> Option<u64> {
        self.now.get(index).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SnapshotMemory;

    fn memory(bytes: &[u8]) -> SnapshotMemory {
        let mut memory = SnapshotMemory::default();
        memory.insert(0x1000, bytes.to_vec());
        memory
    }

    #[test]
    fn a_byte_that_changed_is_noticed_wherever_it_is() {
        for length in [1_usize, 7, 8, 9, 16, 17, 32, 100, 3000] {
            let before = vec![0x5a; length];
            let check = Check::take(0x1000, length, &memory(&before)).unwrap();
            assert!(check.holds(&memory(&before)));
            for at in 0..length {
                let mut after = before.clone();
                after[at] ^= 1;
                assert!(!check.holds(&memory(&after)), "{at} of {length}");
            }
        }
    }

    #[test]
    fn each_check_has_its_own_answer() {
        let memory = memory(&(0..64).collect::<Vec<u8>>());
        let take = |address, length| Check::take(address, length, &memory).unwrap();
        let gone = Check::word(0x9000);
        let checks = [take(0x1000, 40), gone, take(0x1008, 8), Check::word(0x1010)];
        let answers = Answers::read(&checks, &memory);
        assert!(answers.all_hold(0..1) && answers.all_hold(2..3));
        assert!(!answers.all_hold(0..2));
        assert_eq!(answers.word_at(1), None);
        assert_eq!(answers.word_at(3), Some(0x1716_1514_1312_1110));
        assert_eq!(answers.word_at(4), None);
    }
}
