//! Sets of time, as sorted intervals that do not touch: start and end, ns.

pub(super) type Interval = (u64, u64);

/// The union of intervals that are sorted by start.
pub(super) fn merge(sorted: impl Iterator<Item = Interval>) -> Vec<Interval> {
    let mut merged: Vec<Interval> = Vec::new();
    for (start, end) in sorted {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// The part of an interval in a window; `None` if that is empty.
pub(super) fn clip((start, end): Interval, window: Interval) -> Option<Interval> {
    let clipped = (start.max(window.0), end.min(window.1));
    (clipped.0 < clipped.1).then_some(clipped)
}

pub(super) fn length_ns(set: &[Interval]) -> u64 {
    set.iter().map(|(start, end)| end - start).sum()
}

/// The length of what two sets have in common.
pub(super) fn common_ns(a: &[Interval], b: &[Interval]) -> u64 {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    let mut common = 0;
    while let (Some(one), Some(other)) = (a.peek(), b.peek()) {
        common += clip(**one, **other).map_or(0, |(start, end)| end - start);
        match one.1 < other.1 {
            true => a.next(),
            false => b.next(),
        };
    }
    common
}
