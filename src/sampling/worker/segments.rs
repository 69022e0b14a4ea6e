//! Writes a segment every second, and names that were not known when their segment was written.

use super::{LOOSE_MAX_STACKS, MAX_STACKS, SYMBOL_PATIENCE, Worker};
use crate::model::ids::{ModuleId, ProcessId};
use crate::model::module::SymbolInfo;
use crate::model::segment::Segment;
use crate::os::clock::{clock_pair, monotonic_ns};
use crate::recording::segment_of;
use crate::sampling::session::IdleThreads;

impl Worker {
    /// Writes what is left after the tracer no longer answers.
    pub(super) fn flush_last(&mut self) {
        self.flush(Segment {
            start_ns: self.written_ns,
            end_ns: monotonic_ns(),
            last: true,
            ..Segment::default()
        });
    }

    /// Writes `of_session`, in which the tracer has set the interval and its own figures.
    pub(super) fn flush(&mut self, mut of_session: Segment) {
        self.written_ns = of_session.end_ns;
        self.update_processes();
        of_session.sideband.quality.throttled_ns = self.throttled_ns();
        if of_session.last {
            self.symbols.wait(SYMBOL_PATIENCE);
            self.forget_all_progress();
        }
        while let Ok(fact) = self.inbox.held.facts.try_recv() {
            self.progress.condition(fact.process, fact.name, fact.value);
        }
        of_session.index = self.next_segment;
        of_session.samples = std::mem::take(&mut self.samples);
        let sideband = &mut of_session.sideband;
        (sideband.points, sideband.conditions) = self.progress.take();
        let of_tracer = std::mem::take(&mut sideband.tracks);
        sideband.tracks = self.take_tracks(of_tracer, of_session.last);
        sideband.clocks.push(clock_pair());
        self.next_segment += 1;
        let changed: Vec<ProcessId> = self.changed.drain().collect();
        let (symbols, unnamed) = (&self.symbols, &mut self.unnamed);
        let mut segment = segment_of(&self.tables, of_session, &changed, |id, address| {
            let is_awaited = symbols.is_awaited(id);
            let found = symbols.lookup(id, address);
            if is_awaited && found.is_none() {
                unnamed.insert((id, address));
            }
            found
        });
        self.name_late(&mut segment);
        for id in self.gone_threads.drain(..) {
            self.tables.threads.remove(&id);
        }
        if self.idle_threads == IdleThreads::Loose {
            self.shorten_ended(&changed);
        }
        // The writer is late only if the disk blocks; the tracer's queue then fills, and its losses
        // are counted.
        let _ = self.segments.send(segment);
        let most_stacks = match self.idle_threads {
            IdleThreads::Close => MAX_STACKS,
            IdleThreads::Loose => LOOSE_MAX_STACKS,
        };
        if self.tables.stacks.stacks().len() > most_stacks {
            self.tables
                .forget_stacks_except(self.last_stacks.values_mut());
        }
    }

    /// Drops what is long of processes that have ended and were written: over days a program may
    /// start very many.
    fn shorten_ended(&mut self, written: &[ProcessId]) {
        for id in written {
            let process = self.tables.processes.get_mut(id.index());
            if let Some(process) = process.filter(|process| process.exited) {
                (process.command, process.environment) = (Vec::new(), Vec::new());
            }
        }
    }

    /// Adds names to `segment` that were missing in earlier segments.
    fn name_late(&mut self, segment: &mut Segment) {
        let ready: Vec<(ModuleId, u64)> = self
            .unnamed
            .iter()
            .copied()
            .filter(|(id, _)| !self.symbols.is_awaited(*id))
            .collect();
        for (id, address) in ready {
            self.unnamed.remove(&(id, address));
            let Some((start, end, name)) = self.symbols.lookup(id, address) else {
                continue;
            };
            let Some(info) = self.tables.modules.get(id.index()) else {
                continue;
            };
            let symbol = SymbolInfo {
                module: segment.tables.modules.intern(info),
                start,
                end,
                name,
            };
            if !segment.symbols.contains(&symbol) {
                segment.symbols.push(symbol);
            }
        }
    }
}
