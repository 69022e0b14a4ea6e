//! Searches for modules and optimizers, from the variables of frames through attributes and
//! containers.

use super::objects::{Class, Objects};
use crate::memory::Memory;
use crate::model::ids::CodeId;
use crate::python::code_object::CodeCache;
use crate::python::dicts::Entry;
use crate::python::frames::{PythonFrame, PythonStack, read_running_stack};
use crate::python::modules::read_module;
use crate::python::variables::{read_variables, variable_names};
use crate::torch::rules::modules::CHILDREN;
use crate::torch::rules::progress::{GROUPS, STATES, is_library};
use crate::torch::rules::tensors::{MODULE_BUFFERS, MODULE_PARAMETERS};
use rustc_hash::FxHashSet;
use std::rc::Rc;

/// Maximum number of frames of a thread.
const MAX_FRAMES: usize = 256;
/// Maximum number of objects that are visited.
const MAX_VISITED: usize = 50_000;
/// Maximum number of steps from a variable.
const MAX_DEPTH: usize = 4;
/// Maximum number of items of a container that are visited, and of variables of a module.
const MAX_ITEMS: usize = 256;
const MAX_GLOBALS: usize = 4096;
/// Attributes of modules and optimizers that are read as what they are.
const READ_AS_SUCH: &[&str] = &[CHILDREN, MODULE_PARAMETERS, MODULE_BUFFERS, STATES, GROUPS];
/// The module of a program's script.
const MAIN: &str = "__main__";

/// An object, and the expression that leads to it.
#[derive(Clone, Debug)]
pub(super) struct Reached {
    pub(super) object: u64,
    pub(super) name: String,
    /// Where the variable is.
    pub(super) scope: Rc<Scope>,
}

/// A function with its local variables, or a module with its global ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Scope {
    pub(super) file: String,
    /// Empty for a module.
    pub(super) function: String,
    pub(super) first_line: u32,
}

impl Reached {
    /// An object that this one leads to.
    pub(super) fn to(&self, object: u64, name: String) -> Self {
        Self {
            object,
            name,
            scope: Rc::clone(&self.scope),
        }
    }
}

/// Modules and optimizers, nearest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Roots {
    pub(super) modules: Vec<Reached>,
    pub(super) optimizers: Vec<Reached>,
}

/// Searches from the frames of threads, by the addresses of their states, and from the variables of
/// the program's script.
pub(super) fn find(states: &[u64], objects: &mut Objects<'_>) -> Roots {
    let mut level = starts(states, objects);
    let mut roots = Roots::default();
    let mut seen = FxHashSet::default();
    for _ in 0..=MAX_DEPTH {
        let mut next = Vec::new();
        for reached in level {
            if !seen.insert(reached.object) {
                continue;
            }
            if seen.len() > MAX_VISITED {
                objects.leave_out("variables lead to more objects than torchspy visits");
            }
            if objects.cut().is_some() {
                return roots;
            }
            visit(reached, objects, &mut roots, &mut next);
        }
        level = next;
    }
    roots
}

fn visit(reached: Reached, objects: &mut Objects<'_>, roots: &mut Roots, next: &mut Vec<Reached>) {
    let class = objects.class(reached.object);
    expand(&reached, class, objects, MAX_ITEMS, next);
    match class {
        Class::Module => roots.modules.push(reached),
        Class::Optimizer => roots.optimizers.push(reached),
        _ => {}
    }
}

