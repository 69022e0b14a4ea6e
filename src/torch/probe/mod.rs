//! Which `nn.Module` a call is of: its path in the tree of modules that it was called in.
//!
//! The thread's frames say which objects were called (`self` of `Module._wrapped_call_impl`, read while the thread stood). What
//! these are is read from the live process after it runs on: class, `training`, and the parts by name (`_modules`). A module's
//! path is its parent's path and the name by which the parent holds it. The parent is the nearest object further out on the
//! stack that holds it, directly or, where a container was indexed and not called, through others: the `self` of another call, or
//! of any other method (Lightning's `training_step`), or a module that a function was given first (`evaluate(model, …)`).
//! A module that none of them holds is a root; it goes by its class.
//!
//! Modules live for long and are kept, and checked by a few words of one vectored read per sample.

mod checks;
mod objects;
pub mod progress;

use crate::memory::Memory;
use crate::model::ids::NnModuleId;
use crate::model::nn_module::NnModuleInfo;
use crate::python::discover::Interpreter;
use crate::torch::rules::modules::{ModuleCall, is_wrapped};
use objects::{ModuleObject, Objects};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;

/// The most frames of a stack that are looked at, from the innermost call outward.
const MAX_FRAMES: usize = 512;
/// The most modules that one search looks at.
const MAX_SEARCH: usize = 4096;
/// Searches of one sample.
const MAX_SEARCHES: usize = 64;
/// How many modules deep a search goes.
const MAX_DEPTH: usize = 8;
/// Wrappers around wrappers that are followed.
const MAX_WRAPPERS: usize = 8;
/// The longest path that is kept, bytes.
const MAX_PATH: usize = 1024;
/// Roots of one class that are told apart.
const MAX_ROOTS: usize = 64;
/// Places in trees, and results of searches, that are kept.
const MAX_KEPT: usize = 65_536;
/// For how many samples a search that found nothing is not made again.
const IN_VAIN: u64 = 1000;

/// A Python frame, as far as it tells of modules.
#[derive(Clone, Copy, Debug)]
pub struct ProbeFrame {
    /// Its first local variable.
    pub first_local: u64,
    /// Whether it is a module's call.
    pub call: ModuleCall,
}

/// How a child was found below an owner.
#[derive(Clone, Debug)]
struct Route {
    generation: u64,
    round: u64,
    /// The names from the owner to the child, and the modules between them; `None` where there is no way.
    found: Option<(String, Vec<u64>)>,
}

/// A module's place in a tree.
#[derive(Clone, Debug)]
struct Place {
    generation: u64,
    /// The object's own class, where the place is of what it wraps.
    own_class: String,
    /// How it was reached from its owner.
    name: String,
    info: NnModuleInfo,
    /// By `training`: not read, false, true.
    ids: [Option<NnModuleId>; 3],
}

/// An object further out on the stack.
#[derive(Clone, Copy, Debug)]
struct Owner {
    object: u64,
    place: usize,
}

/// The modules of one process.
#[derive(Debug)]
pub struct ModuleProbe {
    objects: Objects,
    routes: FxHashMap<(u64, u64), Route>,
    places: Vec<Place>,
    place_of: FxHashMap<(Option<usize>, u64), usize>,
    /// Roots by class, in the order in which they were seen.
    roots: FxHashMap<String, Vec<u64>>,
    /// How many searches the sample may still make.
    searches_left: usize,
}

impl ModuleProbe {
    /// For a process with this interpreter.
    pub fn new(interpreter: &Interpreter) -> Self {
        Self {
            objects: Objects::new(interpreter),
            routes: FxHashMap::default(),
            places: Vec::new(),
            place_of: FxHashMap::default(),
            roots: FxHashMap::default(),
            searches_left: 0,
        }
    }

    /// Appends to `found` which module each call of `frames`, leaf first, is of: the frame's index, and the id that `intern` gave
    /// the module. Calls whose module cannot be read are left out. Outermost first.
    pub fn find(
        &mut self,
        frames: &[ProbeFrame],
        memory: &dyn Memory,
        mut intern: impl FnMut(&NnModuleInfo) -> Option<NnModuleId>,
        found: &mut Vec<(usize, NnModuleId)>,
    ) {
        let Some(innermost) = frames.iter().position(|frame| frame.call != ModuleCall::No) else {
            return;
        };
        self.forget_if_many();
        self.searches_left = MAX_SEARCHES;
        let looked_at = self.objects_of(frames, innermost, memory);
        let mut distinct: Vec<u64> = looked_at.iter().map(|&(_, object, _)| object).collect();
        distinct.sort_unstable();
        distinct.dedup();
        self.objects.begin(&distinct, memory);
        let mut owners: Vec<Owner> = Vec::new();
        for &(index, object, is_call) in looked_at.iter().rev() {
            let known = owners.iter().rev().find(|owner| owner.object == object);
            let place = match known {
                Some(owner) => Some(owner.place),
                None => self.place(object, &owners, memory),
            };
            let Some(place) = place else {
                continue;
            };
            if known.is_none() {
                owners.push(Owner { object, place });
            }
            if is_call && let Some(id) = self.id(place, object, memory, &mut intern) {
                found.push((index, id));
            }
        }
    }

