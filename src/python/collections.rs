//! Items of a `set` and of a `collections.deque`, read from outside.
//!
//! `PySetObject`: after the object's head `fill`, `used`, `mask` and `table`; an entry is a key and
//! its hash, -1 where the key was removed (Include/cpython/setobject.h). `dequeobject`: `ob_size`,
//! then the first and the last block, and the indices in them of the first and the last item, a
//! state, and `maxlen`, -1 where there is none; a block is the one before it, 64 items, and the one
//! after it (Modules/_collectionsmodule.c). Both are the same from 3.10 to 3.15.

use super::layout::objects::{LENGTH, ObjectLayout};
use super::objects::{ObjectError, u64_at};
use crate::memory::Memory;

const SET_USED: u32 = 24;
const SET_MASK: u32 = 32;
const SET_TABLE: u32 = 40;
const SET_ENTRY: usize = 16;
/// The hash of an entry that was removed.
const REMOVED: u64 = u64::MAX;
/// Entries that are read for each item that is asked for: a set that has just grown uses one in
/// seven.
const ENTRIES_PER_ITEM: usize = 16;
/// More entries are not plausible.
const MAX_MASK: u64 = 1 << 40;

const DEQUE_LAST_BLOCK: u32 = 32;
const DEQUE_LAST_INDEX: u32 = 48;
const DEQUE_LIMIT: u32 = 64;
/// Items of a block.
const BLOCK: usize = 64;

/// Number of items of a set.
///
/// # Errors
/// [`ObjectError`].
pub fn set_length(
    layout: &ObjectLayout,
    object: u64,
    memory: &dyn Memory,
) -> Result<u64, ObjectError> {
    let used = memory.read_u64(object.wrapping_add(layout.at(SET_USED)))?;
    let mask = memory.read_u64(object.wrapping_add(layout.at(SET_MASK)))?;
    let is_set = mask <= MAX_MASK && (mask + 1).is_power_of_two() && used <= mask;
    is_set.then_some(used).ok_or(ObjectError::Invalid)
}

/// Up to `most` items of a set, of the first part of its table.
///
/// # Errors
/// [`ObjectError`].
pub fn set_items(
    layout: &ObjectLayout,
    object: u64,
    most: usize,
    memory: &dyn Memory,
) -> Result<Vec<u64>, ObjectError> {
    set_length(layout, object, memory)?;
    let mask = memory.read_u64(object.wrapping_add(layout.at(SET_MASK)))?;
    let table = memory.read_u64(object.wrapping_add(layout.at(SET_TABLE)))?;
    let entries = usize::try_from(mask.min(MAX_MASK) + 1).unwrap_or(usize::MAX);
    let entries = entries.min(most.saturating_mul(ENTRIES_PER_ITEM));
    let bytes = memory.read_bytes(table, entries * SET_ENTRY)?;
    let keys = bytes.chunks_exact(SET_ENTRY).map(|entry| {
        let (key, hash) = (u64_at(entry, 0), u64_at(entry, 8));
        if hash == REMOVED { 0 } else { key }
    });
    Ok(keys.filter(|&key| key != 0).take(most).collect())
}

/// Number of items of a deque; `None` where `maxlen` limits it, or where it cannot be read.
pub fn deque_length(layout: &ObjectLayout, object: u64, memory: &dyn Memory) -> Option<u64> {
    let field = |field: u32| memory.read_u64(object.wrapping_add(layout.at(field))).ok();
    let is_unlimited = field(DEQUE_LIMIT)? == u64::MAX;
    field(LENGTH).filter(|_| is_unlimited)
}

/// The last `most` items of a deque.
///
/// # Errors
/// [`ObjectError`].
pub fn last_of_deque(
    layout: &ObjectLayout,
    object: u64,
    most: usize,
    memory: &dyn Memory,
) -> Result<Vec<u64>, ObjectError> {
    let field = |field: u32| memory.read_u64(object.wrapping_add(layout.at(field)));
    let length = usize::try_from(field(LENGTH)?).map_err(|_| ObjectError::Invalid)?;
    let wanted = length.min(most);
    let mut block = field(DEQUE_LAST_BLOCK)?;
    let last = field(DEQUE_LAST_INDEX)?;
    let mut filled = usize::try_from(last).map_or(BLOCK, |last| last.saturating_add(1));
    let mut items = Vec::new();
    while items.len() < wanted {
        if filled > BLOCK {
            return Err(ObjectError::Invalid);
        }
        let bytes = memory.read_bytes(block, 8 * (1 + BLOCK))?;
        let words: Vec<u64> = bytes.chunks_exact(8).map(|word| u64_at(word, 0)).collect();
        let (before, data) = words.split_first().ok_or(ObjectError::Invalid)?;
        items.extend(data.iter().take(filled).rev());
        (block, filled) = (*before, BLOCK);
    }
    items.truncate(wanted);
    items.reverse();
    Ok(items)
}
