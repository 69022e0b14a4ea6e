//! Tensors in the layouts of each version, and such as contradict themselves.

use super::*;
use crate::memory::SnapshotMemory;

const OBJECT: u64 = 0x1000;
const TENSOR: u64 = 0x2000;
const AUTOGRAD_META: u64 = 0x3000;
const STORAGE_AT: u64 = 0x4000;
const GRADIENT_AT: u64 = 0x5000;
const TABLE: u64 = 0x6000;

fn put(bytes: &mut [u8], at: u32, word: u64) {
    bytes[at as usize..at as usize + 8].copy_from_slice(&word.to_le_bytes());
}

/// A `TensorImpl` of 2 times 3 bfloat16 on cuda:1, from the fourth element of its storage on.
fn tensor(layout: &TensorLayout, python: u64, autograd: u64) -> Vec<u8> {
    let mut bytes = vec![0; HEAD];
    let sizes = layout.python + 8;
    for (at, word) in [
        (0, TABLE),
        (8, 1),
        (storage_field(layout), STORAGE_AT),
        (autograd_field(layout), autograd),
        (layout.python, python),
        (sizes, 2),
        (sizes + 8, 2),
        (sizes + 16, 3),
        (sizes + 48, 3),
        (sizes + 56, 1),
        (sizes + 88, 4),
        (sizes + 96, 6),
    ] {
        put(&mut bytes, at, word);
    }
    let at = layout.data_type as usize;
    bytes[at..at + 5].copy_from_slice(&[15, 0, 1, 1, 1]);
    bytes
}

/// The parameter, its gradient (in the same storage) and the storage; `change` spoils one.
fn memory(
    pointer: u32,
    layout: &TensorLayout,
    change: impl Fn(&mut [Vec<u8>; 3]),
) -> SnapshotMemory {
    let fields = storage_layout(layout);
    let mut storage = vec![0; STORAGE];
    put(&mut storage, 0, TABLE);
    put(&mut storage, 8, 2);
    put(&mut storage, fields.data, 0x7f00_0000_0000);
    put(&mut storage, fields.device, 0xff00_0101);
    put(&mut storage, fields.size, 64);
    let mut parts = [
        tensor(layout, OBJECT, AUTOGRAD_META),
        storage,
        tensor(layout, 0, 0),
    ];
    change(&mut parts);
    let mut object = vec![0; 32];
    put(&mut object, pointer, TENSOR);
    let mut autograd = vec![0; AUTOGRAD];
    put(&mut autograd, 8, AUTOGRAD_META + 24);
    put(&mut autograd, GRADIENT, GRADIENT_AT);
    let mut memory = SnapshotMemory::default();
    let [tensor, storage, gradient] = parts;
    for (address, bytes) in [
        (OBJECT, object),
        (TENSOR, tensor),
        (STORAGE_AT, storage),
        (GRADIENT_AT, gradient),
        (AUTOGRAD_META, autograd),
    ] {
        memory.insert(address, bytes);
    }
    memory
}

fn read(memory: &SnapshotMemory) -> TensorFacts {
    read_tensors(&[OBJECT], 0, true, memory)[0]
}

#[test]
fn each_layout_is_recognized_by_its_pointer_back() {
    for layout in TENSOR_LAYOUTS {
        for pointer in TENSOR_POINTERS {
            let facts = read(&memory(pointer, &layout, |_| {}));
            let extent = facts.own.unwrap();
            assert_eq!((extent.start, extent.end), (8, 20), "{layout:?}");
            assert_eq!((extent.storage, extent.storage_bytes), (STORAGE_AT, 64));
            assert_eq!((extent.dtype, extent.device), ("bfloat16", (1, 1)));
            assert_eq!(facts.gradient.unwrap().extent, Ok(extent));
        }
    }
}

#[test]
fn what_contradicts_itself_is_refused() {
    type Spoil = (u32, u64, Unread);
    let layout = TENSOR_LAYOUTS[0];
    let sizes = layout.python + 8;
    let of_tensor: [Spoil; 7] = [
        (0, 7, Unread::NotATensor),
        (8, 0, Unread::NotATensor),
        (layout.python, OBJECT + 8, Unread::NotATensor),
        (sizes + 8, 5, Unread::Inconsistent),
        (sizes + 56, 100, Unread::Inconsistent),
        (sizes + 88, 100, Unread::Inconsistent),
        (layout.data_type, 99, Unread::UnknownType),
    ];
    for (at, word, why) in of_tensor {
        let facts = read(&memory(16, &layout, |parts| put(&mut parts[0], at, word)));
        assert_eq!(facts.own, Err(why), "tensor + {at}");
    }
    let fields = storage_layout(&layout);
    let of_storage: [Spoil; 5] = [
        (8, 0, Unread::Inconsistent),
        (fields.device, 0x0001, Unread::Inconsistent),
        (fields.size, 19, Unread::Inconsistent),
        (fields.size, u64::MAX, Unread::Inconsistent),
        (fields.data, 0, Unread::NoStorage),
    ];
    for (at, word, why) in of_storage {
        let facts = read(&memory(16, &layout, |parts| put(&mut parts[1], at, word)));
        assert_eq!(facts.own, Err(why), "storage + {at}");
    }
    let other = |at, word| {
        let facts = read(&memory(16, &layout, |parts| put(&mut parts[2], at, word)));
        facts.gradient.map(|gradient| gradient.extent.unwrap_err())
    };
    assert_eq!(other(sizes + 96, 7), Some(Unread::Inconsistent));
    assert_eq!(other(0, TABLE + 8), Some(Unread::NoStorage));
}

#[test]
fn a_freed_storage_and_the_undefined_gradient_have_no_memory() {
    let layout = TENSOR_LAYOUTS[1];
    let size = storage_layout(&layout).size;
    let freed = read(&memory(24, &layout, |parts| put(&mut parts[1], size, 0)));
    assert_eq!(freed.own.map(|extent| extent.storage_bytes), Ok(0));
    let facts = read(&memory(24, &layout, |parts| {
        put(&mut parts[2], 0, TABLE + 8);
        put(&mut parts[2], storage_field(&layout), 0);
        put(&mut parts[2], layout.python + 104, 0);
    }));
    assert_eq!(facts.gradient, None);
}
