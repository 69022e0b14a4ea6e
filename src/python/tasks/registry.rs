//! Where asyncio keeps its tasks.
//!
//! Up to 3.13 those of `_asyncio` are in sets of the module `asyncio.tasks` (Lib/asyncio/tasks.py):
//! `_all_tasks` (3.10, 3.11), `_scheduled_tasks` and `_eager_tasks` (3.12 on). From 3.14 on they
//! are in lists, one per thread and one per interpreter for those whose threads have ended
//! (Modules/_asynciomodule.c, `register_task`), and the sets have only tasks of other classes.
//! Where the lists are, the section `.AsyncioDebug` of the file with `_asyncio` says
//! (`Py_AsyncioModuleDebugOffsets`).

use crate::memory::Memory;
use crate::python::dicts::Entry;
use crate::python::discover::Interpreter;
use crate::python::layout::{MAX_STATE, MAX_THREAD};
use crate::python::objects::{ObjectError, read_str, u64_at};
use crate::python::threads::{read_interpreters, read_threads};
use crate::python::variables::{class_of, read_attributes};
use std::time::Instant;

/// The module whose variables are the sets.
pub(super) const MODULE: &str = "asyncio.tasks";
const SETS: [&str; 3] = ["_all_tasks", "_scheduled_tasks", "_eager_tasks"];
/// Longest of these names, bytes.
const MAX_NAME: usize = 16;
/// The attribute of a `weakref.WeakSet` with its references (Lib/_weakrefset.py).
const REFERENCES: &str = "data";
/// `PyWeakReference.wr_object` (Include/cpython/weakrefobject.h; 3.10: Include/weakrefobject.h).
const REFERENT: u32 = 16;
/// `PySetObject.mask`; `table` follows (Include/cpython/setobject.h; 3.10: Include/setobject.h). An
/// entry is a key and its hash; the hash of what was removed is -1.
const SET_MASK: u32 = 32;
const SET_TABLE: u32 = 40;
const ENTRY_BYTES: u64 = 16;
const REMOVED: u64 = u64::MAX;
/// How often a set or a list that changes is read.
const ATTEMPTS: usize = 3;
/// Maximum number of entries of a set, and of tasks: 65,536 take one or two seconds.
const MAX_ENTRIES: u64 = 1 << 22;
pub(super) const MAX_TASKS: usize = 1 << 16;

/// Where the lists of tasks are, and where in a task its link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskLists {
    /// `TaskObj.task_node`: a pointer to the next link.
    node: u32,
    /// `asyncio_tasks_head` of an interpreter's state, and of a thread's.
    of_interpreter: u32,
    of_thread: u32,
}

impl TaskLists {
    /// The section's name.
    pub const SECTION: &str = ".AsyncioDebug";
    /// Its size, bytes: three groups of 7, 2 and 4 numbers, of which each begins with a size.
    pub const BYTES: usize = 13 * 8;

    /// Of the section's content in the target; `None` if it is of another form.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let number = |index: u32, most: u32| {
            let value = u32::try_from(u64_at(bytes, index * 8)).ok()?;
            (value > 0 && value < most && value.is_multiple_of(8)).then_some(value)
        };
        Some(Self {
            node: number(6, MAX_THREAD)?,
            of_interpreter: number(8, MAX_STATE)?,
            of_thread: number(12, MAX_STATE)?,
        })
    }
}

