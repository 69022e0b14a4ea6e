//! The opcode maps: what each instruction does to registers and the stack (Intel SDM volume 2,
//! appendix A).

use super::decode::{Decoder, Effect, NOTHING, Operands, RAX, RBX, RDX, Register, Rm};

impl Decoder<'_> {
    /// A write of the `rm` operand with something unknown; `opcode` is even where the operand is a
    /// byte.
    fn writes_rm_of(&self, opcode: u8, operands: Operands) -> Effect {
        match operands.rm {
            Rm::Register(register) if opcode & 1 == 0 => {
                Effect::Overwrite(self.byte_register(register), None)
            }
            _ => self.writes_rm(operands),
        }
    }

    /// The same of an operand that is no byte.
    fn writes_rm(&self, operands: Operands) -> Effect {
        match operands.rm {
            Rm::Register(register) => Effect::Overwrite(Some(register), None),
            Rm::Memory(base, displacement) => Effect::StoreOther { base, displacement },
            Rm::OtherMemory => NOTHING,
        }
    }

    /// A byte register: without REX, 4 to 7 are ah to bh, parts of others.
    fn byte_register(&self, register: Register) -> Option<Register> {
        (self.rex != 0 || register < 4).then_some(register)
    }

    pub(super) fn one_byte(&mut self, opcode: u8) -> Option<Effect> {
        let low = opcode & 7;
        let coded = low | (self.rex & 1) << 3;
        Some(match opcode {
            0x00..=0x3f => return self.arithmetic(opcode),
            0x50..=0x57 => Effect::Push(coded),
            0x58..=0x5f => Effect::Pop(coded),
            0x63 => Effect::Overwrite(Some(self.operands()?.reg), None),
            0x68 => {
                self.immediate()?;
                Effect::PushOther
            }
            0x6a => {
                self.signed(1)?;
                Effect::PushOther
            }
            0x69 | 0x6b => {
                let operands = self.operands()?;
                if opcode == 0x69 {
                    self.immediate()?
                } else {
                    self.signed(1)?
                };
                Effect::Overwrite(Some(operands.reg), None)
            }
            0x70..=0x7f | 0xe0..=0xe3 => {
                self.signed(1)?;
                NOTHING
            }
            0x80 | 0x81 | 0x83 => return self.arithmetic_immediate(opcode),
            0x84 | 0x85 => {
                self.operands()?;
                NOTHING
            }
            0x86 => {
                let operands = self.operands()?;
                let other = operands.rm_register();
                Effect::Overwrite(
                    self.byte_register(operands.reg),
                    other.and_then(|register| self.byte_register(register)),
                )
            }
            0x87 => {
                let operands = self.operands()?;
                Effect::Overwrite(Some(operands.reg), operands.rm_register())
            }
            0x88..=0x8b | 0x8d => return self.moves(opcode),
            0x8f => {
                let operands = self.operands()?;
                operands.rm_register().map_or(NOTHING, Effect::Pop)
            }
            0x90..=0x97 if coded != 0 => Effect::Overwrite(Some(coded), Some(RAX)),
            0x6c..=0x6f
            | 0x90..=0x99
            | 0x9b..=0x9f
            | 0xa4..=0xa7
            | 0xaa..=0xaf
            | 0xd7
            | 0xf5
            | 0xf8..=0xfd => NOTHING,
            0xa8 | 0xe4..=0xe7 => {
                self.signed(1)?;
                NOTHING
            }
            0xa9 => {
                self.immediate()?;
                NOTHING
            }
            0xb0..=0xb7 => {
                self.signed(1)?;
                Effect::Overwrite(self.byte_register(coded), None)
            }
            0xb8..=0xbf => {
                if self.is_wide() {
                    self.signed(8)?
                } else {
                    self.immediate()?
                };
                Effect::Overwrite(Some(coded), None)
            }
            0xc0 | 0xc1 | 0xd0..=0xd3 => {
                let operands = self.operands()?;
                if opcode < 0xd0 {
                    self.signed(1)?;
                }
                self.writes_rm_of(opcode, operands)
            }
            0xc3 | 0xf4 => Effect::Return,
            0xc2 => {
                self.signed(2)?;
                Effect::Return
            }
            0xc6 | 0xc7 => {
                let operands = self.operands()?;
                if opcode == 0xc6 {
                    self.signed(1)?
                } else {
                    self.immediate()?
                };
                self.writes_rm_of(opcode, operands)
            }
            0xc9 => Effect::Leave,
            0xcc => Effect::Return,
            0xd8..=0xdf => {
                self.operands()?;
                NOTHING
            }
            0xe8 => {
                self.signed(4)?;
                Effect::Call
            }
            0xe9 => {
                self.signed(4)?;
                Effect::Jump
            }
            0xeb => {
                self.signed(1)?;
                Effect::Jump
            }
            0xf6 | 0xf7 => return self.group_f6(opcode),
            0xfe | 0xff => return self.group_ff(opcode),
            _ => return None,
        })
    }

    fn arithmetic(&mut self, opcode: u8) -> Option<Effect> {
        let is_compare = opcode & 0x38 == 0x38;
        Some(match opcode & 7 {
            form @ 0..=3 => {
                let operands = self.operands()?;
                let written = match form {
                    _ if is_compare => return Some(NOTHING),
                    0 | 1 => return Some(self.writes_rm_of(opcode, operands)),
                    2 => return Some(Effect::Overwrite(self.byte_register(operands.reg), None)),
                    _ => operands.reg,
                };
                Effect::Overwrite(Some(written), None)
            }
            4 => {
                self.signed(1)?;
                Effect::Overwrite(Some(RAX), None)
            }
            5 => {
                self.immediate()?;
                Effect::Overwrite(Some(RAX), None)
            }
            _ => return None,
        })
    }

    /// `add`, `or`, `adc`, `sbb`, `and`, `sub`, `xor`, `cmp` with a constant.
    fn arithmetic_immediate(&mut self, opcode: u8) -> Option<Effect> {
        let operands = self.operands()?;
        let value = if opcode == 0x81 {
            self.immediate()?
        } else {
            self.signed(1)?
        };
        Some(match (operands.digit, operands.rm) {
            (7, _) => NOTHING,
            (0, Rm::Register(to)) if self.is_wide() => Effect::Add { to, value },
            (5, Rm::Register(to)) if self.is_wide() => Effect::Add {
                to,
                value: value.checked_neg()?,
            },
            _ => self.writes_rm_of(opcode, operands),
        })
    }

    fn moves(&mut self, opcode: u8) -> Option<Effect> {
        let operands = self.operands()?;
        let wide = self.is_wide();
        Some(match (opcode, operands.rm) {
            (0x89, Rm::Register(to)) if wide => Effect::Move {
                to,
                from: operands.reg,
            },
            (0x8b, Rm::Register(from)) if wide => Effect::Move {
                to: operands.reg,
                from,
            },
            (0x89, Rm::Memory(base, displacement)) if wide => Effect::Store {
                base,
                displacement,
                from: operands.reg,
            },
            (0x8b, Rm::Memory(base, displacement)) if wide => Effect::Load {
                to: operands.reg,
                base,
                displacement,
            },
            (0x8d, Rm::Memory(base, displacement)) if wide => Effect::Address {
                to: operands.reg,
                base,
                displacement,
            },
            (0x88, Rm::Register(to)) => Effect::Overwrite(self.byte_register(to), None),
            (0x88 | 0x89, _) => self.writes_rm(operands),
            (0x8a, _) => Effect::Overwrite(self.byte_register(operands.reg), None),
            _ => Effect::Overwrite(Some(operands.reg), None),
        })
    }

    fn group_f6(&mut self, opcode: u8) -> Option<Effect> {
        let operands = self.operands()?;
        Some(match operands.digit {
            0 | 1 => {
                if opcode == 0xf6 {
                    self.signed(1)?
                } else {
                    self.immediate()?
                };
                NOTHING
            }
            2 | 3 => self.writes_rm_of(opcode, operands),
            _ => Effect::Overwrite(Some(RAX), Some(RDX)),
        })
    }

    fn group_ff(&mut self, opcode: u8) -> Option<Effect> {
        let operands = self.operands()?;
        Some(match (opcode, operands.digit) {
            (_, 0 | 1) => self.writes_rm_of(opcode, operands),
            (0xff, 2) => Effect::Call,
            (0xff, 4) => Effect::Jump,
            (0xff, 6) => Effect::PushOther,
            _ => return None,
        })
    }

    pub(super) fn two_byte(&mut self) -> Option<Effect> {
        let opcode = self.byte()?;
        Some(match opcode {
            0x05 | 0x31 | 0x77 | 0xa0 | 0xa1 | 0xa8 | 0xa9 => NOTHING,
            0x0b => Effect::Return,
            0x80..=0x8f => {
                self.signed(4)?;
                NOTHING
            }
            0xa2 => Effect::Overwrite(Some(RBX), Some(RDX)),
            0xc8..=0xcf => Effect::Overwrite(Some(opcode & 7 | (self.rex & 1) << 3), None),
            0x38 => {
                let third = self.byte()?;
                let operands = self.operands()?;
                Effect::Overwrite((third >= 0xf0).then_some(operands.reg), None)
            }
            0x3a => {
                let third = self.byte()?;
                let operands = self.operands()?;
                self.signed(1)?;
                if (0x14..=0x17).contains(&third) {
                    self.writes_rm(operands)
                } else {
                    NOTHING
                }
            }
            0x06..=0x0a | 0x0c | 0x0e | 0x0f | 0x30 | 0x32..=0x37 | 0xaa => return None,
            _ => return self.two_byte_with_operands(opcode),
        })
    }

    fn two_byte_with_operands(&mut self, opcode: u8) -> Option<Effect> {
        let operands = self.operands()?;
        if matches!(opcode, 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6) {
            self.signed(1)?;
        }
        Some(match opcode {
            // cmov, cvt*2si, movmsk, pextrw, imul, movzx, movsx, bsf, bsr, popcnt.
            0x2c | 0x2d | 0x40..=0x4f | 0x50 | 0xd7 | 0xc5 | 0xaf | 0xb6..=0xb8 | 0xbc..=0xbf => {
                Effect::Overwrite(Some(operands.reg), None)
            }
            0x90..=0x9f => Effect::Overwrite(
                operands
                    .rm_register()
                    .and_then(|register| self.byte_register(register)),
                None,
            ),
            0x7e if self.repeat != 0xf3 => self.writes_rm(operands),
            0xa4 | 0xa5 | 0xab | 0xac | 0xad | 0xb3 | 0xb0 | 0xb1 | 0xba | 0xbb | 0xc7 => {
                self.writes_rm(operands)
            }
            0xc0 | 0xc1 => Effect::Overwrite(Some(operands.reg), operands.rm_register()),
            // Stores of vector registers.
            0x11 | 0x13 | 0x17 | 0x29 | 0x2b | 0x7f | 0xc3 | 0xd6 | 0xe7 => match operands.rm {
                Rm::Memory(..) => self.writes_rm(operands),
                _ => NOTHING,
            },
            _ => NOTHING,
        })
    }

    /// VEX and EVEX: `map` 1 is 0F, 2 is 0F 38, 3 is 0F 3A; `third` is the register in the prefix.
    pub(super) fn vector(&mut self, map: u8, third: Register) -> Option<Effect> {
        let opcode = self.byte()?;
        if map == 1 && opcode == 0x77 {
            return Some(NOTHING);
        }
        let operands = self.operands()?;
        if map == 3 || map == 1 && matches!(opcode, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6) {
            self.signed(1)?;
        }
        Some(match (map, opcode) {
            (1, 0x2c | 0x2d | 0x50 | 0xd7 | 0xc5 | 0x93) | (2, 0xf2 | 0xf5 | 0xf7) | (3, 0xf0) => {
                Effect::Overwrite(Some(operands.reg), None)
            }
            (2, 0xf3) => Effect::Overwrite(Some(third), None),
            (2, 0xf6) => Effect::Overwrite(Some(operands.reg), Some(third)),
            (1, 0x11 | 0x13 | 0x17 | 0x29 | 0x2b | 0x7e | 0x7f | 0xd6 | 0xe7)
            | (3, 0x14..=0x17) => match operands.rm {
                Rm::Register(register) if matches!((map, opcode), (1, 0x7e) | (3, _)) => {
                    Effect::Overwrite(Some(register), None)
                }
                Rm::Register(_) => NOTHING,
                _ => self.writes_rm(operands),
            },
            (1..=3 | 5 | 6, _) => NOTHING,
            _ => return None,
        })
    }
}
