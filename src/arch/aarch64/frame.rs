//! What a function's own code says of its frame: where its caller's registers are, the return
//! address among them. For code without unwind tables whose start is known.
//!
//! Only the stack pointer, the frame pointer and stores relative to them are followed, in a
//! straight line; what follows a return goes on with the frame as it was before the epilogue.

use super::calls::{is_call, is_direct_jump, is_indirect_jump, signed, words};
use super::{CALLEE_SAVED, FRAME_POINTER, RETURN_ADDRESS, STACK_POINTER};
use crate::arch::{CfaSource, CodeFrame};

/// The frame at the end of `code`, which begins at a function's first instruction.
pub(super) fn frame_by_code(code: &[u8]) -> Option<CodeFrame> {
    let mut tracker = Tracker::default();
    for word in words(code) {
        tracker.apply(word);
    }
    tracker.state.frame()
}

/// Registers that are restored for the caller.
fn kept() -> impl Iterator<Item = usize> {
    CALLEE_SAVED.iter().copied().chain([RETURN_ADDRESS])
}

#[derive(Clone, Debug)]
struct State {
    /// The stack pointer and the frame pointer, counted from the CFA; `None` where they are
    /// something else.
    stack_pointer: Option<i64>,
    frame_pointer: Option<i64>,
    /// Registers, by bit, that do not have the caller's value.
    overwritten: u32,
    /// Registers that were stored with the caller's value, and where, counted from the CFA.
    saved: Vec<(usize, i64)>,
}

impl State {
    fn frame(&self) -> Option<CodeFrame> {
        let source = |register: usize, offset: i64| {
            let distance = offset.checked_neg()?;
            Some(CfaSource::Register(register as u16, distance))
        };
        let cfa = match (self.stack_pointer, self.frame_pointer) {
            (Some(offset), _) => source(STACK_POINTER, offset)?,
            (None, offset) => source(FRAME_POINTER, offset?)?,
        };
        let (mut saved, mut lost) = (Vec::new(), Vec::new());
        for register in kept().filter(|&register| self.is_overwritten(register)) {
            match self.saved.iter().find(|(stored, _)| *stored == register) {
                Some(&(_, offset)) => saved.push((register as u16, offset)),
                None => lost.push(register as u16),
            }
        }
        Some(CodeFrame { cfa, saved, lost })
    }

    fn is_overwritten(&self, register: usize) -> bool {
        self.overwritten & (1 << register) != 0
    }

    /// The value of a base register, counted from the CFA.
    fn base(&self, register: usize) -> Option<i64> {
        match register {
            STACK_POINTER => self.stack_pointer,
            FRAME_POINTER => self.frame_pointer,
            _ => None,
        }
    }

    /// A write of something unknown. Number 31 is the zero register.
    fn overwrite(&mut self, register: usize) {
        if register < STACK_POINTER {
            self.overwritten |= 1 << register;
        }
        if register == FRAME_POINTER {
            self.frame_pointer = None;
        }
    }

    fn set(&mut self, register: usize, value: Option<i64>) {
        self.overwrite(register);
        match register {
            STACK_POINTER => self.stack_pointer = value,
            FRAME_POINTER => self.frame_pointer = value,
            _ => {}
        }
    }

    fn store(&mut self, register: usize, at: Option<i64>) {
        let Some(at) = at else { return };
        self.saved.retain(|&(_, offset)| offset != at);
        let is_first = self.saved.iter().all(|(stored, _)| *stored != register);
        if is_first && kept().any(|each| each == register) && !self.is_overwritten(register) {
            self.saved.push((register, at));
        }
    }

    fn load(&mut self, register: usize, at: Option<i64>) {
        self.overwrite(register);
        if at.is_some_and(|at| self.saved.contains(&(register, at))) {
            self.overwritten &= !(1 << register);
        }
    }
}

struct Tracker {
    state: State,
    /// The frame as it was before something that may be an epilogue.
    before_epilogue: Option<State>,
}

