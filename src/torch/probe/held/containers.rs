//! Containers that variables lead to (lists, dictionaries, sets, deques), and which of them grow
//! for as long as they are watched.

use super::arrays::array;
use super::objects::{Class, Objects};
use super::pages::Pages;
use super::roots::{self, Scope};
use super::tensors::{any_keeps_graph, read_tensors};
use crate::memory::Memory;
use crate::model::containers::GrowingContainer;
use crate::python::discover::Interpreter;
use rustc_hash::{FxHashMap, FxHashSet};
use std::time::Instant;

/// Shorter containers are not watched.
const LEAST_LENGTH: u64 = 4;
/// Least number of items that were added.
const LEAST_ADDED: u64 = 8;
/// Least number of readings at which it was longer than before.
const LEAST_RISES: u32 = 2;
/// Maximum number of containers that are watched, of objects that are visited, of steps from a
/// variable, and of items of a container that are followed.
const MAX_CONTAINERS: usize = 16_384;
const MAX_VISITED: usize = 20_000;
const MAX_DEPTH: usize = 4;
const MAX_ITEMS: usize = 16;
/// Most containers that are reported, those with the most added bytes first.
const MOST: usize = 16;
/// Items whose size is read, the last ones, and objects in all of them.
const MEASURED: usize = 8;
/// Most containers whose items are read at a time.
const MAX_RISING: usize = 256;
const MAX_MEASURED_OBJECTS: usize = 512;
/// Smallest object: its head.
const HEAD_BYTES: u64 = 16;
const FUNCTION: &str = "function";
/// Classes whose objects have as many bytes as their length says, a `str` at least.
const TEXTS: &[&str] = &["str", "bytes", "bytearray"];

/// A container at one reading.
#[derive(Clone, Debug)]
struct Found {
    key: Key,
    object: u64,
    class: String,
    length: u64,
}

/// A container by what leads to it: a list that is replaced by a longer one grows, too.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    name: String,
    scope: Scope,
}

/// All containers of one process at one time.
#[derive(Debug, Default)]
pub struct Reading {
    found: Vec<Found>,
    /// What an item is, of containers that got longer.
    items: FxHashMap<usize, Item>,
}

/// The last items of a container.
#[derive(Clone, Debug, Default)]
struct Item {
    /// The class of the last.
    class: String,
    /// Mean bytes of one with all that it leads to, each storage and array once: on the host, and
    /// on other devices.
    bytes: u64,
    device_bytes: u64,
    /// Whether a tensor among them keeps its graph.
    keeps_graph: bool,
}

#[derive(Debug)]
struct Series {
    class: String,
    first: (u64, u64),
    last: (u64, u64),
    rises: u32,
    has_shrunk: bool,
    item: Option<Item>,
}

impl Series {
    fn grows(&self) -> bool {
        !self.has_shrunk
            && self.rises >= LEAST_RISES
            && self.last.1 - self.first.1.min(self.last.1) >= LEAST_ADDED
    }
}

/// Containers of one process over time.
#[derive(Debug, Default)]
pub struct Containers {
    series: FxHashMap<Key, Series>,
}

impl Containers {
    /// Adds what was read at `time_ns`, CLOCK_MONOTONIC.
    pub fn add(&mut self, reading: Reading, time_ns: u64) {
        let Reading { found, mut items } = reading;
        for (at, found) in found.into_iter().enumerate() {
            let now = (time_ns, found.length);
            if self.series.len() >= MAX_CONTAINERS && !self.series.contains_key(&found.key) {
                continue;
            }
            let series = self.series.entry(found.key).or_insert_with(|| Series {
                class: found.class,
                first: now,
                last: now,
                rises: 0,
                has_shrunk: false,
                item: None,
            });
            series.rises += u32::from(now.1 > series.last.1);
            series.has_shrunk |= now.1 < series.last.1;
            series.last = now;
            if let Some(item) = items.remove(&at) {
                series.item = Some(item);
            }
        }
    }

