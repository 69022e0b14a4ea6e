//! The unwinder: from a thread's registers and the bytes of its stack to its native frames.
//!
//! It follows `.eh_frame` with all registers, so that functions that realign their stack, signal
//! frames and PLT stubs unwind like any other. Code without tables is crossed by a guess that is
//! checked and marked; see `guess.rs`.

use super::expression::{Inputs, RuleError};
use super::guess;
use super::loaded::LoadedModules;
use super::rows::{Caller, Row};
use super::sites::{Site, Sites};
use crate::arch::{Architecture, Machine};
use crate::memory::Memory;
use crate::model::address::CodeAddress;
use crate::model::frame::{Partial, Trust};
use crate::model::registers::Registers;

/// Maximum number of frames of a stack: a Python function of 3.10 takes three or four. Each must be
/// nearer to the root, so that a damaged stack ends with the copied bytes.
pub const MAX_FRAMES: usize = 32_768;
/// Maximum number of words below a guessed return address that may be saved registers.
const MAX_SAVED_WORDS: usize = 16;
/// Maximum number of signal handlers on one stack. Only their frames may move the stack pointer in
/// either direction.
const MAX_SIGNALS: usize = 8;

/// A native frame of one thread, in its process's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeFrame {
    /// The instruction pointer of the thread, or the return address.
    pub address: CodeAddress,
    /// The stack pointer in this frame; memory below it belongs to the frame that it called.
    pub stack_pointer: u64,
    /// The module's number in [`LoadedModules`]; `None` only for a leaf outside of executable
    /// memory.
    pub module: Option<u32>,
    /// How this frame was found.
    pub trust: Trust,
}

/// Where a stack ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwindEnd {
    /// At the thread's first frame.
    Root,
    /// Earlier, with the reason.
    Partial(Partial),
}

/// Walks stacks. Caches unwind rows of all processes that it is used for.
#[derive(Default)]
pub struct Unwinder {
    sites: Sites,
    lacked_register: bool,
    left_known_code: bool,
}

impl std::fmt::Debug for Unwinder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Unwinder({} rows)", self.sites.len())
    }
}

impl Unwinder {
    /// An unwinder without cached rows. Code without unwind tables is read only in modules whose
    /// symbols were loaded by others ([`Module::symbols`](super::modules::Module::symbols)); until
    /// then it is crossed by a guess.
    pub fn new() -> Self {
        Self::default()
    }

    /// An unwinder that loads symbols itself when it needs them, which may take a tenth of a
    /// second.
    pub fn that_loads_symbols() -> Self {
        let mut unwinder = Self::default();
        unwinder.sites.loads_symbols = true;
        unwinder
    }

    pub fn cached_rows(&self) -> usize {
        self.sites.len()
    }

    /// Whether the last walk needed a register that is in the kernel: with the registers of a stop
    /// it would need no guess there.
    pub fn lacked_register(&self) -> bool {
        self.lacked_register
    }

    /// Whether the last walk found an address in no executable memory: code may have been mapped
    /// since the modules were read.
    pub fn left_known_code(&self) -> bool {
        self.left_known_code
    }

    /// Distance of `address` from the start of its function, by the unwind tables; `None` where
    /// these do not have it.
    pub fn offset_in_function(&self, modules: &LoadedModules, address: u64) -> Option<u64> {
        let function = self.sites.function(modules, address)?;
        address.checked_sub(function.start)
    }

