//! Bytes of NumPy's arrays.
//!
//! `PyArrayObject_fields` (numpy/ndarraytypes.h, 1.x and 2.x alike): after the object's head the
//! data, the number of dimensions, their lengths, their strides in bytes, the object that has the
//! data if the array has none of its own, the type, and flags.

use crate::memory::Memory;
use crate::python::layout::objects::ObjectLayout;

/// The class of arrays, and the base of those in files, whose data another object has.
pub(super) const ARRAY: &str = "numpy.ndarray";

const DIMENSIONS: u32 = 24;
const LENGTHS: u32 = 32;
const STRIDES: u32 = 40;
const BASE: u32 = 48;
/// Maximum number of dimensions: `NPY_MAXDIMS` of 2.x.
const MAX_DIMENSIONS: usize = 64;
/// More bytes are not plausible.
const MAX_BYTES: u64 = 1 << 48;
/// An array without dimensions has one element of some bytes.
const ELEMENT: u64 = 8;

/// The bytes of an array, or the object that has them; 0 where there is none.
pub(super) fn array(layout: &ObjectLayout, object: u64, memory: &dyn Memory) -> (u64, u64) {
    let field = |field: u32| memory.read_u64(object.wrapping_add(layout.at(field)));
    match field(BASE) {
        Ok(0) => {}
        Ok(base) => return (0, base),
        Err(_) => return (0, 0),
    }
    let own = || -> Option<u64> {
        let dimensions = field(DIMENSIONS).ok()? as u32 as usize;
        if dimensions == 0 {
            return Some(ELEMENT);
        }
        if dimensions > MAX_DIMENSIONS {
            return None;
        }
        let words = |place: u32| memory.read_bytes(field(place).ok()?, 8 * dimensions).ok();
        let (lengths, strides) = (words(LENGTHS)?, words(STRIDES)?);
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, i64::from_le_bytes);
        let lengths = lengths.chunks_exact(8).map(word);
        let each = lengths.zip(strides.chunks_exact(8).map(word));
        // What is contiguous is as long as its slowest dimension.
        let bytes = each.map(|(length, stride)| {
            let length = u64::try_from(length).ok()?;
            length.checked_mul(stride.unsigned_abs())
        });
        let bytes: Vec<u64> = bytes.collect::<Option<_>>()?;
        match bytes.contains(&0) {
            true => Some(0),
            false => bytes.into_iter().max().filter(|&most| most <= MAX_BYTES),
        }
    };
    (own().unwrap_or(0), 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SnapshotMemory;
    use crate::python::layout::objects::V3_10;

    const AT: u64 = 0x1_0000;

    fn bytes_of(dimensions: u64, lengths: &[u64], strides: &[i64], base: u64) -> (u64, u64) {
        let mut memory = SnapshotMemory::default();
        let words = [1, 0, 0x5000, dimensions, AT + 0x1000, AT + 0x2000, base, 0];
        let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
        memory.insert(AT, bytes(&words));
        memory.insert(AT + 0x1000, bytes(lengths));
        let strides: Vec<u64> = strides.iter().map(|&stride| stride as u64).collect();
        memory.insert(AT + 0x2000, bytes(&strides));
        array(&V3_10, AT, &memory)
    }

    #[test]
    fn arrays_have_the_bytes_of_their_slowest_dimension() {
        assert_eq!(bytes_of(2, &[100, 50], &[400, 8], 0), (40_000, 0));
        assert_eq!(bytes_of(2, &[100, 50], &[8, 800], 0), (40_000, 0));
        assert_eq!(bytes_of(2, &[100, 0], &[8, 8], 0), (0, 0));
        assert_eq!(bytes_of(0, &[], &[], 0), (8, 0));
        // A view is as large as what it is a view of.
        assert_eq!(bytes_of(1, &[100], &[-16], 0x7000), (0, 0x7000));
        // No array.
        assert_eq!(bytes_of(1 << 20, &[], &[], 0), (0, 0));
        assert_eq!(bytes_of(1, &[u64::MAX], &[8], 0), (0, 0));
        assert_eq!(bytes_of(1, &[1 << 46], &[8], 0), (0, 0));
        assert_eq!(array(&V3_10, 0, &SnapshotMemory::default()), (0, 0));
    }
}
