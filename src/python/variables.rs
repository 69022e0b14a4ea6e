//! Variables of frames, and the values that their evaluation stacks certainly hold.
//!
//! A value beyond the top of an evaluation stack was popped, and may have been freed; a running
//! frame does not record where the top is. But the exception table has the minimum depth of the
//! stack for each instruction within a `with` or `try` block, and a `with` block keeps the method
//! to call at its end there.
//!
//! Offsets are those of CPython's `PyCodeObject` of 3.11 to 3.15 (Include/cpython/code.h:
//! `co_exceptiontable`, `co_localsplusnames`), checked on live interpreters; 3.10 has other names
//! and no exception table, so only its variables are read.

use super::dicts::{InstanceDict, TypeFacts, read_entries, read_table, read_type};
use super::discover::Interpreter;
use super::frames::PythonFrame;
use super::layout::objects::{CELL_CONTENTS, LENGTH, ObjectLayout};
use super::objects::{ObjectError, read_bytes_object, read_str};
use crate::memory::Memory;
use crate::model::frame::Frame;

/// Maximum number of variables of a frame that are read.
pub const MAX_VARIABLES: u64 = 128;
/// Maximum number of values of an evaluation stack that are read.
const MAX_VALUES: u64 = 64;
const MAX_NAME: usize = 128;
/// Maximum bytes of an exception table.
const MAX_TABLE: usize = 1 << 16;
/// Maximum number of attributes of an instance that are read.
const MAX_ATTRIBUTES: usize = 512;
/// `co_exceptiontable` from 3.11 on.
const EXCEPTION_TABLE: u32 = 40;
/// `co_localsplusnames` from 3.11 on: a tuple.
const NAMES: u32 = 96;
/// `co_varnames`, `co_cellvars` and `co_freevars` of 3.10, in the order of a frame's variables.
const NAMES_3_10: [u32; 3] = [72, 88, 80];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    pub name: String,
    /// Its object; for a variable that an inner function uses, the content of its cell.
    pub object: u64,
}

/// The names of a function's variables, in the order of a frame's slots.
///
/// # Errors
/// [`ObjectError`].
pub fn variable_names(
    interpreter: &Interpreter,
    code: u64,
    memory: &dyn Memory,
) -> Result<Vec<String>, ObjectError> {
    let tuples: &[u32] = match interpreter.version.minor {
        ..=10 => &NAMES_3_10,
        _ => &[NAMES],
    };
    let objects = &interpreter.layout.objects;
    let items = u64::from(objects.tuple_items);
    let mut names = Vec::new();
    for offset in tuples {
        let tuple = memory.read_u64(code.wrapping_add(objects.at(*offset)))?;
        let length = memory.read_u64(tuple.wrapping_add(objects.at(LENGTH)))?;
        if length > MAX_VARIABLES {
            return Err(ObjectError::TooLong);
        }
        for index in 0..length {
            let place = tuple.wrapping_add(items + index * 8);
            let name = memory.read_u64(place)?;
            names.push(read_str(&interpreter.layout, name, MAX_NAME, memory)?);
        }
    }
    Ok(names)
}

