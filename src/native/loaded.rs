//! The modules of one process, by address.

use super::image::{ElfImage, ModuleBytes};
use super::modules::{Module, ModuleStore};
use crate::arch::{Architecture, Machine};
use crate::elf::names::ElfNames;
use crate::elf::{HEADER_BYTES, HeaderTable, LoadSegment, Segments, find_build_id};
use crate::memory::Memory;
use crate::model::mapping::Mapping;
use crate::model::module::ModuleKind;
use crate::model::text::file_name;
use std::sync::Arc;

/// Linux maps files in pages of this size, or of a multiple of it.
const PAGE: u64 = Machine::PAGE_BYTES;
/// Maximum size of the vDSO; it has always had 1 to 2 pages.
const MAX_VDSO: u64 = 1 << 20;
const MAX_NOTES: u64 = 1 << 16;
const VDSO: &str = "[vdso]";
const ANONYMOUS: &str = "[anonymous]";

/// Opens the files that a process maps.
pub trait ModuleOpener {
    /// The bytes of the file that `mapping` maps, or of the file that has its name now; `None` if
    /// it cannot be opened. The caller checks whether it is the right file.
    fn open(&self, mapping: &Mapping) -> Option<ModuleBytes>;

    /// The bytes of exactly the file that `mapping` maps, if it can be opened without its name;
    /// called if the file by name is missing or another one.
    fn open_mapped(&self, _mapping: &Mapping) -> Option<ModuleBytes> {
        None
    }
}

/// The module and mapping of an address.
#[derive(Clone, Copy, Debug)]
pub struct Loaded<'a> {
    pub module: &'a Arc<Module>,
    /// Its number in this process, stable while the process runs the same program.
    pub module_index: u32,
    /// Run-time address minus the file's virtual address; 0 for memory without a file.
    pub bias: u64,
    /// First address of the mapping.
    pub start: u64,
    /// Whether its bytes may be read through the target's memory: it is readable and not a device.
    pub readable: bool,
}

#[derive(Clone, Debug)]
struct Slot {
    module: Arc<Module>,
    bias: u64,
}

#[derive(Clone, Debug)]
struct Segment {
    mapping: Mapping,
    slot: u32,
    /// If its file could not be opened: all mapped parts of it, as `(start, end, offset)`. The
    /// loader maps a file part by part, and a process may be read in between.
    pieces: Vec<(u64, u64, u64)>,
}

/// The executable memory of one process.
#[derive(Debug)]
pub struct LoadedModules {
    store: Arc<ModuleStore>,
    /// Sorted by address.
    segments: Vec<Segment>,
    /// `(start, end, slot)` of each segment: all that a lookup reads.
    ranges: Vec<(u64, u64, u32)>,
    /// All modules that were ever seen in this process: an index stays valid.
    slots: Vec<Slot>,
    anonymous: Option<u32>,
}

impl LoadedModules {
    /// Without any module; [`LoadedModules::refresh`] adds them.
    pub fn new(store: Arc<ModuleStore>) -> Self {
        Self {
            store,
            segments: Vec::new(),
            ranges: Vec::new(),
            slots: Vec::new(),
            anonymous: None,
        }
    }

    /// Updates the modules from the current mappings, in the order of `/proc/PID/maps`; modules
    /// that are still mapped are kept. Returns whether any executable memory changed.
    ///
    /// The mappings must include those that are not executable: a file's headers are usually in one
    /// of them.
    pub fn refresh(
        &mut self,
        mappings: &[Mapping],
        opener: &dyn ModuleOpener,
        memory: &dyn Memory,
    ) -> bool {
        let mut segments = Vec::with_capacity(self.segments.len());
        let mut changed = false;
        for (position, mapping) in mappings.iter().enumerate() {
            if !mapping.executable {
                continue;
            }
            let known = self.known(mapping);
            let known_slot = known.map(|segment| segment.slot);
            let is_current = |segment: &&Segment| {
                // If a file was rewritten, another module may have been loaded from it at the same
                // address.
                !self.was_rewritten(segment.slot)
                    && (segment.pieces.is_empty() || segment.pieces == pieces_of(mapping, mappings))
            };
            let slot = match known.filter(is_current) {
                Some(segment) => segment.slot,
                None => self.resolve(mappings, position, opener, memory),
            };
            changed |= known_slot != Some(slot);
            segments.push(Segment {
                mapping: mapping.clone(),
                slot,
                pieces: if self.lacks_its_file(slot) {
                    pieces_of(mapping, mappings)
                } else {
                    Vec::new()
                },
            });
        }
        segments.sort_by_key(|segment| segment.mapping.start);
        changed |= segments.len() != self.segments.len();
        self.ranges = segments
            .iter()
            .map(|segment| (segment.mapping.start, segment.mapping.end, segment.slot))
            .collect();
        self.segments = segments;
        if changed {
            self.forget_anonymous_code();
        }
        changed
    }

