//! The notebook cell that code belongs to, by the number that the notebook shows: `In [12]`.
//!
//! ipykernel names a cell's file after a hash of its text (ipykernel/compiler.py, `get_file_name`;
//! from 6.0 on), without its number. Before the cell runs, IPython stores its text as `_i12` in the
//! namespace that all cells share, which is the globals of their frames (IPython/core/history.py,
//! `store_inputs`). The number is that of the text with this hash: a function has the number of the
//! cell that defined it. If the same text ran more than once, the number is the last one at the
//! time when the text was first seen, and does not change: a recurring stack must have the same
//! name. A text that the cell's magics changed, or that was not stored, keeps the hash.

use super::dicts::{MAX_ENTRIES, TypeFacts, read_entries, read_table, read_type};
use super::layout::Layout;
use super::objects::{ObjectError, read_str};
use crate::memory::Memory;
use crate::model::text::{cell_hash, numbered_cell};
use rustc_hash::FxHashMap;

/// Maximum length of a name such as `_i12`, bytes.
const MAX_NAME: usize = 12;
/// Maximum bytes of a cell's text.
const MAX_TEXT: usize = 256 << 10;
/// Maximum number of line ends after a text: they are hashed, but not stored.
const MAX_LINE_ENDS: usize = 3;
/// Maximum bytes of texts that are read to find one.
const MAX_TEXTS: usize = 4 << 20;
/// Maximum number of searches of a process's texts.
const MAX_SEARCHES: u32 = 4096;
/// ipykernel/compiler.py, `get_tmp_hash_seed`.
const SEED: u32 = 0xc70f_6907;

/// The cells of one process.
#[derive(Debug)]
pub(super) struct Cells {
    layout: Layout,
    /// The dictionary that all cells share; 0 until it was found.
    namespace: u64,
    /// By hash. `None` if no text has it.
    numbers: FxHashMap<u32, Option<u32>>,
    searches: u32,
}

impl Cells {
    pub(super) fn new(layout: &Layout) -> Self {
        Self {
            layout: *layout,
            namespace: 0,
            numbers: FxHashMap::default(),
            searches: 0,
        }
    }

    /// `file`, or the cell's name if it is a cell's file. `globals` returns the globals of a frame
    /// that runs its code, if one is known.
    pub(super) fn name(
        &mut self,
        file: String,
        globals: impl FnOnce() -> Option<u64>,
        memory: &dyn Memory,
    ) -> String {
        let Some(hash) = cell_hash(&file) else {
            return file;
        };
        let number = match self.numbers.get(&hash) {
            Some(&known) => known,
            None => self.search(hash, globals(), memory),
        };
        match number {
            Some(number) => numbered_cell(&file, number),
            None => file,
        }
    }

    fn search(&mut self, hash: u32, globals: Option<u64>, memory: &dyn Memory) -> Option<u32> {
        if self.searches >= MAX_SEARCHES {
            return None;
        }
        self.searches += 1;
        for namespace in [globals, Some(self.namespace)].into_iter().flatten() {
            // The frame may have ended since it was captured: the next one may succeed.
            let Ok(texts) = self.texts(namespace, memory) else {
                continue;
            };
            if texts.is_empty() {
                continue;
            }
            self.namespace = namespace;
            let number = self.number(hash, texts, memory);
            self.numbers.insert(hash, number);
            return number;
        }
        None
    }

    /// The numbers and texts of the cells that ran, latest first.
    fn texts(&self, namespace: u64, memory: &dyn Memory) -> Result<Vec<(u32, u64)>, ObjectError> {
        let objects = &self.layout.objects;
        if !TypeFacts::read(objects, read_type(objects, namespace, memory)?, memory)?.is_dict() {
            return Err(ObjectError::Invalid);
        }
        let table = read_table(objects, namespace, memory)?;
        let entries = read_entries(objects, &table, MAX_ENTRIES, memory)?;
        let mut texts: Vec<(u32, u64)> = entries
            .iter()
            .filter_map(|entry| {
                let name = read_str(&self.layout, entry.key, MAX_NAME, memory).ok()?;
                let number = name.strip_prefix("_i")?.parse().ok()?;
                Some((number, entry.value))
            })
            .collect();
        texts.sort_unstable_by(|one, other| other.cmp(one));
        Ok(texts)
    }

    fn number(&self, hash: u32, texts: Vec<(u32, u64)>, memory: &dyn Memory) -> Option<u32> {
        let mut left = MAX_TEXTS;
        for (number, text) in texts {
            let Ok(mut text) = read_str(&self.layout, text, MAX_TEXT.min(left), memory) else {
                continue;
            };
            for _ in 0..=MAX_LINE_ENDS {
                if murmur2(text.as_bytes()) == hash {
                    return Some(number);
                }
                text.push('\n');
            }
            left = left.saturating_sub(text.len());
        }
        None
    }
}

/// MurmurHash2 of 32 bits, as ipykernel computes it (`murmur2_x86`).
fn murmur2(bytes: &[u8]) -> u32 {
    const FACTOR: u32 = 0x5bd1_e995;
    let mut hash = SEED ^ bytes.len() as u32;
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        let mut word = word
            .iter()
            .rev()
            .fold(0_u32, |word, &byte| word << 8 | u32::from(byte));
        word = word.wrapping_mul(FACTOR);
        word ^= word >> 24;
        word = word.wrapping_mul(FACTOR);
        hash = hash.wrapping_mul(FACTOR) ^ word;
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let word = rest
            .iter()
            .rev()
            .fold(0_u32, |word, &byte| word << 8 | u32::from(byte));
        hash = (hash ^ word).wrapping_mul(FACTOR);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(FACTOR);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::murmur2;

    /// Made with `ipykernel.compiler.murmur2_x86(text, get_tmp_hash_seed())`, ipykernel 7.4.0.
    #[test]
    fn texts_hash_as_ipykernel_hashes_them() {
        for (text, wanted) in [
            ("", 3990065800),
            ("a", 2167009006),
            ("ab", 2805137849),
            ("abc", 3350977461),
            ("train()", 3364925475),
            ("größe = '大'\n", 3933868527),
        ] {
            assert_eq!(murmur2(text.as_bytes()), wanted, "{text:?}");
        }
    }
}