    /// Walks the stack of a thread with `registers`, leaf first, into `out`, which is cleared
    /// first.
    ///
    /// `memory` must contain the stack. A frame whose caller cannot be found is the last one; the
    /// result has the reason.
    pub fn unwind(
        &mut self,
        modules: &LoadedModules,
        registers: &Registers,
        memory: &dyn Memory,
        out: &mut Vec<NativeFrame>,
    ) -> UnwindEnd {
        out.clear();
        self.lacked_register = false;
        self.left_known_code = false;
        let (Some(address), Some(stack_pointer)) =
            (registers.instruction_pointer(), registers.stack_pointer())
        else {
            return UnwindEnd::Partial(Partial::RegisterUnknown);
        };
        let mut walk = Walk {
            sites: &mut self.sites,
            modules,
            memory,
            registers: *registers,
            doubtful: 0,
            crossed: (0, 0),
            signals: 0,
            is_foreign: false,
            lacked_register: &mut self.lacked_register,
            left_known_code: &mut self.left_known_code,
        };
        let mut site = walk.sites.site(modules, address);
        *walk.left_known_code = site.is_none();
        let mut frame = NativeFrame {
            address: CodeAddress::Ip(address),
            stack_pointer,
            module: site.as_ref().map(|site| site.module_index),
            trust: Trust::Unwound,
        };
        loop {
            out.push(frame);
            if out.len() >= MAX_FRAMES {
                return UnwindEnd::Partial(Partial::TooDeep);
            }
            match walk.step(&frame, site.as_ref()) {
                Ok(Some(found)) => {
                    frame = NativeFrame {
                        address: found.address,
                        stack_pointer: found.caller.stack_pointer,
                        module: Some(found.site.module_index),
                        trust: match walk.is_foreign {
                            true => Trust::Scanned,
                            false => found.trust,
                        },
                    };
                    site = Some(found.site);
                }
                Ok(None) => return UnwindEnd::Root,
                Err(reason) => return UnwindEnd::Partial(reason),
            }
        }
    }
}

/// A caller, and facts about the address at which it continues.
pub(super) struct Found {
    pub(super) caller: Caller,
    pub(super) address: CodeAddress,
    pub(super) site: Site,
    pub(super) trust: Trust,
}

/// One walk: the registers of the last frame found.
pub(super) struct Walk<'a> {
    sites: &'a mut Sites,
    modules: &'a LoadedModules,
    pub(super) memory: &'a dyn Memory,
    pub(super) registers: Registers,
    /// Registers, by bit, that were kept over a guess: the code without unwind tables may have
    /// changed them.
    doubtful: u64,
    /// The stack of the code that the last guess crossed: from its stack pointer to its return
    /// address.
    crossed: (u64, u64),
    signals: usize,
    /// Whether a guess crossed memory that is not this stack: all further frames are as doubtful.
    is_foreign: bool,
    lacked_register: &'a mut bool,
    left_known_code: &'a mut bool,
}

