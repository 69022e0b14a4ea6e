//! Progress of a training run: counters of the target that are found on its frames, and read with
//! every sample of their thread.
//!
//! A DataLoader's iterator counts the batches that it delivered; an optimizer changes each of its
//! parameters a constant number of times per step, and a tensor counts these changes; the
//! Transformers Trainer and Lightning count their steps. Objects with such a counter are searched
//! for on the frames of training threads, in the live process and rarely. Once one is known, its
//! bytes are read together with the thread's registers and stack ([`WatchList`]), so that every
//! sample has the counter's value at its own timestamp. The bytes that show whether the object is
//! unchanged are read with them.

mod attributes;
mod groups;
mod mesh;
mod scan;
pub(super) mod tensor;
mod watch;

pub use scan::ScanFrame;
pub use tensor::describe_tensor;
pub use watch::INT_BYTES;

use crate::memory::Memory;
use crate::model::ids::{CounterId, ThreadId};
use crate::model::progress::{CounterKind, ProgressPoint, facts};
use crate::python::discover::Interpreter;
use crate::torch::rules::progress::{
    AUTOCAST_ENABLED, AUTOCAST_TYPE, COUNTERS, DATASET, GROUPS, LOADER_FACTS, PARAMETERS,
    STATE_STEP, STATES, WRAPPED_OPTIMIZER, element_type,
};
use attributes::{Attribute, Reader};
use groups::GroupSearch;
use mesh::Meshes;
use rustc_hash::FxHashMap;
use scan::{Found, Scanner, Use};
use tensor::Tensor;
use watch::{IntReader, Number, Reading, Watch};

/// Maximum number of counters that are read per thread.
const MAX_LIVE: usize = 8;
/// Maximum number of ranges that are read for them.
const MAX_RANGES: usize = 28;
/// Maximum number of objects per process whose counters were read.
const MAX_KNOWN: usize = 65_536;
/// A counter is dropped after this many successive samples without its words.
const MAX_MISSES: u32 = 50;
/// Pauses between two searches of a thread, ns: the first one, and the longest while no counter
/// moves and while one does.
const FIRST_PAUSE_NS: u64 = 20_000_000;
const LONGEST_PAUSE_NS: u64 = 200_000_000;
const MOVING_PAUSE_NS: u64 = 500_000_000;
/// By how much the pauses are longer in sessions that last for months.
const RARELY: u64 = 4;

/// `THPDtype.scalar_type` (torch/csrc/Dtype.h).
const DTYPE: u32 = 16;

/// Time until the next search, ns: doubled each time that a search found nothing new. Between two
/// epochs an iterator ends, and the next one appears only after its workers have been forked, while
/// the parameters' versions are known and move all the time.
fn pause_after(pause_ns: u64, changed: bool, moved: bool) -> u64 {
    let longest_ns = if moved {
        MOVING_PAUSE_NS
    } else {
        LONGEST_PAUSE_NS
    };
    if changed {
        FIRST_PAUSE_NS
    } else {
        (pause_ns * 2).clamp(FIRST_PAUSE_NS, longest_ns)
    }
}

/// Whether an optimizer has the counter, of which one that moves is enough.
fn is_of_optimizer(kind: CounterKind) -> bool {
    matches!(
        kind,
        CounterKind::ParameterVersion | CounterKind::OptimizerState
    )
}

/// Memory that is read with every sample of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchList {
    /// Addresses and lengths.
    pub ranges: Vec<(u64, usize)>,
    /// Addresses of pointers to Python ints, each one of `ranges`: [`INT_BYTES`] of the ints are
    /// read, too.
    pub ints: Vec<u64>,
    /// Offset in an int of the [`INT_BYTES`] that are read.
    pub int_start: u64,
}

/// A counter that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundCounter {
    pub kind: CounterKind,
    pub class: String,
    /// The frame that leads to it: an index of the searched frames.
    pub frame: usize,
    /// Facts by name.
    pub facts: Vec<(String, String)>,
}

