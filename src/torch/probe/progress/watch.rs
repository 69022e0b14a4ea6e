//! A counter that is read with every sample of its thread: the bytes to read, and their meaning.

use crate::memory::{Memory, read_each};
use crate::python::dicts::read_type;
use crate::python::discover::Interpreter;
use crate::python::layout::objects::{INT_DIGIT, OBJECT_TYPE, ObjectLayout};
use crate::python::objects::ObjectError;

/// Bytes that show whether an object is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Guard {
    pub(super) address: u64,
    /// The expected content.
    pub(super) expected: Vec<u8>,
}

impl Guard {
    /// A guard that expects the present content of `length` bytes.
    pub(super) fn take(
        address: u64,
        length: usize,
        memory: &dyn Memory,
    ) -> Result<Self, ObjectError> {
        const MOST: usize = 64;
        if length > MOST {
            return Err(ObjectError::TooLong);
        }
        Ok(Self {
            address,
            expected: memory.read_bytes(address, length)?,
        })
    }

    fn holds(&self, memory: &dyn Memory) -> Option<bool> {
        let mut now = [0; 64];
        let now = now.get_mut(..self.expected.len())?;
        memory.read_exact(self.address, now).ok()?;
        Some(*now == *self.expected)
    }
}

/// Location of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// A Python int, through a pointer.
    Int {
        /// Address of the pointer.
        slot: u64,
    },
    /// A 32-bit number.
    Word { address: u64 },
}

/// Bytes of an int that are read, from [`ObjectLayout::growth`] on: up to two digits.
pub const INT_BYTES: usize = 32;

/// A counter that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Watch {
    /// An object that must not be freed; 0 for none.
    pub(super) object: u64,
    /// Bytes that must be unchanged.
    pub(super) guards: Vec<Guard>,
    pub(super) number: Number,
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    Value(u64),
    Missing,
    /// The object was freed, or its attributes have moved.
    Gone,
}

impl Watch {
    /// Ranges to read: address and length.
    pub(super) fn ranges(&self, objects: &ObjectLayout) -> impl Iterator<Item = (u64, usize)> + '_ {
        let (offset, length) = objects.references();
        let count = (self.object != 0).then_some((self.object.wrapping_add(offset), length));
        let number = match self.number {
            Number::Int { slot } => (slot, 8),
            Number::Word { address } => (address, 4),
        };
        let guards = self.guards.iter();
        count
            .into_iter()
            .chain(guards.map(|guard| (guard.address, guard.expected.len())))
            .chain([number])
    }

    /// Address of the pointer to an int, if the number is one.
    pub(super) fn int_slot(&self) -> Option<u64> {
        match self.number {
            Number::Int { slot } => Some(slot),
            Number::Word { .. } => None,
        }
    }

    /// The counter's value. `copied` is what was read with the sample; an int that is missing there
    /// is read from `live`.
    pub(super) fn read(&self, ints: &IntReader, copied: &dyn Memory, live: &dyn Memory) -> Reading {
        if self.object != 0 {
            let (offset, length) = ints.objects.references();
            match copied.read_bytes(self.object.wrapping_add(offset), length) {
                Err(_) => return Reading::Missing,
                Ok(count) if !ints.objects.is_referred_to(&count) => return Reading::Gone,
                Ok(_) => {}
            }
        }
        for guard in &self.guards {
            match guard.holds(copied) {
                None => return Reading::Missing,
                Some(false) => return Reading::Gone,
                Some(true) => {}
            }
        }
        match self.number {
            Number::Word { address } => match copied.read_u32(address) {
                Ok(value) => Reading::Value(value.into()),
                Err(_) => Reading::Missing,
            },
            Number::Int { slot } => {
                let Ok(pointer) = copied.read_u64(slot) else {
                    return Reading::Missing;
                };
                if let Some(value) = ints.value(pointer, copied) {
                    return Reading::Value(value);
                }
                // Read a little later: valid if the attribute still points there afterwards.
                match ints.value(pointer, live) {
                    Some(value) if live.read_u64(slot) == Ok(pointer) => Reading::Value(value),
                    _ => Reading::Missing,
                }
            }
        }
    }
}

/// Reads Python ints of one process.
#[derive(Debug)]
pub(super) struct IntReader {
    /// `PyLong_Type`, after the first int was seen.
    int_type: Option<u64>,
    /// From 3.12 on the number of digits is in the upper bits of `lv_tag`, and the sign in its
    /// lower ones.
    tagged: bool,
    objects: ObjectLayout,
}

impl IntReader {
    pub(super) fn new(interpreter: &Interpreter) -> Self {
        Self {
            int_type: None,
            tagged: interpreter.version.minor >= 12,
            objects: interpreter.layout.objects,
        }
    }

    /// Records the address of the type of ints if `object` is an int, which `is_int` decides from
    /// its type.
    pub(super) fn learn(
        &mut self,
        object: u64,
        memory: &dyn Memory,
        is_int: impl FnOnce(u64) -> bool,
    ) {
        if self.int_type.is_none()
            && let Ok(address) = read_type(&self.objects, object, memory)
            && is_int(address)
        {
            self.int_type = Some(address);
        }
    }

    /// The number at `object`, if it is an int that is not negative and has up to two digits (60
    /// bits).
    ///
    /// Source: Include/cpython/longintrepr.h of 3.10 to 3.15: `ob_size`, or `lv_tag`, at 16, digits
    /// of 30 bits at 24.
    pub(super) fn value(&self, object: u64, memory: &dyn Memory) -> Option<u64> {
        if object == 0 || !object.is_multiple_of(8) {
            return None;
        }
        let mut bytes = [0; INT_BYTES];
        memory.read_exact(self.start(object), &mut bytes).ok()?;
        self.parse(&bytes)
    }

    /// The numbers at `objects`, from one vectored read; `None` if one of them is none.
    pub(super) fn values(&self, objects: &[u64], memory: &dyn Memory) -> Option<Vec<u64>> {
        let starts: Vec<u64> = objects.iter().map(|&object| self.start(object)).collect();
        let all = read_each(&starts, memory).ok()?;
        all.iter().map(|bytes| self.parse(bytes)).collect()
    }

    /// From where on an int is read.
    fn start(&self, object: u64) -> u64 {
        object.wrapping_add(self.objects.growth.into())
    }

    fn parse(&self, bytes: &[u8; INT_BYTES]) -> Option<u64> {
        let int_type = self.int_type?;
        let word = |at: usize| {
            let bytes: [u8; 8] = bytes.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        let (of_type, size, digits) = (
            word(OBJECT_TYPE as usize)?,
            word(16)?,
            word(INT_DIGIT as usize)?,
        );
        // What counts the references of a free-threaded int lies before what was read: the pointer
        // to it comes from the same copy.
        let is_freed = self.objects.growth == 0 && word(0)? as u32 == 0;
        if of_type != int_type || is_freed {
            return None;
        }
        let count = match self.tagged {
            true if size & 3 == 2 => return None,
            true => size >> 3,
            false => size,
        };
        let (low, high) = (digits & 0x3fff_ffff, digits >> 32 & 0x3fff_ffff);
        match count {
            0 => Some(0),
            1 => Some(low),
            2 => Some(low | high << 30),
            _ => None,
        }
    }
}
