//! The names by which one module contains another, directly or through others that are not called:
//! a container that is indexed, a wrapper.

use super::objects::{ModuleObject, Objects};
use crate::memory::Memory;
use crate::torch::rules::modules::is_wrapped;
use rustc_hash::{FxHashMap, FxHashSet};

/// Maximum number of modules that one search visits.
const MAX_SEARCH: usize = 4096;
/// Maximum depth of a search.
const MAX_DEPTH: usize = 8;
/// Maximum number of searches per sample.
const MAX_SEARCHES: usize = 64;
/// Maximum number of results that are kept.
const MAX_KEPT: usize = 65_536;
/// Number of samples for which an unsuccessful search is not repeated.
const NOT_FOUND: u64 = 1000;
/// Number of samples for which a tree is not scanned for changes again after an unsuccessful search
/// for a module without parts: a new loss is created for every batch.
const RESCAN: u64 = 64;
/// Maximum number of repetitions of a search because the tree changed: each may find a change one
/// level deeper, where a freed tree's memory was reused.
const TRIES: usize = MAX_DEPTH + 2;

/// How one module is reached from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By these names; empty if there are only wrappers in between.
    To(String),
    /// The first does not contain the second.
    None,
    /// Not searched: the limit is reached, or the tree is being rebuilt.
    Unknown,
}

#[derive(Clone, Debug)]
struct Route {
    generation: u64,
    /// The last round in which a negative result is valid.
    until: u64,
    /// The names, and the modules in between; `None` if there is no route.
    found: Option<(String, Vec<u64>)>,
}

/// A module that a search visited.
struct Step {
    object: u64,
    /// The step of the module that contains it, and its index among that module's parts.
    from: (usize, usize),
    depth: usize,
}

/// The routes that were found in one process.
#[derive(Clone, Debug, Default)]
pub(super) struct Routes {
    kept: FxHashMap<(u64, u64), Route>,
    /// The round in which each tree was last scanned for changes.
    scanned: FxHashMap<u64, u64>,
    searches_left: usize,
}

impl Routes {
    pub(super) fn begin(&mut self) {
        self.searches_left = MAX_SEARCHES;
        if self.kept.len() > MAX_KEPT || self.scanned.len() > MAX_KEPT {
            self.kept.clear();
            self.scanned.clear();
        }
    }

    /// The route from `owner` down to `child`.
    pub(super) fn find(
        &mut self,
        owner: u64,
        child: u64,
        objects: &mut Objects,
        memory: &dyn Memory,
    ) -> Way {
        if let Some(way) = self.known(owner, child, objects, memory) {
            return way;
        }
        let Some(left) = self.searches_left.checked_sub(1) else {
            return Way::Unknown;
        };
        self.searches_left = left;
        for _ in 0..TRIES {
            let generation = objects.generation();
            let (found, seen) = search(owner, child, objects, memory);
            let until = match &found {
                Some((_, between)) if !holds(owner, between, child, objects, memory) => continue,
                Some(_) => u64::MAX,
                None => self.rescan(owner, child, &seen, objects, memory),
            };
            if objects.generation() != generation {
                continue;
            }
            let way = match &found {
                Some((name, _)) => Way::To(name.clone()),
                None => Way::None,
            };
            let route = Route {
                generation,
                until,
                found,
            };
            self.kept.insert((owner, child), route);
            return way;
        }
        Way::Unknown
    }

    /// A route that was found before, if it is still valid.
    fn known(
        &self,
        owner: u64,
        child: u64,
        objects: &mut Objects,
        memory: &dyn Memory,
    ) -> Option<Way> {
        let route = self.kept.get(&(owner, child))?;
        if route.generation != objects.generation() {
            return None;
        }
        match &route.found {
            None => (objects.round() <= route.until).then_some(Way::None),
            Some((name, between)) => {
                holds(owner, between, child, objects, memory).then(|| Way::To(name.clone()))
            }
        }
    }

    /// Reads again what changed in the modules that an unsuccessful search visited, since it used
    /// facts without a check. Returns the round until which the search need not be repeated.
    fn rescan(
        &mut self,
        owner: u64,
        child: u64,
        seen: &[u64],
        objects: &mut Objects,
        memory: &dyn Memory,
    ) -> u64 {
        let round = objects.round();
        let has_parts = objects
            .module(child, memory)
            .is_some_and(|module| !module.children.is_empty());
        let last = self.scanned.get(&owner).copied();
        if let Some(last) = last.filter(|last| !has_parts && round < last + RESCAN) {
            return last + RESCAN;
        }
        self.scanned.insert(owner, round);
        objects.refresh(seen, memory);
        round + NOT_FOUND
    }
}

/// Whether `owner` contains `child` through `between` now: all of them are unchanged.
fn holds(
    owner: u64,
    between: &[u64],
    child: u64,
    objects: &mut Objects,
    memory: &dyn Memory,
) -> bool {
    let generation = objects.generation();
    let mut last_holds = false;
    for &object in [owner].iter().chain(between) {
        let Some(module) = objects.module(object, memory) else {
            return false;
        };
        last_holds = module.children.iter().any(|&(_, part)| part == child);
    }
    last_holds && objects.generation() == generation
}

/// Breadth first, from `owner`: the nearest and first route wins, since a call would most likely
/// use it. Also returns all modules that it visited.
fn search(
    owner: u64,
    child: u64,
    objects: &mut Objects,
    memory: &dyn Memory,
) -> (Option<(String, Vec<u64>)>, Vec<u64>) {
    let mut seen: FxHashSet<u64> = FxHashSet::from_iter([owner]);
    let mut steps = vec![Step {
        object: owner,
        from: (0, 0),
        depth: 0,
    }];
    let mut next = 0;
    while let Some(step) = steps.get(next) {
        let (at, depth) = (next, step.depth);
        let object = step.object;
        next += 1;
        let Some(module) = module_of(object, at, objects, memory) else {
            continue;
        };
        let found = module.children.iter().position(|&(_, part)| part == child);
        if let Some(name) = found {
            return (names(&steps, at, name, objects, memory), Vec::new());
        }
        if depth + 1 >= MAX_DEPTH {
            continue;
        }
        for (name, &(_, part)) in module.children.iter().enumerate() {
            if steps.len() < MAX_SEARCH && seen.insert(part) {
                steps.push(Step {
                    object: part,
                    from: (at, name),
                    depth: depth + 1,
                });
            }
        }
    }
    (None, steps.iter().map(|step| step.object).collect())
}

/// The module at a step: the first one checked, the others as last read.
fn module_of<'o>(
    object: u64,
    at: usize,
    objects: &'o mut Objects,
    memory: &dyn Memory,
) -> Option<&'o ModuleObject> {
    match at {
        0 => objects.module(object, memory),
        _ => objects.module_as_known(object, memory),
    }
}

/// The names down to part `name` of the module at step `last`, without those of wrappers, and the
/// modules in between.
fn names(
    steps: &[Step],
    last: usize,
    name: usize,
    objects: &mut Objects,
    memory: &dyn Memory,
) -> Option<(String, Vec<u64>)> {
    let mut parts: Vec<String> = Vec::new();
    let mut between = Vec::new();
    let (mut at, mut name) = (last, name);
    loop {
        let step = steps.get(at)?;
        let module = module_of(step.object, at, objects, memory)?;
        let (part, _) = module.children.get(name)?;
        if !is_wrapped(&module.class, part) {
            parts.push(part.clone());
        }
        if at == 0 {
            break;
        }
        between.push(step.object);
        (at, name) = step.from;
    }
    parts.reverse();
    between.reverse();
    Some((parts.join("."), between))
}
