//! Locations of attributes of objects, and of entries of dictionaries, by version.
//!
//! Source: Include/cpython/object.h (`PyTypeObject`, `PyHeapTypeObject`),
//! Include/cpython/tupleobject.h, Include/cpython/dictobject.h (`PyDictObject`),
//! Include/internal/pycore_dict.h (`struct _dictkeysobject`, `struct _dictvalues`; 3.10:
//! Objects/dict-common.h) and Include/internal/pycore_object.h (`MANAGED_DICT_OFFSET`,
//! `_PyObject_InlineValues`) of 3.10.13, 3.11.7, 3.12.1, 3.13.0, 3.14 and 3.15.2:
//! `https://github.com/python/cpython/tree/3.NN/Include`. 64 bits. The constants are those of
//! builds with a GIL; in a free-threaded build the head of an object is larger
//! ([`ObjectLayout::at`]).

/// Layout of the objects of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectLayout {
    /// Bytes by which the head of an object is larger than `ob_refcnt` and `ob_type` are.
    pub growth: u32,
    /// Distance of an instance's pointer to its dictionary before it: `MANAGED_DICT_OFFSET`.
    pub managed_dict: u64,
    /// Location of an instance's attributes.
    pub attributes: Attributes,
    /// The form of a dictionary's keys.
    pub keys: KeysForm,
    /// Offset of the values in what `ma_values` points to.
    pub values: u32,
    /// `PyHeapTypeObject.ht_cached_keys`.
    pub cached_keys: u32,
    /// Whether a dictionary records that a value was replaced: `ma_version_tag`, up to 3.13 (PEP
    /// 699).
    pub tells_replaced: bool,
    /// `PyTupleObject.ob_item`. 3.14 added the tuple's hash before it.
    pub tuple_items: u32,
    /// `f_globals` of a frame. 3.10: Include/cpython/frameobject.h; 3.11 to 3.13:
    /// Include/internal/pycore_frame.h; later: Include/internal/pycore_interpframe_structs.h.
    pub frame_globals: u32,
}

/// Location of an instance's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attributes {
    /// 3.10: a dictionary at `tp_dictoffset`.
    AtOffset,
    /// 3.11: two pointers before the object, to values and to a dictionary.
    ValuesOrDict,
    /// 3.12: a pointer before the object to a dictionary, or, with bit 0 set, to one byte before
    /// the values.
    Tagged,
    /// 3.13 on: a pointer before the object to a dictionary; if it is null, the values are after
    /// the object.
    Inline,
}

/// The fields at the start of `PyDictKeysObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysForm {
    /// 3.10: `dk_refcnt`, `dk_size`, `dk_lookup`, `dk_usable`, `dk_nentries`, indices; entries of
    /// three words.
    Sized,
    /// 3.11 on: `dk_refcnt`, `dk_log2_size`, `dk_log2_index_bytes`, `dk_kind`, `dk_version`,
    /// `dk_usable`, `dk_nentries`, indices; entries of three words, or of two if all keys are
    /// strings.
    Log2,
}

/// `sizeof(PyObject)` of a free-threaded build, less that of one with a GIL: `ob_tid`, `ob_mutex`
/// and two reference counts (Include/object.h).
const FREE_THREADED_GROWTH: u32 = 16;
/// `ob_type` of an object.
pub const OBJECT_TYPE: u32 = 8;

impl ObjectLayout {
    /// The offset of a field of an object, from that in a build with a GIL.
    pub fn at(&self, field: u32) -> u64 {
        u64::from(field + self.growth)
    }

    /// Where an object counts its references: offset and length. The lower 32 bits of `ob_refcnt`,
    /// or `ob_ref_local` and `ob_ref_shared` (Include/object.h).
    pub fn references(&self) -> (u64, usize) {
        match self.growth {
            0 => (0, 4),
            _ => (12, 12),
        }
    }

    /// Whether what is at [`Self::references`] are those of an object that is not freed. Two bits
    /// of `ob_ref_shared` are flags (Include/refcount.h).
    pub fn is_referred_to(&self, references: &[u8]) -> bool {
        const FLAG_BITS: u32 = 2;
        let (local, shared) = references.split_at(references.len().min(4));
        let shared = shared
            .first_chunk()
            .map_or(0, |word| i64::from_le_bytes(*word));
        local.iter().any(|&byte| byte != 0) || shared >> FLAG_BITS > 0
    }

    /// Offset of `ob_type`.
    pub fn type_offset(&self) -> u32 {
        OBJECT_TYPE + self.growth
    }

    /// The same version's layout without a GIL: objects have no garbage collector's head before
    /// them, and a larger one of their own.
    pub(super) fn free_threaded(self) -> Self {
        Self {
            growth: FREE_THREADED_GROWTH,
            managed_dict: 8,
            cached_keys: self.cached_keys + FREE_THREADED_GROWTH,
            tuple_items: self.tuple_items + FREE_THREADED_GROWTH,
            ..self
        }
    }
}