/// A counter that is read.
#[derive(Debug)]
struct Live {
    /// The object that has the counter; for a parameter the tensor.
    object: u64,
    /// The object that was found on a frame.
    owner: u64,
    kind: CounterKind,
    id: CounterId,
    watch: Watch,
    /// The last value, and when it was read.
    last: Option<(u64, u64)>,
    moves: u32,
    misses: u32,
}

impl Live {
    /// The last reading as a separate point: the value was valid until then. For a pass the last
    /// batch matters.
    fn last_reading(&self, thread: ThreadId) -> Option<ProgressPoint> {
        let (value, time_ns) = self.last.filter(|_| self.kind != CounterKind::Batches)?;
        Some(ProgressPoint {
            counter: self.id,
            thread,
            before_ns: time_ns,
            time_ns,
            value,
        })
    }
}

#[derive(Debug, Default)]
struct Watched {
    live: Vec<Live>,
    next_search_ns: u64,
    pause_ns: u64,
    /// A counter moved since the last search.
    moved: bool,
}

/// Result of a search.
#[derive(Debug, Default)]
pub struct Searched {
    /// Whether the thread's [`WatchList`] has changed.
    pub changed: bool,
    pub conditions: Vec<(&'static str, String)>,
}

/// The counters of one process.
#[derive(Debug)]
pub struct ProgressProbe {
    interpreter: Interpreter,
    reader: Reader,
    scanner: Scanner,
    ints: IntReader,
    meshes: Meshes,
    group_search: GroupSearch,
    threads: FxHashMap<ThreadId, Watched>,
    /// Counters of each object when it was last found.
    known: FxHashMap<(u64, CounterKind), (FoundCounter, CounterId)>,
}

impl ProgressProbe {
    pub fn new(interpreter: &Interpreter) -> Self {
        Self {
            interpreter: interpreter.clone(),
            reader: Reader::new(interpreter),
            scanner: Scanner::new(interpreter),
            ints: IntReader::new(interpreter),
            meshes: Meshes::default(),
            group_search: GroupSearch::default(),
            threads: FxHashMap::default(),
            known: FxHashMap::default(),
        }
    }

    /// Reads the counters of a thread from what was copied with its sample at `time_ns`. New
    /// values, and the last readings of counters that no longer exist, are appended to `points`.
    /// Returns whether the thread's [`WatchList`] has changed.
    pub fn read(
        &mut self,
        thread: ThreadId,
        time_ns: u64,
        copied: &dyn Memory,
        live: &dyn Memory,
        points: &mut Vec<ProgressPoint>,
    ) -> bool {
        let Some(watched) = self.threads.get_mut(&thread) else {
            return false;
        };
        let before = watched.live.len();
        let mut settled = None;
        for counter in &mut watched.live {
            match counter.watch.read(&self.ints, copied, live) {
                Reading::Value(value) => {
                    counter.misses = 0;
                    let last = counter.last.replace((value, time_ns));
                    if last.is_some_and(|(known, _)| known == value) {
                        continue;
                    }
                    points.push(ProgressPoint {
                        counter: counter.id,
                        thread,
                        before_ns: last.map_or(time_ns, |(_, before_ns)| before_ns),
                        time_ns,
                        value,
                    });
                    if last.is_some() {
                        watched.moved = true;
                        counter.moves += 1;
                    }
                    if is_of_optimizer(counter.kind) && counter.moves == 2 {
                        settled = Some((counter.owner, counter.object));
                    }
                }
                Reading::Missing => counter.misses += 1,
                Reading::Gone => counter.misses = u32::MAX,
            }
        }
        watched.live.retain(|counter| {
            // One counter that moves is enough for an optimizer.
            let is_spare = settled
                .is_some_and(|(owner, object)| counter.owner == owner && counter.object != object);
            let is_lost = counter.misses > MAX_MISSES;
            if is_lost {
                points.extend(counter.last_reading(thread));
            }
            !is_lost && !is_spare
        });
        let changed = watched.live.len() != before;
        if changed {
            watched.next_search_ns = 0;
            watched.pause_ns = 0;
        }
        changed
    }

