//! From the sampler's tables of the whole session to one self-contained segment: what its samples use, and no more.

use crate::model::code::CodeInfo;
use crate::model::frame::Frame;
use crate::model::ids::{
    CodeId, CounterId, FrameId, ModuleId, NnModuleId, ProcessId, StackId, ThreadId,
};
use crate::model::lane::Lanes;
use crate::model::module::{ModuleInfo, SymbolInfo};
use crate::model::nn_module::NnModuleInfo;
use crate::model::process::{ProcessInfo, ThreadInfo};
use crate::model::progress::{Condition, CounterInfo, ProgressPoint};
use crate::model::quality::Quality;
use crate::model::run::{ClockPair, Loss};
use crate::model::sample::Sample;
use crate::model::segment::Segment;
use crate::model::stack_table::StackTable;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// The sampler's tables over the whole session. Ids are indices into them, or keys.
#[derive(Clone, Debug, Default)]
pub struct SessionTables {
    /// Processes by [`ProcessId`].
    pub processes: Vec<ProcessInfo>,
    /// Threads that live, or of which something is still to be written: some programs start twenty a second, for days.
    pub threads: BTreeMap<ThreadId, ThreadInfo>,
    /// Modules by [`ModuleId`].
    pub modules: Vec<ModuleInfo>,
    /// Code objects by [`CodeId`].
    pub codes: Vec<CodeInfo>,
    /// `nn.Module`s by [`NnModuleId`].
    pub nn_modules: Vec<NnModuleInfo>,
    /// Counters by [`CounterId`].
    pub counters: Vec<CounterInfo>,
    /// Frames and stacks.
    pub stacks: StackTable<Frame>,
}

impl SessionTables {
    /// Forgets all frames and stacks but those of `live`, and gives these their new ids: memory stays bounded however
    /// long a session runs. Samples that are not in `live` must have been written before. Ids that do not exist
    /// become `None`.
    pub fn forget_stacks_except<'s>(
        &mut self,
        live: impl IntoIterator<Item = &'s mut Option<StackId>>,
    ) {
        let old = std::mem::take(&mut self.stacks);
        for stack in live {
            let known = stack.filter(|stack| stack.index() < old.stacks().len());
            let frames: Vec<Frame> = old
                .root_to_leaf(known)
                .into_iter()
                .map(|frame| *old.frame(frame))
                .collect();
            *stack = self.stacks.intern(frames);
        }
    }
}

/// What a segment holds besides samples and their tables.
#[derive(Clone, Debug, Default)]
pub struct SegmentFacts {
    /// Counts from 0.
    pub index: u64,
    /// First moment that it speaks of, CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// Last moment that it speaks of.
    pub end_ns: u64,
    /// Processes to be written although no sample here is of them: those that are new or changed.
    pub changed_processes: Vec<ProcessId>,
    /// The sampler's figures since the segment before.
    pub quality: Quality,
    /// Clock pairs taken since then.
    pub clocks: Vec<ClockPair>,
    /// What was lost since then.
    pub losses: Vec<Loss>,
    /// Readings of counters since then.
    pub points: Vec<ProgressPoint>,
    /// Conditions that became known since then.
    pub conditions: Vec<Condition>,
    /// Lanes of devices and processes since then.
    pub lanes: Lanes,
    /// Whether the recording ends here, in order.
    pub last: bool,
}