/// Adds what an object leads to, of containers the first `most` items.
pub(super) fn expand(
    reached: &Reached,
    class: Class,
    objects: &mut Objects<'_>,
    most: usize,
    next: &mut Vec<Reached>,
) {
    let Reached { object, name, .. } = reached;
    let object = *object;
    match class {
        // What is at a place of a set or a deque is another object later.
        Class::Tensor | Class::Array | Class::Set | Class::Deque | Class::Other => {}
        Class::Cell | Class::Method => {
            next.push(reached.to(objects.inner(object, class), name.clone()));
        }
        Class::List | Class::Tuple => {
            let items = objects.items(object, most).unwrap_or_default();
            let items = (0..).zip(items);
            next.extend(
                items.map(|(at, object): (usize, u64)| reached.to(object, format!("{name}[{at}]"))),
            );
        }
        Class::Dict => {
            let entries = objects.entries(object, most).unwrap_or_default();
            for entry in entries {
                let key = objects.name(entry.key);
                next.push(reached.to(entry.value, format!("{name}[{key}]")));
            }
        }
        Class::Module | Class::Optimizer | Class::Instance => {
            let attributes = objects.attributes(object).unwrap_or_default();
            for entry in attributes {
                let attribute = objects.name(entry.key);
                if class != Class::Instance && READ_AS_SUCH.contains(&&*attribute) {
                    continue;
                }
                next.push(reached.to(entry.value, format!("{name}.{attribute}")));
            }
        }
    }
}

/// The variables of frames, root first, and of the modules that the user's functions are from.
pub(super) fn starts(states: &[u64], objects: &mut Objects<'_>) -> Vec<Reached> {
    let (interpreter, memory) = (objects.interpreter, objects.memory);
    let mut codes = CodeCache::new(interpreter);
    let (mut own, mut of_libraries) = (Vec::new(), Vec::new());
    let mut globals: Vec<(u64, Rc<Scope>)> = Vec::new();
    for &state in states {
        let mut stack = PythonStack::default();
        // What was read of an incomplete stack is used, too. Pages that were read before are of
        // another time than the rest.
        let _ = read_running_stack(interpreter, state, memory.live(), &mut stack);
        codes.resolve_frames(&stack.frames, memory, memory, |_| CodeId::from_index(0));
        for frame in stack.frames.iter().rev().take(MAX_FRAMES) {
            let Ok(code) = codes.get(frame.code_address) else {
                continue;
            };
            let scope = Rc::new(Scope {
                file: code.info.file.clone(),
                function: code.info.name.clone(),
                first_line: code.info.first_line,
            });
            let is_library = is_library(&scope.file);
            let module = Rc::new(Scope {
                file: scope.file.clone(),
                ..Scope::default()
            });
            let found = variables(frame, &scope, objects);
            match is_library {
                true => of_libraries.extend(found),
                false => {
                    own.extend(found);
                    globals.extend(globals_of(frame, objects).map(|dict| (dict, module)));
                }
            }
        }
    }
    let mut names = FxHashSet::default();
    for (dict, scope) in globals.into_iter().filter(|(dict, _)| names.insert(*dict)) {
        let entries = objects.entries(dict, MAX_GLOBALS).unwrap_or_default();
        own.extend(named(entries, &scope, objects));
    }
    let main = read_module(interpreter, MAIN, memory);
    let main = main.ok().flatten().unwrap_or_default();
    own.extend(named(main, &Rc::default(), objects));
    own.extend(of_libraries);
    own
}

fn named(entries: Vec<Entry>, scope: &Rc<Scope>, objects: &mut Objects<'_>) -> Vec<Reached> {
    let entries = entries.into_iter();
    entries
        .map(|entry| Reached {
            object: entry.value,
            name: objects.name(entry.key).to_string(),
            scope: Rc::clone(scope),
        })
        .collect()
}

fn variables(frame: &PythonFrame, scope: &Rc<Scope>, objects: &Objects<'_>) -> Vec<Reached> {
    let (interpreter, memory) = (objects.interpreter, objects.memory);
    let names = variable_names(interpreter, frame.code_address, memory).unwrap_or_default();
    let found = read_variables(interpreter, frame, &names, memory, |_| true);
    let found = found.unwrap_or_default().into_iter();
    found
        .map(|variable| Reached {
            object: variable.object,
            name: variable.name,
            scope: Rc::clone(scope),
        })
        .collect()
}

/// The dictionary of a frame's global variables.
fn globals_of(frame: &PythonFrame, objects: &Objects<'_>) -> Option<u64> {
    let layout = &objects.interpreter.layout;
    let place = frame
        .frame_address
        .wrapping_add(layout.objects.frame_globals.into());
    let dict = objects.memory.read_u64(place).ok()?;
    Some(dict & !layout.frame.tag_mask)
}
