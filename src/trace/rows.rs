//! What is drawn of a trace on a time axis: streams of devices and threads of the host as rows of
//! spans, in bounded number.
//!
//! Where a row has more spans than that, neighbours that are shorter than its grain are drawn as
//! one, with the name of the longest. What is longer than the grain stays as it is.

use super::{DeviceKind, HostKind, Trace, is_communication};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Most spans that are drawn, of all rows: some 5 bytes each in a page.
const MOST_SPANS: usize = 40_000;
/// Most spans of a row: a screen has less columns.
const MOST_OF_ROW: usize = 8_000;
/// Most streams and threads, those with the most time.
const MOST_STREAMS: usize = 24;
const MOST_THREADS: usize = 6;
/// Calls within calls that are drawn.
const MOST_DEPTH: usize = 8;
/// Streams and threads that are looked at to find those.
const MOST_SEEN: usize = 128;

/// What a row is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RowOf {
    Stream {
        device: u64,
        stream: u64,
    },
    /// A thread by its tid as its process sees it.
    Thread(Option<u64>),
}

/// What a span is, by which it is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DrawnKind {
    Kernel,
    Collective,
    Copy,
    Set,
    Operator,
    Annotation,
    Runtime,
}

impl DrawnKind {
    pub const ALL: [Self; 7] = [
        Self::Kernel,
        Self::Collective,
        Self::Copy,
        Self::Set,
        Self::Operator,
        Self::Annotation,
        Self::Runtime,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Collective => "collective",
            Self::Copy => "copy",
            Self::Set => "memset",
            Self::Operator => "operator",
            Self::Annotation => "annotation",
            Self::Runtime => "runtime",
        }
    }
}

/// A span, or several that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drawn {
    /// On the clock of the events.
    pub start_ns: u64,
    pub end_ns: u64,
    /// The longest: an index into the device keys of the trace for a stream, into the host keys for
    /// a thread.
    pub key: u32,
    pub longest_ns: u64,
    pub count: u64,
    /// Time of all of them.
    pub busy_ns: u64,
}

/// Spans side by side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    pub of: RowOf,
    /// How many calls are around: 0 for streams.
    pub depth: usize,
    /// By start.
    pub spans: Vec<Drawn>,
    /// Shorter spans may be drawn as one; 0: all are drawn alone.
    pub grain_ns: u64,
    most: usize,
}

/// All rows, and what has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// Streams by device and number; then threads, that with the most time first, by depth.
    pub rows: Vec<Row>,
    pub streams_left_out: usize,
    pub threads_left_out: usize,
    /// Spans that are nested deeper than what is drawn.
    pub too_deep: u64,
}

impl Rows {
    /// Whether all spans are in order, and have a key among so many of devices and of the host.
    pub(super) fn are_valid(&self, device_keys: usize, host_keys: usize) -> bool {
        self.rows.iter().all(|row| {
            let keys = match row.of {
                RowOf::Stream { .. } => device_keys,
                RowOf::Thread(_) => host_keys,
            };
            let mut spans = row.spans.iter();
            row.spans.is_sorted_by_key(|span| span.start_ns)
                && spans.all(|span| span.start_ns <= span.end_ns && (span.key as usize) < keys)
        })
    }

    /// Spans that are drawn together with others, and the largest grain, ns.
    pub fn merged(&self) -> (u64, u64) {
        let spans = self.rows.iter().flat_map(|row| &row.spans);
        let together = spans.filter(|span| span.count > 1).map(|span| span.count);
        let grain_ns = self.rows.iter().map(|row| row.grain_ns).max();
        (together.fold(0, u64::saturating_add), grain_ns.unwrap_or(0))
    }
}

impl Row {
    fn new(of: RowOf, depth: usize) -> Self {
        Self {
            of,
            depth,
            spans: Vec::new(),
            grain_ns: 0,
            most: MOST_OF_ROW,
        }
    }

