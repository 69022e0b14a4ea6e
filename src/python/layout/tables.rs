//! Layouts of CPython 3.10, 3.11 and 3.12 for x86-64 with a GIL, and what `_Py_DebugOffsets` lacks
//! from 3.13 on.
//!
//! The offsets were compiled from the headers of 3.10.13, 3.11.7, 3.12.1, 3.13.0, 3.14.10 and
//! 3.15.2 with `offsetof`: Include/internal/pycore_runtime.h (`_PyRuntimeState`), pycore_gil.h
//! (`struct _gil_runtime_state`), pycore_interp.h (`PyInterpreterState`), pycore_frame.h and
//! pycore_interpframe_structs.h (`_PyInterpreterFrame`), and Include/cpython/pystate.h
//! (`PyThreadState`, `_PyCFrame`, `_PyStackChunk`), frameobject.h, code.h, unicodeobject.h. Version
//! 3.NN has them at `https://github.com/python/cpython/tree/3.NN/Include`.

use super::{
    BytesLayout, CFrameLayout, CodeLayout, FrameChain, FrameLayout, GilLayout, GilPlace,
    InterpreterLayout, Layout, ThreadLayout, UnicodeLayout, objects,
};
use crate::model::code::PythonVersion;

const BYTES: BytesLayout = BytesLayout {
    length: 16,
    data: 32,
};

/// Strings up to 3.11, which still have `wstr`.
const UNICODE_WITH_WSTR: UnicodeLayout = UnicodeLayout {
    length: 16,
    state: 32,
    interned_bits: 2,
    ascii_data: 48,
    compact_data: 72,
};

/// Strings from 3.12 on. `_Py_DebugOffsets` names all but the last before 3.15.
pub const UNICODE: UnicodeLayout = UnicodeLayout {
    length: 16,
    state: 32,
    interned_bits: 2,
    ascii_data: 40,
    compact_data: 56,
};

pub const V3_10: Layout = Layout {
    version: PythonVersion::new(3, 10),
    interpreters_head: 32,
    gil: GilLayout {
        place: GilPlace::InRuntime(360),
        last_holder: 0,
        locked: 8,
        enabled: None,
    },
    interpreter: InterpreterLayout {
        next: 0,
        threads_head: 8,
        modules: 856,
    },
    thread: ThreadLayout {
        next: 8,
        interpreter: 16,
        pthread: 176,
        native_thread_id: None,
        datastack_chunk: None,
    },
    chain: FrameChain::Objects {
        frame: 24,
        cframe: CFrameLayout {
            leaf: 48,
            root: 264,
            current_frame: 8,
            previous: 8,
        },
    },
    frame: FrameLayout {
        head: 360,
        previous: 24,
        code: 32,
        tag_mask: 0,
        instruction: 96,
        owner: 0,
        function: None,
        localsplus: 352,
        copy: None,
    },
    code: CodeLayout {
        first_line: 40,
        file: 104,
        name: 112,
        line_table: 120,
        bytecode: 48,
        copies: None,
    },
    unicode: UNICODE_WITH_WSTR,
    bytes: BYTES,
    objects: objects::V3_10,
};

pub const V3_11: Layout = Layout {
    version: PythonVersion::new(3, 11),
    interpreters_head: 40,
    gil: GilLayout {
        place: GilPlace::InRuntime(368),
        last_holder: 0,
        locked: 8,
        enabled: None,
    },
    interpreter: InterpreterLayout {
        next: 0,
        threads_head: 16,
        modules: 888,
    },
    thread: ThreadLayout {
        next: 8,
        interpreter: 16,
        pthread: 152,
        native_thread_id: Some(160),
        datastack_chunk: Some(296),
    },
    chain: FrameChain::Entries(CFrameLayout {
        leaf: 56,
        root: 336,
        current_frame: 8,
        previous: 16,
    }),
    frame: FrameLayout {
        head: 80,
        previous: 48,
        code: 32,
        tag_mask: 0,
        instruction: 56,
        owner: 68,
        function: None,
        localsplus: 72,
        copy: None,
    },
    code: CodeLayout {
        first_line: 72,
        file: 112,
        name: 128,
        line_table: 136,
        bytecode: 184,
        copies: None,
    },
    unicode: UNICODE_WITH_WSTR,
    bytes: BYTES,
    objects: objects::V3_11,
};

pub const V3_12: Layout = Layout {
    version: PythonVersion::new(3, 12),
    interpreters_head: 40,
    gil: GilLayout {
        place: GilPlace::BehindInterpreter(384),
        last_holder: 8,
        locked: 16,
        enabled: None,
    },
    interpreter: InterpreterLayout {
        next: 0,
        threads_head: 72,
        modules: 944,
    },
    thread: ThreadLayout {
        next: 8,
        interpreter: 16,
        pthread: 136,
        native_thread_id: Some(144),
        datastack_chunk: Some(232),
    },
    chain: FrameChain::ShimsBehindCFrame(CFrameLayout {
        leaf: 56,
        root: 272,
        current_frame: 0,
        previous: 8,
    }),
    frame: FrameLayout {
        head: 80,
        previous: 8,
        code: 0,
        tag_mask: 0,
        instruction: 56,
        owner: 70,
        function: Some(FUNCTION),
        localsplus: 72,
        copy: None,
    },
    code: CodeLayout {
        first_line: 68,
        file: 112,
        name: 128,
        line_table: 136,
        bytecode: 192,
        copies: None,
    },
    unicode: UNICODE,
    bytes: BYTES,
    objects: objects::V3_12,
};

/// `_PyInterpreterFrame.f_funcobj`, 3.12 to 3.15.
pub const FUNCTION: u32 = 16;

/// The layout of a version whose structures are known only from its headers.
pub fn for_version(version: PythonVersion) -> Option<Layout> {
    [V3_10, V3_11, V3_12]
        .into_iter()
        .find(|layout| layout.version == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_valid_and_found_by_its_version() {
        for table in [V3_10, V3_11, V3_12] {
            assert_eq!(table.validate(), Ok(()), "{}", table.version);
            assert_eq!(for_version(table.version), Some(table));
        }
        assert_eq!(for_version(PythonVersion::new(3, 9)), None);
    }

    #[test]
    fn a_field_past_its_structure_is_refused() {
        let mut table = V3_12;
        table.frame.previous = table.frame.head;
        assert_eq!(table.validate().unwrap_err().field, "frame previous");
        let mut table = V3_12;
        table.thread.next = u32::MAX - 7;
        assert_eq!(table.validate().unwrap_err().field, "thread next");
    }
}
