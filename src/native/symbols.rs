//! Function names by address, from `.symtab`, `.dynsym` and `.gnu_debugdata`: a compact index over
//! the file.

use super::image::ElfImage;
use super::plt;
use crate::arch::{Architecture, Machine};
use crate::elf::{CONTEXT, LONGEST_STRING, Section, parse_sections, string_at};
use crate::memory::Bytes;
use goblin::elf::section_header::{SHF_EXECINSTR, SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB};
use goblin::elf::sym::{STB_GLOBAL, STB_LOCAL, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, Symtab};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Bytes of an ELF-64 symbol.
const SYMBOL_BYTES: usize = 24;
/// Maximum number of symbols: libtorch_cpu has 550,000, a large LLVM three times that.
const MAX_SYMBOLS: usize = 16 << 20;
/// Maximum size of an unpacked `.gnu_debugdata`; Fedora's largest have a few MB.
const MAX_DEBUG_DATA: usize = 64 << 20;
/// Maximum bytes of strings that are read to compare symbols by name (those of libtorch_cpu are 80
/// MB), and how many at a time.
const MAX_STRINGS: u64 = 256 << 20;
const WINDOW: u64 = 1 << 20;
/// Symbols that are read at once.
const CHUNK: usize = 1 << 16;
/// Bytes read at first for a name: most are shorter.
const USUAL_NAME: u64 = 256;
/// Maximum number of earlier entries that a lookup checks for one that still covers the address.
const MAX_LOOK_BACK: usize = 16;

/// A symbol that covers an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// First address, in the file's own virtual addresses.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// The name, mangled; `name@plt` for a stub of the procedure linkage table.
    pub name: String,
}

/// The functions of one module, sorted by address. Names stay in the file.
pub struct SymbolTable {
    image: Option<ElfImage>,
    debug_data: Vec<u8>,
    /// String tables by [`Source`]: ranges in the image, or in the debug data.
    strings: [Range<u64>; 3],
    base: u64,
    entries: Vec<Entry>,
    /// Names that were looked up, by [`Entry::name`]: they stay valid if the file changes.
    names: Mutex<FxHashMap<u32, String>>,
}

/// Twelve bytes a function.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Distance from the table's base.
    start: u32,
    size: u32,
    /// [`Source`] in the upper two bits, offset in its string table below.
    name: u32,
}

/// The table that contains a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Symtab = 0,
    Dynsym = 1,
    DebugData = 2,
    /// A dynamic symbol's name, with `@plt`.
    Plt = 3,
}

const NAME_BITS: u32 = 30;
const NAME_MASK: u32 = (1 << NAME_BITS) - 1;

impl SymbolTable {
    pub fn empty() -> Self {
        Self {
            image: None,
            debug_data: Vec::new(),
            strings: Default::default(),
            base: 0,
            entries: Vec::new(),
            names: Mutex::default(),
        }
    }

    /// Reads the symbols of an ELF file. Takes 20 to 70 ms for libtorch_cpu: not for the sampling
    /// path. Empty if the file changes during the read.
    pub fn of_image(image: ElfImage) -> Self {
        let mut table = Self::empty();
        let Some(span) = image.segments().span() else {
            return table;
        };
        table.base = span.start;
        let sections = parse_sections(image.bytes());
        let mut candidates = Vec::new();
        table.debug_data = unpack_debug_data(image.bytes(), &sections).unwrap_or_default();
        let debug_sections = parse_sections(&table.debug_data);
        let debug_data: &dyn Bytes = &table.debug_data;
        for (source, kind, file, sections) in [
            (Source::Symtab, SHT_SYMTAB, image.bytes(), &sections),
            (Source::Dynsym, SHT_DYNSYM, image.bytes(), &sections),
            (Source::DebugData, SHT_SYMTAB, debug_data, &debug_sections),
        ] {
            if let Some(symbols) = SymbolSection::find(file, sections, kind) {
                table.strings[source as usize] = symbols.strings.clone();
                symbols.collect(source, span.start, &mut candidates);
            }
        }
        for stub in plt::stubs(image.bytes(), &sections) {
            if let Some(entry) = Entry::new(
                stub.address,
                Machine::PLT_STUB as u64,
                stub.name,
                Source::Plt,
                span.start,
            ) {
                candidates.push(Candidate { entry, rank: 0 });
            }
        }
        let code_ends = code_ends(&image, &sections, span.start);
        if image.bytes().has_changed() {
            return Self::empty();
        }
        table.image = Some(image);
        candidates.sort_unstable_by_key(Candidate::key);
        table.prefer_by_name(&mut candidates);
        table.entries = choose(candidates, &code_ends);
        table
    }

