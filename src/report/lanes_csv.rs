//! Counter tracks as CSV: a row for each window of each counter track, and one for each gap.
//!
//! Columns: `start_s`, `end_s` (since the start of the recording; equal if the value was read at a
//! point in time), `gpu` (its number), `uuid`, `pid`, `process`, `lane`, `unit`, `value`, `missing`
//! (why there is no value). Shares are 0 to 1.

use super::csv::field;
use crate::analysis::lanes::natural;
use crate::model::lane::{LaneKind, LaneUnit, throttle_names};
use crate::model::profile::Profile;
use std::io::{self, Write};

/// The first line.
pub const HEAD: &str = "start_s,end_s,gpu,uuid,pid,process,lane,unit,value,missing";

/// Writes all counter tracks of a profile, by counter track and time, then what is missing.
///
/// # Errors
/// Where `out` cannot be written.
pub fn render(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let lanes = &profile.lanes;
    writeln!(out, "{HEAD}")?;
    let since = |ns: u64| (i128::from(ns) - i128::from(profile.start_ns)) as f64 / 1e9;
    let gpu_of = |gpu: Option<crate::model::ids::GpuId>| match gpu
        .and_then(|gpu| lanes.gpus.get(gpu.index()))
    {
        Some(gpu) => (gpu.label(), field(&gpu.uuid)),
        None => (String::new(), String::new()),
    };
    let within =
        |start_ns: u64, end_ns: u64| end_ns >= profile.start_ns && start_ns <= profile.end_ns;
    for point in &lanes.points {
        let Some(lane) = lanes.lanes.get(point.lane.index()) else {
            continue;
        };
        if !within(point.start_ns, point.end_ns) {
            continue;
        }
        let (gpu, uuid) = gpu_of(lane.gpu);
        let pid = match lane.pid {
            0 => String::new(),
            pid => pid.to_string(),
        };
        writeln!(
            out,
            "{:.6},{:.6},{gpu},{uuid},{pid},{},{},{},{},",
            since(point.start_ns),
            since(point.end_ns),
            field(&lane.process),
            lane.kind.name(),
            unit_name(lane.kind),
            value(lane.kind, point.value)
        )?;
    }
    for gap in &lanes.gaps {
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
            gap.kind.map_or("", LaneKind::name),
            field(&gap.reason)
        )?;
    }
    Ok(())
}

fn unit_name(kind: LaneKind) -> &'static str {
    match kind.unit() {
        LaneUnit::Share => "share",
        LaneUnit::Milliwatts => "W",
        LaneUnit::Millijoules => "J",
        LaneUnit::Bytes | LaneUnit::BytesInWindow => "B",
        LaneUnit::BytesPerSecond => "B/s",
        LaneUnit::Megahertz => "MHz",
        LaneUnit::Celsius => "C",
        LaneUnit::NanosecondsInWindow => "s",
        LaneUnit::Bits => "reasons",
    }
}

fn value(kind: LaneKind, value: u64) -> String {
    match kind.unit() {
        LaneUnit::Bits => throttle_names(value)
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
        assert_eq!(value(LaneKind::Throttle, 0x21), "idle;thermal by software");
        assert_eq!(value(LaneKind::Power, 262_500), "262.5");
    }
}