    /// Whether the frames of a training thread should be searched now; `rarely` makes the pauses
    /// [`RARELY`] times as long.
    pub fn wants_search(&mut self, thread: ThreadId, now_ns: u64, rarely: bool) -> bool {
        let watched = self.threads.entry(thread).or_default();
        let more_ns = if rarely {
            (RARELY - 1) * watched.pause_ns
        } else {
            0
        };
        now_ns >= watched.next_search_ns.saturating_add(more_ns)
    }

    /// Searches the frames of a thread, root first, for counters. `intern` returns a counter's id;
    /// `None` refuses it.
    pub fn search(
        &mut self,
        thread: ThreadId,
        now_ns: u64,
        frames: &[ScanFrame],
        copied: &dyn Memory,
        live: &dyn Memory,
        mut intern: impl FnMut(&FoundCounter) -> Option<CounterId>,
    ) -> Searched {
        let mut searched = Searched::default();
        let found = self.scanner.search(frames, &mut self.reader, copied, live);
        for found in found {
            // Objects beyond the top of a frame's values may have been freed.
            if !self.reader.is_referred_to(found.object, live) {
                continue;
            }
            let counters = match found.class {
                Use::Counter(rule) => self.counter(found, rule, live),
                Use::Optimizer => {
                    let mesh = self.mesh_of_optimizer(found.object, now_ns, live);
                    let mesh = mesh.and_then(|mesh| self.mesh(mesh, now_ns, live));
                    searched.conditions.extend(mesh);
                    self.optimizer(found, live)
                }
                Use::Mesh => {
                    let mesh = self.mesh(found.object, now_ns, live);
                    searched.conditions.extend(mesh);
                    continue;
                }
                Use::Autocast => {
                    searched
                        .conditions
                        .extend(self.autocast(found.object, live));
                    continue;
                }
                Use::None | Use::Holder(_) => continue,
            };
            for (object, watch, counter) in counters {
                searched.changed |=
                    self.watch(thread, found.object, object, watch, counter, &mut intern);
            }
        }
        searched.conditions.extend(self.groups(now_ns, live));
        let watched = self.threads.entry(thread).or_default();
        let moved = std::mem::take(&mut watched.moved);
        watched.pause_ns = pause_after(watched.pause_ns, searched.changed, moved);
        watched.next_search_ns = now_ns.saturating_add(watched.pause_ns);
        searched
    }

    /// The memory to read with each sample of a thread.
    pub fn watch_list(&self, thread: ThreadId) -> WatchList {
        let objects = self.reader.objects();
        let mut list = WatchList {
            int_start: objects.growth.into(),
            ..WatchList::default()
        };
        let Some(watched) = self.threads.get(&thread) else {
            return list;
        };
        for counter in &watched.live {
            list.ranges.extend(counter.watch.ranges(&objects));
            list.ints.extend(counter.watch.int_slot());
        }
        list
    }

    /// The counters of a thread at their last read.
    pub fn values(&self, thread: ThreadId) -> Vec<(CounterKind, u64)> {
        let live = self.threads.get(&thread).map(|watched| &watched.live);
        let values = live.into_iter().flatten();
        values
            .filter_map(|counter| Some((counter.kind, counter.last?.0)))
            .collect()
    }

    /// Drops a thread that has ended; returns the last readings of its counters.
    pub fn forget(&mut self, thread: ThreadId) -> Vec<ProgressPoint> {
        let live = self.threads.remove(&thread).unwrap_or_default().live;
        live.iter()
            .filter_map(|counter| counter.last_reading(thread))
            .collect()
    }

    /// Drops all threads: the session has ended.
    pub fn forget_all(&mut self) -> Vec<ProgressPoint> {
        let threads: Vec<ThreadId> = self.threads.keys().copied().collect();
        let last = threads.into_iter().flat_map(|thread| self.forget(thread));
        last.collect()
    }

