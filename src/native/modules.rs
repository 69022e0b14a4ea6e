//! Modules: an ELF file, the vDSO, or memory without a file, with what unwinding needs. Shared by
//! all processes that have the same build-id mapped.

use super::image::{ElfImage, Piece};
use super::symbols::SymbolTable;
use crate::arch::{Architecture, Machine};
use crate::elf::{Segments, parse_sections};
use crate::memory::Memory;
use crate::model::module::{ModuleInfo, ModuleKind};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Maximum size of an `.eh_frame`: libtorch_cuda's has about 12 MB, libtorch_cpu's 20.
const MAX_UNWIND_COPY: u64 = 128 << 20;
/// Maximum number of entries of an index that is built for a module without one. libtorch_cpu has
/// 346,000 functions.
const MAX_INDEX: usize = 4 << 20;
/// Bytes read at first for an entry of `.eh_frame`: most are shorter.
const USUAL_ENTRY: u64 = 128;
/// Maximum size of an entry: a function with a thousand calls that pass arguments on the stack has
/// some kilobytes.
const MAX_ENTRY: u64 = 1 << 20;

static NEXT_ID: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
pub struct Module {
    id: u32,
    /// The facts in a recording.
    pub info: ModuleInfo,
    segments: Segments,
    image: Option<ElfImage>,
    unwind: Option<UnwindTables>,
    symbols: OnceLock<SymbolTable>,
}

impl Module {
    /// Memory without a file, or a file that is not ELF or could not be read: nothing is known
    /// about its code.
    pub fn opaque(kind: ModuleKind, path: String) -> Self {
        Self::new(kind, path, Vec::new(), Segments::default(), None, None)
    }

    /// A module with its complete file, or an image of it.
    pub fn of_image(kind: ModuleKind, path: String, image: ElfImage) -> Self {
        let build_id = image.build_id().to_vec();
        let unwind = UnwindTables::of_image(&image);
        Self::new(
            kind,
            path,
            build_id,
            image.segments().clone(),
            Some(image),
            unwind,
        )
    }

    /// A module whose file cannot be opened: its unwind tables are copied from the target's memory.
    pub fn of_memory(
        path: String,
        build_id: Vec<u8>,
        segments: Segments,
        bias: u64,
        memory: &dyn Memory,
    ) -> Self {
        let unwind = UnwindTables::of_memory(&segments, bias, memory);
        Self::new(ModuleKind::File, path, build_id, segments, None, unwind)
    }

    fn new(
        kind: ModuleKind,
        path: String,
        build_id: Vec<u8>,
        segments: Segments,
        image: Option<ElfImage>,
        unwind: Option<UnwindTables>,
    ) -> Self {
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            info: ModuleInfo {
                kind,
                path,
                build_id,
            },
            segments,
            image,
            unwind,
            symbols: OnceLock::new(),
        }
    }

    /// Its functions' names, read from the file on first use: that may take a tenth of a second,
    /// and must not be done on the sampling path. Empty if the file could not be opened.
    pub fn symbols(&self) -> &SymbolTable {
        self.symbols.get_or_init(|| match &self.image {
            Some(image) => SymbolTable::of_image(image.clone()),
            None => SymbolTable::empty(),
        })
    }

    /// Its functions' names, if they were read.
    pub fn symbols_if_loaded(&self) -> Option<&SymbolTable> {
        self.symbols.get()
    }

    /// A number that no other module of this run has.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Its program headers; empty if it has none.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Its file, if it could be opened.
    pub fn image(&self) -> Option<&ElfImage> {
        self.image.as_ref()
    }

    /// Whether its file can no longer be read: it was replaced before it could be opened, or
    /// truncated or rewritten since.
    pub fn lost_its_file(&self) -> bool {
        // Without segments not even its headers could be read: it is not an ELF file, or was not
        // fully mapped.
        match &self.image {
            Some(image) => image.bytes().has_changed(),
            None => self.info.kind == ModuleKind::File && !self.segments.loads.is_empty(),
        }
    }

    pub fn unwind(&self) -> Option<&UnwindTables> {
        self.unwind.as_ref()
    }

    /// Copies the bytes that end before virtual address `end` into `buffer`, if the file contains
    /// them.
    pub fn copy_before(&self, end: u64, buffer: &mut [u8]) -> bool {
        let piece = || {
            let start = end.checked_sub(buffer.len() as u64)?;
            self.image.as_ref()?.piece(start..end)
        };
        piece().is_some_and(|piece| piece.read_at(0, buffer))
    }
}

/// `.eh_frame`, and how to find the entry of an address in it. Entries are read from the file on
/// demand.
#[derive(Debug)]
pub struct UnwindTables {
    eh_frame: Piece,
    header: Option<Piece>,
    /// The header's bytes, read by the first search: 3 MB of libtorch_cpu.
    table: OnceLock<Vec<u8>>,
    index: OnceLock<Vec<IndexEntry>>,
}

