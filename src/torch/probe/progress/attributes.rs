//! Attributes of objects by name, with the addresses of their slots.

use super::watch::Guard;
use crate::memory::Memory;
use crate::python::dicts::{
    Entry, InstanceDict, MAX_ENTRIES, TypeFacts, read_entries, read_table, read_type,
};
use crate::python::discover::Interpreter;
use crate::python::layout::Layout;
use crate::python::layout::objects::{DICT_KEYS, INT_DIGIT, LENGTH, LIST_ITEMS, ObjectLayout};
use crate::python::objects::{ObjectError, read_str};
use rustc_hash::FxHashMap;

/// Maximum number of attributes of an instance that are read.
const MAX_ATTRIBUTES: usize = 512;
/// Maximum length of a name, bytes.
const MAX_NAME: usize = 64;
/// Maximum number of types that are kept.
const MAX_TYPES: usize = 4096;

/// An attribute's value, and how to read it again.
#[derive(Clone, Debug)]
pub(super) struct Attribute {
    pub(super) value: u64,
    /// Address of the pointer to it.
    pub(super) slot: u64,
    /// Bytes that must be unchanged for the slot to be the attribute's.
    pub(super) guards: Vec<Guard>,
}

/// Reads objects of one process.
#[derive(Debug)]
pub(super) struct Reader {
    layout: Layout,
    objects: ObjectLayout,
    types: FxHashMap<u64, TypeFacts>,
}

impl Reader {
    pub(super) fn new(interpreter: &Interpreter) -> Self {
        Self {
            layout: interpreter.layout,
            objects: interpreter.layout.objects,
            types: FxHashMap::default(),
        }
    }

    pub(super) fn objects(&self) -> ObjectLayout {
        self.objects
    }

    /// Whether the object at `address` is not freed.
    pub(super) fn is_referred_to(&self, address: u64, memory: &dyn Memory) -> bool {
        let (offset, length) = self.objects.references();
        let references = memory.read_bytes(address.wrapping_add(offset), length);
        references.is_ok_and(|bytes| self.objects.is_referred_to(&bytes))
    }

    /// The type at `address`, as it is now.
    pub(super) fn type_at(
        &mut self,
        address: u64,
        memory: &dyn Memory,
    ) -> Result<&TypeFacts, ObjectError> {
        let known = self.types.get(&address);
        if !known.is_some_and(|facts| facts.is_current(memory)) {
            if self.types.len() >= MAX_TYPES {
                self.types.clear();
            }
            let facts = TypeFacts::read(&self.objects, address, memory)?;
            self.types.insert(address, facts);
        }
        self.types.get(&address).ok_or(ObjectError::Invalid)
    }

    pub(super) fn class_of(
        &mut self,
        object: u64,
        memory: &dyn Memory,
    ) -> Result<String, ObjectError> {
        let address = read_type(&self.objects, object, memory)?;
        Ok(self.type_at(address, memory)?.name.clone())
    }

    /// The attribute `name` of the instance itself.
    pub(super) fn attribute(
        &mut self,
        object: u64,
        name: &str,
        memory: &dyn Memory,
    ) -> Result<Attribute, ObjectError> {
        let objects = self.objects;
        let address = read_type(&self.objects, object, memory)?;
        let facts = self.type_at(address, memory)?.clone();
        let (pointers, length) = facts
            .attribute_pointers(&objects, object)
            .ok_or(ObjectError::Invalid)?;
        let type_at = u64::from(objects.type_offset());
        let mut guards = Vec::with_capacity(3);
        // The type, and the address of the attributes; one range if they are adjacent.
        if pointers < object && object - pointers <= 32 {
            // Without the reference count, which lies between.
            guards.push(Guard::take(pointers, length, memory)?);
            guards.push(Guard::take(object + type_at, 8, memory)?);
        } else {
            guards.push(Guard::take(object.wrapping_add(type_at), 8, memory)?);
            guards.push(Guard::take(pointers, length, memory)?);
        }
        let table = match facts.attributes(&objects, object, memory)? {
            None => return Err(ObjectError::Invalid),
            Some(InstanceDict::Values(table)) => table,
            Some(InstanceDict::Dict(dict)) => {
                let keys = dict.wrapping_add(objects.at(DICT_KEYS));
                guards.push(Guard::take(keys, 16, memory)?);
                read_table(&objects, dict, memory)?
            }
        };
        let entries = read_entries(&objects, &table, MAX_ATTRIBUTES, memory)?;
        let entry = self.named(&entries, name, memory)?;
        Ok(Attribute {
            value: entry.value,
            slot: entry.place,
            guards,
        })
    }