    /// Those that grow, with the most added bytes first.
    pub fn growing(&self) -> Vec<GrowingContainer> {
        let growing = self.series.iter().filter(|(_, series)| series.grows());
        let mut growing: Vec<GrowingContainer> = growing
            .map(|(key, series)| GrowingContainer {
                name: key.name.clone(),
                class: series.class.clone(),
                file: key.scope.file.clone(),
                function: key.scope.function.clone(),
                line: key.scope.first_line,
                first_ns: series.first.0,
                first_length: series.first.1,
                last_ns: series.last.0,
                last_length: series.last.1,
                item_class: series.item.clone().unwrap_or_default().class,
                item_bytes: series.item.as_ref().map(|item| item.bytes),
                item_device_bytes: series.item.as_ref().map(|item| item.device_bytes),
                items_keep_graphs: series.item.as_ref().is_some_and(|item| item.keeps_graph),
            })
            .collect();
        let added = |each: &GrowingContainer| {
            let bytes = [each.item_bytes, each.item_device_bytes].map(Option::unwrap_or_default);
            let bytes = bytes[0].saturating_add(bytes[1]);
            (each.last_length - each.first_length).saturating_mul(bytes)
        };
        // The bytes of graphs are not known.
        let order = |each: &GrowingContainer| (each.items_keep_graphs, added(each));
        growing.sort_by(|a, b| (order(b), &a.name).cmp(&(order(a), &b.name)));
        growing.truncate(MOST);
        growing
    }
}

/// Reads the containers that the variables of threads lead to, by the addresses of their
/// `PyThreadState`s, and the sizes of the last items of those that are longer than in `known`.
/// Nothing is stopped: a length that is read while it changes is one of two.
pub fn read_containers(
    interpreter: &Interpreter,
    states: &[u64],
    memory: &dyn Memory,
    known: &Containers,
    until: Instant,
) -> Reading {
    let pages = Pages::new(memory);
    let mut objects = Objects::new(interpreter, &pages, until);
    let mut level = roots::starts(states, &mut objects);
    let mut reading = Reading::default();
    let mut seen = FxHashSet::default();
    for _ in 0..=MAX_DEPTH {
        let mut next = Vec::new();
        for reached in level {
            if !seen.insert(reached.object) {
                continue;
            }
            if seen.len() > MAX_VISITED || objects.cut().is_some() {
                break;
            }
            let class = objects.class(reached.object);
            if let Some(length) = objects.length(reached.object)
                && length >= LEAST_LENGTH
            {
                reading.found.push(Found {
                    object: reached.object,
                    class: objects.class_name(reached.object),
                    length,
                    key: Key {
                        name: reached.name.clone(),
                        scope: (*reached.scope).clone(),
                    },
                });
            }
            roots::expand(&reached, class, &mut objects, MAX_ITEMS, &mut next);
        }
        level = next;
    }
    for (at, found) in reading.found.iter().enumerate() {
        let known = known.series.get(&found.key);
        let rises = known.is_some_and(|known| !known.has_shrunk && found.length > known.last.1);
        if rises
            && reading.items.len() < MAX_RISING
            && let Some(item) = item_of(found.object, &mut objects)
        {
            reading.items.insert(at, item);
        }
    }
    reading
}

