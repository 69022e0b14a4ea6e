//! aarch64, Procedure Call Standard for the Arm 64-bit architecture (AAPCS64).
//!
//! What reads code is compiled for tests of other machines, too.

mod calls;
mod frame;
#[cfg(target_arch = "aarch64")]
mod machine;

#[cfg(target_arch = "aarch64")]
pub use machine::Aarch64;

const FRAME_POINTER: usize = 29;
const RETURN_ADDRESS: usize = 30;
/// As a register of most other instructions this number is a zero.
const STACK_POINTER: usize = 31;
const CALLEE_SAVED: &[usize] = &[19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29];

/// `word` without the signature that pointer authentication puts into the upper bits of a return
/// address (Linux, Documentation/arch/arm64/pointer-authentication.rst).
///
/// Bit 55 says whether an address is the kernel's; of a program's addresses, which end below 1 <<
/// 48, all bits above may hold a signature (`ptrauth_user_pac_mask` in
/// arch/arm64/include/asm/pointer_auth.h) or a tag. Larger address spaces are given only to
/// programs that ask for them (Documentation/arch/arm64/memory.rst).
fn without_signature(word: u64) -> u64 {
    match word & (1 << 55) {
        0 => word & ((1 << 48) - 1),
        _ => word,
    }
}

/// What a thread's registers say of the system call that it is in.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    /// It returns with the result in x0.
    Returns,
    /// It begins, or begins again.
    Begins,
}

/// The two instructions around the instruction pointer tell where a stopped thread is. The kernel
/// sets the instruction pointer back to a call that it will restart before a tracer sees it
/// (`do_signal` in arch/arm64/kernel/signal.c), and then forgets the number.
fn call_around(code: u64) -> Option<Call> {
    let (before, here) = (code as u32, (code >> 32) as u32);
    match (before, here) {
        (calls::SVC, _) => Some(Call::Returns),
        (_, calls::SVC) => Some(Call::Begins),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_taken_off_a_programs_address() {
        assert_eq!(without_signature(0x0000_ffff_8123_4568), 0xffff_8123_4568);
        assert_eq!(without_signature(0x002c_ffff_8123_4568), 0xffff_8123_4568);
        assert_eq!(without_signature(0xff5b_aaaa_8123_4568), 0xaaaa_8123_4568);
        assert_eq!(
            without_signature(0xffff_8000_1234_5678),
            0xffff_8000_1234_5678
        );
        assert_eq!(without_signature(0), 0);
    }

    #[test]
    fn a_call_is_known_by_the_code_around_it() {
        // mov x8, #98; svc #0; ret
        let code = [0xd280_0c48_u64, 0xd400_0001, 0xd65f_03c0];
        assert_eq!(call_around(code[0] | code[1] << 32), Some(Call::Begins));
        assert_eq!(call_around(code[1] | code[2] << 32), Some(Call::Returns));
        assert_eq!(call_around(code[2] | code[0] << 32), None);
    }
}
