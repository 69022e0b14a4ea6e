//! `_Py_DebugOffsets`: the offsets that CPython 3.13 and later provide, at the start of
//! `_PyRuntime`.
//!
//! Source: Include/internal/pycore_runtime.h (3.13) and Include/internal/pycore_debug_offsets.h
//! (3.14, 3.15) of <https://github.com/python/cpython>. The table's own form changes with each
//! minor version, so the positions of its entries are a table here; their values are read from the
//! target, and checked like everything that is.

use super::{
    BytesLayout, CodeLayout, FrameChain, FrameLayout, GilLayout, GilPlace, InterpreterLayout,
    Layout, LayoutError, ThreadLayout, UnicodeLayout, objects, objects::ObjectLayout, tables,
};
use crate::model::code::PythonVersion;

/// How `_Py_DebugOffsets` begins.
pub const COOKIE: &[u8; 8] = b"xdebugpy";

/// Cookie, version and `free_threaded`: the part that every version shares.
pub const HEADER_SIZE: usize = 24;

/// Maximum size of a table, bytes (3.15: 888).
pub const MAX_SIZE: usize = 888;

/// The part of `_Py_DebugOffsets` that every version shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// `PY_VERSION_HEX`.
    pub version_hex: u64,
    /// Whether the build is free-threaded.
    pub free_threaded: bool,
}

/// Parses the shared part; `None` if the cookie is missing.
pub fn parse_header(bytes: &[u8]) -> Option<Header> {
    if bytes.get(..8)? != COOKIE {
        return None;
    }
    Some(Header {
        version_hex: entry(bytes, 8)?,
        free_threaded: entry(bytes, 16)? != 0,
    })
}

/// Positions of the groups in one version's table, and which groups grew.
struct Form {
    version: PythonVersion,
    size: usize,
    interpreter: usize,
    thread: usize,
    frame: usize,
    code: usize,
    bytes: usize,
    unicode: usize,
    /// 3.14 added `threads_main` after `threads_head`.
    has_threads_main: bool,
    /// 3.15 added three fields after `thread_state.current_frame`, the first being `base_frame`.
    has_base_frame: bool,
    /// 3.15 has `sizeof(PyCompactUnicodeObject)`.
    has_compact_size: bool,
    /// Bits of a stack reference that are not part of the pointer.
    tag_mask: u64,
    /// 3.14 added `tlbc_index` to the frame's group (entry 7), and `co_tlbc` to the code's (entry
    /// 10).
    has_copies: bool,
    /// Offsets that the table lacks.
    objects: ObjectLayout,
}

const FORMS: [Form; 3] = [
    Form {
        version: PythonVersion::new(3, 13),
        size: 584,
        interpreter: 48,
        thread: 152,
        frame: 224,
        code: 272,
        bytes: 512,
        unicode: 536,
        has_threads_main: false,
        has_base_frame: false,
        has_compact_size: false,
        tag_mask: 0,
        has_copies: false,
        objects: objects::V3_13,
    },
    Form {
        version: PythonVersion::new(3, 14),
        size: 760,
        interpreter: 48,
        thread: 176,
        frame: 248,
        code: 312,
        bytes: 592,
        unicode: 616,
        has_threads_main: true,
        has_base_frame: false,
        has_compact_size: false,
        tag_mask: 3,
        has_copies: true,
        objects: objects::V3_14,
    },
    Form {
        version: PythonVersion::new(3, 15),
        size: 888,
        interpreter: 48,
        thread: 176,
        frame: 312,
        code: 376,
        bytes: 688,
        unicode: 712,
        has_threads_main: true,
        has_base_frame: true,
        has_compact_size: true,
        tag_mask: 3,
        has_copies: true,
        objects: objects::V3_15,
    },
];

impl Form {
    /// The interpreter's group, for entries behind the threads.
    fn after_threads(&self) -> usize {
        self.interpreter + if self.has_threads_main { 8 } else { 0 }
    }
}

/// Size of a version's table, bytes; `None` if torchspy does not know its form.
pub fn size_for(version: PythonVersion) -> Option<usize> {
    form_for(version).map(|form| form.size)
}

fn form_for(version: PythonVersion) -> Option<&'static Form> {
    FORMS.iter().find(|form| form.version == version)
}

/// Parses and validates the table of `version`, of a free-threaded build or another, from `bytes`,
/// which hold [`size_for`] bytes.
///
/// # Errors
/// A field that is missing or out of bounds.
pub fn parse_layout(
    version: PythonVersion,
    free_threaded: bool,
    bytes: &[u8],
) -> Result<Layout, LayoutError> {
    let unknown = LayoutError {
        field: "version",
        offset: u64::from(version.minor),
    };
    let form = form_for(version).ok_or(unknown)?;
    let table = Table {
        form,
        free_threaded,
        bytes,
    };
    let thread = form.thread;
    let layout = Layout {
        version,
        interpreters_head: table.at(24, 2, "runtime interpreters head")?,
        gil: table.gil()?,
        interpreter: InterpreterLayout {
            next: table.at(form.interpreter, 2, "interpreter next")?,
            threads_head: table.at(form.interpreter, 3, "interpreter threads head")?,
            modules: table.at(form.after_threads(), 5, "interpreter modules")?,
        },
        thread: table.thread()?,
        chain: FrameChain::Shims {
            current_frame: table.at(thread, 4, "current frame")?,
            base_frame: form
                .has_base_frame
                .then(|| table.at(thread, 5, "base frame"))
                .transpose()?,
        },
        frame: table.frame()?,
        code: CodeLayout {
            first_line: table.at(form.code, 5, "code first line")?,
            file: table.at(form.code, 1, "code file")?,
            name: table.at(form.code, 3, "code name")?,
            line_table: table.at(form.code, 4, "code line table")?,
            bytecode: table.at(form.code, 9, "code bytecode")?,
            copies: table.of_copies(form.code, 10, "code bytecode copies")?,
        },
        unicode: table.unicode()?,
        bytes: BytesLayout {
            length: table.at(form.bytes, 1, "bytes length")?,
            data: table.at(form.bytes, 2, "bytes data")?,
        },
        objects: match free_threaded {
            true => form.objects.free_threaded(),
            false => form.objects,
        },
    };
    layout.validate()?;
    Ok(layout)
}

