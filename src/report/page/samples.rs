//! Samples as columns. Equal neighbours are one, and what a sample is lies in its *context*: its
//! thread, stack and class, each of them once.

use super::columns::{Column, Columns};
use crate::model::category::{Activity, Phase, SummaryRow};
use crate::model::facts::Wait;
use crate::model::ids::{StackId, ThreadId};
use crate::model::profile::{Profile, ProfileSample};
use crate::model::sample::ThreadState;
use crate::report::view::is_idle;
use rustc_hash::FxHashMap;

/// With more samples, time is cut into bins. A browser holds 40 bytes for each.
pub(super) const MOST_SAMPLES: usize = 3_000_000;
/// The shortest bins.
const LEAST_BIN_US: u64 = 50_000;

/// What samples of a thread have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Context {
    pub(super) thread: ThreadId,
    pub(super) stack: Option<StackId>,
    phase: Phase,
    activity: Activity,
    row: SummaryRow,
    wait: Option<Wait>,
    running: bool,
    idle: bool,
}

impl Context {
    fn of(sample: &ProfileSample) -> Self {
        Self {
            thread: sample.thread,
            stack: sample.stack,
            phase: sample.phase,
            activity: sample.activity,
            row: sample.row,
            wait: sample.wait,
            running: sample.state == ThreadState::Running,
            idle: is_idle(sample),
        }
    }
}

/// Contexts with their numbers, in the order in which they were first seen.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    pub(super) list: Vec<Context>,
    index: FxHashMap<Context, u32>,
}

impl Contexts {
    fn number(&mut self, context: Context) -> u32 {
        let list = &mut self.list;
        *self.index.entry(context).or_insert_with(|| {
            list.push(context);
            list.len() as u32 - 1
        })
    }

    /// `leaf` numbers the stacks that occur.
    pub(super) fn write(&self, columns: &mut Columns, leaf: &FxHashMap<StackId, usize>) {
        let mut add = |name: &str, value: &dyn Fn(&Context) -> u64| {
            let mut column = Column::default();
            self.list
                .iter()
                .for_each(|context| column.push(value(context)));
            columns.add(name, &column);
        };
        add("context.thread", &|it| u64::from(it.thread.0));
        add("context.leaf", &|it| {
            let leaf = it.stack.and_then(|stack| leaf.get(&stack));
            leaf.map_or(0, |&leaf| leaf as u64 + 1)
        });
        add("context.phase", &|it| it.phase as u64);
        add("context.activity", &|it| it.activity as u64);
        add("context.row", &|it| it.row as u64);
        add("context.wait", &|it| {
            it.wait.map_or(0, |wait| wait.kind as u64 + 1)
        });
        add("context.label", &|it| {
            it.wait.map_or(0, |wait| u64::from(wait.label.0) + 1)
        });
        add("context.flags", &|it| {
            u64::from(it.running) | u64::from(it.idle) << 1
        });
    }
}

/// A sample, times in µs since the start of the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    start_us: u64,
    end_us: u64,
    queue_us: u64,
    ticks: u64,
    context: u32,
}

/// Samples of all threads.
#[derive(Debug)]
pub(super) struct Samples {
    pub(super) contexts: Contexts,
    /// By thread and start.
    rows: Vec<(ThreadId, Row)>,
    /// Length of the bins; 0 without bins.
    pub(super) bin_us: u64,
}

