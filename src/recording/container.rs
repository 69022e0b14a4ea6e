//! The file around the format: what every version, also a future one, starts with, and where
//! segments begin and end.
//!
//! ```text
//! head:    "TORCHSPY"  version u32  length u32  crc32 u32 of all this and the block   block
//! segment: marker (8)  sequence u64  kind u32  length u32  raw length u32
//!          crc32 u32 of the payload  crc32 u32 of all this                            payload
//! ```
//!
//! Integers are little-endian. A segment that is damaged is passed over: the next marker is looked
//! for.

use super::format_v1::{Corrupt, MAX_PAYLOAD};
use std::io::{self, Read};

/// What a recording starts with, in every version.
pub(super) const MAGIC: [u8; 8] = *b"TORCHSPY";

/// The version that is written: 2 has tables of `nn.Module`s, counters of progress and conditions
/// at the end of a segment, and frames of another kind.
pub(super) const VERSION: u32 = 2;

/// The first version that is read.
pub(super) const OLDEST_VERSION: u32 = 1;

/// Length of the head without its block.
pub(super) const HEAD_LENGTH: usize = 20;

/// Longest header block that is believed: it holds a command line and some notes.
const MAX_BLOCK: usize = 4 << 20;

/// What a segment starts with: no text, no UTF-8, unlikely in compressed data.
const MARKER: [u8; 8] = *b"\xF5TSEG\r\n\x1A";

/// Length of a segment's head.
pub(super) const SEGMENT_HEAD_LENGTH: usize = 36;

/// A segment of samples with its tables. Segments of other kinds are passed over.
pub(super) const KIND_SAMPLES: u32 = 1;

