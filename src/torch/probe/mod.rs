//! Determines which `nn.Module` a call belongs to: its path in the tree of modules that it was
//! called in.
//!
//! The thread's frames show which objects were called (`self` of `Module._wrapped_call_impl`, read
//! while the thread was stopped). Facts about these objects are read from the live process after
//! the thread was resumed: class, `training`, and the parts by name (`_modules`). A module's path
//! is its parent's path and the name that the parent has for it. The parent is the nearest object
//! towards the root of the stack that contains it, directly or, if a container was indexed and not
//! called, through others: the `self` of another call, or of any other method (Lightning's
//! `training_step`), or a module that is the first argument of a function (`evaluate(model, …)`).
//! If none of them contains the module, the trees that were seen before are searched: a forward
//! that is recomputed for backward shows only a part of the tree on the stack. If it is in none, it
//! is a root, and is identified by its class.
//!
//! Modules live long, so facts about them are kept, and checked by a few bytes of one vectored read
//! per sample.

pub mod allocator;
mod checks;
pub mod held;
mod objects;
mod positions;
pub mod progress;
mod routes;

use crate::memory::Memory;
use crate::model::ids::NnModuleId;
use crate::model::nn_module::NnModuleInfo;
use crate::python::discover::Interpreter;
use crate::torch::rules::ModuleCall;
use objects::Objects;
use positions::{Owner, Positions, core};
use routes::{Routes, Way};
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::Hasher;

/// Maximum number of frames of a stack that are read, from the innermost call outward.
const MAX_FRAMES: usize = 512;
/// Maximum number of calls that are remembered.
const MAX_CALLS: usize = 65_536;

/// A Python frame with the facts that the probe needs.
#[derive(Clone, Copy, Debug)]
pub struct ProbeFrame {
    /// Its first local variable.
    pub first_local: u64,
    /// Whether it is a module's call.
    pub call: ModuleCall,
}

/// An object that a frame is a method of.
#[derive(Clone, Copy, Debug)]
struct Receiver {
    index: usize,
    object: u64,
    is_call: bool,
}

/// The modules of one process.
#[derive(Clone, Debug)]
pub struct ModuleProbe {
    objects: Objects,
    routes: Routes,
    positions: Positions,
    /// Modules of earlier calls, by a hash of the objects called on the stack down to them.
    known_calls: FxHashMap<u64, NnModuleId>,
}

impl ModuleProbe {
    pub fn new(interpreter: &Interpreter) -> Self {
        Self {
            objects: Objects::new(interpreter),
            routes: Routes::default(),
            positions: Positions::default(),
            known_calls: FxHashMap::default(),
        }
    }

    /// Appends the module of each call of `frames`, leaf first, to `found`: the frame's index, and
    /// the id that `intern` returns for the module. Root first. Calls whose module cannot be read
    /// are omitted. So are those that may or may not be roots, because frames towards the root are
    /// missing: `is_complete` is false. A module that was freed since the sample, as all are when
    /// the process ends, gets the id that the same calls had before.
    pub fn find(
        &mut self,
        frames: &[ProbeFrame],
        is_complete: bool,
        memory: &dyn Memory,
        mut intern: impl FnMut(&NnModuleInfo) -> Option<NnModuleId>,
        found: &mut Vec<(usize, NnModuleId)>,
    ) {
        let Some(innermost) = frames.iter().position(|frame| frame.call != ModuleCall::No) else {
            return;
        };
        self.routes.begin();
        self.positions.begin();
        let receivers = self.receivers(frames, innermost, memory);
        let mut distinct: Vec<u64> = receivers.iter().map(|receiver| receiver.object).collect();
        distinct.sort_unstable();
        distinct.dedup();
        self.objects.begin(&distinct, memory);
        let mut is_complete = is_complete && frames.len() - innermost <= MAX_FRAMES;
        if self.known_calls.len() > MAX_CALLS {
            self.known_calls.clear();
        }
        let mut owners: Vec<Owner> = Vec::new();
        let mut calls = FxHasher::default();
        for receiver in receivers.iter().rev() {
            let object = receiver.object;
            if receiver.is_call {
                calls.write_u64(object);
            }
            let known = owners.iter().rev().find(|owner| owner.object == object);
            let position = match known {
                Some(owner) => Some(owner.position),
                None => self.position(object, &owners, is_complete, memory),
            };
            let Some(position) = position else {
                // Its parent is unknown, or could not be read now: the modules that it calls would
                // look like roots.
                let is_module = self.objects.module(object, memory).is_some();
                let is_unreadable = receiver.is_call && !self.objects.is_known(object);
                is_complete &= !is_module && !is_unreadable;
                if receiver.is_call
                    && let Some(&id) = self.known_calls.get(&calls.finish())
                {
                    is_complete = false;
                    found.push((receiver.index, id));
                }
                continue;
            };
            if known.is_none() {
                owners.push(Owner { object, position });
            }
            if receiver.is_call
                && let Some(training) = self.training(object, memory)
                && let Some(id) = self.positions.id(position, training, &mut intern)
            {
                self.known_calls.insert(calls.finish(), id);
                found.push((receiver.index, id));
            }
        }
    }

