//! Reads the pickles that torch writes of its flight recorder, as JSON values.
//!
//! `torch::jit::Pickler` (torch/csrc/jit/serialization/pickler.h, 2.15.0) writes few opcodes of
//! protocol 2 (Lib/pickletools.py of CPython): no classes and no code are among them, and none are
//! read. It writes each text once, and then its number.

use anyhow::{Context, bail};
use serde_json::{Map, Number, Value};

/// Deepest nesting: a dump has six levels.
const DEEPEST: u32 = 32;
/// The most that repeated values may take, bytes.
const MOST_REPEATED: usize = 1 << 30;

/// A value and its depth; or a mark.
enum Item {
    Mark,
    Value(Value, u32),
}

struct Reader<'b> {
    rest: &'b [u8],
    stack: Vec<Item>,
    /// Values and their depths.
    memo: Vec<Option<(Value, u32)>>,
    repeated: usize,
}

/// Reads a pickle.
///
/// # Errors
/// It is cut, or has what torch does not write.
pub(super) fn read(bytes: &[u8]) -> anyhow::Result<Value> {
    let mut reader = Reader {
        rest: bytes,
        stack: Vec::new(),
        memo: Vec::new(),
        repeated: 0,
    };
    loop {
        let [opcode] = reader.take()?;
        if opcode == b'.' {
            return Ok(reader.pop()?.0);
        }
        reader.step(opcode)?;
    }
}

impl Reader<'_> {
    fn step(&mut self, opcode: u8) -> anyhow::Result<()> {
        match opcode {
            // PROTO
            0x80 => self.take::<1>().map(drop),
            // MARK
            b'(' => {
                self.stack.push(Item::Mark);
                Ok(())
            }
            // EMPTY_DICT, EMPTY_LIST, EMPTY_TUPLE
            b'}' => self.push(Value::Object(Map::new()), 1),
            b']' | b')' => self.push(Value::Array(Vec::new()), 1),
            // NONE, NEWTRUE, NEWFALSE
            b'N' => self.push(Value::Null, 0),
            0x88 => self.push(Value::Bool(true), 0),
            0x89 => self.push(Value::Bool(false), 0),
            // BININT1, BININT2, BININT, LONG1, BINFLOAT
            b'K' => {
                let [value] = self.take()?;
                self.push(value.into(), 0)
            }
            b'M' => {
                let value = u16::from_le_bytes(self.take()?);
                self.push(value.into(), 0)
            }
            b'J' => {
                let value = i32::from_le_bytes(self.take()?);
                self.push(value.into(), 0)
            }
            0x8a => self.long(),
            b'G' => {
                let value = f64::from_be_bytes(self.take()?);
                self.push(Number::from_f64(value).into(), 0)
            }
            // BINUNICODE
            b'X' => {
                let length = u32::from_le_bytes(self.take()?) as usize;
                let text = self.bytes(length)?;
                let text = String::from_utf8_lossy(text).into_owned();
                self.push(text.into(), 0)
            }
            // BINPUT, LONG_BINPUT, BINGET, LONG_BINGET
            b'q' => {
                let [number] = self.take()?;
                self.put(number.into())
            }
            b'r' => {
                let number = u32::from_le_bytes(self.take()?);
                self.put(number as usize)
            }
            b'h' => {
                let [number] = self.take()?;
                self.get(number.into())
            }
            b'j' => {
                let number = u32::from_le_bytes(self.take()?);
                self.get(number as usize)
            }
            // SETITEMS, APPENDS, TUPLE, TUPLE1 to TUPLE3
            b'u' => self.set_items(),
            b'e' => {
                let items = self.above_mark()?;
                self.append(items)
            }
            b't' => {
                let items = self.above_mark()?;
                self.tuple(items)
            }
            0x85..=0x87 => {
                let count = usize::from(opcode - 0x84);
                let mut items = Vec::new();
                for _ in 0..count {
                    items.push(self.pop()?);
                }
                items.reverse();
                self.tuple(items)
            }
            _ => bail!("it has the opcode {opcode:#x}, which torch does not write"),
        }
    }

    fn bytes(&mut self, length: usize) -> anyhow::Result<&[u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length).context("it is cut")?;
        self.rest = rest;
        Ok(bytes)
    }

    fn take<const LENGTH: usize>(&mut self) -> anyhow::Result<[u8; LENGTH]> {
        Ok(self.bytes(LENGTH)?.try_into()?)
    }

    /// A number of up to eight bytes, two's complement.
    fn long(&mut self) -> anyhow::Result<()> {
        let [length] = self.take()?;
        let bytes = self.bytes(length.into())?;
        anyhow::ensure!(bytes.len() <= 8, "it has a number of {length} bytes");
        let is_negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
        let mut all = [if is_negative { 0xff } else { 0 }; 8];
        for (to, from) in all.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.push(i64::from_le_bytes(all).into(), 0)
    }

    fn push(&mut self, value: Value, depth: u32) -> anyhow::Result<()> {
        anyhow::ensure!(depth <= DEEPEST, "it is nested too deeply");
        self.stack.push(Item::Value(value, depth));
        Ok(())
    }

    fn pop(&mut self) -> anyhow::Result<(Value, u32)> {
        match self.stack.pop() {
            Some(Item::Value(value, depth)) => Ok((value, depth)),
            _ => bail!("a value is missing in it"),
        }
    }

    /// Values above the last mark.
    fn above_mark(&mut self) -> anyhow::Result<Vec<(Value, u32)>> {
        let is_mark = |item: &Item| matches!(item, Item::Mark);
        let at = self.stack.iter().rposition(is_mark);
        let above = self.stack.split_off(at.context("a mark is missing in it")?);
        let values = above.into_iter().filter_map(|item| match item {
            Item::Mark => None,
            Item::Value(value, depth) => Some((value, depth)),
        });
        Ok(values.collect())
    }

    fn tuple(&mut self, items: Vec<(Value, u32)>) -> anyhow::Result<()> {
        self.push(Value::Array(Vec::new()), 1)?;
        self.append(items)
    }

    fn append(&mut self, items: Vec<(Value, u32)>) -> anyhow::Result<()> {
        let (list, mut depth) = self.pop()?;
        let Value::Array(mut list) = list else {
            bail!("it appends to what is no list")
        };
        for (item, below) in items {
            depth = depth.max(below + 1);
            list.push(item);
        }
        self.push(Value::Array(list), depth)
    }

    fn set_items(&mut self) -> anyhow::Result<()> {
        let items = self.above_mark()?;
        let (map, mut depth) = self.pop()?;
        let Value::Object(mut map) = map else {
            bail!("it has items of what is no dict")
        };
        let mut items = items.into_iter();
        while let Some((key, _)) = items.next() {
            let (value, below) = items.next().context("a value is missing in it")?;
            let Value::String(key) = key else {
                bail!("a key in it is no text")
            };
            depth = depth.max(below + 1);
            map.insert(key, value);
        }
        self.push(Value::Object(map), depth)
    }

    /// Numbers what is on top. torch does so when it is complete; what is empty might be filled
    /// later, as Python does, and is not kept.
    fn put(&mut self, number: usize) -> anyhow::Result<()> {
        anyhow::ensure!(number <= self.memo.len(), "its numbers of texts have gaps");
        let top = match self.stack.last() {
            Some(Item::Value(value, depth)) if *depth == 0 || size(value) > 0 => {
                self.repeated += size(value);
                Some((value.clone(), *depth))
            }
            _ => None,
        };
        self.memo.truncate(number);
        self.memo.push(top);
        self.check_size()
    }

    fn get(&mut self, number: usize) -> anyhow::Result<()> {
        let kept = self.memo.get(number).cloned().flatten();
        let (value, depth) = kept.context("it repeats what is not kept")?;
        self.repeated += size(&value);
        self.check_size()?;
        self.push(value, depth)
    }

    fn check_size(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.repeated <= MOST_REPEATED, "it repeats too much");
        Ok(())
    }
}