    /// Of sorted candidates that are equal except for their names, moves the one with the best name
    /// to the front.
    fn prefer_by_name(&self, candidates: &mut [Candidate]) {
        let equals = |left: &Candidate, right: &Candidate| left.key() == right.key();
        let groups = || candidates.chunk_by(equals).filter(|group| group.len() > 1);
        let ranks = self.rank_names(groups().flatten().map(|candidate| candidate.entry));
        for group in candidates.chunk_by_mut(equals) {
            if group.len() > 1 {
                group.sort_unstable_by_key(|candidate| ranks.get(&candidate.entry.name));
            }
        }
    }

    /// Reads the names of `entries`, in the order of the file. By [`Entry::name`], the criteria by
    /// which names are compared.
    fn rank_names(&self, entries: impl Iterator<Item = Entry>) -> FxHashMap<u32, NameRank> {
        let mut names: Vec<Entry> = entries.collect();
        names.sort_unstable_by_key(|entry| (entry.strings() as u8, entry.name & NAME_MASK));
        let mut ranks = FxHashMap::default();
        let (mut window, mut source, mut from) = (Vec::new(), None, 0);
        let mut left = MAX_STRINGS;
        for entry in names {
            let at = u64::from(entry.name & NAME_MASK);
            let is_inside = source == Some(entry.strings()) && from <= at;
            let found = is_inside.then(|| string_at(&window, (at - from) as usize));
            if found.flatten().is_none() {
                if left == 0 {
                    break;
                }
                (source, from) = (Some(entry.strings()), at);
                window = self.read_strings(entry, WINDOW).unwrap_or_default();
                left = left.saturating_sub(window.len() as u64 + 1);
            }
            let name = string_at(&window, (at - from) as usize).unwrap_or_default();
            left = left.saturating_sub(name.len() as u64);
            ranks.insert(entry.name, NameRank::of(name));
        }
        ranks
    }

    /// The string table from an entry's name on, at most `length` bytes.
    fn read_strings(&self, entry: Entry, length: u64) -> Option<Vec<u8>> {
        let source = entry.strings();
        let file: &dyn Bytes = match source {
            Source::DebugData => &self.debug_data,
            _ => self.image.as_ref()?.bytes(),
        };
        let strings = self.strings.get(source as usize)?;
        let start = strings.start + u64::from(entry.name & NAME_MASK);
        file.copy(start..(start + length).min(strings.end))
    }

    /// The function that covers `address`, one of the file's own virtual addresses; `None` in a gap
    /// between functions.
    pub fn lookup(&self, address: u64) -> Option<Symbol> {
        let wanted = u32::try_from(address.checked_sub(self.base)?).ok()?;
        let after = self.entries.partition_point(|entry| entry.start <= wanted);
        let candidates = self
            .entries
            .get(after.saturating_sub(MAX_LOOK_BACK)..after)?;
        let entry = candidates
            .iter()
            .rev()
            .find(|entry| wanted - entry.start < entry.size)?;
        let name = self.name(*entry)?;
        let start = self.base + u64::from(entry.start);
        Some(Symbol {
            start,
            end: start + u64::from(entry.size),
            name: if entry.source() == Source::Plt {
                format!("{name}@plt")
            } else {
                name
            },
        })
    }

