//! zstd, with a block for each long column.

use super::column::Corrupt;
use postcard::ser_flavors::Flavor;
use serde::Serialize;
use std::io;
use zstd::zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd::zstd_safe::{
    CCtx, CParameter, InBuffer, OutBuffer, ResetDirective, compress_bound, get_error_name,
};

/// How hard zstd works. Measured with segments of a torch process of 160 threads: past 9, time
/// doubles for each percent.
const LEVEL: i32 = 9;

/// Columns of this many bytes get a block of their own. zstd codes a block's bytes by one table:
/// names and the low bytes of numbers, coded by one, cost a tenth more together than apart.
const OWN_BLOCK: usize = 512;

/// Room for the headers of a block that is flushed.
const BLOCK_ROOM: usize = 32;

/// Bytes as postcard writes them, and where zstd's blocks shall end.
#[derive(Default)]
struct Blocks {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Flavor for Blocks {
    type Output = Self;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.bytes.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        if bytes.len() >= OWN_BLOCK {
            self.ends.push(self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
        if bytes.len() >= OWN_BLOCK {
            self.ends.push(self.bytes.len());
        }
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Self> {
        Ok(self)
    }
}

/// Compresses one value after another, with buffers that are kept.
pub(super) struct Compressor {
    context: CCtx<'static>,
    blocks: Blocks,
}

impl Compressor {
    /// # Errors
    /// Where zstd gets no memory.
    pub(super) fn new() -> io::Result<Self> {
        let mut context = CCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
        context
            .set_parameter(CParameter::CompressionLevel(LEVEL))
            .map_err(|code| io::Error::other(get_error_name(code)))?;
        Ok(Self {
            context,
            blocks: Blocks::default(),
        })
    }

    /// Appends `value`, in postcard's encoding, compressed, to `out`; returns its length before
    /// compression.
    pub(super) fn append<T: Serialize>(
        &mut self,
        value: &T,
        out: &mut Vec<u8>,
    ) -> Result<usize, Corrupt> {
        let mut blocks = std::mem::take(&mut self.blocks);
        blocks.bytes.clear();
        blocks.ends.clear();
        blocks = postcard::serialize_with_flavor(value, blocks)
            .map_err(|_| Corrupt("it cannot be written"))?;
        let length = blocks.bytes.len();
        blocks.ends.push(length);
        let result = self.compress(&blocks, out);
        self.blocks = blocks;
        result
            .map(|()| length)
            .map_err(|_| Corrupt("it cannot be compressed"))
    }

    fn compress(&mut self, blocks: &Blocks, out: &mut Vec<u8>) -> Result<(), usize> {
        let length = blocks.bytes.len();
        out.reserve(compress_bound(length) + BLOCK_ROOM * blocks.ends.len());
        self.context.reset(ResetDirective::SessionOnly)?;
        self.context.set_pledged_src_size(Some(length as u64))?;
        let start = out.len();
        let mut output = OutBuffer::around_pos(out, start);
        let mut from = 0;
        for &end in &blocks.ends {
            if end == from {
                continue;
            }
            let directive = if end == length {
                ZSTD_EndDirective::ZSTD_e_end
            } else {
                ZSTD_EndDirective::ZSTD_e_flush
            };
            let mut input = InBuffer::around(&blocks.bytes[from..end]);
            // There is room for all of it, so one call is enough; otherwise the payload would be
            // incomplete.
            if self
                .context
                .compress_stream2(&mut output, &mut input, directive)?
                != 0
            {
                return Err(0);
            }
            from = end;
        }
        Ok(())
    }
}
