//! The trees of modules, and the tensors that modules and optimizers have.

use super::objects::{Class, MAX_ENTRIES, Objects};
use super::roots::{Reached, Roots};
use crate::model::held::{HeldModule, Holding};
use crate::python::dicts::Entry;
use crate::python::objects::ObjectError;
use crate::torch::rules::modules::{CHILDREN, is_wrapped};
use crate::torch::rules::progress::{GROUPS, PARAMETERS, STATES};
use crate::torch::rules::tensors::{MODULE_BUFFERS, MODULE_PARAMETERS};
use rustc_hash::{FxHashMap, FxHashSet};

/// Maximum number of tensors.
const MAX_TENSORS: usize = 1 << 18;
/// Maximum number of modules of all trees.
const MAX_MODULES: usize = 1 << 16;
/// Maximum depth of containers in the state of a parameter: LBFGS has lists of tensors.
const MAX_STATE_DEPTH: usize = 3;
/// Number of times that an object is read which changes.
const TRIES: usize = 3;
/// Maximum length of a path, bytes.
const MAX_PATH: usize = 512;

/// A tensor to be read.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) object: u64,
    /// Index of its module.
    pub(super) module: usize,
    pub(super) holding: Holding,
    pub(super) name: String,
}

/// Modules and their tensors.
#[derive(Debug, Default)]
pub(super) struct Walked {
    pub(super) modules: Vec<HeldModule>,
    pub(super) wanted: Vec<Wanted>,
    /// Classes of the optimizers.
    pub(super) optimizers: Vec<String>,
}

/// What was read of a module object.
#[derive(Debug, Default)]
struct Module {
    class: String,
    parts: Vec<(String, u64)>,
    parameters: Vec<(String, u64)>,
    buffers: Vec<(String, u64)>,
}

struct Walker<'w, 'o> {
    objects: &'w mut Objects<'o>,
    walked: Walked,
    known: FxHashMap<u64, Module>,
    /// Module and path of each parameter.
    parameters: FxHashMap<u64, (usize, String)>,
    paths: Vec<String>,
}

pub(super) fn walk(roots: &Roots, objects: &mut Objects<'_>) -> Walked {
    let mut walker = Walker {
        objects,
        walked: Walked::default(),
        known: FxHashMap::default(),
        parameters: FxHashMap::default(),
        paths: Vec::new(),
    };
    walker.read_all(roots);
    let parts: FxHashSet<u64> = walker
        .known
        .values()
        .flat_map(|module| module.parts.iter().map(|&(_, part)| part))
        .collect();
    let mut seen = FxHashSet::default();
    for root in &roots.modules {
        if !parts.contains(&root.object) {
            walker.tree(root, &mut seen);
        }
    }
    // Modules that contain each other.
    for root in &roots.modules {
        walker.tree(root, &mut seen);
    }
    let mut optimizers = FxHashSet::default();
    for optimizer in &roots.optimizers {
        if optimizers.insert(optimizer.object) {
            walker.optimizer(optimizer);
        }
    }
    walker.walked
}

impl Walker<'_, '_> {
    /// Reads all modules that the roots contain.
    fn read_all(&mut self, roots: &Roots) {
        let mut open: Vec<u64> = roots.modules.iter().map(|root| root.object).collect();
        while let Some(object) = open.pop() {
            if self.known.contains_key(&object) || self.objects.class(object) != Class::Module {
                continue;
            }
            if self.known.len() >= MAX_MODULES {
                self.objects
                    .leave_out("there are more modules than torchspy reads");
                return;
            }
            let module = self.module(object);
            open.extend(module.parts.iter().map(|&(_, part)| part));
            self.known.insert(object, module);
        }
    }

    fn module(&mut self, object: u64) -> Module {
        let mut module = Module {
            class: self.objects.class_name(object),
            ..Module::default()
        };
        for entry in self.must(|objects| objects.attributes(object)) {
            let name = self.objects.name(entry.key);
            if ![CHILDREN, MODULE_PARAMETERS, MODULE_BUFFERS].contains(&&*name) {
                continue;
            }
            let entries = self.must(|objects| objects.entries(entry.value, MAX_ENTRIES));
            let named = |entry: Entry| (self.objects.name(entry.key).to_string(), entry.value);
            let entries = entries.into_iter().map(named).collect();
            match &*name {
                CHILDREN => module.parts = entries,
                MODULE_PARAMETERS => module.parameters = entries,
                _ => module.buffers = entries,
            }
        }
        module
    }

