//! Segments become one recording: the same process, thread, module, code object and stack get one id each.

use super::reader::Recording;
use crate::model::code::CodeInfo;
use crate::model::frame::Frame;
use crate::model::ids::{
    CodeId, CounterId, FrameId, ModuleId, NnModuleId, ProcessId, StackId, ThreadId,
};
use crate::model::lane::{LaneInfo, LaneMerger, LanePoint};
use crate::model::module::ModuleInfo;
use crate::model::nn_module::NnModuleInfo;
use crate::model::process::{ProcessInfo, ThreadInfo};
use crate::model::progress::{Condition, CounterInfo, ProgressPoint};
use crate::model::run::{ClockPair, Loss, RunInfo};
use crate::model::sample::Sample;
use crate::model::segment::Segment;
use rustc_hash::FxHashMap;
use std::mem::size_of;

/// What a stack or frame costs in memory with its place in the table that finds it.
const INTERNED_BYTES: usize = 64;

/// A recording that takes one segment after another.
pub(super) struct Merger {
    recording: Recording,
    processes: FxHashMap<(i32, u64), ProcessId>,
    threads: FxHashMap<(ProcessId, i32), Vec<ThreadId>>,
    modules: FxHashMap<ModuleInfo, ModuleId>,
    codes: FxHashMap<CodeInfo, CodeId>,
    nn_modules: FxHashMap<NnModuleInfo, NnModuleId>,
    counters: FxHashMap<CounterInfo, CounterId>,
    lanes: LaneMerger,
    /// Sum of all samples' lengths; kept below 2^63, so that sums of any part can be taken without thought.
    total_ns: u64,
    /// Bytes of memory that merged segments took, about.
    bytes: usize,
}

/// The recording that consists of `segments`, whose ids are valid: of a session that wrote into memory.
pub fn recording_of(run: RunInfo, segments: Vec<Segment>) -> Recording {
    let mut merger = Merger::new(run);
    for segment in segments {
        // Only times that no clock gives are refused.
        let _ = merger.add(segment, usize::MAX);
    }
    merger.finish()
}

/// Why a valid segment was not taken.
pub(super) enum Refused {
    /// Its times add up to more than is possible.
    AbsurdTimes,
    /// The recording has taken the memory that a file of its length may.
    TooMuch,
}

/// Local id to global id, for each kind of id of one segment.
struct Remap {
    threads: Vec<ThreadId>,
    modules: Vec<ModuleId>,
    codes: Vec<CodeId>,
    nn_modules: Vec<NnModuleId>,
    stacks: Vec<StackId>,
}

impl Merger {
    pub(super) fn new(run: RunInfo) -> Self {
        Self {
            recording: Recording {
                run,
                ..Recording::default()
            },
            processes: FxHashMap::default(),
            threads: FxHashMap::default(),
            modules: FxHashMap::default(),
            codes: FxHashMap::default(),
            nn_modules: FxHashMap::default(),
            counters: FxHashMap::default(),
            lanes: LaneMerger::default(),
            total_ns: 0,
            bytes: 0,
        }
    }

    /// Adds a segment whose ids have been validated, while memory stays below `most_bytes`.
    pub(super) fn add(&mut self, segment: Segment, most_bytes: usize) -> Result<(), Refused> {
        self.total_ns = self.total_with(&segment).ok_or(Refused::AbsurdTimes)?;
        if self.bytes > most_bytes {
            return Err(Refused::TooMuch);
        }
        let before = self.recording.stacks.stacks().len() + self.recording.stacks.frames().len();
        let processes = self.merge_processes(&segment);
        let mut remap = Remap {
            threads: self.merge_threads(&segment, &processes),
            modules: self.merge_modules(&segment),
            codes: self.merge_codes(&segment),
            nn_modules: self.merge_nn_modules(&segment),
            stacks: Vec::new(),
        };
        self.merge_stacks(&segment, &mut remap);
        self.merge_samples(&segment, &remap);
        self.merge_progress(&segment, &processes, &remap);
        self.merge_lanes(&segment);
        let recording = &mut self.recording;
        let after = recording.stacks.stacks().len() + recording.stacks.frames().len();
        let known = recording.symbols.bytes();
        for symbol in segment.symbols {
            let module = remap.modules[symbol.module.index()];
            recording.symbols.insert(module, symbol);
        }
        self.bytes += (after - before) * INTERNED_BYTES
            + segment.samples.len() * size_of::<Sample>()
            + (recording.symbols.bytes() - known)
            + segment.clocks.len() * size_of::<ClockPair>()
            + segment.losses.iter().map(loss_bytes).sum::<usize>();
        recording.quality.merge(&segment.quality);
        recording.clocks.extend(segment.clocks);
        recording.losses.extend(segment.losses);
        if recording.end_ns == 0 {
            recording.start_ns = segment.start_ns;
        }
        recording.start_ns = recording.start_ns.min(segment.start_ns);
        recording.end_ns = recording.end_ns.max(segment.end_ns);
        Ok(())
    }

