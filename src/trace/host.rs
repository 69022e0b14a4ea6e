//! What threads of the host did: calls, own and total time of each operator, and what launched the
//! work of devices.

use super::device::{Calls, NONE};
use super::spread::{Sums, TimeSpreads};
use super::steps::Steps;
use super::{HostKey, HostKind, Span, Trace};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::Hash;

/// Calls and times of a [`super::HostKey`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTimes {
    pub calls: u64,
    /// Of `calls`, those that began in a whole step.
    pub calls_in_steps: u64,
    /// Time in which it was the innermost span of its thread.
    pub self_ns: u64,
    /// Time in which it was on the stack; once where it calls itself.
    pub total_ns: u64,
    /// Of `total_ns`, what was not within a call of the same name with other shapes: these add up
    /// over the keys of a name.
    #[serde(default)]
    pub outer_ns: u64,
    /// The times of `calls_in_steps`; see [`super::TraceSummary::has_step_times`].
    #[serde(default)]
    pub self_in_steps_ns: u64,
    #[serde(default)]
    pub total_in_steps_ns: u64,
    #[serde(default)]
    pub outer_in_steps_ns: u64,
}

/// Intervals of a device's idle time by the thread that ended it, and what that thread did then.
#[derive(Debug, Default)]
pub(super) struct Idle {
    /// Sorted by start, ns.
    pub(super) by_thread: BTreeMap<u32, Vec<(u64, u64)>>,
    /// ns by key of the innermost span.
    pub(super) by_key: BTreeMap<u32, u64>,
}

/// Walks the spans of each thread in order, with the stack of those that are open. Times by key,
/// and how much they differ between steps.
pub(super) fn sweep(
    trace: &mut Trace,
    steps: &Steps,
    calls: &mut Calls,
    idle: &mut Idle,
) -> (Vec<HostTimes>, Option<TimeSpreads>) {
    sort(trace);
    let mut sweep = Sweep {
        trace,
        times: vec![HostTimes::default(); trace.host_keys.len()],
        sums: Sums::default(),
        depth: vec![0; trace.host_keys.len()],
        names: first_of(&trace.host_keys, |key| (key.kind, key.name.as_str())),
        name_depth: vec![0; trace.host_keys.len()],
        stack: Vec::new(),
        cursor: 0,
        gaps: &[],
        by_key: &mut idle.by_key,
    };
    let mut thread = None;
    for span in &trace.spans {
        if thread != Some(span.thread) {
            sweep.close(u64::MAX);
            thread = Some(span.thread);
            let gaps = idle.by_thread.get(&span.thread);
            sweep.gaps = gaps.map_or(&[], Vec::as_slice);
            sweep.cursor = 0;
        }
        sweep.close(span.start_ns);
        sweep.open(span, steps);
        if span.correlation != 0 {
            calls.set_caller(span.correlation, sweep.caller(), sweep.collective());
        }
    }
    sweep.close(u64::MAX);
    let shapes = first_of(&trace.host_keys, |key| {
        let (name, shapes, types) = (&key.name, &key.shapes, &key.types);
        (key.kind, name.as_str(), shapes.as_str(), types.as_str())
    });
    let spreads = sweep.sums.spreads(&sweep.names, &shapes, steps.whole.len());
    (sweep.times, spreads)
}

/// For each key the index of the first one that is the same in `part`.
fn first_of<'k, P: Hash + Eq>(keys: &'k [HostKey], part: impl Fn(&'k HostKey) -> P) -> Vec<u32> {
    let mut first: FxHashMap<P, u32> = FxHashMap::default();
    let numbered = keys.iter().map(part).zip(0..);
    numbered
        .map(|(part, index)| *first.entry(part).or_insert(index))
        .collect()
}

/// Sorts the spans as a walk needs them, and marks those that are one call with the span around
/// them: of the same name, and all that it calls. They are overloads that call each other
/// (`aten::sum` of a list of dimensions and of none), which `key_averages()` counts once, too
/// (`EventList._remove_dup_nodes` of `torch/autograd/profiler_util.py`).
fn sort(trace: &mut Trace) {
    let order = |span: &Span| {
        (
            span.thread,
            span.start_ns,
            Reverse(span.length_ns),
            span.order,
        )
    };
    trace.spans.sort_unstable_by_key(order);
    let mut stack: Vec<Parent> = Vec::new();
    let mut repeated = Vec::new();
    let mut close = |parent: Parent, spans: &[Span]| {
        let key = |index: usize| {
            let span = spans.get(index)?;
            let key = trace.host_keys.get(span.key as usize)?;
            Some((key.kind, key.name.as_str()))
        };
        if parent.children == 1 && key(parent.index) == key(parent.child) {
            repeated.push(parent.child);
        }
    };
    let mut thread = None;
    for (index, span) in trace.spans.iter().enumerate() {
        let is_new = thread.replace(span.thread) != Some(span.thread);
        while let Some(parent) = stack.pop_if(|parent| is_new || parent.end_ns <= span.start_ns) {
            close(parent, &trace.spans);
        }
        if let Some(parent) = stack.last_mut() {
            parent.children += 1;
            parent.child = index;
        }
        stack.push(Parent {
            end_ns: span.start_ns + span.length_ns,
            index,
            child: index,
            children: 0,
        });
    }
    while let Some(parent) = stack.pop() {
        close(parent, &trace.spans);
    }
    for index in repeated {
        trace.spans[index].order = REPEATED;
    }
}

