//! x86-64, System V ABI.

mod calls;
mod decode;
mod frame;
mod opcodes;

use super::{Architecture, CodeFrame, SystemCall};
use nix::libc::user_regs_struct;

/// x86-64, 64-bit programs. DWARF numbers (System V ABI, figure 3.36): 0 rax, 1 rdx, 2 rcx, 3 rbx,
/// 4 rsi, 5 rdi, 6 rbp, 7 rsp, 8 to 15 r8 to r15, 16 the return address, which is rip.
pub enum X86_64 {}

/// The code segment of 64-bit programs (Linux, arch/x86/include/asm/segment.h, `__USER_CS`): others
/// have other numbers of system calls.
const USER_64: u64 = 0x33;

impl Architecture for X86_64 {
    /// EM_X86_64.
    const ELF_MACHINE: u16 = 62;
    const PAGE_BYTES: u64 = 4096;
    const STACK_ALIGNMENT: u64 = 8;

    const REGISTERS: usize = 17;
    const FRAME_POINTER: usize = 6;
    const STACK_POINTER: usize = 7;
    const INSTRUCTION_POINTER: usize = 16;
    const RETURN_ADDRESS: u16 = 16;
    const LINKS: bool = false;
    const CALLEE_SAVED: &'static [usize] = &[3, 6, 12, 13, 14, 15];

    /// Without prefixes.
    const LONGEST_CALL: usize = 7;
    fn follows_call(before: &[u8]) -> bool {
        calls::follows_call(before)
    }
    const DIRECT_CALL: usize = 5;
    fn call_target(address: u64, before: &[u8]) -> Option<u64> {
        calls::call_target(address, before)
    }
    fn jumps(address: u64, code: &[u8]) -> impl Iterator<Item = Option<u64>> {
        calls::jumps(address, code)
    }

    /// In all three PLT sections (x86-64 psABI, section 5.2).
    const PLT_STUB: usize = 16;
    fn plt_slot(address: u64, code: &[u8]) -> Option<u64> {
        calls::plt_slot(address, code)
    }

    /// MKL's kernels have tens of KB.
    const MAX_CODE: usize = 256 << 10;
    fn frame_by_code(code: &[u8]) -> Option<CodeFrame> {
        frame::frame_by_code(code.get(..Self::MAX_CODE).unwrap_or(code))
    }

    fn registers(user: &user_regs_struct) -> impl Iterator<Item = (usize, u64)> {
        let values: [u64; Self::REGISTERS] = [
            user.rax, user.rdx, user.rcx, user.rbx, user.rsi, user.rdi, user.rbp, user.rsp,
            user.r8, user.r9, user.r10, user.r11, user.r12, user.r13, user.r14, user.r15, user.rip,
        ];
        values.into_iter().enumerate()
    }

    const PERF_REGISTERS: &'static [usize] =
        &[0, 3, 2, 1, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23, 8];

    fn system_call(
        user: &user_regs_struct,
        _: impl FnOnce(u64) -> Option<u64>,
    ) -> Option<SystemCall> {
        // Of a thread that an interrupt or a fault brought into the kernel this is -1
        // (arch/x86/entry/entry_64.S).
        let number = u32::try_from(user.orig_rax as i64).ok()?;
        (user.cs == USER_64).then_some(SystemCall {
            number,
            arguments: [user.rdi, user.rsi, user.rdx, user.r10, user.r8, user.r9],
            result: user.rax as i64,
        })
    }

    /// glibc since 2.4: `tid` of `struct pthread` (nptl/descr.h) behind a header of 704 bytes and a
    /// list entry of 16. musl 1.2: `tid` of `struct __pthread` (src/internal/pthread_impl.h).
    const TID_OFFSETS: &'static [u64] = &[0x2d0, 0x30];
}
