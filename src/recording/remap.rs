//! Rows of one set of tables copied into another, each once: a segment's out of the session's, a
//! recording's out of its segments'.

use crate::model::frame::{Frame, Partial};
use crate::model::ids::{
    CodeId, CounterId, FrameId, Id, ModuleId, NnModuleId, ProcessId, StackId, ThreadId,
};
use crate::model::interner::Interner;
use crate::model::process::{ProcessInfo, ThreadInfo};
use crate::model::progress::{Condition, CounterInfo, ProgressPoint};
use crate::model::sample::Sample;
use crate::model::sideband::Sideband;
use crate::model::tables::Tables;
use rustc_hash::FxHashMap;
use std::hash::Hash;

/// New ids by old ones, of what was copied.
struct Ids<K>(Vec<Option<K>>);

impl<K> Default for Ids<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Id> Ids<K> {
    fn get(&self, old: K) -> Option<K> {
        self.0.get(old.index()).copied().flatten()
    }

    /// `old` is an id of a table in memory: there is room for as many.
    fn set(&mut self, old: K, new: K) {
        if self.0.len() <= old.index() {
            self.0.resize(old.index() + 1, None);
        }
        self.0[old.index()] = Some(new);
    }
}

/// New ids by old ones, of all kinds.
#[derive(Default)]
pub(super) struct Remap {
    processes: Ids<ProcessId>,
    threads: FxHashMap<ThreadId, ThreadId>,
    modules: Ids<ModuleId>,
    codes: Ids<CodeId>,
    nn_modules: Ids<NnModuleId>,
    counters: Ids<CounterId>,
    frames: Ids<FrameId>,
    stacks: Ids<StackId>,
}

impl Remap {
    pub(super) fn module(&self, old: ModuleId) -> Option<ModuleId> {
        self.modules.get(old)
    }

    /// `None` where its thread was not copied.
    pub(super) fn sample(&self, sample: &Sample) -> Option<Sample> {
        Some(Sample {
            thread: *self.threads.get(&sample.thread)?,
            stack: sample.stack.and_then(|id| self.stacks.get(id)),
            gil_holder: sample
                .gil_holder
                .and_then(|id| self.threads.get(&id).copied()),
            ..*sample
        })
    }

    /// Drops entries of counters, threads and processes that were not copied.
    pub(super) fn sideband(&self, old: Sideband) -> Sideband {
        let point = |point: ProgressPoint| {
            Some(ProgressPoint {
                counter: self.counters.get(point.counter)?,
                thread: *self.threads.get(&point.thread)?,
                ..point
            })
        };
        let condition = |condition: Condition| {
            let process = self.processes.get(condition.process)?;
            Some(Condition {
                process,
                ..condition
            })
        };
        Sideband {
            points: old.points.into_iter().filter_map(point).collect(),
            conditions: old.conditions.into_iter().filter_map(condition).collect(),
            ..old
        }
    }

    /// `frame` with new ids. A frame whose code or module was not copied becomes a marker.
    pub(super) fn frame(&self, frame: Frame) -> Frame {
        let gone = Frame::Truncated(Partial::CodeGone);
        match frame {
            Frame::Python {
                code,
                instruction,
                line,
            } => self.codes.get(code).map_or(gone, |code| Frame::Python {
                code,
                instruction,
                line,
            }),
            Frame::Native {
                module,
                address,
                trust,
            } => self.modules.get(module).map_or(
                Frame::Truncated(Partial::BadReturnAddress),
                |module| Frame::Native {
                    module,
                    address,
                    trust,
                },
            ),
            Frame::NnModule(id) => self.nn_modules.get(id).map_or(gone, Frame::NnModule),
            Frame::Compiles(code) => self.codes.get(code).map_or(gone, Frame::Compiles),
            Frame::Truncated(_) => frame,
        }
    }
}

/// Approximate memory of a row and its entry in an index, without its texts.
const ROW_BYTES: usize = 64;

/// Tables that take in rows of others.
#[derive(Default)]
pub(super) struct Collector {
    pub(super) tables: Tables,
    processes: FxHashMap<(i32, u64), ProcessId>,
    threads: FxHashMap<(ProcessId, i32), Vec<ThreadId>>,
    /// Memory that the tables take, about.
    pub(super) bytes: usize,
}

