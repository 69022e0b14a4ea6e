//! The trace for Perfetto, read back: slices that nest, counters with their windows, and what is
//! missing.

use crate::analysis_builder::*;
use crate::track_builder::{WINDOW_NS, gpu, utilization};
use std::collections::BTreeMap;
use torchspy::model::track::TrackGap;
use torchspy::report::perfetto;
use torchspy::report::view::ViewOptions;

/// A field: number, and its value.
#[derive(Clone, Debug)]
enum Value {
    Number(u64),
    Double(f64),
    Bytes(Vec<u8>),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (&byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
    }
    unreachable!()
}

fn message(mut bytes: &[u8]) -> Vec<(u64, Value)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => Value::Number(varint(&mut bytes)),
            1 => {
                let (double, rest) = bytes.split_at(8);
                bytes = rest;
                Value::Double(f64::from_le_bytes(double.try_into().unwrap()))
            }
            2 => {
                let length = varint(&mut bytes) as usize;
                let (own, rest) = bytes.split_at(length);
                bytes = rest;
                Value::Bytes(own.to_vec())
            }
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, value));
    }
    fields
}

fn number(fields: &[(u64, Value)], wanted: u64) -> Option<u64> {
    fields.iter().find_map(|(field, value)| match value {
        Value::Number(number) if *field == wanted => Some(*number),
        _ => None,
    })
}

fn inner(fields: &[(u64, Value)], wanted: u64) -> Option<Vec<(u64, Value)>> {
    text(fields, wanted).map(|bytes| message(&bytes))
}

fn text(fields: &[(u64, Value)], wanted: u64) -> Option<Vec<u8>> {
    fields.iter().find_map(|(field, value)| match value {
        Value::Bytes(bytes) if *field == wanted => Some(bytes.clone()),
        _ => None,
    })
}

/// What a trace says: tracks by number, slices by track as `start end depth name`, counters by
/// track.
#[derive(Debug, Default)]
struct Trace {
    tracks: BTreeMap<u64, String>,
    slices: BTreeMap<u64, Vec<(u64, u64, usize, String)>>,
    counters: BTreeMap<u64, Vec<(u64, f64)>>,
}

fn read(bytes: &[u8]) -> Trace {
    let mut trace = Trace::default();
    let mut names: BTreeMap<u64, String> = BTreeMap::new();
    let mut open: BTreeMap<u64, Vec<(u64, String)>> = BTreeMap::new();
    let string = |bytes: Option<Vec<u8>>| String::from_utf8(bytes.unwrap()).unwrap();
    for (at, (field, packet)) in message(bytes).into_iter().enumerate() {
        assert_eq!(field, 1);
        let Value::Bytes(packet) = packet else {
            panic!("no packet")
        };
        let packet = message(&packet);
        assert_eq!(number(&packet, 10), Some(1));
        assert_eq!(number(&packet, 13), Some(if at == 0 { 1 } else { 2 }));
        if let Some(track) = inner(&packet, 60) {
            let name = text(&track, 2)
                .or_else(|| text(&inner(&track, 4)?, 5))
                .or_else(|| text(&inner(&track, 3)?, 6));
            trace
                .tracks
                .insert(number(&track, 1).unwrap(), string(name));
            continue;
        }
        let time = number(&packet, 8).unwrap();
        if let Some(interned) = inner(&packet, 12) {
            let entry = inner(&interned, 2).unwrap();
            names.insert(number(&entry, 1).unwrap(), string(text(&entry, 2)));
        }
        let event = inner(&packet, 11).unwrap();
        let track = number(&event, 11).unwrap();
        let stack = open.entry(track).or_default();
        match number(&event, 9).unwrap() {
            1 => stack.push((time, names[&number(&event, 10).unwrap()].clone())),
            2 => {
                let (start, name) = stack.pop().expect("an end without a begin");
                let slices = trace.slices.entry(track).or_default();
                slices.push((start, time, stack.len(), name));
            }
            4 => {
                let value = event.iter().find_map(|(_, value)| match value {
                    Value::Double(value) => Some(*value),
                    _ => None,
                });
                let counters = trace.counters.entry(track).or_default();
                counters.push((time, value.unwrap()));
            }
            other => panic!("event of type {other}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "{open:?}");
    trace
}

#[test]
fn code_and_counters_are_on_one_axis() {
    let mut builder = Builder::trainer();
    builder.ticks(0, 20, S::Running, &[user("main", 10), user("step", 20)]);
    builder.ticks(0, 30, S::Running, &[user("main", 10), user("loss", 30)]);
    builder.ticks(0, 50, S::Running, &[user("main", 11)]);
    let id = gpu(&mut builder, &[100]);
    utilization(&mut builder, id, 100 * TICK_NS, |from, to| {
        0.25 * (to - from) as f64
    });
    builder.sideband.tracks.gaps.push(TrackGap {
        gpu: Some(id),
        kind: None,
        start_ns: 50 * TICK_NS,
        end_ns: 0,
        reason: "the GPU fell off the bus".to_owned(),
    });
    let mut bytes = Vec::new();
    perfetto::render(&builder.profile(), &ViewOptions::default(), &mut bytes).unwrap();
    let trace = read(&bytes);
    let track = |name: &str| {
        let mut tracks = trace.tracks.iter();
        let found = tracks.find(|(_, track)| track.contains(name));
        *found.unwrap_or_else(|| panic!("{name}: {trace:#?}")).0
    };
    let ms = TICK_NS;
    let slices = &trace.slices[&track("MainThread")];
    let named = |name: &str| {
        let mut slices = slices.iter().filter(|slice| slice.3.contains(name));
        let found = slices.next().unwrap().clone();
        assert!(slices.next().is_none(), "{name} is one slice");
        (found.0, found.1, found.2)
    };
    assert_eq!(named("train.py:10"), (0, 50 * ms, 0));
    assert_eq!(named("train.py:20"), (0, 20 * ms, 1));
    assert_eq!(named("train.py:30"), (20 * ms, 50 * ms, 1));
    assert_eq!(named("train.py:11"), (50 * ms, 100 * ms, 0));
    let values = &trace.counters[&track("utilization")];
    assert_eq!(values.len() as u64, 100 * TICK_NS / WINDOW_NS);
    assert_eq!(values[1], (WINDOW_NS, 0.25));
    let missing = &trace.slices[&track("missing")][0];
    assert_eq!((missing.0, missing.1), (50 * ms, 100 * ms));
    assert!(missing.3.contains("fell off the bus"), "{missing:?}");
}

#[test]
fn a_recording_of_nothing_is_an_empty_trace() {
    let mut bytes = Vec::new();
    perfetto::render(
        &Builder::new().profile(),
        &ViewOptions::default(),
        &mut bytes,
    )
    .unwrap();
    assert!(bytes.is_empty());
}
