//! Offsets of the fields of CPython's structures in bytes, as data: one [`Layout`] per interpreter.
//!
//! Up to 3.12 a layout is a table ([`tables`]), as compiled from the headers of that version; a
//! minor version keeps its layout over all its patch releases. From 3.13 on the interpreter itself
//! provides most offsets ([`debug_offsets`]). A version that is in neither has no layout, and is
//! not read: [`PythonVersion::SUPPORTED`].

pub mod debug_offsets;
pub mod generators;
pub mod objects;
pub mod tables;

use crate::model::code::PythonVersion;
use objects::ObjectLayout;

/// Every offset that torchspy needs of one interpreter, validated on construction
/// ([`Layout::validate`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The version of the structures.
    pub version: PythonVersion,
    /// `_PyRuntimeState.interpreters.head`.
    pub interpreters_head: u32,
    /// The global lock.
    pub gil: GilLayout,
    /// `PyInterpreterState`.
    pub interpreter: InterpreterLayout,
    /// `PyThreadState`.
    pub thread: ThreadLayout,
    /// How frames are linked, and which of them begin a native evaluation.
    pub chain: FrameChain,
    /// `PyFrameObject` in 3.10, `_PyInterpreterFrame` from 3.11 on.
    pub frame: FrameLayout,
    /// `PyCodeObject`.
    pub code: CodeLayout,
    /// `PyASCIIObject` and `PyCompactUnicodeObject`.
    pub unicode: UnicodeLayout,
    /// `PyBytesObject`.
    pub bytes: BytesLayout,
    /// Attributes, dictionaries and tuples.
    pub objects: ObjectLayout,
}

/// `struct _gil_runtime_state`: one per process up to 3.11, one per interpreter (or shared) from
/// 3.12 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GilLayout {
    /// Location of the struct.
    pub place: GilPlace,
    /// `last_holder` in it: a `PyThreadState *`.
    pub last_holder: u32,
    /// `locked` in it: an int.
    pub locked: u32,
    /// `enabled` in it, of a free-threaded build: an int, 0 while threads run without it.
    pub enabled: Option<u32>,
}

/// Location of an interpreter's `struct _gil_runtime_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GilPlace {
    /// At this offset of `_PyRuntime`.
    InRuntime(u32),
    /// Behind the pointer at this offset of the interpreter state.
    BehindInterpreter(u32),
}

/// `PyInterpreterState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterpreterLayout {
    /// `next`.
    pub next: u32,
    /// `threads.head` (3.10: `tstate_head`).
    pub threads_head: u32,
    /// `imports.modules` (up to 3.11: `modules`): the dictionary `sys.modules`.
    pub modules: u32,
}

/// `PyThreadState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLayout {
    /// `next`.
    pub next: u32,
    /// `interp`.
    pub interpreter: u32,
    /// `thread_id`: the result of `pthread_self()`.
    pub pthread: u32,
    /// `native_thread_id` (3.11 on): the result of `gettid()`.
    pub native_thread_id: Option<u32>,
    /// `datastack_chunk` (3.11 on); `datastack_top` follows it.
    pub datastack_chunk: Option<u32>,
}

/// How a thread's frames are found and linked, and how they show where a native evaluation began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameChain {
    /// 3.10: `tstate->frame` and `f_back`; every frame is an evaluation of its own, and has one
    /// `CFrame`.
    Objects {
        /// `PyThreadState.frame`.
        frame: u32,
        /// The chain of `CFrame`s.
        cframe: CFrameLayout,
    },
    /// 3.11: the leaf's `_PyCFrame` has the current frame; `is_entry` marks an evaluation's first
    /// frame, and there is one `_PyCFrame` per evaluation.
    Entries(CFrameLayout),
    /// 3.12: as 3.11, but an evaluation begins with a shim frame on the C stack.
    ShimsBehindCFrame(CFrameLayout),
    /// 3.13 on: `tstate->current_frame`, with shim frames on the C stack.
    Shims {
        /// `PyThreadState.current_frame`.
        current_frame: u32,
        /// `PyThreadState.base_frame` (3.15 on): pointer to a sentinel frame within the thread
        /// state.
        base_frame: Option<u32>,
    },
}

/// `CFrame` (3.10) or `_PyCFrame`: a link on the C stack for each native evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CFrameLayout {
    /// `PyThreadState.cframe`: the leaf's.
    pub leaf: u32,
    /// `PyThreadState.root_cframe`: the last of the chain, in the thread state itself and of no
    /// evaluation. 3.10 leaves its `previous` uninitialised.
    pub root: u32,
    /// `CFrame.current_frame`. Unused in 3.10.
    pub current_frame: u32,
    /// `CFrame.previous`.
    pub previous: u32,
}