impl Samples {
    /// At most about `most` rows.
    pub(super) fn of(profile: &Profile, most: usize) -> Self {
        let mut samples = Self {
            contexts: Contexts::default(),
            rows: Vec::new(),
            bin_us: 0,
        };
        let us = |ns: u64| (ns.saturating_sub(profile.start_ns) + 500) / 1000;
        // What rounding took from or gave to the part in the run queue, by thread.
        let mut debt = (ThreadId::default(), 0_i64);
        for sample in &profile.samples {
            if debt.0 != sample.thread {
                debt = (sample.thread, 0);
            }
            let start_us = us(sample.start_ns);
            let end_us = us(sample.start_ns.saturating_add(sample.weight_ns)).max(start_us);
            let queue_ns = sample.queue_ns.min(sample.weight_ns) as i64;
            // Neither part vanishes: the sample's ticks count for both.
            let length_us = (end_us - start_us) as i64;
            let least_us = i64::from(queue_ns > 0).min(length_us);
            let runs = i64::from((queue_ns as u64) < sample.weight_ns);
            let most_us = (length_us - runs).max(least_us);
            let queue_us = match queue_ns {
                0 => 0,
                _ if runs == 0 => length_us,
                ns => ((ns + debt.1 + 500) / 1000).clamp(least_us, most_us),
            };
            debt.1 += queue_ns - queue_us * 1000;
            let row = Row {
                start_us,
                end_us,
                queue_us: queue_us as u64,
                ticks: u64::from(sample.ticks),
                context: samples.contexts.number(Context::of(sample)),
            };
            samples.push(sample.thread, row);
        }
        while samples.rows.len() > most {
            let longer = samples.bin_us.saturating_mul(2).max(LEAST_BIN_US);
            let before = samples.rows.len();
            samples.bin(longer);
            if samples.rows.len() == before && longer > us(profile.end_ns) {
                break;
            }
        }
        samples
    }

    /// Adds a row, or lengthens the last one. Rows with a part in the run queue stay as they are:
    /// that part is spread over the whole row.
    fn push(&mut self, thread: ThreadId, row: Row) {
        if let Some((of, last)) = self.rows.last_mut()
            && *of == thread
            && last.end_us == row.start_us
            && last.context == row.context
            && last.queue_us == 0
            && row.queue_us == 0
        {
            last.end_us = row.end_us;
            last.ticks += row.ticks;
        } else {
            self.rows.push((thread, row));
        }
    }

    /// Puts the rows of one context that start in one bin together.
    fn bin(&mut self, bin_us: u64) {
        self.bin_us = bin_us;
        let rows = std::mem::take(&mut self.rows);
        let key = |&(thread, row): &(ThreadId, Row)| (thread, row.start_us / bin_us);
        for bin in rows.chunk_by(|a, b| key(a) == key(b)) {
            let mut merged: Vec<Row> = Vec::new();
            let mut place: FxHashMap<u32, usize> = FxHashMap::default();
            for (_, row) in bin {
                let at = *place.entry(row.context).or_insert(merged.len());
                match merged.get_mut(at) {
                    Some(sum) => {
                        sum.end_us += row.end_us - row.start_us;
                        sum.queue_us += row.queue_us;
                        sum.ticks += row.ticks;
                    }
                    None => merged.push(*row),
                }
            }
            let Some((thread, first)) = bin.first() else {
                continue;
            };
            let mut at_us = first.start_us;
            for row in merged {
                let length_us = row.end_us - row.start_us;
                let moved = Row {
                    start_us: at_us,
                    end_us: at_us + length_us,
                    ..row
                };
                at_us = moved.end_us;
                self.push(*thread, moved);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Writes the rows, and how many each of `threads` threads has.
    pub(super) fn write(&self, columns: &mut Columns, threads: usize) {
        let mut counts = vec![0_u64; threads];
        let mut gap = Column::default();
        let mut length = Column::default();
        let mut queue = Column::default();
        let mut ticks = Column::default();
        let mut context = Column::default();
        let mut last = (None, 0_u64);
        for &(thread, row) in &self.rows {
            if let Some(count) = counts.get_mut(thread.index()) {
                *count += 1;
            }
            let before_us = if last.0 == Some(thread) { last.1 } else { 0 };
            gap.push_signed(row.start_us as i64 - before_us as i64);
            length.push(row.end_us - row.start_us);
            queue.push(row.queue_us);
            ticks.push(row.ticks);
            context.push(u64::from(row.context));
            last = (Some(thread), row.end_us);
        }
        let mut count = Column::default();
        counts.into_iter().for_each(|rows| count.push(rows));
        columns.add("thread.samples", &count);
        columns.add("sample.gap", &gap);
        columns.add("sample.length", &length);
        columns.add("sample.queue", &queue);
        columns.add("sample.ticks", &ticks);
        columns.add("sample.context", &context);
    }
}
