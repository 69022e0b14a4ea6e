//! What a function's own code says of its frame: where the return address is, and where it saved
//! its caller's registers.
//!
//! For code without unwind tables whose start is known, such as MKL's kernels. The code from the
//! function's start is followed in a straight line with symbolic registers; what follows a return
//! goes on with the frame as it was before the epilogue.

use super::decode::{Effect, RBP, RSP, Register, decode};
use crate::arch::{CfaSource, CodeFrame};

/// DWARF numbers of the hardware's registers (System V ABI, figure 3.36).
const DWARF: [u16; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];
const CALLEE_SAVED: [Register; 6] = [3, 5, 12, 13, 14, 15];
/// Stores into the frame that are remembered.
const MAX_SLOTS: usize = 64;
/// The frame at the end of `code`, which begins at a function's first instruction. An instruction
/// that ends past `code`, such as the call that a return address belongs to, is not carried out.
pub(super) fn frame_by_code(code: &[u8]) -> Option<CodeFrame> {
    let mut tracker = Tracker::new();
    let mut position = 0;
    while let Some(rest) = code.get(position..).filter(|rest| !rest.is_empty()) {
        let Some(instruction) = decode(rest) else {
            // Cut short by the end, or not understood: tables between functions, new instructions.
            if rest.len() >= 16 {
                return None;
            }
            break;
        };
        position += instruction.length;
        tracker.apply(instruction.effect);
    }
    tracker.frame()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Unknown,
    /// What the caller left in this register.
    Initial(Register),
    /// An address in the frame: distance from base 0, the CFA, or from a stack pointer that was
    /// moved by an unknown amount.
    Stack(u32, i64),
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    base: u32,
    offset: i64,
    value: Value,
}

#[derive(Clone, Debug)]
struct State {
    registers: [Value; 16],
    slots: Vec<Slot>,
}

struct Tracker {
    state: State,
    /// The frame as it was before something that may be an epilogue.
    before_epilogue: Option<State>,
    bases: u32,
}

impl Tracker {
    fn new() -> Self {
        let mut registers = [Value::Unknown; 16];
        for register in CALLEE_SAVED {
            registers[usize::from(register)] = Value::Initial(register);
        }
        registers[usize::from(RSP)] = Value::Stack(0, -8);
        Self {
            state: State {
                registers,
                slots: Vec::new(),
            },
            before_epilogue: None,
            bases: 0,
        }
    }

    fn get(&self, register: Register) -> Value {
        self.state
            .registers
            .get(usize::from(register))
            .copied()
            .unwrap_or(Value::Unknown)
    }

    fn set(&mut self, register: Register, value: Value) {
        // A stack pointer that moved by an unknown amount is a base of its own.
        let value = if register == RSP && !matches!(value, Value::Stack(..)) {
            self.bases += 1;
            Value::Stack(self.bases, 0)
        } else {
            value
        };
        if let Some(place) = self.state.registers.get_mut(usize::from(register)) {
            *place = value;
        }
    }

    fn address(&self, base: Register, displacement: i64) -> Option<(u32, i64)> {
        match self.get(base) {
            Value::Stack(base, offset) => Some((base, offset.checked_add(displacement)?)),
            _ => None,
        }
    }

    fn store(&mut self, base: Register, displacement: i64, value: Value) {
        let Some((base, offset)) = self.address(base, displacement) else {
            return;
        };
        self.state
            .slots
            .retain(|slot| slot.base != base || slot.offset.abs_diff(offset) >= 8);
        if value != Value::Unknown && self.state.slots.len() < MAX_SLOTS {
            self.state.slots.push(Slot {
                base,
                offset,
                value,
            });
        }
    }

    fn load(&self, base: Register, displacement: i64) -> Value {
        let Some((base, offset)) = self.address(base, displacement) else {
            return Value::Unknown;
        };
        let slot = self
            .state
            .slots
            .iter()
            .find(|slot| slot.base == base && slot.offset == offset);
        slot.map_or(Value::Unknown, |slot| slot.value)
    }

    fn add(&mut self, register: Register, value: i64) {
        let sum = match self.get(register) {
            Value::Stack(base, offset) => offset
                .checked_add(value)
                .map_or(Value::Unknown, |sum| Value::Stack(base, sum)),
            _ => Value::Unknown,
        };
        self.set(register, sum);
    }

