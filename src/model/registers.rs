//! A thread's registers, in DWARF numbering, and which of them are known.

use crate::arch::{Architecture, Machine};

/// Registers by DWARF number. A thread that was read asleep has only its stack and instruction
/// pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    values: [u64; Registers::COUNT],
    known: u64,
}

impl Registers {
    /// Numbers below this are kept.
    pub const COUNT: usize = Machine::REGISTERS;
    pub const FRAME_POINTER: usize = Machine::FRAME_POINTER;
    pub const STACK_POINTER: usize = Machine::STACK_POINTER;
    pub const INSTRUCTION_POINTER: usize = Machine::INSTRUCTION_POINTER;

    pub fn unknown() -> Self {
        Self {
            values: [0; Self::COUNT],
            known: 0,
        }
    }

    /// Only the two pointers that `/proc/PID/task/TID/syscall` gives of a sleeping thread.
    pub fn of_sleeper(stack_pointer: u64, instruction_pointer: u64) -> Self {
        let mut registers = Self::unknown();
        registers.set(Self::STACK_POINTER, stack_pointer);
        registers.set(Self::INSTRUCTION_POINTER, instruction_pointer);
        registers
    }

    /// The value of DWARF register `number`, where it is known.
    pub fn get(&self, number: usize) -> Option<u64> {
        (number < Self::COUNT && self.known & (1 << number) != 0).then(|| self.values[number])
    }

    /// Sets DWARF register `number`; numbers that are not kept are ignored.
    pub fn set(&mut self, number: usize, value: u64) {
        if number < Self::COUNT {
            self.values[number] = value;
            self.known |= 1 << number;
        }
    }

    pub fn forget(&mut self, number: usize) {
        if number < Self::COUNT {
            self.known &= !(1 << number);
        }
    }

    pub fn stack_pointer(&self) -> Option<u64> {
        self.get(Self::STACK_POINTER)
    }

    pub fn instruction_pointer(&self) -> Option<u64> {
        self.get(Self::INSTRUCTION_POINTER)
    }
}