impl Walk<'_> {
    /// The caller of `frame`; `None` at the root. Sets the registers to the caller's.
    fn step(&mut self, frame: &NativeFrame, site: Option<&Site>) -> Result<Option<Found>, Partial> {
        let reason = match self.follow_with_doubt(frame, site) {
            Ok(Some(found)) => {
                self.registers = found.caller.registers;
                return Ok(Some(found));
            }
            Ok(None) => return Ok(None),
            Err(Partial::RegisterUnknown) => {
                // A sleeper's registers are in the kernel, and a stop would give them.
                *self.lacked_register = true;
                let found =
                    guess::without_register(self, frame, site).ok_or(Partial::RegisterUnknown)?;
                self.registers = found.caller.registers;
                return Ok(Some(found));
            }
            // The tables have the location of the return address, and no more of the stack was
            // copied: a guess would not help.
            Err(Partial::StackUnreadable) if self.doubtful == 0 => {
                return Err(Partial::StackUnreadable);
            }
            Err(reason) => reason,
        };
        *self.left_known_code |= reason == Partial::BadReturnAddress;
        // The tables of code that made a call lead to an address that is no return address: another
        // thread's stack, or the rest of one, as with greenlets, which share a stack by copying.
        // Wrong tables are those of assembly, which rarely calls.
        self.is_foreign |= reason == Partial::BadReturnAddress
            && self.doubtful == 0
            && matches!(frame.address, CodeAddress::Return(_))
            && site.is_some();
        // A guess uses the frame pointer first.
        *self.lacked_register |= self.registers.get(Registers::FRAME_POINTER).is_none();
        let (caller, trust) = guess::caller(self, frame).ok_or(reason)?;
        let site = self
            .sites
            .return_site(self.modules, self.memory, caller.address)
            .ok_or(reason)?;
        self.registers = caller.registers;
        self.doubtful = CARRIED;
        self.crossed = (
            frame.stack_pointer,
            caller.stack_pointer.saturating_sub(Machine::POINTER_BYTES),
        );
        if trust == Trust::FramePointer {
            self.doubtful &= !(1 << Registers::FRAME_POINTER);
        }
        Ok(Some(Found {
            caller,
            address: CodeAddress::Return(caller.address),
            site,
            trust,
        }))
    }

    /// The caller from the unwind tables. If they need a register that code without tables may have
    /// changed, its present value is tried, and then the words that this code saved next to its
    /// return address: functions save registers there first.
    fn follow_with_doubt(
        &mut self,
        frame: &NativeFrame,
        site: Option<&Site>,
    ) -> Result<Option<Found>, Partial> {
        let asked = site.and_then(|site| site.row.cfa_register());
        let Some(register) = asked.filter(|&register| self.is_doubtful(register)) else {
            return self.follow(frame, site);
        };
        let kept = (self.registers, self.doubtful);
        let first = self.follow(frame, site);
        if first.is_ok() {
            return first;
        }
        let (bottom, mut slot) = self.crossed;
        for _ in 0..MAX_SAVED_WORDS {
            slot = slot.saturating_sub(Machine::POINTER_BYTES);
            if slot < bottom {
                break;
            }
            let Ok(word) = self.memory.read_u64(slot) else {
                break;
            };
            self.registers.set(register, word);
            if let Ok(Some(found)) = self.follow(frame, site) {
                return Ok(Some(found));
            }
            (self.registers, self.doubtful) = kept;
        }
        first
    }

    /// The caller from the unwind tables, checked; `None` at the root.
    fn follow(
        &mut self,
        frame: &NativeFrame,
        site: Option<&Site>,
    ) -> Result<Option<Found>, Partial> {
        let Site { bias, row, .. } = site.ok_or(Partial::BadReturnAddress)?;
        let inputs = Inputs {
            registers: &self.registers,
            memory: self.memory,
            bias: *bias,
        };
        let found = match row {
            Row::Root => return Ok(None),
            Row::NoInfo => return Err(Partial::NoUnwindInfo),
            Row::Simple(row) => row.apply(inputs),
            Row::Full(row) => row.apply(inputs),
        };
        let caller = found.map_err(|error| match error {
            RuleError::RegisterUnknown(_) => Partial::RegisterUnknown,
            RuleError::Unreadable => Partial::StackUnreadable,
            RuleError::Unsupported => Partial::NoUnwindInfo,
        })?;
        let by_doubtful = row
            .cfa_register()
            .is_some_and(|register| self.is_doubtful(register));
        if caller.address == 0 && !by_doubtful {
            return Ok(None);
        }
        // Code that was interrupted may have no stack of its own where calls push nothing.
        let is_empty = Machine::LINKS && matches!(frame.address, CodeAddress::Ip(_));
        let least = if is_empty { 0 } else { 1 };
        if row.is_signal() {
            self.signals += 1;
            if self.signals > MAX_SIGNALS {
                return Err(Partial::NoProgress);
            }
        } else if caller.stack_pointer < frame.stack_pointer.saturating_add(least) {
            return Err(Partial::NoProgress);
        }
        let (address, site) = if row.is_signal() {
            let site = self
                .sites
                .site(self.modules, caller.address)
                .ok_or(Partial::BadReturnAddress)?;
            (CodeAddress::Ip(caller.address), site)
        } else {
            self.plausible_return(caller.address)
                .ok_or(Partial::BadReturnAddress)?
        };
        if self.doubtful != 0 {
            for register in Machine::CALLEE_SAVED {
                if row.restores(*register) {
                    self.doubtful &= !(1 << *register);
                }
            }
        }
        Ok(Some(Found {
            caller,
            address,
            site,
            trust: if by_doubtful || row.is_by_code() {
                Trust::FramePointer
            } else {
                Trust::Unwound
            },
        }))
    }

    /// The caller from the unwind tables if the unknown `register` had this value.
    pub(super) fn follow_with(
        &mut self,
        frame: &NativeFrame,
        site: &Site,
        register: usize,
        value: u64,
    ) -> Option<Found> {
        let kept = (self.registers, self.doubtful, self.signals);
        self.registers.set(register, value);
        self.doubtful |= 1 << register;
        let found = self.follow(frame, Some(site));
        (self.registers, self.doubtful, self.signals) = kept;
        found.ok().flatten()
    }

    /// How many of the frames after a guessed caller the tables find, up to `wanted`; a stack that
    /// reaches its root counts as all of them.
    pub(super) fn frames_after(&mut self, found: &Found, wanted: usize) -> usize {
        let kept = (self.registers, self.doubtful, self.signals);
        let mut frame = NativeFrame {
            address: found.address,
            stack_pointer: found.caller.stack_pointer,
            module: None,
            trust: Trust::Scanned,
        };
        let mut site = found.site.clone();
        self.registers = found.caller.registers;
        let mut count = 0;
        while count < wanted {
            match self.follow(&frame, Some(&site)) {
                Ok(Some(next)) => {
                    count += 1;
                    self.registers = next.caller.registers;
                    frame.address = next.address;
                    frame.stack_pointer = next.caller.stack_pointer;
                    site = next.site;
                }
                Ok(None) => count = wanted,
                Err(_) => break,
            }
        }
        (self.registers, self.doubtful, self.signals) = kept;
        count
    }

    /// Whether the call that returns to `address` calls the function around `callee`, or one that
    /// jumps to it, as far as its code shows: `None` if the target is in a register, in memory, or
    /// behind a PLT stub.
    pub(super) fn calls(&mut self, address: u64, callee: u64) -> Option<bool> {
        let target = self.sites.call_target(self.modules, self.memory, address)?;
        let start = self.sites.function(self.modules, callee)?.start;
        match target == start {
            true => Some(true),
            false => (self.sites).jumps_to(self.modules, self.memory, target, start),
        }
    }

    /// Return addresses of calls by which the function whose call returns to `outer` may have
    /// called the function around `callee`: first those that call it, then those through stubs.
    pub(super) fn calls_between(&mut self, outer: u64, callee: u64) -> Vec<u64> {
        let target = self.sites.call_target(self.modules, self.memory, outer);
        let function = self.sites.function(self.modules, callee);
        let (Some(target), Some(function)) = (target, function) else {
            return Vec::new();
        };
        (self.sites).calls_to(self.modules, self.memory, target, function.start)
    }

    /// The return address of a caller that was guessed.
    pub(super) fn returns_to(&mut self, found: &Found) -> Option<u64> {
        let kept = (self.registers, self.doubtful, self.signals);
        let frame = NativeFrame {
            address: found.address,
            stack_pointer: found.caller.stack_pointer,
            module: None,
            trust: Trust::Scanned,
        };
        self.registers = found.caller.registers;
        let next = self.follow(&frame, Some(&found.site));
        (self.registers, self.doubtful, self.signals) = kept;
        Some(next.ok()??.caller.address)
    }

    /// A guessed caller, with the facts about its address.
    pub(super) fn at_return(&mut self, caller: Caller) -> Option<Found> {
        let (address, site) = self.plausible_return(caller.address)?;
        Some(Found {
            caller,
            address,
            site,
            trust: Trust::Scanned,
        })
    }

    fn is_doubtful(&self, register: usize) -> bool {
        register < Registers::COUNT && self.doubtful & (1 << register) != 0
    }

    /// Whether the unwind tables lead from a guessed caller to a plausible return address.
    pub(super) fn can_follow(&mut self, guessed: &Caller) -> bool {
        let frame = NativeFrame {
            address: CodeAddress::Return(guessed.address),
            stack_pointer: guessed.stack_pointer,
            module: None,
            trust: Trust::Scanned,
        };
        let site = self
            .sites
            .return_site(self.modules, self.memory, guessed.address);
        let (registers, doubtful, signals) = (self.registers, self.doubtful, self.signals);
        self.registers = guessed.registers;
        let follows = self.follow(&frame, site.as_ref()).is_ok();
        (self.registers, self.doubtful, self.signals) = (registers, doubtful, signals);
        follows
    }

    /// Facts about a plausible return address: one after a call, or one that the kernel or a
    /// context switch made.
    fn plausible_return(&mut self, address: u64) -> Option<(CodeAddress, Site)> {
        let site = self.sites.return_site(self.modules, self.memory, address)?;
        if site.row.is_signal() {
            // The kernel makes a handler return to its signal return code, which made no call.
            return Some((CodeAddress::Ip(address), site));
        }
        let plausible = site.ends_call != Some(false) || matches!(site.row, Row::Root);
        plausible.then_some((CodeAddress::Return(address), site))
    }

    /// Whether `address` lies in executable memory and the instruction before it is a call.
    pub(super) fn follows_call(&mut self, address: u64) -> bool {
        self.sites
            .return_site(self.modules, self.memory, address)
            .is_some_and(|site| site.ends_call == Some(true))
    }
}

/// Registers that are kept over code without unwind tables: it should have preserved them.
const CARRIED: u64 = {
    let mut bits = 0;
    let mut index = 0;
    while index < Machine::CALLEE_SAVED.len() {
        bits |= 1 << Machine::CALLEE_SAVED[index];
        index += 1;
    }
    bits
};
