//! The [`Architecture`] of aarch64.

use super::{CALLEE_SAVED, Call, FRAME_POINTER, RETURN_ADDRESS, STACK_POINTER};
use super::{address_bits, call_around, calls, frame, without_signature};
use crate::arch::{Architecture, CodeFrame, SignalFrame, SystemCall};
use nix::libc::user_regs_struct;
use std::sync::LazyLock;

/// aarch64, 64-bit programs. DWARF numbers (DWARF for the Arm 64-bit architecture, section 4.1): 0
/// to 30 x0 to x30, 31 sp, 32 pc.
pub enum Aarch64 {}

/// Of a thread that runs 32-bit code (`PSR_MODE32_BIT`, arch/arm64/include/uapi/asm/ptrace.h).
const IS_32_BIT: u64 = 0x10;
/// What the kernel's calls return inside of it where they are restarted (include/linux/errno.h).
const ERESTARTSYS: i64 = 512;

impl Architecture for Aarch64 {
    /// EM_AARCH64.
    const ELF_MACHINE: u16 = 183;
    /// Kernels with pages of 16 and 64 KB exist.
    const PAGE_BYTES: u64 = 4096;
    const STACK_ALIGNMENT: u64 = 16;

    const REGISTERS: usize = 33;
    const FRAME_POINTER: usize = FRAME_POINTER;
    const STACK_POINTER: usize = STACK_POINTER;
    const INSTRUCTION_POINTER: usize = 32;
    const RETURN_ADDRESS: u16 = RETURN_ADDRESS as u16;
    const LINKS: bool = true;
    const CALLEE_SAVED: &'static [usize] = CALLEE_SAVED;
    const VENDOR: gimli::Vendor = gimli::Vendor::AArch64;

    fn return_address(word: u64) -> u64 {
        static BITS: LazyLock<u32> = LazyLock::new(|| {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
            address_bits(&maps)
        });
        without_signature(word, *BITS)
    }

    const LONGEST_CALL: usize = 4;
    fn follows_call(before: &[u8]) -> bool {
        calls::follows_call(before)
    }
    const DIRECT_CALL: usize = 4;
    fn call_target(address: u64, before: &[u8]) -> Option<u64> {
        calls::call_target(address, before)
    }
    fn jumps(address: u64, code: &[u8]) -> impl Iterator<Item = Option<u64>> {
        calls::jumps(address, code)
    }

    /// Stubs have 16 bytes, or 24 with `bti c` or a signature, after a header of 32.
    const PLT_STUB: usize = 24;
    const PLT_STEP: usize = 8;
    fn plt_slot(address: u64, code: &[u8]) -> Option<u64> {
        calls::plt_slot(address, code)
    }

    const MAX_CODE: usize = 256 << 10;
    fn frame_by_code(code: &[u8]) -> Option<CodeFrame> {
        frame::frame_by_code(code.get(..Self::MAX_CODE).unwrap_or(code))
    }

    /// `mov x8, #139; svc #0` in the vDSO (arch/arm64/kernel/vdso/sigreturn.S; it has no unwind
    /// tables since Linux 5.8). `struct rt_sigframe` (arch/arm64/kernel/signal.c): a siginfo of 128
    /// bytes, then 176 of the ucontext and 8 of the sigcontext before x0.
    const SIGNAL_FRAME: Option<SignalFrame> = Some(SignalFrame {
        code: &[0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4],
        registers: 128 + 176 + 8,
    });

    fn registers(user: &user_regs_struct) -> impl Iterator<Item = (usize, u64)> {
        let values = user.regs.into_iter().chain([user.sp, user.pc]);
        values.enumerate()
    }

    const PERF_REGISTERS: &'static [usize] = &[
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24,
        25, 26, 27, 28, 29, 30, 31, 32,
    ];

    const RESULT_REPLACES_ARGUMENT: bool = true;
    fn system_call(
        user: &user_regs_struct,
        code: impl FnOnce(u64) -> Option<u64>,
    ) -> Option<SystemCall> {
        if user.pstate & IS_32_BIT != 0 {
            return None;
        }
        let [a, b, c, d, e, f, _, _, number, ..] = user.regs;
        Some(SystemCall {
            number: u32::try_from(number).ok()?,
            arguments: [a, b, c, d, e, f],
            result: match call_around(code(user.pc.wrapping_sub(4))?)? {
                Call::Returns => a.cast_signed(),
                Call::Begins => -ERESTARTSYS,
            },
        })
    }

    /// glibc since 2.17: `tid` of `struct pthread` (nptl/descr.h) behind a header of 192 bytes and
    /// a list entry of 16. musl 1.2: `tid` of `struct __pthread` (src/internal/pthread_impl.h).
    const TID_OFFSETS: &'static [u64] = &[0xd0, 0x20];
}
