//! The unwinder: from a thread's registers and the bytes of its stack to its native frames.
//!
//! It follows `.eh_frame` with all registers, so that functions that realign their stack, signal frames and PLT stubs unwind
//! like any other. Code without tables is crossed by a guess that is checked and marked; see `guess.rs`.

use super::arch;
use super::expression::{Inputs, RuleError};
use super::guess;
use super::loaded::{Loaded, LoadedModules};
use super::rows::{Caller, Row, read_row, read_row_by_code};
use crate::memory::Memory;
use crate::model::address::CodeAddress;
use crate::model::frame::{Partial, Trust};
use crate::model::registers::Registers;
use gimli::UnwindContext;
use rustc_hash::FxHashMap;

/// Frames of one stack that are followed. Deep recursion in C is rarer than a loop in damaged memory.
pub const MAX_FRAMES: usize = 1024;
/// Rows that are kept; a training process touches some ten thousand addresses.
const MAX_CACHED: usize = 1 << 16;
/// Words below a guessed return address that may be a saved register.
const MAX_SAVED_WORDS: usize = 16;
/// Signal handlers on one stack. They are the only frames whose stack pointer may move in either direction.
const MAX_SIGNALS: usize = 8;

/// A native frame of one thread, in its process's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeFrame {
    /// Where the thread is, or where it will return to.
    pub address: CodeAddress,
    /// The stack pointer in this frame; what lies below it belongs to the frame that it called.
    pub stack_pointer: u64,
    /// The module's number in [`LoadedModules`]; `None` only for a leaf that is in no executable memory.
    pub module: Option<u32>,
    /// How this frame was found.
    pub trust: Trust,
}

/// How a stack ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwindEnd {
    /// At the thread's first frame.
    Root,
    /// Earlier, and why.
    Partial(Partial),
}

/// Walks stacks. Keeps the unwind rows that it met, of all processes that it is used for.
#[derive(Default)]
pub struct Unwinder {
    cache: Cache,
}

#[derive(Default)]
pub(super) struct Cache {
    entries: FxHashMap<(u32, u64), Cached>,
    context: UnwindContext<usize>,
    loads_symbols: bool,
}

#[derive(Clone, Debug)]
struct Cached {
    row: Row,
    /// Whether a call ends right after this address; `None` until somebody asks.
    ends_call: Option<bool>,
    /// There are no tables, and the symbols that reading the code takes had not been loaded.
    wants_symbols: bool,
}

impl std::fmt::Debug for Unwinder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Unwinder({} rows)", self.cache.entries.len())
    }
}

impl Unwinder {
    /// An unwinder that knows no rows yet. Code without unwind tables is read only in modules whose symbols were loaded by
    /// others ([`Module::symbols`](super::modules::Module::symbols)); until then it is crossed by a guess.
    pub fn new() -> Self {
        Self::default()
    }

    /// An unwinder that loads symbols itself where it needs them, which may take a tenth of a second.
    pub fn that_loads_symbols() -> Self {
        let mut unwinder = Self::default();
        unwinder.cache.loads_symbols = true;
        unwinder
    }

    /// How many rows are kept.
    pub fn cached_rows(&self) -> usize {
        self.cache.entries.len()
    }

    /// Walks the stack of a thread with `registers`, leaf first, into `out`, which is emptied before.
    ///
    /// `memory` must hold the stack. A frame whose caller cannot be found is the last one; the result says why.
    pub fn unwind(
        &mut self,
        modules: &LoadedModules,
        registers: &Registers,
        memory: &dyn Memory,
        out: &mut Vec<NativeFrame>,
    ) -> UnwindEnd {
        out.clear();
        let (Some(address), Some(stack_pointer)) =
            (registers.instruction_pointer(), registers.stack_pointer())
        else {
            return UnwindEnd::Partial(Partial::RegisterUnknown);
        };
        let mut walk = Walk {
            cache: &mut self.cache,
            modules,
            memory,
            registers: *registers,
            doubtful: 0,
            crossed: (0, 0),
            signals: 0,
        };
        let mut site = walk.site(address);
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
                        trust: found.trust,
                    };
                    site = Some(found.site);
                }
                Ok(None) => return UnwindEnd::Root,
                Err(reason) => return UnwindEnd::Partial(reason),
            }
        }
    }
}

/// What is known of one address in executable memory.
#[derive(Clone)]
pub(super) struct Site {
    module_index: u32,
    bias: u64,
    row: Row,
    ends_call: Option<bool>,
}

/// A caller that was found, and what is known of the place that it goes on at.
struct Found {
    caller: Caller,
    address: CodeAddress,
    site: Site,
    trust: Trust,
}

