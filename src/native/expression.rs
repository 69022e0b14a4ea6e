//! DWARF expressions of unwind tables, evaluated by gimli: bounded in space and time, over
//! registers and memory.
//!
//! DWARF 5, sections 2.5 and 6.4.2. Types, pieces and references to debug information do not occur
//! there, and are refused.

use crate::memory::Memory;
use crate::model::registers::Registers;
use gimli::{EndianSlice, Evaluation, EvaluationResult, LittleEndian, Value};

/// x86-64's PLT rules take 7 operations, glibc's signal frame 2.
const MAX_OPERATIONS: u32 = 256;
const MAX_STACK: usize = 64;

const ENCODING: gimli::Encoding = gimli::Encoding {
    address_size: 8,
    format: gimli::Format::Dwarf32,
    version: 4,
};

/// Why a rule has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleError {
    /// It needs an unknown register.
    RegisterUnknown(usize),
    /// It needs memory that cannot be read.
    Unreadable,
    /// It is malformed, or uses operations that unwind rules do not.
    Unsupported,
}

/// The inputs of a rule: the registers of the frame whose caller is searched for.
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
        self.read(address, 8)
    }

    fn read(&self, address: u64, bytes: u8) -> Result<u64, RuleError> {
        let value = match bytes {
            8 => self.memory.read_u64(address),
            4 => self.memory.read_u32(address).map(u64::from),
            _ => return Err(RuleError::Unsupported),
        };
        value.map_err(|_| RuleError::Unreadable)
    }
}

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Storage of the machine's values: on our stack, at most [`MAX_STACK`]. The other two kinds are
/// refused.
struct Bounded;

impl<'a> gimli::EvaluationStorage<Bytes<'a>> for Bounded {
    type Stack = [Value; MAX_STACK];
    type ExpressionStack = [(Bytes<'a>, Bytes<'a>); 1];
    type Result = [gimli::Piece<Bytes<'a>>; 1];
}

/// Evaluates `expression`, with `initial` on the stack if there is one (the CFA, for the rule of a
/// register).
pub(super) fn evaluate(
    expression: &[u8],
    initial: Option<u64>,
    inputs: Inputs<'_>,
) -> Result<u64, RuleError> {
    let bytes = EndianSlice::new(expression, LittleEndian);
    let mut machine: Evaluation<_, Bounded> = Evaluation::new_in(bytes, ENCODING);
    machine.set_max_iterations(MAX_OPERATIONS);
    if let Some(value) = initial {
        machine.set_initial_value(value);
    }
    let mut step = machine.evaluate();
    loop {
        step = match step.map_err(|_| RuleError::Unsupported)? {
            EvaluationResult::Complete => {
                let value = machine.value_result().ok_or(RuleError::Unsupported)?;
                return value.to_u64(u64::MAX).map_err(|_| RuleError::Unsupported);
            }
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = inputs.register(usize::from(register.0))?;
                machine.resume_with_register(Value::Generic(value))
            }
            EvaluationResult::RequiresMemory {
                address,
                size,
                space: None,
                ..
            } => machine.resume_with_memory(Value::Generic(inputs.read(address, size)?)),
            EvaluationResult::RequiresRelocatedAddress(address) => {
                machine.resume_with_relocated_address(address.wrapping_add(inputs.bias))
            }
            _ => return Err(RuleError::Unsupported),
        };
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
        // binutils, elf_x86_64_lazy_plt eh_frame: breg7 8; breg16 0; lit15; and; lit11; ge; lit3;
        // shl; plus. Here with bregx, for any numbers of the two registers.
        let stack_pointer = Registers::STACK_POINTER as u8;
        let instruction = Registers::INSTRUCTION_POINTER as u8;
        let mut rule = vec![0x92, stack_pointer, 8, 0x92, instruction, 0];
        rule.extend([0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22]);
        assert_eq!(run(&rule, None), Ok(0x7010));
    }

    #[test]
    fn what_cannot_be_computed_says_why() {
        assert_eq!(run(&[0x73, 0], None), Err(RuleError::RegisterUnknown(3)));
        let stack_pointer = Registers::STACK_POINTER as u8;
        let word = [0x92, stack_pointer, 0, 0x06];
        assert_eq!(run(&word, None), Err(RuleError::Unreadable));
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
