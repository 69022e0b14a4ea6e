//! Counters of progress, and conditions.

use super::Text;
use crate::model::progress::{CounterInfo, ProgressPoint};
use crate::model::text::printable;
use std::borrow::Cow;
use std::fmt::{self, Write};

impl Text<'_> {
    /// Nothing where none was read.
    pub(super) fn progress(&mut self) -> fmt::Result {
        let recording = self.recording;
        if !recording.tables.counters.is_empty() {
            writeln!(self.out, "\ncounters")?;
        }
        let mut readings: Vec<Vec<&ProgressPoint>> =
            vec![Vec::new(); recording.tables.counters.len()];
        for point in &recording.sideband.points {
            if let Some(readings) = readings.get_mut(point.counter.index()) {
                readings.push(point);
            }
        }
        for (index, (counter, readings)) in
            recording.tables.counters.iter().zip(readings).enumerate()
        {
            self.counter(index, counter)?;
            if let (Some(first), Some(last)) = (readings.first(), readings.last()) {
                writeln!(
                    self.out,
                    "    {} values: {} at {:.3} s, {} at {:.3} s",
                    readings.len(),
                    first.value,
                    self.since_start(first.time_ns),
                    last.value,
                    self.since_start(last.time_ns)
                )?;
            }
            if self.options.samples {
                self.readings(&readings)?;
            }
        }
        if !recording.sideband.conditions.is_empty() {
            writeln!(self.out, "\nconditions")?;
        }
        for condition in &recording.sideband.conditions {
            writeln!(
                self.out,
                "  P{} {} {}",
                condition.process.0,
                printable(&condition.name),
                shortened(&condition.value)
            )?;
        }
        Ok(())
    }

    /// Each reading that gave another value than the one before, and when that one was last read.
    fn readings(&mut self, readings: &[&ProgressPoint]) -> fmt::Result {
        for point in readings {
            write!(
                self.out,
                "    {:.6} s: {}",
                self.since_start(point.time_ns),
                point.value
            )?;
            if point.before_ns < point.time_ns {
                let before = self.since_start(point.before_ns);
                write!(self.out, " (not yet at {before:.6} s)")?;
            }
            writeln!(self.out)?;
        }
        Ok(())
    }

    fn counter(&mut self, index: usize, counter: &CounterInfo) -> fmt::Result {
        write!(
            self.out,
            "  K{index} P{} #{} {} of {}",
            counter.process.0,
            counter.number,
            counter.kind.name(),
            printable(&counter.class)
        )?;
        if !counter.file.is_empty() {
            write!(
                self.out,
                " in {}:{}",
                printable(&counter.file),
                counter.line
            )?;
        }
        for (name, value) in &counter.facts {
            write!(self.out, ", {} {}", printable(name), printable(value))?;
        }
        writeln!(self.out)
    }
}

/// Maximum number of characters of a condition's value: those that hold a table have megabytes.
const MOST_VALUE: usize = 300;

fn shortened(value: &str) -> Cow<'_, str> {
    match value.char_indices().nth(MOST_VALUE) {
        Some((end, _)) => Cow::Owned(format!("{}…", printable(&value[..end]))),
        None => printable(value),
    }
}
