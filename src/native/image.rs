//! A module's bytes: a whole ELF file, an image of one, or parts that were copied from memory.

use super::elf::{ElfError, HeaderTable, Segments, find_build_id};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a module: a mapped file, or a copy of memory.
pub trait Bytes: AsRef<[u8]> + Send + Sync {
    /// Gives back the memory of what was read of it, where it can be read from the file again.
    fn forget_pages(&self) {}
}

impl Bytes for Vec<u8> {}

/// Bytes of a module, shared.
pub type ModuleBytes = Arc<dyn Bytes>;

/// A part of a module at its virtual address.
#[derive(Clone)]
pub struct Piece {
    /// Virtual address of its first byte.
    pub address: u64,
    bytes: ModuleBytes,
    range: Range<usize>,
}

impl Piece {
    /// `range` of `bytes`, which lies at `address`.
    pub fn new(address: u64, bytes: ModuleBytes, range: Range<usize>) -> Option<Self> {
        (*bytes).as_ref().get(range.clone())?;
        Some(Self {
            address,
            bytes,
            range,
        })
    }

    /// A copy of memory at `address`.
    pub fn of_copy(address: u64, copy: Vec<u8>) -> Self {
        let range = 0..copy.len();
        Self {
            address,
            bytes: Arc::new(copy),
            range,
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        (*self.bytes)
            .as_ref()
            .get(self.range.clone())
            .unwrap_or(&[])
    }

    /// The bytes at virtual addresses `range`, if they all lie here.
    pub fn at(&self, range: Range<u64>) -> Option<&[u8]> {
        let start = usize::try_from(range.start.checked_sub(self.address)?).ok()?;
        let end = usize::try_from(range.end.checked_sub(self.address)?).ok()?;
        self.bytes().get(start..end)
    }
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Piece({:#x}, {} bytes)",
            self.address,
            self.range.len()
        )
    }
}

/// An ELF file, or an image that holds one whole, such as the vDSO's.
#[derive(Clone)]
pub struct ElfImage {
    bytes: ModuleBytes,
    segments: Segments,
    build_id: Vec<u8>,
}

impl ElfImage {
    /// Reads the headers of `bytes`.
    ///
    /// # Errors
    /// [`ElfError`].
    pub fn parse(bytes: ModuleBytes) -> Result<Self, ElfError> {
        let file = (*bytes).as_ref();
        let table = HeaderTable::parse(file)?;
        let offset = usize::try_from(table.offset).map_err(|_| ElfError::Damaged)?;
        let segments = Segments::parse(file.get(offset..).ok_or(ElfError::Damaged)?, table.count)?;
        let mut image = Self {
            bytes,
            segments,
            build_id: Vec::new(),
        };
        let notes = image.segments.notes.iter();
        image.build_id = notes
            .filter_map(|&(address, size)| image.piece(address..address.checked_add(size)?))
            .find_map(|piece| find_build_id(piece.bytes()))
            .unwrap_or_default();
        Ok(image)
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// Gives back the memory of what was read of it so far, where it can be read again.
    pub fn forget_pages(&self) {
        self.bytes.forget_pages();
    }

    /// What the program headers say.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The GNU build-id; empty where it has none.
    pub fn build_id(&self) -> &[u8] {
        &self.build_id
    }

    /// The part at virtual addresses `range`, if the file holds it whole in one segment.
    pub fn piece(&self, range: Range<u64>) -> Option<Piece> {
        let load = self.segments.load_of(range.start)?;
        let size = range.end.checked_sub(range.start)?;
        let within = range.start.checked_sub(load.address)?;
        if within.checked_add(size)? > load.file_size {
            return None;
        }
        let start = usize::try_from(load.offset.checked_add(within)?).ok()?;
        let end = start.checked_add(usize::try_from(size).ok()?)?;
        Piece::new(range.start, Arc::clone(&self.bytes), start..end)
    }

    /// The part from `address` to the end of its segment, or of a file that is cut short.
    pub fn piece_to_end(&self, address: u64) -> Option<Piece> {
        let load = self.segments.load_of(address)?;
        let within = address.checked_sub(load.address)?;
        let start = usize::try_from(load.offset.checked_add(within)?).ok()?;
        let size = usize::try_from(load.file_size.checked_sub(within)?).ok()?;
        let end = start.checked_add(size)?.min(self.bytes().len());
        Piece::new(address, Arc::clone(&self.bytes), start..end)
    }
}

impl std::fmt::Debug for ElfImage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ElfImage({} bytes)", self.bytes().len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::elf::parse_sections;
    use super::*;
    use proptest::prelude::*;

    fn own_file() -> Vec<u8> {
        std::fs::read("/proc/self/exe").unwrap()
    }

    #[test]
    fn own_executable_has_what_is_needed() {
        let image = ElfImage::parse(Arc::new(own_file())).unwrap();
        assert!(image.segments().loads.iter().any(|load| load.executable));
        let (address, size) = image.segments().eh_frame_hdr.unwrap();
        assert_eq!(image.piece(address..address + size).unwrap().bytes()[0], 1);
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
            let mut file = own_file();
            file.truncate(200_000);
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
