//! Counter tracks of a made-up GPU for built recordings: what a device did, as a driver would have
//! told it.
#![allow(dead_code, unreachable_pub)]

use crate::analysis_builder::Builder;
use torchspy::model::ids::{GpuId, TrackId};
use torchspy::model::track::{GpuClock, GpuInfo, SHARE_ONE, TrackInfo, TrackKind, TrackPoint};

/// A window of utilization.
pub const WINDOW_NS: u64 = 167_000_000;
/// A reading.
pub const READING_NS: u64 = 100_000_000;

/// A device that `pids` use.
pub fn gpu(builder: &mut Builder, pids: &[i32]) -> GpuId {
    let tracks = &mut builder.sideband.tracks;
    let id = GpuId::from_index(tracks.gpus.len());
    tracks.gpus.push(GpuInfo {
        uuid: format!("GPU-{}", id.0),
        index: id.0,
        name: "X100".to_owned(),
        driver: "550".to_owned(),
        memory_bytes: 80 << 30,
        power_limit_mw: 700_000,
        recorded: true,
        ..GpuInfo::default()
    });
    tracks.clocks.push(GpuClock {
        gpu: id,
        monotonic_ns: 1,
        driver_ns: 1,
        error_ns: 2_500_000,
        clock: "realtime".to_owned(),
    });
    for &pid in pids {
        let track = track(builder, TrackKind::ProcessMemory, Some(id), pid);
        put(builder, track, 1, 1, 10 << 30);
    }
    id
}

/// Values of a counter track in windows of one length until `end_ns`.
pub fn windows(
    builder: &mut Builder,
    kind: TrackKind,
    gpu: Option<GpuId>,
    (length_ns, end_ns): (u64, u64),
    value: impl Fn(u64, u64) -> u64,
) {
    let track = track(builder, kind, gpu, 0);
    let mut start = 0;
    while start + length_ns <= end_ns {
        let end = start + length_ns;
        let value = value(start, end);
        put(builder, track, start, end, value);
        start = end;
    }
}

/// Utilization in whole percents, from the time in which the device was busy between two moments.
pub fn utilization(
    builder: &mut Builder,
    gpu: GpuId,
    end_ns: u64,
    busy_ns: impl Fn(u64, u64) -> f64,
) {
    windows(
        builder,
        TrackKind::Utilization,
        Some(gpu),
        (WINDOW_NS, end_ns),
        |from, to| percents(busy_ns(from, to) / (to - from) as f64),
    );
}

/// A share that stays as it is.
pub fn level(builder: &mut Builder, kind: TrackKind, gpu: GpuId, end_ns: u64, share: f64) {
    windows(builder, kind, Some(gpu), (READING_NS, end_ns), |_, _| {
        percents(share)
    });
}

/// The energy counter of a device that takes `watts` over any time.
pub fn energy(builder: &mut Builder, gpu: GpuId, end_ns: u64, joules: impl Fn(u64, u64) -> f64) {
    windows(
        builder,
        TrackKind::Energy,
        Some(gpu),
        (READING_NS, end_ns),
        |from, to| (joules(from, to) * 1e3) as u64,
    );
}

/// CPUs that a process uses.
pub fn cpus(builder: &mut Builder, pid: i32, end_ns: u64, cpus: f64) {
    let track = track(builder, TrackKind::Cpu, None, pid);
    let mut start = 0;
    while start < end_ns {
        let end = start + 5 * READING_NS;
        put(
            builder,
            track,
            start,
            end,
            (cpus * 5.0 * READING_NS as f64) as u64,
        );
        start = end;
    }
}

/// Why clocks are held down, all along.
pub fn throttle(builder: &mut Builder, gpu: GpuId, end_ns: u64, bits: u64) {
    let track = track(builder, TrackKind::Throttle, Some(gpu), 0);
    let mut at = 0;
    while at < end_ns {
        put(builder, track, at, at, bits);
        at += 5 * READING_NS;
    }
}

fn percents(share: f64) -> u64 {
    (share.clamp(0.0, 1.0) * 100.0).round() as u64 * (SHARE_ONE / 100)
}

pub fn track(builder: &mut Builder, kind: TrackKind, gpu: Option<GpuId>, pid: i32) -> TrackId {
    builder.sideband.tracks.tracks.push(TrackInfo {
        kind,
        gpu,
        pid,
        process: String::new(),
    });
    TrackId::from_index(builder.sideband.tracks.tracks.len() - 1)
}

pub fn put(builder: &mut Builder, track: TrackId, start_ns: u64, end_ns: u64, value: u64) {
    builder.sideband.tracks.points.push(TrackPoint {
        track,
        start_ns,
        end_ns,
        value,
    });
}