/// One walk: the registers of the frame that was found last.
pub(super) struct Walk<'a> {
    cache: &'a mut Cache,
    modules: &'a LoadedModules,
    pub(super) memory: &'a dyn Memory,
    pub(super) registers: Registers,
    /// Registers, by bit, that were carried over a guess: the code without unwind tables may have changed them.
    doubtful: u64,
    /// The stack of the code that the last guess crossed: from its stack pointer to its return address.
    crossed: (u64, u64),
    signals: usize,
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
            // A sleeper's registers are in the kernel, and a stop would give them: that is better than a guess.
            Err(Partial::RegisterUnknown) => return Err(Partial::RegisterUnknown),
            Err(reason) => reason,
        };
        let (caller, trust) = guess::caller(self, frame).ok_or(reason)?;
        let site = self.return_site(caller.address).ok_or(reason)?;
        self.registers = caller.registers;
        self.doubtful = CARRIED;
        self.crossed = (
            frame.stack_pointer,
            caller.stack_pointer.saturating_sub(arch::POINTER_BYTES),
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

    /// The caller by the unwind tables. Where they ask for a register that code without tables may have changed, it is tried as
    /// it is, and then with the words that this code saved next to its return address: functions save registers there first.
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
            slot = slot.saturating_sub(arch::POINTER_BYTES);
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

    /// The caller by the unwind tables, checked; `None` at the root.
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
        if row.is_signal() {
            self.signals += 1;
            if self.signals > MAX_SIGNALS {
                return Err(Partial::NoProgress);
            }
        } else if caller.stack_pointer <= frame.stack_pointer {
            return Err(Partial::NoProgress);
        }
        let (address, site) = if row.is_signal() {
            let site = self.site(caller.address).ok_or(Partial::BadReturnAddress)?;
            (CodeAddress::Ip(caller.address), site)
        } else {
            self.plausible_return(caller.address)
                .ok_or(Partial::BadReturnAddress)?
        };
        if self.doubtful != 0 {
            for register in arch::CALLEE_SAVED {
                if row.restores(register) {
                    self.doubtful &= !(1 << register);
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

    fn is_doubtful(&self, register: usize) -> bool {
        register < Registers::COUNT && self.doubtful & (1 << register) != 0
    }

    /// Whether the unwind tables lead on from a guessed caller to one that a frame may return to.
    pub(super) fn can_follow(&mut self, guessed: &Caller) -> bool {
        let frame = NativeFrame {
            address: CodeAddress::Return(guessed.address),
            stack_pointer: guessed.stack_pointer,
            module: None,
            trust: Trust::Scanned,
        };
        let site = self.return_site(guessed.address);
        let (registers, doubtful, signals) = (self.registers, self.doubtful, self.signals);
        self.registers = guessed.registers;
        let follows = self.follow(&frame, site.as_ref()).is_ok();
        (self.registers, self.doubtful, self.signals) = (registers, doubtful, signals);
        follows
    }

    /// What is known of where a frame may return to: after a call, or to where the kernel or a context switch made it.
    fn plausible_return(&mut self, address: u64) -> Option<(CodeAddress, Site)> {
        let site = self.return_site(address)?;
        if site.row.is_signal() {
            // The kernel let a handler return to its signal return code, which made no call.
            return Some((CodeAddress::Ip(address), site));
        }
        let plausible = site.ends_call != Some(false) || matches!(site.row, Row::Root);
        plausible.then_some((CodeAddress::Return(address), site))
    }

    /// Whether `address` lies in executable memory and the instruction before it is a call.
    pub(super) fn follows_call(&mut self, address: u64) -> bool {
        self.return_site(address)
            .is_some_and(|site| site.ends_call == Some(true))
    }

    /// What is known of the call that returns to `address`; `None` where that is no executable memory.
    fn return_site(&mut self, address: u64) -> Option<Site> {
        let lookup = address.checked_sub(1)?;
        let loaded = self.modules.find(lookup)?;
        let entry = self.cache.entry(&loaded, lookup);
        if entry.ends_call.is_some() {
            return Some(entry.site(&loaded));
        }
        let ends_call = self.read_ends_call(&loaded, address);
        let entry = self.cache.entry(&loaded, lookup);
        entry.ends_call = ends_call;
        Some(entry.site(&loaded))
    }

    /// What is known of an address that a thread is at; `None` where that is no executable memory.
    fn site(&mut self, address: u64) -> Option<Site> {
        let loaded = self.modules.find(address)?;
        Some(self.cache.entry(&loaded, address).site(&loaded))
    }

    /// Whether the bytes before `address`, from the module's file or the target's memory, end in a call.
    fn read_ends_call(&self, loaded: &Loaded<'_>, address: u64) -> Option<bool> {
        let mut bytes = [0; arch::LONGEST_CALL];
        let length = usize::try_from(address.checked_sub(loaded.start)?)
            .ok()?
            .min(arch::LONGEST_CALL);
        let bytes = bytes.get_mut(..length)?;
        if !loaded
            .module
            .copy_before(address.wrapping_sub(loaded.bias), bytes)
        {
            if !loaded.readable {
                return None;
            }
            self.memory
                .read_exact(address - length as u64, bytes)
                .ok()?;
        }
        Some(arch::follows_call(bytes))
    }
}

/// What is carried over code without unwind tables as it stands: it should have kept these.
const CARRIED: u64 = {
    let mut bits = 0;
    let mut index = 0;
    while index < arch::CALLEE_SAVED.len() {
        bits |= 1 << arch::CALLEE_SAVED[index];
        index += 1;
    }
    bits
};

impl Cache {
    /// The entry of a run-time address, made if there is none.
    fn entry(&mut self, loaded: &Loaded<'_>, address: u64) -> &mut Cached {
        if self.entries.len() >= MAX_CACHED {
            self.entries.clear();
        }
        let address = address.wrapping_sub(loaded.bias);
        let context = &mut self.context;
        let module = loaded.module;
        let entry = self
            .entries
            .entry((module.id(), address))
            .or_insert_with(|| {
                let row = module
                    .unwind()
                    .map_or(Row::NoInfo, |tables| read_row(tables, address, context));
                Cached {
                    wants_symbols: matches!(row, Row::NoInfo) && module.image().is_some(),
                    row,
                    ends_call: None,
                }
            });
        if entry.wants_symbols {
            let symbols = if self.loads_symbols {
                Some(module.symbols())
            } else {
                module.symbols_if_loaded()
            };
            if let Some(symbols) = symbols {
                entry.row = read_row_by_code(module, symbols, address);
                entry.wants_symbols = false;
            }
        }
        entry
    }
}

impl Cached {
    fn site(&self, loaded: &Loaded<'_>) -> Site {
        Site {
            module_index: loaded.module_index,
            bias: loaded.bias,
            row: self.row.clone(),
            ends_call: self.ends_call,
        }
    }
}
