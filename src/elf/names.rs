//! A few sections and symbols of an ELF file by name, without tables of the rest: an embedding
//! executable may have millions of symbols.

use super::{CONTEXT, Section, parse_sections};
use crate::memory::Bytes;
use goblin::elf::section_header::{SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB};
use goblin::elf::sym::Symtab;

/// `sizeof(Elf64_Sym)`.
const SYMBOL_BYTES: usize = 24;
/// Maximum size of a section; those that are read are below 100 MB, also in embedding executables.
const MAX_SECTION_BYTES: u64 = 1 << 30;

/// An ELF file whose parts are found by their names.
pub struct ElfNames<'a> {
    bytes: &'a dyn Bytes,
    sections: Vec<Section>,
}

impl<'a> ElfNames<'a> {
    /// Reads the section headers; `None` if `bytes` are not an ELF file of this architecture, or
    /// have none.
    pub fn parse(bytes: &'a dyn Bytes) -> Option<Self> {
        let sections = parse_sections(bytes);
        (!sections.is_empty()).then_some(Self { bytes, sections })
    }

    /// The section of that name.
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// The bytes of the section of that name; empty if the file has none.
    pub fn section_bytes(&self, name: &str) -> Option<Vec<u8>> {
        self.content(self.section(name)?)
    }

    fn content(&self, section: &Section) -> Option<Vec<u8>> {
        let range = section.range.clone();
        (range.end - range.start <= MAX_SECTION_BYTES)
            .then(|| self.bytes.copy(range))
            .flatten()
    }

    /// The values of defined symbols, in the order of `names`: from `.dynsym`, else from `.symtab`.
    pub fn symbols<const N: usize>(&self, names: [&str; N]) -> [Option<u64>; N] {
        let mut found = [None; N];
        for kind in [SHT_DYNSYM, SHT_SYMTAB] {
            for table in self.sections.iter().filter(|section| section.kind == kind) {
                self.search_table(table, &names, &mut found);
            }
            if found.iter().all(Option::is_some) {
                break;
            }
        }
        found
    }

    fn search_table(&self, table: &Section, names: &[&str], found: &mut [Option<u64>]) {
        let strings = self.sections.get(table.link);
        let strings = strings.and_then(|section| self.content(section));
        let (Some(strings), Some(symbols)) = (strings, self.content(table)) else {
            return;
        };
        let Ok(symbols) = Symtab::parse(&symbols, 0, symbols.len() / SYMBOL_BYTES, CONTEXT) else {
            return;
        };
        let defined = symbols
            .iter()
            .filter(|symbol| symbol.st_shndx != SHN_UNDEF as usize);
        for symbol in defined {
            let Some(rest) = strings.get(symbol.st_name..) else {
                continue;
            };
            for (wanted, found) in names.iter().zip(found.iter_mut()) {
                let is_it = || {
                    let after = rest.strip_prefix(wanted.as_bytes());
                    after.is_some_and(|after| after.first() == Some(&0))
                };
                if found.is_none() && is_it() {
                    *found = Some(symbol.st_value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use goblin::elf::Elf;
    use proptest::prelude::*;
    use std::sync::LazyLock;

    /// The start of a real file, and its section headers moved next to it.
    static MINIMAL_ELF: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let real = std::fs::read("/proc/self/exe").unwrap();
        let header = Elf::parse_header(&real).unwrap();
        let mut bytes = real[..1024].to_vec();
        let table = header.e_shoff as usize;
        bytes[40..48].copy_from_slice(&1024_u64.to_le_bytes());
        bytes.extend_from_slice(&real[table..table + usize::from(header.e_shnum) * 64]);
        bytes
    });

    #[test]
    fn finds_symbols_and_sections_of_the_running_test() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let file = ElfNames::parse(&bytes).unwrap();
        assert!(file.section(".text").is_some());
        assert!(file.section(".no such section").is_none());
        let [main, missing] = file.symbols(["main", "no such symbol"]);
        assert!(main.is_some());
        assert_eq!(missing, None);
    }

    proptest! {
        #[test]
        fn damaged_headers_are_survived(damage in prop::collection::vec((0_usize..4096, any::<u8>()), 0..40)) {
            let mut bytes = MINIMAL_ELF.clone();
            for (offset, value) in damage {
                let length = bytes.len();
                bytes[offset % length] = value;
            }
            if let Some(file) = ElfNames::parse(&bytes) {
                let [found] = file.symbols(["no such symbol"]);
                prop_assert_eq!(found, None);
                let section = file.section_bytes(".rodata");
                prop_assert!(section.is_none_or(|section| section.len() <= bytes.len()));
            }
        }
    }
}
