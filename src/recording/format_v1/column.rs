//! One field of many rows, as a run of variable-length integers or of strings that share prefixes.
//!
//! Columns of like values, written as differences, are what zstd compresses best; and a reader that
//! takes them one value at a time allocates nothing that the bytes themselves do not pay for.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why bytes are no segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Corrupt(pub(crate) &'static str);

/// Longest string that a recording holds, bytes: C++ names of templates reach tens of kilobytes.
pub(crate) const MAX_TEXT: usize = 64 << 10;

/// Most bytes that the strings of one column may take together. Shared prefixes make text longer
/// than its bytes.
pub(crate) const MAX_COLUMN_TEXT: usize = 16 << 20;

/// A column being written.
#[derive(Debug, Default)]
pub(crate) struct ColumnWriter {
    bytes: Vec<u8>,
    previous: u64,
}

impl ColumnWriter {
    /// Appends `value` as LEB128.
    pub(crate) fn put(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// Appends the difference `value - base`, which may wrap, small ones of either sign in few
    /// bytes.
    pub(crate) fn put_difference(&mut self, value: u64, base: u64) {
        let difference = value.wrapping_sub(base) as i64;
        self.put(((difference << 1) ^ (difference >> 63)) as u64);
    }

    /// Appends the difference to the value before.
    pub(crate) fn put_delta(&mut self, value: u64) {
        self.put_difference(value, self.previous);
        self.previous = value;
    }

    /// Appends `value` as eight bytes.
    pub(crate) fn put_fixed(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends one byte.
    pub(crate) fn put_byte(&mut self, value: u8) {
        self.bytes.push(value);
    }

    fn put_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends `row` in postcard's encoding.
    pub(crate) fn put_row(&mut self, row: &impl Serialize) -> Result<(), Corrupt> {
        self.bytes = postcard::to_extend(row, std::mem::take(&mut self.bytes))
            .map_err(|_| Corrupt("a row cannot be written"))?;
        Ok(())
    }

    pub(crate) fn length(&self) -> usize {
        self.bytes.len()
    }
}

impl Serialize for ColumnWriter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.bytes)
    }
}

/// A column being read. It borrows the segment's bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ColumnReader<'a> {
    bytes: &'a [u8],
    previous: u64,
}

impl<'de: 'a, 'a> Deserialize<'de> for ColumnReader<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = <&'a [u8]>::deserialize(deserializer)?;
        Ok(Self { bytes, previous: 0 })
    }
}

impl<'a> ColumnReader<'a> {
    /// The next value.
    pub(crate) fn get(&mut self) -> Result<u64, Corrupt> {
        let mut value = 0_u64;
        for (index, &byte) in self.bytes.iter().take(10).enumerate() {
            let bits = u64::from(byte & 0x7f);
            if index == 9 && bits > 1 {
                return Err(Corrupt("a number is too long"));
            }
            value |= bits << (7 * index);
            if byte < 0x80 {
                self.bytes = &self.bytes[index + 1..];
                return Ok(value);
            }
        }
        Err(Corrupt("a column ends too early"))
    }

    /// The next value, which must fit.
    pub(crate) fn get_as<T: TryFrom<u64>>(&mut self) -> Result<T, Corrupt> {
        T::try_from(self.get()?).map_err(|_| Corrupt("a number is out of range"))
    }

    /// The next value, written as a difference to `base`.
    pub(crate) fn get_difference(&mut self, base: u64) -> Result<u64, Corrupt> {
        let zigzag = self.get()?;
        let difference = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        Ok(base.wrapping_add(difference as u64))
    }

    /// The next value, written as a difference to the one before.
    pub(crate) fn get_delta(&mut self) -> Result<u64, Corrupt> {
        self.previous = self.get_difference(self.previous)?;
        Ok(self.previous)
    }

    /// The next difference to the value before; the result must fit.
    pub(crate) fn get_delta_as<T: TryFrom<u64>>(&mut self) -> Result<T, Corrupt> {
        T::try_from(self.get_delta()?).map_err(|_| Corrupt("a number is out of range"))
    }

    /// The next eight bytes.
    pub(crate) fn get_fixed(&mut self) -> Result<u64, Corrupt> {
        let (value, rest) = self
            .bytes
            .split_first_chunk::<8>()
            .ok_or(Corrupt("a column ends too early"))?;
        self.bytes = rest;
        Ok(u64::from_le_bytes(*value))
    }

    /// The next byte.
    pub(crate) fn get_byte(&mut self) -> Result<u8, Corrupt> {
        let (value, rest) = self
            .bytes
            .split_first()
            .ok_or(Corrupt("a column ends too early"))?;
        self.bytes = rest;
        Ok(*value)
    }

    fn get_bytes(&mut self, length: usize) -> Result<&'a [u8], Corrupt> {
        let (value, rest) = self
            .bytes
            .split_at_checked(length)
            .ok_or(Corrupt("a column ends too early"))?;
        self.bytes = rest;
        Ok(value)
    }

    /// The next row, in postcard's encoding.
    pub(crate) fn get_row<T: Deserialize<'a>>(&mut self) -> Result<T, Corrupt> {
        let (row, rest) =
            postcard::take_from_bytes(self.bytes).map_err(|_| Corrupt("a row is no row"))?;
        self.bytes = rest;
        Ok(row)
    }

    pub(crate) fn length(&self) -> usize {
        self.bytes.len()
    }

    /// Whether `count` rows can be here: each takes a byte or more.
    pub(crate) fn has_rows(&self, count: usize) -> bool {
        count <= self.bytes.len()
    }
}