    /// Reads an object's content again where it was changed at the same time. States that it is
    /// missing where that does not help.
    fn must<T: Default>(&mut self, read: impl Fn(&mut Objects<'_>) -> Result<T, ObjectError>) -> T {
        for _ in 0..TRIES {
            match read(self.objects) {
                Ok(found) => return found,
                Err(ObjectError::TooLong) => break,
                Err(_) => self.objects.memory.forget(),
            }
        }
        self.objects
            .leave_out("a module or an optimizer could not be read");
        T::default()
    }

    /// Adds a module and all below it, parents first, that were not added before.
    fn tree(&mut self, root: &Reached, seen: &mut FxHashSet<u64>) {
        let mut open = vec![(root.object, None, root.name.clone())];
        while let Some((object, parent, name)) = open.pop() {
            if !seen.insert(object) {
                continue;
            }
            let Some(module) = self.known.remove(&object) else {
                continue;
            };
            let index = self.walked.modules.len();
            let path = match parent.and_then(|parent: usize| self.paths.get(parent)) {
                Some(above) => joined(above, &name),
                None => name.clone(),
            };
            for (name, tensor) in module.parameters {
                self.want(tensor, index, Holding::Parameters, joined(&path, &name));
            }
            for (name, tensor) in module.buffers {
                self.want(tensor, index, Holding::Buffers, joined(&path, &name));
            }
            for (name, part) in module.parts.into_iter().rev() {
                let name = match is_wrapped(&module.class, &name) {
                    true => String::new(),
                    false => name,
                };
                open.push((part, Some(index), name));
            }
            self.paths.push(path);
            self.walked.modules.push(HeldModule {
                parent,
                name,
                class: module.class,
                parts: Vec::new(),
            });
        }
    }

    /// The class of an absent one is `NoneType`.
    fn want(&mut self, object: u64, module: usize, holding: Holding, name: String) {
        if self.objects.class(object) == Class::Other
            && self.objects.class_name(object) == "NoneType"
        {
            return;
        }
        if self.walked.wanted.len() >= MAX_TENSORS {
            self.objects
                .leave_out("there are more tensors than torchspy reads");
            return;
        }
        if holding == Holding::Parameters {
            let place = (module, name.clone());
            self.parameters.entry(object).or_insert(place);
        }
        self.walked.wanted.push(Wanted {
            object,
            module,
            holding,
            name,
        });
    }

    /// The parameters of an optimizer that no module has, and the states of all.
    fn optimizer(&mut self, optimizer: &Reached) {
        let attributes = self.must(|objects| objects.attributes(optimizer.object));
        let class = self.objects.class_name(optimizer.object);
        let (mut groups, mut states) = (None, None);
        for entry in attributes {
            match &*self.objects.name(entry.key) {
                GROUPS => groups = Some(entry.value),
                STATES => states = Some(entry.value),
                _ => {}
            }
        }
        // A wrapper has neither: what it wraps was reached as well.
        let (Some(groups), Some(states)) = (groups, states) else {
            return;
        };
        self.walked.optimizers.push(class.clone());
        let mut own = None;
        for group in self.must(|objects| objects.items(groups, MAX_ENTRIES)) {
            for entry in self.must(|objects| objects.entries(group, MAX_ENTRIES)) {
                if &*self.objects.name(entry.key) != PARAMETERS {
                    continue;
                }
                let parameters = self.must(|objects| objects.items(entry.value, MAX_ENTRIES));
                for (at, parameter) in (0..).zip(parameters) {
                    if !self.parameters.contains_key(&parameter) {
                        let module = self.of_optimizer(&mut own, &class);
                        let name: String = format!("{}[{at}]", optimizer.name);
                        self.want(parameter, module, Holding::Parameters, name);
                    }
                }
            }
        }
        for entry in self.must(|objects| objects.entries(states, MAX_ENTRIES)) {
            let known = self.parameters.get(&entry.key).cloned();
            let (module, path) = match known {
                Some(known) => known,
                None => {
                    let module = self.of_optimizer(&mut own, &class);
                    (module, optimizer.name.clone())
                }
            };
            self.state(entry.value, module, &path, 0);
        }
    }

    /// A root for what only an optimizer holds.
    fn of_optimizer(&mut self, own: &mut Option<usize>, class: &str) -> usize {
        *own.get_or_insert_with(|| {
            let name = format!("only in {class}");
            self.paths.push(name.clone());
            self.walked.modules.push(HeldModule {
                name,
                ..HeldModule::default()
            });
            self.walked.modules.len() - 1
        })
    }

    /// The tensors in the state of a parameter.
    fn state(&mut self, object: u64, module: usize, path: &str, depth: usize) {
        let class = self.objects.class(object);
        match class {
            Class::Tensor => {
                self.want(object, module, Holding::OptimizerState, path.to_owned());
            }
            Class::Dict if depth < MAX_STATE_DEPTH => {
                for entry in self.must(|objects| objects.entries(object, MAX_ENTRIES)) {
                    let key = self.objects.name(entry.key);
                    self.state(entry.value, module, &joined(path, &key), depth + 1);
                }
            }
            Class::List | Class::Tuple if depth < MAX_STATE_DEPTH => {
                for item in self.must(|objects| objects.items(object, MAX_ENTRIES)) {
                    self.state(item, module, path, depth + 1);
                }
            }
            _ => {}
        }
    }
}

/// `a.b`; without a dot where one of them is empty.
fn joined(above: &str, name: &str) -> String {
    match (above.is_empty(), name.is_empty()) {
        (true, _) => name.to_owned(),
        (_, true) => above.to_owned(),
        _ if above.len() + name.len() > MAX_PATH => above.to_owned(),
        _ => format!("{above}.{name}"),
    }
}