    /// The objects that frames are methods of, from the innermost call outward: frame, object, whether it is called there.
    fn objects_of(
        &mut self,
        frames: &[ProbeFrame],
        innermost: usize,
        memory: &dyn Memory,
    ) -> Vec<(usize, u64, bool)> {
        let mut found = Vec::new();
        for (index, frame) in frames.iter().enumerate().skip(innermost).take(MAX_FRAMES) {
            let by_outer = frames
                .get(index + 1)
                .is_some_and(|outer| outer.call == ModuleCall::Outer);
            let object = match frame.call {
                // The call around it tells the same.
                ModuleCall::Inner if by_outer => continue,
                ModuleCall::Inner => self.objects.out_of_cell(frame.first_local, memory),
                ModuleCall::No | ModuleCall::Outer => frame.first_local,
            };
            if object != 0 && object.is_multiple_of(8) {
                found.push((index, object, frame.call != ModuleCall::No));
            }
        }
        found
    }

    /// The place of a module below the nearest of `owners` that holds it.
    fn place(&mut self, object: u64, owners: &[Owner], memory: &dyn Memory) -> Option<usize> {
        let class = self.objects.module(object, memory)?.class.clone();
        for owner in owners.iter().rev() {
            if let Some(name) = self.route(owner.object, object, memory) {
                return self.child_place(*owner, object, class, &name, memory);
            }
            if self.searches_left == 0 {
                // It may well have a parent.
                return None;
            }
        }
        self.root_place(object, class, memory)
    }

    fn child_place(
        &mut self,
        owner: Owner,
        object: u64,
        class: String,
        name: &str,
        memory: &dyn Memory,
    ) -> Option<usize> {
        let generation = self.objects.generation();
        let key = (Some(owner.place), object);
        if let Some(&known) = self.place_of.get(&key)
            && let Some(place) = self.places.get(known)
            && (place.generation, &place.own_class, place.name.as_str())
                == (generation, &class, name)
        {
            return Some(known);
        }
        let above = &self.places.get(owner.place)?.info;
        let path = match (above.path.is_empty(), name.is_empty()) {
            (true, _) => name.to_owned(),
            (false, true) => above.path.clone(),
            (false, false) => format!("{}.{name}", above.path),
        };
        if path.len() > MAX_PATH {
            return None;
        }
        let info = NnModuleInfo {
            root: above.root.clone(),
            number: above.number,
            path,
            class: self.wrapped_class(object, memory)?,
            training: None,
        };
        Some(self.keep(key, class, name, info))
    }

    fn root_place(&mut self, object: u64, class: String, memory: &dyn Memory) -> Option<usize> {
        let generation = self.objects.generation();
        if let Some(&known) = self.place_of.get(&(None, object))
            && let Some(place) = self.places.get(known)
            && (place.generation, &place.own_class) == (generation, &class)
        {
            return Some(known);
        }
        let root = self.wrapped_class(object, memory)?;
        let has_parts = !self.objects.module(object, memory)?.children.is_empty();
        let known = self.roots.entry(root.clone()).or_default();
        let number = match known.iter().position(|&known| known == object) {
            Some(number) => number,
            // Losses and the like are made anew for every batch, and are no trees.
            None if !has_parts => 0,
            None if known.len() >= MAX_ROOTS => MAX_ROOTS - 1,
            None => {
                known.push(object);
                known.len() - 1
            }
        };
        let info = NnModuleInfo {
            class: root.clone(),
            root,
            number: number as u32,
            path: String::new(),
            training: None,
        };
        Some(self.keep((None, object), class, "", info))
    }

    fn keep(
        &mut self,
        key: (Option<usize>, u64),
        own_class: String,
        name: &str,
        info: NnModuleInfo,
    ) -> usize {
        let place = Place {
            generation: self.objects.generation(),
            own_class,
            name: name.to_owned(),
            info,
            ids: [None; 3],
        };
        match self.place_of.get(&key) {
            Some(&known) if self.places.get(known).is_some() => {
                // Places below it that are kept were found under another generation or name, and are found anew.
                let same = self.places[known].info == place.info;
                if same {
                    let ids = self.places[known].ids;
                    self.places[known] = Place { ids, ..place };
                    return known;
                }
                self.places.push(place);
            }
            _ => self.places.push(place),
        }
        let at = self.places.len() - 1;
        self.place_of.insert(key, at);
        at
    }

