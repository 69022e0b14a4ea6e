//! Reads which module holds how much memory: parameters, gradients, optimizer state and buffers,
//! from the objects of a running process.
//!
//! Modules and optimizers are those that variables of frames lead to (`roots`). The tensors of
//! their dictionaries are then read all at once (`tensors`), and each byte of a storage is counted
//! for the first tensor that covers it (`extents`). Nothing is stopped: a tensor that changes
//! meanwhile is read again, and one that cannot be read is counted as such, never estimated.

mod arrays;
mod containers;
mod extents;
mod objects;
mod pages;
mod roots;
mod tensors;
mod walk;

pub use containers::{Containers, Reading, read_containers};

use crate::memory::Memory;
use crate::model::held::{
    Held, HeldModule, HeldPart, Holding, SharedTensor, UnreadTensors, add_part,
};
use crate::python::discover::Interpreter;
use crate::torch::rules::tensors::device_type;
use extents::{Extents, Share};
use objects::{Class, Objects};
use pages::Pages;
use rustc_hash::{FxHashMap, FxHashSet};
use std::time::Instant;
use tensors::{Extent, TensorFacts, Unread, read_tensors};
use walk::Wanted;

/// Shared tensors that are named.
const MOST_SHARED: usize = 16;
/// Maximum number of words of a tensor's own object that are searched for the tensors it is made
/// of.
const MAX_SLOTS: u64 = 64;

/// Reads what the modules and optimizers hold that the frames of threads lead to. `states`:
/// addresses of the threads' `PyThreadState`s, the main thread's first. Ends at `until` at the
/// latest, apart from reads that are under way. `None` if no module and no optimizer was found.
pub fn read_held(
    interpreter: &Interpreter,
    states: &[u64],
    memory: &dyn Memory,
    until: Instant,
) -> Option<Held> {
    let begun = Instant::now();
    let pages = Pages::new(memory);
    let mut objects = Objects::new(interpreter, &pages, until);
    let roots = roots::find(states, &mut objects);
    if roots.modules.is_empty() && roots.optimizers.is_empty() {
        return None;
    }
    let walked = walk::walk(&roots, &mut objects);
    let mut counted = Counted::new(walked.modules);
    counted.held.optimizers = walked.optimizers;
    counted.count(walked.wanted, &mut objects);
    let mut held = counted.held;
    held.uncovered_bytes = counted.extents.uncovered();
    held.cut = objects.cut().map(Into::into);
    held.read_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Some(held)
}

/// Tensors that were counted.
struct Counted {
    held: Held,
    extents: Extents,
    /// Paths of tensors that were counted, by storage and range.
    names: FxHashMap<(u64, u64, u64), String>,
}

impl Counted {
    fn new(modules: Vec<HeldModule>) -> Self {
        Self {
            held: Held {
                modules,
                ..Held::default()
            },
            extents: Extents::default(),
            names: FxHashMap::default(),
        }
    }

    fn count(&mut self, wanted: Vec<Wanted>, objects: &mut Objects<'_>) {
        let (trained, others): (Vec<Wanted>, Vec<Wanted>) = wanted
            .into_iter()
            .partition(|each| each.holding == Holding::Parameters);
        let parameters = read(&trained, true, objects);
        for (wanted, facts) in trained.iter().zip(&parameters) {
            self.add_tensor(wanted, facts.own, wanted.object, objects);
        }
        let mut seen = FxHashSet::default();
        for (wanted, facts) in trained.into_iter().zip(parameters) {
            if let Some(gradient) = facts.gradient.filter(|_| seen.insert(wanted.object)) {
                let of_gradient = Wanted {
                    holding: Holding::Gradients,
                    name: format!("{}.grad", wanted.name),
                    ..wanted
                };
                self.add_tensor(&of_gradient, gradient.extent, gradient.python, objects);
            }
        }
        let facts = read(&others, false, objects);
        for (wanted, facts) in others.iter().zip(facts) {
            self.add_tensor(wanted, facts.own, wanted.object, objects);
        }
    }

