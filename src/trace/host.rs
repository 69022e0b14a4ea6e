//! What threads of the host did: calls, own and total time of each operator, and what launched the
//! work of devices.

use super::device::{Calls, NONE};
use super::steps::Steps;
use super::{HostKind, Span, Trace};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

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
}

/// Intervals of a device's idle time by the thread that ended it, and what that thread did then.
#[derive(Debug, Default)]
pub(super) struct Idle {
    /// Sorted by start, ns.
    pub(super) by_thread: BTreeMap<u32, Vec<(u64, u64)>>,
    /// ns by key of the innermost span.
    pub(super) by_key: BTreeMap<u32, u64>,
}

/// Walks the spans of each thread in order, with the stack of those that are open.
pub(super) fn sweep(
    trace: &mut Trace,
    steps: &Steps,
    calls: &mut Calls,
    idle: &mut Idle,
) -> Vec<HostTimes> {
    sort(trace);
    let mut sweep = Sweep {
        trace,
        times: vec![HostTimes::default(); trace.host_keys.len()],
        depth: vec![0; trace.host_keys.len()],
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
    sweep.times
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
}

struct Sweep<'t> {
    trace: &'t Trace,
    times: Vec<HostTimes>,
    /// How often each key is open.
    depth: Vec<u32>,
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
            self.pass(top.end_ns, Some(top.key));
            let depth = &mut self.depth[top.key as usize];
            *depth -= 1;
            if *depth == 0 {
                let total_ns = &mut self.times[top.key as usize].total_ns;
                *total_ns = total_ns.saturating_add(top.end_ns - top.start_ns);
            }
        }
        let inner = self.stack.last().map(|top| top.key);
        self.pass(now, inner);
    }

    fn open(&mut self, span: &Span, steps: &Steps) {
        let around = self.stack.last().map(|top| top.key);
        let key = match around.filter(|_| span.is_repeated()) {
            Some(key) => key,
            None => {
                let times = &mut self.times[span.key as usize];
                times.calls += 1;
                times.calls_in_steps += u64::from(steps.has(span.start_ns));
                span.key
            }
        };
        self.depth[key as usize] += 1;
        self.stack.push(Open {
            key,
            start_ns: span.start_ns,
            end_ns: span.start_ns + span.length_ns,
        });
    }

    /// Accounts for the time until `until`.
    fn pass(&mut self, until: u64, key: Option<u32>) {
        if until <= self.cursor {
            return;
        }
        if let Some(key) = key {
            let self_ns = &mut self.times[key as usize].self_ns;
            *self_ns = self_ns.saturating_add(until - self.cursor);
        }
        while let Some(&(start, end)) = self.gaps.first() {
            let overlap = end.min(until).saturating_sub(start.max(self.cursor));
            if overlap > 0 {
                *self.by_key.entry(key.unwrap_or(NONE)).or_default() += overlap;
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
