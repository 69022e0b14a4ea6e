//! Searches a thread's frames for objects that count progress: variables, values on the evaluation
//! stack (`for x in loader` keeps its iterator there while it runs), and what cells of closures,
//! generators and iterators between them contain.

use super::attributes::Reader;
use crate::memory::{Memory, ReadRequest};
use crate::python::dicts::TypeFacts;
use crate::python::discover::Interpreter;
use crate::python::layout::generators::GeneratorLayout;
use crate::python::layout::objects::{CELL_CONTENTS, ObjectLayout};
use crate::torch::rules::groups::MESH;
use crate::torch::rules::progress::{AUTOCAST, COUNTERS, FETCHERS, OPTIMIZER};
use rustc_hash::{FxHashMap, FxHashSet};

/// Maximum number of frames that are searched, root first.
const MAX_FRAMES: usize = 64;
/// Maximum number of values read per frame.
const MAX_SLOTS: usize = 64;
/// Maximum number of values read of a generator's frame.
const GENERATOR_SLOTS: usize = 24;
/// Maximum number of values per search.
const MAX_OBJECTS: usize = 1536;
/// Maximum depth of nested iterators.
const MAX_DEPTH: usize = 5;
/// Maximum number of types that are kept.
const MAX_TYPES: usize = 8192;
/// Maximum number of types that are read per search.
const MAX_NEW_TYPES: usize = 256;
/// Maximum number of variables read per module.
const MAX_GLOBALS: usize = 512;

/// A frame that is searched.
#[derive(Clone, Copy, Debug)]
pub struct ScanFrame {
    /// `_PyInterpreterFrame`, or `PyFrameObject` in 3.10.
    pub address: u64,
    /// Whether it is a module's own code: its variables are then those of the module.
    pub is_module: bool,
}

/// The relevance of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    None,
    /// It has the counter of this rule.
    Counter(usize),
    Optimizer,
    Autocast,
    /// A device mesh.
    Mesh,
    /// It contains others.
    Holder(Holder),
}

/// How an object contains others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// A generator: in its frame.
    Generator,
    /// Through a pointer at this offset.
    Pointer(u32),
    /// Through a pointer to a tuple at this offset.
    Tuple(u32),
    /// Through attributes that lead to a list: an index of the rules.
    Fetcher(usize),
}

/// Classes of objects that contain others. Source: Objects/enumobject.c, Python/bltinmodule.c,
/// Modules/itertoolsmodule.c, Include/cpython/classobject.h and Include/cpython/cellobject.h of
/// 3.10 to 3.15.
const HOLDERS: &[(&str, Holder)] = &[
    ("generator", Holder::Generator),
    ("enumerate", Holder::Pointer(24)),
    ("zip", Holder::Tuple(24)),
    ("islice", Holder::Pointer(16)),
    ("map", Holder::Tuple(16)),
    ("filter", Holder::Pointer(24)),
    // `with` keeps the method to call at its end.
    ("method", Holder::Pointer(24)),
    // A variable that another function uses, too.
    ("cell", Holder::Pointer(CELL_CONTENTS)),
];

#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) object: u64,
    pub(super) class: Use,
    /// The frame that contains it, directly or not: an index of the search's frames.
    pub(super) frame: usize,
}

/// Searches frames of one process.
#[derive(Debug)]
pub(super) struct Scanner {
    uses: FxHashMap<u64, Use>,
    locals: u64,
    tag_mask: u64,
    objects: ObjectLayout,
    generator: GeneratorLayout,
}

impl Scanner {
    pub(super) fn new(interpreter: &Interpreter) -> Self {
        let frame = &interpreter.layout.frame;
        Self {
            uses: FxHashMap::default(),
            locals: frame.localsplus.into(),
            tag_mask: frame.tag_mask,
            objects: interpreter.layout.objects,
            generator: GeneratorLayout::of(interpreter.version),
        }
    }