/// Rows of `from` on their way into `into`.
pub(super) struct Import<'a> {
    from: &'a Tables,
    into: &'a mut Collector,
    pub(super) ids: Remap,
}

impl<'a> Import<'a> {
    pub(super) fn new(from: &'a Tables, into: &'a mut Collector) -> Self {
        Self {
            from,
            into,
            ids: Remap::default(),
        }
    }

    /// Copies everything.
    pub(super) fn all(mut self) -> Remap {
        let from = self.from;
        ids_of(&from.processes).for_each(|id| self.process(id));
        from.threads.keys().for_each(|&id| self.thread(id));
        ids_of(&from.modules).for_each(|id| self.module(id));
        ids_of(&from.codes).for_each(|id| self.code(id));
        ids_of(&from.nn_modules).for_each(|id| self.nn_module(id));
        ids_of(from.stacks.frames()).for_each(|id| self.frame(id));
        ids_of(from.stacks.stacks()).for_each(|id| self.stack(id));
        ids_of(&from.counters).for_each(|id| self.counter(id));
        self.ids
    }

    /// A process is known by its pid and start; one that is known takes over what is newer.
    pub(super) fn process(&mut self, id: ProcessId) {
        let Some(info) = self.from.processes.get(id.index()) else {
            return;
        };
        let known = &mut self.into.tables.processes;
        let next = ProcessId::from_index(known.len());
        let key = (info.pid, info.start_ticks);
        let new = *self.into.processes.entry(key).or_insert(next);
        match known.get_mut(new.index()) {
            Some(known) => update_process(known, info),
            None => {
                self.into.bytes += size_of::<ProcessInfo>() + process_text_bytes(info);
                known.push(info.clone());
            }
        }
        self.ids.processes.set(id, new);
    }

    /// A thread is known by its process, tid and start; its process was copied before.
    pub(super) fn thread(&mut self, id: ThreadId) {
        let Some(info) = self.from.threads.get(&id) else {
            return;
        };
        let Some(process) = self.ids.processes.get(info.process) else {
            return;
        };
        let known = &mut self.into.tables.threads;
        let candidates = self.into.threads.entry((process, info.tid)).or_default();
        // Start times that were not read are 0, and agree with any.
        let same = candidates.iter().rev().find(|id| {
            let ticks = known.get(*id).map_or(0, |thread| thread.start_ticks);
            ticks == info.start_ticks || ticks == 0 || info.start_ticks == 0
        });
        let new = same
            .copied()
            .unwrap_or_else(|| ThreadId::from_index(known.len()));
        if let Some(known) = known.get_mut(&new) {
            update_thread(known, info);
        } else {
            self.into.bytes += size_of::<ThreadInfo>() + ROW_BYTES + info.name.len();
            let info = info.clone();
            known.insert(new, ThreadInfo { process, ..info });
            candidates.push(new);
        }
        self.ids.threads.insert(id, new);
    }

    pub(super) fn module(&mut self, id: ModuleId) {
        if let Some(info) = self.from.modules.get(id.index()) {
            let into = &mut *self.into;
            let bytes = info.path.len() + info.build_id.len();
            let new = intern(&mut into.tables.modules, info, bytes, &mut into.bytes);
            self.ids.modules.set(id, new);
        }
    }

    pub(super) fn code(&mut self, id: CodeId) {
        if let Some(info) = self.from.codes.get(id.index()) {
            let into = &mut *self.into;
            let bytes = info.name.len() + info.file.len();
            let new = intern(&mut into.tables.codes, info, bytes, &mut into.bytes);
            self.ids.codes.set(id, new);
        }
    }

    pub(super) fn nn_module(&mut self, id: NnModuleId) {
        if let Some(info) = self.from.nn_modules.get(id.index()) {
            let into = &mut *self.into;
            let bytes = info.root.len() + info.path.len() + info.class.len();
            let new = intern(&mut into.tables.nn_modules, info, bytes, &mut into.bytes);
            self.ids.nn_modules.set(id, new);
        }
    }