/// The variables of `frame` that have a value and a wanted name, in the order of their slots.
/// `names` are its [`variable_names`].
///
/// # Errors
/// [`ObjectError`].
pub fn read_variables(
    interpreter: &Interpreter,
    frame: &PythonFrame,
    names: &[String],
    memory: &dyn Memory,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Vec<Variable>, ObjectError> {
    let layout = &interpreter.layout.frame;
    let first = frame.frame_address.wrapping_add(layout.localsplus.into());
    let mut variables = Vec::new();
    for (index, name) in names.iter().enumerate() {
        if !is_wanted(name) {
            continue;
        }
        let slot = memory.read_u64(first.wrapping_add(index as u64 * 8))? & !layout.tag_mask;
        if slot == 0 || !slot.is_multiple_of(8) {
            continue;
        }
        let object = out_of_cell(&interpreter.layout.objects, slot, memory);
        if object != 0 {
            let name = name.clone();
            variables.push(Variable { name, object });
        }
    }
    Ok(variables)
}

/// The content of a cell; any other object is returned unchanged.
fn out_of_cell(layout: &ObjectLayout, object: u64, memory: &dyn Memory) -> u64 {
    let class = class_of(layout, object, memory);
    match class.as_deref() {
        Ok("cell") => memory
            .read_u64(object.wrapping_add(layout.at(CELL_CONTENTS)))
            .unwrap_or(0),
        _ => object,
    }
}

/// The class of an object.
///
/// # Errors
/// [`ObjectError`].
pub fn class_of(
    layout: &ObjectLayout,
    object: u64,
    memory: &dyn Memory,
) -> Result<String, ObjectError> {
    Ok(TypeFacts::read(layout, read_type(layout, object, memory)?, memory)?.name)
}

/// The values that the evaluation stack of `frame` certainly holds: those below the depth of its
/// current block.
///
/// # Errors
/// [`ObjectError`].
pub fn read_block_values(
    interpreter: &Interpreter,
    frame: &PythonFrame,
    memory: &dyn Memory,
) -> Result<Vec<u64>, ObjectError> {
    if interpreter.version.minor <= 10 || frame.instruction == Frame::NO_INSTRUCTION {
        return Ok(Vec::new());
    }
    let code = frame.code_address;
    let objects = &interpreter.layout.objects;
    let table = memory.read_u64(code.wrapping_add(objects.at(EXCEPTION_TABLE)))?;
    let table = read_bytes_object(&interpreter.layout, table, MAX_TABLE, memory)?;
    let depth = block_depth(&table, frame.instruction / 2).min(MAX_VALUES);
    let names = memory.read_u64(code.wrapping_add(objects.at(NAMES)))?;
    let variables = memory.read_u64(names.wrapping_add(objects.at(LENGTH)))?;
    if variables > MAX_VARIABLES {
        return Err(ObjectError::TooLong);
    }
    let layout = &interpreter.layout.frame;
    let first = frame
        .frame_address
        .wrapping_add(u64::from(layout.localsplus) + variables * 8);
    let mut values = Vec::new();
    for index in 0..depth {
        let value = memory.read_u64(first.wrapping_add(index * 8))? & !layout.tag_mask;
        if value != 0 && value.is_multiple_of(8) {
            values.push(value);
        }
    }
    Ok(values)
}

/// The minimum depth of the evaluation stack at code unit `unit`; 0 outside of blocks. Entries are
/// sorted by start: start, length, handler, depth and a flag, each as a number of six bits per
/// byte, most significant first (CPython Objects/exception_handling_notes.txt).
fn block_depth(table: &[u8], unit: u32) -> u64 {
    let mut bytes = table.iter().copied();
    let mut number = || -> Option<u64> {
        let mut value = 0_u64;
        for _ in 0..6 {
            let byte = bytes.next()?;
            value = value << 6 | u64::from(byte & 0x3f);
            if byte & 0x40 == 0 {
                return Some(value);
            }
        }
        None
    };
    while let (Some(start), Some(length), Some(_), Some(depth)) =
        (number(), number(), number(), number())
    {
        if (start..start.saturating_add(length)).contains(&unit.into()) {
            return depth >> 1;
        }
    }
    0
}

/// The attributes of an instance itself, by name.
///
/// # Errors
/// [`ObjectError`].
pub fn read_attributes(
    interpreter: &Interpreter,
    object: u64,
    memory: &dyn Memory,
) -> Result<Vec<Variable>, ObjectError> {
    let layout = interpreter.layout.objects;
    let facts = TypeFacts::read(&layout, read_type(&layout, object, memory)?, memory)?;
    let table = match facts.attributes(&layout, object, memory)? {
        None => return Ok(Vec::new()),
        Some(InstanceDict::Values(table)) => table,
        Some(InstanceDict::Dict(dict)) => read_table(&layout, dict, memory)?,
    };
    let entries = read_entries(&layout, &table, MAX_ATTRIBUTES, memory)?;
    let mut attributes = Vec::with_capacity(entries.len());
    for entry in entries {
        if let Ok(name) = read_str(&interpreter.layout, entry.key, MAX_NAME, memory) {
            attributes.push(Variable {
                name,
                object: entry.value,
            });
        }
    }
    Ok(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_depth_of_the_block_around_an_instruction() {
        // Two entries: units 4 to 9 at depth 1, units 70 to 79 at depth 3 (70 = 1 << 6 | 6).
        let table = [0x84, 6, 30, 1 << 1, 0xc1, 6, 10, 30, 3 << 1 | 1];
        assert_eq!(block_depth(&table, 3), 0);
        assert_eq!(block_depth(&table, 4), 1);
        assert_eq!(block_depth(&table, 9), 1);
        assert_eq!(block_depth(&table, 75), 3);
        assert_eq!(block_depth(&table, 80), 0);
        assert_eq!(block_depth(&[0xff; 40], 1), 0);
        assert_eq!(block_depth(&[0x84], 4), 0);
    }
}
