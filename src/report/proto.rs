//! The part of Protocol Buffers that traces need: a sequence of fields
//! (protobuf.dev/programming-guides/encoding).

/// A message being written.
#[derive(Clone, Debug, Default)]
pub(super) struct Message {
    bytes: Vec<u8>,
}

const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const LENGTH: u64 = 2;

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn key(&mut self, field: u64, kind: u64) {
        self.varint(field << 3 | kind);
    }

    /// An integer or an enumeration.
    pub(super) fn number(mut self, field: u64, value: u64) -> Self {
        self.key(field, VARINT);
        self.varint(value);
        self
    }

    pub(super) fn double(mut self, field: u64, value: f64) -> Self {
        self.key(field, FIXED_64);
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A string.
    pub(super) fn text(self, field: u64, text: &str) -> Self {
        self.data(field, text.as_bytes())
    }

    /// A message inside of this one.
    pub(super) fn message(self, field: u64, message: &Message) -> Self {
        self.data(field, &message.bytes)
    }

    /// Integers, packed.
    pub(super) fn numbers(self, field: u64, values: &[u64]) -> Self {
        let mut packed = Self::default();
        for &value in values {
            packed.varint(value);
        }
        self.message(field, &packed)
    }

    fn data(mut self, field: u64, bytes: &[u8]) -> Self {
        self.key(field, LENGTH);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
