//! Python objects of one process, read for one answer: classes, attributes and items, within limits
//! of number and time.

use super::arrays::ARRAY;
use super::pages::Pages;
use crate::memory::Memory;
use crate::python::collections::{deque_length, last_of_deque, set_items, set_length};
use crate::python::dicts::{Entry, InstanceDict, TypeFacts, read_entries, read_table, read_type};
use crate::python::discover::Interpreter;
use crate::python::layout::objects::{CELL_CONTENTS, DICT_USED, LENGTH, LIST_ITEMS};
use crate::python::objects::{ObjectError, read_str};
use crate::torch::rules::modules::BASE;
use crate::torch::rules::progress::OPTIMIZER;
use crate::torch::rules::tensors::TENSOR;
use rustc_hash::FxHashMap;
use std::rc::Rc;
use std::time::Instant;

/// Maximum number of entries of a dictionary, or of a list.
pub(super) const MAX_ENTRIES: usize = 1 << 18;
/// Maximum number of attributes of an instance.
const MAX_ATTRIBUTES: usize = 4096;
/// Maximum number of objects that are opened.
const MAX_OPENED: usize = 1 << 18;
/// Longer texts are not plausible, bytes.
const MAX_TEXT: u64 = 1 << 40;
/// Maximum length of a name, bytes.
const MAX_NAME: usize = 256;
/// `PyMethodObject.im_self`. Include/cpython/classobject.h of 3.10 to 3.15.
const METHOD_SELF: u32 = 24;
/// `func_defaults` and `func_closure` of `PyFunctionObject`, tuples or null.
/// Include/cpython/funcobject.h of 3.10 to 3.15.
const FUNCTION_DEFAULTS: u32 = 56;
const FUNCTION_CLOSURE: u32 = 72;
/// Classes whose attributes lead to no tensors of a trainer.
const IGNORED: &[&str] = &[
    "module",
    "type",
    "function",
    "builtin_function_or_method",
    "property",
    "ModuleSpec",
    "SourceFileLoader",
    "ABCMeta",
    "EnumMeta",
    "EnumType",
    "Logger",
    "partial",
    "code",
];

/// What an object is to the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Module,
    Optimizer,
    Tensor,
    /// Of NumPy.
    Array,
    List,
    Tuple,
    Set,
    Deque,
    Dict,
    Cell,
    Method,
    /// Another object with attributes.
    Instance,
    Other,
}

pub(super) struct Objects<'a> {
    pub(super) interpreter: &'a Interpreter,
    pub(super) memory: &'a Pages<'a>,
    types: FxHashMap<u64, Rc<(TypeFacts, Class)>>,
    names: FxHashMap<u64, Rc<str>>,
    opened: usize,
    until: Instant,
    cut: Option<&'static str>,
    is_spent: bool,
}

impl<'a> Objects<'a> {
    pub(super) fn new(interpreter: &'a Interpreter, memory: &'a Pages<'a>, until: Instant) -> Self {
        Self {
            interpreter,
            memory,
            types: FxHashMap::default(),
            names: FxHashMap::default(),
            opened: 0,
            until,
            cut: None,
            is_spent: false,
        }
    }