    fn total_with(&self, segment: &Segment) -> Option<u64> {
        let mut total = self.total_ns;
        for sample in &segment.samples {
            let longest = sample.weight_ns.max(sample.run_ns).max(sample.queue_ns);
            total = total.checked_add(longest)?;
        }
        (total <= u64::MAX / 2).then_some(total)
    }

    /// The recording, sorted.
    pub(super) fn finish(mut self) -> Recording {
        self.recording
            .samples
            .sort_by_key(|sample| (sample.thread, sample.start_ns));
        self.recording.points.sort_by_key(|point| point.time_ns);
        self.recording.lanes = self.lanes.finish();
        self.recording.symbols.sort();
        self.recording
    }

    fn merge_processes(&mut self, segment: &Segment) -> Vec<ProcessId> {
        let known = &mut self.recording.processes;
        segment
            .processes
            .iter()
            .map(|process| {
                let key = (process.pid, process.start_ticks);
                if let Some(&id) = self.processes.get(&key) {
                    update_process(&mut known[id.index()], process);
                    return id;
                }
                let id = ProcessId::from_index(known.len());
                self.bytes += size_of::<ProcessInfo>() + process_text_bytes(process);
                known.push(process.clone());
                self.processes.insert(key, id);
                id
            })
            .collect()
    }

    fn merge_threads(&mut self, segment: &Segment, processes: &[ProcessId]) -> Vec<ThreadId> {
        let known = &mut self.recording.threads;
        segment
            .threads
            .iter()
            .map(|thread| {
                let process = processes[thread.process.index()];
                let candidates = self.threads.entry((process, thread.tid)).or_default();
                // Start times that were not read are 0, and agree with any.
                let same = candidates.iter().rev().find(|id| {
                    let ticks = known[id.index()].start_ticks;
                    ticks == thread.start_ticks || ticks == 0 || thread.start_ticks == 0
                });
                if let Some(&id) = same {
                    update_thread(&mut known[id.index()], thread);
                    return id;
                }
                let id = ThreadId::from_index(known.len());
                self.bytes += size_of::<ThreadInfo>() + INTERNED_BYTES + thread.name.len();
                known.push(ThreadInfo {
                    process,
                    ..thread.clone()
                });
                candidates.push(id);
                id
            })
            .collect()
    }

    fn merge_modules(&mut self, segment: &Segment) -> Vec<ModuleId> {
        let known = &mut self.recording.modules;
        segment
            .modules
            .iter()
            .map(|module| {
                if let Some(&id) = self.modules.get(module) {
                    return id;
                }
                let id = ModuleId::from_index(known.len());
                self.bytes += 2 * (size_of::<ModuleInfo>() + module.path.len());
                known.push(module.clone());
                self.modules.insert(module.clone(), id);
                id
            })
            .collect()
    }

    fn merge_codes(&mut self, segment: &Segment) -> Vec<CodeId> {
        let known = &mut self.recording.codes;
        segment
            .codes
            .iter()
            .map(|code| {
                if let Some(&id) = self.codes.get(code) {
                    return id;
                }
                let id = CodeId::from_index(known.len());
                self.bytes += 2 * (size_of::<CodeInfo>() + code.name.len() + code.file.len());
                known.push(code.clone());
                self.codes.insert(code.clone(), id);
                id
            })
            .collect()
    }

