//! The sink of `top`: segments go to the view, and to a recording while one is under way.

use crate::cli::outputs::RecordingSink;
use crate::model::segment::Segment;
use crate::sampling::session::SegmentSink;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Segments that wait to be shown. Beyond that the view loses segments; a recording does not.
const WAITING: usize = 16;

/// The sink of a session that is watched.
#[derive(Clone)]
pub(crate) struct LiveSink {
    shown: Sender<Segment>,
    recording: Arc<Mutex<Recorded>>,
}

#[derive(Default)]
struct Recorded {
    sink: Option<RecordingSink>,
    /// The newest segment. It is written when the next one comes, or marked as the last.
    newest: Option<Segment>,
    /// Segments so far: a recording that begins in the middle of a session numbers its own.
    segments: u64,
    error: Option<io::Error>,
}

impl Recorded {
    fn end(self) -> anyhow::Result<()> {
        if let Some(mut sink) = self.sink {
            if let Some(newest) = self.newest {
                sink.write(&Segment {
                    last: true,
                    ..newest
                })?;
            }
            sink.finish()?;
        }
        match self.error {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }
}

impl LiveSink {
    /// The sink, and what comes out of it.
    pub(crate) fn new() -> (Self, Receiver<Segment>) {
        let (shown, segments) = bounded(WAITING);
        let sink = Self {
            shown,
            recording: Arc::default(),
        };
        (sink, segments)
    }

    fn recording(&self) -> MutexGuard<'_, Recorded> {
        let lock = self.recording.lock();
        lock.unwrap_or_else(PoisonError::into_inner)
    }

    /// From the next segment on, everything goes into `sink` too. Ends the recording under way, if
    /// there is one; an error where not all of that was written.
    pub(crate) fn record(&self, sink: RecordingSink) -> anyhow::Result<()> {
        let next = Recorded {
            sink: Some(sink),
            ..Recorded::default()
        };
        // At once, so that each segment is in one of them.
        let recorded = std::mem::replace(&mut *self.recording(), next);
        recorded.end()
    }

    /// Ends the recording under way, if there is one; an error where not all of it was written.
    pub(crate) fn end_recording(&self) -> anyhow::Result<()> {
        let recorded = std::mem::take(&mut *self.recording());
        recorded.end()
    }

    /// The error that ended the recording; returned once.
    pub(crate) fn recording_error(&self) -> Option<io::Error> {
        self.recording().error.take()
    }
}

impl SegmentSink for LiveSink {
    fn write(&mut self, segment: &Segment) -> io::Result<()> {
        let mut recorded = self.recording();
        if recorded.sink.is_some() {
            let numbered = Segment {
                index: recorded.segments,
                ..segment.clone()
            };
            recorded.segments += 1;
            let before = recorded.newest.replace(numbered);
            if let (Some(before), Some(sink)) = (before, &mut recorded.sink)
                && let Err(error) = sink.write(&before)
            {
                // The view continues.
                *recorded = Recorded {
                    error: Some(error),
                    ..Recorded::default()
                };
            }
        }
        drop(recorded);
        let _ = self.shown.try_send(segment.clone());
        Ok(())
    }
}