    /// Searches `frames`, root first. `copied` contains the part of the data stack that was read
    /// with the sample.
    pub(super) fn search(
        &mut self,
        frames: &[ScanFrame],
        reader: &mut Reader,
        copied: &dyn Memory,
        live: &dyn Memory,
    ) -> Vec<Found> {
        let mut open: Vec<(u64, usize)> = Vec::new();
        for (index, frame) in frames.iter().enumerate().take(MAX_FRAMES) {
            let next = nearest_above(frames, frame.address);
            let room = next.map_or(MAX_SLOTS, |next| {
                (next.wrapping_sub(frame.address.wrapping_add(self.locals)) / 8) as usize
            });
            let values = self.slots(frame.address, room.min(MAX_SLOTS), copied, live);
            open.extend(values.into_iter().map(|value| (value, index)));
            if frame.is_module {
                let values = self.module_values(frame.address, reader, copied, live);
                open.extend(values.into_iter().map(|value| (value, index)));
            }
        }
        let mut seen = FxHashSet::default();
        let mut found = Vec::new();
        for _ in 0..MAX_DEPTH {
            open.retain(|&(object, _)| seen.insert(object));
            open.truncate(MAX_OBJECTS.saturating_sub(seen.len().saturating_sub(open.len())));
            if open.is_empty() {
                break;
            }
            let uses = self.uses_of(&open, reader, live);
            let mut held = Vec::new();
            for (&(object, frame), class) in open.iter().zip(uses) {
                match class {
                    Use::None => {}
                    Use::Holder(holder) => {
                        let objects = self.held_by(object, holder, reader, live);
                        held.extend(objects.into_iter().map(|object| (object, frame)));
                    }
                    class => found.push(Found {
                        object,
                        class,
                        frame,
                    }),
                }
            }
            open = held;
        }
        found
    }

    /// Values of a frame's variables and of its evaluation stack. Values beyond the top of the
    /// stack are stale.
    fn slots(&self, frame: u64, count: usize, copied: &dyn Memory, live: &dyn Memory) -> Vec<u64> {
        let first = frame.wrapping_add(self.locals);
        let mut bytes = vec![0; count * 8];
        let mut length = bytes.len();
        // Memory after the last frame may be outside of what was copied, or on a page that is not
        // mapped.
        while copied.read_exact(first, &mut bytes[..length]).is_err()
            && live.read_exact(first, &mut bytes[..length]).is_err()
        {
            length = length / 16 * 8;
            if length == 0 {
                return Vec::new();
            }
        }
        bytes[..length]
            .chunks_exact(8)
            .filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?) & !self.tag_mask))
            .filter(|&word| is_object(word))
            .collect()
    }

    fn module_values(
        &self,
        frame: u64,
        reader: &mut Reader,
        copied: &dyn Memory,
        live: &dyn Memory,
    ) -> Vec<u64> {
        let place = frame.wrapping_add(self.objects.frame_globals.into());
        let Ok(dict) = copied.read_u64(place).or_else(|_| live.read_u64(place)) else {
            return Vec::new();
        };
        let entries = reader.entries(dict & !self.tag_mask, live);
        let values = entries.unwrap_or_default().into_iter();
        values
            .map(|entry| entry.value)
            .filter(|&value| is_object(value))
            .take(MAX_GLOBALS)
            .collect()
    }

    fn uses_of(
        &mut self,
        objects: &[(u64, usize)],
        reader: &mut Reader,
        live: &dyn Memory,
    ) -> Vec<Use> {
        let mut words = vec![[0; 8]; objects.len()];
        let mut requests: Vec<ReadRequest<'_>> = objects
            .iter()
            .zip(&mut words)
            .map(|(&(object, _), word)| ReadRequest {
                address: object.wrapping_add(self.objects.type_offset().into()),
                buffer: word,
                result: Ok(()),
            })
            .collect();
        live.read_many(&mut requests);
        let came: Vec<bool> = requests
            .iter()
            .map(|request| request.result.is_ok())
            .collect();
        let mut new_types = 0;
        let words = words.into_iter().map(u64::from_le_bytes);
        words
            .zip(came)
            .map(|(address, came)| {
                if !came || !is_object(address) {
                    return Use::None;
                }
                if let Some(&known) = self.uses.get(&address) {
                    return known;
                }
                new_types += 1;
                if new_types > MAX_NEW_TYPES {
                    return Use::None;
                }
                let class = match reader.type_at(address, live) {
                    Ok(facts) => use_of(facts, live),
                    Err(_) => Use::None,
                };
                if self.uses.len() >= MAX_TYPES {
                    self.uses.clear();
                }
                self.uses.insert(address, class);
                class
            })
            .collect()
    }

    fn held_by(
        &self,
        object: u64,
        holder: Holder,
        reader: &mut Reader,
        live: &dyn Memory,
    ) -> Vec<u64> {
        let place = |offset: u32| object.wrapping_add(self.objects.at(offset));
        let pointer = |offset: u32| live.read_u64(place(offset)).unwrap_or(0);
        match holder {
            Holder::Pointer(offset) => {
                let held = pointer(offset);
                if is_object(held) {
                    vec![held]
                } else {
                    Vec::new()
                }
            }
            Holder::Tuple(offset) => elements(pointer(offset), reader, live),
            Holder::Fetcher(rule) => {
                let path = FETCHERS.get(rule).map_or(&[][..], |(_, path)| path);
                match reader.follow(object, path, live) {
                    Ok(list) => elements(list.value, reader, live),
                    Err(_) => Vec::new(),
                }
            }
            Holder::Generator => {
                let frame = match self.generator.is_pointer {
                    true => pointer(self.generator.frame),
                    false => place(self.generator.frame),
                };
                match is_object(frame) {
                    true => self.slots(frame, GENERATOR_SLOTS, live, live),
                    false => Vec::new(),
                }
            }
        }
    }
}