/// An entry of `.eh_frame`, after the one that it shares with others: a section of two entries.
pub(super) struct Entry {
    section: Vec<u8>,
    /// Where the second begins.
    offset: usize,
    bases: gimli::BaseAddresses,
}

impl Entry {
    /// The section, the bases of its pointers and the entry's offset, in gimli's terms.
    pub(super) fn gimli(&self) -> (Section<'_>, &gimli::BaseAddresses, gimli::EhFrameOffset) {
        (
            eh_frame_section(&self.section),
            &self.bases,
            gimli::EhFrameOffset(self.offset),
        )
    }
}

type Section<'a> = gimli::EhFrame<gimli::EndianSlice<'a, gimli::LittleEndian>>;

fn eh_frame_section(bytes: &[u8]) -> Section<'_> {
    let mut section = gimli::EhFrame::new(bytes, gimli::LittleEndian);
    section.set_address_size(8);
    section.set_vendor(Machine::VENDOR);
    section
}

#[derive(Clone, Copy, Debug)]
struct IndexEntry {
    start: u64,
    end: u64,
    offset: usize,
}

impl UnwindTables {
    /// Tables at virtual addresses, for a synthetic module.
    pub fn new(eh_frame: Piece, header: Option<Piece>) -> Self {
        Self {
            eh_frame,
            header: header.filter(is_searchable),
            table: OnceLock::new(),
            index: OnceLock::new(),
        }
    }

    fn of_image(image: &ElfImage) -> Option<Self> {
        let header = image
            .segments()
            .eh_frame_hdr
            .and_then(|(address, size)| image.piece(address..address.checked_add(size)?));
        let by_header = header
            .as_ref()
            .and_then(eh_frame_address)
            .and_then(|address| image.piece_to_end(address));
        let eh_frame = by_header.or_else(|| {
            let sections = parse_sections(image.bytes());
            let section = sections
                .iter()
                .find(|section| section.name == ".eh_frame")?;
            let size = section.range.end - section.range.start;
            image.piece(section.address..section.address.checked_add(size)?)
        })?;
        Some(Self::new(eh_frame, header))
    }

    fn of_memory(segments: &Segments, bias: u64, memory: &dyn Memory) -> Option<Self> {
        let copy = |range: Range<u64>| -> Option<Piece> {
            let size = range
                .end
                .checked_sub(range.start)
                .filter(|&size| size <= MAX_UNWIND_COPY)?;
            let bytes = memory
                .read_bytes(bias.wrapping_add(range.start), usize::try_from(size).ok()?)
                .ok()?;
            Some(Piece::of_copy(range.start, bytes))
        };
        let (address, size) = segments.eh_frame_hdr?;
        let header = copy(address..address.checked_add(size)?)?;
        let eh_frame = copy(segments.rest_of_load(eh_frame_address(&header)?)?)?;
        Some(Self::new(eh_frame, Some(header)))
    }

    /// The address of `.eh_frame_hdr`, to which pointers may be relative.
    pub fn header_address(&self) -> u64 {
        self.header.as_ref().map_or(0, |header| header.address)
    }

    /// Offset in `.eh_frame` of the entry that may describe `address`; the entry itself shows
    /// whether it does.
    pub fn find_entry(&self, address: u64) -> Option<usize> {
        match &self.header {
            Some(header) => self.search_header(header, address),
            None => self.search_index(address),
        }
    }

    /// Binary search in `.eh_frame_hdr`'s table of (first address, entry), both 4 bytes and
    /// relative to the header.
    fn search_header(&self, header: &Piece, address: u64) -> Option<usize> {
        let bytes = self
            .table
            .get_or_init(|| header.read(0, MAX_UNWIND_COPY).unwrap_or_default());
        let count = read_u32(bytes, 8)? as usize;
        let table = bytes.get(12..)?;
        let count = count.min(table.len() / 8);
        let wanted = i32::try_from(address.wrapping_sub(header.address).cast_signed()).ok()?;
        let start_of = |index: usize| read_u32(table, index * 8).map(u32::cast_signed);
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            if start_of(middle)? <= wanted {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let entry = read_u32(table, low.checked_sub(1)? * 8 + 4)?.cast_signed();
        let entry = header.address.wrapping_add_signed(i64::from(entry));
        usize::try_from(entry.checked_sub(self.eh_frame.address)?).ok()
    }

    /// Search in our own index, which is built on first use.
    fn search_index(&self, address: u64) -> Option<usize> {
        let index = self.index.get_or_init(|| self.make_index());
        let after = index.partition_point(|entry| entry.start <= address);
        let entry = index.get(after.checked_sub(1)?)?;
        (address < entry.end).then_some(entry.offset)
    }

    fn make_index(&self) -> Vec<IndexEntry> {
        use gimli::{CieOrFde, EhFrame, UnwindSection};
        let bytes = self.eh_frame.read(0, MAX_UNWIND_COPY).unwrap_or_default();
        let (section, bases) = (eh_frame_section(&bytes), self.bases(self.eh_frame.address));
        let mut entries = section.entries(&bases);
        let mut index = Vec::new();
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(partial) = entry else {
                continue;
            };
            let Ok(fde) = partial.parse(EhFrame::cie_from_offset) else {
                continue;
            };
            index.push(IndexEntry {
                start: fde.initial_address(),
                end: fde.initial_address().saturating_add(fde.len()),
                offset: fde.offset(),
            });
            if index.len() == MAX_INDEX {
                break;
            }
        }
        index.sort_by_key(|entry| entry.start);
        index
    }

