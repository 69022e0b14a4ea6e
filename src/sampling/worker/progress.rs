//! Progress counters: found on the frames of training threads, and read with their samples.

use super::code_rules::CodeFacts;
use super::{Scratch, Worker};
use crate::model::frame::Frame;
use crate::model::ids::{CodeId, CounterId, ProcessId, ThreadId};
use crate::model::progress::{Condition, CounterInfo, ProgressPoint, facts};
use crate::model::tables::Tables;
use crate::os::clock::monotonic_ns;
use crate::python::frames::{PythonStack, read_running_stack};
use crate::sampling::image::Python;
use crate::sampling::raw::RawSample;
use crate::sampling::session::IdleThreads;
use crate::torch::probe::progress::{FoundCounter, ScanFrame};
use crate::torch::rules::Trains;
use rustc_hash::{FxHashMap, FxHashSet};

/// Maximum number of counters per session; later ones are not read.
const MAX_COUNTERS: usize = 1 << 18;
/// Maximum number of conditions per session; later ones are dropped.
const MAX_CONDITIONS: usize = 1 << 16;
/// Maximum number of readings kept per second.
const MAX_POINTS: usize = 1 << 17;

/// What the worker knows about progress, over all processes.
#[derive(Default)]
pub(super) struct Progress {
    threads: FxHashMap<ThreadId, Trains>,
    counters_of: FxHashMap<ProcessId, u32>,
    conditions: FxHashSet<Condition>,
    /// Readings since the last segment.
    points: Vec<ProgressPoint>,
    /// Conditions since the last segment.
    new_conditions: Vec<Condition>,
    frames: Vec<ScanFrame>,
}

impl Progress {
    /// Records a condition if it is new.
    pub(super) fn condition(&mut self, process: ProcessId, name: &str, value: String) {
        let condition = Condition {
            process,
            name: name.to_owned(),
            value,
        };
        if self.conditions.len() < MAX_CONDITIONS && self.conditions.insert(condition.clone()) {
            self.new_conditions.push(condition);
        }
    }

    /// Takes the readings and conditions since the last segment.
    pub(super) fn take(&mut self) -> (Vec<ProgressPoint>, Vec<Condition>) {
        (
            std::mem::take(&mut self.points),
            std::mem::take(&mut self.new_conditions),
        )
    }

    pub(super) fn forget(&mut self, thread: ThreadId) {
        self.threads.remove(&thread);
    }
}

impl Worker {
    /// A thread has ended.
    pub(super) fn forget_progress(&mut self, thread: ThreadId) {
        self.progress.forget(thread);
        if let Some(info) = self.tables.threads.get(&thread)
            && let Some(image) = self.images.get_mut(&info.process)
            && let Some(probe) = image.progress.as_mut()
        {
            self.progress.points.extend(probe.forget(thread));
        }
    }

    /// The session has ended.
    pub(super) fn forget_all_progress(&mut self) {
        let probes = self.images.values_mut();
        for probe in probes.filter_map(|image| image.progress.as_mut()) {
            self.progress.points.extend(probe.forget_all());
        }
    }

    /// Whether a thread is the first of its process.
    fn is_main(&self, thread: ThreadId) -> bool {
        let info = self.tables.threads.get(&thread);
        info.is_some_and(|info| {
            let process = self.tables.processes.get(info.process.index());
            process.is_some_and(|process| process.pid == info.tid)
        })
    }

