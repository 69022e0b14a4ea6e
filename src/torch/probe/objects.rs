//! Module objects of one process, read once, and checked with a few words whenever they are seen
//! again.

use super::checks::{Answers, Check};
use crate::memory::Memory;
use crate::python::dicts::{
    Entry, InstanceDict, MAX_ENTRIES, Table, TypeFacts, read_entries, read_table, read_type,
};
use crate::python::discover::Interpreter;
use crate::python::layout::Layout;
use crate::python::layout::objects::{
    CELL_CONTENTS, DICT_KEYS, DICT_USED, INT_DIGIT, ObjectLayout,
};
use crate::python::objects::{ObjectError, read_str};
use crate::torch::rules::modules::{BASE, CHILDREN, TRAINING, is_wrapped};
use rustc_hash::FxHashMap;

/// Above this number of objects, those that were not seen for long are dropped.
const MAX_OBJECTS: usize = 32_768;
/// Maximum number of names of parts, over all objects.
const MAX_CHILDREN: usize = 1 << 20;
/// Maximum number of types that are kept.
const MAX_TYPES: usize = 4096;
/// Maximum number of attributes of an instance that are read.
const MAX_ATTRIBUTES: usize = 1024;
/// Maximum number of modules and names of parts that are read for one sample, which takes a
/// fraction of a second.
const MAX_READS: usize = 32_768;
/// Maximum length of a part's name, bytes.
const MAX_NAME: usize = 256;
/// `ma_used`, version or watchers' tag, `ma_keys` and `ma_values`.
const DICT_FIELDS: usize = 32;

/// A module at its last read.
#[derive(Clone, Debug)]
pub(super) struct ModuleObject {
    pub(super) class: String,
    /// Its parts by name, in their order.
    pub(super) children: Vec<(String, u64)>,
    /// The module that it wraps; `None` if it is no wrapper.
    pub(super) wrapped: Option<u64>,
    /// `training`; `None` if the instance has no such attribute (`OptimizedModule` of torch.compile
    /// has a property).
    pub(super) training: Option<bool>,
    /// Address of the pointer to True or False.
    training_slot: Option<u64>,
}

#[derive(Clone, Debug)]
struct Known {
    /// `None`: it is not a module.
    module: Option<ModuleObject>,
    checks: Vec<Check>,
    /// The round in which it was last checked.
    round: u64,
}

/// The objects of one process, by address.
#[derive(Clone, Debug)]
pub(super) struct Objects {
    layout: Layout,
    objects: ObjectLayout,
    known: FxHashMap<u64, Known>,
    children: usize,
    types: FxHashMap<u64, (TypeFacts, bool)>,
    /// True and False, by address.
    flags: FxHashMap<u64, bool>,
    /// Addresses of the interned names of the two attributes.
    names: Option<(u64, u64)>,
    round: u64,
    /// Number of modules and names that may still be read in this round.
    reads_left: usize,
    /// The process has ended: facts can no longer be checked.
    is_gone: bool,
    /// Counts changes of trees: results derived from an earlier generation are void.
    generation: u64,
}

