//! The tracer's queue to the worker: sending never blocks, and messages that do not fit are
//! counted.

use super::raw::{Message, RawSample};
use crate::model::frame::Partial;
use crate::model::run::Loss;
use crate::model::sample::Sample;
use crate::os::clock::monotonic_ns;
use crossbeam_channel::{Receiver, SendTimeoutError, Sender, TrySendError};
use std::collections::VecDeque;
use std::time::Duration;

/// Messages that wait while the worker is behind. Above it the time of samples is dropped, too, and
/// counted as lost.
const MAX_BACKLOG: usize = 50_000;

/// Bytes of copied memory between the tracer and the worker. Each thread's first copy has 256 KiB.
const MAX_IN_FLIGHT: usize = 64 << 20;

/// Messages that are batched before the worker is woken: a wake-up costs the target as much as
/// several samples.
const BATCH: usize = 128;

/// Period of checks, at the end, whether the worker has been given up.
const ROOM_POLL: Duration = Duration::from_millis(20);

/// Sends messages in order. Where the queue is full, or too much memory is in flight, a sample's
/// stack is dropped and only its time is kept; other messages wait in a backlog.
#[derive(Debug)]
pub(super) struct Outbox {
    sender: Sender<Message>,
    wake: Sender<()>,
    recycled: Receiver<Box<RawSample>>,
    backlog: VecDeque<Message>,
    in_flight: usize,
    lost_stacks: u64,
    lost_spans: u64,
}

impl Outbox {
    pub(super) fn new(
        sender: Sender<Message>,
        wake: Sender<()>,
        recycled: Receiver<Box<RawSample>>,
    ) -> Self {
        Self {
            sender,
            wake,
            recycled,
            backlog: VecDeque::new(),
            in_flight: 0,
            lost_stacks: 0,
            lost_spans: 0,
        }
    }

    /// A sample that the worker has finished with; its buffers are reused.
    pub(super) fn recycled(&mut self) -> Option<Box<RawSample>> {
        let sample = self.recycled.try_recv().ok()?;
        let bytes = sample.snapshot.buffer_bytes();
        self.in_flight = self.in_flight.saturating_sub(bytes);
        Some(sample)
    }

    /// Whether the worker has finished with all samples that were sent.
    pub(super) fn is_idle(&mut self) -> bool {
        self.drain();
        let _ = self.wake.try_send(());
        self.backlog.is_empty() && self.in_flight == 0
    }

    /// Sends `message`, now or later. Returns the sample if its stack was dropped.
    pub(super) fn send(&mut self, message: Message) -> Option<Box<RawSample>> {
        self.drain();
        let cannot_wait = matches!(
            message,
            Message::Process(..) | Message::Image(..) | Message::Flush(_)
        );
        let bytes = match &message {
            Message::Sample(sample) => sample.snapshot.buffer_bytes(),
            _ => 0,
        };
        let has_room = bytes == 0 || self.in_flight + bytes <= MAX_IN_FLIGHT;
        let dropped = if self.backlog.is_empty() && has_room {
            match self.sender.try_send(message) {
                Ok(()) => {
                    self.in_flight += bytes;
                    None
                }
                Err(TrySendError::Disconnected(_)) => None,
                Err(TrySendError::Full(message)) => self.keep(message),
            }
        } else {
            self.keep(message)
        };
        if cannot_wait || self.sender.len() >= BATCH {
            // Full: a wake-up is already pending.
            let _ = self.wake.try_send(());
        }
        dropped
    }

    fn keep(&mut self, message: Message) -> Option<Box<RawSample>> {
        let (message, sample) = match message {
            Message::Sample(sample) => {
                self.lost_stacks += 1;
                (
                    Message::Span(sample.recorded, Some(Partial::Overflow)),
                    Some(sample),
                )
            }
            message => (message, None),
        };
        if self.backlog.len() >= MAX_BACKLOG
            && matches!(message, Message::Span(..) | Message::Named(..))
        {
            self.lost_spans += 1;
        } else {
            self.backlog.push_back(message);
        }
        sample
    }

    /// Sends a span without a new stack.
    pub(super) fn span(&mut self, span: Sample, why: Option<Partial>) {
        self.send(Message::Span(span, why));
    }

    fn drain(&mut self) {
        while let Some(message) = self.backlog.pop_front() {
            match self.sender.try_send(message) {
                Ok(()) => {}
                Err(TrySendError::Full(message)) => {
                    self.backlog.push_front(message);
                    return;
                }
                Err(TrySendError::Disconnected(_)) => {
                    self.backlog.clear();
                    return;
                }
            }
        }
    }

    /// Losses since the last call.
    pub(super) fn take_losses(&mut self) -> Vec<Loss> {
        let time_ns = monotonic_ns();
        let mut losses = Vec::new();
        if self.lost_stacks > 0 {
            losses.push(Loss {
                time_ns,
                samples: std::mem::take(&mut self.lost_stacks),
                reason: "stacks dropped: samples came faster than they could be unwound".to_owned(),
            });
        }
        if self.lost_spans > 0 {
            losses.push(Loss {
                time_ns,
                samples: std::mem::take(&mut self.lost_spans),
                reason: "samples dropped with their time: the worker did not answer for too long"
                    .to_owned(),
            });
        }
        losses
    }

    /// Sends all of the backlog, waiting for room until `is_given_up`: at the end of a session
    /// only.
    pub(super) fn finish(mut self, is_given_up: impl Fn() -> bool) {
        let _ = self.wake.try_send(());
        while let Some(message) = self.backlog.pop_front() {
            match self.sender.send_timeout(message, ROOM_POLL) {
                Err(SendTimeoutError::Timeout(message)) if !is_given_up() => {
                    self.backlog.push_front(message);
                }
                Err(_) => return,
                Ok(()) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::ThreadId;
    use crossbeam_channel::bounded;
    use std::cell::Cell;

    #[test]
    fn a_worker_that_hangs_is_not_waited_for() {
        let (sender, queue) = bounded(2);
        let (wake, _rung) = bounded(1);
        let (_recycle, recycled) = bounded(1);
        let mut outbox = Outbox::new(sender, wake, recycled);
        for number in 0..5 {
            outbox.send(Message::ThreadGone(ThreadId(number)));
        }
        let polls = Cell::new(0);
        outbox.finish(|| polls.replace(polls.get() + 1) == 3);
        assert_eq!((queue.len(), polls.get()), (2, 4));
    }
}
