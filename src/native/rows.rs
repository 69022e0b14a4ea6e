//! Unwind rows in a compact form: how to get from a frame at one address to its caller.

use super::expression::{Inputs, RuleError, evaluate};
use super::modules::{Module, UnwindTables};
use super::symbols::SymbolTable;
use crate::arch::{Architecture, CfaSource, Machine, SignalFrame};
use crate::model::registers::Registers;
use gimli::{
    CfaRule, EhFrame, EndianSlice, LittleEndian, RegisterRule, UnwindContext, UnwindExpression,
    UnwindSection,
};
use std::ops::Range;
use std::sync::Arc;

/// Maximum length of an expression; real ones are below 16 bytes.
const MAX_EXPRESSION: usize = 1024;
/// Maximum number of callee-saved registers that a [`SimpleRow`] restores.
const MAX_SAVED: usize = 6;
/// Bytes below the CFA with the saved registers of a [`SimpleRow`], read at once.
const SAVE_AREA: usize = 64;

/// The unwind information of one address.
#[derive(Clone, Debug)]
pub(super) enum Row {
    NoInfo,
    /// There is no caller.
    Root,
    /// The common case: see [`SimpleRow`].
    Simple(SimpleRow),
    Full(Arc<FullRow>),
}

/// CFA is a register plus an offset, the return address is right below it, and callee-saved
/// registers at most 64 bytes below.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimpleRow {
    cfa_offset: i32,
    cfa_register: u8,
    saved_count: u8,
    /// Bytes below the CFA that hold all that was saved.
    depth: u8,
    /// Register and its distance below the CFA.
    saved: [(u8, u8); MAX_SAVED],
}

#[derive(Clone, Debug)]
pub(super) struct FullRow {
    cfa: Cfa,
    return_address: Rule,
    rules: Vec<(u16, Rule)>,
    signal: bool,
    by_code: bool,
}

#[derive(Clone, Debug)]
enum Cfa {
    Offset {
        register: u16,
        offset: i64,
    },
    /// The word at stack pointer plus `slot`, plus `offset`.
    Slot {
        slot: i64,
        offset: i64,
    },
    Expression(Box<[u8]>),
}

#[derive(Clone, Debug)]
enum Rule {
    Undefined,
    Same,
    Saved(i64),
    Value(i64),
    Register(u16),
    SavedAt(Box<[u8]>),
    ValueOf(Box<[u8]>),
    Constant(u64),
}

/// A caller, found with a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    /// Its registers; unknown ones are marked.
    pub(super) registers: Registers,
    /// The address at which it continues.
    pub(super) address: u64,
    pub(super) stack_pointer: u64,
}

impl Row {
    /// Whether the kernel made the frame to deliver a signal: its caller was interrupted, and made
    /// no call.
    pub(super) fn is_signal(&self) -> bool {
        matches!(self, Row::Full(row) if row.signal)
    }

    /// Whether this was derived from the function's code instead of unwind tables.
    pub(super) fn is_by_code(&self) -> bool {
        matches!(self, Row::Full(row) if row.by_code)
    }

    /// The register that the CFA is relative to, if it is a single one.
    pub(super) fn cfa_register(&self) -> Option<usize> {
        match self {
            Row::Simple(row) => Some(usize::from(row.cfa_register)),
            Row::Full(row) => match &row.cfa {
                Cfa::Offset { register, .. } => Some(usize::from(*register)),
                Cfa::Slot { .. } => Some(Registers::STACK_POINTER),
                Cfa::Expression(bytes) => match bytes.first() {
                    // DW_OP_breg0 to breg31.
                    Some(operation @ 0x70..=0x8f) => Some(usize::from(operation - 0x70)),
                    _ => None,
                },
            },
            Row::NoInfo | Row::Root => None,
        }
    }

    /// Whether this row restores `register` from memory.
    pub(super) fn restores(&self, wanted: usize) -> bool {
        match self {
            Row::Simple(row) => row
                .saved()
                .iter()
                .any(|&(register, _)| usize::from(register) == wanted),
            Row::Full(row) => row.rules.iter().any(|&(register, ref rule)| {
                usize::from(register) == wanted && !matches!(rule, Rule::Same | Rule::Undefined)
            }),
            Row::NoInfo | Row::Root => false,
        }
    }
}

