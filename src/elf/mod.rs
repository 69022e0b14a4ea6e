//! ELF files and images, as far as unwinding, naming and finding interpreters need them: segments,
//! sections, notes.
//!
//! goblin parses each table; which part of a file is read when is decided here, since files are
//! read in parts and never mapped: libtorch_cpu has 450 MB. (`goblin::elf::Elf::parse` wants all of
//! a file in memory.)
//!
//! Layouts: the ELF-64 object file format, and gABI for notes. Everything here is hostile input.

pub mod names;

use crate::arch::{Architecture, Machine};
use crate::memory::Bytes;
use goblin::container::{Container, Ctx, Endian};
use goblin::elf::program_header::{PF_X, PT_GNU_EH_FRAME, PT_LOAD, PT_NOTE, ProgramHeader};
use goblin::elf::section_header::{SHN_XINDEX, SHT_NOBITS, SectionHeader};
use goblin::elf64::header::{Header, SIZEOF_EHDR};
use std::ops::Range;

/// Bytes of an ELF header.
pub const HEADER_BYTES: usize = SIZEOF_EHDR;
/// Bytes of one program header.
pub const PROGRAM_HEADER_BYTES: usize = 56;
const SECTION_HEADER_BYTES: usize = 64;
/// Maximum number of program headers; torch's libraries have about a dozen.
const MAX_PROGRAM_HEADERS: usize = 256;
/// Maximum number of sections: a file compiled with `-ffunction-sections` and linked with `-r` may
/// have many; a loadable one has dozens.
const MAX_SECTIONS: usize = 1 << 16;
/// Maximum size of the names of sections; usually a few kilobytes.
const MAX_SECTION_NAMES: u64 = 1 << 20;
/// Maximum length of a build-id: usually 20 bytes (SHA-1), 16 or 8.
const MAX_BUILD_ID: usize = 64;
const NT_GNU_BUILD_ID: u32 = 3;

/// Little-endian, 64 bits: the only form that torchspy reads.
pub(crate) const CONTEXT: Ctx = Ctx {
    container: Container::Big,
    le: Endian::Little,
};

/// Why bytes are not a usable ELF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// No ELF magic, or not for this architecture.
    #[error("not a 64-bit ELF file of this architecture")]
    NotElf,
    /// Headers point outside of the file, or are too many.
    #[error("the ELF headers are damaged")]
    Damaged,
}

/// A segment that the loader maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoadSegment {
    /// Offset in the file.
    pub offset: u64,
    /// First virtual address.
    pub address: u64,
    /// Number of bytes from the file.
    pub file_size: u64,
    /// Number of bytes in memory.
    pub memory_size: u64,
    /// Whether it is code.
    pub executable: bool,
}

/// Location of the program headers, from the ELF header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderTable {
    /// Offset in the file.
    pub offset: u64,
    /// Number of program headers.
    pub count: usize,
    /// End of the section headers, which are last in a file; 0 if it has none.
    pub sections_end: u64,
}

impl HeaderTable {
    /// Reads the ELF header, which `bytes` must contain completely.
    ///
    /// # Errors
    /// [`ElfError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ElfError> {
        let header = parse_header(bytes)?;
        let count = usize::from(header.e_phnum);
        if usize::from(header.e_phentsize) != PROGRAM_HEADER_BYTES || count > MAX_PROGRAM_HEADERS {
            return Err(ElfError::Damaged);
        }
        Ok(Self {
            offset: header.e_phoff,
            count,
            sections_end: match header.e_shoff {
                0 => 0,
                offset => {
                    let size = usize::from(header.e_shnum) * SECTION_HEADER_BYTES;
                    offset.saturating_add(size as u64)
                }
            },
        })
    }

    /// Bytes of the complete table.
    pub fn bytes(&self) -> usize {
        self.count * PROGRAM_HEADER_BYTES
    }
}

fn parse_header(bytes: &[u8]) -> Result<Header, ElfError> {
    let bytes = bytes.get(..HEADER_BYTES).ok_or(ElfError::NotElf)?;
    // Class 2 is 64 bits, data 1 is little-endian.
    if bytes.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err(ElfError::NotElf);
    }
    let header = Header::parse(bytes).map_err(|_| ElfError::NotElf)?;
    if header.e_machine != Machine::ELF_MACHINE {
        return Err(ElfError::NotElf);
    }
    Ok(header)
}

/// The content of the program headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Segments {
    /// What is mapped.
    pub loads: Vec<LoadSegment>,
    /// Virtual address and size of `.eh_frame_hdr`.
    pub eh_frame_hdr: Option<(u64, u64)>,
    /// Virtual addresses and sizes of notes.
    pub notes: Vec<(u64, u64)>,
}

impl Segments {
    /// Reads the program headers.
    ///
    /// # Errors
    /// [`ElfError::Damaged`] if they are truncated.
    pub fn parse(table: &[u8], count: usize) -> Result<Self, ElfError> {
        let headers =
            ProgramHeader::parse(table, 0, count, CONTEXT).map_err(|_| ElfError::Damaged)?;
        let mut segments = Self::default();
        for header in headers {
            match header.p_type {
                PT_LOAD => segments.loads.push(LoadSegment {
                    offset: header.p_offset,
                    address: header.p_vaddr,
                    file_size: header.p_filesz,
                    memory_size: header.p_memsz,
                    executable: header.p_flags & PF_X != 0,
                }),
                PT_GNU_EH_FRAME => segments.eh_frame_hdr = Some((header.p_vaddr, header.p_memsz)),
                PT_NOTE => segments.notes.push((header.p_vaddr, header.p_filesz)),
                _ => {}
            }
        }
        Ok(segments)
    }