    /// The entry's name; `None` if it was not read before the file changed.
    fn name(&self, entry: Entry) -> Option<String> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = names.get(&entry.name) {
            return Some(name.clone());
        }
        let name = self.read_name(entry)?;
        names.insert(entry.name, name.clone());
        Some(name)
    }

    fn read_name(&self, entry: Entry) -> Option<String> {
        for length in [USUAL_NAME, LONGEST_STRING as u64] {
            let bytes = self.read_strings(entry, length)?;
            if let Some(name) = string_at(&bytes, 0) {
                return Some(String::from_utf8_lossy(name).into_owned());
            }
        }
        Some(String::new())
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl std::fmt::Debug for SymbolTable {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "SymbolTable({} functions)", self.entries.len())
    }
}

/// One entry for each address, the first of its sorted candidates; missing sizes are derived.
fn choose(mut candidates: Vec<Candidate>, code_ends: &[u32]) -> Vec<Entry> {
    candidates.dedup_by_key(|candidate| candidate.entry.start);
    let mut entries: Vec<Entry> = Vec::with_capacity(candidates.len());
    let mut covered_to = 0;
    for (position, candidate) in candidates.iter().enumerate() {
        let mut entry = candidate.entry;
        if entry.size == 0 {
            // A label inside a function is not a function.
            if entry.start < covered_to {
                continue;
            }
            let next = candidates
                .get(position + 1)
                .map_or(u32::MAX, |next| next.entry.start);
            let code_end = code_ends.get(code_ends.partition_point(|&end| end <= entry.start));
            let code_end = code_end.copied().unwrap_or(entry.start);
            entry.size = next.min(code_end).saturating_sub(entry.start);
        } else {
            covered_to = covered_to.max(entry.start.saturating_add(entry.size));
        }
        entries.push(entry);
    }
    entries.shrink_to_fit();
    entries
}

/// Of two names of one function the better one has fewer leading underscores, is shorter, or is
/// alphabetically first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct NameRank {
    underscores: usize,
    length: usize,
    name: Box<[u8]>,
}

impl NameRank {
    fn of(name: &[u8]) -> Self {
        Self {
            underscores: name.iter().take_while(|&&byte| byte == b'_').count(),
            length: name.len(),
            name: name.into(),
        }
    }
}

/// Ends of the code sections, or of the code segments without section headers, as distances from
/// `base`, ascending.
fn code_ends(image: &ElfImage, sections: &[Section], base: u64) -> Vec<u32> {
    let code = sections
        .iter()
        .filter(|section| section.flags & u64::from(SHF_EXECINSTR) != 0);
    let mut ends: Vec<u64> = code
        .filter_map(|section| {
            let size = section.range.end - section.range.start;
            section.address.checked_add(size)
        })
        .collect();
    if ends.is_empty() {
        let loads = image.segments().loads.iter().filter(|load| load.executable);
        ends = loads
            .filter_map(|load| load.address.checked_add(load.memory_size))
            .collect();
    }
    let mut ends: Vec<u32> = ends
        .into_iter()
        .filter_map(|end| u32::try_from(end.checked_sub(base)?).ok())
        .collect();
    ends.sort_unstable();
    ends
}

struct Candidate {
    entry: Entry,
    /// Smaller wins among symbols of one address.
    rank: u8,
}

impl Candidate {
    /// Sort key. (`.symtab` contains the names of `.dynsym`, too: they need not be compared.)
    fn key(&self) -> (u32, bool, u8, u8) {
        let source = self.entry.source() as u8;
        (self.entry.start, self.entry.size == 0, self.rank, source)
    }
}

impl Entry {
    fn new(address: u64, size: u64, name: u32, source: Source, base: u64) -> Option<Self> {
        Some(Self {
            start: u32::try_from(address.checked_sub(base)?).ok()?,
            size: u32::try_from(size).unwrap_or(u32::MAX),
            name: (name <= NAME_MASK).then_some(name | (source as u32) << NAME_BITS)?,
        })
    }