    /// Why objects were left out; `None` if none were.
    pub(super) fn cut(&self) -> Option<&'static str> {
        self.cut
    }

    /// States that objects were left out.
    pub(super) fn leave_out(&mut self, why: &'static str) {
        self.cut.get_or_insert(why);
    }

    /// Whether another object may be opened.
    fn may_open(&mut self) -> bool {
        self.opened += 1;
        if self.opened > MAX_OPENED {
            self.leave_out("there are more objects than torchspy reads");
            self.is_spent = true;
        } else if self.opened.is_multiple_of(64) && Instant::now() >= self.until {
            self.leave_out("the time for it was over");
            self.is_spent = true;
        }
        !self.is_spent
    }

    fn type_of(&mut self, object: u64) -> Result<Rc<(TypeFacts, Class)>, ObjectError> {
        let layout = &self.interpreter.layout.objects;
        let address = read_type(layout, object, self.memory)?;
        if let Some(known) = self.types.get(&address) {
            return Ok(Rc::clone(known));
        }
        let facts = TypeFacts::read(layout, address, self.memory)?;
        let class = class_of(&facts, self.memory);
        let known = Rc::new((facts, class));
        self.types.insert(address, Rc::clone(&known));
        Ok(known)
    }

    pub(super) fn class(&mut self, object: u64) -> Class {
        self.type_of(object).map_or(Class::Other, |known| known.1)
    }

    /// The last part of the name of the object's class.
    pub(super) fn class_name(&mut self, object: u64) -> String {
        let known = self.type_of(object);
        known.map_or_else(|_| String::new(), |known| known.0.name.clone())
    }

    /// `tp_basicsize` of its class, bytes.
    pub(super) fn basic_size(&mut self, object: u64) -> u64 {
        self.type_of(object).map_or(0, |known| known.0.basic_size())
    }

    /// A short `str`.
    pub(super) fn name(&mut self, key: u64) -> Rc<str> {
        if let Some(known) = self.names.get(&key) {
            return Rc::clone(known);
        }
        let text = read_str(&self.interpreter.layout, key, MAX_NAME, self.memory);
        let name: Rc<str> = text.unwrap_or_default().into();
        self.names.insert(key, Rc::clone(&name));
        name
    }

    /// The attributes of an instance itself.
    pub(super) fn attributes(&mut self, object: u64) -> Result<Vec<Entry>, ObjectError> {
        if !self.may_open() {
            return Ok(Vec::new());
        }
        let layout = &self.interpreter.layout.objects;
        let known = self.type_of(object)?;
        let table = match known.0.attributes(layout, object, self.memory)? {
            None => return Ok(Vec::new()),
            Some(InstanceDict::Values(table)) => table,
            Some(InstanceDict::Dict(dict)) => read_table(layout, dict, self.memory)?,
        };
        read_entries(layout, &table, MAX_ATTRIBUTES, self.memory)
    }

    /// The entries of a dictionary.
    pub(super) fn entries(&mut self, dict: u64, most: usize) -> Result<Vec<Entry>, ObjectError> {
        if !self.may_open() {
            return Ok(Vec::new());
        }
        if !self.type_of(dict)?.0.is_dict() {
            return Err(ObjectError::Invalid);
        }
        let layout = &self.interpreter.layout.objects;
        let table = read_table(layout, dict, self.memory)?;
        read_entries(layout, &table, most, self.memory)
    }

    /// The first `most` items of a list or a tuple, some of a set, the last of a deque.
    pub(super) fn items(&mut self, object: u64, most: usize) -> Result<Vec<u64>, ObjectError> {
        if !self.may_open() {
            return Ok(Vec::new());
        }
        let layout = &self.interpreter.layout.objects;
        let first = match self.class(object) {
            Class::List => {
                let place = object.wrapping_add(layout.at(LIST_ITEMS));
                self.memory.read_u64(place)?
            }
            Class::Tuple => object.wrapping_add(layout.tuple_items.into()),
            Class::Set => return set_items(layout, object, most, self.memory),
            Class::Deque => return last_of_deque(layout, object, most, self.memory),
            _ => return Err(ObjectError::Invalid),
        };
        let length = self
            .memory
            .read_u64(object.wrapping_add(layout.at(LENGTH)))?;
        let length = usize::try_from(length).map_err(|_| ObjectError::Invalid)?;
        if length == 0 {
            return Ok(Vec::new());
        }
        let bytes = self.memory.read_bytes(first, length.min(most) * 8)?;
        let words = bytes.chunks_exact(8);
        Ok(words
            .filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)))
            .collect())
    }

    /// Number of items of a list, a set or a deque without a limit, or of entries of a dictionary.
    pub(super) fn length(&mut self, object: u64) -> Option<u64> {
        let layout = &self.interpreter.layout.objects;
        let field = match self.class(object) {
            Class::List => LENGTH,
            Class::Dict => DICT_USED,
            Class::Deque => return deque_length(layout, object, self.memory),
            Class::Set => return set_length(layout, object, self.memory).ok(),
            _ => return None,
        };
        self.memory
            .read_u64(object.wrapping_add(layout.at(field)))
            .ok()
    }

    /// Length of a `str`, `bytes` or `bytearray`.
    pub(super) fn text_length(&self, object: u64) -> u64 {
        let place = object.wrapping_add(self.interpreter.layout.objects.at(LENGTH));
        self.memory.read_u64(place).unwrap_or(0).min(MAX_TEXT)
    }

    /// The last `most` items of a list or a deque, or values of a dictionary; some of a set.
    pub(super) fn last_items(&mut self, object: u64, most: usize) -> Vec<u64> {
        let mut items = match self.class(object) {
            Class::List => self.items(object, MAX_ENTRIES).unwrap_or_default(),
            Class::Dict => {
                let entries = self.entries(object, MAX_ENTRIES).unwrap_or_default();
                entries.iter().map(|entry| entry.value).collect()
            }
            Class::Set | Class::Deque => self.items(object, most).unwrap_or_default(),
            _ => Vec::new(),
        };
        items.split_off(items.len().saturating_sub(most))
    }

    /// The default arguments and the cells of a function.
    pub(super) fn kept_by_function(&self, object: u64) -> Vec<u64> {
        let layout = &self.interpreter.layout.objects;
        let field = |field: u32| self.memory.read_u64(object.wrapping_add(layout.at(field)));
        let fields = [FUNCTION_DEFAULTS, FUNCTION_CLOSURE].map(field);
        fields
            .into_iter()
            .flatten()
            .filter(|&word| word != 0)
            .collect()
    }

    /// The object in a cell, or that a method is bound to; 0 if there is none.
    pub(super) fn inner(&self, object: u64, class: Class) -> u64 {
        let layout = &self.interpreter.layout.objects;
        let field = match class {
            Class::Cell => CELL_CONTENTS,
            Class::Method => METHOD_SELF,
            _ => return 0,
        };
        let place = object.wrapping_add(layout.at(field));
        self.memory.read_u64(place).unwrap_or(0)
    }
}

fn class_of(facts: &TypeFacts, memory: &dyn Memory) -> Class {
    let has_base = |name: &str| facts.has_base(name, memory).unwrap_or(false);
    match facts.name.as_str() {
        "list" => Class::List,
        "set" => Class::Set,
        "deque" => Class::Deque,
        "tuple" => Class::Tuple,
        "cell" => Class::Cell,
        "method" => Class::Method,
        name if IGNORED.contains(&name) => Class::Other,
        _ if facts.is_dict() => Class::Dict,
        _ if has_base(BASE) => Class::Module,
        _ if has_base(OPTIMIZER) => Class::Optimizer,
        _ if has_base(TENSOR) => Class::Tensor,
        _ if has_base(ARRAY) => Class::Array,
        _ if facts.has_attributes() => Class::Instance,
        _ => Class::Other,
    }
}
