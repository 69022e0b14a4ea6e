//! Paths of modules in the trees that they are called in.

use super::objects::Objects;
use crate::memory::Memory;
use crate::model::ids::NnModuleId;
use crate::model::nn_module::NnModuleInfo;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Maximum number of nested wrappers that are followed.
const MAX_WRAPPERS: usize = 8;
/// Maximum length of a path, bytes.
const MAX_PATH: usize = 1024;
/// Maximum number of roots of one class with numbers of their own.
const MAX_ROOTS: usize = 64;
/// Maximum number of classes of roots.
const MAX_CLASSES: usize = 4096;
/// Maximum number of positions that are kept.
const MAX_KEPT: usize = 65_536;
/// Maximum number of trees that are searched for a module that nothing on the stack contains.
const MAX_TREES: usize = 8;

/// A module's position in a tree.
#[derive(Clone, Debug)]
struct Position {
    generation: u64,
    /// The object's own class, if the position is that of the module that it wraps.
    own_class: String,
    /// Path from its owner.
    name: String,
    info: NnModuleInfo,
    /// By `training`: not read, false, true.
    ids: [Option<NnModuleId>; 3],
}

/// An object with a known position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub(super) object: u64,
    pub(super) position: usize,
}

/// The positions of one process.
#[derive(Clone, Debug, Default)]
pub(super) struct Positions {
    positions: Vec<Position>,
    place_of: FxHashMap<(Option<usize>, u64), usize>,
    /// Roots by class, without their wrappers, in the order in which they were seen.
    roots: FxHashMap<String, Vec<u64>>,
    /// The last roots with parts, the latest first.
    trees: VecDeque<u64>,
}

impl Positions {
    pub(super) fn begin(&mut self) {
        if self.positions.len() > MAX_KEPT {
            self.positions.clear();
            self.place_of.clear();
        }
        if self.roots.len() > MAX_CLASSES {
            self.roots.clear();
        }
    }

    /// The last roots with parts, the latest first.
    pub(super) fn trees(&self) -> Vec<u64> {
        self.trees.iter().copied().collect()
    }

    /// The position of a module that `owner` contains under `name`.
    pub(super) fn child(
        &mut self,
        owner: Owner,
        object: u64,
        name: &str,
        objects: &mut Objects,
        memory: &dyn Memory,
    ) -> Option<usize> {
        let class = objects.module(object, memory)?.class.clone();
        let key = (Some(owner.position), object);
        if let Some(known) = self.known(key, &class, name, objects) {
            return Some(known);
        }
        let above = &self.positions.get(owner.position)?.info;
        let path = match (above.path.is_empty(), name.is_empty()) {
            (true, _) => name.to_owned(),
            (false, true) => above.path.clone(),
            (false, false) => format!("{}.{name}", above.path),
        };
        if path.len() > MAX_PATH {
            return None;
        }
        let (root, number) = (above.root.clone(), above.number);
        let info = NnModuleInfo {
            root,
            number,
            path,
            class: core(object, objects, memory)?.1,
            training: None,
        };
        Some(self.keep(key, class, name, info, objects.generation()))
    }

    /// The position of a module that nothing contains.
    pub(super) fn root(
        &mut self,
        object: u64,
        objects: &mut Objects,
        memory: &dyn Memory,
    ) -> Option<usize> {
        let module = objects.module(object, memory)?;
        let (class, has_parts) = (module.class.clone(), !module.children.is_empty());
        if has_parts && self.trees.front() != Some(&object) {
            self.trees.retain(|&tree| tree != object);
            self.trees.push_front(object);
            self.trees.truncate(MAX_TREES);
        }
        if let Some(known) = self.known((None, object), &class, "", objects) {
            return Some(known);
        }
        let (core, root) = core(object, objects, memory)?;
        let known = self.roots.entry(root.clone()).or_default();
        let number = match known.iter().position(|&known| known == core) {
            Some(number) => number,
            // Losses and similar modules are created again for every batch, and are not trees.
            None if !has_parts => 0,
            None if known.len() >= MAX_ROOTS => MAX_ROOTS - 1,
            None => {
                known.push(core);
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
        Some(self.keep((None, object), class, "", info, objects.generation()))
    }

    /// The id of a position's module in its present mode.
    pub(super) fn id(
        &mut self,
        position: usize,
        training: Option<bool>,
        intern: &mut impl FnMut(&NnModuleInfo) -> Option<NnModuleId>,
    ) -> Option<NnModuleId> {
        let position = self.positions.get_mut(position)?;
        let mode = training.map_or(0, |training| 1 + usize::from(training));
        let id = position.ids.get_mut(mode)?;
        if id.is_none() {
            let info = NnModuleInfo {
                training,
                ..position.info.clone()
            };
            *id = intern(&info);
        }
        *id
    }

    /// A position that is still valid.
    fn known(
        &self,
        key: (Option<usize>, u64),
        class: &str,
        name: &str,
        objects: &Objects,
    ) -> Option<usize> {
        let known = *self.place_of.get(&key)?;
        let position = self.positions.get(known)?;
        let is_same = position.generation == objects.generation()
            && position.own_class == class
            && position.name == name;
        is_same.then_some(known)
    }

    fn keep(
        &mut self,
        key: (Option<usize>, u64),
        own_class: String,
        name: &str,
        info: NnModuleInfo,
        generation: u64,
    ) -> usize {
        let position = Position {
            generation,
            own_class,
            name: name.to_owned(),
            info,
            ids: [None; 3],
        };
        if let Some(&known) = self.place_of.get(&key)
            && let Some(old) = self.positions.get_mut(known)
            && old.info == position.info
        {
            let ids = old.ids;
            *old = Position { ids, ..position };
            return known;
        }
        // Positions below an old one become unreachable: they are found by the new one's index.
        self.positions.push(position);
        let at = self.positions.len() - 1;
        self.place_of.insert(key, at);
        at
    }
}

/// The innermost module that `object` wraps, and its class; itself if it wraps nothing.
pub(super) fn core(
    object: u64,
    objects: &mut Objects,
    memory: &dyn Memory,
) -> Option<(u64, String)> {
    let mut core = object;
    let mut class = objects.module(core, memory)?.class.clone();
    for _ in 0..MAX_WRAPPERS {
        let Some(inner) = objects.module(core, memory)?.wrapped else {
            break;
        };
        let Some(module) = objects.module(inner, memory) else {
            break;
        };
        class.clone_from(&module.class);
        core = inner;
    }
    Some((core, class))
}