/// `PyFrameObject` or `_PyInterpreterFrame`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLayout {
    /// Number of bytes that contain every field below, and the first element of `localsplus`. Every
    /// frame has it: the evaluation stack is after the variables, and has one or more values.
    pub head: u32,
    /// `previous` (3.10: `f_back`).
    pub previous: u32,
    /// `f_code` or `f_executable`.
    pub code: u32,
    /// Bits of `f_executable` and `f_funcobj` that are not part of the pointer (3.14 on: stack
    /// references).
    pub tag_mask: u64,
    /// `prev_instr` or `instr_ptr`, pointers to code units; 3.10: `f_lasti`, an int, counted in
    /// code units.
    pub instruction: u32,
    /// `is_entry` in 3.11, `owner` from 3.12 on; one byte. Unused in 3.10.
    pub owner: u32,
    /// `f_funcobj` (3.12 on).
    pub function: Option<u32>,
    /// `localsplus`: an array of object pointers (3.14 on: tagged like `f_executable`).
    pub localsplus: u32,
    /// `tlbc_index` of a free-threaded build (3.14 on), an int: which of the code's copies it runs.
    pub copy: Option<u32>,
}

/// `PyCodeObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeLayout {
    /// `co_firstlineno`.
    pub first_line: u32,
    /// `co_filename`.
    pub file: u32,
    /// `co_qualname` (3.10: `co_name`).
    pub name: u32,
    /// `co_linetable`.
    pub line_table: u32,
    /// `co_code_adaptive`: the bytecode is in the object. 3.10: `co_code`, a pointer to a bytes
    /// object.
    pub bytecode: u32,
    /// `co_tlbc` of a free-threaded build (3.14 on): pointer to the copies of the bytecode that
    /// threads run, a count (`Py_ssize_t`) and that many pointers. The first is the one in the
    /// object.
    pub copies: Option<u32>,
}

/// `PyASCIIObject` and `PyCompactUnicodeObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnicodeLayout {
    /// `length`, in code points.
    pub length: u32,
    /// `state`: interned, then kind 3 bits, compact 1, ascii 1.
    pub state: u32,
    /// Number of bits of `interned`: 2, or in a free-threaded build from 3.14 on a byte of its own.
    pub interned_bits: u32,
    /// `sizeof(PyASCIIObject)`: offset of the text of a compact ASCII string.
    pub ascii_data: u32,
    /// `sizeof(PyCompactUnicodeObject)`: offset of the text of any other compact string.
    pub compact_data: u32,
}

impl UnicodeLayout {
    /// Kind, and whether a string is compact, and ASCII, of its `state`.
    pub(super) fn form(&self, state: u32) -> (u32, bool, bool) {
        let bits = state >> self.interned_bits;
        (bits & 7, bits >> 3 & 1 == 1, bits >> 4 & 1 == 1)
    }
}

/// `PyBytesObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytesLayout {
    /// `ob_size`; the same in every variable-sized object.
    pub length: u32,
    /// `ob_sval`.
    pub data: u32,
}

/// Upper bounds of a plausible layout. CPython's thread state is under 1 KiB, its interpreter state
/// some 100 KiB to 1 MiB, its runtime 460 KiB at most so far.
pub(crate) const MAX_STATE: u32 = 16 << 20;
/// See [`MAX_STATE`].
pub(crate) const MAX_THREAD: u32 = 4096;
/// Maximum bytes of a frame that are read (3.10: 360, because its first local variable comes after
/// 20 blocks).
pub(crate) const MAX_FRAME: u32 = 384;
/// Maximum bytes of a code object, without its bytecode, that are read.
pub(crate) const MAX_CODE: u32 = 512;

/// An invalid layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} at offset {offset} is out of bounds")]
pub struct LayoutError {
    pub field: &'static str,
    /// The invalid offset.
    pub offset: u64,
}

impl Layout {
    /// Checks every offset against its structure's bound and its field's alignment: after this, no
    /// sum of an address below 2^47 and an offset overflows, and no read is large.
    ///
    /// # Errors
    /// The first field that is out of bounds.
    pub fn validate(&self) -> Result<(), LayoutError> {
        let thread = &self.thread;
        let pointer = |field, offset, bound| check(field, offset, 8, bound);
        pointer(
            "runtime interpreters head",
            self.interpreters_head,
            MAX_STATE,
        )?;
        match self.gil.place {
            GilPlace::InRuntime(offset) => pointer("runtime gil", offset, MAX_STATE)?,
            GilPlace::BehindInterpreter(offset) => pointer("interpreter gil", offset, MAX_STATE)?,
        }
        pointer("gil holder", self.gil.last_holder, MAX_THREAD)?;
        check("gil locked", self.gil.locked, 4, MAX_THREAD)?;
        if let Some(enabled) = self.gil.enabled {
            check("gil enabled", enabled, 4, MAX_THREAD)?;
        }
        pointer("interpreter next", self.interpreter.next, MAX_STATE)?;
        pointer(
            "interpreter threads head",
            self.interpreter.threads_head,
            MAX_STATE,
        )?;
        let modules = self.interpreter.modules;
        pointer("interpreter modules", modules, MAX_STATE)?;
        pointer("thread next", thread.next, MAX_THREAD)?;
        pointer("thread interpreter", thread.interpreter, MAX_THREAD)?;
        pointer("thread id", thread.pthread, MAX_THREAD)?;
        for offset in [thread.native_thread_id, thread.datastack_chunk]
            .into_iter()
            .flatten()
        {
            pointer("thread id or data stack", offset, MAX_THREAD - 8)?;
        }
        for offset in self.chain.thread_offsets().into_iter().flatten() {
            pointer("thread frame", offset, MAX_THREAD)?;
        }
        self.validate_frame()?;
        self.validate_objects()
    }

