//! Counter tracks in natural units, for viewers of traces and the page.

use super::label::{self, SHORT};
use crate::analysis::tracks::natural;
use crate::model::ids::GpuId;
use crate::model::profile::Profile;
use crate::model::track::{TrackInfo, TrackKind, TrackPoint, TrackUnit};

/// `GPU 0 NVIDIA H100`, or `host`.
pub(super) fn device_name(profile: &Profile, gpu: Option<GpuId>) -> String {
    let Some(gpu) = gpu else {
        return "host".to_owned();
    };
    let info = profile.sideband.tracks.gpus.get(gpu.index());
    info.map_or_else(
        || "GPU".to_owned(),
        |info| format!("GPU {} {}", info.label(), label::clean(&info.name, SHORT)),
    )
}

/// `sm active`, `process memory of python (pid 17)`.
pub(super) fn name(track: &TrackInfo) -> String {
    let of = match track.pid {
        // A cgroup has its path.
        0 if !track.process.is_empty() => format!(" of {}", label::clean(&track.process, SHORT)),
        0 => String::new(),
        pid => format!(" of {} (pid {pid})", label::clean(&track.process, SHORT)),
    };
    format!("{}{of}", track.kind.name().replace('_', " "))
}

/// The track of a point that lies in the recording and has an amount; throttle reasons have none.
pub(super) fn shown<'p>(profile: &'p Profile, point: &TrackPoint) -> Option<&'p TrackInfo> {
    let track = profile.sideband.tracks.tracks.get(point.track.index())?;
    let outside = point.end_ns < profile.start_ns || point.start_ns > profile.end_ns;
    (!outside && track.kind.unit() != TrackUnit::Bits).then_some(track)
}

pub(super) fn unit(kind: TrackKind) -> &'static str {
    match kind.unit() {
        TrackUnit::Share => "share",
        TrackUnit::Milliwatts | TrackUnit::Millijoules => "W",
        TrackUnit::Bytes => "B",
        TrackUnit::BytesInWindow | TrackUnit::BytesPerSecond => "B/s",
        TrackUnit::Megahertz => "MHz",
        TrackUnit::Celsius => "C",
        TrackUnit::NanosecondsInWindow => "CPUs",
        TrackUnit::Bits => "reasons",
        TrackUnit::Number => "",
    }
}

/// A value in natural units; for an amount its rate over the window.
pub(super) fn value(kind: TrackKind, point: &TrackPoint) -> f64 {
    let natural = natural(kind, point.value as f64);
    match kind.unit() {
        TrackUnit::Millijoules | TrackUnit::NanosecondsInWindow | TrackUnit::BytesInWindow => {
            let length_ns = point.end_ns.saturating_sub(point.start_ns);
            natural / (length_ns.max(1) as f64 / 1e9)
        }
        _ => natural,
    }
}