    /// Code made at run time may have been replaced: what an unwinder keeps about it, by the
    /// module's id, is invalid.
    fn forget_anonymous_code(&mut self) {
        if let Some(slot) = self
            .anonymous
            .and_then(|index| self.slots.get_mut(index as usize))
        {
            slot.module = Arc::new(Module::opaque(ModuleKind::Anonymous, ANONYMOUS.to_owned()));
        }
    }

    fn known(&self, mapping: &Mapping) -> Option<&Segment> {
        let at = self
            .segments
            .binary_search_by_key(&mapping.start, |segment| segment.mapping.start)
            .ok()?;
        let segment = &self.segments[at];
        let known = &segment.mapping;
        let same =
            known.end == mapping.end && known.offset == mapping.offset && known.same_file(mapping);
        same.then_some(segment)
    }

    fn lacks_its_file(&self, slot: u32) -> bool {
        self.module(slot).is_some_and(|(module, _)| {
            module.info.kind == ModuleKind::File && module.image().is_none()
        })
    }

    fn was_rewritten(&self, slot: u32) -> bool {
        let image = self.module(slot).and_then(|(module, _)| module.image());
        image.is_some_and(|image| image.bytes().has_changed())
    }

    /// The module and mapping of `address`, if it is in executable memory.
    pub fn find(&self, address: u64) -> Option<Loaded<'_>> {
        let after = self.ranges.partition_point(|&(start, ..)| start <= address);
        let &(start, end, index) = self.ranges.get(after.checked_sub(1)?)?;
        if address >= end {
            return None;
        }
        let slot = self.slots.get(index as usize)?;
        Some(Loaded {
            module: &slot.module,
            module_index: index,
            bias: slot.bias,
            start,
            readable: self
                .segments
                .get(after - 1)
                .is_some_and(|segment| is_readable(&segment.mapping)),
        })
    }

    /// Whether `address` lies in executable memory.
    pub fn is_executable(&self, address: u64) -> bool {
        let after = self.ranges.partition_point(|&(start, ..)| start <= address);
        after > 0 && address < self.ranges[after - 1].1
    }

    /// The module with this number, and its bias; also after it was unloaded.
    pub fn module(&self, index: u32) -> Option<(&Arc<Module>, u64)> {
        self.slots
            .get(index as usize)
            .map(|slot| (&slot.module, slot.bias))
    }

    /// All modules seen so far, in the order of their numbers, with their biases.
    pub fn modules(&self) -> impl Iterator<Item = (&Arc<Module>, u64)> {
        self.slots.iter().map(|slot| (&slot.module, slot.bias))
    }

    /// The address of a variable or a function of the library of this name; the outer `None` means
    /// that the library is not loaded, or cannot be read yet, the inner one that it has none.
    pub fn address_of(&self, library: &str, symbol: &str) -> Option<Option<u64>> {
        let is_it = |module: &Module| file_name(&module.info.path) == library;
        let (module, bias) = self.modules().find(|(module, _)| is_it(module))?;
        let [value] = ElfNames::parse(module.image()?.bytes())?.symbols([symbol]);
        Some(value.map(|value| value.wrapping_add(bias)))
    }

    /// The slot of a new executable mapping.
    fn resolve(
        &mut self,
        mappings: &[Mapping],
        position: usize,
        opener: &dyn ModuleOpener,
        memory: &dyn Memory,
    ) -> u32 {
        let mapping = &mappings[position];
        if mapping.path == VDSO {
            return match vdso(mapping, memory) {
                Some((module, bias)) => self.slot_of(self.store.add(module), bias),
                None => self.opaque_slot(ModuleKind::Vdso, VDSO),
            };
        }
        if mapping.is_device() {
            return self.opaque_slot(ModuleKind::File, &mapping.path);
        }
        if !mapping.is_file() {
            return self.anonymous_slot();
        }
        let Some(mapped) = MappedHeaders::read(mappings, position, memory) else {
            return self.opaque_slot(ModuleKind::File, &mapping.path);
        };
        let bias = mapped.bias;
        let build_id = &mapped.build_id;
        let known = if build_id.is_empty() {
            None
        } else {
            self.store.find(build_id, &mapped.segments)
        };
        let same_bias = |slot: &Slot| slot.bias == bias && slot.module.info.path == mapping.path;
        if known.is_none()
            && let Some(index) = self.slots.iter().position(|slot| {
                same_bias(slot)
                    && slot.module.info.build_id == *build_id
                    && *slot.module.segments() == mapped.segments
            })
        {
            // It has no build-id or no file, but was seen in this process: another segment of the
            // same module.
            return to_index(index);
        }
        let module = known.unwrap_or_else(|| {
            let image = opener.open(mapping).and_then(|bytes| mapped.accept(bytes));
            let image = image.or_else(|| {
                opener
                    .open_mapped(mapping)
                    .and_then(|bytes| mapped.accept(bytes))
            });
            let path = mapping.path.clone();
            self.store.add(match image {
                Some(image) => Module::of_image(ModuleKind::File, path, image),
                None => Module::of_memory(
                    path,
                    build_id.clone(),
                    mapped.segments.clone(),
                    bias,
                    memory,
                ),
            })
        });
        self.slot_of(module, bias)
    }

    fn slot_of(&mut self, module: Arc<Module>, bias: u64) -> u32 {
        let known = |slot: &Slot| slot.bias == bias && slot.module.id() == module.id();
        let index = self.slots.iter().position(known).unwrap_or_else(|| {
            self.slots.push(Slot { module, bias });
            self.slots.len() - 1
        });
        to_index(index)
    }

    fn opaque_slot(&mut self, kind: ModuleKind, path: &str) -> u32 {
        let known = |slot: &Slot| {
            slot.bias == 0
                && slot.module.info.kind == kind
                && slot.module.info.path == path
                && slot.module.image().is_none()
        };
        if let Some(index) = self.slots.iter().position(known) {
            return to_index(index);
        }
        self.slot_of(Arc::new(Module::opaque(kind, path.to_owned())), 0)
    }

    fn anonymous_slot(&mut self) -> u32 {
        match self.anonymous {
            Some(index) => index,
            None => {
                let index = self.opaque_slot(ModuleKind::Anonymous, ANONYMOUS);
                self.anonymous = Some(index);
                index
            }
        }
    }
}

