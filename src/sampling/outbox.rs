//! The tracer's way to the worker: never blocks, and what does not fit is counted.

use super::raw::{Message, RawSample};
use crate::model::frame::Partial;
use crate::model::run::Loss;
use crate::model::sample::Sample;
use crate::os::clock::monotonic_ns;
use crossbeam_channel::{Receiver, Sender, TrySendError};
use std::collections::VecDeque;

/// Messages that wait while the worker is behind. Past it even the time of samples is given up, and said so.
const MAX_BACKLOG: usize = 50_000;

/// Copied memory that is under way to the worker and back. Each thread's first copy is a quarter of a megabyte.
const MAX_UNDER_WAY: usize = 64 << 20;

/// Messages that are let gather before the worker is woken: each waking costs the target as much as several samples.
const GATHER: usize = 128;

/// Sends messages in order. A stack that finds the queue full, or too much memory under way, gives way to its time; facts
/// wait in a backlog.
#[derive(Debug)]
pub(super) struct Outbox {
    sender: Sender<Message>,
    bell: Sender<()>,
    recycled: Receiver<Box<RawSample>>,
    backlog: VecDeque<Message>,
    under_way: usize,
    lost_stacks: u64,
    lost_stretches: u64,
}

impl Outbox {
    pub(super) fn new(
        sender: Sender<Message>,
        bell: Sender<()>,
        recycled: Receiver<Box<RawSample>>,
    ) -> Self {
        Self {
            sender,
            bell,
            recycled,
            backlog: VecDeque::new(),
            under_way: 0,
            lost_stacks: 0,
            lost_stretches: 0,
        }
    }

    /// A sample that the worker is done with, for its buffers.
    pub(super) fn recycled(&mut self) -> Option<Box<RawSample>> {
        let sample = self.recycled.try_recv().ok()?;
        let bytes = sample.snapshot.buffer_bytes();
        self.under_way = self.under_way.saturating_sub(bytes);
        Some(sample)
    }

    /// Whether nothing is under way: the worker is done with all samples that were sent.
    pub(super) fn is_idle(&mut self) -> bool {
        self.drain();
        let _ = self.bell.try_send(());
        self.backlog.is_empty() && self.under_way == 0
    }

    /// Sends `message`, now or later. Gives back the sample of a stack that was dropped.
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
        let has_room = bytes == 0 || self.under_way + bytes <= MAX_UNDER_WAY;
        let dropped = if self.backlog.is_empty() && has_room {
            match self.sender.try_send(message) {
                Ok(()) => {
                    self.under_way += bytes;
                    None
                }
                Err(TrySendError::Disconnected(_)) => None,
                Err(TrySendError::Full(message)) => self.keep(message),
            }
        } else {
            self.keep(message)
        };
        if cannot_wait || self.sender.len() >= GATHER {
            // Full: it sounds already.
            let _ = self.bell.try_send(());
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
            self.lost_stretches += 1;
        } else {
            self.backlog.push_back(message);
        }
        sample
    }

    /// Sends a stretch of time.
    pub(super) fn span(&mut self, sample: Sample, why: Option<Partial>) {
        self.send(Message::Span(sample, why));
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

    /// What was lost since the last call.
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
        if self.lost_stretches > 0 {
            losses.push(Loss {
                time_ns,
                samples: std::mem::take(&mut self.lost_stretches),
                reason: "samples dropped whole: the worker stood still for too long".to_owned(),
            });
        }
        losses
    }

    /// Sends the whole backlog, waiting for room: at the end of a session only.
    pub(super) fn finish(mut self) {
        let _ = self.bell.try_send(());
        for message in self.backlog.drain(..) {
            if self.sender.send(message).is_err() {
                return;
            }
        }
    }
}