impl Default for Tracker {
    fn default() -> Self {
        let state = State {
            stack_pointer: Some(0),
            frame_pointer: None,
            overwritten: 0,
            saved: Vec::new(),
        };
        Self {
            state,
            before_epilogue: None,
        }
    }
}

/// The register whose number is at bit `at`.
fn register(word: u32, at: u32) -> usize {
    ((word >> at) & 31) as usize
}

impl Tracker {
    /// Remembers the frame before an instruction that restores registers or gives stack back.
    fn release(&mut self) {
        if self.before_epilogue.is_none() {
            self.before_epilogue = Some(self.state.clone());
        }
    }

    fn apply(&mut self, word: u32) {
        let is_return = word & 0xffff_fc1f == 0xd65f_0000 || word & 0xffff_fbff == 0xd65f_0bff;
        // `brk` and `udf` do not return.
        let is_trap = word & 0xffe0_001f == 0xd420_0000 || word >> 16 == 0;
        if is_call(word) {
            // An epilogue calls nothing.
            self.before_epilogue = None;
            self.state.overwrite(RETURN_ADDRESS);
        } else if is_return || is_trap || is_direct_jump(word) || is_indirect_jump(word) {
            if let Some(before) = self.before_epilogue.take() {
                self.state = before;
            }
        } else {
            // The groups of instructions, by bits 25 to 28.
            match (word >> 25) & 15 {
                0b1000 | 0b1001 => self.immediate(word),
                0b0101 | 0b1101 => self.register_operands(word),
                0b0111 | 0b1111 => self.vector(word),
                0b0100 | 0b0110 | 0b1100 | 0b1110 => self.memory(word),
                // `mrs`.
                0b1010 | 0b1011 if word >> 20 == 0xd53 => self.state.overwrite(register(word, 0)),
                _ => {}
            }
        }
    }

    /// Data processing with a constant.
    fn immediate(&mut self, word: u32) {
        let (to, from) = (register(word, 0), register(word, 5));
        // 64-bit `add` and `sub`.
        if word & 0xbf80_0000 == 0x9100_0000 {
            let shift = if word & (1 << 22) != 0 { 12 } else { 0 };
            let value = i64::from((word >> 10) & 0xfff) << shift;
            let is_sub = word & (1 << 30) != 0;
            let base = self.state.base(from);
            let sum = base.and_then(|base| base.checked_add(if is_sub { -value } else { value }));
            match to {
                STACK_POINTER if from == to && is_sub => self.before_epilogue = None,
                STACK_POINTER => self.release(),
                _ => {}
            }
            self.state.set(to, sum);
        } else if word & 0x1f80_0000 == 0x1200_0000 && (word >> 29) & 3 != 3 {
            // `and`, `orr` and `eor` can write the stack pointer.
            self.state.set(to, None);
        } else {
            self.state.overwrite(to);
        }
    }

    /// Data processing with registers.
    fn register_operands(&mut self, word: u32) {
        let to = register(word, 0);
        // `add` and `sub` with an extended register can write the stack pointer.
        if word & 0x3fe0_0000 == 0x0b20_0000 {
            self.state.set(to, None);
        } else if word & 0x1fe0_0000 != 0x1a40_0000 {
            // All but conditional compares.
            self.state.overwrite(to);
        }
    }

    /// Moves from vector to general registers: `fmov`, `fcvt*`, `umov`, `smov`.
    fn vector(&mut self, word: u32) {
        let is_conversion = word & 0x7f20_fc00 == 0x1e20_0000;
        let from_general = matches!((word >> 16) & 7, 2 | 3 | 7);
        if is_conversion && !from_general || word & 0xbfe0_ec00 == 0x0e00_2c00 {
            self.state.overwrite(register(word, 0));
        }
    }

