//! Dictionaries and attributes of instances, read from outside: bounded, and with the address of
//! every value's slot, so that a few words are enough to check what was read.

use super::layout::objects::{
    Attributes, DICT_KEYS, FLAG_DICT, FLAG_HEAP_TYPE, FLAG_INLINE_VALUES, FLAG_MANAGED_DICT,
    KEYS_SIZE, KeysForm, LENGTH, LOG2_KEYS, MANAGED_VALUES, ObjectLayout, SIZED_KEYS,
    TYPE_BASIC_SIZE, TYPE_DICT, TYPE_DICT_OFFSET, TYPE_FLAGS, TYPE_MRO, TYPE_NAME, VALUES_VALID,
};
use super::objects::{ObjectError, u64_at};
use crate::memory::Memory;

/// Maximum number of entries of a dictionary that are read.
pub const MAX_ENTRIES: usize = 4096;
/// Maximum bytes of a type's name.
const MAX_NAME: usize = 256;
/// Maximum number of types in an MRO.
const MAX_MRO: usize = 64;
/// Maximum offset of an instance's dictionary.
const MAX_DICT_OFFSET: u64 = 1 << 16;
/// Bytes of a type that are read: up to and including `tp_mro`, of the larger builds.
const TYPE_HEAD: usize = 368;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: u64,
    /// The value's object; never 0.
    pub value: u64,
    /// Address of the pointer to the value.
    pub place: u64,
}

/// Location of the entries of a dictionary, or of an instance without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// `PyDictKeysObject`.
    pub keys: u64,
    /// Address of the first value, if values are separate from the keys.
    pub values: Option<u64>,
}

/// Facts about a type that reading its instances needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeFacts {
    pub address: u64,
    /// Last part of `tp_name`.
    pub name: String,
    flags: u64,
    basic_size: u64,
    dict_offset: u64,
    mro: u64,
    /// Shows whether the address still holds the same type.
    identity: [u64; 3],
    layout: ObjectLayout,
}

