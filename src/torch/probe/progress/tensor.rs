//! A parameter's version: how often it was changed in place. An optimizer's step changes each of
//! its parameters a constant number of times.

use super::watch::{Guard, Number, Watch};
use crate::memory::Memory;
use crate::torch::rules::progress::{TENSOR_LAYOUTS, TENSOR_POINTERS, TensorLayout, element_type};
use crate::torch::rules::tensors;

/// More references than a tensor's parts ever have.
const MAX_REFERENCES: u32 = 1 << 24;
/// Versions above this are not plausible.
const MAX_VERSION: u32 = 1 << 31;

/// A tensor of the target with a verified layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tensor {
    implementation: u64,
    layout: TensorLayout,
    counter: u64,
}

impl Tensor {
    /// The tensor whose Python object is at `object`, the head of which is `growth` bytes larger
    /// than in a build with a GIL; `None` if the memory there is inconsistent: the `TensorImpl`
    /// must point back to the Python object, and its version counter must be plausible.
    pub(super) fn at(object: u64, growth: u32, memory: &dyn Memory) -> Option<Self> {
        for offset in TENSOR_POINTERS {
            let implementation = memory
                .read_u64(object.wrapping_add((offset + growth).into()))
                .ok()?;
            if !is_pointer(implementation) {
                continue;
            }
            for layout in TENSOR_LAYOUTS {
                let tensor = Self {
                    implementation,
                    layout,
                    counter: 0,
                };
                if let Some(tensor) = tensor.proven(object, memory) {
                    return Some(tensor);
                }
            }
        }
        None
    }

    fn proven(mut self, object: u64, memory: &dyn Memory) -> Option<Self> {
        let word = |offset: u32| {
            let address = self.implementation.wrapping_add(offset.into());
            memory.read_u64(address).ok()
        };
        // Up to 2.10 the lowest bit shows which of the two objects owns the other.
        if word(self.layout.python)? & !1 != object {
            return None;
        }
        let counter = word(self.layout.counter)?;
        if !is_pointer(counter) {
            return None;
        }
        // A table of functions, a plausible number of references, a plausible version.
        let table = memory.read_u64(counter).ok()?;
        let references = memory.read_u32(counter.wrapping_add(8)).ok()?;
        let version = memory
            .read_u32(counter.wrapping_add(self.layout.version.into()))
            .ok()?;
        let holds = is_pointer(table)
            && memory.read_u64(table).is_ok_and(|function| function != 0)
            && (1..MAX_REFERENCES).contains(&references)
            && version < MAX_VERSION;
        self.counter = counter;
        holds.then_some(self)
    }

    /// The type of its elements; `None` for types that no model computes with.
    pub(super) fn element_type(&self, memory: &dyn Memory) -> Option<&'static str> {
        let address = self
            .implementation
            .wrapping_add(self.layout.data_type.into());
        let mut bytes = [0; 2];
        memory.read_exact(address, &mut bytes).ok()?;
        element_type(u16::from_le_bytes(bytes))
    }

    /// How its version is read.
    pub(super) fn watch(&self, memory: &dyn Memory) -> Option<Watch> {
        // From the pointer to the counter to the pointer back to the Python object.
        let first = self.layout.counter;
        let length = self.layout.python + 8 - first;
        let own = self.implementation.wrapping_add(first.into());
        let guards = vec![
            Guard::take(own, length as usize, memory).ok()?,
            Guard::take(self.counter, 8, memory).ok()?,
        ];
        Some(Watch {
            object: 0,
            guards,
            number: Number::Word {
                address: self.counter.wrapping_add(self.layout.version.into()),
            },
        })
    }
}

/// Maximum number of dimensions that are shown.
const MAX_DIMENSIONS: u64 = 16;
/// Maximum number of dimensions stored in the tensor itself (c10/core/impl/SizesAndStrides.h,
/// `C10_SIZES_AND_STRIDES_MAX_INLINE_SIZE`).
const INLINE_DIMENSIONS: u64 = 5;

/// Class, shape, type of elements and device of a tensor as text; `None` if its layout cannot be
/// verified.
pub fn describe_tensor(
    object: u64,
    growth: u32,
    class: &str,
    memory: &dyn Memory,
) -> Option<String> {
    let tensor = Tensor::at(object, growth, memory)?;
    let shape: Vec<String> = tensor.shape(memory)?.iter().map(u64::to_string).collect();
    let element = tensor.number(tensor.layout.data_type, memory)?;
    let element = tensors::element(element).map_or("another type", |(name, _)| name);
    let device = tensor.device(memory);
    Some(format!(
        "{class} ({}) {element} {}",
        shape.join(", "),
        device.as_deref().unwrap_or("device not known")
    ))
}

impl Tensor {
    fn number(&self, offset: u32, memory: &dyn Memory) -> Option<u16> {
        let mut bytes = [0; 2];
        let address = self.implementation.wrapping_add(offset.into());
        memory.read_exact(address, &mut bytes).ok()?;
        Some(u16::from_le_bytes(bytes))
    }

    /// `sizes_and_strides_`: the number of dimensions, and the sizes or a pointer to them.
    pub(super) fn shape(&self, memory: &dyn Memory) -> Option<Vec<u64>> {
        let first = u64::from(self.layout.python) + 8;
        let word = |offset: u64| {
            memory
                .read_u64(self.implementation.wrapping_add(offset))
                .ok()
        };
        let dimensions = word(first)?;
        if dimensions > MAX_DIMENSIONS {
            return None;
        }
        let sizes = match dimensions {
            ..=INLINE_DIMENSIONS => self.implementation.wrapping_add(first + 8),
            _ => word(first + 8).filter(|&sizes| is_pointer(sizes))?,
        };
        (0..dimensions)
            .map(|index| {
                let size = memory.read_u64(sizes.wrapping_add(index * 8)).ok()?;
                (size < 1 << 48).then_some(size)
            })
            .collect()
    }

    /// `device_opt_`, after the type: kind, index, whether there is one (c10/core/Device.h).
    fn device(&self, memory: &dyn Memory) -> Option<String> {
        let address = self
            .implementation
            .wrapping_add(u64::from(self.layout.data_type) + 2);
        let mut bytes = [0; 3];
        memory.read_exact(address, &mut bytes).ok()?;
        let [kind, index, 1] = bytes else {
            return None;
        };
        let name = tensors::device_type(kind)?;
        Some(match index as i8 {
            ..0 => name.to_owned(),
            index => format!("{name}:{index}"),
        })
    }
}

pub(in crate::torch::probe) fn is_pointer(word: u64) -> bool {
    word.is_multiple_of(8) && (0x1000..1 << 47).contains(&word)
}