/// The number of rows of a table whose columns are `columns`, where it is no more than `most` and
/// than there are.
pub(crate) fn row_count(
    count: u32,
    most: usize,
    columns: &[&ColumnReader<'_>],
) -> Result<usize, Corrupt> {
    let count = count as usize;
    if count > most || !columns.iter().all(|column| column.has_rows(count)) {
        return Err(Corrupt("a table declares more rows than it has"));
    }
    Ok(count)
}

/// Strings, each written as the length of what it shares with the one before, and the rest.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct TextColumn<C> {
    shared: C,
    rest: C,
    bytes: C,
    /// The string before, and the length of all so far: while the column is written or read.
    #[serde(skip)]
    previous: Vec<u8>,
    #[serde(skip)]
    length: usize,
}

impl TextColumn<ColumnWriter> {
    /// Appends `text`, cut to [`MAX_TEXT`].
    pub(crate) fn put(&mut self, text: &str) -> Result<(), Corrupt> {
        let text = bounded(text).as_bytes();
        self.length += text.len();
        if self.length > MAX_COLUMN_TEXT {
            return Err(Corrupt("a table's texts are too long"));
        }
        let shared = self
            .previous
            .iter()
            .zip(text)
            .take_while(|(a, b)| a == b)
            .count();
        // A byte or two of accidental agreement only disturbs the matches that zstd would find.
        let shared = if shared < MIN_SHARED { 0 } else { shared };
        self.shared.put(shared as u64);
        self.rest.put((text.len() - shared) as u64);
        self.bytes.put_bytes(&text[shared..]);
        self.previous.truncate(shared);
        self.previous.extend_from_slice(&text[shared..]);
        Ok(())
    }
}

impl TextColumn<ColumnReader<'_>> {
    /// The next string.
    pub(crate) fn get(&mut self) -> Result<String, Corrupt> {
        let shared: usize = self.shared.get_as()?;
        let rest: usize = self.rest.get_as()?;
        let length = shared.saturating_add(rest);
        if shared > self.previous.len()
            || length > MAX_TEXT
            || length > MAX_COLUMN_TEXT - self.length
        {
            return Err(Corrupt("a string is too long"));
        }
        self.length += length;
        self.previous.truncate(shared);
        self.previous.extend_from_slice(self.bytes.get_bytes(rest)?);
        match std::str::from_utf8(&self.previous) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(Corrupt("a string is no text")),
        }
    }

    /// Whether `count` rows can be here.
    pub(crate) fn has_rows(&self, count: usize) -> bool {
        self.shared.has_rows(count) && self.rest.has_rows(count)
    }
}

const MIN_SHARED: usize = 4;

/// `text`, cut at a character to [`MAX_TEXT`] bytes.
pub(crate) fn bounded(text: &str) -> &str {
    if text.len() <= MAX_TEXT {
        return text;
    }
    let cut = (0..=MAX_TEXT).rev().find(|&cut| text.is_char_boundary(cut));
    &text[..cut.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(column: &ColumnWriter) -> ColumnReader<'_> {
        ColumnReader {
            bytes: &column.bytes,
            previous: 0,
        }
    }

    #[test]
    fn numbers_come_back() {
        let values = [
            0,
            1,
            127,
            128,
            u64::from(u32::MAX),
            u64::MAX - 1,
            u64::MAX,
            5,
        ];
        let mut plain = ColumnWriter::default();
        let mut delta = ColumnWriter::default();
        for &value in &values {
            plain.put(value);
            delta.put_delta(value);
        }
        let (mut plain, mut delta) = (read(&plain), read(&delta));
        for &value in &values {
            assert_eq!(plain.get(), Ok(value));
            assert_eq!(delta.get_delta(), Ok(value));
        }
        assert!(plain.get().is_err());
    }

    #[test]
    fn an_endless_number_is_corrupt() {
        let mut reader = ColumnReader {
            bytes: &[0xff; 32],
            previous: 0,
        };
        assert!(reader.get().is_err());
    }

    #[test]
    fn strings_come_back_and_share_prefixes() {
        let names = [
            "_ZN2at3addE",
            "_ZN2at3mulE",
            "",
            "_ZN2at",
            "größe",
            "größte",
        ];
        let mut column = TextColumn::<ColumnWriter>::default();
        names.iter().for_each(|name| column.put(name).unwrap());
        assert!(column.bytes.bytes.len() < names.concat().len());
        let mut reader = TextColumn {
            shared: read(&column.shared),
            rest: read(&column.rest),
            bytes: read(&column.bytes),
            previous: Vec::new(),
            length: 0,
        };
        for name in names {
            assert_eq!(reader.get().as_deref(), Ok(name));
        }
        assert!(reader.get().is_err());
    }

    #[test]
    fn a_cut_string_is_cut_at_a_character() {
        let long = "ö".repeat(MAX_TEXT);
        assert_eq!(bounded(&long).len(), MAX_TEXT);
        let shifted = format!("x{long}");
        assert_eq!(bounded(&shifted).len(), MAX_TEXT - 1);
    }
}
