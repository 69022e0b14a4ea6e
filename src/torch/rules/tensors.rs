//! Where a tensor keeps its memory: storage, gradient, types and devices.

use super::progress::{TensorLayout, element_type};

/// `_parameters` and `_buffers` of a module: dictionaries by name; values may be None. Source:
/// torch/nn/modules/module.py, 2.0 to 2.15.
pub const MODULE_PARAMETERS: &str = "_parameters";
/// See [`MODULE_PARAMETERS`].
pub const MODULE_BUFFERS: &str = "_buffers";
/// The class that every tensor derives from. Source: torch/_tensor.py.
pub const TENSOR: &str = "Tensor";

/// `storage_` and `autograd_meta_` of `TensorImpl`: pointers before `extra_meta_` and
/// `version_counter_`. Source: c10/core/TensorImpl.h, 2.0 to 2.15.
pub fn storage_field(layout: &TensorLayout) -> u32 {
    layout.counter - 24
}

/// See [`storage_field`].
pub fn autograd_field(layout: &TensorLayout) -> u32 {
    layout.counter - 16
}

/// Fields of `StorageImpl`: virtual table, reference count (one word; two up to 2.1), `data_ptr_`
/// (the data, a context and its deleter, the device), `size_bytes_` (a `SymInt`, negative where it
/// is not a number). Source: c10/core/StorageImpl.h, c10/core/Allocator.h (`DataPtr`),
/// c10/util/UniqueVoidPtr.h, 2.0 to 2.15.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageLayout {
    /// `data_ptr_`'s pointer to the data.
    pub data: u32,
    /// Kind and index of the device, two bytes.
    pub device: u32,
    /// `size_bytes_`.
    pub size: u32,
}

/// The layout of a storage, by that of its tensor: both have as many words of reference counts.
pub fn storage_layout(layout: &TensorLayout) -> StorageLayout {
    let growth = layout.version - 16;
    StorageLayout {
        data: 16 + growth,
        device: 40 + growth,
        size: 48 + growth,
    }
}

/// `grad_` of `AutogradMeta`, after the virtual table and `std::string name_`: a string has 32
/// bytes, and, where it is short, begins with a pointer to its third word; 8 bytes in builds with
/// the C++ library's ABI before C++ 11 (wheels up to 2.6). Source:
/// torch/csrc/autograd/variable.h, 2.0 to 2.15.
pub const GRADIENT: u32 = 40;
/// See [`GRADIENT`].
pub const GRADIENT_OLD_STRING: u32 = 16;

/// A type of elements: its name and the bytes of one. Source: c10/core/ScalarType.h,
/// `AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS`, of 2.15; earlier versions have fewer.
pub fn element(number: u16) -> Option<(&'static str, u64)> {
    Some(match number {
        0 => ("uint8", 1),
        1 => ("int8", 1),
        2 => ("int16", 2),
        3 => ("int32", 4),
        4 => ("int64", 8),
        8 => ("complex32", 4),
        10 => ("complex128", 16),
        11 => ("bool", 1),
        12 => ("qint8", 1),
        13 => ("quint8", 1),
        14 => ("qint32", 4),
        16 => ("quint4x2", 1),
        17 => ("quint2x4", 1),
        18..=21 => ("bits8", 1),
        22 => ("bits16", 2),
        25 => ("float8_e5m2fnuz", 1),
        26 => ("float8_e4m3fnuz", 1),
        27 => ("uint16", 2),
        28 => ("uint32", 4),
        29 => ("uint64", 8),
        30..=36 => ("uint1 to uint7", 1),
        37..=43 => ("int1 to int7", 1),
        44 => ("float8_e8m0fnu", 1),
        45 => ("float4_e2m1fn_x2", 1),
        _ => (element_type(number)?, known_bytes(number)?),
    })
}

fn known_bytes(number: u16) -> Option<u64> {
    Some(match number {
        23 | 24 => 1,
        5 | 15 => 2,
        6 => 4,
        7 | 9 => 8,
        _ => return None,
    })
}

/// Devices by number. Source: c10/core/DeviceType.h.
pub fn device_type(number: u8) -> Option<&'static str> {
    Some(match number {
        0 => "cpu",
        1 => "cuda",
        6 => "hip",
        9 => "xla",
        12 => "xpu",
        13 => "mps",
        META_DEVICE => "meta",
        15 => "hpu",
        20 => "privateuse1",
        _ => return None,
    })
}

/// The device whose tensors have no memory.
pub const META_DEVICE: u8 = 14;