    /// The bases of the pointers in a section at `address`.
    fn bases(&self, address: u64) -> gimli::BaseAddresses {
        gimli::BaseAddresses::default()
            .set_eh_frame(address)
            .set_eh_frame_hdr(self.header_address())
    }

    /// The entry at `offset`, as [`UnwindTables::find_entry`] found it, and the one that it refers
    /// to.
    pub(super) fn entry(&self, offset: usize) -> Option<Entry> {
        const LENGTH: usize = size_of::<u32>();
        let offset = offset as u64;
        let own = self.read_entry(offset)?;
        // In an entry that describes a function, the word after the length is the distance back to
        // the shared entry.
        let distance = u64::from(read_u32(&own, LENGTH)?);
        let shared = (offset + LENGTH as u64).checked_sub(distance)?;
        let mut section = self.read_entry(shared)?;
        let start = section.len();
        section.extend(own);
        let back = u32::try_from(start + LENGTH).ok()?.to_le_bytes();
        section
            .get_mut(start + LENGTH..start + 2 * LENGTH)?
            .copy_from_slice(&back);
        // So that values relative to their own position in the entry are resolved correctly.
        let address = self.eh_frame.address.wrapping_add(offset);
        Some(Entry {
            section,
            offset: start,
            bases: self.bases(address.wrapping_sub(start as u64)),
        })
    }

    /// The bytes of one entry, its length first. No compiler uses the form for 64-bit lengths here.
    fn read_entry(&self, offset: u64) -> Option<Vec<u8>> {
        let mut bytes = self.eh_frame.read(offset, USUAL_ENTRY)?;
        let size = u64::from(read_u32(&bytes, 0)?) + 4;
        if size > MAX_ENTRY {
            return None;
        }
        if size > bytes.len() as u64 {
            bytes = self.eh_frame.read(offset, size)?;
        }
        bytes.truncate(usize::try_from(size).ok()?);
        Some(bytes)
    }
}

fn read_u32(bytes: &[u8], offset: usize) -> Option<u32> {
    let end = offset.checked_add(4)?;
    Some(u32::from_le_bytes(bytes.get(offset..end)?.try_into().ok()?))
}

/// Whether `.eh_frame_hdr` has the form that all linkers write: version 1, `.eh_frame` by a
/// pc-relative 4-byte pointer, the count as 4 bytes, the table of 4-byte offsets from the header
/// (LSB core specification, section 10.6.2).
fn is_searchable(header: &Piece) -> bool {
    header.size() >= 20
        && header
            .read(0, 4)
            .is_some_and(|start| start == [1, 0x1b, 0x03, 0x3b])
}

/// Where `.eh_frame` is, by its header.
fn eh_frame_address(header: &Piece) -> Option<u64> {
    let bases = gimli::BaseAddresses::default().set_eh_frame_hdr(header.address);
    let fields = header.read(0, 64)?;
    let parsed = gimli::EhFrameHdr::new(&fields, gimli::LittleEndian)
        .parse(&bases, 8)
        .ok()?;
    parsed.eh_frame_ptr().direct().ok()
}

/// Build-id and program headers.
type ContentKey = (Vec<u8>, Segments);

/// All modules of a run that have a build-id, so that a file that ten processes map is opened and
/// indexed once.
///
/// The program headers are part of the key: patchelf, which is used for wheels and conda packages,
/// rewrites a library's segments and keeps its build-id.
#[derive(Debug, Default)]
pub struct ModuleStore {
    by_content: Mutex<FxHashMap<ContentKey, Arc<Module>>>,
}

impl ModuleStore {
    /// The module with this build-id and these program headers, if it was seen.
    pub fn find(&self, build_id: &[u8], segments: &Segments) -> Option<Arc<Module>> {
        let modules = self
            .by_content
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        modules.get(&(build_id.to_vec(), segments.clone())).cloned()
    }

    /// Keeps `module` for others, unless it has no build-id, or its file could not be opened while
    /// another process may be able to.
    pub fn add(&self, module: Module) -> Arc<Module> {
        let module = Arc::new(module);
        if module.info.build_id.is_empty() || module.image.is_none() {
            return module;
        }
        let key = (module.info.build_id.clone(), module.segments.clone());
        let mut modules = self
            .by_content
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Arc::clone(modules.entry(key).or_insert(module))
    }
}
