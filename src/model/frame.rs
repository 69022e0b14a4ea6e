//! Raw frames, as they are recorded: without names, so that later rules and symbols apply to old
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
        /// [`Frame::NO_INSTRUCTION`] if the frame has not started.
        instruction: u32,
        /// The source line of that instruction; 0 if the line table has none.
        line: u32,
    },
    Native {
        /// Where the code lies.
        module: ModuleId,
        /// The address minus the module's load bias, which is the file's own virtual address. In
        /// memory without a file ([`ModuleKind::Anonymous`](super::module::ModuleKind)) the
        /// run-time address.
        address: CodeAddress,
        trust: Trust,
    },
    /// The stack continues towards its root, but was not read: at the root end. In a stack deeper
    /// than [`MAX_DEPTH`](super::depth::MAX_DEPTH) it replaces the frames between the ends.
    Truncated(Partial),
    /// A marker: this `nn.Module` called the frames above it; the next frame, a Python function, is
    /// the call.
    NnModule(NnModuleId),
    /// A marker: the frames above it compile this code; the next frame is the compiler's function
    /// that received it.
    Compiles(CodeId),
}

impl Frame {
    /// `instruction` of a Python frame that has not started.
    pub const NO_INSTRUCTION: u32 = u32::MAX;
}

/// How the unwinder found a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Trust {
    /// The leaf itself, or found with unwind information of the frame below.
    Unwound,
    /// The frame below has no unwind information; the return address was found with its frame
    /// pointer, or by decoding its code from its start on, and follows a call.
    FramePointer,
    /// The frame below has no unwind information; the return address is the first word on its stack
    /// that follows a call.
    Scanned,
}

impl Trust {
    /// Whether this frame was found by a checked guess and not by unwind information.
    pub fn is_guess(self) -> bool {
        self != Trust::Unwound
    }
}

named!(
    /// Why a stack was not read to its root, or its Python frames were not merged.
    Partial {
        /// Code without unwind information, and no checked guess succeeded.
        NoUnwindInfo = "no_unwind_info",
        /// The unwind rule needs a register that a sleeping thread keeps in the kernel.
        RegisterUnknown = "register_unknown",
        /// Stack memory that the unwind rule needs could not be read.
        StackUnreadable = "stack_unreadable",
        /// The frames continue in another stack, of which nothing was copied: from an alternate
        /// signal stack back to the thread's.
        OtherStack = "other_stack",
        /// The return address is not in executable memory.
        BadReturnAddress = "bad_return_address",
        /// The stack pointer did not move towards the root.
        NoProgress = "no_progress",
        /// More frames than are followed, or kept.
        TooDeep = "too_deep",
        PythonUnreadable = "python_unreadable",
        /// Python frames and native eval frames do not match.
        MergeMismatch = "merge_mismatch",
        /// The thread ran while its stack was read without a stop.
        Torn = "torn",
        StopTimeout = "stop_timeout",
        AlreadyTraced = "already_traced",
        /// The thread is in uninterruptible sleep (state D) and is not touched.
        Uninterruptible = "uninterruptible",
        PermissionDenied = "permission_denied",
        /// The thread ended while it was being read.
        Exited = "exited",
        /// Native frames were not requested, or cannot be read without a stop.
        NativeNotRead = "native_not_read",
        /// A Python that torchspy has no layout for.
        UnknownPython = "unknown_python",
        /// The code object was freed or reused before it was read.
        CodeGone = "code_gone",
        /// Samples came faster than they could be unwound; the stack was dropped, its time was
        /// kept.
        Overflow = "overflow",
        /// The thread ran briefly between two waits for events, and was not stopped, because that
        /// would have ended the next wait early.
        Spared = "spared",
        /// The interpreter was still being searched for: it is not known whether there were Python
        /// frames.
        PythonPending = "python_pending",
    }
);