/// Reads the row of virtual address `address`.
pub(super) fn read_row(
    tables: &UnwindTables,
    address: u64,
    context: &mut UnwindContext<usize>,
) -> Row {
    try_read_row(tables, address, context).unwrap_or(Row::NoInfo)
}

/// The function that contains virtual address `address`.
pub(super) fn read_function(tables: &UnwindTables, address: u64) -> Option<Range<u64>> {
    let entry = tables.entry(tables.find_entry(address)?)?;
    let (section, bases, offset) = entry.gimli();
    let entry = section
        .fde_from_offset(bases, offset, EhFrame::cie_from_offset)
        .ok()?;
    entry
        .contains(address)
        .then(|| entry.initial_address()..entry.end_address())
}

fn try_read_row(
    tables: &UnwindTables,
    address: u64,
    context: &mut UnwindContext<usize>,
) -> Option<Row> {
    let entry = tables.entry(tables.find_entry(address)?)?;
    let (section, bases, offset) = entry.gimli();
    let entry = section
        .fde_from_offset(bases, offset, EhFrame::cie_from_offset)
        .ok()?;
    if !entry.contains(address) {
        return None;
    }
    let return_column = entry.cie().return_address_register();
    if return_column.0 != Machine::RETURN_ADDRESS {
        return None;
    }
    let signal = entry.is_signal_trampoline();
    let row = entry
        .unwind_info_for_address(&section, bases, context, address)
        .ok()?;
    let copy = |expression: UnwindExpression<usize>| -> Option<Box<[u8]>> {
        let expression = expression
            .get::<EndianSlice<'_, LittleEndian>, _>(&section)
            .ok()?;
        let bytes = expression.0.slice();
        (bytes.len() <= MAX_EXPRESSION).then(|| bytes.into())
    };
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => Cfa::Offset {
            register: register.0,
            offset: *offset,
        },
        CfaRule::Expression(expression) => Cfa::Expression(copy(*expression)?),
    };
    let mut return_address = None;
    let mut rules = Vec::new();
    for (register, rule) in row.registers() {
        let rule = match rule {
            RegisterRule::Undefined => Rule::Undefined,
            RegisterRule::SameValue => Rule::Same,
            RegisterRule::Offset(offset) => Rule::Saved(*offset),
            RegisterRule::ValOffset(offset) => Rule::Value(*offset),
            RegisterRule::Register(other) => Rule::Register(other.0),
            RegisterRule::Expression(expression) => Rule::SavedAt(copy(*expression)?),
            RegisterRule::ValExpression(expression) => Rule::ValueOf(copy(*expression)?),
            RegisterRule::Constant(value) => Rule::Constant(*value),
            RegisterRule::Architectural => return None,
        };
        if *register == return_column {
            return_address = Some(rule);
        } else if usize::from(register.0) < Registers::COUNT {
            rules.push((register.0, rule));
        }
    }
    let full = FullRow {
        cfa,
        // On architectures whose calls push it, compilers always write a rule.
        return_address: return_address.or(Machine::LINKS.then_some(Rule::Same))?,
        rules,
        signal,
        by_code: false,
    };
    Some(match full.return_address {
        Rule::Undefined => Row::Root,
        _ => match SimpleRow::of(&full) {
            Some(simple) => Row::Simple(simple),
            None => Row::Full(Arc::new(full)),
        },
    })
}

/// The row of virtual address `address` if code lies there, or behind it, that returns from signal
/// handlers and has no unwind tables.
pub(super) fn read_row_of_signal(module: &Module, address: u64) -> Option<Row> {
    let SignalFrame { code, registers } = Machine::SIGNAL_FRAME?;
    let start = address.checked_next_multiple_of(code.len() as u64 / 2)?;
    let end = start.checked_add(code.len() as u64)?;
    if module
        .image()?
        .piece(start..end)?
        .read(0, code.len() as u64)?
        != code
    {
        return None;
    }
    let place =
        |register: usize| registers + register as i64 * Machine::POINTER_BYTES.cast_signed();
    let saved = |register: usize| (register as u16, Rule::Saved(place(register)));
    let others = (0..Registers::COUNT).filter(|&each| each != Registers::INSTRUCTION_POINTER);
    Some(Row::Full(Arc::new(FullRow {
        cfa: Cfa::Offset {
            register: Registers::STACK_POINTER as u16,
            offset: 0,
        },
        return_address: Rule::Saved(place(Registers::INSTRUCTION_POINTER)),
        rules: others.map(saved).collect(),
        signal: true,
        by_code: false,
    })))
}

