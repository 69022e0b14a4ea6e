//! Hands backward's time to the training thread that waits for it.

use super::by_thread;
use crate::model::category::Phase;
use crate::model::ids::{ProcessId, StackId, ThreadId};
use crate::model::profile::{Profile, ProfileFrame, ProfileSample};
use crate::model::stack_table::StackTable;
use crate::torch::classify::FunctionClass;
use crate::torch::rules::{FrameRole, RuleSet, Special};
use crate::torch::stitch::{StackJoiner, is_busy, overlapping, sort_busy, split, waits_for_engine};
use rustc_hash::FxHashMap;

/// The busy samples of one process's engine threads.
struct Engine {
    samples: Vec<ProfileSample>,
    longest_ns: u64,
}

/// Splits the samples in which a training thread waits for the engine (see
/// [`torch::stitch`](crate::torch::stitch)).
pub(super) fn stitch(profile: &mut Profile, classes: &[FunctionClass], rules: &RuleSet) {
    let engines = engines(profile, classes, rules);
    if engines.is_empty() {
        return;
    }
    let training: Vec<ThreadId> = profile
        .processes
        .iter()
        .filter_map(|process| process.training_thread)
        .collect();
    let mut calls = CallsEngine {
        classes,
        known: FxHashMap::default(),
    };
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
            Some(engine)
                if waits_for_engine(&sample, calls.engine(&profile.stacks, sample.stack)) =>
            {
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
    classes: &[FunctionClass],
    rules: &RuleSet,
) -> FxHashMap<ProcessId, Engine> {
    let mut engines: FxHashMap<ProcessId, Engine> = FxHashMap::default();
    for own in by_thread(&profile.samples) {
        let Some(thread) = own
            .first()
            .and_then(|sample| profile.threads.get(sample.thread.index()))
        else {
            continue;
        };
        let by_name = rules.thread_phase(&thread.name) == Some(Phase::Backward);
        if !by_name
            && !own
                .iter()
                .any(|sample| is_engine_root(&profile.stacks, classes, sample.stack))
        {
            continue;
        }
        let engine = engines.entry(thread.process).or_insert_with(|| Engine {
            samples: Vec::new(),
            longest_ns: 0,
        });
        for sample in own.iter().filter(|sample| is_busy(sample)) {
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

/// Engine threads have few frames under their root: it is looked for there.
fn is_engine_root(
    stacks: &StackTable<ProfileFrame>,
    classes: &[FunctionClass],
    stack: Option<StackId>,
) -> bool {
    const DEPTH: usize = 8;
    let frames: Vec<_> = stacks.leaf_to_root(stack).collect();
    frames.iter().rev().take(DEPTH).any(|&frame| {
        classes
            .get(stacks.frame(frame).function.index())
            .is_some_and(|class| class.special == Special::EngineThread)
    })
}

/// Whether the nearest Python frame of a stack calls the engine; found once per stack.
struct CallsEngine<'a> {
    classes: &'a [FunctionClass],
    known: FxHashMap<StackId, bool>,
}

impl CallsEngine<'_> {
    fn engine(&mut self, stacks: &StackTable<ProfileFrame>, stack: Option<StackId>) -> bool {
        let Some(stack) = stack else {
            return false;
        };
        let classes = self.classes;
        *self.known.entry(stack).or_insert_with(|| {
            stacks
                .leaf_to_root(Some(stack))
                .filter_map(|frame| classes.get(stacks.frame(frame).function.index()))
                .find(|class| class.role == FrameRole::Python)
                .is_some_and(|class| class.special == Special::EngineCall)
        })
    }
}
