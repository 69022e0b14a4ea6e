//! Calls, jumps, the stubs of the procedure linkage table, and system calls (Arm Architecture
//! Reference Manual, section C6.2). Instructions have four bytes.

/// `svc #0`, which Linux's system calls are.
pub(super) const SVC: u32 = 0xd400_0001;
/// `bti c`.
const BTI_C: u32 = 0xd503_245f;
/// `autia1716`.
const AUTIA1716: u32 = 0xd503_219f;
/// `br x17`, and `braa x17, x16`.
const BR_X17: [u32; 2] = [0xd61f_0220, 0xd71f_0a30];

/// Instructions of `code`, without what is left at its end.
pub(super) fn words(code: &[u8]) -> impl Iterator<Item = u32> {
    code.as_chunks()
        .0
        .iter()
        .map(|&word| u32::from_le_bytes(word))
}

/// The low `bits` of `value`, with their sign.
pub(super) fn signed(value: u32, bits: u32) -> i64 {
    let spare = 32 - bits;
    i64::from((value << spare).cast_signed() >> spare)
}

/// `bl`.
pub(super) fn is_direct_call(word: u32) -> bool {
    word & 0xfc00_0000 == 0x9400_0000
}

/// `bl`, `blr`, `blraaz` and `blrabz`, `blraa` and `blrab`.
pub(super) fn is_call(word: u32) -> bool {
    is_direct_call(word)
        || word & 0xffff_fc1f == 0xd63f_0000
        || word & 0xffff_f81f == 0xd63f_081f
        || word & 0xffff_f800 == 0xd73f_0800
}

/// `b`.
pub(super) fn is_direct_jump(word: u32) -> bool {
    word & 0xfc00_0000 == 0x1400_0000
}

/// `br`, `braaz` and `brabz`, `braa` and `brab`.
pub(super) fn is_indirect_jump(word: u32) -> bool {
    word & 0xffff_fc1f == 0xd61f_0000
        || word & 0xffff_f81f == 0xd61f_081f
        || word & 0xffff_f800 == 0xd71f_0800
}

/// Where the branch `word` at `address` goes: 26 bits, in instructions.
fn target(address: u64, word: u32) -> u64 {
    address.wrapping_add_signed(signed(word, 26) * 4)
}

/// Whether `before`, the bytes that end at a return address, end in a call.
pub(super) fn follows_call(before: &[u8]) -> bool {
    let last = before.last_chunk();
    last.is_some_and(|&word| is_call(u32::from_le_bytes(word)))
}

/// Where the call that returns to `address` goes, if it is `bl`, the bytes `before` it.
pub(super) fn call_target(address: u64, before: &[u8]) -> Option<u64> {
    let word = words(before).next().filter(|&word| is_direct_call(word))?;
    Some(target(address.wrapping_sub(4), word))
}

/// Targets of `b`, and `None` for jumps through a register, in `code`, which lies at `address`.
pub(super) fn jumps(address: u64, code: &[u8]) -> impl Iterator<Item = Option<u64>> {
    let addresses = (address..).step_by(4);
    words(code).zip(addresses).filter_map(|(word, at)| {
        let direct = is_direct_jump(word).then(|| Some(target(at, word)));
        direct.or_else(|| is_indirect_jump(word).then_some(None))
    })
}

