//! Names of the stubs of the procedure linkage table: each jumps through a slot that a relocation
//! names.

use crate::arch::{Architecture, Machine};
use crate::elf::{CONTEXT, Section};
use crate::memory::Bytes;
use goblin::elf::reloc::RelocSection;
use goblin::elf::section_header::SHT_DYNSYM;
use goblin::elf::sym::Symtab;
use rustc_hash::FxHashMap;
use std::ops::Range;

const RELOCATION_BYTES: usize = 24;
const SYMBOL_BYTES: usize = 24;
/// Maximum number of stubs: libtorch_python imports some 10,000 functions.
const MAX_STUBS: u64 = 1 << 18;
/// Maximum number of symbols: libtorch_cpu has 130,000 dynamic ones.
const MAX_SYMBOLS: u64 = 4 << 20;

/// A stub, and the offset of its function's name in the dynamic string table.
pub(super) struct Stub {
    pub(super) address: u64,
    pub(super) name: u32,
}

/// All stubs of `file` that can be named.
pub(super) fn stubs(file: &dyn Bytes, sections: &[Section]) -> Vec<Stub> {
    slot_names(file, sections)
        .map(|names| named_stubs(file, sections, &names))
        .unwrap_or_default()
}

/// The function of each slot that a stub jumps through.
fn slot_names(file: &dyn Bytes, sections: &[Section]) -> Option<FxHashMap<u64, u32>> {
    let relocations = sections
        .iter()
        .find(|section| section.name == ".rela.plt")?;
    let dynamic = sections.iter().find(|section| section.kind == SHT_DYNSYM)?;
    let relocations = read_items(file, &relocations.range, MAX_STUBS, RELOCATION_BYTES)?;
    let relocations =
        RelocSection::parse(&relocations, 0, relocations.len(), true, CONTEXT).ok()?;
    let symbols = read_items(file, &dynamic.range, MAX_SYMBOLS, SYMBOL_BYTES)?;
    let symbols = Symtab::parse(&symbols, 0, symbols.len() / SYMBOL_BYTES, CONTEXT).ok()?;
    let named = relocations.iter().filter_map(|relocation| {
        let symbol = symbols
            .get(relocation.r_sym)
            .filter(|symbol| symbol.st_name != 0)?;
        Some((relocation.r_offset, u32::try_from(symbol.st_name).ok()?))
    });
    Some(named.collect())
}

/// The first `most` items of a section of items of `size` bytes.
fn read_items(file: &dyn Bytes, range: &Range<u64>, most: u64, size: usize) -> Option<Vec<u8>> {
    let end = range.end.min(range.start + most * size as u64);
    file.copy(range.start..end)
}

fn named_stubs(file: &dyn Bytes, sections: &[Section], names: &FxHashMap<u64, u32>) -> Vec<Stub> {
    let mut stubs = Vec::new();
    for section in sections
        .iter()
        .filter(|section| [".plt", ".plt.sec", ".plt.got"].contains(&section.name.as_str()))
    {
        let code = read_items(file, &section.range, MAX_STUBS, Machine::PLT_STUB);
        let code = code.unwrap_or_default();
        let mut address = section.address;
        for start in (0..code.len()).step_by(Machine::PLT_STEP) {
            let end = code.len().min(start + Machine::PLT_STUB);
            let stub = code.get(start..end).unwrap_or_default();
            if let Some(&name) = Machine::plt_slot(address, stub).and_then(|slot| names.get(&slot))
            {
                stubs.push(Stub { address, name });
            }
            address = address.wrapping_add(Machine::PLT_STEP as u64);
        }
    }
    stubs
}