/// A table's bytes, and its form.
struct Table<'a> {
    form: &'a Form,
    free_threaded: bool,
    bytes: &'a [u8],
}

impl Table<'_> {
    /// The entry with number `index` in the group at `group`.
    fn at(&self, group: usize, index: usize, field: &'static str) -> Result<u32, LayoutError> {
        let offset = entry(self.bytes, group + 8 * index).unwrap_or(u64::MAX);
        u32::try_from(offset).map_err(|_| LayoutError { field, offset })
    }

    /// An entry about threads' copies of bytecode, which only free-threaded builds have.
    fn of_copies(
        &self,
        group: usize,
        index: usize,
        field: &'static str,
    ) -> Result<Option<u32>, LayoutError> {
        (self.free_threaded && self.form.has_copies)
            .then(|| self.at(group, index, field))
            .transpose()
    }

    fn gil(&self) -> Result<GilLayout, LayoutError> {
        let group = self.form.after_threads();
        // The fields are counted from the interpreter state, as if the struct in use were always
        // the one within it.
        let own = self.at(group, 9, "gil")?;
        Ok(GilLayout {
            place: GilPlace::BehindInterpreter(self.at(group, 8, "interpreter gil")?),
            last_holder: self.at(group, 12, "gil holder")?.wrapping_sub(own),
            locked: self.at(group, 11, "gil locked")?.wrapping_sub(own),
            // Unlike the others it is counted from the struct's own start.
            enabled: self
                .free_threaded
                .then(|| self.at(group, 10, "gil enabled"))
                .transpose()?,
        })
    }

    fn thread(&self) -> Result<ThreadLayout, LayoutError> {
        let group = self.form.thread;
        let ids = group + if self.form.has_base_frame { 24 } else { 0 };
        Ok(ThreadLayout {
            next: self.at(group, 2, "thread next")?,
            interpreter: self.at(group, 3, "thread interpreter")?,
            pthread: self.at(ids, 5, "thread id")?,
            native_thread_id: Some(self.at(ids, 6, "native thread id")?),
            datastack_chunk: Some(self.at(ids, 7, "data stack chunk")?),
        })
    }

    fn frame(&self) -> Result<FrameLayout, LayoutError> {
        let group = self.form.frame;
        let owner = self.at(group, 5, "frame owner")?;
        let localsplus = self.at(group, 4, "frame locals")?;
        Ok(FrameLayout {
            // `tlbc_index` comes before them.
            head: (owner.saturating_add(8) & !7).max(localsplus.saturating_add(8)),
            previous: self.at(group, 1, "frame previous")?,
            code: self.at(group, 2, "frame code")?,
            tag_mask: self.form.tag_mask,
            instruction: self.at(group, 3, "frame instruction")?,
            owner,
            function: Some(tables::FUNCTION),
            localsplus,
            copy: self.of_copies(group, 7, "frame bytecode copy")?,
        })
    }

    fn unicode(&self) -> Result<UnicodeLayout, LayoutError> {
        let group = self.form.unicode;
        Ok(UnicodeLayout {
            length: self.at(group, 2, "string length")?,
            state: self.at(group, 1, "string state")?,
            interned_bits: match self.free_threaded && self.form.has_copies {
                true => 8,
                false => tables::UNICODE.interned_bits,
            },
            ascii_data: self.at(group, 3, "string data")?,
            compact_data: match self.form.has_compact_size {
                true => self.at(group, 4, "string data")?,
                // One pointer and one length after the shorter form.
                false => self
                    .at(group, 3, "string data")?
                    .saturating_add(tables::UNICODE.compact_data - tables::UNICODE.ascii_data),
            },
        })
    }
}

fn entry(bytes: &[u8], offset: usize) -> Option<u64> {
    let field = bytes.get(offset..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zeroes_are_no_layout() {
        for form in &FORMS {
            assert!(form.size <= MAX_SIZE);
            for free_threaded in [false, true] {
                assert!(parse_layout(form.version, free_threaded, &[0; MAX_SIZE]).is_err());
                assert!(parse_layout(form.version, free_threaded, &[]).is_err());
            }
        }
    }

    proptest! {
        #[test]
        fn what_passes_is_within_bounds(words in prop::collection::vec(0_u64..512, MAX_SIZE / 8), minor in 13_u8..=15, free_threaded: bool) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            if let Ok(layout) = parse_layout(PythonVersion::new(3, minor), free_threaded, &bytes) {
                prop_assert!(layout.frame.head <= super::super::MAX_FRAME);
                prop_assert!(layout.thread_head() <= super::super::MAX_THREAD);
            }
        }
    }
}