/// The address of the GOT slot that the PLT stub `code` at `address` jumps through: `[bti c]; adrp
/// x16, slot; ldr x17, [x16, slot]; add x16, x16, slot; [autia1716]; br x17` (ELF for the Arm
/// 64-bit architecture; binutils, bfd/elfnn-aarch64.c).
pub(super) fn plt_slot(address: u64, code: &[u8]) -> Option<u64> {
    let mut words = words(code).peekable();
    let is_guarded = words.next_if_eq(&BTI_C).is_some();
    let page = words
        .next()
        .filter(|word| word & 0x9f00_001f == 0x9000_0010)?;
    let load = words
        .next()
        .filter(|word| word & 0xffc0_03ff == 0xf940_0211)?;
    words
        .next()
        .filter(|word| word & 0xffc0_03ff == 0x9100_0210)?;
    words.next_if_eq(&AUTIA1716);
    words.next().filter(|word| BR_X17.contains(word))?;
    let pages = signed((page >> 3) & 0x1f_fffc | (page >> 29) & 3, 21);
    let at = address.wrapping_add(if is_guarded { 4 } else { 0 });
    let base = (at & !0xfff).wrapping_add_signed(pages << 12);
    Some(base.wrapping_add(u64::from((load >> 10) & 0xfff) * 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn every_form_of_call_is_known() {
        // Assembled with GNU as -march=armv8.5-a; the comment is the source.
        for (source, word) in [
            ("bl .+0x1000", 0x9400_0400),
            ("blr x8", 0xd63f_0100),
            ("blraa x8, x9", 0xd73f_0909),
            ("blraaz x8", 0xd63f_091f),
            ("blrab x8, sp", 0xd73f_0d1f),
            ("blrabz x3", 0xd63f_0c7f),
        ] {
            assert!(follows_call(&code(&[word])), "{source}");
            assert!(
                follows_call(&code(&[0xd503_201f, word])),
                "{source}, after nop"
            );
            assert!(!follows_call(&code(&[word])[..3]), "{source}, cut");
        }
    }

    #[test]
    fn other_code_is_no_call() {
        for (source, word) in [
            ("b .+0x1000", 0x1400_0400),
            ("br x17", 0xd61f_0220),
            ("braa x17, x16", 0xd71f_0a30),
            ("braaz x17", 0xd61f_0a3f),
            ("ret", 0xd65f_03c0),
            ("retaa", 0xd65f_0bff),
            ("svc #0", SVC),
            ("nop", 0xd503_201f),
            ("udf #0", 0),
        ] {
            assert!(!follows_call(&code(&[word])), "{source}");
        }
        assert!(!follows_call(&[]));
    }

    #[test]
    fn branches_name_their_target() {
        // bl .+0x1000; bl .-16
        assert_eq!(call_target(0x5004, &code(&[0x9400_0400])), Some(0x6000));
        assert_eq!(call_target(0x5004, &code(&[0x97ff_fffc])), Some(0x4ff0));
        // blr x8
        assert_eq!(call_target(0x5004, &code(&[0xd63f_0100])), None);
        // nop; b .+0x1000; bl .+0x1000; br x17; ret
        let jumping = [
            0xd503_201f,
            0x1400_0400,
            0x9400_0400,
            0xd61f_0220,
            0xd65f_03c0,
        ];
        let found: Vec<_> = jumps(0x1000, &code(&jumping)).collect();
        assert_eq!(found, [Some(0x2004), None]);
    }

    #[test]
    fn plt_stubs_name_their_slot() {
        // adrp x16, .+0x1f000; ldr x17, [x16, #0xfb0]; add x16, x16, #0xfb0; br x17
        let [adrp, ldr, add, br] = [0xf000_00f0, 0xf947_da11, 0x913e_c210, 0xd61f_0220];
        assert_eq!(
            plt_slot(0x1234, &code(&[adrp, ldr, add, br])),
            Some(0x20fb0)
        );
        let guarded = [BTI_C, adrp, ldr, add, br, 0xd503_201f];
        assert_eq!(plt_slot(0x1ffc, &code(&guarded)), Some(0x21fb0));
        let signed = [BTI_C, adrp, ldr, add, AUTIA1716, br];
        assert_eq!(plt_slot(0x1000, &code(&signed)), Some(0x20fb0));
        // adrp x16, .-0x5000
        let back = [0xf0ff_ffd0, ldr, add, br];
        assert_eq!(plt_slot(0x6000, &code(&back)), Some(0x1fb0));
        assert_eq!(plt_slot(0x1000, &code(&[adrp, ldr, add])), None);
        assert_eq!(plt_slot(0x1000, &code(&[ldr, add, br, adrp])), None);
    }
}