    /// Counts a tensor, or those that it is made of.
    fn add_tensor(
        &mut self,
        wanted: &Wanted,
        extent: Result<Extent, Unread>,
        object: u64,
        objects: &mut Objects<'_>,
    ) {
        let parts = match extent {
            Err(Unread::NoStorage) if object != 0 => made_of(object, objects),
            _ => Vec::new(),
        };
        let all_read = !parts.is_empty() && parts.iter().all(Result::is_ok);
        match all_read {
            true => parts.into_iter().for_each(|part| self.add(wanted, part)),
            false => self.add(wanted, extent),
        }
    }

    fn add(&mut self, wanted: &Wanted, extent: Result<Extent, Unread>) {
        let device = extent.and_then(|extent| device(extent).ok_or(Unread::UnknownType));
        let (extent, device) = match (extent, device) {
            (Ok(extent), Ok(device)) => (extent, device),
            (Err(why), _) | (_, Err(why)) => {
                self.unread(wanted, why);
                return;
            }
        };
        let key = (extent.storage, extent.start, extent.end);
        let bytes = match self.extents.add(&extent) {
            Share::Own(bytes) => bytes,
            Share::Counted => {
                self.shared(wanted, self.names.get(&key).cloned());
                return;
            }
        };
        self.names.entry(key).or_insert_with(|| wanted.name.clone());
        let part = HeldPart {
            holding: wanted.holding,
            dtype: extent.dtype.into(),
            device,
            bytes,
            tensors: 1,
        };
        if let Some(module) = self.held.modules.get_mut(wanted.module) {
            add_part(&mut module.parts, &part);
        }
    }

    fn shared(&mut self, wanted: &Wanted, counted_as: Option<String>) {
        self.held.shared_tensors += 1;
        if self.held.shared.len() < MOST_SHARED {
            self.held.shared.push(SharedTensor {
                name: wanted.name.clone(),
                counted_as,
            });
        }
    }

    fn unread(&mut self, wanted: &Wanted, why: Unread) {
        let reason = why.reason();
        let unread = &mut self.held.unread;
        let holding = wanted.holding;
        let is_same = |each: &&mut UnreadTensors| each.holding == holding && each.reason == reason;
        match unread.iter_mut().find(is_same) {
            Some(known) => known.tensors += 1,
            None => unread.push(UnreadTensors {
                holding,
                reason: reason.into(),
                tensors: 1,
                first: wanted.name.clone(),
            }),
        }
    }
}

fn read(wanted: &[Wanted], with_gradients: bool, objects: &Objects<'_>) -> Vec<TensorFacts> {
    let addresses: Vec<u64> = wanted.iter().map(|each| each.object).collect();
    let growth = objects.interpreter.layout.objects.growth;
    read_tensors(&addresses, growth, with_gradients, objects.memory.live())
}

/// `cuda:0`.
fn device(extent: Extent) -> Option<String> {
    let name = device_type(extent.device.0)?;
    Some(match extent.device.1 {
        ..0 => name.to_owned(),
        index => format!("{name}:{index}"),
    })
}

/// The tensors in the slots and attributes of a tensor without elements of its own: the local part
/// of a distributed one, the parts of a quantized one.
fn made_of(object: u64, objects: &mut Objects<'_>) -> Vec<Result<Extent, Unread>> {
    let size = objects.basic_size(object).min(MAX_SLOTS * 8);
    let slots = objects.memory.read_bytes(object, size as usize);
    let slots = slots.unwrap_or_default();
    let slots = slots.chunks_exact(8).skip(2);
    let slots = slots.filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
    let attributes = objects.attributes(object).unwrap_or_default();
    let values = attributes.iter().map(|entry| entry.value);
    let mut parts: Vec<u64> = slots.chain(values).collect();
    parts.retain(|&part| part != object && objects.class(part) == Class::Tensor);
    parts.sort_unstable();
    parts.dedup();
    let growth = objects.interpreter.layout.objects.growth;
    let facts = read_tensors(&parts, growth, false, objects.memory.live());
    facts.into_iter().map(|facts| facts.own).collect()
}