/// Execute-only memory, such as the vsyscall page, cannot be read; devices can, but are not.
fn is_readable(mapping: &Mapping) -> bool {
    mapping.readable && !mapping.is_device()
}

fn to_index(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// The vDSO: the kernel's own shared object, complete in memory and in no file.
fn vdso(mapping: &Mapping, memory: &dyn Memory) -> Option<(Module, u64)> {
    let size = usize::try_from(mapping.size().min(MAX_VDSO)).ok()?;
    let copy = memory.read_bytes(mapping.start, size).ok()?;
    let image = ElfImage::parse(Arc::new(copy)).ok()?;
    let bias = mapping.start.wrapping_sub(image.segments().span()?.start);
    Some((
        Module::of_image(ModuleKind::Vdso, VDSO.to_owned(), image),
        bias,
    ))
}

/// A file's headers as mapped in the target: they describe what it runs, even if the file's name
/// now refers to another file.
struct MappedHeaders {
    bias: u64,
    segments: Segments,
    build_id: Vec<u8>,
}

impl MappedHeaders {
    /// The headers of the file whose executable mapping is at `position`.
    fn read(mappings: &[Mapping], position: usize, memory: &dyn Memory) -> Option<Self> {
        let code = &mappings[position];
        // The loader maps a file's segments upwards from its headers. Where pages are large, the
        // file's first one may be in several segments.
        let mut firsts = mappings[..=position]
            .iter()
            .rev()
            .filter(|mapping| mapping.offset == 0 && mapping.same_file(code));
        firsts.find_map(|first| Self::of(first, code, mappings, memory))
    }

    /// The same, if the file's headers are those that `first` begins with.
    fn of(
        first: &Mapping,
        code: &Mapping,
        mappings: &[Mapping],
        memory: &dyn Memory,
    ) -> Option<Self> {
        let mut header = [0; HEADER_BYTES];
        memory.read_exact(first.start, &mut header).ok()?;
        let table = HeaderTable::parse(&header).ok()?;
        let table_end = table.offset.checked_add(table.bytes() as u64)?;
        if table_end > first.size() {
            return None;
        }
        let bytes = memory
            .read_bytes(first.start.checked_add(table.offset)?, table.bytes())
            .ok()?;
        let segments = Segments::parse(&bytes, table.count).ok()?;
        let lowest = segments.loads.iter().find(|load| load.offset < PAGE)?;
        let bias = first.start.wrapping_sub(start_of_file(lowest));
        if !is_placed(&segments, code, bias) || !has_notes(&segments, mappings, code, bias) {
            return None;
        }
        let notes = segments
            .notes
            .iter()
            .filter(|&&(_, size)| size <= MAX_NOTES);
        let build_id = notes
            .filter_map(|&(address, size)| {
                let size = usize::try_from(size).ok()?;
                memory.read_bytes(bias.wrapping_add(address), size).ok()
            })
            .find_map(|notes| find_build_id(&notes))
            .unwrap_or_default();
        Some(Self {
            bias,
            segments,
            build_id,
        })
    }

    /// `bytes` as the mapped file, if it is complete and has the same build-id and program headers.
    fn accept(&self, bytes: ModuleBytes) -> Option<ElfImage> {
        let image = ElfImage::parse(bytes).ok()?;
        let is_same = image.build_id() == self.build_id && *image.segments() == self.segments;
        (is_same && image.is_complete()).then_some(image)
    }
}

/// Whether `code` is where a module with these segments and this bias has code of that file offset.
/// The offset alone is ambiguous: that of OpenBLAS is in two segments, whose pages overlap in the
/// file.
///
/// A segment is mapped from the start of a page on, and of which size pages are does not matter: by
/// as much as the address is lower the offset is, too.
fn is_placed(segments: &Segments, code: &Mapping, bias: u64) -> bool {
    let executable = segments.loads.iter().filter(|load| load.executable);
    executable.into_iter().any(|load| {
        let file_start = bias.wrapping_add(start_of_file(load));
        // Also a part of a segment: mprotect splits mappings.
        code.start.wrapping_sub(file_start) == code.offset
            && code.offset.saturating_add(code.size()) > load.offset
            && code.offset < load.offset.saturating_add(load.file_size)
    })
}

/// The address that the file's first byte would have if all of it were mapped as this segment is.
fn start_of_file(load: &LoadSegment) -> u64 {
    load.address.wrapping_sub(load.offset)
}

/// Whether all notes of the module are mapped. A file that patchelf changed may have its build-id
/// in its last segment, which the loader maps last.
fn has_notes(segments: &Segments, mappings: &[Mapping], code: &Mapping, bias: u64) -> bool {
    segments.notes.iter().all(|&(address, _)| {
        let Some(load) = segments.load_of(address) else {
            return true;
        };
        let offset = load.offset.wrapping_add(address - load.address);
        let at = bias.wrapping_add(address);
        mappings.iter().any(|mapping| {
            (mapping.start..mapping.end).contains(&at)
                && mapping.same_file(code)
                && mapping.offset.checked_add(at - mapping.start) == Some(offset)
        })
    })
}

/// All mappings of the file that `code` maps, as `(start, end, offset)`.
fn pieces_of(code: &Mapping, mappings: &[Mapping]) -> Vec<(u64, u64, u64)> {
    mappings
        .iter()
        .filter(|mapping| mapping.same_file(code))
        .map(|mapping| (mapping.start, mapping.end, mapping.offset))
        .collect()
}
