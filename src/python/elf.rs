//! The little of an ELF file that leads to an interpreter: a few named symbols and sections, found without building
//! tables of the rest (an embedding executable may have millions of symbols).

use crate::memory::Bytes;
use goblin::container::{Container, Ctx};
use goblin::elf::section_header::{SHN_UNDEF, SHT_DYNSYM, SHT_NOBITS, SHT_SYMTAB};
use goblin::elf::sym::Symtab;
use goblin::elf::{Elf, SectionHeader};

/// Sections of one file are bounded: real ones have under 100.
const MAX_SECTIONS: usize = 4096;
/// `sizeof(Elf64_Ehdr)`.
const HEADER_SIZE: u64 = 64;
/// `sizeof(Elf64_Shdr)`.
const SECTION_HEADER_SIZE: u64 = 64;
/// `sizeof(Elf64_Sym)`.
const SYMBOL_SIZE: usize = 24;
/// Sections that are read are below 100 MB, in embedding executables, too.
const MAX_SECTION_SIZE: u64 = 1 << 30;
/// No symbol that is looked for has a name this long.
const MAX_NAME: usize = 64;

/// An ELF file's sections.
pub(crate) struct ElfFile<'a> {
    bytes: &'a dyn Bytes,
    context: Ctx,
    sections: Vec<SectionHeader>,
    names: Vec<u8>,
}

impl<'a> ElfFile<'a> {
    /// Parses the headers; `None` where it is no ELF file for x86-64, or a broken one.
    pub(crate) fn parse(bytes: &'a dyn Bytes) -> Option<Self> {
        let header = Elf::parse_header(&bytes.copy(0..HEADER_SIZE)?).ok()?;
        if header.e_machine != goblin::elf::header::EM_X86_64
            || usize::from(header.e_shnum) > MAX_SECTIONS
        {
            return None;
        }
        let context = Ctx::new(Container::Big, header.endianness().ok()?);
        let size = u64::from(header.e_shnum) * SECTION_HEADER_SIZE;
        let table = bytes.copy(header.e_shoff..header.e_shoff.checked_add(size)?)?;
        let sections = SectionHeader::parse_from(&table, 0, header.e_shnum.into(), context).ok()?;
        let names = sections
            .get(usize::from(header.e_shstrndx))
            .and_then(|section| content(bytes, section));
        Some(Self {
            bytes,
            context,
            names: names.unwrap_or_default(),
            sections,
        })
    }

    /// The section of that name.
    pub(crate) fn section(&self, name: &str) -> Option<&SectionHeader> {
        self.sections
            .iter()
            .find(|section| text_at(&self.names, section.sh_name) == Some(name.as_bytes()))
    }

    /// The bytes of the section of that name.
    pub(crate) fn section_bytes(&self, name: &str) -> Option<Vec<u8>> {
        content(self.bytes, self.section(name)?)
    }

    /// The values of defined symbols, in the order of `names`: those of `.dynsym`, else those of `.symtab`.
    pub(crate) fn symbols<const N: usize>(&self, names: [&str; N]) -> [Option<u64>; N] {
        let mut found = [None; N];
        for kind in [SHT_DYNSYM, SHT_SYMTAB] {
            for table in self
                .sections
                .iter()
                .filter(|section| section.sh_type == kind)
            {
                self.search_table(table, &names, &mut found);
            }
            if found.iter().all(Option::is_some) {
                break;
            }
        }
        found
    }

    fn search_table(&self, table: &SectionHeader, names: &[&str], found: &mut [Option<u64>]) {
        let strings = usize::try_from(table.sh_link)
            .ok()
            .and_then(|link| self.sections.get(link));
        let Some(strings) = strings.and_then(|section| content(self.bytes, section)) else {
            return;
        };
        let Some(symbols) = content(self.bytes, table) else {
            return;
        };
        let Ok(symbols) = Symtab::parse(&symbols, 0, symbols.len() / SYMBOL_SIZE, self.context)
        else {
            return;
        };
        for symbol in symbols
            .iter()
            .filter(|symbol| symbol.st_shndx != SHN_UNDEF as usize)
        {
            let Some(name) = text_at(&strings, symbol.st_name) else {
                continue;
            };
            for (wanted, found) in names.iter().zip(found.iter_mut()) {
                if found.is_none() && wanted.as_bytes() == name {
                    *found = Some(symbol.st_value);
                }
            }
        }
    }
}

/// The file's bytes of a section, where it has any and they are all there.
fn content(bytes: &dyn Bytes, section: &SectionHeader) -> Option<Vec<u8>> {
    if section.sh_type == SHT_NOBITS || section.sh_size > MAX_SECTION_SIZE {
        return None;
    }
    bytes.copy(section.sh_offset..section.sh_offset.checked_add(section.sh_size)?)
}

/// The text at `offset` of a string table, up to its NUL.
fn text_at(strings: &[u8], offset: usize) -> Option<&[u8]> {
    // Every name that is asked for is short: a long one need not be measured.
    let tail = strings.get(offset..)?;
    let tail = tail.get(..MAX_NAME).unwrap_or(tail);
    let end = tail.iter().position(|&byte| byte == 0)?;
    tail.get(..end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn finds_symbols_and_sections_of_the_running_test() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let file = ElfFile::parse(&bytes).unwrap();
        assert!(file.section(".text").is_some());
        assert!(file.section(".no such section").is_none());
        let [main, missing] = file.symbols(["main", "no such symbol"]);
        assert!(main.is_some());
        assert_eq!(missing, None);
    }

    proptest! {
        #[test]
        fn damaged_headers_are_survived(damage in prop::collection::vec((0_usize..4096, any::<u8>()), 0..40)) {
            let mut bytes = minimal_elf();
            for (offset, value) in damage {
                let length = bytes.len();
                bytes[offset % length] = value;
            }
            if let Some(file) = ElfFile::parse(&bytes) {
                let [found] = file.symbols(["no such symbol"]);
                prop_assert_eq!(found, None);
                let section = file.section_bytes(".rodata");
                prop_assert!(section.is_none_or(|section| section.len() <= bytes.len()));
            }
        }
    }

    /// The start of a real file, and its section headers moved next to it.
    fn minimal_elf() -> Vec<u8> {
        let real = std::fs::read("/proc/self/exe").unwrap();
        let header = Elf::parse_header(&real).unwrap();
        let mut bytes = real[..1024].to_vec();
        let table = header.e_shoff as usize;
        bytes[40..48].copy_from_slice(&1024_u64.to_le_bytes());
        bytes.extend_from_slice(&real[table..table + usize::from(header.e_shnum) * 64]);
        bytes
    }
}