/// The head of a file, with its block.
pub(super) fn head(block: &[u8]) -> Result<Vec<u8>, Corrupt> {
    if block.len() > MAX_BLOCK {
        return Err(Corrupt("the header is too large"));
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((block.len() as u32).to_le_bytes());
    let checksum = head_checksum(&bytes, block);
    bytes.extend(checksum.to_le_bytes());
    bytes.extend_from_slice(block);
    Ok(bytes)
}

fn head_checksum(fields: &[u8], block: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(fields);
    hasher.update(block);
    hasher.finalize()
}

/// Writes a segment's head into the room left for it at the start of `bytes`; its payload is the
/// rest of `bytes`.
pub(super) fn fill_segment_head(bytes: &mut [u8], sequence: u64, raw_length: usize) {
    let Some((head, payload)) = bytes.split_first_chunk_mut::<SEGMENT_HEAD_LENGTH>() else {
        return;
    };
    head[..8].copy_from_slice(&MARKER);
    head[8..16].copy_from_slice(&sequence.to_le_bytes());
    head[16..20].copy_from_slice(&KIND_SAMPLES.to_le_bytes());
    head[20..24].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    head[24..28].copy_from_slice(&(raw_length as u32).to_le_bytes());
    head[28..32].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
    let checksum = crc32fast::hash(&head[..32]);
    head[32..].copy_from_slice(&checksum.to_le_bytes());
}

struct SegmentHead {
    sequence: u64,
    kind: u32,
    length: usize,
    raw_length: usize,
    checksum: u32,
}

impl SegmentHead {
    /// The head in `bytes`, if it is complete and valid.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let head = bytes.get(..SEGMENT_HEAD_LENGTH)?;
        let word = |at: usize| u32_at(head, at);
        if head[..8] != MARKER || word(32) != crc32fast::hash(&head[..32]) {
            return None;
        }
        let length = word(20) as usize;
        (length <= MAX_PAYLOAD).then(|| Self {
            sequence: u64::from(word(8)) | u64::from(word(12)) << 32,
            kind: word(16),
            length,
            raw_length: word(24) as usize,
            checksum: word(28),
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk::<4>())
        .map_or(0, |word| u32::from_le_bytes(*word))
}

/// What was found at the start of a file.
pub(super) enum Head {
    Empty,
    /// Another file; its first bytes.
    Foreign(Vec<u8>),
    /// Starts as a recording, but is cut or damaged.
    Damaged,
    Recording {
        version: u32,
        block: Vec<u8>,
    },
}

/// What was found next.
pub(super) enum Found<'a> {
    /// A segment whose checksums are right.
    Segment {
        sequence: u64,
        kind: u32,
        payload: &'a [u8],
        raw_length: usize,
    },
    /// Bytes that are not a complete segment, up to the next one or the end. `cut`: the file ends
    /// within a segment.
    Damage {
        cut: bool,
    },
    End,
}

/// Reads a recording's pieces from a file or bytes; keeps one segment in memory at a time.
pub(super) struct Scanner<R> {
    source: R,
    buffer: Vec<u8>,
    position: usize,
    ended: bool,
    /// Bytes that may still be checksummed in vain: segments that overlap must not cost more than
    /// the file is long.
    vain: usize,
}

const READ_AHEAD: usize = 256 << 10;

impl<R: Read> Scanner<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            source,
            buffer: Vec::new(),
            position: 0,
            ended: false,
            vain: MAX_PAYLOAD,
        }
    }

    /// Unread bytes, at least `wanted` of them unless the file ends before.
    fn peek(&mut self, wanted: usize) -> io::Result<&[u8]> {
        let have = self.buffer.len() - self.position;
        if have < wanted && !self.ended {
            self.buffer.drain(..self.position);
            self.position = 0;
            let missing = (wanted - have).max(READ_AHEAD);
            let read = (&mut self.source)
                .take(missing as u64)
                .read_to_end(&mut self.buffer)?;
            self.vain = self.vain.saturating_add(read);
            self.ended = read < missing;
        }
        Ok(&self.buffer[self.position..])
    }

    fn advance(&mut self, bytes: usize) {
        self.position = (self.position + bytes).min(self.buffer.len());
    }

    /// The head of the file, to be called first.
    pub(super) fn head(&mut self) -> io::Result<Head> {
        let bytes = self.peek(HEAD_LENGTH)?;
        if bytes.is_empty() {
            return Ok(Head::Empty);
        }
        let compared = bytes.len().min(MAGIC.len());
        if bytes[..compared] != MAGIC[..compared] {
            return Ok(Head::Foreign(bytes[..bytes.len().min(64)].to_vec()));
        }
        let length = u32_at(bytes, 12) as usize;
        if bytes.len() < HEAD_LENGTH || length > MAX_BLOCK {
            return Ok(Head::Damaged);
        }
        let bytes = self.peek(HEAD_LENGTH + length)?;
        let Some(block) = bytes.get(HEAD_LENGTH..HEAD_LENGTH + length) else {
            return Ok(Head::Damaged);
        };
        if head_checksum(&bytes[..16], block) != u32_at(bytes, 16) {
            return Ok(Head::Damaged);
        }
        let (version, block) = (u32_at(bytes, 8), block.to_vec());
        self.advance(HEAD_LENGTH + length);
        Ok(Head::Recording { version, block })
    }

    /// The next segment, or the damage in its position.
    pub(super) fn next(&mut self) -> io::Result<Found<'_>> {
        if self.peek(1)?.is_empty() {
            return Ok(Found::End);
        }
        let bytes = self.peek(SEGMENT_HEAD_LENGTH)?;
        let Some(head) = SegmentHead::parse(bytes) else {
            let short = bytes.len() < SEGMENT_HEAD_LENGTH;
            return self.resynchronize(short);
        };
        let whole = SEGMENT_HEAD_LENGTH + head.length;
        let payload = self.peek(whole)?.get(SEGMENT_HEAD_LENGTH..whole);
        if payload.is_none_or(|payload| crc32fast::hash(payload) != head.checksum) {
            // A payload that was cut may hold the start of the segment after it, so its length is
            // not believed, as long as that does not become a way to make readers work for nothing.
            let short = payload.is_none();
            if self.vain < whole {
                self.advance(whole);
                return Ok(Found::Damage { cut: short });
            }
            self.vain -= whole;
            return self.resynchronize(short);
        }
        let start = self.position + SEGMENT_HEAD_LENGTH;
        self.advance(whole);
        Ok(Found::Segment {
            sequence: head.sequence,
            kind: head.kind,
            payload: &self.buffer[start..start + head.length],
            raw_length: head.raw_length,
        })
    }

    /// Skips a byte or more, up to the next marker or the end. `short`: what is here wants more
    /// bytes than follow.
    fn resynchronize(&mut self, short: bool) -> io::Result<Found<'_>> {
        self.advance(1);
        loop {
            let bytes = self.peek(READ_AHEAD)?;
            if bytes.len() < MARKER.len() {
                let length = bytes.len();
                self.advance(length);
                return Ok(Found::Damage { cut: short });
            }
            match find_marker(bytes) {
                Some(at) => {
                    self.advance(at);
                    return Ok(Found::Damage { cut: false });
                }
                None => {
                    let searched = bytes.len() - (MARKER.len() - 1);
                    self.advance(searched);
                }
            }
        }
    }
}

fn find_marker(bytes: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|&byte| byte == MARKER[0]) {
        let at = from + at;
        if bytes[at..].starts_with(&MARKER) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}
