//! Communicators: the file in which their ranks meet, and how they come to it.

use super::Status;
use crate::call::record;
use crate::model::{current_device, node};
use gpu_node::meeting::Meeting;
use gpu_node::monotonic_ns;
use gpu_node::truth::Kind;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A file where ranks meet, and which lane of it is ours.
#[derive(Clone)]
pub(super) struct Lane {
    pub(super) meeting: Arc<Meeting>,
    pub(super) own: usize,
}

/// Sender, receiver, and which of them is meant.
type Pair = (usize, usize, usize);

pub(super) struct Communicator {
    /// Of its file.
    name: String,
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) device: usize,
    meeting: Arc<Meeting>,
    /// Collectives so far, and communicators made from this one.
    collectives: AtomicU64,
    children: AtomicU64,
    /// Lanes of point-to-point operations, with how many there were.
    pairs: Mutex<HashMap<Pair, (Lane, u64)>>,
    aborted: AtomicBool,
}

fn path(name: &str) -> PathBuf {
    node().folder.join(format!("comm.{name}"))
}

fn open(name: &str, ranks: usize) -> Result<Arc<Meeting>, Status> {
    let meeting = Meeting::open(&path(name), ranks);
    meeting.map(Arc::new).map_err(|_| Status::SYSTEM)
}

/// Waits on the host until a moment is known and past, as a call of this name.
fn wait_for(name: &'static str, moment: impl Fn() -> Option<u64>) {
    let begun = monotonic_ns();
    loop {
        let left_ns = match moment() {
            Some(moment) => moment.saturating_sub(monotonic_ns()),
            None => 200_000,
        };
        if left_ns == 0 {
            break;
        }
        std::thread::sleep(Duration::from_nanos(left_ns));
    }
    record(Kind::Wait, name, begun);
}

impl Communicator {
    /// Comes to a communicator as one of its ranks; [`Communicator::wait`] waits for the others.
    pub(super) fn join(name: String, rank: usize, ranks: usize) -> Result<Self, Status> {
        let device = current_device();
        crate::device::use_device(device);
        if rank >= ranks {
            return Err(Status::INVALID_ARGUMENT);
        }
        let meeting = open(&name, ranks)?;
        meeting.come(rank, 0, 0, monotonic_ns());
        Ok(Self {
            name,
            rank,
            ranks,
            device,
            meeting,
            collectives: AtomicU64::new(0),
            children: AtomicU64::new(0),
            pairs: Mutex::default(),
            aborted: AtomicBool::new(false),
        })
    }

    /// When all ranks have come and are set up; `None` while one has not come.
    pub(super) fn ready_ns(&self) -> Option<u64> {
        let cost_ns = (node().scenario.communicator_ms * 1e6) as u64;
        self.meeting.complete_ns().map(|last| last + cost_ns)
    }

    /// Waits until the communicator is set up, as a call of this name.
    pub(super) fn wait(&self, name: &'static str) {
        wait_for(name, || match self.is_aborted() {
            true => Some(0),
            false => self.ready_ns(),
        });
    }

    /// The next collective's lane and number.
    pub(super) fn next(&self) -> (Lane, u64) {
        let lane = Lane {
            meeting: Arc::clone(&self.meeting),
            own: self.rank,
        };
        (lane, self.collectives.fetch_add(1, AcqRel) + 1)
    }

    /// The lane and number of the next operation from one rank to another: the sender has the first
    /// lane, the receiver the second.
    pub(super) fn pair(&self, from: usize, to: usize, own: usize) -> std::io::Result<(Lane, u64)> {
        let mut pairs = self.pairs.lock().unwrap_or_else(|error| error.into_inner());
        let (lane, number) = match pairs.entry((from, to, own)) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let path = path(&format!("{}.{from}-{to}", self.name));
                let meeting = Arc::new(Meeting::open(&path, 2)?);
                entry.insert((Lane { meeting, own }, 0))
            }
        };
        *number += 1;
        Ok((lane.clone(), *number))
    }

    /// A communicator of the ranks of this one that give the same color, in the order of their
    /// keys; `None` for a rank without a color. Waits until all ranks have said theirs.
    pub(super) fn split(&self, color: i32, key: i32) -> Result<Option<Self>, Status> {
        let name = self.child("s");
        let all = open(&name, self.ranks)?;
        all.come(self.rank, color, key, monotonic_ns());
        wait_for("ncclCommSplit", || match self.is_aborted() {
            true => Some(0),
            false => all.complete_ns(),
        });
        if color < 0 {
            return Ok(None);
        }
        let mut members: Vec<(i32, usize)> = (0..self.ranks)
            .map(|rank| (all.said(rank), rank))
            .filter(|((other, _), _)| *other == color)
            .map(|((_, key), rank)| (key, rank))
            .collect();
        members.sort_unstable();
        let members: Vec<usize> = members.into_iter().map(|(_, rank)| rank).collect();
        let rank = members.iter().position(|&rank| rank == self.rank);
        let rank = rank.ok_or(Status::INTERNAL)?;
        let child = Self::join(format!("{name}.{color}"), rank, members.len())?;
        child.wait("ncclCommSplit");
        Ok(Some(child))
    }

    /// A communicator without some of its ranks, which do not take part. Waits for the others.
    pub(super) fn shrink(&self, excluded: &[i32]) -> Result<Self, Status> {
        let stays = |rank: &usize| !excluded.contains(&(*rank as i32));
        let mut members = (0..self.ranks).filter(stays);
        let rank = members.clone().position(|rank| rank == self.rank);
        let rank = rank.ok_or(Status::INVALID_ARGUMENT)?;
        let count = members.by_ref().count();
        let child = Self::join(self.child("w"), rank, count)?;
        child.wait("ncclCommShrink");
        Ok(child)
    }

    fn child(&self, kind: &str) -> String {
        let number = self.children.fetch_add(1, AcqRel);
        format!("{}.{kind}{number}", self.name)
    }

    /// Ends what waits for others.
    pub(super) fn abort(&self) {
        self.aborted.store(true, Release);
        node().bell.ring();
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.load(Acquire)
    }
}
