//! Hands backward's time to the training thread that waits for it.

use super::by_thread;
use crate::model::category::Phase;
use crate::model::ids::{ProcessId, StackId, ThreadId};
use crate::model::profile::{Profile, ProfileFrame, ProfileSample};
use crate::model::stack_table::StackTable;
use crate::torch::classify::FunctionClass;
use crate::torch::rules::{FrameRole, PhaseMark, RuleSet, Special};
use crate::torch::stitch::{
    EnginePart, StackJoiner, is_busy, overlapping, sort_busy, split, waits_for_engine,
};
use rustc_hash::FxHashMap;

/// The busy samples of one process's engine threads.
struct Engine {
    samples: Vec<ProfileSample>,
    longest_ns: u64,
}

/// Splits the samples in which a training thread waits for the engine (see
/// [`torch::stitch`](crate::torch::stitch)).
pub(super) fn stitch(profile: &mut Profile, classes: &[FunctionClass], rules: &RuleSet) {
    let mut parts = EngineParts {
        classes,
        known: FxHashMap::default(),
    };
    let engines = engines(profile, &mut parts, rules);
    if engines.is_empty() {
        return;
    }
    let training: Vec<ThreadId> = profile
        .processes
        .iter()
        .filter_map(|process| process.training_thread)
        .collect();
    let mut joiner = StackJoiner::default();
    let samples = std::mem::take(&mut profile.samples);
    let mut stitched = Vec::with_capacity(samples.len());
    for sample in samples {
        let engine = training
            .contains(&sample.thread)
            .then(|| profile.threads.get(sample.thread.index()))
            .flatten()
            .and_then(|thread| engines.get(&thread.process));
        match engine {
            Some(engine) if waits_for_engine(&sample, parts.of(&profile.stacks, sample.stack)) => {
                let end = sample.start_ns.saturating_add(sample.weight_ns);
                let busy = overlapping(&engine.samples, engine.longest_ns, sample.start_ns, end);
                stitched.extend(split(&sample, busy, |upper, lower| {
                    joiner.join(&mut profile.stacks, upper, lower)
                }));
            }
            _ => stitched.push(sample),
        }
    }
    profile.samples = stitched;
}

fn engines(
    profile: &Profile,
    parts: &mut EngineParts<'_>,
    rules: &RuleSet,
) -> FxHashMap<ProcessId, Engine> {
    let rooted = engine_rooted(&profile.stacks, parts.classes);
    let is_rooted = |sample: &ProfileSample| {
        let stack = sample.stack.and_then(|stack| rooted.get(stack.index()));
        stack.is_some_and(|&(_, is_rooted)| is_rooted)
    };
    let mut engines: FxHashMap<ProcessId, Engine> = FxHashMap::default();
    for own in by_thread(&profile.samples) {
        let Some(thread) = own
            .first()
            .and_then(|sample| profile.threads.get(sample.thread.index()))
        else {
            continue;
        };
        let by_name = rules.thread_phase(&thread.name) == Some(Phase::Backward);
        if !by_name && !own.iter().any(is_rooted) {
            continue;
        }
        let engine = engines.entry(thread.process).or_insert_with(|| Engine {
            samples: Vec::new(),
            longest_ns: 0,
        });
        for sample in own {
            if !is_busy(sample, parts.of(&profile.stacks, sample.stack)) {
                continue;
            }
            engine.longest_ns = engine.longest_ns.max(sample.weight_ns);
            engine.samples.push(*sample);
        }
    }
    for engine in engines.values_mut() {
        sort_busy(&mut engine.samples);
    }
    engines.retain(|_, engine| !engine.samples.is_empty());
    engines
}

/// By stack, the number of its frames, and whether it is an engine thread's: these have few frames
/// under their root, which is looked for there.
fn engine_rooted(
    stacks: &StackTable<ProfileFrame>,
    classes: &[FunctionClass],
) -> Vec<(usize, bool)> {
    const DEPTH: usize = 8;
    let mut found: Vec<(usize, bool)> = Vec::with_capacity(stacks.stacks().len());
    for &(parent, frame) in stacks.stacks() {
        let below = parent.and_then(|parent| found.get(parent.index()));
        let (below, is_rooted) = below.copied().unwrap_or_default();
        let is_root = below < DEPTH
            && classes
                .get(stacks.frame(frame).function.index())
                .is_some_and(|class| class.special == Special::EngineThread);
        found.push((below + 1, is_rooted || is_root));
    }
    found
}

/// What stacks have to do with the engine; found once per stack.
struct EngineParts<'a> {
    classes: &'a [FunctionClass],
    known: FxHashMap<StackId, EnginePart>,
}

impl EngineParts<'_> {
    fn of(&mut self, stacks: &StackTable<ProfileFrame>, stack: Option<StackId>) -> EnginePart {
        let Some(stack) = stack else {
            return EnginePart::default();
        };
        let classes = self.classes;
        *self.known.entry(stack).or_insert_with(|| {
            let leaf_to_root = || {
                stacks
                    .leaf_to_root(Some(stack))
                    .filter_map(|frame| classes.get(stacks.frame(frame).function.index()))
            };
            let python = leaf_to_root().find(|class| class.role == FrameRole::Python);
            // Waits of the C and C++ libraries are the engine's own.
            let innermost = leaf_to_root().find(|class| {
                !matches!(
                    class.role,
                    FrameRole::Marker | FrameRole::Through(_) | FrameRole::Anonymous
                )
            });
            EnginePart {
                calls: python.is_some_and(|class| class.special == Special::EngineCall),
                inside: leaf_to_root()
                    .any(|class| class.mark == Some(PhaseMark::Strong(Phase::Backward))),
                in_queue: innermost.is_some_and(|class| class.special == Special::EngineQueue),
            }
        })
    }
}
