//! A counter track as intervals of time with a value each.

use crate::model::ids::TrackId;
use crate::model::profile::Profile;
use crate::model::track::{SHARE_ONE, TrackInfo, TrackKind, TrackPoint, TrackUnit};

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

/// The tracks of a kind.
pub fn tracks_of(
    profile: &Profile,
    kind: TrackKind,
) -> impl Iterator<Item = (TrackId, &TrackInfo)> {
    let all = profile.sideband.tracks.tracks.iter().enumerate();
    all.filter(move |(_, info)| info.kind == kind)
        .map(|(at, info)| (TrackId::from_index(at), info))
}

/// The points of the first track of a kind that is of this process.
pub fn of_pid(profile: &Profile, kind: TrackKind, pid: i32) -> Option<&[TrackPoint]> {
    let (track, _) = tracks_of(profile, kind).find(|(_, info)| info.pid == pid)?;
    Some(points(profile, track))
}

/// The points of the track of a kind that has this path.
pub fn of_kind<'p>(profile: &'p Profile, kind: TrackKind, path: &str) -> &'p [TrackPoint] {
    tracks_of(profile, kind)
        .find(|(_, info)| info.process == path)
        .map_or(&[], |(track, _)| points(profile, track))
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
        let times = (span.start_ns, span.end_ns);
        overlaps(profile, times, width, columns, |column, overlap| {
            sums[column].0 += span.value * overlap;
            sums[column].1 += overlap;
        });
    }
    means(sums)
}

/// The sum of several tracks in `columns` intervals of equal length: each counts for as long as it
/// has a value, of the time in which any of them has one.
pub fn series_of_sum(
    profile: &Profile,
    tracks: impl Iterator<Item = TrackId>,
    columns: usize,
) -> Vec<Option<f64>> {
    let length = profile.end_ns.saturating_sub(profile.start_ns) as f64;
    if columns == 0 || length <= 0.0 {
        return Vec::new();
    }
    let width = length / columns as f64;
    let mut all: Vec<Span> = tracks.flat_map(|track| spans(profile, track)).collect();
    all.sort_by_key(|span| span.start_ns);
    let mut sums = vec![(0.0_f64, 0.0_f64); columns];
    let mut covered_to = 0;
    for span in all {
        let times = (span.start_ns, span.end_ns);
        overlaps(profile, times, width, columns, |column, overlap| {
            sums[column].0 += span.value * overlap;
        });
        let new = (span.start_ns.max(covered_to), span.end_ns);
        overlaps(profile, new, width, columns, |column, overlap| {
            sums[column].1 += overlap;
        });
        covered_to = span.end_ns.max(covered_to);
    }
    means(sums)
}

/// Calls `add` with each interval that a time overlaps, and by how much, ns.
fn overlaps(
    profile: &Profile,
    (start_ns, end_ns): (u64, u64),
    width: f64,
    columns: usize,
    mut add: impl FnMut(usize, f64),
) {
    let since_start = |ns: u64| ns.saturating_sub(profile.start_ns) as f64;
    let (start, end) = (since_start(start_ns), since_start(end_ns));
    let (first, last) = ((start / width) as usize, (end / width) as usize);
    for column in first..columns.min(last + 1) {
        let (from, to) = (column as f64 * width, (column + 1) as f64 * width);
        add(column, (end.min(to) - start.max(from)).max(0.0));
    }
}

/// Sums by what they are of.
fn means(sums: Vec<(f64, f64)>) -> Vec<Option<f64>> {
    let mean = |(sum, covered): (f64, f64)| (covered > 0.0).then(|| sum / covered);
    sums.into_iter().map(mean).collect()
}