/// The row of virtual address `address` from the code of its function, if the function's start is
/// known from its symbol.
pub(super) fn read_row_by_code(module: &Module, symbols: &SymbolTable, address: u64) -> Row {
    try_read_row_by_code(module, symbols, address).unwrap_or(Row::NoInfo)
}

fn try_read_row_by_code(module: &Module, symbols: &SymbolTable, address: u64) -> Option<Row> {
    let start = symbols.lookup(address)?.start;
    let code = module.image()?.piece(start..address)?;
    let frame = Machine::frame_by_code(&code.read(0, Machine::MAX_CODE as u64)?)?;
    let is_return = |register: u16| Machine::LINKS && register == Machine::RETURN_ADDRESS;
    let linked = frame
        .saved
        .iter()
        .find(|(register, _)| is_return(*register));
    let return_address = match linked {
        Some(&(_, offset)) => Rule::Saved(offset),
        None if frame.lost.iter().any(|&register| is_return(register)) => return None,
        None if Machine::LINKS => Rule::Same,
        None => Rule::Saved(-Machine::POINTER_BYTES.cast_signed()),
    };
    let saved = frame
        .saved
        .into_iter()
        .map(|(register, offset)| (register, Rule::Saved(offset)));
    let lost = frame
        .lost
        .into_iter()
        .map(|register| (register, Rule::Undefined));
    Some(Row::Full(Arc::new(FullRow {
        cfa: match frame.cfa {
            CfaSource::Register(register, offset) => Cfa::Offset { register, offset },
            CfaSource::Slot { slot, offset } => Cfa::Slot { slot, offset },
        },
        return_address,
        rules: saved.chain(lost).collect(),
        signal: false,
        by_code: true,
    })))
}

impl SimpleRow {
    fn of(full: &FullRow) -> Option<Self> {
        let Cfa::Offset { register, offset } = full.cfa else {
            return None;
        };
        let word = Machine::POINTER_BYTES.cast_signed();
        if full.signal || !matches!(full.return_address, Rule::Saved(offset) if offset == -word) {
            return None;
        }
        let mut row = Self {
            cfa_offset: i32::try_from(offset).ok()?,
            cfa_register: u8::try_from(register).ok()?,
            saved_count: 0,
            depth: u8::try_from(word).ok()?,
            saved: [(0, 0); MAX_SAVED],
        };
        for (register, rule) in &full.rules {
            let distance = match rule {
                Rule::Saved(offset) => u8::try_from(offset.checked_neg()?).ok()?,
                Rule::Same => continue,
                _ => return None,
            };
            if usize::from(distance) > SAVE_AREA
                || i64::from(distance) < word
                || usize::from(*register) == Registers::STACK_POINTER
            {
                return None;
            }
            *row.saved.get_mut(usize::from(row.saved_count))? =
                (u8::try_from(*register).ok()?, distance);
            row.saved_count += 1;
            row.depth = row.depth.max(distance);
        }
        Some(row)
    }

    fn saved(&self) -> &[(u8, u8)] {
        self.saved
            .get(..usize::from(self.saved_count))
            .unwrap_or(&[])
    }

    /// The caller of a frame with `inputs`.
    pub(super) fn apply(&self, inputs: Inputs<'_>) -> Result<Caller, RuleError> {
        let base = inputs.register(usize::from(self.cfa_register))?;
        let cfa = base.wrapping_add_signed(i64::from(self.cfa_offset));
        let mut registers = *inputs.registers;
        // A register that an epilogue popped is restored already, and its slot is below the stack
        // pointer, where memory may change.
        let stack_pointer = inputs.register(Registers::STACK_POINTER)?;
        let depth = usize::try_from(cfa.saturating_sub(stack_pointer)).unwrap_or(usize::MAX);
        let depth = depth.clamp(Machine::POINTER_BYTES as usize, usize::from(self.depth));
        let mut area = [0; SAVE_AREA];
        let area = &mut area[..depth.min(SAVE_AREA)];
        let saved = self
            .saved()
            .iter()
            .filter(|&&(_, distance)| usize::from(distance) <= depth);
        let address = if inputs
            .memory
            .read_exact(cfa.wrapping_sub(depth as u64), area)
            .is_ok()
        {
            for &(register, distance) in saved {
                registers.set(
                    usize::from(register),
                    word_at(area, depth - usize::from(distance)),
                );
            }
            word_at(area, depth - Machine::POINTER_BYTES as usize)
        } else {
            let address = inputs.word(cfa.wrapping_sub(Machine::POINTER_BYTES))?;
            for &(register, distance) in saved {
                let value = inputs.word(cfa.wrapping_sub(u64::from(distance)));
                restore(&mut registers, usize::from(register), value);
            }
            address
        };
        Ok(returned_to(registers, address, cfa))
    }
}

