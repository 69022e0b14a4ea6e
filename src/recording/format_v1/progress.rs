//! Counters, their readings, and conditions, from version 2 on.

use super::column::{ColumnReader, ColumnWriter, Corrupt, bounded, row_count};
use super::tables::{MAX_ROWS, count_of};
use crate::model::ids::{CounterId, ProcessId, ThreadId};
use crate::model::progress::{Condition, CounterInfo, CounterKind, ProgressPoint};
use serde::{Deserialize, Serialize};

/// [`CounterInfo`] in a file.
#[derive(Serialize, Deserialize)]
pub(super) struct WireCounter<'a> {
    process: u32,
    number: u32,
    kind: u32,
    class: &'a str,
    file: &'a str,
    line: u32,
    #[serde(borrow)]
    facts: Vec<(&'a str, &'a str)>,
}

impl<'a> WireCounter<'a> {
    pub(super) fn of(counter: &'a CounterInfo) -> Self {
        Self {
            process: counter.process.0,
            number: counter.number,
            kind: counter_kind(counter.kind),
            class: bounded(&counter.class),
            file: bounded(&counter.file),
            line: counter.line,
            facts: counter
                .facts
                .iter()
                .map(|(name, value)| (bounded(name), bounded(value)))
                .collect(),
        }
    }

    pub(super) fn model(self) -> Result<CounterInfo, Corrupt> {
        Ok(CounterInfo {
            process: ProcessId(self.process),
            number: self.number,
            kind: counter_kind_of(self.kind)?,
            class: self.class.to_owned(),
            file: self.file.to_owned(),
            line: self.line,
            facts: self
                .facts
                .iter()
                .map(|&(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        })
    }
}

fn counter_kind(kind: CounterKind) -> u32 {
    match kind {
        CounterKind::Batches => 0,
        CounterKind::ParameterVersion => 1,
        CounterKind::TrainerSteps => 2,
        CounterKind::LightningSteps => 3,
        CounterKind::LightningEpochs => 4,
    }
}

fn counter_kind_of(code: u32) -> Result<CounterKind, Corrupt> {
    CounterKind::ALL
        .into_iter()
        .find(|&kind| counter_kind(kind) == code)
        .ok_or(Corrupt("an unknown code"))
}

pub(super) fn wire_condition(condition: &Condition) -> (u32, &str, &str) {
    (
        condition.process.0,
        bounded(&condition.name),
        bounded(&condition.value),
    )
}

pub(super) fn condition_of(
    (process, name, value): (u32, &str, &str),
) -> Result<Condition, Corrupt> {
    Ok(Condition {
        process: ProcessId(process),
        name: name.to_owned(),
        value: value.to_owned(),
    })
}

/// [`ProgressPoint`]s in a file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct PointColumns<C> {
    count: u32,
    counter: C,
    thread: C,
    time: C,
    waited: C,
    value: C,
}

impl PointColumns<ColumnWriter> {
    pub(super) fn encode(points: &[ProgressPoint]) -> Result<Self, Corrupt> {
        let mut columns = Self {
            count: count_of(points, MAX_ROWS)?,
            ..Self::default()
        };
        for point in points {
            columns.counter.put_delta(u64::from(point.counter.0));
            columns.thread.put_delta(u64::from(point.thread.0));
            columns.time.put_delta(point.time_ns);
            columns
                .waited
                .put(point.time_ns.saturating_sub(point.before_ns));
            columns.value.put_delta(point.value);
        }
        Ok(columns)
    }
}

impl PointColumns<ColumnReader<'_>> {
    pub(super) fn decode(mut self) -> Result<Vec<ProgressPoint>, Corrupt> {
        let count = row_count(self.count, MAX_ROWS, &[&self.counter, &self.time])?;
        let mut points = Vec::with_capacity(count);
        for _ in 0..count {
            let counter = CounterId(self.counter.get_delta_as()?);
            let thread = ThreadId(self.thread.get_delta_as()?);
            let time_ns = self.time.get_delta()?;
            points.push(ProgressPoint {
                counter,
                thread,
                before_ns: time_ns.saturating_sub(self.waited.get()?),
                time_ns,
                value: self.value.get_delta()?,
            });
        }
        Ok(points)
    }
}