    /// Adds a span that begins after all others.
    fn add(&mut self, start_ns: u64, length_ns: u64, key: u32) {
        let span = Drawn {
            start_ns,
            end_ns: start_ns.saturating_add(length_ns),
            key,
            longest_ns: length_ns,
            count: 1,
            busy_ns: length_ns,
        };
        push(&mut self.spans, span, self.grain_ns);
        self.shrink();
    }

    /// Draws as many together as it needs.
    fn shrink(&mut self) {
        while self.spans.len() > self.most {
            let (first, last) = (self.spans.first(), self.spans.last());
            let bounds = first.zip(last);
            let extent = bounds.map_or(0, |(first, last)| {
                last.end_ns.saturating_sub(first.start_ns)
            });
            if self.grain_ns > extent {
                // Spans that overlap, which those of a thread or stream do not.
                self.spans.truncate(self.most);
                return;
            }
            let least = extent / (4 * self.most as u64);
            self.grain_ns = self.grain_ns.saturating_mul(2).max(least).max(1);
            let before = std::mem::take(&mut self.spans);
            for span in before {
                push(&mut self.spans, span, self.grain_ns);
            }
        }
    }

    fn busy_ns(&self) -> u64 {
        let busy = self.spans.iter().map(|span| span.busy_ns);
        busy.fold(0, u64::saturating_add)
    }
}

/// Appends a span, or adds it to the last one if both fit into a grain.
fn push(spans: &mut Vec<Drawn>, span: Drawn, grain_ns: u64) {
    let end_of = |last: &Drawn| last.end_ns.max(span.end_ns);
    match spans.last_mut() {
        Some(last) if end_of(last).saturating_sub(last.start_ns) < grain_ns => {
            last.end_ns = end_of(last);
            last.count += span.count;
            last.busy_ns = last.busy_ns.saturating_add(span.busy_ns);
            if span.longest_ns > last.longest_ns {
                (last.key, last.longest_ns) = (span.key, span.longest_ns);
            }
        }
        _ => spans.push(span),
    }
}

/// The rows of a trace, whose spans are sorted.
pub(super) fn rows(trace: &Trace) -> Rows {
    let mut all = Rows::default();
    streams(trace, &mut all);
    threads(trace, &mut all);
    let count = |rows: &[Row]| rows.iter().map(|row| row.spans.len()).sum::<usize>();
    let mut most = MOST_OF_ROW;
    while count(&all.rows) > MOST_SPANS && most > 1 {
        most /= 2;
        for row in &mut all.rows {
            row.most = most;
            row.shrink();
        }
    }
    all
}

fn streams(trace: &Trace, all: &mut Rows) {
    let mut found: BTreeMap<RowOf, Row> = BTreeMap::new();
    let mut left_out: Vec<RowOf> = Vec::new();
    for event in &trace.device_events {
        let Some(key) = trace.device_keys.get(event.key as usize) else {
            continue;
        };
        let of = RowOf::Stream {
            device: key.device,
            stream: key.stream,
        };
        if found.len() >= MOST_SEEN && !found.contains_key(&of) {
            if left_out.len() < MOST_SEEN && !left_out.contains(&of) {
                left_out.push(of);
            }
            continue;
        }
        let row = found.entry(of).or_insert_with(|| Row::new(of, 0));
        row.add(event.start_ns, event.length_ns, event.key);
    }
    let mut found: Vec<Row> = found.into_values().collect();
    found.sort_by_key(|row| Reverse(row.busy_ns()));
    all.streams_left_out = left_out.len() + found.len().saturating_sub(MOST_STREAMS);
    found.truncate(MOST_STREAMS);
    found.sort_by_key(|row| row.of);
    all.rows.extend(found);
}

