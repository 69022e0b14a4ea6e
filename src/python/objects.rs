//! Python objects that are read entirely: strings and bytes, bounded.

use super::layout::Layout;
use crate::memory::{Memory, ReadError};

/// Why an object could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It has another type or an invalid field.
    #[error("no such object there")]
    Invalid,
    /// It is longer than the caller allows.
    #[error("longer than allowed")]
    TooLong,
}

/// Reads a `str` in CPython's compact form; invalid characters are replaced. Text beyond
/// `max_bytes` is cut.
///
/// # Errors
/// [`ObjectError`].
pub fn read_str(
    layout: &Layout,
    address: u64,
    max_bytes: usize,
    memory: &dyn Memory,
) -> Result<String, ObjectError> {
    let unicode = &layout.unicode;
    let length = memory.read_u64(address.wrapping_add(unicode.length.into()))?;
    let state = memory.read_u32(address.wrapping_add(unicode.state.into()))?;
    let (kind, compact, ascii) = unicode.form(state);
    if address == 0
        || !compact
        || !matches!(kind, 1 | 2 | 4)
        || (ascii && kind != 1)
        || length > i64::MAX as u64
    {
        return Err(ObjectError::Invalid);
    }
    let width = kind as usize;
    let length = usize::try_from(length)
        .unwrap_or(usize::MAX)
        .min(max_bytes / width);
    let data = if ascii {
        unicode.ascii_data
    } else {
        unicode.compact_data
    };
    let bytes = memory.read_bytes(address.wrapping_add(data.into()), length * width)?;
    Ok(match width {
        1 => bytes.iter().map(|&byte| char::from(byte)).collect(),
        2 => decode(
            bytes
                .chunks_exact(2)
                .map(|unit| u32::from(u16::from_le_bytes([unit[0], unit[1]]))),
        ),
        _ => decode(
            bytes
                .chunks_exact(4)
                .map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]])),
        ),
    })
}

fn decode(points: impl Iterator<Item = u32>) -> String {
    points
        .map(|point| char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect()
}

/// Reads a `bytes`.
///
/// # Errors
/// [`ObjectError::TooLong`] above `max_bytes`: a part of it would have another meaning.
pub fn read_bytes_object(
    layout: &Layout,
    address: u64,
    max_bytes: usize,
    memory: &dyn Memory,
) -> Result<Vec<u8>, ObjectError> {
    let length = read_bytes_length(layout, address, memory)?;
    let length = usize::try_from(length)
        .ok()
        .filter(|&length| length <= max_bytes)
        .ok_or(ObjectError::TooLong)?;
    Ok(memory.read_bytes(address.wrapping_add(layout.bytes.data.into()), length)?)
}

/// `ob_size` of a `bytes` or another variable-sized object.
///
/// # Errors
/// [`ReadError`].
pub fn read_bytes_length(
    layout: &Layout,
    address: u64,
    memory: &dyn Memory,
) -> Result<u64, ReadError> {
    memory.read_u64(address.wrapping_add(layout.bytes.length.into()))
}

/// A field of a structure that was read entirely; zero if the offset is outside of it, which a
/// validated layout excludes.
pub(crate) fn u64_at(bytes: &[u8], offset: u32) -> u64 {
    let field = bytes
        .get(offset as usize..)
        .and_then(<[u8]>::first_chunk::<8>);
    field.map_or(0, |field| u64::from_le_bytes(*field))
}

/// As [`u64_at`].
pub(super) fn u32_at(bytes: &[u8], offset: u32) -> u32 {
    let field = bytes
        .get(offset as usize..)
        .and_then(<[u8]>::first_chunk::<4>);
    field.map_or(0, |field| u32::from_le_bytes(*field))
}

#[cfg(test)]
mod tests {
    use super::super::layout::tables::V3_12;
    use super::*;
    use crate::memory::SnapshotMemory;

    fn string(kind: u32, ascii: bool, length: u64, data: &[u8]) -> SnapshotMemory {
        let state = 1 << 5 | kind << 2 | u32::from(ascii) << 6;
        let mut object = vec![0; if ascii { 40 } else { 56 }];
        object[16..24].copy_from_slice(&length.to_le_bytes());
        object[32..36].copy_from_slice(&state.to_le_bytes());
        object.extend_from_slice(data);
        let mut memory = SnapshotMemory::default();
        memory.insert(0x1000, object);
        memory
    }

    #[test]
    fn every_kind_of_string() {
        let read = |memory: SnapshotMemory, max| read_str(&V3_12, 0x1000, max, &memory);
        assert_eq!(
            read(string(1, true, 5, b"hello"), 100).as_deref(),
            Ok("hello")
        );
        assert_eq!(
            read(string(1, false, 2, b"h\xe9"), 100).as_deref(),
            Ok("hé")
        );
        assert_eq!(
            read(string(2, false, 2, &[0x42, 0, 0x16, 0x04]), 100).as_deref(),
            Ok("BЖ")
        );
        assert_eq!(
            read(string(2, false, 1, &[0, 0xd8]), 100).as_deref(),
            Ok("\u{fffd}")
        );
        assert_eq!(
            read(string(4, false, 1, &[0, 0xf6, 1, 0]), 100).as_deref(),
            Ok("\u{1f600}")
        );
        assert_eq!(read(string(1, true, 5, b"hello"), 3).as_deref(), Ok("hel"));
        assert_eq!(
            read(string(3, false, 1, b"hello"), 9),
            Err(ObjectError::Invalid)
        );
        assert_eq!(
            read(string(1, true, u64::MAX, b"hello"), 9),
            Err(ObjectError::Invalid)
        );
        assert!(matches!(
            read(string(1, true, 9, b"hello"), 9),
            Err(ObjectError::Read(_))
        ));
    }

    #[test]
    fn bytes_are_not_cut() {
        let mut object = vec![0; 32];
        object[16] = 4;
        object.extend_from_slice(b"abcd");
        let mut memory = SnapshotMemory::default();
        memory.insert(0x1000, object);
        assert_eq!(
            read_bytes_object(&V3_12, 0x1000, 4, &memory).as_deref(),
            Ok(&b"abcd"[..])
        );
        assert_eq!(
            read_bytes_object(&V3_12, 0x1000, 3, &memory),
            Err(ObjectError::TooLong)
        );
    }
}