impl FullRow {
    /// The caller of a frame with `inputs`.
    pub(super) fn apply(&self, inputs: Inputs<'_>) -> Result<Caller, RuleError> {
        let cfa = match &self.cfa {
            Cfa::Offset { register, offset } => inputs
                .register(usize::from(*register))?
                .wrapping_add_signed(*offset),
            Cfa::Slot { slot, offset } => {
                let stack_pointer = inputs.register(Registers::STACK_POINTER)?;
                inputs
                    .word(stack_pointer.wrapping_add_signed(*slot))?
                    .wrapping_add_signed(*offset)
            }
            Cfa::Expression(expression) => evaluate(expression, None, inputs)?,
        };
        let mut registers = *inputs.registers;
        let mut stack_pointer = cfa;
        let floor = inputs.register(Registers::STACK_POINTER)?;
        for (register, rule) in &self.rules {
            let register = usize::from(*register);
            if !self.signal
                && let Rule::Saved(offset) = rule
                && cfa > floor
                && cfa.wrapping_add_signed(*offset) < floor
            {
                // Popped already, as in `SimpleRow::apply`.
                continue;
            }
            let value = rule.value(register, cfa, inputs);
            if register == Registers::STACK_POINTER {
                stack_pointer = value?;
            } else {
                restore(&mut registers, register, value);
            }
        }
        let link = usize::from(Machine::RETURN_ADDRESS);
        let address = self.return_address.value(link, cfa, inputs)?;
        let mut caller = returned_to(registers, address, stack_pointer);
        if Machine::LINKS
            && self.signal
            && self.rules.iter().any(|rule| usize::from(rule.0) == link)
        {
            // Code that was interrupted may still return by it.
            let value = registers.get(link).map(Machine::return_address);
            restore(
                &mut caller.registers,
                link,
                value.ok_or(RuleError::RegisterUnknown(link)),
            );
        }
        Ok(caller)
    }
}

impl Rule {
    fn value(&self, register: usize, cfa: u64, inputs: Inputs<'_>) -> Result<u64, RuleError> {
        match self {
            Rule::Undefined => Err(RuleError::RegisterUnknown(register)),
            Rule::Same => inputs.register(register),
            Rule::Saved(offset) => inputs.word(cfa.wrapping_add_signed(*offset)),
            Rule::Value(offset) => Ok(cfa.wrapping_add_signed(*offset)),
            Rule::Register(other) => inputs.register(usize::from(*other)),
            Rule::SavedAt(expression) => inputs.word(evaluate(expression, Some(cfa), inputs)?),
            Rule::ValueOf(expression) => evaluate(expression, Some(cfa), inputs),
            Rule::Constant(value) => Ok(*value),
        }
    }
}

/// A register that cannot be restored is unknown from here on, which matters only if an outer frame
/// needs it.
fn restore(registers: &mut Registers, register: usize, value: Result<u64, RuleError>) {
    match value {
        Ok(value) => registers.set(register, value),
        Err(_) => registers.forget(register),
    }
}

/// The caller that continues at `address`, which may be signed.
pub(super) fn returned_to(mut registers: Registers, address: u64, stack_pointer: u64) -> Caller {
    let address = Machine::return_address(address);
    if Machine::LINKS {
        registers.set(usize::from(Machine::RETURN_ADDRESS), address);
    }
    registers.set(Registers::STACK_POINTER, stack_pointer);
    registers.set(Registers::INSTRUCTION_POINTER, address);
    Caller {
        registers,
        address,
        stack_pointer,
    }
}

fn word_at(area: &[u8], offset: usize) -> u64 {
    let bytes = area
        .get(offset..offset + 8)
        .and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}
