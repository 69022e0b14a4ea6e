//! Counters of progress, and conditions.

use super::Text;
use crate::model::progress::{CounterInfo, ProgressPoint};
use crate::model::text::printable;
use std::fmt::{self, Write};

impl Text<'_> {
    /// None where none was read.
    pub(super) fn progress(&mut self) -> fmt::Result {
        let recording = self.recording;
        if !recording.counters.is_empty() {
            writeln!(self.out, "\ncounters")?;
        }
        // By counter: how many readings, the first, the last.
        let mut readings: Vec<(usize, Option<(&ProgressPoint, &ProgressPoint)>)> =
            vec![(0, None); recording.counters.len()];
        for point in &recording.points {
            if let Some((count, ends)) = readings.get_mut(point.counter.index()) {
                *count += 1;
                *ends = Some((ends.map_or(point, |(first, _)| first), point));
            }
        }
        for (index, (counter, (count, ends))) in recording.counters.iter().zip(readings).enumerate()
        {
            self.counter(index, counter)?;
            if let Some((first, last)) = ends {
                writeln!(
                    self.out,
                    "    {count} values: {} at {:.3} s, {} at {:.3} s",
                    first.value,
                    self.since_start(first.time_ns),
                    last.value,
                    self.since_start(last.time_ns)
                )?;
            }
            if self.options.samples {
                self.readings(index)?;
            }
        }
        if !recording.conditions.is_empty() {
            writeln!(self.out, "\nconditions")?;
        }
        for condition in &recording.conditions {
            writeln!(
                self.out,
                "  P{} {} {}",
                condition.process.0,
                printable(&condition.name),
                printable(&condition.value)
            )?;
        }
        Ok(())
    }

    /// Each reading that gave another value than the one before, and when it was last read before that.
    fn readings(&mut self, counter: usize) -> fmt::Result {
        let all = self.recording.points.iter();
        for point in all.filter(|point| point.counter.index() == counter) {
            writeln!(
                self.out,
                "    {:.6} s: {} (not yet at {:.6} s)",
                self.since_start(point.time_ns),
                point.value,
                self.since_start(point.before_ns)
            )?;
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