    /// Begins to read a counter, unless it is read already. Returns whether it begins.
    fn watch(
        &mut self,
        thread: ThreadId,
        owner: u64,
        object: u64,
        watch: Watch,
        counter: FoundCounter,
        intern: &mut impl FnMut(&FoundCounter) -> Option<CounterId>,
    ) -> bool {
        let kind = counter.kind;
        let objects = self.reader.objects();
        let is_it = |live: &Live| live.object == object && live.kind == kind;
        let others = self.threads.iter().filter(|(other, _)| **other != thread);
        if others.flat_map(|(_, other)| &other.live).any(is_it) {
            return false;
        }
        let watched = self.threads.entry(thread).or_default();
        if let Some(known) = watched.live.iter_mut().find(|live| is_it(live)) {
            if known.watch.number == watch.number {
                return false;
            }
            // Its attributes have moved.
            known.watch = watch;
            return true;
        }
        let mut of_owner = watched.live.iter().filter(|live| live.owner == owner);
        if is_of_optimizer(kind) && of_owner.any(|live| live.moves >= 2) {
            return false;
        }
        let count = |watch: &Watch| watch.ranges(&objects).count();
        let ranges = watched.live.iter().map(|live| count(&live.watch));
        if watched.live.len() >= MAX_LIVE || ranges.sum::<usize>() + count(&watch) > MAX_RANGES {
            return false;
        }
        // An iterator may have the address of an earlier one; if its facts are the same, it is
        // treated as that one's next pass.
        let same =
            |known: &FoundCounter| (&known.class, &known.facts) == (&counter.class, &counter.facts);
        let id = match self.known.get(&(object, kind)) {
            Some((known, id)) if same(known) => *id,
            _ if self.known.len() >= MAX_KNOWN => return false,
            _ => {
                let Some(id) = intern(&counter) else {
                    return false;
                };
                self.known.insert((object, kind), (counter, id));
                id
            }
        };
        watched.live.push(Live {
            object,
            owner,
            kind,
            id,
            watch,
            last: None,
            moves: 0,
            misses: 0,
        });
        true
    }

    fn counter(
        &mut self,
        found: Found,
        rule: usize,
        live: &dyn Memory,
    ) -> Vec<(u64, Watch, FoundCounter)> {
        let Some(rule) = COUNTERS.get(rule) else {
            return Vec::new();
        };
        let Ok(attribute) = self.reader.follow(found.object, rule.path, live) else {
            return Vec::new();
        };
        if self.int(attribute.value, live).is_none() {
            return Vec::new();
        }
        let Attribute { slot, guards, .. } = attribute;
        let watch = Watch {
            // The last object of the path is not known here; its guards include its type and
            // attributes.
            object: if rule.path.len() == 1 {
                found.object
            } else {
                0
            },
            guards,
            number: Number::Int { slot },
        };
        let class = self.reader.class_of(found.object, live).unwrap_or_default();
        let facts = match rule.kind {
            CounterKind::Batches => self.loader_facts(found.object, live),
            _ => Vec::new(),
        };
        let counter = FoundCounter {
            kind: rule.kind,
            class,
            frame: found.frame,
            facts,
        };
        vec![(found.object, watch, counter)]
    }

    /// The value of an int.
    fn int(&mut self, object: u64, live: &dyn Memory) -> Option<u64> {
        let reader = &mut self.reader;
        self.ints.learn(object, live, |address| {
            reader
                .type_at(address, live)
                .is_ok_and(|facts| facts.name == "int")
        });
        self.ints.value(object, live)
    }

    fn loader_facts(&mut self, object: u64, live: &dyn Memory) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for &(name, path) in LOADER_FACTS {
            let Ok(attribute) = self.reader.follow(object, path, live) else {
                continue;
            };
            let value = match self.reader.flag(attribute.value, live) {
                Some(flag) => Some(flag.to_string()),
                None => self
                    .int(attribute.value, live)
                    .map(|value| value.to_string()),
            };
            found.extend(value.map(|value| (name.to_owned(), value)));
        }
        if let Ok(dataset) = self.reader.attribute(object, DATASET, live)
            && let Ok(class) = self.reader.class_of(dataset.value, live)
        {
            found.push((facts::DATASET.to_owned(), class));
        }
        found
    }

