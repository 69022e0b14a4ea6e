//! Counter tracks as CSV: a row for each window of each counter track, and one for each gap.
//!
//! Columns: `start_s`, `end_s` (since the start of the recording; equal if the value was read at a
//! point in time), `gpu` (its number), `uuid`, `pid`, `process`, `track`, `unit`, `value`,
//! `missing` (why there is no value). Shares are 0 to 1.

use super::csv::field;
use crate::analysis::tracks::natural;
use crate::model::profile::Profile;
use crate::model::track::{TrackKind, TrackUnit, throttle_names};
use std::io::{self, Write};

/// The first line.
pub const HEAD: &str = "start_s,end_s,gpu,uuid,pid,process,lane,unit,value,missing";

/// Writes all counter tracks of a profile, by counter track and time, then what is missing.
///
/// # Errors
/// Where `out` cannot be written.
pub fn render(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let tracks = &profile.sideband.tracks;
    writeln!(out, "{HEAD}")?;
    let since = |ns: u64| (i128::from(ns) - i128::from(profile.start_ns)) as f64 / 1e9;
    let gpu_of = |gpu: Option<crate::model::ids::GpuId>| match gpu
        .and_then(|gpu| tracks.gpus.get(gpu.index()))
    {
        Some(gpu) => (gpu.label(), field(&gpu.uuid)),
        None => (String::new(), String::new()),
    };
    let within =
        |start_ns: u64, end_ns: u64| end_ns >= profile.start_ns && start_ns <= profile.end_ns;
    for point in &tracks.points {
        let Some(track) = tracks.tracks.get(point.track.index()) else {
            continue;
        };
        if !within(point.start_ns, point.end_ns) {
            continue;
        }
        let (gpu, uuid) = gpu_of(track.gpu);
        let pid = match track.pid {
            0 => String::new(),
            pid => pid.to_string(),
        };
        writeln!(
            out,
            "{:.6},{:.6},{gpu},{uuid},{pid},{},{},{},{},",
            since(point.start_ns),
            since(point.end_ns),
            field(&track.process),
            track.kind.name(),
            unit_name(track.kind),
            value(track.kind, point.value)
        )?;
    }
    for gap in &tracks.gaps {
        let end_ns = match gap.end_ns {
            0 => profile.end_ns,
            end_ns => end_ns,
        };
        if !within(gap.start_ns, end_ns) {
            continue;
        }
        let (gpu, uuid) = gpu_of(gap.gpu);
        writeln!(
            out,
            "{:.6},{:.6},{gpu},{uuid},,,{},,,{}",
            since(gap.start_ns),
            since(end_ns),
            gap.kind.map_or("", TrackKind::name),
            field(&gap.reason)
        )?;
    }
    Ok(())
}

fn unit_name(kind: TrackKind) -> &'static str {
    match kind.unit() {
        TrackUnit::Share => "share",
        TrackUnit::Milliwatts => "W",
        TrackUnit::Millijoules => "J",
        TrackUnit::Bytes | TrackUnit::BytesInWindow => "B",
        TrackUnit::BytesPerSecond => "B/s",
        TrackUnit::Megahertz => "MHz",
        TrackUnit::Celsius => "C",
        TrackUnit::NanosecondsInWindow => "s",
        TrackUnit::Bits => "reasons",
        TrackUnit::Number => "",
    }
}

fn value(kind: TrackKind, value: u64) -> String {
    match kind.unit() {
        TrackUnit::Bits => throttle_names(value)
            .collect::<Vec<_>>()
            .join(";")
            .replace(',', ""),
        _ => format!("{}", natural(kind, value as f64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_in_their_units() {
        assert_eq!(value(TrackKind::Throttle, 0x21), "idle;thermal by software");
        assert_eq!(value(TrackKind::Power, 262_500), "262.5");
    }
}
