//! Segments become one recording: the same process, thread, module, code object and stack get one
//! id each.

use super::reader::Recording;
use super::remap::{Collector, Import};
use crate::model::progress::{Condition, ProgressPoint};
use crate::model::run::{ClockPair, Loss, RunInfo};
use crate::model::sample::Sample;
use crate::model::segment::Segment;
use crate::model::track::{CounterTracks, TrackInfo, TrackMerger, TrackPoint};
use std::mem::size_of;

/// A recording that takes one segment after another.
pub(super) struct Merger {
    recording: Recording,
    tables: Collector,
    tracks: TrackMerger,
    /// Sum of all samples' lengths; kept below 2^63, so that sums of any part can be taken without
    /// thought.
    total_ns: u64,
    /// Approximate memory of merged segments besides their tables and symbols, bytes.
    bytes: usize,
}

/// The recording that consists of `segments`, whose ids are valid: of a session that wrote into
/// memory.
pub fn recording_of(run: RunInfo, segments: Vec<Segment>) -> Recording {
    let mut merger = Merger::new(run);
    for segment in segments {
        // Only times that no clock gives are refused.
        let _ = merger.add(segment, usize::MAX);
    }
    merger.finish()
}

/// Why a valid segment was not taken.
pub(super) enum Refused {
    /// Its times add up to more than is possible.
    AbsurdTimes,
    /// The recording has taken the memory that a file of its length may.
    TooMuch,
}

impl Merger {
    pub(super) fn new(run: RunInfo) -> Self {
        Self {
            recording: Recording {
                run,
                ..Recording::default()
            },
            tables: Collector::default(),
            tracks: TrackMerger::default(),
            total_ns: 0,
            bytes: 0,
        }
    }

    /// Adds a segment whose ids have been validated, while memory stays below `most_bytes`.
    pub(super) fn add(&mut self, segment: Segment, most_bytes: usize) -> Result<(), Refused> {
        self.total_ns = self.total_with(&segment).ok_or(Refused::AbsurdTimes)?;
        let recording = &mut self.recording;
        if self.tables.bytes + recording.symbols.bytes() + self.bytes > most_bytes {
            return Err(Refused::TooMuch);
        }
        self.bytes += bytes_besides_tables(&segment);
        let ids = Import::new(&segment.tables, &mut self.tables).all();
        let samples = segment.samples.iter();
        recording
            .samples
            .extend(samples.filter_map(|sample| ids.sample(sample)));
        for symbol in segment.symbols {
            if let Some(module) = ids.module(symbol.module) {
                recording.symbols.insert(module, symbol);
            }
        }
        let (known, later) = (&mut recording.sideband, ids.sideband(segment.sideband));
        known.points.extend(later.points);
        known.conditions.extend(later.conditions);
        self.tracks.add(&later.tracks);
        known.quality.merge(&later.quality);
        known.clocks.extend(later.clocks);
        known.losses.extend(later.losses);
        if recording.end_ns == 0 {
            recording.start_ns = segment.start_ns;
        }
        recording.start_ns = recording.start_ns.min(segment.start_ns);
        recording.end_ns = recording.end_ns.max(segment.end_ns);
        Ok(())
    }

    fn total_with(&self, segment: &Segment) -> Option<u64> {
        let mut total = self.total_ns;
        for sample in &segment.samples {
            let longest = sample.weight_ns.max(sample.run_ns).max(sample.queue_ns);
            total = total.checked_add(longest)?;
        }
        (total <= u64::MAX / 2).then_some(total)
    }

    /// The recording, sorted.
    pub(super) fn finish(mut self) -> Recording {
        let samples = std::mem::take(&mut self.recording.samples);
        self.recording.samples = by_thread_and_start(&samples, self.tables.tables.threads.len());
        let sideband = &mut self.recording.sideband;
        sideband.points.sort_by_key(|point| point.time_ns);
        sideband.tracks = self.tracks.finish();
        self.recording.symbols.sort();
        self.recording.tables = self.tables.tables;
        self.recording
    }
}

/// `samples` of `threads` threads by thread, then by start; those of one time stay in their order.
fn by_thread_and_start(samples: &[Sample], threads: usize) -> Vec<Sample> {
    let mut next = vec![0; threads + 1];
    for sample in samples {
        next[sample.thread.index() + 1] += 1;
    }
    for thread in 1..next.len() {
        next[thread] += next[thread - 1];
    }
    let mut order = vec![0; samples.len()];
    for (at, sample) in samples.iter().enumerate() {
        let place = &mut next[sample.thread.index()];
        order[*place] = at;
        *place += 1;
    }
    let mut sorted: Vec<Sample> = order.into_iter().map(|at| samples[at]).collect();
    // Segments come one after another, so this finds nearly all in order.
    for own in sorted.chunk_by_mut(|left, right| left.thread == right.thread) {
        own.sort_by_key(|sample| sample.start_ns);
    }
    sorted
}

fn bytes_besides_tables(segment: &Segment) -> usize {
    let sideband = &segment.sideband;
    let conditions = sideband.conditions.iter();
    let losses = sideband.losses.iter();
    segment.samples.len() * size_of::<Sample>()
        + sideband.points.len() * size_of::<ProgressPoint>()
        + conditions
            .map(|each| size_of::<Condition>() + each.name.len() + each.value.len())
            .sum::<usize>()
        + track_bytes(&sideband.tracks)
        + sideband.clocks.len() * size_of::<ClockPair>()
        + losses
            .map(|loss| size_of::<Loss>() + loss.reason.len())
            .sum::<usize>()
}

fn track_bytes(tracks: &CounterTracks) -> usize {
    let texts = tracks.gaps.iter().map(|gap| gap.reason.len());
    let texts = texts.chain(tracks.tracks.iter().map(|track| 2 * track.process.len()));
    tracks.points.len() * size_of::<TrackPoint>()
        + (tracks.tracks.len() * 2 + tracks.gaps.len() + tracks.clocks.len())
            * size_of::<TrackInfo>()
        + texts.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::ThreadId;

    fn sample(thread: u32, start_ns: u64, ticks: u32) -> Sample {
        Sample {
            thread: ThreadId(thread),
            start_ns,
            ticks,
            ..Sample::default()
        }
    }

    #[test]
    fn samples_are_sorted_by_thread_and_start() {
        let samples = vec![
            sample(2, 5, 1),
            sample(0, 7, 2),
            sample(2, 4, 3),
            sample(2, 5, 4),
            sample(0, 7, 5),
            sample(0, 6, 6),
        ];
        let mut expected = samples.clone();
        expected.sort_by_key(|sample| (sample.thread, sample.start_ns));
        // A thread may have no sample.
        assert_eq!(by_thread_and_start(&samples, 4), expected);
    }
}