    /// Reads the counters of a sample's thread; searches for more of them from time to time.
    /// Returns whether the thread trains.
    pub(super) fn take_progress(&mut self, raw: &RawSample, scratch: &Scratch) -> bool {
        if raw.python.frames.is_empty() {
            return false;
        }
        let thread = raw.recorded.thread;
        let mut progress = std::mem::take(&mut self.progress);
        let part = progress.part_of(thread, &scratch.python, |code| {
            self.code_rules.of(code, &self.tables.codes).trains
        });
        // A snapshot may show nothing of training on a thread that trains: it hangs elsewhere.
        let may_train = || self.once && part == Trains::No && self.is_main(thread);
        if (part == Trains::Yes || may_train())
            && let Some(image) = self.images.get_mut(&raw.process)
            && let Some(probe) = image.progress.as_mut()
        {
            let (copied, live) = (&raw.snapshot, &image.memory);
            let mut changed = false;
            if raw.read_ns != 0 {
                let points = &mut progress.points;
                changed = probe.read(thread, raw.read_ns, copied, live, points);
                points.truncate(MAX_POINTS);
            }
            let now_ns = monotonic_ns();
            let rarely = self.idle_threads == IdleThreads::Loose;
            if probe.wants_search(thread, now_ns, rarely)
                && let Python::Found(interpreter) = &image.python
                && let Some(known) = image.codes.as_mut()
            {
                // The frames are read again: this sample may have waited for long where CPUs are
                // scarce. The thread runs at the same time, so every value is checked before it is
                // used.
                let mut stack = PythonStack::default();
                let _ = read_running_stack(interpreter, raw.python_state, live, &mut stack);
                let addresses: Vec<u64> = stack.frames.iter().map(|at| at.code_address).collect();
                let codes = &mut self.tables.codes;
                known.resolve_frames(&stack.frames, live, live, |info| codes.intern(info));
                let named: Vec<Option<CodeId>> = addresses
                    .iter()
                    .map(|&address| known.get(address).ok().map(|code| code.id))
                    .collect();
                progress.frames.clear();
                // Root first.
                for (frame, code) in stack.frames.iter().zip(&named).rev() {
                    let facts = code.map(|code| self.code_rules.of(code, &self.tables.codes));
                    progress.frames.push(ScanFrame {
                        address: frame.frame_address,
                        is_module: facts.is_some_and(|code| code.is_module && !code.is_library),
                    });
                }
                let (codes, counters_of) = (self.code_rules.known(), &mut progress.counters_of);
                let tables = &mut self.tables;
                let searched =
                    probe.search(thread, now_ns, &progress.frames, live, live, |found| {
                        let holder = holder(found.frame, &named, codes);
                        counter_id(tables, counters_of, raw.process, found, holder)
                    });
                changed |= searched.changed;
                for (name, value) in searched.conditions {
                    progress.condition(raw.process, name, value);
                }
            }
            if changed {
                raw.shared.watched.set(probe.watch_list(thread));
            }
        }
        self.progress = progress;
        part == Trains::Yes
    }
}

impl Progress {
    /// What the thread was seen to do so far, this sample's frames included.
    fn part_of(
        &mut self,
        thread: ThreadId,
        frames: &[Frame],
        mut trains: impl FnMut(CodeId) -> Trains,
    ) -> Trains {
        let known = self.threads.get(&thread).copied().unwrap_or_default();
        if known == Trains::Feeds {
            return known;
        }
        let mut part = known;
        for frame in frames {
            if let Frame::Python { code, .. } = *frame {
                match trains(code) {
                    Trains::No => {}
                    Trains::Yes => part = Trains::Yes,
                    Trains::Feeds => {
                        part = Trains::Feeds;
                        break;
                    }
                }
            }
        }
        if part != known {
            self.threads.insert(thread, part);
        }
        part
    }
}

/// The user's code that is nearest to a frame towards the root, the frame included: `frame` counts
/// from the root.
fn holder(frame: usize, leaf_first: &[Option<CodeId>], codes: &[CodeFacts]) -> Option<CodeId> {
    let inner = leaf_first.len().checked_sub(frame + 1)?;
    let outward = leaf_first.iter().skip(inner).flatten();
    let mut own = outward.filter(|code| {
        let facts = codes.get(code.index());
        facts.is_some_and(|facts| !facts.is_library)
    });
    own.next().copied()
}

fn counter_id(
    tables: &mut Tables,
    counters_of: &mut FxHashMap<ProcessId, u32>,
    process: ProcessId,
    found: &FoundCounter,
    holder: Option<CodeId>,
) -> Option<CounterId> {
    if tables.counters.len() >= MAX_COUNTERS {
        return None;
    }
    let number = counters_of.entry(process).or_default();
    let code = holder.and_then(|code| tables.codes.get(code.index()));
    let mut said = found.facts.clone();
    said.extend(code.map(|code| (facts::FUNCTION.to_owned(), code.name.clone())));
    let info = CounterInfo {
        process,
        number: *number,
        kind: found.kind,
        class: found.class.clone(),
        file: code.map(|code| code.file.clone()).unwrap_or_default(),
        line: code.map_or(0, |code| code.first_line),
        facts: said,
    };
    *number += 1;
    Some(tables.counters.intern(&info))
}