    /// `training` of what `object` wraps: a wrapper and its module are one module in a tree. `None`
    /// if that is not a module.
    fn training(&mut self, object: u64, memory: &dyn Memory) -> Option<Option<bool>> {
        let (core, _) = core(object, &mut self.objects, memory)?;
        Some(self.objects.module(core, memory)?.training)
    }

    /// The objects that frames are methods of, from the innermost call outward.
    fn receivers(
        &mut self,
        frames: &[ProbeFrame],
        innermost: usize,
        memory: &dyn Memory,
    ) -> Vec<Receiver> {
        let mut receivers = Vec::new();
        for (index, frame) in frames.iter().enumerate().skip(innermost).take(MAX_FRAMES) {
            let by_outer = frames
                .get(index + 1)
                .is_some_and(|outer| outer.call == ModuleCall::Outer);
            let object = match frame.call {
                // The outer call has the same module.
                ModuleCall::Inner if by_outer => continue,
                ModuleCall::Inner => self.objects.out_of_cell(frame.first_local, memory),
                ModuleCall::No | ModuleCall::Outer => frame.first_local,
            };
            if object != 0 && object.is_multiple_of(8) {
                receivers.push(Receiver {
                    index,
                    object,
                    is_call: frame.call != ModuleCall::No,
                });
            }
        }
        receivers
    }

    /// The position of a module: below the nearest of `owners` that contains it, in a tree that was
    /// seen before, or, if it may be one, as a root.
    fn position(
        &mut self,
        object: u64,
        owners: &[Owner],
        may_be_root: bool,
        memory: &dyn Memory,
    ) -> Option<usize> {
        self.objects.module(object, memory)?;
        for owner in owners.iter().rev() {
            match self
                .routes
                .find(owner.object, object, &mut self.objects, memory)
            {
                Way::To(name) => {
                    return self
                        .positions
                        .child(*owner, object, &name, &mut self.objects, memory);
                }
                Way::None => {}
                // It probably has a parent.
                Way::Unknown => return None,
            }
        }
        let mut may_be_root = may_be_root;
        for tree in self.positions.trees() {
            if tree == object {
                continue;
            }
            match self.routes.find(tree, object, &mut self.objects, memory) {
                Way::To(name) => {
                    let position = self.positions.root(tree, &mut self.objects, memory)?;
                    let owner = Owner {
                        object: tree,
                        position,
                    };
                    return self
                        .positions
                        .child(owner, object, &name, &mut self.objects, memory);
                }
                Way::None => {}
                Way::Unknown => may_be_root = false,
            }
        }
        match may_be_root {
            true => self.positions.root(object, &mut self.objects, memory),
            false => None,
        }
    }
}
