//! Instructions of 64-bit code: how long each is, and what it does to registers and the stack. Not
//! what it computes.
//!
//! Intel SDM volume 2, chapter 2 (prefixes, ModRM, VEX, EVEX) and appendix A (opcode maps).
//!
//! Not the crate `iced-x86` 1.22: with its `decoder` and `instr_info`, a frame by code took 6.7 to
//! 9.5 instead of 2.8 to 3.3 ns per byte of MKL's AVX-512 kernels (10 MB; 9.2 instead of 7.2 of the
//! C library), and 271 KB more. Frames at the ends of functions are equal for all 1,889 of the C
//! library and 792 of 794 kernels.

/// A general-purpose register by hardware number: 0 rax, 1 rcx, 2 rdx, 3 rbx, 4 rsp, 5 rbp, 6 rsi,
/// 7 rdi, 8 to 15.
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

/// What most instructions do.
pub(super) const NOTHING: Effect = Effect::Overwrite(None, None);

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

/// Reads one instruction: prefixes, opcode, operands.
pub(super) struct Decoder<'a> {
    code: &'a [u8],
    position: usize,
    pub(super) rex: u8,
    /// Operand size prefix 66.
    narrow: bool,
    /// F2 or F3.
    pub(super) repeat: u8,
}

/// A ModRM operand pair.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    /// The `reg` field with its extension.
    pub(super) reg: Register,
    /// The `reg` field alone, where it extends the opcode.
    pub(super) digit: u8,
    pub(super) rm: Rm,
}

/// The operand that may be in memory.
#[derive(Clone, Copy)]
pub(super) enum Rm {
    Register(Register),
    /// Base and displacement, without an index.
    Memory(Register, i32),
    OtherMemory,
}

impl Operands {
    pub(super) fn rm_register(&self) -> Option<Register> {
        match self.rm {
            Rm::Register(register) => Some(register),
            _ => None,
        }
    }
}

impl Decoder<'_> {
    pub(super) fn byte(&mut self) -> Option<u8> {
        let byte = *self.code.get(self.position)?;
        self.position += 1;
        Some(byte)
    }

    fn peek(&self) -> Option<u8> {
        self.code.get(self.position).copied()
    }

    pub(super) fn signed(&mut self, bytes: usize) -> Option<i32> {
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
    pub(super) fn immediate(&mut self) -> Option<i32> {
        self.signed(if self.narrow { 2 } else { 4 })
    }

    pub(super) fn is_wide(&self) -> bool {
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

    pub(super) fn operands(&mut self) -> Option<Operands> {
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
            ("and $0x7f,%ch", &[0x80, 0xe5, 0x7f], NOTHING),
            ("or %al,%ah", &[0x08, 0xc4], NOTHING),
            (
                "xchg %ah,%al",
                &[0x86, 0xe0],
                Effect::Overwrite(None, Some(RAX)),
            ),
            (
                "and $0x7f,%bpl",
                &[0x40, 0x80, 0xe5, 0x7f],
                Effect::Overwrite(Some(RBP), None),
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

    /// Instruction boundaries as binutils sees them, in the C library's code (or
    /// `TORCHSPY_TEST_CODE=FILE:START:STOP`).
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
            // objdump shows stray prefixes and REX bytes, and what it does not know, as lines of
            // their own.
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
