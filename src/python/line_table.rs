//! Line tables of code objects: from an instruction to its source line.
//!
//! Sources: Objects/lnotab_notes.txt (3.10) and InternalDocs/code_objects.md, before 3.14
//! Objects/locations.md (3.11 on), in <https://github.com/python/cpython>. The bytes come from the
//! target: any bytes give some ranges, and the work is bounded by their length.

use crate::model::code::PythonVersion;

/// Instructions `start..end`, as byte offsets into the bytecode, and their line; `None` if the
/// table has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineRange {
    /// First byte.
    pub start: u32,
    /// First byte after it.
    pub end: u32,
    /// The line. A module's first instruction has line 0.
    pub line: Option<u32>,
}

/// The ranges of a line table, in the order of the bytecode.
pub fn ranges(version: PythonVersion, table: &[u8], first_line: u32) -> Ranges<'_> {
    Ranges {
        table,
        locations: version >= PythonVersion::new(3, 11),
        at: 0,
        line: i64::from(first_line),
    }
}

/// The line of the instruction at a byte offset; `None` if the table has none, or ends before it.
pub fn line_for(
    version: PythonVersion,
    table: &[u8],
    first_line: u32,
    instruction: u32,
) -> Option<u32> {
    let range = ranges(version, table, first_line).find(|range| instruction < range.end)?;
    range.line
}

/// Iterates over the ranges of a line table.
#[derive(Clone, Debug)]
pub struct Ranges<'a> {
    table: &'a [u8],
    locations: bool,
    at: u32,
    line: i64,
}

impl Iterator for Ranges<'_> {
    type Item = LineRange;

    fn next(&mut self) -> Option<LineRange> {
        let (length, has_line) = match self.locations {
            true => self.location()?,
            false => self.pair()?,
        };
        let start = self.at;
        self.at = self.at.checked_add(length)?;
        Some(LineRange {
            start,
            end: self.at,
            line: u32::try_from(self.line).ok().filter(|_| has_line),
        })
    }
}

impl Ranges<'_> {
    /// 3.10: a number of bytes of bytecode, and the distance in lines; -128: no line.
    fn pair(&mut self) -> Option<(u32, bool)> {
        let (&[length, delta], rest) = self.table.split_first_chunk::<2>()?;
        self.table = rest;
        let delta = delta as i8;
        if delta != i8::MIN {
            self.line = self.line.saturating_add(delta.into());
        }
        Some((length.into(), delta != i8::MIN))
    }

    /// 3.11 on: a byte with its highest bit set, a code in bits 3 to 6 and a length less one, in
    /// code units of two bytes, in bits 0 to 2; then bytes with the highest bit clear.
    fn location(&mut self) -> Option<(u32, bool)> {
        let (&head, rest) = self.table.split_first()?;
        let length = (u32::from(head & 7) + 1) * 2;
        let delta = match head >> 3 & 15 {
            // No location.
            15 => None,
            // With columns, or without.
            14 | 13 => Some(signed_varint(rest)),
            // One line, with columns; the distance in lines is in the code.
            code @ 10..=12 => Some(i64::from(code) - 10),
            // Columns only.
            _ => Some(0),
        };
        let end = rest
            .iter()
            .position(|byte| byte & 0x80 != 0)
            .unwrap_or(rest.len());
        self.table = rest.get(end..).unwrap_or_default();
        self.line = self.line.saturating_add(delta.unwrap_or(0));
        Some((length, delta.is_some()))
    }
}

/// Six bits per byte, the lowest first; bit 6 means that more follow. The lowest bit of the number
/// is the sign.
fn signed_varint(bytes: &[u8]) -> i64 {
    let mut value = 0_u64;
    for (index, &byte) in bytes.iter().take(6).enumerate() {
        value |= u64::from(byte & 63) << (6 * index);
        if byte & 64 == 0 {
            break;
        }
    }
    let magnitude = (value >> 1) as i64;
    if value & 1 == 1 {
        -magnitude
    } else {
        magnitude
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pairs_of_3_10() {
        let version = PythonVersion::new(3, 10);
        // The example of Objects/lnotab_notes.txt, without its columns: no line, then forward, then
        // back.
        let table = [6, 1, 4, 0x80, 2, 2, 50, 0xff];
        let lines = |at| line_for(version, &table, 10, at);
        assert_eq!(
            [lines(0), lines(4), lines(6), lines(10), lines(12)],
            [Some(11), Some(11), None, Some(13), Some(12)]
        );
        assert_eq!(lines(62), None);
    }

    #[test]
    fn locations_of_3_11() {
        let version = PythonVersion::new(3, 11);
        // Columns only, 2 units; one line on; none; long form, 3 lines back.
        let table = [
            0x80 | 1,
            0x12,
            0x80 | 11 << 3,
            1,
            2,
            0x80 | 15 << 3,
            0x80 | 14 << 3,
            7,
            0,
            1,
            1,
        ];
        let lines: Vec<_> = ranges(version, &table, 10).collect();
        let expected = [
            (0, 4, Some(10)),
            (4, 6, Some(11)),
            (6, 8, None),
            (8, 10, Some(8)),
        ];
        let expected = expected.map(|(start, end, line)| LineRange { start, end, line });
        assert_eq!(lines, expected);
    }

    proptest! {
        #[test]
        fn any_bytes_give_bounded_ranges(
            table in prop::collection::vec(any::<u8>(), 0..400),
            first in any::<u32>(),
            at in any::<u32>(),
            minor in 10_u8..=15,
        ) {
            let version = PythonVersion::new(3, minor);
            let all: Vec<_> = ranges(version, &table, first).collect();
            prop_assert!(all.len() <= table.len());
            prop_assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start));
            let found = all.iter().find(|range| at < range.end).and_then(|range| range.line);
            prop_assert_eq!(line_for(version, &table, first, at), found);
        }
    }
}
