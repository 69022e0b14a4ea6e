//! Instructions of 64-bit code: how long each is, and what it does to registers and the stack. Not what it computes.
//!
//! Intel SDM volume 2, chapter 2 (prefixes, ModRM, VEX, EVEX) and appendix A (opcode maps).

/// A general-purpose register by hardware number: 0 rax, 1 rcx, 2 rdx, 3 rbx, 4 rsp, 5 rbp, 6 rsi, 7 rdi, 8 to 15.
pub(super) type Register = u8;
pub(super) const RAX: Register = 0;
pub(super) const RDX: Register = 2;
pub(super) const RBX: Register = 3;
pub(super) const RSP: Register = 4;
pub(super) const RBP: Register = 5;

/// What an instruction does, as far as stack frames are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Pushes a register.
    Push(Register),
    /// Pushes something else.
    PushOther,
    /// Pops into a register.
    Pop(Register),
    /// Copies all of a register.
    Move { to: Register, from: Register },
    /// Stores all of a register at base + displacement.
    Store {
        base: Register,
        displacement: i32,
        from: Register,
    },
    /// Stores something else there.
    StoreOther { base: Register, displacement: i32 },
    /// Loads all of a register from there.
    Load {
        to: Register,
        base: Register,
        displacement: i32,
    },
    /// Computes base + displacement.
    Address {
        to: Register,
        base: Register,
        displacement: i32,
    },
    /// Adds a constant to a register.
    Add { to: Register, value: i32 },
    /// Calls.
    Call,
    /// `mov %rbp,%rsp; pop %rbp`.
    Leave,
    /// What follows is reached from elsewhere: a return, or a trap that does not return.
    Return,
    /// An unconditional jump.
    Jump,
    /// Leaves up to two registers with something unknown.
    Overwrite(Option<Register>, Option<Register>),
}

const NOTHING: Effect = Effect::Overwrite(None, None);

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) length: usize,
    pub(super) effect: Effect,
}

/// Decodes the instruction at the start of `code`; `None` for what is not understood or cut short.
pub(super) fn decode(code: &[u8]) -> Option<Instruction> {
    let mut decoder = Decoder {
        code,
        position: 0,
        rex: 0,
        narrow: false,
        repeat: 0,
    };
    let effect = decoder.run()?;
    (decoder.position <= code.len()).then_some(Instruction {
        length: decoder.position,
        effect,
    })
}

struct Decoder<'a> {
    code: &'a [u8],
    position: usize,
    rex: u8,
    /// Operand size prefix 66.
    narrow: bool,
    /// F2 or F3.
    repeat: u8,
}

/// A ModRM operand pair.
#[derive(Clone, Copy)]
struct Operands {
    /// The `reg` field with its extension.
    reg: Register,
    /// The `reg` field alone, where it extends the opcode.
    digit: u8,
    rm: Rm,
}

#[derive(Clone, Copy)]
enum Rm {
    Register(Register),
    /// Base and displacement, without an index.
    Memory(Register, i32),
    OtherMemory,
}

impl Operands {
    fn rm_register(&self) -> Option<Register> {
        match self.rm {
            Rm::Register(register) => Some(register),
            _ => None,
        }
    }
}