/// What the last items of a container are.
fn item_of(container: u64, objects: &mut Objects<'_>) -> Option<Item> {
    let items = objects.last_items(container, MEASURED);
    let class = objects.class_name(*items.last()?);
    let (mut seen, mut tensors) = (FxHashSet::default(), Vec::new());
    let mut bytes = 0_u64;
    let mut open = items.clone();
    while let Some(object) = open.pop() {
        if !seen.insert(object) || seen.len() > MAX_MEASURED_OBJECTS {
            continue;
        }
        bytes = bytes.saturating_add(objects.basic_size(object).max(HEAD_BYTES));
        match objects.class(object) {
            Class::Tensor => tensors.push(object),
            Class::Array => {
                let layout = &objects.interpreter.layout.objects;
                let (own, base) = array(layout, object, objects.memory);
                bytes = bytes.saturating_add(own);
                open.push(base);
            }
            // What these lead to was there before the item was.
            Class::Module | Class::Optimizer => {}
            class @ (Class::Cell | Class::Method) => open.push(objects.inner(object, class)),
            Class::List | Class::Tuple | Class::Set | Class::Deque => {
                let items = objects.items(object, MAX_MEASURED_OBJECTS);
                let items = items.unwrap_or_default();
                bytes = bytes.saturating_add(8 * items.len() as u64);
                open.extend(items);
            }
            Class::Dict => {
                let entries = objects.entries(object, MAX_MEASURED_OBJECTS);
                open.extend(entries.unwrap_or_default().iter().map(|entry| entry.value));
            }
            Class::Instance => {
                let attributes = objects.attributes(object).unwrap_or_default();
                open.extend(attributes.iter().map(|entry| entry.value));
            }
            Class::Other => match objects.class_name(object).as_str() {
                FUNCTION => open.extend(objects.kept_by_function(object)),
                name if TEXTS.contains(&name) => {
                    bytes = bytes.saturating_add(objects.text_length(object));
                }
                _ => {}
            },
        }
        open.retain(|&object| object != 0);
    }
    let growth = objects.interpreter.layout.objects.growth;
    let memory = objects.memory.live();
    let facts = read_tensors(&tensors, growth, false, memory);
    let storages: FxHashMap<u64, (u64, bool)> = facts
        .iter()
        .filter_map(|facts| facts.own.ok())
        .map(|extent| {
            let on_host = extent.device.0 == CPU;
            (extent.storage, (extent.storage_bytes, on_host))
        })
        .collect();
    let count = items.len() as u64;
    let sum = |on_host: bool| {
        let of = storages.values().filter(|(_, host)| *host == on_host);
        of.map(|(bytes, _)| *bytes).fold(0, u64::saturating_add)
    };
    Some(Item {
        class,
        bytes: bytes.saturating_add(sum(true)) / count,
        device_bytes: sum(false) / count,
        keeps_graph: any_keeps_graph(&tensors, growth, memory),
    })
}

/// `DeviceType::CPU`. Source: torch/headeronly/core/DeviceType.h.
const CPU: u8 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(lengths: &[(&str, u64)], bytes: u64) -> Reading {
        let found = |&(name, length): &(&str, u64)| Found {
            key: Key {
                name: name.to_owned(),
                scope: Scope::default(),
            },
            object: 0,
            class: "list".to_owned(),
            length,
        };
        Reading {
            found: lengths.iter().map(found).collect(),
            items: [(
                0,
                Item {
                    bytes,
                    ..Item::default()
                },
            )]
            .into_iter()
            .collect(),
        }
    }

    #[test]
    fn what_only_gets_longer_grows() {
        let mut containers = Containers::default();
        let lengths = [
            [("kept", 10), ("queue", 10), ("fixed", 100), ("once", 4)],
            [("kept", 20), ("queue", 30), ("fixed", 100), ("once", 40)],
            [("kept", 30), ("queue", 20), ("fixed", 100), ("once", 40)],
            [("kept", 40), ("queue", 60), ("fixed", 100), ("once", 40)],
        ];
        for (at, lengths) in (0..).zip(&lengths) {
            containers.add(reading(lengths, 1000), at * 1_000_000_000);
        }
        let growing = containers.growing();
        assert_eq!(growing.len(), 1, "{growing:?}");
        assert_eq!(growing[0].name, "kept");
        assert_eq!((growing[0].first_length, growing[0].last_length), (10, 40));
        assert!((growing[0].items_per_s() - 10.0).abs() < 1e-9);
        assert!((growing[0].bytes_per_s(false) - 10_000.0).abs() < 1e-6);
    }
}
