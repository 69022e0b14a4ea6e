//! Samples to phases, activities and rows, each stack once.

use super::batch_lines::BatchLines;
use super::frames::Frames;
use crate::model::category::{Activity, Phase};
use crate::model::ids::{ProcessId, StackId, ThreadId};
use crate::model::profile::{ProfileProcess, ProfileSample, Role};
use crate::model::sample::{Capture, Sample, ThreadState};
use crate::recording::Recording;
use crate::torch::classify::{FunctionClass, Situation, activity, at_exit, phase, row};
use crate::torch::role::{ProcessFacts, ThreadFacts};
use crate::torch::rules::{FrameRole, RuleSet, Special};
use rustc_hash::{FxHashMap, FxHashSet};

/// Classifies stacks, and caches the results.
pub(super) struct Classifier<'a> {
    frames: &'a Frames,
    input: &'a Recording,
    batches: BatchLines<'a>,
    rules: &'static RuleSet,
    phases: Vec<Option<Option<Phase>>>,
    shapes: Vec<Shape>,
    activities: FxHashMap<(StackId, Situation), Activity>,
}

/// What a stack has somewhere in it; each is its parent's and its own frame's.
#[derive(Clone, Copy, Default)]
struct Shape {
    python: bool,
    worker_loop: bool,
    exits: bool,
}

/// Facts about processes and threads from their samples.
pub(super) struct Facts {
    pub(super) processes: Vec<ProcessFacts>,
    pub(super) threads: Vec<(ProcessId, ThreadFacts)>,
}

impl<'a> Classifier<'a> {
    pub(super) fn new(frames: &'a Frames, input: &'a Recording, rules: &'static RuleSet) -> Self {
        let stacks = frames.stacks.stacks();
        let mut shapes: Vec<Shape> = Vec::with_capacity(stacks.len());
        for &(parent, frame) in stacks {
            let mut shape = parent
                .and_then(|parent| shapes.get(parent.index()).copied())
                .unwrap_or_default();
            if let Some(class) = frames.class(frame) {
                shape.python |= class.role == FrameRole::Python;
                shape.worker_loop |= class.special == Special::WorkerLoop;
                shape.exits |= class.special == Special::Exit;
            }
            shapes.push(shape);
        }
        Self {
            frames,
            input,
            batches: BatchLines::new(frames),
            rules,
            phases: vec![None; stacks.len()],
            shapes,
            activities: FxHashMap::default(),
        }
    }