    /// Loads and stores.
    fn memory(&mut self, word: u32) {
        let is_vector = word & (1 << 26) != 0;
        let size = word >> 30;
        let mut access = Access {
            base: register(word, 5),
            offset: 0,
            writes_base: false,
            is_before: true,
            is_load: (word >> 22) & 3 != 0,
            is_whole: size == 3,
        };
        let mut registers = vec![(register(word, 0), 0)];
        if word & 0x3a00_0000 == 0x2800_0000 {
            // Pairs: scaled by the size of one.
            let bytes = match (is_vector, size) {
                (true, _) => 4 << size,
                (false, 2) => 8,
                (false, _) => 4,
            };
            registers.push((register(word, 10), bytes));
            access.is_load = word & (1 << 22) != 0;
            access.is_whole = bytes == 8;
            access.offset = signed(word >> 15, 7) * bytes;
            access.writes_base = word & (1 << 23) != 0;
            access.is_before = (word >> 23) & 3 != 1;
        } else if word & 0x3b00_0000 == 0x3900_0000 {
            access.offset = i64::from((word >> 10) & 0xfff) << size;
        } else if word & 0x3b20_0000 == 0x3800_0000 {
            access.offset = signed(word >> 12, 9);
            access.writes_base = word & (1 << 10) != 0;
            access.is_before = (word >> 10) & 3 != 1;
        } else {
            // Literals, register offsets, exclusive and atomic ones load; or they store what is not
            // the caller's.
            access.base = 0;
            access.is_load = true;
        }
        if is_vector {
            registers.clear();
        }
        self.access(&registers, &access);
    }

    /// Each register and its distance from the address of the access.
    fn access(&mut self, registers: &[(usize, i64)], access: &Access) {
        let base = self.state.base(access.base);
        let moved = base.and_then(|base| base.checked_add(access.offset));
        let at = if access.is_before { moved } else { base };
        let place = |distance: i64| at.filter(|_| access.is_whole)?.checked_add(distance);
        let restores = registers.iter().any(|&(register, distance)| {
            place(distance).is_some_and(|at| self.state.saved.contains(&(register, at)))
        });
        let writes_stack_pointer = access.writes_base && access.base == STACK_POINTER;
        if access.is_load && restores || writes_stack_pointer && access.offset > 0 {
            self.release();
        } else if writes_stack_pointer {
            self.before_epilogue = None;
        }
        for &(register, distance) in registers {
            match access.is_load {
                true => self.state.load(register, place(distance)),
                false => self.state.store(register, place(distance)),
            }
        }
        if access.writes_base {
            self.state.set(access.base, moved);
        }
    }
}

/// A load or a store.
struct Access {
    base: usize,
    offset: i64,
    writes_base: bool,
    /// Whether the offset counts for the address; else only for the base afterwards.
    is_before: bool,
    is_load: bool,
    /// Whether it is of all 8 bytes of a register.
    is_whole: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The frame after each of these instructions, and before the first one.
    fn frames(words: &[u32]) -> Vec<CodeFrame> {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let ends = (0..=code.len()).step_by(4);
        ends.map(|end| frame_by_code(&code[..end]).unwrap())
            .collect()
    }

    fn frame(offset: i64, saved: &[(u16, i64)], lost: &[u16]) -> CodeFrame {
        CodeFrame {
            cfa: CfaSource::Register(31, offset),
            saved: saved.to_vec(),
            lost: lost.to_vec(),
        }
    }

    // Assembled with GNU as -march=armv8.5-a; the comment is the source.

