//! The memory that identifies and names a code object: what
//! [`CodeCache`](super::code_object::CodeCache) reads, for code that copies it before it is freed.

use super::discover::Interpreter;
use super::layout::{FrameChain, Layout, MAX_CODE};
use super::objects::{u32_at, u64_at};
use crate::memory::Memory;

/// An object that a code object points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodePart {
    pub address: u64,
    /// Number of bytes that are needed to determine its length.
    pub header: usize,
    is_str: bool,
}

/// The fields that show whether an address still holds the same code object: everything from the
/// first line to the line table, which includes `co_version` from 3.12 on, and never changes while
/// the object lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    pub(super) start: u32,
    pub(super) length: usize,
}

impl Identity {
    pub(super) fn of(layout: &Layout) -> Self {
        let code = &layout.code;
        let fields = [code.first_line & !7, code.file, code.name, code.line_table];
        let start = fields.into_iter().min().unwrap_or(0);
        let end = fields.into_iter().max().unwrap_or(0).saturating_add(8);
        Self {
            start,
            length: (end - start) as usize,
        }
    }

    pub(super) fn address(self, code: u64) -> u64 {
        code.wrapping_add(self.start.into())
    }
}

/// Locations of the fields that name a code object.
#[derive(Clone, Copy, Debug)]
pub struct CodeFields<'a> {
    layout: &'a Layout,
    identity: Identity,
}

impl<'a> CodeFields<'a> {
    /// The fields of an interpreter's code objects.
    pub fn of(interpreter: &'a Interpreter) -> Self {
        let layout = &interpreter.layout;
        Self {
            layout,
            identity: Identity::of(layout),
        }
    }

    /// The code object's own fields: address and length.
    pub fn head(&self, code: u64) -> (u64, usize) {
        let own = self.layout.code.bytecode + 8;
        let end = own.clamp(self.layout.objects.type_offset() + 16, MAX_CODE);
        (
            code,
            (end as usize).max(self.identity.start as usize + self.identity.length),
        )
    }

    /// The identifying part of them: address and length.
    pub fn identity(&self, code: u64) -> (u64, usize) {
        (self.identity.address(code), self.identity.length)
    }

    /// The identifying part of a head that was read.
    pub fn identity_in<'b>(&self, head: &'b [u8]) -> &'b [u8] {
        let start = self.identity.start as usize;
        head.get(start..start + self.identity.length)
            .unwrap_or_default()
    }

    /// Whether `copies` hold a code object's own fields.
    pub fn is_copied(&self, code: u64, copies: &dyn Memory) -> bool {
        copies.read_u64(self.identity.address(code)).is_ok()
    }

    /// The objects that a head points to: its name, file and line table, and its bytecode if that
    /// is an object of its own (3.10).
    pub fn parts(&self, head: &[u8]) -> impl Iterator<Item = CodePart> + use<> {
        let code = &self.layout.code;
        let text = self.layout.unicode.ascii_data as usize;
        let bytes = self.layout.bytes.data as usize;
        let bytecode =
            matches!(self.layout.chain, FrameChain::Objects { .. }).then_some(code.bytecode);
        let part = |offset, header, is_str| CodePart {
            address: u64_at(head, offset),
            header,
            is_str,
        };
        let parts = [
            Some(part(code.name, text, true)),
            Some(part(code.file, text, true)),
            Some(part(code.line_table, bytes, false)),
            bytecode.map(|offset| part(offset, bytes, false)),
        ];
        parts.into_iter().flatten().filter(|part| part.address != 0)
    }

    /// Length of a part, bytes, from its first bytes; `usize::MAX` if they are invalid.
    pub fn length(&self, part: CodePart, bytes: &[u8]) -> usize {
        let (unicode, plain) = (&self.layout.unicode, &self.layout.bytes);
        let (length, data, width) = match part.is_str {
            true => {
                let state = u32_at(bytes, unicode.state);
                let (kind, _, ascii) = unicode.form(state);
                let data = if ascii {
                    unicode.ascii_data
                } else {
                    unicode.compact_data
                };
                (u64_at(bytes, unicode.length), data, kind.max(1))
            }
            false => (u64_at(bytes, plain.length), plain.data, 1),
        };
        let whole = length
            .checked_mul(width.into())
            .and_then(|bytes| bytes.checked_add(data.into()));
        whole
            .and_then(|whole| usize::try_from(whole).ok())
            .unwrap_or(usize::MAX)
    }
}
