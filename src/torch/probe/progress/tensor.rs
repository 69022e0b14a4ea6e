//! A parameter's version: how often it was changed in place. An optimizer's step changes each of its parameters a constant
//! number of times.

use super::watch::{Guard, Number, Watch};
use crate::memory::Memory;
use crate::torch::rules::progress::{TENSOR_LAYOUTS, TENSOR_POINTERS, TensorLayout, element_type};

/// More references than a tensor's parts ever have.
const MAX_REFERENCES: u32 = 1 << 24;
/// Versions past which it is no version.
const MAX_VERSION: u32 = 1 << 31;

/// A tensor of the target, its layout proven.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tensor {
    implementation: u64,
    layout: TensorLayout,
    counter: u64,
}

impl Tensor {
    /// The tensor whose Python object is at `object`; `None` where what lies there does not hold together: the
    /// `TensorImpl` must point back to the Python object, and its version counter must look like one.
    pub(super) fn at(object: u64, memory: &dyn Memory) -> Option<Self> {
        for offset in TENSOR_POINTERS {
            let implementation = memory.read_u64(object.wrapping_add(offset.into())).ok()?;
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
        // Up to 2.10 the lowest bit says who owns whom.
        if word(self.layout.python)? & !1 != object {
            return None;
        }
        let counter = word(self.layout.counter)?;
        if !is_pointer(counter) {
            return None;
        }
        // A table of functions, a sane number of references, a sane version.
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

    /// The type of its elements; `None` where it is none that a model computes with.
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

fn is_pointer(word: u64) -> bool {
    word.is_multiple_of(8) && (0x1000..1 << 47).contains(&word)
}