/// The segment of `samples`, which hold the ids of `tables`. `symbol` gives the symbol around an address of a module,
/// in the file's own virtual addresses: start, end and mangled name; it is asked once for each symbol's first address.
///
/// Samples of threads that `tables` does not know are left out.
pub fn segment_of(
    tables: &SessionTables,
    samples: &[Sample],
    facts: SegmentFacts,
    symbol: impl FnMut(ModuleId, u64) -> Option<(u64, u64, String)>,
) -> Segment {
    let mut concerned = facts.changed_processes.clone();
    concerned.extend(facts.conditions.iter().map(|condition| condition.process));
    concerned.extend(counter_processes(tables, &facts.points));
    let people = People::of(tables, samples, &concerned);
    let progress = Progress::of(tables, &facts, &people);
    let mut stacks = Stacks::of(tables, samples);
    let code = Code::of(tables, &mut stacks);
    let symbols = symbols_of(&code, symbol);
    let mut samples: Vec<Sample> = samples
        .iter()
        .filter_map(|sample| {
            Some(Sample {
                thread: *people.thread_ids.get(&sample.thread)?,
                stack: sample.stack.and_then(|id| stacks.ids.get(&id).copied()),
                gil_holder: sample
                    .gil_holder
                    .and_then(|id| people.thread_ids.get(&id).copied()),
                ..*sample
            })
        })
        .collect();
    samples.sort_by_key(|sample| (sample.start_ns, sample.thread));
    Segment {
        index: facts.index,
        start_ns: facts.start_ns,
        end_ns: facts.end_ns,
        processes: people.processes,
        threads: people.threads,
        modules: code.modules,
        symbols,
        codes: code.codes,
        nn_modules: code.nn_modules,
        counters: progress.counters,
        points: progress.points,
        conditions: progress.conditions,
        lanes: facts.lanes,
        frames: code.frames,
        stacks: stacks.stacks,
        samples,
        quality: facts.quality,
        clocks: facts.clocks,
        losses: facts.losses,
        last: facts.last,
    }
}

/// The processes and threads of a segment.
struct People {
    processes: Vec<ProcessInfo>,
    threads: Vec<ThreadInfo>,
    process_ids: FxHashMap<ProcessId, ProcessId>,
    thread_ids: FxHashMap<ThreadId, ThreadId>,
}

impl People {
    fn of(tables: &SessionTables, samples: &[Sample], changed: &[ProcessId]) -> Self {
        let used: BTreeSet<ThreadId> = samples
            .iter()
            .flat_map(|sample| [Some(sample.thread), sample.gil_holder])
            .flatten()
            .collect();
        let mut process_set: BTreeSet<ProcessId> = changed.iter().copied().collect();
        process_set.extend(
            used.iter()
                .filter_map(|id| Some(tables.threads.get(id)?.process)),
        );
        let mut process_ids = FxHashMap::default();
        let mut processes = Vec::new();
        for id in process_set {
            if let Some(process) = tables.processes.get(id.index()) {
                process_ids.insert(id, ProcessId::from_index(processes.len()));
                processes.push(process.clone());
            }
        }
        let mut threads = Vec::new();
        let mut thread_ids = FxHashMap::default();
        for id in used {
            if let Some(thread) = tables.threads.get(&id)
                && let Some(&process) = process_ids.get(&thread.process)
            {
                thread_ids.insert(id, ThreadId::from_index(threads.len()));
                threads.push(ThreadInfo {
                    process,
                    ..thread.clone()
                });
            }
        }
        Self {
            processes,
            threads,
            process_ids,
            thread_ids,
        }
    }
}

fn counter_processes<'t>(
    tables: &'t SessionTables,
    points: &'t [ProgressPoint],
) -> impl Iterator<Item = ProcessId> + 't {
    points.iter().filter_map(|point| {
        let counter = tables.counters.get(point.counter.index())?;
        Some(counter.process)
    })
}

/// The counters of a segment, their readings, and conditions.
struct Progress {
    counters: Vec<CounterInfo>,
    points: Vec<ProgressPoint>,
    conditions: Vec<Condition>,
}

impl Progress {
    fn of(tables: &SessionTables, facts: &SegmentFacts, people: &People) -> Self {
        let mut counters = Vec::new();
        let mut ids: FxHashMap<CounterId, CounterId> = FxHashMap::default();
        let mut points = Vec::with_capacity(facts.points.len());
        for point in &facts.points {
            let (Some(info), Some(&thread)) = (
                tables.counters.get(point.counter.index()),
                people.thread_ids.get(&point.thread),
            ) else {
                continue;
            };
            let Some(&process) = people.process_ids.get(&info.process) else {
                continue;
            };
            let counter = *ids.entry(point.counter).or_insert_with(|| {
                counters.push(CounterInfo {
                    process,
                    ..info.clone()
                });
                CounterId::from_index(counters.len() - 1)
            });
            points.push(ProgressPoint {
                counter,
                thread,
                ..*point
            });
        }
        let conditions = facts.conditions.iter().filter_map(|condition| {
            Some(Condition {
                process: *people.process_ids.get(&condition.process)?,
                ..condition.clone()
            })
        });
        Self {
            counters,
            points,
            conditions: conditions.collect(),
        }
    }
}

