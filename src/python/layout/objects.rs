//! Where objects keep their attributes, and dictionaries their entries, by version.
//!
//! Source: Include/cpython/object.h (`PyTypeObject`, `PyHeapTypeObject`),
//! Include/cpython/tupleobject.h, Include/cpython/dictobject.h (`PyDictObject`),
//! Include/internal/pycore_dict.h (`struct _dictkeysobject`, `struct _dictvalues`; 3.10:
//! Objects/dict-common.h) and Include/internal/pycore_object.h (`MANAGED_DICT_OFFSET`,
//! `_PyObject_InlineValues`) of 3.10.13, 3.11.7, 3.12.1, 3.13.0 and 3.14:
//! `https://github.com/python/cpython/tree/3.NN/Include`. Builds with a GIL, 64 bits.

/// Layout of the objects of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectLayout {
    /// Where an instance keeps its attributes.
    pub attributes: Attributes,
    /// The form of a dictionary's keys.
    pub keys: KeysForm,
    /// Where the values begin in what `ma_values` points to.
    pub values: u32,
    /// `PyHeapTypeObject.ht_cached_keys`; `None` where it is not known.
    pub cached_keys: Option<u32>,
    /// Whether a dictionary tells that a value was put in the place of another: `ma_version_tag`,
    /// up to 3.13 (PEP 699).
    pub tells_replaced: bool,
    /// `PyTupleObject.ob_item`. 3.14 put the tuple's hash before it.
    pub tuple_items: u32,
    /// `f_globals` of a frame. 3.10: Include/cpython/frameobject.h; 3.11 to 3.13:
    /// Include/internal/pycore_frame.h; later: Include/internal/pycore_interpframe_structs.h.
    pub frame_globals: u32,
}

/// Where an instance keeps its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attributes {
    /// 3.10: a dictionary at `tp_dictoffset`.
    AtOffset,
    /// 3.11: before the object a pointer to values, and one to a dictionary.
    ValuesOrDict,
    /// 3.12: before the object a pointer to a dictionary, or, with bit 0 set, to one byte before
    /// the values.
    Tagged,
    /// 3.13 on: before the object a pointer to a dictionary; where it is null, the values lie
    /// behind the object.
    Inline,
}

/// How `PyDictKeysObject` begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysForm {
    /// 3.10: `dk_refcnt`, `dk_size`, `dk_lookup`, `dk_usable`, `dk_nentries`, indices; entries of
    /// three words.
    Sized,
    /// 3.11 on: `dk_refcnt`, `dk_log2_size`, `dk_log2_index_bytes`, `dk_kind`, `dk_version`,
    /// `dk_usable`, `dk_nentries`, indices; entries of three words, or of two where all keys are
    /// strings.
    Log2,
}

/// CPython 3.10.
pub const V3_10: ObjectLayout = ObjectLayout {
    attributes: Attributes::AtOffset,
    keys: KeysForm::Sized,
    values: 0,
    cached_keys: Some(872),
    tells_replaced: true,
    tuple_items: 24,
    frame_globals: 48,
};

/// CPython 3.11.
pub const V3_11: ObjectLayout = ObjectLayout {
    attributes: Attributes::ValuesOrDict,
    keys: KeysForm::Log2,
    frame_globals: 8,
    ..V3_10
};

/// CPython 3.12.
pub const V3_12: ObjectLayout = ObjectLayout {
    attributes: Attributes::Tagged,
    cached_keys: Some(880),
    frame_globals: 24,
    ..V3_11
};

/// CPython 3.13.
pub const V3_13: ObjectLayout = ObjectLayout {
    attributes: Attributes::Inline,
    values: 8,
    ..V3_12
};

/// CPython 3.14.
pub const V3_14: ObjectLayout = ObjectLayout {
    tells_replaced: false,
    tuple_items: 32,
    ..V3_13
};

/// CPython 3.15, which put a slot into PyTypeObject.
pub const V3_15: ObjectLayout = ObjectLayout {
    cached_keys: None,
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
/// `PyTypeObject.tp_mro`: a tuple; its length is where that of every variable-sized object is (16).
pub const TYPE_MRO: u32 = 344;

/// `Py_TPFLAGS_INLINE_VALUES` (3.13 on).
pub const FLAG_INLINE_VALUES: u64 = 1 << 2;
/// `Py_TPFLAGS_MANAGED_DICT` (3.11 on).
pub const FLAG_MANAGED_DICT: u64 = 1 << 4;
/// `Py_TPFLAGS_HEAPTYPE`.
pub const FLAG_HEAP_TYPE: u64 = 1 << 9;
/// `Py_TPFLAGS_DICT_SUBCLASS`.
pub const FLAG_DICT: u64 = 1 << 29;

/// `PyDictObject.ma_used`; a version or watcher's tag, `ma_keys` and `ma_values` follow.
pub const DICT_USED: u32 = 16;
/// `PyDictObject.ma_keys`; `ma_values` follows.
pub const DICT_KEYS: u32 = 32;
/// The first byte of `PyDictKeysObject` that says something: `dk_refcnt` comes before it.
pub const KEYS_SIZE: u32 = 8;
/// `PyDictKeysObject.dk_nentries` up to 3.10, `dk_indices` of it.
pub const SIZED_KEYS: (u32, u32) = (32, 40);
/// The same from 3.11 on.
pub const LOG2_KEYS: (u32, u32) = (24, 32);
/// `PyDictValues.valid` (3.13 on).
pub const VALUES_VALID: u32 = 3;
/// `PyCellObject.ob_ref`.
pub const CELL_CONTENTS: u32 = 16;
/// The first digit of an `int`: 1 of True, 0 of False. Include/cpython/longintrepr.h; behind
/// `ob_size` or `lv_tag`.
pub const INT_DIGIT: u32 = 24;
/// Where an instance's pointers to dictionary and values lie before it: `MANAGED_DICT_OFFSET`, and
/// 3.11's values before that.
pub const MANAGED_DICT: u64 = 24;
/// See [`MANAGED_DICT`].
pub const MANAGED_VALUES: u64 = 32;