    /// Remembers the frame before an instruction that gives stack back.
    fn release(&mut self) {
        if self.before_epilogue.is_none() {
            self.before_epilogue = Some(self.state.clone());
        }
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Push(_) | Effect::PushOther => {
                let value = if let Effect::Push(register) = effect {
                    self.get(register)
                } else {
                    Value::Unknown
                };
                self.before_epilogue = None;
                self.add(RSP, -8);
                self.store(RSP, 0, value);
            }
            Effect::Pop(register) => {
                self.release();
                let value = self.load(RSP, 0);
                self.add(RSP, 8);
                self.set(register, value);
            }
            Effect::Leave => {
                self.release();
                self.set(RSP, self.get(RBP));
                let value = self.load(RSP, 0);
                self.add(RSP, 8);
                self.set(RBP, value);
            }
            Effect::Move { to, from } => {
                if to == RSP {
                    self.release();
                }
                self.set(to, self.get(from));
            }
            Effect::Address {
                to,
                base,
                displacement,
            } => {
                if to == RSP {
                    self.release();
                }
                let address = self.address(base, i64::from(displacement));
                self.set(
                    to,
                    address.map_or(Value::Unknown, |(base, offset)| Value::Stack(base, offset)),
                );
            }
            Effect::Add { to, value } => {
                if to == RSP && value > 0 {
                    self.release();
                }
                self.add(to, i64::from(value));
            }
            Effect::Store {
                base,
                displacement,
                from,
            } => self.store(base, i64::from(displacement), self.get(from)),
            Effect::StoreOther { base, displacement } => {
                self.store(base, i64::from(displacement), Value::Unknown)
            }
            Effect::Load {
                to,
                base,
                displacement,
            } => self.set(to, self.load(base, i64::from(displacement))),
            Effect::Overwrite(first, second) => {
                for register in [first, second].into_iter().flatten() {
                    self.set(register, Value::Unknown);
                }
            }
            // An epilogue calls nothing.
            Effect::Call => self.before_epilogue = None,
            Effect::Return | Effect::Jump => {
                if let Some(before) = self.before_epilogue.take() {
                    self.state = before;
                }
            }
        }
    }

    fn frame(&self) -> Option<CodeFrame> {
        let Value::Stack(stack_base, stack_offset) = self.get(RSP) else {
            return None;
        };
        let slots = &self.state.slots;
        let cfa = if stack_base == 0 {
            CfaSource::Register(DWARF[usize::from(RSP)], stack_offset.checked_neg()?)
        } else {
            let by_slot = slots.iter().find_map(|slot| match slot.value {
                Value::Stack(0, distance) if slot.base == stack_base => Some(CfaSource::Slot {
                    slot: slot.offset.checked_sub(stack_offset)?,
                    offset: distance.checked_neg()?,
                }),
                _ => None,
            });
            let by_register = || {
                [RBP, 3, 12, 13, 14, 15, 10]
                    .into_iter()
                    .find_map(|register| match self.get(register) {
                        Value::Stack(0, distance) => Some(CfaSource::Register(
                            DWARF[usize::from(register)],
                            distance.checked_neg()?,
                        )),
                        _ => None,
                    })
            };
            by_slot.or_else(by_register)?
        };
        let mut saved = Vec::new();
        let mut lost = Vec::new();
        for register in CALLEE_SAVED {
            let initial = Value::Initial(register);
            if self.get(register) == initial {
                continue;
            }
            let number = DWARF[usize::from(register)];
            match slots
                .iter()
                .find(|slot| slot.base == 0 && slot.value == initial)
            {
                Some(slot) => saved.push((number, slot.offset)),
                None => lost.push(number),
            }
        }
        Some(CodeFrame { cfa, saved, lost })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_ordinary_frame_and_its_epilogue() {
        // push rbp; push rbx; sub $8,rsp; mov edi,ebx | add $8,rsp; pop rbx; pop rbp; ret | nop
        let code = [
            0x55, 0x53, 0x48, 0x83, 0xec, 8, 0x89, 0xfb, 0x48, 0x83, 0xc4, 8, 0x5b, 0x5d, 0xc3,
            0x90,
        ];
        let at = |end: usize| frame_by_code(&code[..end]).unwrap();
        assert_eq!(at(0).cfa, CfaSource::Register(7, 8));
        assert_eq!(at(1).cfa, CfaSource::Register(7, 16));
        assert_eq!(
            at(8),
            CodeFrame {
                cfa: CfaSource::Register(7, 32),
                saved: vec![(3, -24)],
                lost: vec![]
            }
        );
        assert_eq!(at(13).cfa, CfaSource::Register(7, 16));
        assert_eq!(
            at(14),
            CodeFrame {
                cfa: CfaSource::Register(7, 8),
                saved: vec![],
                lost: vec![]
            }
        );
        assert_eq!(
            at(16),
            at(8),
            "what follows the return has the frame of the body"
        );
    }

    #[test]
    fn a_frame_of_unknown_size_keeps_its_way_back_in_a_slot() {
        // The start of mkl_blas_avx512_sgemm_kernel_nocopy_NN_b0: sub $0x40,rsp; mov rbx,(rsp); mov
        // rbp,8(rsp); mov rsp,rbp; sub rax,rsp; and $-4096,rsp; mov rbp,0x78(rsp); xor ebp,ebp
        let code = [
            0x48, 0x83, 0xec, 0x40, 0x48, 0x89, 0x1c, 0x24, 0x48, 0x89, 0x6c, 0x24, 8, 0x48, 0x89,
            0xe5, 0x48, 0x29, 0xc4, 0x48, 0x81, 0xe4, 0, 0xf0, 0xff, 0xff, 0x48, 0x89, 0x6c, 0x24,
            0x78, 0x31, 0xed,
        ];
        let frame = frame_by_code(&code).unwrap();
        assert_eq!(
            frame.cfa,
            CfaSource::Slot {
                slot: 0x78,
                offset: 0x48
            }
        );
        assert_eq!(frame.saved, [(6, -0x40)]);
        assert_eq!(
            frame_by_code(&code[..26]).unwrap().cfa,
            CfaSource::Register(6, 0x48)
        );
    }

    #[test]
    fn a_register_that_was_not_saved_is_lost() {
        assert_eq!(frame_by_code(&[0x31, 0xdb]).unwrap().lost, [3]);
    }

    proptest! {
        #[test]
        fn random_code_never_panics(code in proptest::collection::vec(any::<u8>(), 0..200)) {
            frame_by_code(&code);
        }
    }
}