/// About the memory of a value, bytes; 0 of an empty list.
fn size(value: &Value) -> usize {
    const EACH: usize = 32;
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => EACH,
        Value::String(text) => EACH + text.len(),
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(items) => items.values().map(|item| EACH + size(item)).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::read;
    use serde_json::json;

    #[test]
    fn values_are_read() {
        // Written by Python 3.11: pickle.dumps(value, 2).
        let bytes = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xff\xff\xff\xff\x8a\x05\x00\x00\x00\x00\x01h\x01e\
            X\x01\x00\x00\x00bq\x03h\x01N\x86q\x04X\x01\x00\x00\x00cq\x05\x88u.";
        let value = read(bytes).unwrap();
        let wanted = json!({"a": [1, -1, 4_294_967_296_u64, "a"], "b": ["a", null], "c": true});
        assert_eq!(value, wanted);
        for cut in 0..bytes.len() {
            assert!(read(&bytes[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn what_torch_does_not_write_is_an_error() {
        // Code: cos, then system.
        assert!(read(b"\x80\x02cos\nsystem\n.").is_err());
        let deep = [&b"\x80\x02N"[..], &[0x85; 100], b"."].concat();
        assert!(read(&deep).is_err());
        for bytes in [
            &b"u."[..],
            b"e.",
            b"(.",
            b"h\x05.",
            b"NNu.",
            b"]q\x00h\x00.",
            b"q\x09.",
        ] {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
    }
}
