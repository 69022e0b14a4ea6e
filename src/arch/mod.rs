//! What differs between processor architectures: a folder each, which provides an [`Architecture`].
//! Nothing outside of this module names one.
//!
//! It lies below all other modules and imports none of them: `model` numbers its registers by it,
//! `os` reads registers and system calls with it, `native` unwinds with it, `python` checks ELF
//! files by it.

pub mod system_calls;

#[cfg(any(target_arch = "aarch64", test))]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::Aarch64 as Machine;
#[cfg(target_arch = "x86_64")]
pub use x86_64::X86_64 as Machine;

use nix::libc::user_regs_struct;

/// What torchspy has to know of an architecture. Registers are numbered as DWARF numbers them.
pub trait Architecture {
    /// `e_machine` of its ELF files.
    const ELF_MACHINE: u16;
    /// Bytes of the smallest page that Linux maps; larger ones are multiples.
    const PAGE_BYTES: u64;
    /// Bytes of a pointer, and of a slot on the stack.
    const POINTER_BYTES: u64 = 8;
    /// The stack pointer is a multiple of this between any two instructions of well-behaved code.
    const STACK_ALIGNMENT: u64;

    /// General-purpose registers and the instruction pointer: numbers from 0 up to, not including,
    /// this one.
    const REGISTERS: usize;
    /// The frame pointer, which begins a chain of (caller's frame pointer, return address).
    const FRAME_POINTER: usize;
    /// The stack pointer.
    const STACK_POINTER: usize;
    /// The instruction pointer. DWARF need not have a number for it: any below
    /// [`Architecture::REGISTERS`] that is free.
    const INSTRUCTION_POINTER: usize;
    /// The return address column of unwind tables.
    const RETURN_ADDRESS: u16;
    /// Whether a call leaves the return address in a register, where it is as long as unwind tables
    /// have no rule for it.
    const LINKS: bool;
    /// Registers that a function returns as it got them, but for the stack pointer.
    const CALLEE_SAVED: &'static [usize];
    /// Whose instructions of unwind tables it has.
    const VENDOR: gimli::Vendor = gimli::Vendor::Default;
    /// The return address that a word on the stack, or in a register, stands for: without what
    /// protects it.
    fn return_address(word: u64) -> u64 {
        word
    }

    /// Bytes of the longest call instruction.
    const LONGEST_CALL: usize;
    /// Whether the instruction that ends where `before` ends can be a call; `before` holds
    /// [`Architecture::LONGEST_CALL`] bytes, or as many as there are.
    fn follows_call(before: &[u8]) -> bool;
    /// Bytes of a call whose target is in its code.
    const DIRECT_CALL: usize;
    /// Where the call that returns to `address` goes, if `before`, the
    /// [`Architecture::DIRECT_CALL`] bytes before it, is a direct one.
    fn call_target(address: u64, before: &[u8]) -> Option<u64>;
    /// Where unconditional jumps in `code`, which lies at `address`, may go: `None` for one to
    /// where the code does not show. Other bytes can look like a jump.
    fn jumps(address: u64, code: &[u8]) -> impl Iterator<Item = Option<u64>>;

    /// Bytes of the longest stub of the procedure linkage table.
    const PLT_STUB: usize;
    /// Stubs begin at multiples of this, counted from the start of their section.
    const PLT_STEP: usize = Self::PLT_STUB;
    /// The address of the slot that the stub `code` at `address` jumps through; `None` where it is
    /// no stub.
    fn plt_slot(address: u64, code: &[u8]) -> Option<u64>;

    /// Bytes of code that [`Architecture::frame_by_code`] follows at most.
    const MAX_CODE: usize;
    /// The frame at the end of `code`, which begins at a function's first instruction: of functions
    /// without unwind tables. An instruction that ends past `code`, such as the call that a return
    /// address belongs to, is not carried out.
    fn frame_by_code(code: &[u8]) -> Option<CodeFrame>;

    /// The frame that the kernel makes to deliver a signal, where the code that returns from it has
    /// no unwind tables.
    const SIGNAL_FRAME: Option<SignalFrame> = None;

    /// Numbers and values of the registers of a stopped thread.
    fn registers(user: &user_regs_struct) -> impl Iterator<Item = (usize, u64)>;
    /// The numbers that perf_event_open(2) has for the registers (asm/perf_regs.h), by DWARF
    /// number.
    const PERF_REGISTERS: &'static [usize];
    /// Whether a system call's result is where its first argument was, which is then unknown.
    const RESULT_REPLACES_ARGUMENT: bool = false;
    /// The system call that a stopped thread is about to return from; `None` where it was not in
    /// one, or in one of another architecture's, as 32-bit programs are. `code` gives 8 bytes of
    /// the thread's code at an address.
    fn system_call(
        user: &user_regs_struct,
        code: impl FnOnce(u64) -> Option<u64>,
    ) -> Option<SystemCall>;

    /// Offsets from `pthread_self()` at which C libraries may keep a thread's tid. The values are
    /// verified.
    const TID_OFFSETS: &'static [u64];
}

/// A system call at whose end a thread stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemCall {
    /// Its number.
    pub number: u32,
    /// Its arguments; not the first one of a call that returned, where
    /// [`Architecture::RESULT_REPLACES_ARGUMENT`].
    pub arguments: [u64; 6],
    /// What it is about to return: below 0 an error's negative number.
    pub result: i64,
}

/// A frame, by the code that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeFrame {
    /// Where the canonical frame address is: the stack pointer before the call.
    pub cfa: CfaSource,
    /// Callee-saved registers, and the one with the return address where calls leave it in one, and
    /// where they were saved, counted from the CFA.
    pub saved: Vec<(u16, i64)>,
    /// Such registers that were overwritten without a trace.
    pub lost: Vec<u16>,
}

/// The frame that the kernel makes to deliver a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalFrame {
    /// The two instructions of the code that handlers return to, equally long.
    pub code: &'static [u8],
    /// Offset of register 0 from the stack pointer there; the others follow by number.
    pub registers: i64,
}

/// How to compute the CFA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CfaSource {
    /// A register plus an offset.
    Register(u16, i64),
    /// The word at stack pointer plus `slot`, plus an offset: frames of unknown size keep their way
    /// back in a slot.
    Slot {
        /// Offset from the stack pointer.
        slot: i64,
        /// Offset from the word there.
        offset: i64,
    },
}