impl Decoder<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.code.get(self.position)?;
        self.position += 1;
        Some(byte)
    }

    fn peek(&self) -> Option<u8> {
        self.code.get(self.position).copied()
    }

    fn signed(&mut self, bytes: usize) -> Option<i32> {
        let end = self.position.checked_add(bytes)?;
        let slice = self.code.get(self.position..end)?;
        self.position = end;
        match bytes {
            1 => Some(i32::from(slice[0].cast_signed())),
            4 => Some(i32::from_le_bytes(slice.try_into().ok()?)),
            _ => Some(0),
        }
    }

    /// An immediate of operand size: 2 bytes with prefix 66, else 4.
    fn immediate(&mut self) -> Option<i32> {
        self.signed(if self.narrow { 2 } else { 4 })
    }

    fn is_wide(&self) -> bool {
        self.rex & 8 != 0
    }

    fn run(&mut self) -> Option<Effect> {
        loop {
            match self.peek()? {
                0x66 => self.narrow = true,
                0x67 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 | 0xf0 => {}
                prefix @ (0xf2 | 0xf3) => self.repeat = prefix,
                _ => break,
            }
            self.position += 1;
            if self.position > 14 {
                return None;
            }
        }
        if let rex @ 0x40..=0x4f = self.peek()? {
            self.rex = rex;
            self.position += 1;
        }
        match self.byte()? {
            0x0f => self.two_byte(),
            0xc5 => {
                let second = self.byte()?;
                self.rex = (!second >> 5) & 4;
                self.vector(1, (!second >> 3) & 15)
            }
            0xc4 => {
                let (second, third) = (self.byte()?, self.byte()?);
                self.rex = (!second >> 5) & 7 | (third >> 4) & 8;
                self.vector(second & 31, (!third >> 3) & 15)
            }
            0x62 => {
                let (first, second, _) = (self.byte()?, self.byte()?, self.byte()?);
                self.rex = (!first >> 5) & 7;
                self.vector(first & 7, (!second >> 3) & 15)
            }
            opcode => self.one_byte(opcode),
        }
    }

    fn operands(&mut self) -> Option<Operands> {
        let modrm = self.byte()?;
        let (mode, digit, low) = (modrm >> 6, (modrm >> 3) & 7, modrm & 7);
        let reg = digit | (self.rex & 4) << 1;
        if mode == 3 {
            let rm = Rm::Register(low | (self.rex & 1) << 3);
            return Some(Operands { reg, digit, rm });
        }
        let mut base = Some(low | (self.rex & 1) << 3);
        let mut displacement_bytes = [0, 1, 4][usize::from(mode)];
        if low == 4 {
            let sib = self.byte()?;
            let index = (sib >> 3) & 7 | (self.rex & 2) << 2;
            base = (index == 4).then_some(sib & 7 | (self.rex & 1) << 3);
            if sib & 7 == 5 && mode == 0 {
                displacement_bytes = 4;
                base = None;
            }
        } else if low == 5 && mode == 0 {
            displacement_bytes = 4;
            base = None;
        }
        let displacement = if displacement_bytes == 0 {
            0
        } else {
            self.signed(displacement_bytes)?
        };
        let rm = base.map_or(Rm::OtherMemory, |base| Rm::Memory(base, displacement));
        Some(Operands { reg, digit, rm })
    }

    /// A write of the `rm` operand with something unknown.
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

    fn one_byte(&mut self, opcode: u8) -> Option<Effect> {
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
            0x86 | 0x87 => {
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
                self.writes_rm(operands)
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
                self.writes_rm(operands)
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
                    0 | 1 => return Some(self.writes_rm(operands)),
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
            _ => self.writes_rm(operands),
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
            2 | 3 => self.writes_rm(operands),
            _ => Effect::Overwrite(Some(RAX), Some(RDX)),
        })
    }

    fn group_ff(&mut self, opcode: u8) -> Option<Effect> {
        let operands = self.operands()?;
        Some(match (opcode, operands.digit) {
            (_, 0 | 1) => self.writes_rm(operands),
            (0xff, 2) => Effect::Call,
            (0xff, 4) => Effect::Jump,
            (0xff, 6) => Effect::PushOther,
            _ => return None,
        })
    }

    fn two_byte(&mut self) -> Option<Effect> {
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
    fn vector(&mut self, map: u8, third: Register) -> Option<Effect> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_are_understood() {
        let cases: &[(&str, &[u8], Effect)] = &[
            ("push %rbp", &[0x55], Effect::Push(RBP)),
            ("push %r12", &[0x41, 0x54], Effect::Push(12)),
            (
                "mov %rsp,%rbp",
                &[0x48, 0x89, 0xe5],
                Effect::Move { to: RBP, from: RSP },
            ),
            (
                "sub $0x40,%rsp",
                &[0x48, 0x83, 0xec, 0x40],
                Effect::Add {
                    to: RSP,
                    value: -0x40,
                },
            ),
            (
                "add $0x100,%rsp",
                &[0x48, 0x81, 0xc4, 0, 1, 0, 0],
                Effect::Add {
                    to: RSP,
                    value: 0x100,
                },
            ),
            (
                "mov %rbx,(%rsp)",
                &[0x48, 0x89, 0x1c, 0x24],
                Effect::Store {
                    base: RSP,
                    displacement: 0,
                    from: RBX,
                },
            ),
            (
                "mov %rbp,0x78(%rsp)",
                &[0x48, 0x89, 0x6c, 0x24, 0x78],
                Effect::Store {
                    base: RSP,
                    displacement: 0x78,
                    from: RBP,
                },
            ),
            (
                "and $-64,%rsp",
                &[0x48, 0x83, 0xe4, 0xc0],
                Effect::Overwrite(Some(RSP), None),
            ),
            (
                "lea -0x28(%rbp),%rsp",
                &[0x48, 0x8d, 0x65, 0xd8],
                Effect::Address {
                    to: RSP,
                    base: RBP,
                    displacement: -0x28,
                },
            ),
            (
                "lea 8(%rsp),%r10",
                &[0x4c, 0x8d, 0x54, 0x24, 8],
                Effect::Address {
                    to: 10,
                    base: RSP,
                    displacement: 8,
                },
            ),
            ("repz ret", &[0xf3, 0xc3], Effect::Return),
            ("endbr64", &[0xf3, 0x0f, 0x1e, 0xfa], NOTHING),
        ];
        for (source, code, effect) in cases {
            assert_eq!(
                decode(code),
                Some(Instruction {
                    length: code.len(),
                    effect: *effect
                }),
                "{source}"
            );
        }
    }

    /// Instruction boundaries as binutils sees them, in the C library's code (or `TORCHSPY_TEST_CODE=FILE:START:STOP`).
    #[test]
    fn lengths_agree_with_objdump() {
        let wanted = std::env::var("TORCHSPY_TEST_CODE").unwrap_or_else(|_| {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let libc = maps.lines().find_map(|line| {
                line.split_whitespace()
                    .nth(5)
                    .filter(|path| path.contains("/libc.so"))
            });
            format!("{}::", libc.expect("the C library is mapped"))
        });
        let fields: Vec<&str> = wanted.split(':').collect();
        let mut command = std::process::Command::new("objdump");
        command.args(["-d", "-w", "-z", fields[0]]);
        if !fields[1].is_empty() {
            command
                .arg(format!("--start-address={}", fields[1]))
                .arg(format!("--stop-address={}", fields[2]));
        }
        let output = match command.output() {
            Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
            Err(error) => return println!("skipped: objdump cannot be run: {error}"),
        };
        let (mut count, mut unknown) = (0, std::collections::BTreeMap::<String, usize>::new());
        for line in output.lines() {
            let mut columns = line.split('\t').skip(1);
            let (Some(bytes), Some(text)) = (columns.next(), columns.next()) else {
                continue;
            };
            // objdump shows stray prefixes and REX bytes, and what it does not know, as lines of their own.
            let opcode = text.split_whitespace().next().unwrap_or("");
            if text.contains("(bad)")
                || opcode.starts_with("rex")
                || [
                    ".byte", "data16", "ds", "cs", "es", "ss", "repz", "lock", "addr32", "fwait",
                ]
                .contains(&opcode)
            {
                continue;
            }
            let code: Vec<u8> = bytes
                .split_whitespace()
                .map(|byte| u8::from_str_radix(byte, 16).unwrap())
                .collect();
            count += 1;
            match decode(&code) {
                Some(instruction) => assert_eq!(instruction.length, code.len(), "{line}"),
                None => *unknown.entry(opcode.to_owned()).or_default() += 1,
            }
        }
        println!("{count} instructions, not understood: {unknown:?}");
        assert!(count > 10_000, "{count}");
        assert!(unknown.values().sum::<usize>() * 500 < count, "{unknown:?}");
    }

    proptest! {
        #[test]
        fn random_code_never_panics(code in proptest::collection::vec(any::<u8>(), 0..20)) {
            if let Some(instruction) = decode(&code) {
                prop_assert!(instruction.length <= code.len() && instruction.length > 0);
            }
        }
    }
}