impl TypeFacts {
    /// Reads the type at `address`.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub fn read(
        layout: &ObjectLayout,
        address: u64,
        memory: &dyn Memory,
    ) -> Result<Self, ObjectError> {
        let mut head = [0; TYPE_HEAD];
        if address == 0 || !address.is_multiple_of(8) {
            return Err(ObjectError::Invalid);
        }
        memory.read_exact(address, &mut head)?;
        let field = |field: u32| u64_at(&head, field + layout.growth);
        let name = read_c_string(field(TYPE_NAME), MAX_NAME, memory)?;
        Ok(Self {
            address,
            name: name.rsplit('.').next().unwrap_or_default().to_owned(),
            flags: field(TYPE_FLAGS),
            basic_size: field(TYPE_BASIC_SIZE),
            dict_offset: field(TYPE_DICT_OFFSET),
            mro: field(TYPE_MRO),
            identity: identity(layout, &head),
            layout: *layout,
        })
    }

    /// Whether the address still holds this type.
    pub fn is_current(&self, memory: &dyn Memory) -> bool {
        let mut head = [0; TYPE_HEAD];
        memory.read_exact(self.address, &mut head).is_ok()
            && identity(&self.layout, &head) == self.identity
    }

    /// `tp_basicsize`, bytes.
    pub fn basic_size(&self) -> u64 {
        self.basic_size
    }

    /// Whether it is one of the interpreter's own types, or of an older extension: no class that
    /// Python code defines.
    pub fn is_static(&self) -> bool {
        self.flags & FLAG_HEAP_TYPE == 0
    }

    pub fn is_dict(&self) -> bool {
        self.flags & FLAG_DICT != 0
    }

    /// Whether its instances may have attributes of their own.
    pub fn has_attributes(&self) -> bool {
        self.flags & FLAG_MANAGED_DICT != 0 || (1..=MAX_DICT_OFFSET).contains(&self.dict_offset)
    }

    /// Whether one of its bases, or itself, is called `name`.
    pub fn has_base(&self, name: &str, memory: &dyn Memory) -> Result<bool, ObjectError> {
        let layout = &self.layout;
        let count = memory.read_u64(self.mro.wrapping_add(layout.at(LENGTH)))?;
        let count = usize::try_from(count)
            .ok()
            .filter(|&count| count <= MAX_MRO)
            .ok_or(ObjectError::TooLong)?;
        let items =
            memory.read_bytes(self.mro.wrapping_add(layout.tuple_items.into()), count * 8)?;
        for index in (0..count).rev() {
            let base = u64_at(&items, index as u32 * 8);
            let text = memory.read_u64(base.wrapping_add(layout.at(TYPE_NAME)))?;
            if read_c_string(text, MAX_NAME, memory)? == name {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Address and length of the pointers to the attributes of its instance at `object`. `None` if
    /// it has none.
    pub fn attribute_pointers(&self, layout: &ObjectLayout, object: u64) -> Option<(u64, usize)> {
        if layout.attributes == Attributes::AtOffset || self.flags & FLAG_MANAGED_DICT == 0 {
            return (1..=MAX_DICT_OFFSET)
                .contains(&self.dict_offset)
                .then(|| (object.wrapping_add(self.dict_offset), 8));
        }
        Some(match layout.attributes {
            Attributes::ValuesOrDict => (object.wrapping_sub(MANAGED_VALUES), 16),
            _ => (object.wrapping_sub(layout.managed_dict), 8),
        })
    }

    /// Location of the attributes of its instance at `object`; `None` if it has none.
    pub fn attributes(
        &self,
        layout: &ObjectLayout,
        object: u64,
        memory: &dyn Memory,
    ) -> Result<Option<InstanceDict>, ObjectError> {
        let word = |at: u64| memory.read_u64(at);
        let before = |distance: u64| word(object.wrapping_sub(distance));
        if layout.attributes == Attributes::AtOffset || self.flags & FLAG_MANAGED_DICT == 0 {
            // Variable-sized objects have a negative offset: they are not instances of the classes
            // that are searched for.
            if !(1..=MAX_DICT_OFFSET).contains(&self.dict_offset) {
                return Ok(None);
            }
            let dict = word(object.wrapping_add(self.dict_offset))?;
            return Ok((dict != 0).then_some(InstanceDict::Dict(dict)));
        }
        let split = |values: u64| -> Result<Option<InstanceDict>, ObjectError> {
            if self.flags & FLAG_HEAP_TYPE == 0 {
                return Ok(None);
            }
            let keys = word(self.address.wrapping_add(layout.cached_keys.into()))?;
            let values = Some(values.wrapping_add(layout.values.into()));
            Ok((keys != 0).then_some(InstanceDict::Values(Table { keys, values })))
        };
        match layout.attributes {
            Attributes::AtOffset => Ok(None),
            Attributes::ValuesOrDict => match before(MANAGED_VALUES)? {
                0 => Ok(Some(before(layout.managed_dict)?)
                    .filter(|&dict| dict != 0)
                    .map(InstanceDict::Dict)),
                values => split(values),
            },
            Attributes::Tagged => match before(layout.managed_dict)? {
                0 => Ok(None),
                values if values & 1 == 1 => split(values.wrapping_add(1)),
                dict => Ok(Some(InstanceDict::Dict(dict))),
            },
            Attributes::Inline => match before(layout.managed_dict)? {
                0 if self.flags & FLAG_INLINE_VALUES != 0 => {
                    let values = object.wrapping_add(self.basic_size);
                    match memory.read_u8(values.wrapping_add(VALUES_VALID.into()))? {
                        0 => Ok(None),
                        _ => split(values),
                    }
                }
                0 => Ok(None),
                dict => Ok(Some(InstanceDict::Dict(dict))),
            },
        }
    }
}

fn identity(layout: &ObjectLayout, head: &[u8; TYPE_HEAD]) -> [u64; 3] {
    [TYPE_NAME, TYPE_DICT, TYPE_MRO].map(|field| u64_at(head, field + layout.growth))
}

/// Location of an instance's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceDict {
    Dict(u64),
    /// In values of its own, under keys that its type's instances share.
    Values(Table),
}

/// The type of the object at `address`.
///
/// # Errors
/// [`ObjectError`].
pub fn read_type(
    layout: &ObjectLayout,
    address: u64,
    memory: &dyn Memory,
) -> Result<u64, ObjectError> {
    if address == 0 || !address.is_multiple_of(8) {
        return Err(ObjectError::Invalid);
    }
    Ok(memory.read_u64(address.wrapping_add(layout.type_offset().into()))?)
}

/// Location of the entries of the dictionary at `dict`.
///
/// # Errors
/// [`ObjectError`].
pub fn read_table(
    layout: &ObjectLayout,
    dict: u64,
    memory: &dyn Memory,
) -> Result<Table, ObjectError> {
    let mut fields = [0; 16];
    memory.read_exact(dict.wrapping_add(layout.at(DICT_KEYS)), &mut fields)?;
    let (keys, values) = (u64_at(&fields, 0), u64_at(&fields, 8));
    Ok(Table {
        keys,
        values: (values != 0).then(|| values.wrapping_add(layout.values.into())),
    })
}

/// The entries of `table` in insertion order, without deleted ones. At most `most`.
///
/// # Errors
/// [`ObjectError::TooLong`] if there are more; [`ObjectError::Invalid`] if it is not a table of
/// keys.
pub fn read_entries(
    layout: &ObjectLayout,
    table: &Table,
    most: usize,
    memory: &dyn Memory,
) -> Result<Vec<Entry>, ObjectError> {
    if table.keys == 0 || !table.keys.is_multiple_of(8) {
        return Err(ObjectError::Invalid);
    }
    let mut head = [0; 40];
    let (count_at, indices_at) = match layout.keys {
        KeysForm::Sized => SIZED_KEYS,
        KeysForm::Log2 => LOG2_KEYS,
    };
    let head = head.get_mut(..indices_at as usize);
    let head = head.ok_or(ObjectError::Invalid)?;
    memory.read_exact(table.keys, head)?;
    let count = usize::try_from(u64_at(head, count_at)).unwrap_or(usize::MAX);
    if count > most {
        return Err(ObjectError::TooLong);
    }
    let (index_bytes, words) = match layout.keys {
        KeysForm::Sized => (sized_index_bytes(u64_at(head, KEYS_SIZE))?, 3),
        KeysForm::Log2 => log2_index_bytes(u64_at(head, KEYS_SIZE))?,
    };
    let first = table
        .keys
        .wrapping_add(indices_at.into())
        .wrapping_add(index_bytes);
    let entries = memory.read_bytes(first, count * words * 8)?;
    let values = match table.values {
        Some(values) => memory.read_bytes(values, count * 8)?,
        None => Vec::new(),
    };
    let mut found = Vec::with_capacity(count);
    for index in 0..count {
        // The key is the last word but one, the value the last.
        let at = ((index + 1) * words * 8) as u64;
        let key = u64_at(&entries, (at - 16) as u32);
        let (value, place) = match table.values {
            Some(values_at) => (
                u64_at(&values, index as u32 * 8),
                values_at.wrapping_add(index as u64 * 8),
            ),
            None => (
                u64_at(&entries, (at - 8) as u32),
                first.wrapping_add(at - 8),
            ),
        };
        if key != 0 && value != 0 {
            found.push(Entry { key, value, place });
        }
    }
    Ok(found)
}

/// `DK_IXSIZE` of 3.10 times `dk_size`.
fn sized_index_bytes(size: u64) -> Result<u64, ObjectError> {
    let width = match size {
        0 => return Err(ObjectError::Invalid),
        1..=0xff => 1,
        0x100..=0xffff => 2,
        0x1_0000..=0xff_ffff => 4,
        _ => return Err(ObjectError::TooLong),
    };
    match size.is_power_of_two() {
        true => Ok(size * width),
        false => Err(ObjectError::Invalid),
    }
}

/// The indices' bytes, and the words of an entry, of the four bytes `dk_log2_size`,
/// `dk_log2_index_bytes`, `dk_kind`, ….
fn log2_index_bytes(field: u64) -> Result<(u64, usize), ObjectError> {
    let [size, index_bytes, kind, ..] = field.to_le_bytes();
    if size > 24 || index_bytes > 27 || kind > 2 {
        return Err(ObjectError::Invalid);
    }
    Ok((1 << index_bytes, if kind == 0 { 3 } else { 2 }))
}

/// Reads a C string of at most `max` bytes, in pieces that do not cross pages unnecessarily.
fn read_c_string(address: u64, max: usize, memory: &dyn Memory) -> Result<String, ObjectError> {
    const PIECE: u64 = 32;
    if address == 0 {
        return Err(ObjectError::Invalid);
    }
    let mut bytes = Vec::new();
    let mut at = address;
    while bytes.len() < max {
        let length = PIECE - at % PIECE;
        let piece = memory.read_bytes(at, length as usize)?;
        if let Some(end) = piece.iter().position(|&byte| byte == 0) {
            bytes.extend_from_slice(&piece[..end]);
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        bytes.extend_from_slice(&piece);
        at = at.wrapping_add(length);
    }
    Err(ObjectError::TooLong)
}
