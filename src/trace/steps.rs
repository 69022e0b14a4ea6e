//! Whole steps of the training loop within a trace.

use super::{HostKey, HostKind, Trace};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What marks steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepMark {
    #[default]
    None,
    /// `ProfilerStep#N`, from `prof.step()`.
    Profiler,
    /// The ends of `Optimizer.step#…`, which torch's optimizers mark: of the optimizer with the
    /// most.
    Optimizer,
}

/// Steps that lie in the trace as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steps {
    pub mark: StepMark,
    /// Start and end of each, in order, ns.
    pub whole: Vec<(u64, u64)>,
    /// Whether the last one was cut by the end of the trace and is left out.
    pub cut: bool,
}

impl Steps {
    /// From the start of the first to the end of the last.
    pub fn window(&self) -> Option<(u64, u64)> {
        Some((self.whole.first()?.0, self.whole.last()?.1))
    }

    /// Mean length; `None` without steps.
    pub fn mean_ns(&self) -> Option<u64> {
        let total: u64 = self.whole.iter().map(|(start, end)| end - start).sum();
        total.checked_div(self.whole.len() as u64)
    }

    /// Whether a time is in a step.
    pub(super) fn has(&self, ns: u64) -> bool {
        self.step_at(ns).is_some()
    }

    /// The step that a time is in, by index.
    pub(super) fn step_at(&self, ns: u64) -> Option<usize> {
        let later = self.whole.partition_point(|&(start, _)| start <= ns);
        let step = later.checked_sub(1)?;
        (ns < self.whole.get(step)?.1).then_some(step)
    }
}

/// The whole steps of a trace.
pub(super) fn steps(trace: &Trace) -> Steps {
    let marked = marked(trace, |name| name.starts_with("ProfilerStep#"));
    if !marked.is_empty() {
        let mut steps = Steps {
            mark: StepMark::Profiler,
            whole: apart(marked),
            cut: false,
        };
        leave_out_cut(&mut steps, trace);
        return steps;
    }
    let optimizer = optimizer_ends(trace);
    let whole: Vec<(u64, u64)> = optimizer
        .windows(2)
        .map(|ends| (ends[0], ends[1]))
        .collect();
    Steps {
        mark: match whole.is_empty() {
            true => StepMark::None,
            false => StepMark::Optimizer,
        },
        whole,
        cut: false,
    }
}

/// Spans of annotations by name, sorted.
fn marked(trace: &Trace, is_mark: impl Fn(&str) -> bool) -> Vec<(u64, u64)> {
    let is_key: Vec<bool> = trace
        .host_keys
        .iter()
        .map(|key| key.kind == HostKind::Annotation && is_mark(&key.name))
        .collect();
    let spans = trace.spans.iter();
    let mut found: Vec<(u64, u64)> = spans
        .filter(|span| is_key.get(span.key as usize) == Some(&true))
        .map(|span| (span.start_ns, span.start_ns + span.length_ns))
        .collect();
    found.sort_unstable();
    found
}

/// The ends of the steps of one optimizer, in order: of the class and thread with the most. A loop
/// may step several, and several processes may be in one file.
///
/// A step within another one is a part of it: `ZeroRedundancyOptimizer` steps the one that it
/// shards. One within a node of autograd's graph is of one parameter alone: an optimizer that a
/// hook steps in the backward pass (`register_post_accumulate_grad_hook`).
fn optimizer_ends(trace: &Trace) -> Vec<u64> {
    let names: Vec<Option<Around<'_>>> = trace.host_keys.iter().map(around).collect();
    let of = |key: u32| names.get(key as usize).copied().flatten();
    let spans = trace.spans.iter();
    let mut spans: Vec<_> = spans.filter(|span| of(span.key).is_some()).collect();
    spans.sort_unstable_by_key(|span| {
        let rank = of(span.key);
        (span.thread, span.start_ns, Reverse(span.length_ns), rank)
    });
    let mut found: BTreeMap<(&str, u32), Vec<u64>> = BTreeMap::new();
    let mut outer = (None, 0);
    for span in spans {
        let end_ns = span.start_ns + span.length_ns;
        if outer.0 == Some(span.thread) && span.start_ns < outer.1 {
            continue;
        }
        outer = (Some(span.thread), end_ns);
        if let Some(Around::Optimizer(name)) = of(span.key) {
            found.entry((name, span.thread)).or_default().push(end_ns);
        }
    }
    let most = found
        .into_values()
        .max_by_key(|ends| (ends.len(), ends.last().copied()));
    let mut ends = most.unwrap_or_default();
    ends.dedup();
    ends
}

/// What may have a step of an optimizer in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Around<'t> {
    Backward,
    /// Its class.
    Optimizer(&'t str),
}

fn around(key: &HostKey) -> Option<Around<'_>> {
    let name = key.name.as_str();
    match key.kind {
        HostKind::Annotation if name.starts_with("Optimizer.step#") => {
            Some(Around::Optimizer(name))
        }
        // `evaluate_function` of torch/csrc/autograd/engine.cpp.
        HostKind::Operator if name.starts_with("autograd::engine::evaluate_function") => {
            Some(Around::Backward)
        }
        _ => None,
    }
}

/// Without spans that overlap the one before: those of several processes in one file.
fn apart(spans: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut last_end = 0;
    let is_apart = |&(start, end): &(u64, u64)| {
        let apart = start >= last_end && end > start;
        last_end = if apart { end } else { last_end };
        apart
    };
    spans.into_iter().filter(is_apart).collect()
}

/// The profiler's end cuts the step that `prof.step()` has just begun: its span has few operators.
fn leave_out_cut(steps: &mut Steps, trace: &Trace) {
    let mut counts = vec![0_u64; steps.whole.len()];
    for span in &trace.spans {
        if let Some(count) = steps
            .step_at(span.start_ns)
            .and_then(|step| counts.get_mut(step))
        {
            *count += 1;
        }
    }
    let Some(last) = counts.pop() else {
        return;
    };
    counts.sort_unstable();
    let median = counts.get(counts.len() / 2).copied().unwrap_or(0);
    if 2 * last < median {
        steps.whole.pop();
        steps.cut = true;
    }
}