/// The addresses of all tasks, also of some that have ended, and what is missing. `variables` are
/// those of [`MODULE`].
pub(super) fn registered(
    interpreter: &Interpreter,
    variables: &[Entry],
    lists: Option<TaskLists>,
    memory: &dyn Memory,
    until: Instant,
) -> (Vec<u64>, Vec<String>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for variable in variables {
        let name = read_str(&interpreter.layout, variable.key, MAX_NAME, memory);
        let Some(name) = name.ok().filter(|name| SETS.contains(&name.as_str())) else {
            continue;
        };
        // A set may be resized while it is read.
        let mut read = members(interpreter, variable.value, memory);
        for _ in 1..ATTEMPTS {
            if read.is_ok() {
                break;
            }
            read = members(interpreter, variable.value, memory);
        }
        match read {
            Ok(members) => found.extend(members),
            Err(error) => missing.push(format!("tasks of asyncio in its {name}: {error}")),
        }
    }
    if let Some(lists) = lists {
        let states = read_interpreters(interpreter, memory).unwrap_or_default();
        let threads = read_threads(interpreter, memory).unwrap_or_default();
        let heads = threads
            .iter()
            .map(|thread| thread.state_address.wrapping_add(lists.of_thread.into()));
        let of_interpreters = states
            .iter()
            .map(|state| state.wrapping_add(lists.of_interpreter.into()));
        let mut cut = 0;
        for head in heads.chain(of_interpreters) {
            let most = (MAX_TASKS + 1).saturating_sub(found.len());
            let (mut longest, mut is_whole) = (Vec::new(), false);
            for _ in 0..ATTEMPTS {
                let mut read = Vec::new();
                is_whole = listed(head, lists.node, (memory, until), most, &mut read);
                if is_whole || read.len() > longest.len() {
                    longest = read;
                }
                if is_whole {
                    break;
                }
            }
            found.append(&mut longest);
            cut += usize::from(!is_whole);
        }
        if cut > 0 && found.len() <= MAX_TASKS {
            missing.push("some tasks of asyncio: their list changed while it was read".to_owned());
        }
    }
    found.sort_unstable();
    found.dedup();
    if found.len() > MAX_TASKS {
        missing.push(format!("tasks of asyncio: those beyond {MAX_TASKS}"));
        found.truncate(MAX_TASKS);
    }
    (found, missing)
}

/// Adds at most `most` tasks of a list (`struct llist_node`, Include/internal/pycore_llist.h): a
/// ring of links, the head among them, or of zeros before the first. Returns whether the ring was
/// followed to its head.
fn listed(
    head: u64,
    node: u32,
    (memory, until): (&dyn Memory, Instant),
    most: usize,
    found: &mut Vec<u64>,
) -> bool {
    let Ok(mut link) = memory.read_u64(head) else {
        return false;
    };
    if link == 0 {
        return true;
    }
    let mut left = most;
    while link != head {
        let is_late = left.is_multiple_of(64) && Instant::now() >= until;
        if link == 0 || left == 0 || is_late {
            return false;
        }
        left -= 1;
        found.push(link.wrapping_sub(node.into()));
        link = memory.read_u64(link).unwrap_or(0);
    }
    true
}

/// The objects in a set, or those that a `WeakSet` refers to.
fn members(
    interpreter: &Interpreter,
    object: u64,
    memory: &dyn Memory,
) -> Result<Vec<u64>, ObjectError> {
    let layout = &interpreter.layout.objects;
    if class_of(layout, object, memory)? == "set" {
        return keys(interpreter, object, memory);
    }
    let attributes = read_attributes(interpreter, object, memory)?;
    let references = attributes.iter().find(|each| each.name == REFERENCES);
    let references = references.ok_or(ObjectError::Invalid)?;
    let references = keys(interpreter, references.object, memory)?;
    let referents = references.iter();
    Ok(referents
        .filter_map(|reference| {
            let place = reference.wrapping_add(layout.at(REFERENT));
            memory.read_u64(place).ok()
        })
        .collect())
}

/// The keys of a set.
fn keys(interpreter: &Interpreter, set: u64, memory: &dyn Memory) -> Result<Vec<u64>, ObjectError> {
    let layout = &interpreter.layout.objects;
    let mask = memory.read_u64(set.wrapping_add(layout.at(SET_MASK)))?;
    let table = memory.read_u64(set.wrapping_add(layout.at(SET_TABLE)))?;
    if mask >= MAX_ENTRIES {
        return Err(ObjectError::TooLong);
    }
    let bytes = memory.read_bytes(table, ((mask + 1) * ENTRY_BYTES) as usize)?;
    let entries = bytes.chunks_exact(ENTRY_BYTES as usize);
    let entries = entries.map(|entry| (u64_at(entry, 0), u64_at(entry, 8)));
    Ok(entries
        .filter(|&(key, hash)| key != 0 && hash != REMOVED)
        .map(|(key, _)| key)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_that_make_no_sense_are_refused() {
        let mut bytes = [0; TaskLists::BYTES];
        assert_eq!(TaskLists::parse(&bytes), None);
        for (index, value) in [(6, 200_u64), (8, 100_000), (12, 1000)] {
            bytes[index * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
        let lists = TaskLists::parse(&bytes).expect("offsets");
        assert_eq!((lists.node, lists.of_thread), (200, 1000));
        bytes[12 * 8] += 1;
        assert_eq!(TaskLists::parse(&bytes), None);
    }
}
