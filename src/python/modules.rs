//! Modules that a process has imported (`sys.modules`), and their global variables.

use super::dicts::{Entry, MAX_ENTRIES, TypeFacts, read_entries, read_table, read_type};
use super::discover::Interpreter;
use super::objects::{ObjectError, read_str};
use super::threads::read_interpreters;
use crate::memory::{Memory, read_each};

/// `md_dict` of a module. Source: Objects/moduleobject.c of 3.10, and
/// Include/internal/pycore_moduleobject.h of 3.11 to 3.13 (`PyModuleObject`).
const MODULE_DICT: u32 = 16;
/// Maximum number of modules: Megatron Core and what it imports are some 3,000.
const MAX_MODULES: usize = 1 << 15;

/// The global variables of the module `name`; `None` if it is not imported. Of several interpreters
/// the newest that has it counts.
///
/// # Errors
/// [`ObjectError`]: also where modules are being imported at the same time.
pub fn read_module(
    interpreter: &Interpreter,
    name: &str,
    memory: &dyn Memory,
) -> Result<Option<Vec<Entry>>, ObjectError> {
    Ok(read_modules(interpreter, name, memory)?.into_iter().next())
}

/// The same of each interpreter that has imported it. Of the names of all modules only those of the
/// same length are read.
///
/// # Errors
/// As [`read_module`].
pub fn read_modules(
    interpreter: &Interpreter,
    name: &str,
    memory: &dyn Memory,
) -> Result<Vec<Vec<Entry>>, ObjectError> {
    let layout = &interpreter.layout;
    let mut all = Vec::new();
    for state in read_interpreters(interpreter, memory)? {
        let modules = memory.read_u64(state.wrapping_add(layout.interpreter.modules.into()))?;
        let modules = entries_of(interpreter, modules, MAX_MODULES, memory)?;
        let lengths = modules.iter();
        let lengths = lengths.map(|each| each.key.wrapping_add(layout.unicode.length.into()));
        let lengths = read_each(&lengths.collect::<Vec<_>>(), memory)?;
        let lengths = lengths.into_iter().map(u64::from_le_bytes);
        let mut alike = modules.iter().zip(lengths);
        let found = alike.find(|(each, length)| {
            *length == name.len() as u64
                && read_str(layout, each.key, name.len(), memory).is_ok_and(|text| text == name)
        });
        if let Some((module, _)) = found {
            let place = module.value.wrapping_add(layout.objects.at(MODULE_DICT));
            let variables = memory.read_u64(place)?;
            all.push(entries_of(interpreter, variables, MAX_ENTRIES, memory)?);
        }
    }
    Ok(all)
}

/// The entries of a dictionary.
fn entries_of(
    interpreter: &Interpreter,
    dict: u64,
    most: usize,
    memory: &dyn Memory,
) -> Result<Vec<Entry>, ObjectError> {
    let objects = &interpreter.layout.objects;
    let of_type = read_type(objects, dict, memory)?;
    if !TypeFacts::read(objects, of_type, memory)?.is_dict() {
        return Err(ObjectError::Invalid);
    }
    let table = read_table(objects, dict, memory)?;
    read_entries(objects, &table, most, memory)
}