/// The first items of a list or a tuple.
fn elements(sequence: u64, reader: &mut Reader, live: &dyn Memory) -> Vec<u64> {
    const MOST: u64 = 8;
    let length = reader
        .sequence(sequence, live)
        .map_or(0, |(length, _)| length);
    (0..length.min(MOST))
        .filter_map(|index| reader.element(sequence, index, live).ok())
        .filter(|&held| is_object(held))
        .collect()
}

/// The nearest frame that begins above `address`, if it is near enough to be in the same chunk of
/// the data stack.
fn nearest_above(frames: &[ScanFrame], address: u64) -> Option<u64> {
    const NEAR: u64 = 16 << 10;
    frames
        .iter()
        .map(|frame| frame.address)
        .filter(|&other| other > address && other - address < NEAR)
        .min()
}

fn is_object(word: u64) -> bool {
    word.is_multiple_of(8) && (0x1000..1 << 47).contains(&word)
}

fn use_of(facts: &TypeFacts, memory: &dyn Memory) -> Use {
    if let Some(&(_, holder)) = HOLDERS.iter().find(|(name, _)| *name == facts.name) {
        return Use::Holder(holder);
    }
    if facts.name == AUTOCAST {
        return Use::Autocast;
    }
    if facts.name == MESH {
        return Use::Mesh;
    }
    let has_base = |name: &str| facts.has_base(name, memory).unwrap_or(false);
    if let Some(rule) = COUNTERS.iter().position(|rule| has_base(rule.class)) {
        return Use::Counter(rule);
    }
    if let Some(rule) = FETCHERS.iter().position(|(class, _)| has_base(class)) {
        return Use::Holder(Holder::Fetcher(rule));
    }
    // Lightning's wrapper derives from nothing.
    if has_base(OPTIMIZER) || facts.name == "LightningOptimizer" {
        return Use::Optimizer;
    }
    Use::None
}