    fn source(self) -> Source {
        match self.name >> NAME_BITS {
            0 => Source::Symtab,
            1 => Source::Dynsym,
            2 => Source::DebugData,
            _ => Source::Plt,
        }
    }

    /// The string table with its name.
    fn strings(self) -> Source {
        match self.source() {
            Source::Plt => Source::Dynsym,
            source => source,
        }
    }
}

/// A symbol table and its strings, in a file.
struct SymbolSection<'a> {
    file: &'a dyn Bytes,
    symbols: Range<u64>,
    strings: Range<u64>,
    sections: &'a [Section],
}

impl<'a> SymbolSection<'a> {
    fn find(file: &'a dyn Bytes, sections: &'a [Section], kind: u32) -> Option<Self> {
        let section = sections.iter().find(|section| section.kind == kind)?;
        let strings = sections.get(section.link)?.range.clone();
        Some(Self {
            file,
            symbols: section.range.clone(),
            strings,
            sections,
        })
    }

    fn collect(&self, source: Source, base: u64, candidates: &mut Vec<Candidate>) {
        let Range { start, end } = self.symbols;
        let end = end.min(start + (MAX_SYMBOLS * SYMBOL_BYTES) as u64);
        for from in (start..end).step_by(CHUNK * SYMBOL_BYTES) {
            let to = end.min(from + (CHUNK * SYMBOL_BYTES) as u64);
            let Some(bytes) = self.file.copy(from..to) else {
                return;
            };
            let count = bytes.len() / SYMBOL_BYTES;
            if let Ok(symbols) = Symtab::parse(&bytes, 0, count, CONTEXT) {
                self.collect_from(&symbols, source, base, candidates);
            }
        }
    }

    fn collect_from(
        &self,
        symbols: &Symtab<'_>,
        source: Source,
        base: u64,
        candidates: &mut Vec<Candidate>,
    ) {
        for symbol in symbols.iter() {
            let kind = symbol.st_type();
            if symbol.st_shndx == SHN_UNDEF as usize || symbol.st_name == 0 {
                continue;
            }
            let is_function = kind == STT_FUNC || kind == STT_GNU_IFUNC;
            let is_label = kind == STT_NOTYPE && self.is_code(symbol.st_shndx);
            if !is_function && !is_label {
                continue;
            }
            let binding = match symbol.st_bind() {
                STB_GLOBAL => 0,
                STB_LOCAL => 2,
                _ => 1,
            };
            let Ok(name) = u32::try_from(symbol.st_name) else {
                continue;
            };
            if let Some(entry) = Entry::new(symbol.st_value, symbol.st_size, name, source, base) {
                let rank = binding + if is_function { 0 } else { 4 };
                candidates.push(Candidate { entry, rank });
            }
        }
    }

    /// Whether the section is code. In `.gnu_debugdata` it has no content, but its flags.
    fn is_code(&self, index: usize) -> bool {
        let section = self.sections.get(index);
        section.is_some_and(|section| section.flags & u64::from(SHF_EXECINSTR) != 0)
    }
}

/// `.gnu_debugdata`: an xz-compressed ELF file with a symbol table of what `.dynsym` lacks
/// ("MiniDebugInfo" in gdb's manual).
fn unpack_debug_data(file: &dyn Bytes, sections: &[Section]) -> Option<Vec<u8>> {
    let section = sections
        .iter()
        .find(|section| section.name == ".gnu_debugdata")?;
    let Range { start, end } = section.range;
    let packed = file.copy(start..end.min(start + MAX_DEBUG_DATA as u64))?;
    let mut unpacked = Bounded(Vec::new());
    lzma_rs::xz_decompress(&mut packed.as_slice(), &mut unpacked).ok()?;
    Some(unpacked.0)
}

/// Refuses to grow past [`MAX_DEBUG_DATA`].
struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_DEBUG_DATA {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