impl Objects {
    pub(super) fn new(interpreter: &Interpreter) -> Self {
        Self {
            layout: interpreter.layout,
            objects: interpreter.layout.objects,
            known: FxHashMap::default(),
            children: 0,
            types: FxHashMap::default(),
            flags: FxHashMap::default(),
            names: None,
            round: 0,
            reads_left: MAX_READS,
            is_gone: false,
            generation: 0,
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn round(&self) -> u64 {
        self.round
    }

    /// Begins a round: earlier facts have to be checked again. Checks `objects` with one vectored
    /// read.
    pub(super) fn begin(&mut self, objects: &[u64], memory: &dyn Memory) {
        self.round += 1;
        self.reads_left = MAX_READS;
        self.is_gone = false;
        self.evict();
        let known: Vec<u64> = objects
            .iter()
            .copied()
            .filter(|object| self.known.contains_key(object))
            .collect();
        self.check(&known, memory);
    }

    /// The module at `object`, checked in this round; `None` if there is none.
    pub(super) fn module(&mut self, object: u64, memory: &dyn Memory) -> Option<&ModuleObject> {
        if !self.is_current(object) {
            self.check(&[object], memory);
        }
        if !self.is_current(object) {
            self.read_anew(object, memory);
        }
        self.known.get(&object)?.module.as_ref()
    }

    fn is_current(&self, object: u64) -> bool {
        let known = self.known.get(&object);
        known.is_some_and(|known| self.is_gone || known.round == self.round)
    }

    /// The module at `object` at its last read, without a check.
    pub(super) fn module_as_known(
        &mut self,
        object: u64,
        memory: &dyn Memory,
    ) -> Option<&ModuleObject> {
        if !self.known.contains_key(&object) {
            return self.module(object, memory);
        }
        self.known.get(&object)?.module.as_ref()
    }

    /// Compares facts about `objects` with memory, and reads again what changed.
    pub(super) fn refresh(&mut self, objects: &[u64], memory: &dyn Memory) {
        let mut stale = objects.to_vec();
        stale.retain(|object| self.known.contains_key(object) && !self.is_current(*object));
        self.check(&stale, memory);
        for object in stale {
            if !self.is_current(object) {
                self.read_anew(object, memory);
            }
        }
    }

    /// Whether the object could be read, whatever it is.
    pub(super) fn is_known(&self, object: u64) -> bool {
        self.known.contains_key(&object)
    }

    /// The content of a cell; any other object is returned unchanged.
    pub(super) fn out_of_cell(&mut self, object: u64, memory: &dyn Memory) -> u64 {
        let is_cell = read_type(&self.objects, object, memory)
            .and_then(|address| self.type_facts(address, memory))
            .is_ok_and(|(facts, _)| facts.name == "cell");
        match is_cell {
            true => memory
                .read_u64(object.wrapping_add(self.objects.at(CELL_CONTENTS)))
                .unwrap_or(0),
            false => object,
        }
    }

    /// Compares facts about `objects` with memory, in one read.
    fn check(&mut self, objects: &[u64], memory: &dyn Memory) {
        let mut checks: Vec<Check> = Vec::new();
        let mut parts = Vec::with_capacity(objects.len());
        for object in objects {
            let Some(known) = self.known.get(object) else {
                continue;
            };
            let start = checks.len();
            checks.extend_from_slice(&known.checks);
            let training = known
                .module
                .as_ref()
                .and_then(|module| module.training_slot);
            parts.push((*object, start..checks.len(), training.is_some()));
            checks.extend(training.map(Check::word));
        }
        let answers = Answers::read(&checks, memory);
        self.is_gone |= answers.is_gone();
        for (object, range, has_flag) in parts {
            let training = answers.word_at(range.end).filter(|_| has_flag);
            if !answers.all_hold(range) || (has_flag && training.is_none()) {
                continue;
            }
            let flag = training.and_then(|pointer| self.flag(pointer, memory));
            if let Some(known) = self.known.get_mut(&object) {
                known.round = self.round;
                if let Some(module) = &mut known.module {
                    module.training = flag;
                }
            }
        }
    }

    /// Reads the object at `object`, and replaces its facts.
    fn read_anew(&mut self, object: u64, memory: &dyn Memory) {
        let before = self.known.remove(&object);
        // An unreadable object cannot be part of a path.
        let now = self.read(object, memory).ok();
        let (had, has) = (parts_of(before.as_ref()), parts_of(now.as_ref()));
        self.children = (self.children + has.len()).saturating_sub(had.len());
        let class = |known: &Option<Known>| {
            let module = known.as_ref()?.module.as_ref()?;
            Some(module.class.clone())
        };
        let has_parts = !had.is_empty() || !has.is_empty();
        if before.is_some() && has_parts && (had != has || class(&before) != class(&now)) {
            self.generation += 1;
        }
        if let Some(now) = now {
            self.known.insert(object, now);
        }
    }

    fn read(&mut self, object: u64, memory: &dyn Memory) -> Result<Known, ObjectError> {
        let type_address = read_type(&self.objects, object, memory)?;
        let mut checks = Vec::with_capacity(6);
        let type_word = object.wrapping_add(self.objects.type_offset().into());
        checks.push(Check::take(type_word, 8, memory)?);
        let (facts, is_module) = self.type_facts(type_address, memory)?;
        let (facts, is_module) = (facts.clone(), *is_module);
        let module = match is_module {
            true => self.read_module(object, &facts, &mut checks, memory)?,
            false => None,
        };
        // Freed or rebuilt during the read? Then the words that were read first have changed.
        if !checks.iter().all(|check| check.holds(memory)) {
            return Err(ObjectError::Invalid);
        }
        Ok(Known {
            module,
            checks,
            round: self.round,
        })
    }

    fn read_module(
        &mut self,
        object: u64,
        facts: &TypeFacts,
        checks: &mut Vec<Check>,
        memory: &dyn Memory,
    ) -> Result<Option<ModuleObject>, ObjectError> {
        let Some((pointers, length)) = facts.attribute_pointers(&self.objects, object) else {
            return Ok(None);
        };
        checks.push(Check::take(pointers, length, memory)?);
        let table = match facts.attributes(&self.objects, object, memory)? {
            None => return Ok(None),
            Some(InstanceDict::Values(table)) => table,
            Some(InstanceDict::Dict(dict)) => {
                let keys = dict.wrapping_add(self.objects.at(DICT_KEYS));
                checks.push(Check::take(keys, 16, memory)?);
                read_table(&self.objects, dict, memory)?
            }
        };
        let (children, training) = self.own_attributes(&table, memory)?;
        let Some(children) = children else {
            return Ok(None);
        };
        checks.push(Check::take(children.place, 8, memory)?);
        let dict_type = read_type(&self.objects, children.value, memory)?;
        if !self.type_facts(dict_type, memory)?.0.is_dict() {
            return Ok(None);
        }
        // Adding or removing an entry changes one of them.
        let fields = children.value.wrapping_add(self.objects.at(DICT_USED));
        checks.push(Check::take(fields, DICT_FIELDS, memory)?);
        let table = read_table(&self.objects, children.value, memory)?;
        let entries = read_entries(&self.objects, &table, MAX_ENTRIES, memory)?;
        if !self.objects.tells_replaced {
            checks.extend(replaced_check(&entries, memory)?);
        }
        self.reads_left = self
            .reads_left
            .checked_sub(1 + entries.len())
            .ok_or(ObjectError::TooLong)?;
        let mut parts = Vec::with_capacity(entries.len());
        for entry in entries {
            parts.push((
                read_str(&self.layout, entry.key, MAX_NAME, memory)?,
                entry.value,
            ));
        }
        let wrapped = parts.iter().find(|(name, _)| is_wrapped(&facts.name, name));
        Ok(Some(ModuleObject {
            class: facts.name.clone(),
            wrapped: wrapped.map(|&(_, object)| object),
            children: parts,
            training: training.and_then(|training| self.flag(training.value, memory)),
            training_slot: training.map(|training| training.place),
        }))
    }

    /// The attributes `_modules` and `training`.
    fn own_attributes(
        &mut self,
        table: &Table,
        memory: &dyn Memory,
    ) -> Result<(Option<Entry>, Option<Entry>), ObjectError> {
        let entries = read_entries(&self.objects, table, MAX_ATTRIBUTES, memory)?;
        let by_key = |key: u64| entries.iter().find(|entry| entry.key == key).copied();
        // Names of attributes are interned: reading their text once per process is enough.
        if let Some((children, training)) = self.names
            && let Some(children) = by_key(children)
        {
            return Ok((Some(children), by_key(training)));
        }
        let (mut children, mut training) = (None, None);
        for entry in &entries {
            match read_str(&self.layout, entry.key, MAX_NAME, memory).as_deref() {
                Ok(CHILDREN) => children = Some(*entry),
                Ok(TRAINING) => training = Some(*entry),
                _ => {}
            }
        }
        if let (Some(children), Some(training)) = (children, training) {
            self.names = Some((children.key, training.key));
        }
        Ok((children, training))
    }

    /// The value of True or False; `None` for any other object.
    fn flag(&mut self, pointer: u64, memory: &dyn Memory) -> Option<bool> {
        if let Some(&known) = self.flags.get(&pointer) {
            return Some(known);
        }
        let type_address = read_type(&self.objects, pointer, memory).ok()?;
        let (facts, _) = self.type_facts(type_address, memory).ok()?;
        if facts.name != "bool" || self.flags.len() >= 2 {
            return None;
        }
        let digit = memory
            .read_u32(pointer.wrapping_add(self.objects.at(INT_DIGIT)))
            .ok()?;
        self.flags.insert(pointer, digit != 0);
        Some(digit != 0)
    }

    /// The type at `address`, and whether its instances are modules.
    fn type_facts(
        &mut self,
        address: u64,
        memory: &dyn Memory,
    ) -> Result<&(TypeFacts, bool), ObjectError> {
        let is_current = self
            .types
            .get(&address)
            .is_some_and(|(facts, _)| facts.is_current(memory));
        if !is_current {
            if self.types.len() >= MAX_TYPES {
                self.types.clear();
            }
            let facts = TypeFacts::read(&self.objects, address, memory)?;
            let is_module = facts.has_base(BASE, memory).unwrap_or(false);
            self.types.insert(address, (facts, is_module));
        }
        self.types.get(&address).ok_or(ObjectError::Invalid)
    }

    /// Bounds the number of objects: those that were not seen for long are dropped.
    fn evict(&mut self) {
        const SEEN_LATELY: u64 = 1000;
        if self.known.len() < MAX_OBJECTS && self.children < MAX_CHILDREN {
            return;
        }
        let oldest = self.round.saturating_sub(SEEN_LATELY);
        self.known.retain(|_, known| known.round >= oldest);
        self.children = self
            .known
            .values()
            .filter_map(|known| known.module.as_ref())
            .map(|module| module.children.len())
            .sum();
        if self.known.len() >= MAX_OBJECTS / 2 || self.children >= MAX_CHILDREN / 2 {
            self.known.clear();
            self.children = 0;
        }
        self.generation += 1;
    }
}

fn parts_of(known: Option<&Known>) -> &[(String, u64)] {
    let module = known.and_then(|known| known.module.as_ref());
    module.map_or(&[], |module| &module.children)
}

/// A check that finds whether one of the first few hundred values was replaced.
fn replaced_check(entries: &[Entry], memory: &dyn Memory) -> Result<Option<Check>, ObjectError> {
    let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
        return Ok(None);
    };
    let length = last.place.wrapping_sub(first.place).saturating_add(8);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    Ok(Some(Check::take(first.place, length, memory)?))
}