    /// Its process was copied before.
    pub(super) fn counter(&mut self, id: CounterId) {
        if let Some(info) = self.from.counters.get(id.index())
            && let Some(process) = self.ids.processes.get(info.process)
        {
            let info = CounterInfo {
                process,
                ..info.clone()
            };
            let facts = info.facts.iter();
            let texts: usize = facts.map(|(name, value)| name.len() + value.len()).sum();
            let strings = info.facts.len() * size_of::<(String, String)>();
            let bytes = info.class.len() + info.file.len() + texts + strings;
            let into = &mut *self.into;
            let new = intern(&mut into.tables.counters, &info, bytes, &mut into.bytes);
            self.ids.counters.set(id, new);
        }
    }

    /// What it refers to was copied before.
    pub(super) fn frame(&mut self, id: FrameId) {
        if let Some(&frame) = self.from.stacks.frames().get(id.index()) {
            let stacks = &mut self.into.tables.stacks;
            let before = stacks.frames().len();
            let new = stacks.intern_frame(self.ids.frame(frame));
            self.into.bytes += (stacks.frames().len() - before) * ROW_BYTES;
            self.ids.frames.set(id, new);
        }
    }

    /// Its parent and frame were copied before.
    pub(super) fn stack(&mut self, id: StackId) {
        if let Some(&(parent, frame)) = self.from.stacks.stacks().get(id.index())
            && let Some(frame) = self.ids.frames.get(frame)
        {
            let parent = parent.and_then(|parent| self.ids.stacks.get(parent));
            let stacks = &mut self.into.tables.stacks;
            let before = stacks.stacks().len();
            let new = stacks.intern_stack(parent, frame);
            self.into.bytes += (stacks.stacks().len() - before) * ROW_BYTES;
            self.ids.stacks.set(id, new);
        }
    }
}

fn ids_of<K: Id, V>(table: &[V]) -> impl Iterator<Item = K> + use<K, V> {
    (0..table.len()).map(K::from_index)
}

/// Interns `value`, and adds what it takes to `total` if it is new: its row, and `bytes` of texts.
fn intern<K: Id, V: Clone + Eq + Hash>(
    table: &mut Interner<K, V>,
    value: &V,
    bytes: usize,
    total: &mut usize,
) -> K {
    let before = table.len();
    let id = table.intern(value);
    *total += (table.len() - before) * (size_of::<V>() + ROW_BYTES + bytes);
    id
}

fn process_text_bytes(process: &ProcessInfo) -> usize {
    let texts = process.command.iter().map(String::len).sum::<usize>();
    let environment: usize = process
        .environment
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum();
    let strings = process.command.len() + 2 * process.environment.len();
    texts + environment + strings * size_of::<String>() + process.exe.len() + process.note.len()
}

/// Takes over what is known later; what is unknown later blanks out nothing.
fn update_process(known: &mut ProcessInfo, later: &ProcessInfo) {
    let replace = |known: &mut String, later: &String| {
        if !later.is_empty() {
            known.clone_from(later);
        }
    };
    replace(&mut known.exe, &later.exe);
    replace(&mut known.torch, &later.torch);
    // One finding: an exec makes a Python out of what was none, and the other way round.
    if !later.python.is_empty() || !later.note.is_empty() {
        known.python.clone_from(&later.python);
        known.note.clone_from(&later.note);
    }
    if later.parent_pid != 0 {
        known.parent_pid = later.parent_pid;
    }
    if !later.command.is_empty() {
        known.command.clone_from(&later.command);
    }
    if !later.environment.is_empty() {
        known.environment.clone_from(&later.environment);
    }
    known.has_torch |= later.has_torch;
    known.has_cuda |= later.has_cuda;
    known.exited |= later.exited;
    known.first_seen_ns = known.first_seen_ns.min(later.first_seen_ns);
    known.last_seen_ns = known.last_seen_ns.max(later.last_seen_ns);
    known.cpu_ns = known.cpu_ns.max(later.cpu_ns);
}

fn update_thread(known: &mut ThreadInfo, later: &ThreadInfo) {
    if !later.name.is_empty() {
        known.name.clone_from(&later.name);
    }
    if later.start_ticks != 0 {
        known.start_ticks = later.start_ticks;
    }
    known.is_python |= later.is_python;
    known.first_seen_ns = known.first_seen_ns.min(later.first_seen_ns);
    known.last_seen_ns = known.last_seen_ns.max(later.last_seen_ns);
}