    fn named(
        &self,
        entries: &[Entry],
        name: &str,
        memory: &dyn Memory,
    ) -> Result<Entry, ObjectError> {
        let found = entries.iter().find(|entry| {
            read_str(&self.layout, entry.key, MAX_NAME, memory).is_ok_and(|text| text == name)
        });
        found.copied().ok_or(ObjectError::Invalid)
    }

    /// The attribute at the end of a path.
    pub(super) fn follow(
        &mut self,
        object: u64,
        path: &[&str],
        memory: &dyn Memory,
    ) -> Result<Attribute, ObjectError> {
        let mut at = object;
        let mut last = Err(ObjectError::Invalid);
        for name in path {
            let attribute = self.attribute(at, name, memory)?;
            at = attribute.value;
            last = Ok(attribute);
        }
        last
    }

    /// The value of `key` in a dictionary.
    pub(super) fn item(
        &mut self,
        dict: u64,
        key: &str,
        memory: &dyn Memory,
    ) -> Result<u64, ObjectError> {
        let entries = self.entries(dict, memory)?;
        Ok(self.named(&entries, key, memory)?.value)
    }

    /// All entries of a dictionary.
    pub(super) fn entries(
        &mut self,
        dict: u64,
        memory: &dyn Memory,
    ) -> Result<Vec<Entry>, ObjectError> {
        let address = read_type(&self.objects, dict, memory)?;
        if !self.type_at(address, memory)?.is_dict() {
            return Err(ObjectError::Invalid);
        }
        let table = read_table(&self.objects, dict, memory)?;
        read_entries(&self.objects, &table, MAX_ENTRIES, memory)
    }

    /// Length of a list or a tuple, and address of its items.
    pub(super) fn sequence(
        &mut self,
        object: u64,
        memory: &dyn Memory,
    ) -> Result<(u64, u64), ObjectError> {
        const MOST: u64 = 1 << 24;
        let items = match self.class_of(object, memory)?.as_str() {
            "list" => memory.read_u64(object.wrapping_add(self.objects.at(LIST_ITEMS)))?,
            "tuple" => object.wrapping_add(self.objects.tuple_items.into()),
            _ => return Err(ObjectError::Invalid),
        };
        let length = memory.read_u64(object.wrapping_add(self.objects.at(LENGTH)))?;
        if length > MOST {
            return Err(ObjectError::TooLong);
        }
        Ok((length, items))
    }

    /// The item at `index` of a list or a tuple.
    pub(super) fn element(
        &mut self,
        object: u64,
        index: u64,
        memory: &dyn Memory,
    ) -> Result<u64, ObjectError> {
        let (length, items) = self.sequence(object, memory)?;
        if index >= length {
            return Err(ObjectError::Invalid);
        }
        Ok(memory.read_u64(items.wrapping_add(index * 8))?)
    }

    /// A short `str`.
    pub(super) fn text(&mut self, object: u64, memory: &dyn Memory) -> Result<String, ObjectError> {
        match self.class_of(object, memory)?.as_str() {
            "str" => read_str(&self.layout, object, MAX_NAME, memory),
            _ => Err(ObjectError::Invalid),
        }
    }

    /// Whether the object is True; `None` if it is not a bool.
    pub(super) fn flag(&mut self, object: u64, memory: &dyn Memory) -> Option<bool> {
        if self.class_of(object, memory).ok()? != "bool" {
            return None;
        }
        let digit = memory.read_u32(object.wrapping_add(self.objects.at(INT_DIGIT)));
        digit.ok().map(|digit| digit != 0)
    }
}
