//! How much of a forked process's memory no other process maps: pages that it shares with its
//! parent until one of the two writes to them, and those that are its own.
//!
//! From the page table (`/proc/PID/pagemap`, Documentation/admin-guide/mm/pagemap.rst), whose bit
//! 56 says so since Linux 4.2 and without privileges. It is read in small parts, spread evenly over
//! the anonymous mappings: `smaps_rollup` walks all of them, and holds the lock of the address
//! space meanwhile.

use super::maps::parse_maps_where;
use super::process_info::read_text;
use super::resident::{PRESENT, page_bytes};
use super::threads::living_task;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Longest file of mappings that is read.
const MAX_MAPS: u64 = 1 << 20;
/// Parts of the page table that are read, and entries of each.
const PARTS: u64 = 512;
const PART: u64 = 64;
/// Bit of an entry: the page is mapped once only.
const EXCLUSIVE: u64 = 1 << 56;

/// Bytes of anonymous memory that only this process maps, an estimate from at most 32,768 pages.
/// `None` if its mappings or page table may not be read, or are too many.
pub fn private_memory(pid: i32) -> Option<u64> {
    let task = living_task(pid);
    let maps = read_text(&format!("/proc/{task}/maps"), MAX_MAPS)?;
    if maps.len() as u64 >= MAX_MAPS {
        return None;
    }
    let page = page_bytes();
    let table = File::open(format!("/proc/{task}/pagemap")).ok()?;
    let mappings = parse_maps_where(maps.as_bytes(), |mapping| {
        mapping.inode == 0 && mapping.writable && !mapping.shared
    });
    let pages: u64 = mappings
        .iter()
        .map(|mapping| (mapping.end - mapping.start) / page)
        .sum();
    let stride = (pages / PARTS).max(PART);
    let (mut before, mut next, mut read, mut private) = (0, 0, 0_u64, 0_u64);
    for mapping in &mappings {
        let first = mapping.start / page;
        let count = mapping.end / page - first;
        while next < before + count {
            let from = next.saturating_sub(before);
            let length = PART.min(count - from);
            let mut bytes = [0; 8 * PART as usize];
            let part = bytes.get_mut(..8 * length as usize)?;
            table.read_exact_at(part, 8 * (first + from)).ok()?;
            let words = part.chunks_exact(8);
            let words = words.filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
            let both = PRESENT | EXCLUSIVE;
            private += words.filter(|word| word & both == both).count() as u64;
            read += length;
            next += stride;
        }
        before += count;
    }
    let share = private as f64 / read.max(1) as f64;
    Some((share * (pages * page) as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_this_process_is_its_own() {
        let own = private_memory(std::process::id() as i32).expect("it may be read");
        assert!(own > 0);
        assert_eq!(private_memory(i32::MAX), None);
    }
}