    #[test]
    fn an_ordinary_frame_and_its_epilogue() {
        let found = frames(&[
            0xd503_233f, // paciasp
            0xa9bc_7bfd, // stp x29, x30, [sp, #-64]!
            0x9100_03fd, // mov x29, sp
            0xa901_53f3, // stp x19, x20, [sp, #16]
            0xf900_13f5, // str x21, [sp, #32]
            0xaa00_03f3, // mov x19, x0
            0x9400_0400, // bl .+0x1000
            0xa941_53f3, // ldp x19, x20, [sp, #16]
            0xf940_13f5, // ldr x21, [sp, #32]
            0xa8c4_7bfd, // ldp x29, x30, [sp], #64
            0xd503_23bf, // autiasp
            0xd65f_03c0, // ret
            0xd503_201f, // nop
        ]);
        let plain = frame(0, &[], &[]);
        assert_eq!(found[..2], [plain.clone(), plain.clone()]);
        assert_eq!(found[2], frame(64, &[], &[]));
        assert_eq!(found[3], frame(64, &[(29, -64)], &[]));
        assert_eq!(found[6], frame(64, &[(19, -48), (29, -64)], &[]));
        let body = frame(64, &[(19, -48), (29, -64), (30, -56)], &[]);
        assert_eq!(found[7], body);
        assert_eq!(found[9], frame(64, &[(29, -64), (30, -56)], &[]));
        assert_eq!(found[10], plain);
        assert_eq!(
            found[12], body,
            "what follows the return has the frame of the body"
        );
        assert_eq!(found[13], body);
    }

    #[test]
    fn a_frame_of_unknown_size_is_found_by_the_frame_pointer() {
        let found = frames(&[
            0xd111_43ff, // sub sp, sp, #0x450
            0xa910_7bfd, // stp x29, x30, [sp, #256]
            0x9104_03fd, // add x29, sp, #0x100
            0xd140_07ff, // sub sp, sp, #0x1, lsl #12
            0x927a_e53f, // and sp, x9, #0xffffffffffffffc0
            0xcb30_63ff, // sub sp, sp, x16
            0x9100_03bf, // mov sp, x29
        ]);
        assert_eq!(found[1], frame(0x450, &[], &[]));
        assert_eq!(found[4], frame(0x1450, &[(29, -0x350)], &[]));
        for found in &found[5..=6] {
            assert_eq!(found.cfa, CfaSource::Register(29, 0x350));
        }
        assert_eq!(found[7], frame(0x350, &[(29, -0x350)], &[]));
    }

    #[test]
    fn vector_registers_move_the_stack_pointer_too() {
        let found = frames(&[
            0x6dbe_27e8, // stp d8, d9, [sp, #-32]!
            0xadbf_27e8, // stp q8, q9, [sp, #-32]!
            0xfc1f_0fe8, // str d8, [sp, #-16]!
            0xf81f_0ffe, // str x30, [sp, #-16]!
            0xf841_07fe, // ldr x30, [sp], #16
        ]);
        let offsets: Vec<_> = found.iter().map(|found| found.cfa).collect();
        let expected = [0, 32, 64, 80, 96, 80].map(|offset| CfaSource::Register(31, offset));
        assert_eq!(offsets, expected);
    }

    #[test]
    fn a_register_that_was_not_saved_is_lost() {
        for (source, word, lost) in [
            ("fmov x19, d0", 0x9e66_0013, &[19][..]),
            ("mov x20, v0.d[0]", 0x4e08_3c14, &[20]),
            ("mov x20, #1", 0xd280_0034, &[20]),
            ("ldr w19, [x0, #4]", 0xb940_0413, &[19]),
            ("mul x21, x0, x1", 0x9b01_7c15, &[21]),
            ("ldr x0, [x19], #8", 0xf840_8660, &[19]),
            ("blr x8", 0xd63f_0100, &[30]),
            ("scvtf d19, x0", 0x9e62_0013, &[]),
            ("ldr d19, [x0]", 0xfd40_0013, &[]),
            ("str x19, [x0, #8]!", 0xf800_8c13, &[]),
            ("cmp x0, #4", 0xf100_101f, &[]),
        ] {
            assert_eq!(frames(&[word])[1].lost, lost, "{source}");
        }
    }

    proptest! {
        #[test]
        fn random_code_never_panics(code in proptest::collection::vec(any::<u8>(), 0..200)) {
            frame_by_code(&code);
        }
    }
}
