//! Whose work a thread waits for that waits in `backward()`.
//!
//! On CUDA tensors `loss.backward()` hands the graph to a thread `pt_autograd_N` and sleeps until
//! it is done (torch/csrc/autograd/engine.cpp, 2.15.0). That thread has no Python frames of its
//! own, and the waiting one does no work. The wall time stays the waiting thread's; in each
//! interval in which an engine thread of its process was busy, it takes that thread's phase and
//! activity, and that thread's native frames are appended to its own. A wait inside of a node (for
//! a device, a lock, the GIL of a hook) is what backward waits for, too; an engine thread that
//! waits for its next node is idle.
//!
//! On a busy machine the calling thread often loses its CPU to the thread that it woke, before it
//! sleeps. It has nothing left to do then, and its time in the run queue delays nothing.

use crate::model::category::{Activity, Phase};
use crate::model::ids::StackId;
use crate::model::profile::{ProfileFrame, ProfileSample};
use crate::model::sample::{Capture, ThreadState};
use crate::model::stack_table::StackTable;
use crate::torch::classify::row;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// What a stack has to do with the engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct EnginePart {
    /// Its nearest Python frame calls the engine.
    pub calls: bool,
    /// It is in the engine's own code, or in a node.
    pub inside: bool,
    /// It hands nodes over, or takes the next one, and does nothing else.
    pub in_queue: bool,
}

/// Whether a sample of a training thread waits for the engine: it is in backward, its stack calls
/// the engine, and it does nothing, or has nothing left to do.
pub fn waits_for_engine(sample: &ProfileSample, part: EnginePart) -> bool {
    part.calls
        && sample.phase == Phase::Backward
        && (part.in_queue
            || matches!(
                sample.activity,
                Activity::LockWait | Activity::GilWait | Activity::Sleep
            ))
}

/// Whether a sample of an engine thread is work, or a wait in a node, that others may wait for.
pub fn is_busy(sample: &ProfileSample, part: EnginePart) -> bool {
    sample.stack.is_some()
        && match sample.activity {
            Activity::LockWait | Activity::Sleep | Activity::Unclassified => {
                part.inside && !part.in_queue
            }
            _ => true,
        }
}

/// Joins stacks, each pair once.
#[derive(Debug, Default)]
pub struct StackJoiner {
    known: FxHashMap<(StackId, StackId), StackId>,
}

impl StackJoiner {
    /// The frames of `lower`, without markers, below those of `upper`.
    pub fn join(
        &mut self,
        stacks: &mut StackTable<ProfileFrame>,
        upper: StackId,
        lower: StackId,
    ) -> StackId {
        if let Some(&joined) = self.known.get(&(upper, lower)) {
            return joined;
        }
        let mut joined = upper;
        for frame in stacks.root_to_leaf(Some(lower)) {
            if stacks.frame(frame).partial.is_none() {
                joined = stacks.intern_stack(Some(joined), frame);
            }
        }
        self.known.insert((upper, lower), joined);
        joined
    }
}

/// Splits `waiting` at the borders of the busy samples that overlap it, and gives each piece the
/// phase, the activity and the stack of the sample that covers it. `busy` is sorted by start and of
/// one process; of several at a time the earliest is taken. Weights and ticks add up to those of
/// `waiting`. The first piece keeps the capture; the others are `Reused`, so that no capture is
/// counted twice.
pub fn split(
    waiting: &ProfileSample,
    busy: &[ProfileSample],
    mut join: impl FnMut(StackId, StackId) -> StackId,
) -> Vec<ProfileSample> {
    let end = waiting.start_ns.saturating_add(waiting.weight_ns);
    let mut pieces: Vec<(u64, u64, Option<&ProfileSample>)> = Vec::new();
    let mut at = waiting.start_ns;
    for other in busy {
        let from = other.start_ns.max(at);
        let to = other.start_ns.saturating_add(other.weight_ns).min(end);
        if to <= from {
            continue;
        }
        if from > at {
            pieces.push((at, from, None));
        }
        pieces.push((from, to, Some(other)));
        at = to;
    }
    if at < end || pieces.is_empty() {
        pieces.push((at, end, None));
    }
    let mut done = Share::default();
    pieces
        .into_iter()
        .enumerate()
        .map(|(index, (from, to, other))| {
            let part = done.next(waiting, to - waiting.start_ns);
            let mut piece = *waiting;
            piece.start_ns = from;
            piece.weight_ns = to - from;
            piece.ticks = part.ticks;
            piece.queue_ns = part.queue_ns.min(piece.weight_ns);
            if index > 0 {
                piece.capture = Capture::Reused;
            }
            if let Some(other) = other {
                // A hook or a checkpoint may run Python there: its work is not backward.
                piece.phase = other.phase;
                piece.activity = other.activity;
                piece.syscall = other.syscall;
                piece.row = row(piece.phase, other.activity);
                // A thread that waits for a CPU only to fall asleep there waits for the engine.
                let own_ns = match waiting.state {
                    ThreadState::Running => 0,
                    _ => piece.queue_ns,
                };
                piece.queue_ns = own_ns
                    .max(queue_within(other, to - from))
                    .min(piece.weight_ns);
                if waiting.state == ThreadState::Running {
                    piece.state = other.state;
                }
                if let (Some(upper), Some(lower)) = (waiting.stack, other.stack) {
                    piece.stack = Some(join(upper, lower));
                }
            }
            piece
        })
        .collect()
}

/// The part of a sample's time in the run queue that falls on `overlap_ns` of it.
fn queue_within(sample: &ProfileSample, overlap_ns: u64) -> u64 {
    let part =
        u128::from(sample.queue_ns) * u128::from(overlap_ns) / u128::from(sample.weight_ns.max(1));
    u64::try_from(part).unwrap_or(overlap_ns)
}

/// Parts of a sample's ticks and queue time that were distributed already.
#[derive(Clone, Copy, Default)]
struct Share {
    ticks: u32,
    queue_ns: u64,
}

impl Share {
    /// The share up to `elapsed_ns` of the sample, less what was distributed before.
    fn next(&mut self, sample: &ProfileSample, elapsed_ns: u64) -> Share {
        let scale = |value: u64| {
            let scaled =
                u128::from(value) * u128::from(elapsed_ns) / u128::from(sample.weight_ns.max(1));
            u64::try_from(scaled).unwrap_or(value).min(value)
        };
        let due = Share {
            ticks: u32::try_from(scale(u64::from(sample.ticks))).unwrap_or(sample.ticks),
            queue_ns: scale(sample.queue_ns),
        };
        let part = Share {
            ticks: due.ticks.saturating_sub(self.ticks),
            queue_ns: due.queue_ns.saturating_sub(self.queue_ns),
        };
        *self = due;
        part
    }
}

/// The samples of `sorted` (by start, not overlapping within a thread) that may overlap `from..to`.
pub fn overlapping(
    sorted: &[ProfileSample],
    longest_ns: u64,
    from: u64,
    to: u64,
) -> &[ProfileSample] {
    let earliest = from.saturating_sub(longest_ns);
    let first = sorted.partition_point(|sample| sample.start_ns < earliest);
    let last = sorted.partition_point(|sample| sample.start_ns < to);
    sorted.get(first..last).unwrap_or(&[])
}

/// Sorts busy samples of several engine threads by start; at the same start the longer one first.
pub fn sort_busy(samples: &mut [ProfileSample]) {
    samples.sort_by_key(|sample| (sample.start_ns, Reverse(sample.weight_ns), sample.thread));
}
