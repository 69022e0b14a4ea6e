//! Columns of samples: thread by thread, so that one sample predicts the next.

use super::codes::{capture, capture_of, gil, gil_of, state, state_of};
use super::column::{ColumnReader, ColumnWriter, Corrupt, row_count};
use super::columns::{MAX_ROWS, count_of};
use crate::model::ids::{StackId, ThreadId};
use crate::model::sample::Sample;
use serde::{Deserialize, Serialize};

// The shape of a sample, low bits first: capture (3), state (3), gil (2), and which fields follow
// in their columns.
const STATE_SHIFT: u32 = 3;
const GIL_SHIFT: u32 = 6;
const HAS_STACK: u64 = 1 << 8;
const HAS_SYSCALL: u64 = 1 << 9;
const HAS_HOLDER: u64 = 1 << 10;
const HAS_RUN: u64 = 1 << 11;
const HAS_QUEUE: u64 = 1 << 12;
const HAS_TICKS: u64 = 1 << 13;
const SHAPES: u64 = 1 << 14;

/// [`Sample`]s in a file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct SampleColumns<C> {
    count: u32,
    thread: C,
    shape: C,
    start: C,
    weight: C,
    ticks: C,
    stack: C,
    syscall: C,
    gil_holder: C,
    run: C,
    queue: C,
}

/// What the sample before says of the next.
struct Before {
    thread: Option<ThreadId>,
    first_start_ns: u64,
    end_ns: u64,
    weight_ns: u64,
}

impl Before {
    fn segment(start_ns: u64) -> Self {
        Self {
            thread: None,
            first_start_ns: start_ns,
            end_ns: start_ns,
            weight_ns: 0,
        }
    }

    /// A thread's samples follow each other without gaps; threads begin together.
    fn expected_start(&self, thread: ThreadId) -> u64 {
        if self.thread == Some(thread) {
            self.end_ns
        } else {
            self.first_start_ns
        }
    }

    fn advance(&mut self, thread: ThreadId, start_ns: u64, weight_ns: u64) {
        if self.thread != Some(thread) {
            self.first_start_ns = start_ns;
        }
        self.thread = Some(thread);
        self.end_ns = start_ns.wrapping_add(weight_ns);
        self.weight_ns = weight_ns;
    }
}

impl SampleColumns<ColumnWriter> {
    pub(super) fn encode(samples: &[Sample], segment_start_ns: u64) -> Result<Self, Corrupt> {
        let mut columns = Self {
            count: count_of(samples.len(), MAX_ROWS)?,
            ..Self::default()
        };
        let mut order: Vec<&Sample> = samples.iter().collect();
        order.sort_by_key(|sample| (sample.thread, sample.start_ns));
        let mut before = Before::segment(segment_start_ns);
        for sample in order {
            columns.put(sample, &before);
            before.advance(sample.thread, sample.start_ns, sample.weight_ns);
        }
        Ok(columns)
    }

    fn put(&mut self, sample: &Sample, before: &Before) {
        let mut shape = capture(sample.capture)
            | state(sample.state) << STATE_SHIFT
            | gil(sample.gil) << GIL_SHIFT;
        self.thread.put_delta(u64::from(sample.thread.0));
        self.start
            .put_difference(sample.start_ns, before.expected_start(sample.thread));
        self.weight
            .put_difference(sample.weight_ns, before.weight_ns);
        if let Some(stack) = sample.stack {
            shape |= HAS_STACK;
            self.stack.put_delta(u64::from(stack.0));
        }
        if let Some(number) = sample.syscall {
            shape |= HAS_SYSCALL;
            self.syscall.put(u64::from(number));
        }
        if let Some(holder) = sample.gil_holder {
            shape |= HAS_HOLDER;
            self.gil_holder.put(u64::from(holder.0));
        }
        if sample.queue_ns != 0 {
            shape |= HAS_QUEUE;
            self.queue.put(sample.queue_ns);
        }
        if sample.run_ns != 0 {
            // A thread that has work ran whenever it did not queue.
            shape |= HAS_RUN;
            let expected = sample.weight_ns.wrapping_sub(sample.queue_ns);
            self.run.put_difference(sample.run_ns, expected);
        }
        if sample.ticks != 1 {
            shape |= HAS_TICKS;
            self.ticks.put(u64::from(sample.ticks));
        }
        self.shape.put(shape);
    }
}

impl SampleColumns<ColumnReader<'_>> {
    /// All samples, by thread and start.
    pub(super) fn decode(mut self, segment_start_ns: u64) -> Result<Vec<Sample>, Corrupt> {
        let count = row_count(
            self.count,
            MAX_ROWS,
            &[&self.thread, &self.shape, &self.start, &self.weight],
        )?;
        let mut samples = Vec::with_capacity(count);
        let mut before = Before::segment(segment_start_ns);
        for _ in 0..count {
            let sample = self.get(&before)?;
            before.advance(sample.thread, sample.start_ns, sample.weight_ns);
            samples.push(sample);
        }
        Ok(samples)
    }

    fn get(&mut self, before: &Before) -> Result<Sample, Corrupt> {
        let shape = self.shape.get()?;
        if shape >= SHAPES {
            return Err(Corrupt("a sample of unknown shape"));
        }
        let has = |field: u64| shape & field != 0;
        let thread = ThreadId(self.thread.get_delta_as()?);
        let start_ns = self.start.get_difference(before.expected_start(thread))?;
        let weight_ns = self.weight.get_difference(before.weight_ns)?;
        let queue_ns = if has(HAS_QUEUE) { self.queue.get()? } else { 0 };
        let run_ns = if has(HAS_RUN) {
            self.run.get_difference(weight_ns.wrapping_sub(queue_ns))?
        } else {
            0
        };
        let stack = has(HAS_STACK)
            .then(|| self.stack.get_delta_as())
            .transpose()?;
        let syscall = has(HAS_SYSCALL)
            .then(|| self.syscall.get_as())
            .transpose()?;
        let gil_holder = has(HAS_HOLDER)
            .then(|| self.gil_holder.get_as())
            .transpose()?;
        let ticks = if has(HAS_TICKS) {
            self.ticks.get_as()?
        } else {
            1
        };
        Ok(Sample {
            thread,
            stack: stack.map(StackId),
            start_ns,
            weight_ns,
            ticks,
            capture: capture_of(shape & 7)?,
            state: state_of(shape >> STATE_SHIFT & 7)?,
            syscall,
            gil: gil_of(shape >> GIL_SHIFT & 3)?,
            gil_holder: gil_holder.map(ThreadId),
            run_ns,
            queue_ns,
        })
    }
}
