//! Whole steps of the training loop within a trace.

use super::{HostKind, Trace};
use serde::{Deserialize, Serialize};

/// What marks steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepMark {
    #[default]
    None,
    /// `ProfilerStep#N`, from `prof.step()`.
    Profiler,
    /// The ends of `Optimizer.step#…`, which torch's optimizers mark.
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

    fn step_at(&self, ns: u64) -> Option<usize> {
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
    let optimizer = marked_ends(trace);
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

fn marked_ends(trace: &Trace) -> Vec<u64> {
    let spans = marked(trace, |name| name.starts_with("Optimizer.step#"));
    let mut ends: Vec<u64> = spans.into_iter().map(|(_, end)| end).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
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