/// The order of a span that is one call with the one around it.
const REPEATED: u32 = u32::MAX;

impl Span {
    /// Whether it is one call with the span around it, of the same name; known once they are
    /// sorted.
    pub(super) fn is_repeated(&self) -> bool {
        self.order == REPEATED
    }
}

/// An open span, and how many it calls.
struct Parent {
    end_ns: u64,
    index: usize,
    /// The last one that it calls.
    child: usize,
    children: u32,
}

struct Open {
    key: u32,
    start_ns: u64,
    end_ns: u64,
    /// The whole step that it began in.
    step: Option<u32>,
}

struct Sweep<'t> {
    trace: &'t Trace,
    times: Vec<HostTimes>,
    sums: Sums,
    /// How often each key is open.
    depth: Vec<u32>,
    /// The first key of the same name, for each key.
    names: Vec<u32>,
    /// How often each name is open, by its first key.
    name_depth: Vec<u32>,
    stack: Vec<Open>,
    /// Until here time is accounted for, ns.
    cursor: u64,
    /// Idle time of devices that is still ahead.
    gaps: &'t [(u64, u64)],
    by_key: &'t mut BTreeMap<u32, u64>,
}

impl Sweep<'_> {
    /// Ends the spans that end by `now`.
    fn close(&mut self, now: u64) {
        while let Some(top) = self.stack.pop_if(|top| top.end_ns <= now) {
            self.pass(top.end_ns, Some((top.key, top.step)));
            let is_last = |depth: &mut u32| {
                *depth -= 1;
                *depth == 0
            };
            let name = self.names[top.key as usize];
            let is_outer = is_last(&mut self.name_depth[name as usize]);
            let is_last = is_last(&mut self.depth[top.key as usize]);
            let times = &mut self.times[top.key as usize];
            let length_ns = top.end_ns - top.start_ns;
            let total_ns = if is_last { length_ns } else { 0 };
            let outer_ns = if is_outer { length_ns } else { 0 };
            add(&mut times.total_ns, total_ns);
            add(&mut times.outer_ns, outer_ns);
            if let Some(step) = top.step {
                add(&mut times.total_in_steps_ns, total_ns);
                add(&mut times.outer_in_steps_ns, outer_ns);
                if let Some(sums) = self.sums.of(top.key, step) {
                    add(&mut sums.total_ns, total_ns);
                    add(&mut sums.outer_ns, outer_ns);
                }
            }
        }
        let inner = self.stack.last().map(|top| (top.key, top.step));
        self.pass(now, inner);
    }

    fn open(&mut self, span: &Span, steps: &Steps) {
        let around = self.stack.last().map(|top| top.key);
        let step = steps.step_at(span.start_ns).map(|step| step as u32);
        let key = match around.filter(|_| span.is_repeated()) {
            Some(key) => key,
            None => {
                let times = &mut self.times[span.key as usize];
                times.calls += 1;
                times.calls_in_steps += u64::from(step.is_some());
                span.key
            }
        };
        self.depth[key as usize] += 1;
        self.name_depth[self.names[key as usize] as usize] += 1;
        self.stack.push(Open {
            key,
            start_ns: span.start_ns,
            end_ns: span.start_ns + span.length_ns,
            step,
        });
    }

    /// Accounts for the time until `until`: to a key, in a whole step or not.
    fn pass(&mut self, until: u64, inner: Option<(u32, Option<u32>)>) {
        if until <= self.cursor {
            return;
        }
        if let Some((key, step)) = inner {
            let times = &mut self.times[key as usize];
            let ns = until - self.cursor;
            add(&mut times.self_ns, ns);
            if let Some(step) = step {
                add(&mut times.self_in_steps_ns, ns);
                if let Some(sums) = self.sums.of(key, step) {
                    add(&mut sums.self_ns, ns);
                }
            }
        }
        while let Some(&(start, end)) = self.gaps.first() {
            let overlap = end.min(until).saturating_sub(start.max(self.cursor));
            if overlap > 0 {
                let key = inner.map_or(NONE, |(key, _)| key);
                add(self.by_key.entry(key).or_default(), overlap);
            }
            if end > until {
                break;
            }
            self.gaps = &self.gaps[1..];
        }
        self.cursor = until;
    }

    /// The innermost operator or annotation.
    fn caller(&self) -> u32 {
        let keys = self.stack.iter().rev().map(|open| open.key);
        let is_caller = |&key: &u32| self.trace.host_keys[key as usize].kind != HostKind::Runtime;
        keys.into_iter().find(is_caller).unwrap_or(NONE)
    }

    /// The collective of the innermost span that has one.
    fn collective(&self) -> u32 {
        let keys = self.stack.iter().rev().map(|open| open.key);
        let collective = |key: u32| self.trace.host_keys[key as usize].collective;
        keys.into_iter().find_map(collective).unwrap_or(NONE)
    }
}

pub(super) fn add(sum: &mut u64, ns: u64) {
    *sum = sum.saturating_add(ns);
}
