//! A module's bytes: a complete ELF file, an image of one, or parts that were copied from memory.

use crate::elf::{ElfError, HEADER_BYTES, HeaderTable, LoadSegment, Segments, find_build_id};
use crate::memory::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// Maximum bytes of notes; they usually have some hundred.
const MAX_NOTES: u64 = 1 << 16;

/// Bytes of a module, shared.
pub type ModuleBytes = Arc<dyn Bytes>;

/// A part of a module at its virtual address.
#[derive(Clone)]
pub struct Piece {
    /// Virtual address of its first byte.
    pub address: u64,
    bytes: ModuleBytes,
    range: Range<u64>,
}

impl Piece {
    /// `range` of `bytes`, with the virtual address `address`.
    pub fn new(address: u64, bytes: ModuleBytes, range: Range<u64>) -> Option<Self> {
        let is_inside = range.start <= range.end && range.end <= bytes.size();
        is_inside.then_some(Self {
            address,
            bytes,
            range,
        })
    }

    pub fn of_copy(address: u64, copy: Vec<u8>) -> Self {
        let range = 0..copy.len() as u64;
        Self {
            address,
            bytes: Arc::new(copy),
            range,
        }
    }

    pub fn size(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Fills `buffer` with its bytes from `offset` on; `false` if they cannot be read.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let start = self.range.start.saturating_add(offset);
        let end = start.saturating_add(buffer.len() as u64);
        end <= self.range.end && self.bytes.read_at(start, buffer)
    }

    /// Its bytes from `offset` on, `length` of them or as many as there are.
    pub fn read(&self, offset: u64, length: u64) -> Option<Vec<u8>> {
        let start = self.range.start.checked_add(offset)?;
        let end = start.saturating_add(length).min(self.range.end);
        self.bytes.copy(start..end)
    }
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Piece({:#x}, {} bytes)",
            self.address,
            self.size()
        )
    }
}

/// An ELF file, or a complete image of one, such as the vDSO's.
#[derive(Clone)]
pub struct ElfImage {
    bytes: ModuleBytes,
    segments: Segments,
    build_id: Vec<u8>,
    /// End of the last range that its headers refer to.
    end: u64,
}

impl ElfImage {
    /// Reads the headers of `bytes`.
    ///
    /// # Errors
    /// [`ElfError`].
    pub fn parse(bytes: ModuleBytes) -> Result<Self, ElfError> {
        let mut header = [0; HEADER_BYTES];
        if !bytes.read_at(0, &mut header) {
            return Err(ElfError::NotElf);
        }
        let table = HeaderTable::parse(&header)?;
        let end = table.offset.checked_add(table.bytes() as u64);
        let headers = end.and_then(|end| bytes.copy(table.offset..end));
        let segments = Segments::parse(&headers.ok_or(ElfError::Damaged)?, table.count)?;
        let end = |load: &LoadSegment| load.offset.saturating_add(load.file_size);
        let end = segments.loads.iter().map(end).max().unwrap_or(0);
        let mut image = Self {
            bytes,
            segments,
            build_id: Vec::new(),
            end: end.max(table.sections_end),
        };
        let notes = image.segments.notes.iter();
        image.build_id = notes
            .filter_map(|&(address, size)| image.piece(address..address.checked_add(size)?))
            .find_map(|piece| find_build_id(&piece.read(0, MAX_NOTES)?))
            .unwrap_or_default();
        Ok(image)
    }

    pub fn bytes(&self) -> &dyn Bytes {
        &*self.bytes
    }

    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The GNU build-id; empty if it has none.
    pub fn build_id(&self) -> &[u8] {
        &self.build_id
    }

    /// The part at virtual addresses `range`, if one segment of the file contains all of it.
    pub fn piece(&self, range: Range<u64>) -> Option<Piece> {
        let load = self.segments.load_of(range.start)?;
        let size = range.end.checked_sub(range.start)?;
        let within = range.start.checked_sub(load.address)?;
        if within.checked_add(size)? > load.file_size {
            return None;
        }
        let start = load.offset.checked_add(within)?;
        let end = start.checked_add(size)?;
        Piece::new(range.start, Arc::clone(&self.bytes), start..end)
    }

    /// The part from `address` to the end of its segment, or of a truncated file.
    pub fn piece_to_end(&self, address: u64) -> Option<Piece> {
        let load = self.segments.load_of(address)?;
        let within = address.checked_sub(load.address)?;
        let start = load.offset.checked_add(within)?;
        let end = start.checked_add(load.file_size.checked_sub(within)?)?;
        Piece::new(
            address,
            Arc::clone(&self.bytes),
            start..end.min(self.bytes().size()),
        )
    }

    /// Whether the file is as long as its headers require.
    pub fn is_complete(&self) -> bool {
        self.end <= self.bytes().size()
    }
}

impl std::fmt::Debug for ElfImage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ElfImage({} bytes)", self.bytes().size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::parse_sections;
    use proptest::prelude::*;
    use std::sync::LazyLock;

    static OWN_FILE: LazyLock<Vec<u8>> = LazyLock::new(|| std::fs::read("/proc/self/exe").unwrap());

    #[test]
    fn own_executable_has_what_is_needed() {
        let image = ElfImage::parse(Arc::new(OWN_FILE.clone())).unwrap();
        assert!(image.segments().loads.iter().any(|load| load.executable));
        let (address, size) = image.segments().eh_frame_hdr.unwrap();
        let header = image.piece(address..address + size).unwrap();
        assert_eq!(header.read(0, 1).unwrap(), [1]);
        let sections = parse_sections(image.bytes());
        assert!(
            sections
                .iter()
                .any(|section| section.name == ".text" && !section.range.is_empty())
        );
    }

    proptest! {
        #[test]
        fn damaged_files_never_panic(changes in proptest::collection::vec((0_usize..1024, any::<u8>()), 1..12), cut in 0_usize..200_000) {
            let mut file = OWN_FILE[..200_000].to_vec();
            for (position, byte) in changes {
                file[position] = byte;
            }
            file.truncate(cut);
            parse_sections(&file);
            if let Ok(image) = ElfImage::parse(Arc::new(file)) {
                for load in &image.segments().loads {
                    image.piece_to_end(load.address);
                }
            }
        }
    }
}