    fn validate_frame(&self) -> Result<(), LayoutError> {
        let frame = &self.frame;
        let instruction_size = if matches!(self.chain, FrameChain::Objects { .. }) {
            4
        } else {
            8
        };
        check("frame head", frame.head, 1, MAX_FRAME + 1)?;
        check("frame previous", frame.previous, 8, frame.head)?;
        check("frame code", frame.code, 8, frame.head)?;
        check(
            "frame instruction",
            frame.instruction,
            instruction_size,
            frame.head,
        )?;
        check("frame owner", frame.owner, 1, frame.head)?;
        if let Some(function) = frame.function {
            check("frame function", function, 8, frame.head)?;
        }
        if let Some(copy) = frame.copy {
            check("frame bytecode copy", copy, 4, frame.head)?;
        }
        check("frame locals", frame.localsplus, 8, frame.head)
    }

    fn validate_objects(&self) -> Result<(), LayoutError> {
        check("code first line", self.code.first_line, 4, MAX_CODE)?;
        check("code file", self.code.file, 8, MAX_CODE)?;
        check("code name", self.code.name, 8, MAX_CODE)?;
        check("code line table", self.code.line_table, 8, MAX_CODE)?;
        check("code bytecode", self.code.bytecode, 8, MAX_CODE)?;
        if let Some(copies) = self.code.copies {
            check("code bytecode copies", copies, 8, MAX_CODE)?;
        }
        check("string length", self.unicode.length, 8, MAX_CODE)?;
        check("string state", self.unicode.state, 4, MAX_CODE)?;
        check("string data", self.unicode.ascii_data, 8, MAX_CODE)?;
        check("string data", self.unicode.compact_data, 8, MAX_CODE)?;
        check("bytes length", self.bytes.length, 8, MAX_CODE)?;
        check("bytes data", self.bytes.data, 1, MAX_CODE)
    }

    /// Number of bytes of a thread state with everything that frames, threads and the data stack
    /// need.
    pub fn thread_head(&self) -> u32 {
        let thread = &self.thread;
        let plain = [thread.next, thread.interpreter, thread.pthread]
            .into_iter()
            .map(Some);
        let after_chunk = thread.datastack_chunk.map(|chunk| chunk.saturating_add(8));
        plain
            .chain([thread.native_thread_id, after_chunk])
            .chain(self.chain.thread_offsets())
            .flatten()
            .max()
            .unwrap_or(0)
            .saturating_add(8)
    }
}

impl FrameChain {
    /// Pointers in the thread state that lead to its frames.
    fn thread_offsets(&self) -> [Option<u32>; 3] {
        let of_cframe = |cframe: &CFrameLayout| {
            let last = cframe
                .root
                .saturating_add(cframe.current_frame.max(cframe.previous));
            (Some(cframe.leaf), Some(last))
        };
        match self {
            FrameChain::Objects { frame, cframe } => {
                let (leaf, last) = of_cframe(cframe);
                [Some(*frame), leaf, last]
            }
            FrameChain::Entries(cframe) | FrameChain::ShimsBehindCFrame(cframe) => {
                let (leaf, last) = of_cframe(cframe);
                [leaf, last, None]
            }
            FrameChain::Shims {
                current_frame,
                base_frame,
            } => [Some(*current_frame), *base_frame, None],
        }
    }
}

fn check(field: &'static str, offset: u32, size: u32, bound: u32) -> Result<(), LayoutError> {
    let aligned = offset.is_multiple_of(size);
    if aligned && offset.checked_add(size).is_some_and(|end| end <= bound) {
        Ok(())
    } else {
        Err(LayoutError {
            field,
            offset: offset.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_that_are_supported_are_those_with_a_layout() {
        for minor in 0..=u8::MAX {
            let version = PythonVersion::new(3, minor);
            let is_known = tables::for_version(version).is_some()
                || debug_offsets::size_for(version).is_some();
            assert_eq!(
                is_known,
                PythonVersion::SUPPORTED.contains(&minor),
                "{version}"
            );
        }
    }
}