    /// The optimizer that may be wrapped in `object`, its first list of parameters, and their
    /// number.
    fn parameters(&mut self, mut object: u64, live: &dyn Memory) -> Option<(u64, u64, u64)> {
        let reader = &mut self.reader;
        if reader.attribute(object, GROUPS, live).is_err() {
            let mut names = WRAPPED_OPTIMIZER.iter();
            let wrapped = names.find_map(|name| reader.attribute(object, name, live).ok());
            object = wrapped?.value;
        }
        let groups = reader.attribute(object, GROUPS, live).ok()?;
        let group = reader.element(groups.value, 0, live).ok()?;
        let list = reader.item(group, PARAMETERS, live).ok()?;
        Some((object, list, reader.sequence(list, live).ok()?.0))
    }

    /// The versions of a few parameters of an optimizer: the first one may be frozen.
    fn optimizer(&mut self, found: Found, live: &dyn Memory) -> Vec<(u64, Watch, FoundCounter)> {
        let Some((object, list, count)) = self.parameters(found.object, live) else {
            return Vec::new();
        };
        let class = self.reader.class_of(object, live).unwrap_or_default();
        let growth = self.reader.objects().growth;
        let mut indices = vec![0, count / 2, count.saturating_sub(1)];
        indices.dedup();
        let mut counters = Vec::new();
        for index in indices {
            let Ok(parameter) = self.reader.element(list, index, live) else {
                continue;
            };
            let Some(tensor) = Tensor::at(parameter, growth, live) else {
                continue;
            };
            let Some(watch) = tensor.watch(live) else {
                continue;
            };
            let mut facts = vec![(facts::PARAMETERS.to_owned(), count.to_string())];
            if let Some(element) = tensor.element_type(live) {
                facts.push((facts::PARAMETER_DTYPE.to_owned(), element.to_owned()));
            }
            let counter = FoundCounter {
                kind: CounterKind::ParameterVersion,
                class: class.clone(),
                frame: found.frame,
                facts,
            };
            counters.push((parameter, watch, counter));
        }
        counters.extend(self.state(object, live).map(|(tensor, watch)| {
            let counter = FoundCounter {
                kind: CounterKind::OptimizerState,
                class,
                frame: found.frame,
                facts: Vec::new(),
            };
            (tensor, watch, counter)
        }));
        counters
    }

    /// The version of the tensor that counts the steps of an optimizer's first parameter with a
    /// state, from the first step on.
    fn state(&mut self, optimizer: u64, live: &dyn Memory) -> Option<(u64, Watch)> {
        let reader = &mut self.reader;
        let states = reader.attribute(optimizer, STATES, live).ok()?.value;
        let first = reader.entries(states, live).ok()?.first()?.value;
        let step = reader.item(first, STATE_STEP, live).ok()?;
        let growth = reader.objects().growth;
        Some((step, Tensor::at(step, growth, live)?.watch(live)?))
    }

    /// The type of an active autocast.
    fn autocast(&mut self, object: u64, live: &dyn Memory) -> Option<(&'static str, String)> {
        let enabled = self.reader.attribute(object, AUTOCAST_ENABLED, live).ok()?;
        if self.reader.flag(enabled.value, live) != Some(true) {
            return None;
        }
        let element = self.reader.attribute(object, AUTOCAST_TYPE, live).ok()?;
        let place = element.value.wrapping_add(self.reader.objects().at(DTYPE));
        let number = live.read_u8(place).ok()?;
        Some((facts::AUTOCAST, element_type(number.into())?.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pause begins at 0 when a counter is lost.
    #[test]
    fn what_follows_a_lost_counter_is_looked_for_soon_whatever_else_moves() {
        let mut pause_ns = 0;
        let mut pauses_ms = Vec::new();
        for _ in 0..7 {
            pause_ns = pause_after(pause_ns, false, true);
            pauses_ms.push(pause_ns / 1_000_000);
        }
        assert_eq!(pauses_ms, [20, 40, 80, 160, 320, 500, 500]);
        assert_eq!(pause_after(pause_ns, false, false), LONGEST_PAUSE_NS);
        assert_eq!(pause_after(pause_ns, true, true), FIRST_PAUSE_NS);
    }
}
