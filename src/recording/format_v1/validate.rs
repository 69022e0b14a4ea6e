//! What a segment must be for the rest of torchspy to take it without further checks.

use super::column::Corrupt;
use crate::model::frame::Frame;
use crate::model::ids::GpuId;
use crate::model::sample::Sample;
use crate::model::segment::Segment;
use crate::model::tables::Tables;
use crate::model::track::CounterTracks;

/// Latest timestamp that is believed: 146 years after the machine started. Leaves room to add.
const MAX_TIME_NS: u64 = 1 << 62;

/// Longest interval that is believed: thirteen days.
const MAX_INTERVAL_NS: u64 = 1 << 50;

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
    for thread in tables.threads.values() {
        check(
            thread.process.index() < tables.processes.len(),
            "a thread's process does not exist",
        )?;
    }
    for symbol in &segment.symbols {
        check(
            symbol.module.index() < tables.modules.len(),
            "a symbol's module does not exist",
        )?;
        check(symbol.start < symbol.end, "a symbol is empty")?;
    }
    for frame in tables.stacks.frames() {
        match frame {
            Frame::Python { code, .. } | Frame::Compiles(code) => check(
                code.index() < tables.codes.len(),
                "a frame's code object does not exist",
            )?,
            Frame::Native { module, .. } => check(
                module.index() < tables.modules.len(),
                "a frame's module does not exist",
            )?,
            Frame::NnModule(id) => check(
                id.index() < tables.nn_modules.len(),
                "a frame's nn.Module does not exist",
            )?,
            Frame::Truncated(_) => {}
        }
    }
    for (index, (parent, frame)) in tables.stacks.stacks().iter().enumerate() {
        check(
            parent.is_none_or(|parent| parent.index() < index),
            "a stack's parent does not come before it",
        )?;
        check(
            frame.index() < tables.stacks.frames().len(),
            "a stack's frame does not exist",
        )?;
    }
    for counter in &tables.counters {
        check(
            counter.process.index() < tables.processes.len(),
            "a counter's process does not exist",
        )?;
    }
    for point in &segment.points {
        check(
            point.counter.index() < tables.counters.len()
                && point.thread.index() < tables.threads.len(),
            "a reading's counter or thread does not exist",
        )?;
        check(point.time_ns <= MAX_TIME_NS, "a reading's time is absurd")?;
    }
    for condition in &segment.conditions {
        check(
            condition.process.index() < tables.processes.len(),
            "a condition's process does not exist",
        )?;
    }
    validate_tracks(&segment.tracks)?;
    for sample in &segment.samples {
        validate_sample(tables, sample)?;
    }
    Ok(())
}

/// Most GPUs and counter tracks of a segment: a machine has some tens, and a few counter tracks for
/// each and for each process.
const MAX_TRACKS: usize = 1 << 16;

fn validate_tracks(tracks: &CounterTracks) -> Result<(), Corrupt> {
    let known = |gpu: GpuId| gpu.index() < tracks.gpus.len();
    check(
        tracks.clocks.iter().all(|clock| known(clock.gpu))
            && tracks
                .tracks
                .iter()
                .all(|track| track.gpu.is_none_or(known))
            && tracks.gaps.iter().all(|gap| gap.gpu.is_none_or(known)),
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
        check(
            point.track.index() < tracks.tracks.len(),
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
    check(
        sample.thread.index() < tables.threads.len()
            && sample
                .gil_holder
                .is_none_or(|holder| holder.index() < tables.threads.len()),
        "a sample's thread does not exist",
    )?;
    check(
        sample
            .stack
            .is_none_or(|stack| stack.index() < tables.stacks.stacks().len()),
        "a sample's stack does not exist",
    )?;
    check(sample.start_ns <= MAX_TIME_NS, "a sample's time is absurd")?;
    check(
        [sample.weight_ns, sample.run_ns, sample.queue_ns]
            .iter()
            .all(|&length| length <= MAX_INTERVAL_NS),
        "a sample's length is absurd",
    )
}

fn check(holds: bool, otherwise: &'static str) -> Result<(), Corrupt> {
    if holds {
        Ok(())
    } else {
        Err(Corrupt(otherwise))
    }
}
