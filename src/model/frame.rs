//! Raw frames, as they are recorded: no names, so that later rules and symbols can say more of old
//! recordings.

use super::address::CodeAddress;
use super::ids::{CodeId, ModuleId, NnModuleId};
use super::named::named;

/// One frame of a stack, as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Frame {
    Python {
        code: CodeId,
        /// Byte offset of the last started instruction from the start of the bytecode;
        /// [`Frame::NO_INSTRUCTION`] where the frame has not started.
        instruction: u32,
        /// The source line of that instruction; 0 where the line table names none.
        line: u32,
    },
    Native {
        /// Where the code lies.
        module: ModuleId,
        /// The address less the module's load bias, which is the file's own virtual address. In
        /// memory without a file ([`ModuleKind::Anonymous`](super::module::ModuleKind)) the address
        /// as it was in the process.
        address: CodeAddress,
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

named!(
    /// Why a stack was not read to its root, or its Python frames not merged.
    Partial {
        /// Code without unwind information, and no checked guess went on.
        NoUnwindInfo = "no_unwind_info",
        /// The unwind rule needs a register that a sleeping thread keeps in the kernel.
        RegisterUnknown = "register_unknown",
        /// Stack memory that the unwind rule needs could not be read.
        StackUnreadable = "stack_unreadable",
        /// The frames go on in another stack, of which nothing was copied: from an alternate signal
        /// stack back to the thread's.
        OtherStack = "other_stack",
        /// The return address lies in no executable memory.
        BadReturnAddress = "bad_return_address",
        /// The stack pointer did not move towards the root.
        NoProgress = "no_progress",
        /// More frames than are followed, or than are kept.
        TooDeep = "too_deep",
        PythonUnreadable = "python_unreadable",
        /// Python frames and native eval frames do not match.
        MergeMismatch = "merge_mismatch",
        /// The thread ran while its stack was being read without a stop.
        Torn = "torn",
        StopTimeout = "stop_timeout",
        AlreadyTraced = "already_traced",
        /// The thread is in uninterruptible sleep (state D) and is not touched.
        Uninterruptible = "uninterruptible",
        PermissionDenied = "permission_denied",
        /// The thread ended while it was being read.
        Exited = "exited",
        /// Native frames were not asked for, or cannot be read without a stop.
        NativeNotRead = "native_not_read",
        /// A Python that torchspy has no layout for.
        UnknownPython = "unknown_python",
        /// The code object was freed or reused before it was read.
        CodeGone = "code_gone",
        /// Samples came faster than they could be unwound; the stack was dropped, its time was
        /// kept.
        Overflow = "overflow",
        /// The thread ran for a moment between two waits for events, and was not stopped, since
        /// that would have ended the next of them.
        Spared = "spared",
        /// The interpreter was still being looked for: whether there were Python frames is not
        /// known.
        PythonPending = "python_pending",
    }
);
