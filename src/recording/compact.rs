//! From the sampler's tables of the whole session to one self-contained segment: what its samples
//! use, and no more.

use super::remap::{Collector, Import, Remap};
use crate::model::frame::Frame;
use crate::model::ids::{FrameId, ModuleId, ProcessId, StackId, ThreadId};
use crate::model::module::SymbolInfo;
use crate::model::sample::Sample;
use crate::model::segment::Segment;
use crate::model::sideband::Sideband;
use crate::model::stack_table::Stack;
use crate::model::tables::Tables;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;

/// `of_session`, which holds ids of `session` and no tables, with tables of its own. `changed` are
/// processes to be written although nothing else here is of them: those that are new or changed.
/// `symbol` gives the symbol around an address of a module, in the file's own virtual addresses:
/// start, end and mangled name; it is asked once for each symbol's first address.
///
/// Samples of threads that `session` does not know are left out.
pub fn segment_of(
    session: &Tables,
    of_session: Segment,
    changed: &[ProcessId],
    symbol: impl FnMut(ModuleId, u64) -> Option<(u64, u64, String)>,
) -> Segment {
    let mut collector = Collector::default();
    let mut import = Import::new(session, &mut collector);
    import_processes(&mut import, session, &of_session, changed);
    let stacks = stack_order(session.stacks.stacks(), &of_session.samples);
    let frames = import_frames(&mut import, session, &stacks);
    stacks.into_iter().for_each(|id| import.stack(id));
    let ids = import.ids;
    let mut samples: Vec<Sample> = (of_session.samples.iter())
        .filter_map(|sample| ids.sample(sample))
        .collect();
    samples.sort_by_key(|sample| (sample.start_ns, sample.thread));
    Segment {
        tables: collector.tables,
        symbols: symbols_of(&frames, &ids, symbol),
        samples,
        sideband: ids.sideband(of_session.sideband),
        ..of_session
    }
}

/// Processes and threads by id, counters by their first reading.
fn import_processes(
    import: &mut Import<'_>,
    session: &Tables,
    segment: &Segment,
    changed: &[ProcessId],
) {
    let threads: BTreeSet<ThreadId> = segment
        .samples
        .iter()
        .flat_map(|sample| [Some(sample.thread), sample.gil_holder])
        .flatten()
        .collect();
    let Sideband {
        points, conditions, ..
    } = &segment.sideband;
    let counters = points.iter().map(|point| point.counter);
    let mut processes: BTreeSet<ProcessId> = changed.iter().copied().collect();
    processes.extend(conditions.iter().map(|condition| condition.process));
    processes.extend(
        counters.filter_map(|counter| Some(session.counters.get(counter.index())?.process)),
    );
    processes.extend(
        threads
            .iter()
            .filter_map(|id| Some(session.threads.get(id)?.process)),
    );
    processes.into_iter().for_each(|id| import.process(id));
    threads.iter().for_each(|&id| import.thread(id));
    for point in points {
        if threads.contains(&point.thread) {
            import.counter(point.counter);
        }
    }
}

/// Stacks of samples, each after its parent and its elder siblings' descendants, which is how they
/// compress best.
fn stack_order(all: &[Stack], samples: &[Sample]) -> Vec<StackId> {
    let mut children: FxHashMap<Option<StackId>, Vec<StackId>> = FxHashMap::default();
    let mut seen: FxHashSet<StackId> = FxHashSet::default();
    for sample in samples {
        let mut next = sample.stack;
        while let Some(id) = next
            && let Some(&(parent, _)) = all.get(id.index())
            && seen.insert(id)
        {
            children.entry(parent).or_default().push(id);
            next = parent;
        }
    }
    let mut order = Vec::with_capacity(seen.len());
    let mut pending = Vec::new();
    let mut parent = None;
    loop {
        if let Some(mut siblings) = children.remove(&parent) {
            // The last one pushed is the first one taken.
            siblings.sort_by_key(|id| std::cmp::Reverse((all[id.index()].1, *id)));
            pending.extend(siblings);
        }
        parent = pending.pop();
        match parent {
            Some(id) => order.push(id),
            None => return order,
        }
    }
}

/// Copies the frames of `stacks` and what they refer to, sorted. Returns the frames as they are in
/// the session, in the new order.
fn import_frames(import: &mut Import<'_>, session: &Tables, stacks: &[StackId]) -> Vec<Frame> {
    let all = session.stacks.stacks();
    let used: BTreeSet<FrameId> = stacks.iter().map(|id| all[id.index()].1).collect();
    let (mut modules, mut codes) = (BTreeSet::new(), BTreeSet::new());
    let mut nn_modules = BTreeSet::new();
    for &id in &used {
        match *session.stacks.frame(id) {
            Frame::Native { module, .. } => {
                modules.extend(
                    session
                        .modules
                        .get(module.index())
                        .map(|info| (info, module)),
                );
            }
            Frame::Python { code, .. } | Frame::Compiles(code) => {
                let info = session.codes.get(code.index());
                codes.extend(info.map(|info| (&info.file, info.first_line, &info.name, code)));
            }
            Frame::NnModule(id) => {
                nn_modules.extend(session.nn_modules.get(id.index()).map(|info| (info, id)));
            }
            Frame::Truncated(_) => {}
        }
    }
    modules.into_iter().for_each(|(_, id)| import.module(id));
    codes.into_iter().for_each(|(_, _, _, id)| import.code(id));
    nn_modules
        .into_iter()
        .for_each(|(_, id)| import.nn_module(id));
    let mut frames: Vec<(FrameId, Frame)> = used
        .into_iter()
        .map(|id| (id, *session.stacks.frame(id)))
        .collect();
    frames.sort_by_key(|&(id, frame)| (frame_order(import.ids.frame(frame)), id));
    frames
        .into_iter()
        .map(|(id, frame)| {
            import.frame(id);
            frame
        })
        .collect()
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

/// Symbols of `frames`, which are the session's: sorted by module and address.
fn symbols_of(
    frames: &[Frame],
    ids: &Remap,
    mut symbol: impl FnMut(ModuleId, u64) -> Option<(u64, u64, String)>,
) -> Vec<SymbolInfo> {
    let mut symbols: Vec<SymbolInfo> = Vec::new();
    for frame in frames {
        let &Frame::Native {
            module: of_session,
            address,
            ..
        } = frame
        else {
            continue;
        };
        let Some(module) = ids.module(of_session) else {
            continue;
        };
        let address = address.lookup();
        let known = symbols
            .last()
            .is_some_and(|last| last.module == module && (last.start..last.end).contains(&address));
        if known {
            continue;
        }
        if let Some((start, end, name)) = symbol(of_session, address)
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