fn threads(trace: &Trace, all: &mut Rows) {
    // Time and rows of each.
    let mut found: Vec<(u64, Vec<Row>)> = Vec::new();
    for spans in trace.spans.chunk_by(|a, b| a.thread == b.thread) {
        let tid = spans.first().map(|span| span.thread);
        let tid = tid.and_then(|thread| trace.tids.get(thread as usize).copied().flatten());
        let mut rows: Vec<Row> = Vec::new();
        let mut ends: Vec<u64> = Vec::new();
        for span in spans.iter().filter(|span| !span.is_repeated()) {
            while ends.pop_if(|end| *end <= span.start_ns).is_some() {}
            let depth = ends.len();
            ends.push(span.start_ns.saturating_add(span.length_ns));
            if depth >= MOST_DEPTH {
                all.too_deep += 1;
                continue;
            }
            if rows.len() <= depth {
                rows.push(Row::new(RowOf::Thread(tid), depth));
            }
            if let Some(row) = rows.get_mut(depth) {
                row.add(span.start_ns, span.length_ns, span.key);
            }
        }
        found.push((rows.first().map_or(0, Row::busy_ns), rows));
        if found.len() > MOST_THREADS {
            found.sort_by_key(|(busy_ns, _)| Reverse(*busy_ns));
            all.threads_left_out += found.len() - MOST_THREADS;
            found.truncate(MOST_THREADS);
        }
    }
    found.sort_by_key(|(busy_ns, _)| Reverse(*busy_ns));
    all.rows
        .extend(found.into_iter().flat_map(|(_, rows)| rows));
}

/// Name and kind of what a row's span is.
pub(super) fn named(
    summary: &super::TraceSummary,
    row: RowOf,
    key: u32,
) -> Option<(&str, DrawnKind)> {
    if let RowOf::Stream { .. } = row {
        let key = summary.device_keys.get(key as usize)?;
        let kind = match key.kind {
            DeviceKind::Kernel if key.collective.is_some() || is_communication(&key.name) => {
                DrawnKind::Collective
            }
            DeviceKind::Kernel => DrawnKind::Kernel,
            DeviceKind::Copy => DrawnKind::Copy,
            DeviceKind::Set => DrawnKind::Set,
        };
        return Some((&key.name, kind));
    }
    let key = summary.host_keys.get(key as usize)?;
    let kind = match key.kind {
        HostKind::Operator => DrawnKind::Operator,
        HostKind::Annotation => DrawnKind::Annotation,
        HostKind::Runtime => DrawnKind::Runtime,
    };
    Some((&key.name, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_spans_stay_and_short_ones_are_drawn_together() {
        let mut row = Row::new(RowOf::Thread(None), 0);
        row.most = 100;
        // 1000 short ones with gaps of the same length, and one of 10 us after each 100.
        let mut at = 0;
        for number in 0..1000 {
            row.add(at, 10, 1);
            at += 20;
            if number % 100 == 99 {
                row.add(at, 10_000, 2);
                at += 10_000;
            }
        }
        assert!(row.spans.len() <= 100, "{}", row.spans.len());
        let long = row.spans.iter().filter(|span| span.key == 2);
        let long: Vec<_> = long.map(|span| (span.count, span.busy_ns)).collect();
        assert_eq!(long, vec![(1, 10_000); 10]);
        let sum = |of: fn(&Drawn) -> u64| row.spans.iter().map(of).sum::<u64>();
        assert_eq!(sum(|span| span.count), 1010);
        assert_eq!(sum(|span| span.busy_ns), 110_000);
        assert!(row.spans.is_sorted_by_key(|span| span.start_ns));
        let together = row.spans.iter().filter(|span| span.count > 1);
        assert!(
            together
                .clone()
                .all(|span| span.end_ns - span.start_ns < row.grain_ns)
        );
        assert!(together.count() > 0);
    }

    #[test]
    fn what_overlaps_is_bounded_too() {
        let mut row = Row::new(RowOf::Thread(None), 0);
        row.most = 10;
        for start in 0..1000 {
            row.add(start, 1 << 40, 1);
        }
        assert!(row.spans.len() <= 10, "{}", row.spans.len());
    }
}