    fn id(
        &mut self,
        place: usize,
        object: u64,
        memory: &dyn Memory,
        intern: &mut impl FnMut(&NnModuleInfo) -> Option<NnModuleId>,
    ) -> Option<NnModuleId> {
        let training = self.objects.module(object, memory)?.training;
        let place = self.places.get_mut(place)?;
        let id = place
            .ids
            .get_mut(training.map_or(0, |training| 1 + usize::from(training)))?;
        if let Some(id) = id {
            return Some(*id);
        }
        let info = NnModuleInfo {
            training,
            ..place.info.clone()
        };
        *id = intern(&info);
        *id
    }

    /// The class of what `object` wraps; its own where it wraps nothing.
    fn wrapped_class(&mut self, object: u64, memory: &dyn Memory) -> Option<String> {
        let mut at = object;
        let mut class = self.objects.module(at, memory)?.class.clone();
        for _ in 0..MAX_WRAPPERS {
            let Some(inner) = wrapped(self.objects.module(at, memory)?) else {
                break;
            };
            let Some(module) = self.objects.module(inner, memory) else {
                break;
            };
            class = module.class.clone();
            at = inner;
        }
        Some(class)
    }

    /// The names from `owner` down to `child`, without wrappers'; `None` where the one does not hold the other.
    fn route(&mut self, owner: u64, child: u64, memory: &dyn Memory) -> Option<String> {
        let (generation, round) = (self.objects.generation(), self.objects.round());
        if let Some(route) = self.routes.get(&(owner, child))
            && route.generation == generation
        {
            match &route.found {
                None if round - route.round < IN_VAIN => return None,
                None => {}
                Some((name, between)) => {
                    let (name, between) = (name.clone(), between.clone());
                    let last = between.last().copied().unwrap_or(owner);
                    let holds = between
                        .iter()
                        .all(|&object| self.objects.module(object, memory).is_some())
                        && self.holds(last, child, memory);
                    if holds && self.objects.generation() == generation {
                        return Some(name);
                    }
                }
            }
        }
        self.searches_left = self.searches_left.checked_sub(1)?;
        let mut found = self.search(owner, child, memory);
        if found.is_none() && self.objects.reread(owner, memory) {
            found = self.search(owner, child, memory);
        }
        let name = found.as_ref().map(|(name, _)| name.clone());
        let route = Route {
            generation: self.objects.generation(),
            round,
            found,
        };
        self.routes.insert((owner, child), route);
        name
    }

    fn holds(&mut self, owner: u64, child: u64, memory: &dyn Memory) -> bool {
        self.objects
            .module(owner, memory)
            .is_some_and(|module| module.children.iter().any(|&(_, object)| object == child))
    }

    /// Breadth first, from `owner`: what is nearer and what comes first wins, as a call by that way would most likely be.
    fn search(
        &mut self,
        owner: u64,
        child: u64,
        memory: &dyn Memory,
    ) -> Option<(String, Vec<u64>)> {
        // A name's last element is found in the module itself; above it, wrappers are passed silently.
        let mut seen: FxHashSet<u64> = FxHashSet::from_iter([owner]);
        let mut open: VecDeque<(u64, String, Vec<u64>)> = VecDeque::new();
        open.push_back((owner, String::new(), Vec::new()));
        let mut looked_at = 0;
        while let Some((at, prefix, between)) = open.pop_front() {
            looked_at += 1;
            if looked_at > MAX_SEARCH {
                return None;
            }
            let module = match at == owner {
                true => self.objects.module(at, memory),
                false => self.objects.module_as_known(at, memory),
            };
            let Some(module) = module else {
                continue;
            };
            let named = |name: &str| match (is_wrapped(&module.class, name), prefix.is_empty()) {
                (true, _) => prefix.clone(),
                (false, true) => name.to_owned(),
                (false, false) => format!("{prefix}.{name}"),
            };
            if let Some((name, _)) = module.children.iter().find(|(_, object)| *object == child) {
                return Some((named(name), between));
            }
            if between.len() + 1 >= MAX_DEPTH {
                continue;
            }
            for (name, object) in &module.children {
                if seen.len() < MAX_SEARCH && seen.insert(*object) {
                    let mut between = between.clone();
                    between.push(*object);
                    open.push_back((*object, named(name), between));
                }
            }
        }
        None
    }

    fn forget_if_many(&mut self) {
        if self.places.len() > MAX_KEPT || self.routes.len() > MAX_KEPT {
            self.places.clear();
            self.place_of.clear();
            self.routes.clear();
        }
        if self.roots.len() > MAX_KEPT {
            self.roots.clear();
        }
    }
}

/// What a module wraps, if it is a wrapper.
fn wrapped(module: &ModuleObject) -> Option<u64> {
    module
        .children
        .iter()
        .find(|(name, _)| is_wrapped(&module.class, name))
        .map(|&(_, object)| object)
}
