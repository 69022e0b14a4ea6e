//! Raw frames, as they are recorded: no names, so that later rules and symbols can say more of old
//! recordings.

use super::address::CodeAddress;
use super::ids::{CodeId, ModuleId, NnModuleId};

/// One frame of a stack, as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Frame {
    /// A Python function.
    Python {
        /// Its code object.
        code: CodeId,
        /// Byte offset of the last started instruction from the start of the bytecode;
        /// [`Frame::NO_INSTRUCTION`] where the frame has not started.
        instruction: u32,
        /// The source line of that instruction; 0 where the line table names none.
        line: u32,
    },
    /// A native function.
    Native {
        /// Where the code lies.
        module: ModuleId,
        /// The address less the module's load bias, which is the file's own virtual address. In
        /// memory without a file ([`ModuleKind::Anonymous`](super::module::ModuleKind)) the address
        /// as it was in the process.
        address: CodeAddress,
        /// How the unwinder came to this frame.
        trust: Trust,
    },
    /// The stack goes on towards its root here, but was not read: at the root end. Of a stack that
    /// is deeper than [`MAX_DEPTH`](super::depth::MAX_DEPTH) it takes the place of what lies
    /// between the ends.
    Truncated(Partial),
    /// No frame of its own: what stands on it was called by this `nn.Module`, whose call is the
    /// next frame, a Python function.
    NnModule(NnModuleId),
    /// No frame of its own: what stands on it compiles this code; the next frame is the compiler's
    /// function that was given it.
    Compiles(CodeId),
}

impl Frame {
    /// `instruction` of a Python frame that has not started.
    pub const NO_INSTRUCTION: u32 = u32::MAX;
}

/// How the unwinder came to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Trust {
    /// The leaf itself, or by unwind information of the frame below.
    Unwound,
    /// The frame below has no unwind information; its frame pointer, or its code, which was read
    /// from its start on, led here, and the return address follows a call.
    FramePointer,
    /// The frame below has no unwind information; the first word on its stack that follows a call
    /// led here.
    Scanned,
}

impl Trust {
    /// Whether this frame was found by a checked guess and not by unwind information.
    pub fn is_guess(self) -> bool {
        self != Trust::Unwound
    }
}

/// Why a stack was not read to its root, or its Python frames not merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Partial {
    /// Code without unwind information, and no checked guess went on.
    NoUnwindInfo,
    /// The unwind rule needs a register that a sleeping thread keeps in the kernel.
    RegisterUnknown,
    /// Stack memory that the unwind rule needs could not be read.
    StackUnreadable,
    /// The frames go on in another stack, of which nothing was copied: from an alternate signal
    /// stack back to the thread's.
    OtherStack,
    /// The return address lies in no executable memory.
    BadReturnAddress,
    /// The stack pointer did not move towards the root.
    NoProgress,
    /// More frames than are followed, or than are kept.
    TooDeep,
    /// The Python frames could not be read.
    PythonUnreadable,
    /// Python frames and native eval frames do not match.
    MergeMismatch,
    /// The thread ran while its stack was being read without a stop.
    Torn,
    /// The thread did not stop in time.
    StopTimeout,
    /// Another tracer holds the thread.
    AlreadyTraced,
    /// The thread is in uninterruptible sleep (state D) and is not touched.
    Uninterruptible,
    /// The kernel denies reading the process.
    PermissionDenied,
    /// The thread ended while it was being read.
    Exited,
    /// Native frames were not asked for, or cannot be read without a stop.
    NativeNotRead,
    /// A Python that torchspy has no layout for.
    UnknownPython,
    /// The code object was freed or reused before it was read.
    CodeGone,
    /// Samples came faster than they could be unwound; the stack was dropped, its time was kept.
    Overflow,
    /// The thread ran for a moment between two waits for events, and was not stopped, since that
    /// would have ended the next of them.
    Spared,
    /// The interpreter was still being looked for: whether there were Python frames is not known.
    PythonPending,
}

impl Partial {
    /// Every reason, in the order of reports.
    pub const ALL: [Partial; 21] = [
        Partial::NoUnwindInfo,
        Partial::RegisterUnknown,
        Partial::StackUnreadable,
        Partial::OtherStack,
        Partial::BadReturnAddress,
        Partial::NoProgress,
        Partial::TooDeep,
        Partial::PythonUnreadable,
        Partial::MergeMismatch,
        Partial::Torn,
        Partial::StopTimeout,
        Partial::AlreadyTraced,
        Partial::Uninterruptible,
        Partial::PermissionDenied,
        Partial::Exited,
        Partial::NativeNotRead,
        Partial::UnknownPython,
        Partial::CodeGone,
        Partial::Overflow,
        Partial::Spared,
        Partial::PythonPending,
    ];

    /// The stable name, as it stands in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Partial::NoUnwindInfo => "no_unwind_info",
            Partial::RegisterUnknown => "register_unknown",
            Partial::StackUnreadable => "stack_unreadable",
            Partial::OtherStack => "other_stack",
            Partial::BadReturnAddress => "bad_return_address",
            Partial::NoProgress => "no_progress",
            Partial::TooDeep => "too_deep",
            Partial::PythonUnreadable => "python_unreadable",
            Partial::MergeMismatch => "merge_mismatch",
            Partial::Torn => "torn",
            Partial::StopTimeout => "stop_timeout",
            Partial::AlreadyTraced => "already_traced",
            Partial::Uninterruptible => "uninterruptible",
            Partial::PermissionDenied => "permission_denied",
            Partial::Exited => "exited",
            Partial::NativeNotRead => "native_not_read",
            Partial::UnknownPython => "unknown_python",
            Partial::CodeGone => "code_gone",
            Partial::Overflow => "overflow",
            Partial::Spared => "spared",
            Partial::PythonPending => "python_pending",
        }
    }
}