    /// The classes of a stack's frames, leaf first.
    fn classes(&self, stack: Option<StackId>) -> impl Iterator<Item = FunctionClass> + use<'a> {
        let frames = self.frames;
        let stack = frames.stacks.leaf_to_root(stack);
        stack.filter_map(|frame| frames.class(frame).copied())
    }

    fn phase(&mut self, stack: StackId) -> Option<Phase> {
        if let Some(Some(known)) = self.phases.get(stack.index()) {
            return *known;
        }
        let mut found = phase(self.classes(Some(stack)));
        if matches!(found, None | Some(Phase::User | Phase::Framework))
            && self.batches.is_taken_at(stack)
        {
            found = Some(Phase::Input);
        }
        if let Some(slot) = self.phases.get_mut(stack.index()) {
            *slot = Some(found);
        }
        found
    }

    fn activity(&mut self, stack: Option<StackId>, situation: Situation) -> Activity {
        let Some(stack) = stack else {
            return activity(std::iter::empty(), situation);
        };
        if let Some(&known) = self.activities.get(&(stack, situation)) {
            return known;
        }
        let mut found = activity(self.classes(Some(stack)), situation);
        if self.shape(Some(stack)).exits {
            found = at_exit(found);
        }
        self.activities.insert((stack, situation), found);
        found
    }

    fn shape(&self, stack: Option<StackId>) -> Shape {
        stack
            .and_then(|stack| self.shapes.get(stack.index()).copied())
            .unwrap_or_default()
    }

    /// What the samples show of processes and threads, before roles are known.
    pub(super) fn facts(&mut self) -> Facts {
        let input = self.input;
        let tables = &input.tables;
        let mut processes: Vec<ProcessFacts> = (tables.processes.iter())
            .map(|process| ProcessFacts {
                python: !process.python.is_empty(),
                ..ProcessFacts::default()
            })
            .collect();
        let mut threads: Vec<(ProcessId, ThreadFacts)> = (tables.threads.iter())
            .map(|(&id, thread)| {
                let process = tables.processes.get(thread.process.index());
                let pid = process.map(|process| process.pid);
                let facts = ThreadFacts {
                    thread: id,
                    is_main: pid == Some(thread.tid),
                    is_python: thread.is_python,
                    training_ns: 0,
                    wall_ns: 0,
                };
                (thread.process, facts)
            })
            .collect();
        for thread in tables.threads.values().filter(|thread| thread.is_python) {
            if let Some(process) = processes.get_mut(thread.process.index()) {
                process.python = true;
            }
        }
        for sample in &input.samples {
            let stack = self.frames.first(sample.stack);
            let shape = self.shape(stack);
            let found = stack.and_then(|stack| self.phase(stack));
            let Some((process, thread)) = threads.get_mut(sample.thread.index()) else {
                continue;
            };
            thread.wall_ns = thread.wall_ns.saturating_add(sample.weight_ns);
            thread.is_python |= shape.python;
            let trains = matches!(
                found,
                Some(Phase::Forward | Phase::Backward | Phase::Recompute | Phase::Optimizer)
            );
            let learns = trains && found != Some(Phase::Forward);
            if let Some(process) = processes.get_mut(process.index()) {
                process.samples += 1;
                process.wall_ns = process.wall_ns.saturating_add(sample.weight_ns);
                if learns {
                    process.learning_ns = process.learning_ns.saturating_add(sample.weight_ns);
                }
                process.worker_loop |= shape.worker_loop;
                process.python |= shape.python;
                if trains {
                    process.training_ns = process.training_ns.saturating_add(sample.weight_ns);
                }
            }
            if trains && shape.python {
                thread.training_ns = thread.training_ns.saturating_add(sample.weight_ns);
            }
        }
        Facts { processes, threads }
    }

    /// The samples of the threads that are kept, classified.
    pub(super) fn samples(
        &mut self,
        processes: &[ProfileProcess],
        is_kept: impl Fn(ThreadId) -> bool,
    ) -> impl Iterator<Item = ProfileSample> {
        let input = self.input;
        let fallback: Vec<Phase> = input
            .tables
            .threads
            .values()
            .map(|thread| {
                let by_name = self.rules.thread_phase(&thread.name);
                by_name.unwrap_or_else(|| fallback_phase(processes.get(thread.process.index())))
            })
            .collect();
        // Of a thread whose native frames are read else: what Python called is not known where it
        // was not stopped.
        let has_native: FxHashSet<ThreadId> = input
            .samples
            .iter()
            .filter(|sample| matches!(sample.capture, Capture::Stopped | Capture::Sampled))
            .filter(|_| input.run.reads_running_native())
            .map(|sample| sample.thread)
            .collect();
        let samples = input.samples.iter();
        let samples = samples.filter(move |sample| is_kept(sample.thread));
        samples.map(move |sample| {
            let stack = self.frames.first(sample.stack);
            let situation = Situation::new(&input.run.architecture, sample.state, sample.syscall);
            let lacks_native =
                sample.capture == Capture::Unstopped && has_native.contains(&sample.thread);
            let activity = match self.activity(stack, situation) {
                Activity::Python if lacks_native => Activity::Unclassified,
                activity => activity,
            };
            let phase = stack
                .and_then(|stack| self.phase(stack))
                .or_else(|| fallback.get(sample.thread.index()).copied())
                .unwrap_or(Phase::User);
            ProfileSample {
                thread: sample.thread,
                stack,
                start_ns: sample.start_ns,
                weight_ns: sample.weight_ns,
                queue_ns: match activity {
                    // It spins, and would find nothing with a CPU either.
                    Activity::GpuSync | Activity::GpuCopy => 0,
                    _ => waited_for_cpu_ns(sample),
                },
                awake_ns: sample.run_ns.saturating_add(sample.queue_ns),
                ticks: sample.ticks,
                capture: sample.capture,
                state: sample.state,
                syscall: sample.syscall,
                gil: sample.gil,
                gil_holder: sample.gil_holder,
                phase,
                activity,
                row: row(phase, activity),
                ..ProfileSample::default()
            }
        })
    }
}

/// How much of an interval the thread waited for a CPU. A poll sees one point in time: who sleeps
/// then waited before it blocked, and that is counted by the polls that find it ready to run, each
/// for its part of the time in which it was. Otherwise sleeps would pay for the waits of what runs
/// between them.
fn waited_for_cpu_ns(sample: &Sample) -> u64 {
    let asleep = matches!(
        sample.state,
        ThreadState::Sleeping | ThreadState::Uninterruptible | ThreadState::Stopped
    );
    let ready_ns = u128::from(sample.run_ns) + u128::from(sample.queue_ns);
    if asleep || ready_ns == 0 {
        return 0;
    }
    let part = u128::from(sample.weight_ns) * u128::from(sample.queue_ns) / ready_ns;
    u64::try_from(part).unwrap_or(sample.weight_ns)
}

/// The phase of a sample if neither its frames nor the thread's name decide one.
fn fallback_phase(process: Option<&ProfileProcess>) -> Phase {
    match process.map(|process| process.role) {
        Some(Role::DataLoaderWorker { .. }) => Phase::Input,
        _ => Phase::User,
    }
}