pub const V3_10: ObjectLayout = ObjectLayout {
    growth: 0,
    managed_dict: 24,
    attributes: Attributes::AtOffset,
    keys: KeysForm::Sized,
    values: 0,
    cached_keys: 872,
    tells_replaced: true,
    tuple_items: 24,
    frame_globals: 48,
};

pub const V3_11: ObjectLayout = ObjectLayout {
    attributes: Attributes::ValuesOrDict,
    keys: KeysForm::Log2,
    frame_globals: 8,
    ..V3_10
};

pub const V3_12: ObjectLayout = ObjectLayout {
    attributes: Attributes::Tagged,
    cached_keys: 880,
    frame_globals: 24,
    ..V3_11
};

pub const V3_13: ObjectLayout = ObjectLayout {
    attributes: Attributes::Inline,
    values: 8,
    ..V3_12
};

pub const V3_14: ObjectLayout = ObjectLayout {
    tells_replaced: false,
    tuple_items: 32,
    ..V3_13
};

/// CPython 3.15, which added a slot to PyTypeObject.
pub const V3_15: ObjectLayout = ObjectLayout {
    cached_keys: 888,
    ..V3_14
};

/// `PyTypeObject.tp_name`: a C string.
pub const TYPE_NAME: u32 = 24;
/// `PyTypeObject.tp_basicsize`.
pub const TYPE_BASIC_SIZE: u32 = 32;
/// `PyTypeObject.tp_flags`.
pub const TYPE_FLAGS: u32 = 168;
/// `PyTypeObject.tp_dict`.
pub const TYPE_DICT: u32 = 264;
/// `PyTypeObject.tp_dictoffset`.
pub const TYPE_DICT_OFFSET: u32 = 288;
/// `PyTypeObject.tp_mro`: a tuple; its length has the offset of every variable-sized object (16).
pub const TYPE_MRO: u32 = 344;

/// `Py_TPFLAGS_INLINE_VALUES` (3.13 on).
pub const FLAG_INLINE_VALUES: u64 = 1 << 2;
/// `Py_TPFLAGS_MANAGED_DICT` (3.11 on).
pub const FLAG_MANAGED_DICT: u64 = 1 << 4;
/// `Py_TPFLAGS_HEAPTYPE`.
pub const FLAG_HEAP_TYPE: u64 = 1 << 9;
/// `Py_TPFLAGS_DICT_SUBCLASS`.
pub const FLAG_DICT: u64 = 1 << 29;

/// `ob_size` of a variable-sized object.
pub const LENGTH: u32 = 16;
/// `PyListObject.ob_item`.
pub const LIST_ITEMS: u32 = 24;
/// `PyDictObject.ma_used`; a version or watcher's tag, `ma_keys` and `ma_values` follow.
pub const DICT_USED: u32 = 16;
/// `PyDictObject.ma_keys`; `ma_values` follows.
pub const DICT_KEYS: u32 = 32;
/// The first byte of `PyDictKeysObject` that is used: `dk_refcnt` comes before it.
pub const KEYS_SIZE: u32 = 8;
/// `PyDictKeysObject.dk_nentries` up to 3.10, `dk_indices` of it.
pub const SIZED_KEYS: (u32, u32) = (32, 40);
/// The same from 3.11 on.
pub const LOG2_KEYS: (u32, u32) = (24, 32);
/// `PyDictValues.valid` (3.13 on).
pub const VALUES_VALID: u32 = 3;
/// `PyCellObject.ob_ref`.
pub const CELL_CONTENTS: u32 = 16;
/// The first digit of an `int`: 1 for True, 0 for False. Include/cpython/longintrepr.h; after
/// `ob_size` or `lv_tag`.
pub const INT_DIGIT: u32 = 24;
/// Distance of an instance's pointer to its values before it: 3.11.
pub const MANAGED_VALUES: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_without_references_is_freed() {
        let layout = |growth| ObjectLayout { growth, ..V3_13 };
        let (with_gil, without) = (layout(0), layout(FREE_THREADED_GROWTH));
        for (count, is_alive) in [(0_u32, false), (1, true), (1 << 31, true)] {
            assert_eq!(with_gil.is_referred_to(&count.to_le_bytes()), is_alive);
        }
        // The flags of a count that was merged, and of one whose owner has it still.
        for (local, shared, is_alive) in [
            (1_u32, 0_i64, true),
            (u32::MAX, 0, true),
            (0, 3, false),
            (0, 1 << 2 | 3, true),
            (0, 0, false),
        ] {
            let bytes = [&local.to_le_bytes()[..], &shared.to_le_bytes()].concat();
            assert_eq!(bytes.len(), without.references().1);
            assert_eq!(without.is_referred_to(&bytes), is_alive, "{local} {shared}");
        }
    }
}
