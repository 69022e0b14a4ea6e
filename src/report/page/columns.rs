//! Columns of integers as bytes: LEB128, seven bits to a byte, least significant first.

use std::collections::BTreeMap;

/// Where a column lies in the data: first byte, bytes, values.
pub(super) type Place = (usize, usize, usize);

/// A column while it is filled.
#[derive(Clone, Debug, Default)]
pub(super) struct Column {
    bytes: Vec<u8>,
    values: usize,
}

impl Column {
    pub(super) fn push(&mut self, mut value: u64) {
        self.values += 1;
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// 0 for `None`, else one more than the value.
    pub(super) fn push_option(&mut self, value: Option<usize>) {
        self.push(value.map_or(0, |value| value as u64 + 1));
    }

    /// A number of either sign: small ones are short (zigzag, as in Protocol Buffers).
    pub(super) fn push_signed(&mut self, value: i64) {
        self.push(((value << 1) ^ (value >> 63)) as u64);
    }
}

/// Columns by name, one after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Columns {
    pub(super) bytes: Vec<u8>,
    pub(super) places: BTreeMap<String, Place>,
}

impl Columns {
    pub(super) fn add(&mut self, name: impl Into<String>, column: &Column) {
        let place = (self.bytes.len(), column.bytes.len(), column.values);
        self.bytes.extend_from_slice(&column.bytes);
        self.places.insert(name.into(), place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_leb128_and_signs_are_in_the_last_bit() {
        let mut column = Column::default();
        column.push(300);
        column.push_signed(-1);
        column.push_signed(1);
        column.push_option(None);
        column.push_option(Some(126));
        assert_eq!(column.bytes, [0xac, 0x02, 1, 2, 0, 127]);
        let mut columns = Columns::default();
        columns.add("a", &column);
        columns.add("b", &column);
        assert_eq!(columns.places["b"], (6, 6, 5));
    }
}
