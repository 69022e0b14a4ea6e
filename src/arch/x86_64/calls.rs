//! Call instructions and the stubs of the procedure linkage table (Intel SDM volume 2, CALL and
//! JMP).

use super::X86_64;
use crate::arch::Architecture;

/// Where the call that returns to `address` goes, if it is `E8 rel32`, the bytes `before` it.
pub(super) fn call_target(address: u64, before: &[u8]) -> Option<u64> {
    let &[0xe8, a, b, c, d] = before else {
        return None;
    };
    let distance = i32::from_le_bytes([a, b, c, d]);
    Some(address.wrapping_add_signed(i64::from(distance)))
}

/// Targets of `E9 rel32`, and `None` for `FF 25 rel32`, in `code`, which lies at `address`.
pub(super) fn jumps(address: u64, code: &[u8]) -> impl Iterator<Item = Option<u64>> {
    (code.windows(5).zip(address..)).filter_map(|(bytes, at)| match *bytes {
        [0xe9, a, b, c, d] => {
            let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
            Some(Some(at.wrapping_add(5).wrapping_add_signed(distance)))
        }
        [0xff, 0x25, ..] => Some(None),
        _ => None,
    })
}

/// Whether `before`, the bytes that end at a return address, can end in a call instruction.
///
/// `E8 rel32`, and `FF /2` with any ModRM, SIB and displacement. Prefixes stand before these bytes
/// and make no difference. Up to 7 bytes are looked at.
pub(super) fn follows_call(before: &[u8]) -> bool {
    let back = |distance: usize| before.len().checked_sub(distance).map(|at| before[at]);
    if back(5) == Some(0xe8) {
        return true;
    }
    // `FF /2` whose encoding is `length` bytes long.
    (2..=X86_64::LONGEST_CALL).any(|length| {
        back(length) == Some(0xff)
            && back(length - 1).is_some_and(|modrm| {
                let sib = (length > 2).then(|| back(length - 2)).flatten();
                (modrm >> 3) & 7 == 2 && indirect_call_length(modrm, sib) == length
            })
    })
}

/// Bytes of `FF` with this ModRM byte (and SIB byte, where it asks for one).
fn indirect_call_length(modrm: u8, sib: Option<u8>) -> usize {
    let (mode, rm) = (modrm >> 6, modrm & 7);
    if mode == 3 {
        return 2;
    }
    let has_sib = rm == 4;
    let base_is_displacement = mode == 0 && has_sib && sib.is_some_and(|sib| sib & 7 == 5);
    let displacement = match mode {
        0 if rm == 5 || base_is_displacement => 4,
        0 => 0,
        1 => 1,
        _ => 4,
    };
    2 + usize::from(has_sib) + displacement
}

/// The address of the GOT slot that the PLT stub `code` at `address` jumps through: `[endbr64]
/// [bnd] jmp *slot(%rip)`.
pub(super) fn plt_slot(address: u64, code: &[u8]) -> Option<u64> {
    let mut at = 0;
    if code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) {
        at = 4;
    }
    if code.get(at) == Some(&0xf2) {
        at += 1;
    }
    if code.get(at..at + 2)? != [0xff, 0x25] {
        return None;
    }
    let displacement = i32::from_le_bytes(code.get(at + 2..at + 6)?.try_into().ok()?);
    Some(
        address
            .wrapping_add(at as u64 + 6)
            .wrapping_add_signed(i64::from(displacement)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_call_is_known() {
        // Assembled with GNU as; the comment is the source.
        let calls: &[(&str, &[u8])] = &[
            ("call rel32", &[0xe8, 1, 2, 3, 4]),
            ("call *%rax", &[0xff, 0xd0]),
            ("call *%r11", &[0x41, 0xff, 0xd3]),
            ("call *(%rax)", &[0xff, 0x10]),
            ("call *8(%rax)", &[0xff, 0x50, 8]),
            ("call *0x100(%rbx)", &[0xff, 0x93, 0, 1, 0, 0]),
            ("call *0x10(%rip)", &[0xff, 0x15, 0x10, 0, 0, 0]),
            ("call *(%rsp)", &[0xff, 0x14, 0x24]),
            ("call *8(%rsp)", &[0xff, 0x54, 0x24, 8]),
            ("call *0x100(%r12)", &[0x41, 0xff, 0x94, 0x24, 0, 1, 0, 0]),
            ("call *0x10(,%rax,8)", &[0xff, 0x14, 0xc5, 0x10, 0, 0, 0]),
            ("call *(%rax,%rbx,8)", &[0xff, 0x14, 0xd8]),
        ];
        for (source, bytes) in calls {
            let mut code = vec![0x90; 8];
            code.extend_from_slice(bytes);
            assert!(follows_call(&code), "{source}");
            assert!(follows_call(bytes), "{source}, with nothing before it");
        }
    }

    #[test]
    fn direct_calls_name_their_target() {
        assert_eq!(
            call_target(0x1000, &[0xe8, 0xf0, 0xff, 0xff, 0xff]),
            Some(0xff0)
        );
        assert_eq!(call_target(0x1000, &[0x90, 0x90, 0x90, 0xff, 0xd0]), None);
    }

    #[test]
    fn jumps_name_their_target() {
        // nop; jmp 0x0ff0; jmp *0x10(%rip); nop
        let code = [
            0x90, 0xe9, 0xea, 0xff, 0xff, 0xff, 0xff, 0x25, 0x10, 0, 0, 0, 0x90,
        ];
        let found: Vec<_> = jumps(0x1000, &code).collect();
        assert_eq!(found, [Some(0xff0), None]);
        assert_eq!(jumps(0x1000, &code[..5]).count(), 0);
    }

    #[test]
    fn other_code_is_no_call() {
        let others: &[(&str, &[u8])] = &[
            ("jmp *%rax", &[0xff, 0xe0]),
            ("push (%rax)", &[0xff, 0x30]),
            ("ret", &[0xc3]),
            ("nops", &[0x90; 8]),
            ("zeros", &[0; 8]),
            ("lcall *(%rax)", &[0xff, 0x18]),
            ("cut", &[0xd0]),
            ("nothing", &[]),
        ];
        for (source, bytes) in others {
            assert!(!follows_call(bytes), "{source}");
        }
    }

    #[test]
    fn plt_stubs_name_their_slot() {
        let plain = [0xff, 0x25, 0x10, 0, 0, 0];
        assert_eq!(plt_slot(0x1000, &plain), Some(0x1016));
        let guarded = [
            0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0xf0, 0xff, 0xff, 0xff,
        ];
        assert_eq!(plt_slot(0x1000, &guarded), Some(0xffb));
        assert_eq!(plt_slot(0x1000, &[0xf3, 0x0f, 0x1e, 0xfa, 0x68]), None);
    }
}
