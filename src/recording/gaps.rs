//! What is missing of a recording's file, by the numbers of its segments.

use crate::model::seconds;

/// What is missing of a file.
#[derive(Default)]
pub(super) struct Gaps {
    /// The sequence number that is expected next.
    pub(super) next: Option<u64>,
    /// Start of the first good segment.
    pub(super) first_ns: Option<u64>,
    /// End of the last good segment.
    end_ns: Option<u64>,
    /// Whether the last good segment is marked as the last.
    pub(super) ended: bool,
    /// Segments since the last good one that are in the file, and left out for a reason of their
    /// own.
    pub(super) left_out: u64,
    lost: u64,
    lost_ns: u64,
    /// Segments before the first complete one were lost: their duration is not known.
    start_lost: bool,
    /// A complete but damaged segment came after the last good one.
    pub(super) damaged_at_end: bool,
    pub(super) out_of_order: u64,
    pub(super) unknown_kinds: u64,
    pub(super) refused: u64,
    pub(super) unreadable: Option<String>,
}

impl Gaps {
    /// Takes a segment; whether it follows the one before it in the file.
    pub(super) fn good(&mut self, sequence: u64, start_ns: u64, end_ns: u64, last: bool) -> bool {
        let follows = self.next == Some(sequence);
        self.first_ns = self.first_ns.or(Some(start_ns));
        let absent = sequence - self.next.unwrap_or(0);
        let lost = absent.saturating_sub(std::mem::take(&mut self.left_out));
        if lost > 0 {
            self.lost = self.lost.saturating_add(lost);
            self.start_lost |= self.end_ns.is_none();
            let before = self.end_ns.unwrap_or(start_ns);
            self.lost_ns = self.lost_ns.saturating_add(start_ns.saturating_sub(before));
        }
        self.next = Some(sequence.saturating_add(1));
        self.end_ns = Some(end_ns);
        self.ended = last;
        self.damaged_at_end = false;
        follows
    }

    pub(super) fn sentences(&self, growing: bool) -> Vec<String> {
        let start_ns = self.first_ns.unwrap_or(0);
        let mut sentences = Vec::new();
        if self.lost > 0 {
            let (count, verb) = counted(self.lost);
            let length = match (self.start_lost, self.lost_ns) {
                (false, lost_ns) => format!("about {:.1} s", seconds::of(lost_ns)),
                (true, 0) => "the start".to_owned(),
                (true, lost_ns) => format!("the start, and about {:.1} s", seconds::of(lost_ns)),
            };
            sentences.push(format!("{count} {verb} corrupt or missing ({length})"));
        }
        if self.out_of_order > 0 {
            let (count, verb) = counted(self.out_of_order);
            sentences.push(format!(
                "{count} {verb} out of order and left out: another recording may have been appended"
            ));
        }
        if self.unknown_kinds > 0 {
            let (count, verb) = counted(self.unknown_kinds);
            sentences.push(format!(
                "{count} {verb} of a kind that this torchspy does not know"
            ));
        }
        if self.refused > 0 {
            let (count, verb) = counted(self.refused);
            sentences.push(format!(
                "{count} {verb} left out: too much for a file of this length"
            ));
        }
        if let Some(error) = &self.unreadable {
            sentences.push(format!("the rest of the file cannot be read: {error}"));
        }
        if !self.ended && !growing {
            let held = self.end_ns.unwrap_or(start_ns).saturating_sub(start_ns);
            let cause = if self.damaged_at_end {
                "what follows is corrupt"
            } else {
                "torchspy was killed or the disk was full"
            };
            sentences.push(format!(
                "the end is missing: {cause}; {:.1} s until the last complete second",
                seconds::of(held)
            ));
        }
        sentences
    }
}

fn counted(segments: u64) -> (String, &'static str) {
    match segments {
        1 => ("1 segment".to_owned(), "is"),
        more => (format!("{more} segments"), "are"),
    }
}
