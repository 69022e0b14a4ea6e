//! Makes a long recording of a short one, to measure what reads it: the same samples again and
//! again, each time later.
//!
//! usage: cargo run --release --example longer_recording -- IN.tspy TIMES OUT.tspy

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::path::Path;
use torchspy::model::ids::ProcessId;
use torchspy::model::segment::Segment;
use torchspy::model::sideband::Sideband;
use torchspy::recording::{Recording, RecordingWriter, segment_of};

/// The length of a segment, ns.
const SEGMENT_NS: u64 = 1_000_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, times, output] = &arguments[..] else {
        return Err("usage: longer_recording IN.tspy TIMES OUT.tspy".into());
    };
    let recording = Recording::read(Path::new(input))?;
    let mut writer = RecordingWriter::from_file(File::create(output)?, &recording.run)?;
    let parts = parts(&recording);
    let processes: Vec<ProcessId> = (0..recording.tables.processes.len())
        .map(ProcessId::from_index)
        .collect();
    let times: u64 = times.parse()?;
    for time in 0..times {
        for (at, part) in parts.iter().enumerate() {
            let index = time * parts.len() as u64 + at as u64;
            let changed = if index == 0 { &processes[..] } else { &[] };
            let part = Segment {
                index,
                last: index + 1 == times * parts.len() as u64,
                ..later(&recording, part, time)
            };
            let symbol = |module, address| {
                let symbol = recording.symbols.lookup(module, address)?;
                Some((symbol.start, symbol.end, symbol.name.clone()))
            };
            writer.write_segment(&segment_of(&recording.tables, part, changed, symbol))?;
        }
    }
    writer.finish()?;
    Ok(())
}

/// The recording by seconds, with its ids.
fn parts(recording: &Recording) -> Vec<Segment> {
    let (sideband, start_ns) = (&recording.sideband, &recording.start_ns);
    let count = (recording.end_ns - start_ns).div_ceil(SEGMENT_NS).max(1);
    let mut parts: Vec<Segment> = (0..count)
        .map(|index| Segment {
            start_ns: start_ns + index * SEGMENT_NS,
            end_ns: recording.end_ns.min(start_ns + (index + 1) * SEGMENT_NS),
            ..Segment::default()
        })
        .collect();
    let of =
        |time_ns: u64| (time_ns.saturating_sub(*start_ns) / SEGMENT_NS).min(count - 1) as usize;
    for part in &mut parts {
        part.sideband.tracks.gpus = sideband.tracks.gpus.clone();
        part.sideband.tracks.tracks = sideband.tracks.tracks.clone();
    }
    for sample in &recording.samples {
        parts[of(sample.start_ns)].samples.push(*sample);
    }
    for point in &sideband.points {
        parts[of(point.time_ns)].sideband.points.push(*point);
    }
    for point in &sideband.tracks.points {
        parts[of(point.end_ns)].sideband.tracks.points.push(*point);
    }
    for pair in &sideband.clocks {
        parts[of(pair.monotonic_ns)].sideband.clocks.push(*pair);
    }
    let first = &mut parts[0].sideband;
    first.conditions = sideband.conditions.clone();
    first.quality = sideband.quality.clone();
    parts
}

/// A part as the recording's `time`th turn has it; counters go on from their last value.
fn later(recording: &Recording, part: &Segment, time: u64) -> Segment {
    let by_ns = time * (recording.end_ns - recording.start_ns);
    let mut ranges = BTreeMap::new();
    for point in &recording.sideband.points {
        let (least, most) = ranges
            .entry(point.counter)
            .or_insert((point.value, point.value));
        (*least, *most) = ((*least).min(point.value), (*most).max(point.value));
    }
    let mut part = part.clone();
    part.start_ns += by_ns;
    part.end_ns += by_ns;
    for sample in &mut part.samples {
        sample.start_ns += by_ns;
    }
    let Sideband {
        points,
        tracks,
        clocks,
        ..
    } = &mut part.sideband;
    for point in points {
        let (least, most) = ranges[&point.counter];
        point.value += time * (most - least);
        point.before_ns += by_ns;
        point.time_ns += by_ns;
    }
    for point in &mut tracks.points {
        point.start_ns += by_ns;
        point.end_ns += by_ns;
    }
    for pair in clocks {
        pair.monotonic_ns += by_ns;
        pair.wall_ns += by_ns;
    }
    part
}
