//! DWARF expressions as they stand in unwind tables: a small stack machine over registers and memory.
//!
//! DWARF 5, sections 2.5 and 6.4.2. Types, pieces and references to debug information do not occur there.

use crate::memory::Memory;
use crate::model::registers::Registers;
use gimli::{EndianSlice, LittleEndian, Operation};

/// x86-64's PLT rules take 7 operations, glibc's signal frame 2.
const MAX_OPERATIONS: usize = 256;
const MAX_STACK: usize = 64;

const ENCODING: gimli::Encoding = gimli::Encoding {
    address_size: 8,
    format: gimli::Format::Dwarf32,
    version: 4,
};

/// Why a rule gave no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleError {
    /// It needs a register that is not known.
    RegisterUnknown(usize),
    /// It needs memory that cannot be read.
    Unreadable,
    /// It is malformed, or does what unwind rules do not.
    Unsupported,
}

/// What a rule is computed from: the registers of the frame whose caller is sought.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub(super) registers: &'a Registers,
    pub(super) memory: &'a dyn Memory,
    /// The module's bias: addresses in expressions are the file's.
    pub(super) bias: u64,
}

impl Inputs<'_> {
    pub(super) fn register(&self, number: usize) -> Result<u64, RuleError> {
        self.registers
            .get(number)
            .ok_or(RuleError::RegisterUnknown(number))
    }

    pub(super) fn word(&self, address: u64) -> Result<u64, RuleError> {
        self.memory
            .read_u64(address)
            .map_err(|_| RuleError::Unreadable)
    }
}

/// Evaluates `expression`, with `initial` on the stack where there is one (the CFA, for the rule of a register).
pub(super) fn evaluate(
    expression: &[u8],
    initial: Option<u64>,
    inputs: Inputs<'_>,
) -> Result<u64, RuleError> {
    let mut machine = Machine {
        stack: [0; MAX_STACK],
        depth: 0,
        inputs,
    };
    if let Some(value) = initial {
        machine.push(value)?;
    }
    let mut position = 0;
    for _ in 0..MAX_OPERATIONS {
        let Some(rest) = expression.get(position..).filter(|rest| !rest.is_empty()) else {
            return machine.pop();
        };
        let mut reader = EndianSlice::new(rest, LittleEndian);
        let operation =
            Operation::parse(&mut reader, ENCODING).map_err(|_| RuleError::Unsupported)?;
        position = expression.len() - reader.len();
        if let Some(jump) = machine.execute(operation)? {
            position = position
                .checked_add_signed(isize::from(jump))
                .ok_or(RuleError::Unsupported)?;
        }
    }
    Err(RuleError::Unsupported)
}

struct Machine<'a> {
    stack: [u64; MAX_STACK],
    depth: usize,
    inputs: Inputs<'a>,
}

type Op<'a> = Operation<EndianSlice<'a, LittleEndian>>;