    /// The load segment that contains `address` with content from the file.
    pub fn load_of(&self, address: u64) -> Option<&LoadSegment> {
        self.loads.iter().find(|load| {
            address
                .checked_sub(load.address)
                .is_some_and(|within| within < load.file_size)
        })
    }

    /// Virtual addresses of the bytes that follow `address` in its load segment.
    pub fn rest_of_load(&self, address: u64) -> Option<Range<u64>> {
        let load = self.load_of(address)?;
        Some(address..load.address.checked_add(load.file_size)?)
    }

    /// First address after all code, and the lowest address.
    pub fn span(&self) -> Option<Range<u64>> {
        let start = self.loads.iter().map(|load| load.address).min()?;
        let end = self
            .loads
            .iter()
            .filter_map(|load| load.address.checked_add(load.memory_size))
            .max()?;
        Some(start..end)
    }
}

/// A GNU build-id among the notes in `bytes`.
pub fn find_build_id(mut bytes: &[u8]) -> Option<Vec<u8>> {
    while bytes.len() >= 12 {
        let word = |at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
        };
        let name_size = word(0)? as usize;
        let content_size = word(4)? as usize;
        let kind = word(8)?;
        let name = bytes.get(12..12_usize.checked_add(name_size)?)?;
        let content_start = 12 + name_size.checked_next_multiple_of(4)?;
        let content = bytes.get(content_start..content_start.checked_add(content_size)?)?;
        if kind == NT_GNU_BUILD_ID
            && name == b"GNU\0"
            && (1..=MAX_BUILD_ID).contains(&content.len())
        {
            return Some(content.to_vec());
        }
        let next = content_start.checked_add(content_size.checked_next_multiple_of(4)?)?;
        bytes = bytes.get(next..)?;
    }
    None
}

/// A section of an ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its name; empty if the name table is damaged.
    pub name: String,
    /// `sh_type`.
    pub kind: u32,
    /// `sh_flags`.
    pub flags: u64,
    /// Virtual address.
    pub address: u64,
    /// Range of its bytes in the file; empty for `SHT_NOBITS`.
    pub range: Range<u64>,
    /// `sh_link`: the section that belongs to it, such as a symbol table's strings.
    pub link: usize,
}

/// The sections of the file in `bytes`; none if it has no usable section headers.
pub fn parse_sections(bytes: &dyn Bytes) -> Vec<Section> {
    try_parse_sections(bytes).unwrap_or_default()
}

fn try_parse_sections(bytes: &dyn Bytes) -> Option<Vec<Section>> {
    let mut header = [0; HEADER_BYTES];
    bytes.read_at(0, &mut header).then_some(())?;
    let header = parse_header(&header).ok()?;
    let offset = header.e_shoff;
    if offset == 0 || usize::from(header.e_shentsize) != SECTION_HEADER_BYTES {
        return None;
    }
    let read_headers = |count: usize| {
        let end = offset.checked_add((count * SECTION_HEADER_BYTES) as u64)?;
        SectionHeader::parse_from(&bytes.copy(offset..end)?, 0, count, CONTEXT).ok()
    };
    let first = read_headers(1)?.pop()?;
    // gABI: where there are too many, the first header holds the number and the name table's index.
    let count = match usize::from(header.e_shnum) {
        0 => usize::try_from(first.sh_size).ok()?,
        count => count,
    };
    let names_index = match u32::from(header.e_shstrndx) {
        SHN_XINDEX => first.sh_link as usize,
        index => index as usize,
    };
    if count > MAX_SECTIONS {
        return None;
    }
    let headers = read_headers(count)?;
    let range = |header: &SectionHeader| -> Range<u64> {
        let end = header.sh_offset.checked_add(header.sh_size);
        match end.filter(|&end| header.sh_type != SHT_NOBITS && end <= bytes.size()) {
            Some(end) => header.sh_offset..end,
            None => 0..0,
        }
    };
    let names = headers
        .get(names_index)
        .map(&range)
        .filter(|range| range.end - range.start <= MAX_SECTION_NAMES)
        .and_then(|range| bytes.copy(range))
        .unwrap_or_default();
    let sections = headers.iter().map(|header| Section {
        name: string_at(&names, header.sh_name)
            .map(lossy)
            .unwrap_or_default(),
        kind: header.sh_type,
        flags: header.sh_flags,
        address: header.sh_addr,
        range: range(header),
        link: header.sh_link as usize,
    });
    Some(sections.collect())
}

fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Maximum length of a string of a string table.
pub const LONGEST_STRING: usize = 1 << 16;

/// The string that begins at `offset` of a string table, without its zero; at most 64 KiB.
pub fn string_at(table: &[u8], offset: usize) -> Option<&[u8]> {
    let rest = table.get(offset..)?;
    let rest = rest.get(..LONGEST_STRING).unwrap_or(rest);
    let end = rest.iter().position(|&byte| byte == 0)?;
    rest.get(..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_id_is_found_behind_other_notes() {
        let mut notes = Vec::new();
        for (kind, name, content) in [
            (1_u32, b"Ab\0".as_slice(), vec![9; 5]),
            (3, b"GNU\0", vec![7; 20]),
        ] {
            notes.extend((name.len() as u32).to_le_bytes());
            notes.extend((content.len() as u32).to_le_bytes());
            notes.extend(kind.to_le_bytes());
            for part in [name, &content] {
                notes.extend(part);
                notes.resize(notes.len().next_multiple_of(4), 0);
            }
        }
        assert_eq!(find_build_id(&notes), Some(vec![7; 20]));
        for cut in 0..notes.len() {
            assert_eq!(find_build_id(&notes[..cut]), None);
        }
    }
}
