//! A thread's registers, in DWARF numbering, with what is known of them.

/// Registers by DWARF number. A thread that was read asleep has only its stack and instruction pointer.
///
/// x86-64 numbering (System V ABI, figure 3.36): 0 rax, 1 rdx, 2 rcx, 3 rbx, 4 rsi, 5 rdi, 6 rbp, 7 rsp, 8–15 r8–r15,
/// 16 return address (rip). aarch64 uses 0–30 for x0–x30, 31 for sp, 32 for pc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    values: [u64; Registers::COUNT],
    known: u64,
}

impl Registers {
    /// Room for either architecture.
    pub const COUNT: usize = 33;
    /// Frame pointer: rbp.
    #[cfg(target_arch = "x86_64")]
    pub const FRAME_POINTER: usize = 6;
    /// Stack pointer: rsp.
    #[cfg(target_arch = "x86_64")]
    pub const STACK_POINTER: usize = 7;
    /// Instruction pointer: rip, DWARF's return address column.
    #[cfg(target_arch = "x86_64")]
    pub const INSTRUCTION_POINTER: usize = 16;
    /// Frame pointer: x29.
    #[cfg(target_arch = "aarch64")]
    pub const FRAME_POINTER: usize = 29;
    /// Stack pointer.
    #[cfg(target_arch = "aarch64")]
    pub const STACK_POINTER: usize = 31;
    /// Program counter.
    #[cfg(target_arch = "aarch64")]
    pub const INSTRUCTION_POINTER: usize = 32;

    /// No register known.
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

    /// Forgets DWARF register `number`.
    pub fn forget(&mut self, number: usize) {
        if number < Self::COUNT {
            self.known &= !(1 << number);
        }
    }

    /// The stack pointer, where it is known.
    pub fn stack_pointer(&self) -> Option<u64> {
        self.get(Self::STACK_POINTER)
    }

    /// The instruction pointer, where it is known.
    pub fn instruction_pointer(&self) -> Option<u64> {
        self.get(Self::INSTRUCTION_POINTER)
    }
}
