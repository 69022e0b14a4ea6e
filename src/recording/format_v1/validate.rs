//! What a segment must be for the rest of torchspy to take it without further checks.

use super::column::Corrupt;
use crate::model::frame::Frame;
use crate::model::ids::Id;
use crate::model::sample::Sample;
use crate::model::segment::Segment;
use crate::model::tables::Tables;
use crate::model::track::{CounterTracks, MAX_TIME_NS, MAX_WINDOW_NS};

/// Checks that every id is one of the segment's own tables, and that times can be added up.
pub(super) fn validate(segment: &Segment) -> Result<(), Corrupt> {
    let tables = &segment.tables;
    check(
        segment.start_ns <= segment.end_ns && segment.end_ns <= MAX_TIME_NS,
        "it ends before it starts",
    )?;
    let last_thread = tables.threads.last_key_value();
    check(
        last_thread.is_none_or(|(id, _)| id.index() + 1 == tables.threads.len()),
        "its threads do not count from 0",
    )?;
    let (processes, threads) = (tables.processes.len(), tables.threads.len());
    let of_threads = tables.threads.values().map(|thread| thread.process);
    exist(of_threads, processes, "a thread's process does not exist")?;
    for symbol in &segment.symbols {
        let modules = tables.modules.len();
        exist([symbol.module], modules, "a symbol's module does not exist")?;
        check(symbol.start < symbol.end, "a symbol is empty")?;
    }
    for &frame in tables.stacks.frames() {
        match frame {
            Frame::Python { code, .. } | Frame::Compiles(code) => {
                let codes = tables.codes.len();
                exist([code], codes, "a frame's code object does not exist")?;
            }
            Frame::Native { module, .. } => {
                let modules = tables.modules.len();
                exist([module], modules, "a frame's module does not exist")?;
            }
            Frame::NnModule(id) => {
                let modules = tables.nn_modules.len();
                exist([id], modules, "a frame's nn.Module does not exist")?;
            }
            Frame::Truncated(_) => {}
        }
    }
    let frames = tables.stacks.frames().len();
    for (index, &(parent, frame)) in tables.stacks.stacks().iter().enumerate() {
        exist(parent, index, "a stack's parent does not come before it")?;
        exist([frame], frames, "a stack's frame does not exist")?;
    }
    let of_counters = tables.counters.iter().map(|counter| counter.process);
    exist(of_counters, processes, "a counter's process does not exist")?;
    let sideband = &segment.sideband;
    for point in &sideband.points {
        let counters = tables.counters.len();
        exist(
            [point.counter],
            counters,
            "a reading's counter does not exist",
        )?;
        exist([point.thread], threads, "a reading's thread does not exist")?;
        check(point.time_ns <= MAX_TIME_NS, "a reading's time is absurd")?;
    }
    let of_conditions = sideband
        .conditions
        .iter()
        .map(|condition| condition.process);
    exist(
        of_conditions,
        processes,
        "a condition's process does not exist",
    )?;
    validate_tracks(&sideband.tracks)?;
    for sample in &segment.samples {
        validate_sample(tables, sample)?;
    }
    Ok(())
}

/// Most GPUs and counter tracks of a segment: a machine has some tens, and a few counter tracks for
/// each and for each process.
const MAX_TRACKS: usize = 1 << 16;

pub(super) fn validate_tracks(tracks: &CounterTracks) -> Result<(), Corrupt> {
    let of_tracks = tracks.tracks.iter().filter_map(|track| track.gpu);
    let of_gaps = tracks.gaps.iter().filter_map(|gap| gap.gpu);
    let named = tracks.clocks.iter().map(|clock| clock.gpu).chain(of_tracks);
    exist(
        named.chain(of_gaps),
        tracks.gpus.len(),
        "a counter track's GPU does not exist",
    )?;
    check(
        tracks.gpus.len() <= MAX_TRACKS
            && tracks.tracks.len() <= MAX_TRACKS
            && tracks.gaps.len() <= MAX_TRACKS
            && tracks.clocks.len() <= MAX_TRACKS,
        "there are too many counter tracks",
    )?;
    for point in &tracks.points {
        exist(
            [point.track],
            tracks.tracks.len(),
            "a value's counter track does not exist",
        )?;
        check(point.is_believable(), "a value or its window is absurd")?;
    }
    check(
        tracks
            .gaps
            .iter()
            .all(|gap| gap.start_ns <= MAX_TIME_NS && gap.end_ns <= MAX_TIME_NS),
        "a gap's time is absurd",
    )
}

fn validate_sample(tables: &Tables, sample: &Sample) -> Result<(), Corrupt> {
    let (threads, stacks) = (tables.threads.len(), tables.stacks.stacks().len());
    exist([sample.thread], threads, "a sample's thread does not exist")?;
    exist(
        sample.gil_holder,
        threads,
        "a sample's holder of the GIL does not exist",
    )?;
    exist(sample.stack, stacks, "a sample's stack does not exist")?;
    check(sample.start_ns <= MAX_TIME_NS, "a sample's time is absurd")?;
    check(
        [sample.weight_ns, sample.run_ns, sample.queue_ns]
            .iter()
            .all(|&length| length <= MAX_WINDOW_NS),
        "a sample's length is absurd",
    )
}

/// Checks that all `ids` are below the number of `rows` of their table.
fn exist<K: Id>(
    ids: impl IntoIterator<Item = K>,
    rows: usize,
    otherwise: &'static str,
) -> Result<(), Corrupt> {
    check(ids.into_iter().all(|id| id.index() < rows), otherwise)
}

fn check(holds: bool, otherwise: &'static str) -> Result<(), Corrupt> {
    if holds {
        Ok(())
    } else {
        Err(Corrupt(otherwise))
    }
}