    fn merge_nn_modules(&mut self, segment: &Segment) -> Vec<NnModuleId> {
        let known = &mut self.recording.nn_modules;
        segment
            .nn_modules
            .iter()
            .map(|info| {
                if let Some(&id) = self.nn_modules.get(info) {
                    return id;
                }
                let id = NnModuleId::from_index(known.len());
                let texts = info.root.len() + info.path.len() + info.class.len();
                self.bytes += 2 * (size_of::<NnModuleInfo>() + texts);
                known.push(info.clone());
                self.nn_modules.insert(info.clone(), id);
                id
            })
            .collect()
    }

    fn merge_stacks(&mut self, segment: &Segment, remap: &mut Remap) {
        let table = &mut self.recording.stacks;
        let frames: Vec<FrameId> = segment
            .frames
            .iter()
            .map(|&frame| {
                table.intern_frame(match frame {
                    Frame::Python {
                        code,
                        instruction,
                        line,
                    } => Frame::Python {
                        code: remap.codes[code.index()],
                        instruction,
                        line,
                    },
                    Frame::Native {
                        module,
                        address,
                        trust,
                    } => Frame::Native {
                        module: remap.modules[module.index()],
                        address,
                        trust,
                    },
                    Frame::Truncated(_) => frame,
                    Frame::NnModule(id) => Frame::NnModule(remap.nn_modules[id.index()]),
                    Frame::Compiles(code) => Frame::Compiles(remap.codes[code.index()]),
                })
            })
            .collect();
        remap.stacks.reserve(segment.stacks.len());
        for &(parent, frame) in &segment.stacks {
            // Parents come before their children.
            let parent = parent.map(|parent| remap.stacks[parent.index()]);
            let stack = table.intern_stack(parent, frames[frame.index()]);
            remap.stacks.push(stack);
        }
    }

    fn merge_progress(&mut self, segment: &Segment, processes: &[ProcessId], remap: &Remap) {
        let known = &mut self.recording.counters;
        let mut ids = Vec::with_capacity(segment.counters.len());
        for counter in &segment.counters {
            let info = CounterInfo {
                process: processes[counter.process.index()],
                ..counter.clone()
            };
            let id = *self.counters.entry(info).or_insert_with_key(|info| {
                let facts = info.facts.iter();
                let texts: usize = facts.map(|(name, value)| name.len() + value.len()).sum();
                let own = size_of::<CounterInfo>() + info.class.len() + info.file.len();
                self.bytes += 2 * (own + texts + info.facts.len() * 2 * size_of::<String>());
                known.push(info.clone());
                CounterId::from_index(known.len() - 1)
            });
            ids.push(id);
        }
        self.bytes += segment.points.len() * size_of::<ProgressPoint>();
        let points = segment.points.iter().map(|point| ProgressPoint {
            counter: ids[point.counter.index()],
            thread: remap.threads[point.thread.index()],
            ..*point
        });
        self.recording.points.extend(points);
        for condition in &segment.conditions {
            let condition = Condition {
                process: processes[condition.process.index()],
                ..condition.clone()
            };
            self.bytes += size_of::<Condition>() + condition.name.len() + condition.value.len();
            self.recording.conditions.push(condition);
        }
    }

    fn merge_lanes(&mut self, segment: &Segment) {
        let lanes = &segment.lanes;
        let texts = lanes.gaps.iter().map(|gap| gap.reason.len());
        let texts = texts.chain(lanes.lanes.iter().map(|lane| 2 * lane.process.len()));
        self.bytes += lanes.points.len() * size_of::<LanePoint>()
            + (lanes.lanes.len() * 2 + lanes.gaps.len() + lanes.clocks.len())
                * size_of::<LaneInfo>()
            + texts.sum::<usize>();
        self.lanes.add(lanes);
    }

    fn merge_samples(&mut self, segment: &Segment, remap: &Remap) {
        let samples = segment.samples.iter().map(|sample| Sample {
            thread: remap.threads[sample.thread.index()],
            stack: sample.stack.map(|stack| remap.stacks[stack.index()]),
            gil_holder: sample.gil_holder.map(|id| remap.threads[id.index()]),
            ..*sample
        });
        self.recording.samples.extend(samples);
    }
}

fn loss_bytes(loss: &Loss) -> usize {
    size_of::<Loss>() + loss.reason.len()
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
