//! Counter tracks and steps as columns.

use super::columns::{Column, Columns};
use crate::analysis::Analysis;
use crate::analysis::progress::{Why, epochs, evaluations, timed_steps};
use crate::analysis::tracks::{Figure, Span, points, spans};
use crate::model::ids::{GpuId, ProcessId, ThreadId, TrackId};
use crate::model::profile::Profile;
use crate::model::track::{TrackKind, TrackUnit};
use crate::report::counters;
use crate::report::label::{LONG, clean};
use serde::Serialize;

/// With more windows, a track has this many, each the mean of its time.
const MOST_WINDOWS: usize = 20_000;
/// Steps of a process that are written.
const MOST_STEPS: usize = 200_000;

/// A track, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct Track {
    /// Into the report's `gpus`.
    gpu: Option<usize>,
    pid: i32,
    process: String,
    kind: &'static str,
    unit: &'static str,
    /// Values are divided by it.
    scale: f64,
    mean: f64,
    high: f64,
}

/// Writes the tracks of devices, processes and host, and returns them.
pub(super) fn write(profile: &Profile, analysis: &Analysis, columns: &mut Columns) -> Vec<Track> {
    let tracks = &analysis.tracks;
    let mut list = Vec::new();
    let mut add = |gpu: Option<usize>, pid: i32, process: &str, figure: &Figure| {
        let scale = scale(figure.kind);
        series(profile, figure, scale, columns, list.len());
        list.push(Track {
            gpu,
            pid,
            process: clean(process, LONG),
            kind: figure.kind.name(),
            unit: counters::unit(figure.kind),
            scale,
            mean: figure.mean,
            high: figure.high,
        });
    };
    for (at, device) in tracks.devices.iter().enumerate() {
        let reasons = throttle(profile, device.id);
        let figures = device.figures.iter().chain(&reasons);
        figures.for_each(|figure| add(Some(at), 0, "", figure));
    }
    // A cgroup has its path, an allocator its device.
    let name = |figure: &Figure| {
        let info = profile.sideband.tracks.tracks.get(figure.track.index());
        info.map_or("", |info| info.process.as_str())
    };
    for process in &tracks.processes {
        let figures = process.figures.iter();
        figures.for_each(|figure| add(None, process.pid, name(figure), figure));
    }
    for figure in tracks.host.iter().chain(&limits(profile)) {
        add(None, 0, name(figure), figure);
    }
    list
}

/// Limits of memory, and levels that are read when they change.
fn limits(profile: &Profile) -> Vec<Figure> {
    let tracks = profile.sideband.tracks.tracks.iter().enumerate();
    let limits = tracks.filter(|(_, info)| is_setting(info.kind));
    limits
        .map(|(at, info)| {
            let track = TrackId::from_index(at);
            let values = points(profile, track)
                .iter()
                .map(|point| point.value as f64);
            Figure {
                high: values.fold(0.0, f64::max),
                ..empty(track, info.kind)
            }
        })
        .filter(|figure| figure.high > 0.0)
        .collect()
}

/// Whether a value holds until the next reading. What samples show of memory is drawn from the
/// regular readings.
fn is_setting(kind: TrackKind) -> bool {
    let is_sampled = matches!(
        kind,
        TrackKind::SampledAnonymous | TrackKind::SampledAllocated
    );
    kind.is_occasional() && kind.unit() == TrackUnit::Bytes && !is_sampled
}

/// From the start to the first reading its value, since both are of one round; then each until the
/// next one.
fn settings(profile: &Profile, track: TrackId) -> Vec<Span> {
    let readings = points(profile, track);
    let mut spans: Vec<Span> = Vec::new();
    for point in readings {
        let start_ns = match spans.last_mut() {
            Some(last) if last.bits == point.value => continue,
            Some(last) => {
                last.end_ns = point.end_ns.clamp(last.start_ns, profile.end_ns);
                last.end_ns
            }
            None => profile.start_ns,
        };
        spans.push(Span {
            start_ns,
            end_ns: profile.end_ns,
            value: point.value as f64,
            bits: point.value,
        });
    }
    spans.retain(|span| span.start_ns < span.end_ns);
    spans
}

/// A device's reasons for lower clocks: bits, which have no mean.
fn throttle(profile: &Profile, gpu: GpuId) -> Option<Figure> {
    let kind = TrackKind::Throttle;
    let mut tracks = profile.sideband.tracks.tracks.iter();
    let track = tracks.position(|track| track.gpu == Some(gpu) && track.kind == kind)?;
    Some(empty(TrackId::from_index(track), kind))
}

fn empty(track: TrackId, kind: TrackKind) -> Figure {
    Figure {
        track,
        kind,
        mean: 0.0,
        low: 0.0,
        high: 0.0,
        total: 0.0,
        covered_ns: 0,
        window_ns: 0,
    }
}

