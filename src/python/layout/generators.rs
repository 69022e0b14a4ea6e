//! Generators and coroutines: where their frames are, and how far these got.
//!
//! Source: Include/cpython/genobject.h (`_PyGenObject_HEAD`; from 3.14 on
//! Include/internal/pycore_interpframe_structs.h), Include/internal/pycore_frame.h
//! (`_PyInterpreterFrame`, `enum _framestate`) and, of 3.10, Include/cpython/frameobject.h
//! (`struct _frame`, `enum _framestate`) of <https://github.com/python/cpython>. The offsets in an
//! object are those of builds with a GIL ([`super::objects::ObjectLayout::at`]).

use crate::model::code::PythonVersion;

/// Layout of the generators of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneratorLayout {
    /// Location of the frame: `gi_iframe`, or in 3.10 a pointer to it, `gi_frame`.
    pub frame: u32,
    pub is_pointer: bool,
    /// Location of the state of the frame.
    pub state: StatePlace,
    /// The values of that state.
    pub states: FrameStates,
    /// Where the frame keeps the top of its evaluation stack while it is suspended.
    pub top: StackTop,
    /// How it is told that a generator is in a `yield from`, or in an `await`.
    pub delegates: Delegates,
    /// Values from that top on to the one that is awaited, and with it: SEND of 3.15 has another
    /// above it (Python/bytecodes.c).
    pub awaited: u64,
}

/// Location of a frame's state, one signed byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePlace {
    /// `gi_frame_state`, in the object.
    Generator(u32),
    /// `f_state`, in the frame: 3.10.
    Frame(u32),
}

/// Values of `enum _framestate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameStates {
    pub created: i8,
    pub executing: i8,
    /// The first of those of a frame that has ended.
    pub ended: i8,
}

/// How it is told that a suspended generator waits for another one, and does not just yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delegates {
    /// By these bytes of the bytecode, an opcode or an argument each, from the last instruction on,
    /// as offset, least and greatest value (`_PyGen_yf`). 3.10: YIELD_FROM is next. 3.11 and 3.12:
    /// RESUME is, with the argument 2 or 3.
    Bytecode([(usize, u8, u8); 2]),
    /// By these states: `FRAME_SUSPENDED_YIELD_FROM`, in 3.15 with `_LOCKED`.
    States(i8, i8),
}

/// The number or the place of the values of an evaluation stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackTop {
    /// 3.10: `f_valuestack`, a pointer to the first, and `f_stackdepth`, an int.
    Depth { values: u32, depth: u32 },
    /// 3.11 to 3.13: `stacktop`, an int: the number of variables and values in `localsplus`.
    Count(u32),
    /// 3.14 on: `stackpointer`, a pointer behind the last.
    Pointer(u32),
}

const V3_10: GeneratorLayout = GeneratorLayout {
    frame: 16,
    is_pointer: true,
    state: StatePlace::Frame(108),
    states: FrameStates {
        created: -2,
        executing: 0,
        ended: 1,
    },
    top: StackTop::Depth {
        values: 64,
        depth: 80,
    },
    delegates: Delegates::Bytecode([(2, 72, 72), (2, 72, 72)]),
    awaited: 1,
};

const V3_11: GeneratorLayout = GeneratorLayout {
    frame: 80,
    is_pointer: false,
    state: StatePlace::Generator(75),
    top: StackTop::Count(64),
    delegates: Delegates::Bytecode([(2, 151, 151), (3, 2, 3)]),
    ..V3_10
};

const V3_12: GeneratorLayout = GeneratorLayout {
    frame: 72,
    state: StatePlace::Generator(67),
    ..V3_11
};

const V3_13: GeneratorLayout = GeneratorLayout {
    states: FrameStates {
        created: -3,
        ..V3_12.states
    },
    delegates: Delegates::States(-1, -1),
    ..V3_12
};

const V3_14: GeneratorLayout = GeneratorLayout {
    top: StackTop::Pointer(64),
    ..V3_13
};

const V3_15: GeneratorLayout = GeneratorLayout {
    states: FrameStates {
        created: 0,
        executing: 4,
        ended: 5,
    },
    delegates: Delegates::States(2, 3),
    awaited: 2,
    ..V3_14
};

impl GeneratorLayout {
    /// That of `version`, which has a [`Layout`](super::Layout).
    pub fn of(version: PythonVersion) -> Self {
        match version.minor {
            ..=10 => V3_10,
            11 => V3_11,
            12 => V3_12,
            13 => V3_13,
            14 => V3_14,
            _ => V3_15,
        }
    }
}