impl Machine<'_> {
    fn push(&mut self, value: u64) -> Result<(), RuleError> {
        *self
            .stack
            .get_mut(self.depth)
            .ok_or(RuleError::Unsupported)? = value;
        self.depth += 1;
        Ok(())
    }

    fn pop(&mut self) -> Result<u64, RuleError> {
        self.depth = self.depth.checked_sub(1).ok_or(RuleError::Unsupported)?;
        Ok(self.stack[self.depth])
    }

    fn pick(&self, index: usize) -> Result<u64, RuleError> {
        let at = self
            .depth
            .checked_sub(index.saturating_add(1))
            .ok_or(RuleError::Unsupported)?;
        Ok(self.stack[at])
    }

    /// Carries out one operation; a jump's distance, if it is taken.
    fn execute(&mut self, operation: Op<'_>) -> Result<Option<i16>, RuleError> {
        match operation {
            Operation::Nop => {}
            Operation::Drop => {
                self.pop()?;
            }
            Operation::Pick { index } => self.push(self.pick(usize::from(index))?)?,
            Operation::Swap => {
                let (top, second) = (self.pop()?, self.pop()?);
                self.push(top)?;
                self.push(second)?;
            }
            Operation::Rot => {
                let (top, second, third) = (self.pop()?, self.pop()?, self.pop()?);
                self.push(top)?;
                self.push(third)?;
                self.push(second)?;
            }
            Operation::UnsignedConstant { value } => self.push(value)?,
            Operation::SignedConstant { value } => self.push(value.cast_unsigned())?,
            Operation::Address { address } => self.push(address.wrapping_add(self.inputs.bias))?,
            Operation::RegisterOffset {
                register, offset, ..
            } => {
                let value = self.inputs.register(usize::from(register.0))?;
                self.push(value.wrapping_add_signed(offset))?;
            }
            Operation::Deref {
                size, space: false, ..
            } => {
                let address = self.pop()?;
                let value = match size {
                    8 => self.inputs.word(address)?,
                    4 => u64::from(
                        self.inputs
                            .memory
                            .read_u32(address)
                            .map_err(|_| RuleError::Unreadable)?,
                    ),
                    _ => return Err(RuleError::Unsupported),
                };
                self.push(value)?;
            }
            Operation::Skip { target } => return Ok(Some(target)),
            Operation::Bra { target } => return Ok((self.pop()? != 0).then_some(target)),
            operation => self.compute(&operation)?,
        }
        Ok(None)
    }

    fn compute(&mut self, operation: &Op<'_>) -> Result<(), RuleError> {
        let top = self.pop()?;
        let unary = match operation {
            Operation::Abs => Some(top.cast_signed().unsigned_abs()),
            Operation::Neg => Some(top.wrapping_neg()),
            Operation::Not => Some(!top),
            Operation::PlusConstant { value } => Some(top.wrapping_add(*value)),
            _ => None,
        };
        if let Some(value) = unary {
            return self.push(value);
        }
        let second = self.pop()?;
        let (signed_second, signed_top) = (second.cast_signed(), top.cast_signed());
        let shift = u32::try_from(top).ok().filter(|&bits| bits < 64);
        let value = match operation {
            Operation::And => second & top,
            Operation::Or => second | top,
            Operation::Xor => second ^ top,
            Operation::Plus => second.wrapping_add(top),
            Operation::Minus => second.wrapping_sub(top),
            Operation::Mul => second.wrapping_mul(top),
            Operation::Div if top != 0 => signed_second.wrapping_div(signed_top).cast_unsigned(),
            Operation::Mod if top != 0 => second % top,
            Operation::Shl => shift.map_or(0, |bits| second << bits),
            Operation::Shr => shift.map_or(0, |bits| second >> bits),
            Operation::Shra => (signed_second >> shift.unwrap_or(63)).cast_unsigned(),
            Operation::Eq => u64::from(second == top),
            Operation::Ne => u64::from(second != top),
            Operation::Ge => u64::from(signed_second >= signed_top),
            Operation::Gt => u64::from(signed_second > signed_top),
            Operation::Le => u64::from(signed_second <= signed_top),
            Operation::Lt => u64::from(signed_second < signed_top),
            _ => return Err(RuleError::Unsupported),
        };
        self.push(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SnapshotMemory;
    use proptest::prelude::*;

    fn run(expression: &[u8], initial: Option<u64>) -> Result<u64, RuleError> {
        let mut registers = Registers::of_sleeper(0x7000, 0x100b);
        registers.set(6, 0x8000);
        let mut memory = SnapshotMemory::default();
        memory.insert(0x7ff0, 0x9000_u64.to_le_bytes().to_vec());
        evaluate(
            expression,
            initial,
            Inputs {
                registers: &registers,
                memory: &memory,
                bias: 0x10,
            },
        )
    }

    #[test]
    fn a_realigned_frame_finds_its_cfa_in_memory() {
        // GCC's DRAP: DW_OP_breg6 -16; DW_OP_deref.
        assert_eq!(run(&[0x76, 0x70, 0x06], None), Ok(0x9000));
    }

    #[test]
    fn the_rule_of_a_plt_stub_depends_on_the_instruction() {
        // binutils, elf_x86_64_lazy_plt eh_frame: breg7 8; breg16 0; lit15; and; lit11; ge; lit3; shl; plus.
        let rule = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        assert_eq!(run(&rule, None), Ok(0x7010));
    }

    #[test]
    fn what_cannot_be_computed_says_why() {
        assert_eq!(run(&[0x73, 0], None), Err(RuleError::RegisterUnknown(3)));
        assert_eq!(run(&[0x77, 0, 0x06], None), Err(RuleError::Unreadable));
        assert_eq!(run(&[0x22], None), Err(RuleError::Unsupported));
        assert_eq!(run(&[], None), Err(RuleError::Unsupported));
        // A loop without end: DW_OP_skip -3.
        assert_eq!(run(&[0x2f, 0xfd, 0xff], None), Err(RuleError::Unsupported));
        // Divided by zero: lit1; lit0; div.
        assert_eq!(run(&[0x31, 0x30, 0x1b], None), Err(RuleError::Unsupported));
    }

    #[test]
    fn the_cfa_is_on_the_stack_of_a_register_rule() {
        assert_eq!(run(&[0x38, 0x1c], Some(0x100)), Ok(0xf8));
    }

    proptest! {
        #[test]
        fn random_expressions_never_panic(expression in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = run(&expression, Some(0x7ff0));
        }
    }
}