/// What is kept of a value: two digits of a watt, four of a share.
fn scale(kind: TrackKind) -> f64 {
    match kind.unit() {
        TrackUnit::Share => 1e4,
        TrackUnit::NanosecondsInWindow => 1e3,
        TrackUnit::Milliwatts | TrackUnit::Millijoules => 1e2,
        TrackUnit::Bytes | TrackUnit::BytesInWindow | TrackUnit::BytesPerSecond => 1.0 / 1024.0,
        TrackUnit::Megahertz | TrackUnit::Celsius | TrackUnit::Bits | TrackUnit::Number => 1.0,
    }
}

fn series(profile: &Profile, figure: &Figure, scale: f64, columns: &mut Columns, number: usize) {
    let (mut gap, mut length) = (Column::default(), Column::default());
    let mut value = Column::default();
    let us = |ns: u64| (ns.saturating_sub(profile.start_ns) / 1000) as i64;
    let (mut at_us, mut before) = (0, 0);
    let all = match is_setting(figure.kind) {
        true => settings(profile, figure.track),
        false => spans(profile, figure.track),
    };
    for span in thinned(all, figure.kind) {
        gap.push_signed(us(span.start_ns) - at_us);
        length.push((us(span.end_ns) - us(span.start_ns)) as u64);
        at_us = us(span.end_ns);
        let natural = match figure.kind.unit() {
            TrackUnit::Bits => span.bits as f64,
            _ => span.value,
        };
        let scaled = (natural * scale).round() as i64;
        value.push_signed(scaled - before);
        before = scaled;
    }
    columns.add(format!("track.{number}.gap"), &gap);
    columns.add(format!("track.{number}.length"), &length);
    columns.add(format!("track.{number}.value"), &value);
}

/// At most [`MOST_WINDOWS`] windows: neighbours are put together, with their mean, and with the
/// reasons of all of them.
fn thinned(spans: Vec<Span>, kind: TrackKind) -> Vec<Span> {
    let each = spans.len().div_ceil(MOST_WINDOWS).max(1);
    if each == 1 {
        return spans;
    }
    let mean = |part: &[Span]| {
        let length = |span: &Span| span.end_ns.saturating_sub(span.start_ns) as f64;
        let sum: f64 = part.iter().map(|span| span.value * length(span)).sum();
        let all: f64 = part.iter().map(length).sum();
        let bits = part.iter().fold(0, |bits, span| bits | span.bits);
        let (first, last) = (part.first()?, part.last()?);
        Some(Span {
            start_ns: first.start_ns,
            end_ns: last.end_ns,
            value: sum / all.max(1.0),
            bits: if kind == TrackKind::Throttle { bits } else { 0 },
        })
    };
    spans.chunks(each).filter_map(mean).collect()
}

/// Writes the steps of a process, and its epochs and evaluations; true if any were written.
pub(super) fn write_progress(
    profile: &Profile,
    process: ProcessId,
    thread: ThreadId,
    columns: &mut Columns,
) -> bool {
    let us = |ns: u64| (ns.saturating_sub(profile.start_ns) / 1000) as i64;
    let mut add = |name: &str, times: &[(u64, u64)]| {
        let (mut gap, mut length) = (Column::default(), Column::default());
        let mut at_us = 0;
        for &(start_ns, end_ns) in times {
            gap.push_signed(us(start_ns) - at_us);
            at_us = us(end_ns);
            length.push(at_us.saturating_sub(us(start_ns)).max(0) as u64);
        }
        columns.add(format!("{name}.{}.gap", process.0), &gap);
        columns.add(format!("{name}.{}.length", process.0), &length);
    };
    let own = crate::analysis::of_thread(profile, thread);
    let steps = timed_steps(profile, process);
    let listed = steps.get(..MOST_STEPS).unwrap_or(&steps);
    let times: Vec<(u64, u64)> = listed
        .iter()
        .map(|(step, _)| (step.start_ns, step.end_ns))
        .collect();
    add("step", &times);
    let epochs = epochs(profile, process).into_iter();
    let times = epochs.map(|pass| (pass.start_ns, pass.end_ns));
    add("epoch", &times.collect::<Vec<_>>());
    let evaluated = evaluations(profile, process, &own);
    let evaluated = evaluated.iter().map(|pass| (pass.start_ns, pass.end_ns));
    add("evaluation", &evaluated.collect::<Vec<_>>());
    let (mut number, mut left_out) = (Column::default(), Column::default());
    let mut before = 0;
    for (step, why) in listed {
        number.push_signed(step.number as i64 - before);
        before = step.number as i64;
        left_out.push(match why {
            None => 0,
            Some(Why::NewPass) => 1,
            Some(Why::SlowStart) => 2,
            Some(Why::Compile) => 3,
            Some(Why::Profiled) => 4,
        });
    }
    columns.add(format!("step.{}.number", process.0), &number);
    columns.add(format!("step.{}.left_out", process.0), &left_out);
    !steps.is_empty()
}
