//! Cached facts about single addresses for unwinding: the unwind row, and whether a call ends
//! there.

use super::loaded::{Loaded, LoadedModules};
use super::rows::{Row, read_function, read_row, read_row_by_code, read_row_of_signal};
use crate::arch::{Architecture, Machine};
use crate::memory::Memory;
use gimli::UnwindContext;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Bytes of a function that are searched for a jump.
const MAX_JUMPING: usize = 4 << 10;
/// Maximum number of return addresses; a training process touches some ten thousand.
const MAX_CACHED: usize = 1 << 16;
/// Maximum number of addresses of leaves: each instruction may be one, and those where threads
/// sleep recur.
const MAX_LEAVES: usize = 3000;

/// Facts about one address in executable memory.
#[derive(Clone)]
pub(super) struct Site {
    /// The module's number in its process.
    pub(super) module_index: u32,
    pub(super) bias: u64,
    /// How to get from a frame here to its caller.
    pub(super) row: Row,
    /// Whether a call ends right before this address; `None` if it was not needed or could not be
    /// read.
    pub(super) ends_call: Option<bool>,
}

/// All addresses so far, of all processes, by module and the file's own address.
#[derive(Default)]
pub(super) struct Sites {
    entries: FxHashMap<(u32, u64), Cached>,
    leaves: FxHashMap<(u32, u64), Cached>,
    context: UnwindContext<usize>,
    /// Whether to load a module's symbols when its code has to be read.
    pub(super) loads_symbols: bool,
}

struct Cached {
    row: Row,
    ends_call: Option<bool>,
    /// There are no tables, and the symbols that are needed to read the code were not loaded.
    wants_symbols: bool,
}

impl Sites {
    pub(super) fn len(&self) -> usize {
        self.entries.len() + self.leaves.len()
    }

    /// Facts about a leaf's address; `None` if it is not in executable memory.
    pub(super) fn site(&mut self, modules: &LoadedModules, address: u64) -> Option<Site> {
        let loaded = modules.find(address)?;
        Some(self.entry(&loaded, address, true).site(&loaded))
    }

    /// Facts about the call that returns to `address`; `None` if it is not in executable memory.
    pub(super) fn return_site(
        &mut self,
        modules: &LoadedModules,
        memory: &dyn Memory,
        address: u64,
    ) -> Option<Site> {
        let lookup = address.checked_sub(1)?;
        let loaded = modules.find(lookup)?;
        let entry = self.entry(&loaded, lookup, false);
        if entry.ends_call.is_none() {
            entry.ends_call = read_ends_call(&loaded, memory, address);
        }
        Some(entry.site(&loaded))
    }

    /// The target of the call that returns to `address`, if its code contains it: not through a
    /// register, memory or a PLT stub.
    pub(super) fn call_target(
        &mut self,
        modules: &LoadedModules,
        memory: &dyn Memory,
        address: u64,
    ) -> Option<u64> {
        let mut call = [0; Machine::DIRECT_CALL];
        read_before(
            &modules.find(address.checked_sub(1)?)?,
            memory,
            address,
            &mut call,
        )?;
        let target = Machine::call_target(address, &call)?;
        (!is_stub(modules, memory, target)?).then_some(target)
    }

    /// The function around `address`, from the unwind tables.
    pub(super) fn function(&self, modules: &LoadedModules, address: u64) -> Option<Range<u64>> {
        let loaded = modules.find(address)?;
        let found = read_function(loaded.module.unwind()?, address.wrapping_sub(loaded.bias))?;
        Some(found.start.wrapping_add(loaded.bias)..found.end.wrapping_add(loaded.bias))
    }

    /// Whether the function at `from` ends by a jump to the one at `to`, which then returns to the
    /// caller of `from`: a call in tail position. `None` if it jumps where its code does not show.
    pub(super) fn jumps_to(
        &self,
        modules: &LoadedModules,
        memory: &dyn Memory,
        from: u64,
        to: u64,
    ) -> Option<bool> {
        let function = self.function(modules, from)?;
        let (start, code) = self.code(modules, memory, from)?;
        let mut shown = true;
        for target in Machine::jumps(start, &code) {
            match target {
                Some(target) if target == to => return Some(true),
                Some(target) if function.contains(&target) => {}
                Some(target) => shown &= !is_stub(modules, memory, target).unwrap_or(false),
                None => shown = false,
            }
        }
        shown.then_some(false)
    }

