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
/// address (Linux, Documentation/arch/arm64/pointer-authentication.rst), where programs have
/// addresses of `bits` bits.
///
/// Bit 55 says whether an address is the kernel's; of a program's addresses, all bits above may
/// hold a signature (`ptrauth_user_pac_mask` in arch/arm64/include/asm/pointer_auth.h) or a tag.
fn without_signature(word: u64, bits: u32) -> u64 {
    match word & (1 << 55) {
        0 => word & ((1 << bits) - 1),
        _ => word,
    }
}

/// Bits of the addresses of this kernel's programs: 39, 42, 47 or 48, as it was built. Larger
/// address spaces are given only to programs that ask for them
/// (Documentation/arch/arm64/memory.rst). The first thread's stack lies at their upper end, below
/// at most 16 GB that are left out at random; those of other threads lie low where stacks are not
/// limited (`mmap_is_legacy`, mm/util.c). `maps`: of a process (proc_pid_maps(5)).
fn address_bits(maps: &str) -> u32 {
    let stack = maps.lines().find(|line| line.ends_with("[stack]"));
    let last = stack.and_then(|line| {
        let (_, rest) = line.split_once('-')?;
        let end = u64::from_str_radix(rest.split(' ').next()?, 16).ok()?;
        end.checked_sub(1)
    });
    let bits = last.map_or(48, |last| u64::BITS - last.leading_zeros());
    let mut known = [39, 42, 47].into_iter();
    known.find(|&known| bits <= known).unwrap_or(48)
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
        for (signed, bits, address) in [
            (0x0000_ffff_8123_4568, 48, 0xffff_8123_4568),
            (0x002c_ffff_8123_4568, 48, 0xffff_8123_4568),
            (0xff5b_aaaa_8123_4568, 48, 0xaaaa_8123_4568),
            (0xffff_8000_1234_5678, 48, 0xffff_8000_1234_5678),
            (0x007a_bc7f_8123_4568, 39, 0x007f_8123_4568),
            (0, 48, 0),
        ] {
            assert_eq!(without_signature(signed, bits), address, "{signed:x}");
        }
    }

    #[test]
    fn a_stack_tells_how_long_addresses_are() {
        let low = "400000000000-400000001000 rw-p 00000000 00:00 0\n";
        for (end, bits) in [
            ("fffff1234000", 48),
            ("1000000000000", 48),
            ("7fff81234000", 47),
            ("3ff81234000", 42),
            ("7f81234000", 39),
        ] {
            let maps = format!("{low}1000-{end} rw-p 00000000 00:00 0      [stack]\n");
            assert_eq!(address_bits(&maps), bits, "{end}");
        }
        assert_eq!(address_bits(low), 48);
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
