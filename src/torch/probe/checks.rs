//! Words of memory that tell whether something is still what it was.

use crate::memory::{Memory, ReadError, ReadRequest};

/// The most bytes of one check.
pub(super) const MAX_BYTES: usize = 32;

/// A few bytes, and what they were.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check {
    address: u64,
    length: usize,
    expected: [u8; MAX_BYTES],
}

impl Check {
    /// What `length` bytes are now; at most [`MAX_BYTES`].
    pub(super) fn take(
        address: u64,
        length: usize,
        memory: &dyn Memory,
    ) -> Result<Self, ReadError> {
        let mut expected = [0; MAX_BYTES];
        let length = length.min(MAX_BYTES);
        memory.read_exact(address, &mut expected[..length])?;
        Ok(Self {
            address,
            length,
            expected,
        })
    }

    /// A word that may be anything: it is read for its own sake.
    pub(super) fn word(address: u64) -> Self {
        Self {
            address,
            length: 8,
            expected: [0; MAX_BYTES],
        }
    }

    /// Whether the bytes are what they were.
    pub(super) fn holds(&self, memory: &dyn Memory) -> bool {
        Self::take(self.address, self.length, memory).is_ok_and(|now| now.expected == self.expected)
    }
}

/// What the bytes of checks are now, by one vectored read.
pub(super) struct Answers<'c> {
    checks: &'c [Check],
    bytes: Vec<Option<[u8; MAX_BYTES]>>,
}

impl<'c> Answers<'c> {
    pub(super) fn read(checks: &'c [Check], memory: &dyn Memory) -> Self {
        let mut buffers = vec![[0; MAX_BYTES]; checks.len()];
        let mut requests: Vec<ReadRequest<'_>> = checks
            .iter()
            .zip(&mut buffers)
            .map(|(check, buffer)| ReadRequest {
                address: check.address,
                buffer: &mut buffer[..check.length],
                result: Ok(()),
            })
            .collect();
        memory.read_many(&mut requests);
        let came: Vec<bool> = requests
            .iter()
            .map(|request| request.result.is_ok())
            .collect();
        let bytes = came
            .into_iter()
            .zip(buffers)
            .map(|(came, buffer)| came.then_some(buffer))
            .collect();
        Self { checks, bytes }
    }

    /// Whether all checks of a range hold.
    pub(super) fn all_hold(&self, range: std::ops::Range<usize>) -> bool {
        let checks = self.checks.get(range.clone()).unwrap_or(&[]);
        let bytes = self.bytes.get(range).unwrap_or(&[]);
        checks
            .iter()
            .zip(bytes)
            .all(|(check, bytes)| *bytes == Some(check.expected))
    }

    /// The word that was read by one check.
    pub(super) fn word_at(&self, index: usize) -> Option<u64> {
        let bytes = self.bytes.get(index)?.as_ref()?;
        Some(u64::from_le_bytes(*bytes.first_chunk()?))
    }
}