/// The stacks of a segment, each after its parent and its elder siblings' descendants, which is how they compress best.
struct Stacks {
    /// Parent, of this segment, and frame: first of the session, then of this segment.
    stacks: Vec<(Option<StackId>, FrameId)>,
    ids: FxHashMap<StackId, StackId>,
}

impl Stacks {
    fn of(tables: &SessionTables, samples: &[Sample]) -> Self {
        let all = tables.stacks.stacks();
        let mut children: FxHashMap<Option<StackId>, Vec<StackId>> = FxHashMap::default();
        let mut seen: FxHashMap<StackId, StackId> = FxHashMap::default();
        for sample in samples {
            let mut next = sample.stack;
            while let Some(id) = next
                && let Some(&(parent, _)) = all.get(id.index())
                && seen.insert(id, id).is_none()
            {
                children.entry(parent).or_default().push(id);
                next = parent;
            }
        }
        let mut stacks = Vec::with_capacity(seen.len());
        let mut ids = seen;
        let mut pending: Vec<(Option<StackId>, StackId)> = Vec::new();
        let mut expand = |of: Option<StackId>, now: Option<StackId>, pending: &mut Vec<_>| {
            if let Some(mut siblings) = children.remove(&of) {
                // The last one pushed is the first one taken.
                siblings.sort_by_key(|id| std::cmp::Reverse((all[id.index()].1, *id)));
                pending.extend(siblings.into_iter().map(|id| (now, id)));
            }
        };
        expand(None, None, &mut pending);
        while let Some((parent, id)) = pending.pop() {
            let now = StackId::from_index(stacks.len());
            stacks.push((parent, all[id.index()].1));
            ids.insert(id, now);
            expand(Some(id), Some(now), &mut pending);
        }
        Self { stacks, ids }
    }
}

/// The frames of a segment and what they refer to, sorted.
struct Code {
    modules: Vec<ModuleInfo>,
    /// The session's id of each module.
    module_origins: Vec<ModuleId>,
    codes: Vec<CodeInfo>,
    nn_modules: Vec<NnModuleInfo>,
    frames: Vec<Frame>,
}

impl Code {
    /// Collects the frames of `stacks` and gives them this segment's ids.
    fn of(tables: &SessionTables, stacks: &mut Stacks) -> Self {
        let used: BTreeSet<FrameId> = stacks.stacks.iter().map(|&(_, frame)| frame).collect();
        let of_session = || used.iter().map(|&id| (id, *tables.stacks.frame(id)));
        let modules: BTreeSet<(&ModuleInfo, ModuleId)> = of_session()
            .filter_map(|(_, frame)| match frame {
                Frame::Native { module, .. } => Some((tables.modules.get(module.index())?, module)),
                _ => None,
            })
            .collect();
        let codes: BTreeSet<(&str, u32, &str, CodeId)> = of_session()
            .filter_map(|(_, frame)| match frame {
                Frame::Python { code, .. } | Frame::Compiles(code) => {
                    let info = tables.codes.get(code.index())?;
                    Some((
                        info.file.as_str(),
                        info.first_line,
                        info.name.as_str(),
                        code,
                    ))
                }
                _ => None,
            })
            .collect();
        let module_origins: Vec<ModuleId> = modules.iter().map(|&(_, id)| id).collect();
        let code_origins: Vec<CodeId> = codes.iter().map(|&(_, _, _, id)| id).collect();
        let nn_modules: BTreeSet<(&NnModuleInfo, NnModuleId)> = of_session()
            .filter_map(|(_, frame)| match frame {
                Frame::NnModule(id) => Some((tables.nn_modules.get(id.index())?, id)),
                _ => None,
            })
            .collect();
        let nn_module_origins: Vec<NnModuleId> = nn_modules.iter().map(|&(_, id)| id).collect();
        let ids = LocalIds {
            modules: positions(&module_origins),
            codes: positions(&code_origins),
            nn_modules: positions(&nn_module_origins),
        };
        let mut frames: Vec<(Frame, FrameId)> = of_session()
            .map(|(id, frame)| (localized(frame, &ids), id))
            .collect();
        frames.sort_by_key(|&(frame, id)| (frame_order(frame), id));
        let frame_ids: FxHashMap<FrameId, FrameId> = frames
            .iter()
            .enumerate()
            .map(|(index, &(_, id))| (id, FrameId::from_index(index)))
            .collect();
        for (_, frame) in &mut stacks.stacks {
            *frame = frame_ids[frame];
        }
        Self {
            modules: modules.iter().map(|&(module, _)| module.clone()).collect(),
            module_origins,
            codes: code_origins
                .iter()
                .map(|id| tables.codes[id.index()].clone())
                .collect(),
            nn_modules: nn_modules.iter().map(|&(info, _)| info.clone()).collect(),
            frames: frames.into_iter().map(|(frame, _)| frame).collect(),
        }
    }
}