    /// Return addresses of the calls in the function at `from` that go to the one at `to`, to one
    /// that jumps there, or, after these, to a stub, which may.
    pub(super) fn calls_to(
        &self,
        modules: &LoadedModules,
        memory: &dyn Memory,
        from: u64,
        to: u64,
    ) -> Vec<u64> {
        let Some((start, code)) = self.code(modules, memory, from) else {
            return Vec::new();
        };
        let (mut certain, mut possible) = (Vec::new(), Vec::new());
        for (call, at) in code.chunks_exact(Machine::DIRECT_CALL).zip(1..) {
            let address = start.wrapping_add(at * Machine::DIRECT_CALL as u64);
            let Some(target) = Machine::call_target(address, call) else {
                continue;
            };
            if target == to || self.jumps_to(modules, memory, target, to) == Some(true) {
                certain.push(address);
            } else if is_stub(modules, memory, target) == Some(true) {
                possible.push(address);
            }
        }
        certain.append(&mut possible);
        certain
    }

    /// The start of the function around `address`, and its code, as far as it is searched.
    fn code(
        &self,
        modules: &LoadedModules,
        memory: &dyn Memory,
        address: u64,
    ) -> Option<(u64, Vec<u8>)> {
        let function = self.function(modules, address)?;
        let length = function.end.checked_sub(function.start)?;
        let mut code = vec![0; usize::try_from(length).ok()?.min(MAX_JUMPING)];
        let end = function.start.checked_add(code.len() as u64)?;
        read_before(&modules.find(address)?, memory, end, &mut code)?;
        Some((function.start, code))
    }

    /// The entry of a run-time address, added if there is none.
    fn entry(&mut self, loaded: &Loaded<'_>, address: u64, is_leaf: bool) -> &mut Cached {
        let (entries, most) = match is_leaf {
            true => (&mut self.leaves, MAX_LEAVES),
            false => (&mut self.entries, MAX_CACHED),
        };
        if entries.len() >= most {
            entries.clear();
        }
        let address = address.wrapping_sub(loaded.bias);
        let context = &mut self.context;
        let module = loaded.module;
        let entry = entries.entry((module.id(), address)).or_insert_with(|| {
            let mut row = module
                .unwind()
                .map_or(Row::NoInfo, |tables| read_row(tables, address, context));
            if matches!(row, Row::NoInfo) {
                row = read_row_of_signal(module, address).unwrap_or(row);
            }
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

/// Whether the bytes before `address`, from the module's file or the target's memory, end in a
/// call.
fn read_ends_call(loaded: &Loaded<'_>, memory: &dyn Memory, address: u64) -> Option<bool> {
    let mut bytes = [0; Machine::LONGEST_CALL];
    let length = usize::try_from(address.checked_sub(loaded.start)?)
        .ok()?
        .min(Machine::LONGEST_CALL);
    let bytes = bytes.get_mut(..length)?;
    read_before(loaded, memory, address, bytes)?;
    Some(Machine::follows_call(bytes))
}

/// Code that ends before `end`, from the module's file or the target's memory.
/// Whether a PLT stub is at `target`.
fn is_stub(modules: &LoadedModules, memory: &dyn Memory, target: u64) -> Option<bool> {
    let mut stub = [0; Machine::PLT_STUB];
    let after = target.checked_add(stub.len() as u64)?;
    read_before(&modules.find(target)?, memory, after, &mut stub)?;
    Some(Machine::plt_slot(target, &stub).is_some())
}

fn read_before(loaded: &Loaded<'_>, memory: &dyn Memory, end: u64, bytes: &mut [u8]) -> Option<()> {
    let in_file = end.wrapping_sub(loaded.bias);
    if loaded.module.copy_before(in_file, bytes) {
        return Some(());
    }
    if !loaded.readable {
        return None;
    }
    let start = end.checked_sub(bytes.len() as u64)?;
    memory.read_exact(start, bytes).ok()
}
