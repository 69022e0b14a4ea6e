//! A segment every second, and the names that came too late for their own.

use super::{MAX_STACKS, SYMBOL_PATIENCE, Worker};
use crate::model::frame::Frame;
use crate::model::ids::ModuleId;
use crate::model::module::SymbolInfo;
use crate::model::quality::Quality;
use crate::model::segment::Segment;
use crate::os::clock::{clock_pair, monotonic_ns};
use crate::recording::compact::{SegmentFacts, segment_of};
use crate::sampling::raw::FlushFacts;

impl Worker {
    /// Writes what there is, where the tracer does not answer any more.
    pub(super) fn flush_last(&mut self) {
        self.flush(FlushFacts {
            start_ns: self.written_ns,
            end_ns: monotonic_ns(),
            quality: Quality::default(),
            losses: Vec::new(),
            last: true,
        });
    }

    pub(super) fn flush(&mut self, mut facts: FlushFacts) {
        self.written_ns = facts.end_ns;
        self.update_processes();
        facts.quality.throttled_ns = self.throttled_ns();
        if facts.last {
            self.symbols.wait(SYMBOL_PATIENCE);
        }
        let (points, conditions) = self.progress.take();
        let segment_facts = SegmentFacts {
            index: self.next_segment,
            start_ns: facts.start_ns,
            end_ns: facts.end_ns,
            changed_processes: self.changed.drain().collect(),
            quality: facts.quality,
            clocks: vec![clock_pair()],
            losses: facts.losses,
            points,
            conditions,
            lanes: self.take_lanes(facts.last),
            last: facts.last,
        };
        self.next_segment += 1;
        let symbols = &self.symbols;
        let mut segment = segment_of(&self.tables, &self.samples, segment_facts, |id, address| {
            symbols.lookup(id, address)
        });
        self.remember_unnamed(&segment);
        self.name_late(&mut segment);
        self.samples.clear();
        for id in self.gone_threads.drain(..) {
            self.tables.threads.remove(&id);
        }
        // The writer is behind only if the disk stands still; the tracer's queue then fills, and says so.
        let _ = self.segments.send(segment);
        if self.tables.stacks.stacks().len() > MAX_STACKS {
            self.tables
                .forget_stacks_except(self.last_stacks.values_mut());
        }
    }

    /// Native frames of `segment` whose module's symbols are still being loaded: a later segment brings their names.
    fn remember_unnamed(&mut self, segment: &Segment) {
        let ids: Vec<Option<ModuleId>> = segment
            .modules
            .iter()
            .map(|info| {
                self.tables
                    .modules
                    .iter()
                    .position(|known| known == info)
                    .map(ModuleId::from_index)
            })
            .collect();
        for frame in &segment.frames {
            if let Frame::Native {
                module, address, ..
            } = frame
                && let Some(Some(id)) = ids.get(module.index())
                && self.symbols.is_awaited(*id)
            {
                self.unnamed.insert((*id, address.lookup()));
            }
        }
    }

    /// Adds to `segment` the names that earlier ones lacked.
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
            let local = match segment.modules.iter().position(|known| known == info) {
                Some(position) => position,
                None => {
                    segment.modules.push(info.clone());
                    segment.modules.len() - 1
                }
            };
            let symbol = SymbolInfo {
                module: ModuleId::from_index(local),
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