fn positions<I: Copy + Eq + std::hash::Hash>(ids: &[I]) -> FxHashMap<I, u32> {
    (0..).zip(ids).map(|(index, &id)| (id, index)).collect()
}

/// Ids of this segment by those of the session.
struct LocalIds {
    modules: FxHashMap<ModuleId, u32>,
    codes: FxHashMap<CodeId, u32>,
    nn_modules: FxHashMap<NnModuleId, u32>,
}

/// `frame` with ids of this segment. A frame whose code or module is unknown says that it is.
fn localized(frame: Frame, ids: &LocalIds) -> Frame {
    use crate::model::frame::Partial;
    match frame {
        Frame::Python {
            code,
            instruction,
            line,
        } => ids
            .codes
            .get(&code)
            .map_or(Frame::Truncated(Partial::CodeGone), |&code| Frame::Python {
                code: CodeId(code),
                instruction,
                line,
            }),
        Frame::Native {
            module,
            address,
            trust,
        } => ids.modules.get(&module).map_or(
            Frame::Truncated(Partial::BadReturnAddress),
            |&module| Frame::Native {
                module: ModuleId(module),
                address,
                trust,
            },
        ),
        Frame::NnModule(id) => ids
            .nn_modules
            .get(&id)
            .map_or(Frame::Truncated(Partial::CodeGone), |&id| {
                Frame::NnModule(NnModuleId(id))
            }),
        Frame::Compiles(code) => ids
            .codes
            .get(&code)
            .map_or(Frame::Truncated(Partial::CodeGone), |&code| {
                Frame::Compiles(CodeId(code))
            }),
        Frame::Truncated(_) => frame,
    }
}

/// Neighbours in the file are neighbours here.
fn frame_order(frame: Frame) -> (u32, u32, u64, Frame) {
    match frame {
        Frame::Python {
            code, instruction, ..
        } => (0, code.0, u64::from(instruction), frame),
        Frame::Native {
            module, address, ..
        } => (1, module.0, address.raw(), frame),
        Frame::Truncated(_) => (2, 0, 0, frame),
        Frame::NnModule(id) => (3, id.0, 0, frame),
        Frame::Compiles(code) => (4, code.0, 0, frame),
    }
}

fn symbols_of(
    code: &Code,
    mut symbol: impl FnMut(ModuleId, u64) -> Option<(u64, u64, String)>,
) -> Vec<SymbolInfo> {
    let mut symbols: Vec<SymbolInfo> = Vec::new();
    for frame in &code.frames {
        let &Frame::Native {
            module, address, ..
        } = frame
        else {
            continue;
        };
        let address = address.lookup();
        let known = symbols
            .last()
            .is_some_and(|last| last.module == module && (last.start..last.end).contains(&address));
        if known {
            continue;
        }
        if let Some((start, end, name)) = symbol(code.module_origins[module.index()], address)
            && start < end
        {
            symbols.push(SymbolInfo {
                module,
                start,
                end,
                name,
            });
        }
    }
    symbols.sort_by_key(|symbol| (symbol.module, symbol.start, symbol.end));
    symbols.dedup();
    symbols
}
