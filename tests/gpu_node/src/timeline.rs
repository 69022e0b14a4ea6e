//! Busy time of a device, as a reader of its spans keeps it: each span is read once, and any
//! interval of the recent past costs two look-ups.

use crate::node::Busy;
use std::collections::VecDeque;

/// How long spans are kept after their end, ns: NVML's buffered samples reach back no further.
const KEPT_NS: u64 = 20_000_000_000;

/// A span as it was read, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) weights: u32,
}

pub(crate) enum Read {
    Span(Piece),
    /// A writer has its place, and is not done.
    Unwritten,
    Overwritten,
}

#[derive(Default)]
pub(crate) struct Timeline {
    /// The number of the first span that was never read.
    next: u64,
    /// Numbers of spans that had not ended, or were not written, when they were last read.
    unended: Vec<u64>,
    /// Pieces that do not overlap, in order; each with the sum of all up to its end.
    ended: VecDeque<(Piece, Busy)>,
}

impl Piece {
    fn busy(self) -> Busy {
        let ns = (self.end - self.start) as f64;
        let share = |bits: u32| f64::from(bits & 0xffff) / 65535.0;
        Busy {
            ns,
            multiprocessors_ns: ns * share(self.weights >> 16),
            memory_ns: ns * share(self.weights),
        }
    }
}

/// What of these pieces lies between two timestamps. Where some overlap, the first counts.
fn disjoint(mut pieces: Vec<Piece>, from: u64, to: u64) -> impl Iterator<Item = Piece> {
    pieces.sort_unstable();
    let mut until = from;
    pieces.into_iter().filter_map(move |piece| {
        let (start, end) = (piece.start.max(until), piece.end.min(to));
        (start < end).then(|| {
            until = end;
            Piece {
                start,
                end,
                ..piece
            }
        })
    })
}

impl Timeline {
    /// Busy time from one timestamp to another. Spans with a number below `next` can be read;
    /// those that end by `now` change no more.
    pub(crate) fn busy(
        &mut self,
        (from, to): (u64, u64),
        now: u64,
        next: u64,
        read: impl Fn(u64) -> Read,
    ) -> Busy {
        let running = self.advance(now, next, read);
        let mut running: Vec<Piece> = running
            .into_iter()
            .filter(|piece| piece.start < to)
            .collect();
        // From the first of them on, they may overlap with what has ended.
        let cut = running.iter().map(|piece| piece.start).min();
        let cut = cut.unwrap_or(to).clamp(from, to.max(from));
        let ended = self.ended.range(self.ending_after(cut)..);
        let ended = ended.map(|&(piece, _)| piece);
        running.extend(ended.take_while(|piece| piece.start < to));
        disjoint(running, cut, to).fold(self.sum(cut) - self.sum(from), |sum, piece| {
            sum + piece.busy()
        })
    }

    /// Reads what is new; returns the spans that have not ended.
    fn advance(&mut self, now: u64, next: u64, read: impl Fn(u64) -> Read) -> Vec<Piece> {
        let mut unended = std::mem::take(&mut self.unended);
        unended.extend(
            self.next
                .max(next.saturating_sub(crate::node::SPANS as u64))..next,
        );
        self.next = self.next.max(next);
        let (mut ended, mut running) = (Vec::new(), Vec::new());
        unended.retain(|&number| match read(number) {
            Read::Span(piece) if piece.end <= now => {
                ended.push(piece);
                false
            }
            Read::Span(piece) => {
                running.push(piece);
                true
            }
            Read::Unwritten => true,
            Read::Overwritten => false,
        });
        self.unended = unended;
        self.merge(ended);
        let old = |&(piece, _): &(Piece, Busy)| piece.end + KEPT_NS < now;
        while self.ended.front().is_some_and(old) {
            self.ended.pop_front();
        }
        running
    }

    fn merge(&mut self, mut pieces: Vec<Piece>) {
        let first = pieces.iter().map(|piece| piece.start).min();
        let at = first.map_or(self.ended.len(), |first| self.ending_after(first));
        pieces.extend(self.ended.drain(at..).map(|(piece, _)| piece));
        let mut sum = self.ended.back().map_or(Busy::default(), |last| last.1);
        for piece in disjoint(pieces, 0, u64::MAX) {
            sum = sum + piece.busy();
            self.ended.push_back((piece, sum));
        }
    }

    /// The place of the first piece that ends after a timestamp.
    fn ending_after(&self, at: u64) -> usize {
        self.ended.partition_point(|(piece, _)| piece.end <= at)
    }

    /// Busy time up to a timestamp, from some beginning on.
    fn sum(&self, at: u64) -> Busy {
        let Some(&(piece, sum)) = self.ended.get(self.ending_after(at)) else {
            return self.ended.back().map_or(Busy::default(), |last| last.1);
        };
        let start = at.max(piece.start);
        sum - Piece { start, ..piece }.busy()
    }
}
