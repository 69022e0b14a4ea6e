//! A counter track as intervals of time with a value each.

use crate::model::ids::TrackId;
use crate::model::profile::Profile;
use crate::model::track::{SHARE_ONE, TrackKind, TrackPoint, TrackUnit};

/// How long a value that was read at a point in time stays valid, ns: a little more than the
/// longest period.
const HOLDS_NS: u64 = 2_500_000_000;

/// A value in the unit for people: shares (0 to 1), W, J, bytes, MHz, degrees Celsius, seconds.
pub fn natural(kind: TrackKind, value: f64) -> f64 {
    match kind.unit() {
        TrackUnit::Share => value / SHARE_ONE as f64,
        TrackUnit::Milliwatts | TrackUnit::Millijoules => value / 1e3,
        TrackUnit::NanosecondsInWindow => value / 1e9,
        TrackUnit::Bytes
        | TrackUnit::BytesInWindow
        | TrackUnit::BytesPerSecond
        | TrackUnit::Megahertz
        | TrackUnit::Celsius
        | TrackUnit::Bits
        | TrackUnit::Number => value,
    }
}

/// Whether values are amounts of their window, and not levels.
pub(super) fn is_amount(kind: TrackKind) -> bool {
    matches!(
        kind.unit(),
        TrackUnit::Millijoules | TrackUnit::NanosecondsInWindow | TrackUnit::BytesInWindow
    )
}

/// A value with the part of its window that lies within the recording; a reading at a point in time
/// is valid until the next one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Start of the part, CLOCK_MONOTONIC.
    pub start_ns: u64,
    pub end_ns: u64,
    /// The value, in the units of [`natural`]; amounts are per second.
    pub value: f64,
    /// The bits, for [`TrackUnit::Bits`].
    pub bits: u64,
}

/// The points of a counter track.
pub fn points(profile: &Profile, track: TrackId) -> &[TrackPoint] {
    let all = &profile.sideband.tracks.points;
    let from = all.partition_point(|point| point.track < track);
    let own = all.get(from..).unwrap_or_default();
    &own[..own.partition_point(|point| point.track == track)]
}

/// The spans of a counter track within the recording, by their ends.
pub fn spans(profile: &Profile, track: TrackId) -> Vec<Span> {
    let Some(info) = profile.sideband.tracks.tracks.get(track.index()) else {
        return Vec::new();
    };
    let points = points(profile, track);
    let holds_ns = holds_ns(points);
    let mut spans = Vec::with_capacity(points.len());
    for (at, point) in points.iter().enumerate() {
        let value = natural(info.kind, point.value as f64);
        let length_ns = point.end_ns.saturating_sub(point.start_ns);
        let (mut end_ns, mut rate) = (point.end_ns, value);
        if length_ns == 0 {
            let next = points
                .get(at + 1)
                .map_or(profile.end_ns, |next| next.end_ns);
            end_ns = next.min(point.end_ns.saturating_add(holds_ns));
        } else if is_amount(info.kind) {
            rate = value / (length_ns as f64 / 1e9);
        }
        let start_ns = point.start_ns.max(profile.start_ns);
        let end_ns = end_ns.min(profile.end_ns);
        if start_ns < end_ns {
            spans.push(Span {
                start_ns,
                end_ns,
                value: rate,
                bits: point.value,
            });
        }
    }
    spans
}

/// How long a reading at a point in time stays valid: one and a half times the usual distance
/// between readings.
fn holds_ns(points: &[TrackPoint]) -> u64 {
    let mut between: Vec<u64> = points
        .windows(2)
        .map(|pair| pair[1].end_ns.saturating_sub(pair[0].end_ns))
        .collect();
    if between.is_empty() {
        return HOLDS_NS;
    }
    between.sort_unstable();
    let usual = between.get(between.len() / 2).copied().unwrap_or(0);
    (usual / 2).saturating_add(usual).min(HOLDS_NS)
}

/// The counter track in `columns` intervals of equal length: the mean of each, `None` where nothing
/// was measured.
pub fn series(profile: &Profile, track: TrackId, columns: usize) -> Vec<Option<f64>> {
    let length = profile.end_ns.saturating_sub(profile.start_ns) as f64;
    if columns == 0 || length <= 0.0 {
        return Vec::new();
    }
    every(profile, track, length / columns as f64, columns)
}

/// The same in `columns` intervals of `width` ns since the start.
pub fn every(profile: &Profile, track: TrackId, width: f64, columns: usize) -> Vec<Option<f64>> {
    let mut sums = vec![(0.0_f64, 0.0_f64); columns];
    for span in spans(profile, track) {
        let start = (span.start_ns - profile.start_ns) as f64;
        let end = (span.end_ns - profile.start_ns) as f64;
        let (first, last) = ((start / width) as usize, (end / width) as usize);
        for (column, sum) in sums.iter_mut().enumerate().take(last + 1).skip(first) {
            let (from, to) = (column as f64 * width, (column + 1) as f64 * width);
            let overlap = (end.min(to) - start.max(from)).max(0.0);
            sum.0 += span.value * overlap;
            sum.1 += overlap;
        }
    }
    sums.into_iter()
        .map(|(sum, covered)| (covered > 0.0).then(|| sum / covered))
        .collect()
}
