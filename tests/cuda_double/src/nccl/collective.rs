//! Collectives: when they end, and what small ones write.

use super::communicator::{Communicator, Lane};
use crate::copies::{LASTS, VALUE, is_fresh, received};
use crate::model::{Meeting, Work, launches, node};
use gpu_node::meeting::SMALL;
use gpu_node::monotonic_ns;
use gpu_node::node::Use;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    Send,
    Receive,
}

/// One operation as the program asks for it.
#[derive(Clone)]
pub(super) struct Operation {
    pub(super) kind: Kind,
    pub(super) send: usize,
    pub(super) receive: usize,
    /// Elements of each rank's part.
    pub(super) count: usize,
    pub(super) data: i32,
    pub(super) reduction: i32,
    /// The root, or the peer of a point-to-point operation.
    pub(super) root: usize,
    pub(super) communicator: Arc<Communicator>,
    pub(super) stream: usize,
}

/// Bytes of an element of an `ncclDataType_t`.
pub(super) fn element_bytes(data: i32) -> Option<usize> {
    match data {
        0 | 1 | 10 | 11 => Some(1),
        6 | 9 => Some(2),
        2 | 3 | 7 => Some(4),
        4 | 5 | 8 => Some(8),
        _ => None,
    }
}

impl Operation {
    /// Bytes of each rank's part.
    fn bytes(&self) -> usize {
        self.count * element_bytes(self.data).unwrap_or(0)
    }

    /// What this rank brings, bytes; the same on all ranks that bring anything.
    fn brings(&self) -> usize {
        let all = self.bytes() * self.communicator.ranks;
        match self.kind {
            Kind::ReduceScatter | Kind::AllToAll => all,
            Kind::Scatter if self.is_root() => all,
            Kind::Broadcast if self.is_root() => self.bytes(),
            Kind::Scatter | Kind::Broadcast | Kind::Receive => 0,
            _ => self.bytes(),
        }
    }

    fn is_root(&self) -> bool {
        self.root == self.communicator.rank
    }

    fn name(&self) -> &'static str {
        match self.kind {
            Kind::AllReduce => "nccl:allreduce",
            Kind::Reduce => "nccl:reduce",
            Kind::Broadcast => "nccl:broadcast",
            Kind::AllGather => "nccl:allgather",
            Kind::ReduceScatter => "nccl:reducescatter",
            Kind::AllToAll => "nccl:alltoall",
            Kind::Gather => "nccl:gather",
            Kind::Scatter => "nccl:scatter",
            Kind::Send | Kind::Receive => "nccl:sendrecv",
        }
    }

    /// Bytes that cross a link, as of a ring.
    fn link_bytes(&self) -> f64 {
        let (bytes, ranks) = (self.bytes() as f64, self.communicator.ranks as f64);
        match self.kind {
            Kind::AllReduce => bytes * 2.0 * (ranks - 1.0) / ranks,
            Kind::Broadcast | Kind::Reduce if ranks < 2.0 => 0.0,
            Kind::Broadcast | Kind::Reduce | Kind::Send | Kind::Receive => bytes,
            _ => bytes * (ranks - 1.0),
        }
    }

    /// What all ranks must agree on.
    fn shape(&self) -> u64 {
        let kind = match self.kind {
            Kind::Receive => Kind::Send,
            kind => kind,
        };
        (self.bytes() as u64) << 8 | kind as u64
    }
}

/// An operation with its place in the lane where its ranks meet.
struct Part {
    operation: Operation,
    lane: Lane,
    number: u64,
    met_ns: Option<u64>,
}

impl Part {
    fn arrive(&self, at_ns: u64) {
        let bytes = self.operation.brings();
        let from = self.operation.send;
        // What the program makes its result's memory with is launched in between.
        let launches = launches().saturating_sub(LASTS);
        let brought = if bytes == 0 || bytes > SMALL {
            &[]
        } else if bytes <= VALUE && !is_fresh(from, bytes, launches) {
            // As a copy to the host would read it: no kernel computed it.
            &[0; VALUE][..bytes]
        } else {
            // SAFETY: the program gives memory of this size, until the stream is done.
            unsafe { std::slice::from_raw_parts(from as *const u8, bytes) }
        };
        let (lane, shape) = (&self.lane, self.operation.shape());
        lane.meeting
            .arrive(lane.own, self.number, shape, at_ns, brought);
    }

    fn met_ns(&mut self) -> Option<u64> {
        if self.met_ns.is_none() {
            let shape = self.operation.shape();
            self.met_ns = self.lane.meeting.met_ns(self.number, shape);
        }
        self.met_ns
    }

    /// Writes what this rank gets, if that is small.
    fn receive(&self) {
        let operation = &self.operation;
        let (bytes, ranks) = (operation.bytes(), operation.communicator.ranks);
        let (to, own) = (operation.receive, operation.communicator.rank);
        let of = |rank: usize| self.lane.meeting.brought(rank, self.number);
        let most = match operation.kind {
            Kind::ReduceScatter | Kind::AllToAll | Kind::Scatter => bytes * ranks,
            _ => bytes,
        };
        if most > SMALL {
            return;
        }
        let rows: Vec<&[u8]> = match operation.kind {
            Kind::Reduce | Kind::Gather if !operation.is_root() => return,
            Kind::Send => return,
            Kind::Receive => vec![&of(0)[..bytes]],
            Kind::Broadcast => vec![&of(operation.root)[..bytes]],
            Kind::Scatter => vec![&of(operation.root)[own * bytes..][..bytes]],
            Kind::AllReduce | Kind::Reduce | Kind::AllGather | Kind::Gather => {
                (0..ranks).map(|rank| &of(rank)[..bytes]).collect()
            }
            Kind::ReduceScatter | Kind::AllToAll => (0..ranks)
                .map(|rank| &of(rank)[own * bytes..][..bytes])
                .collect(),
        };
        let result = match operation.kind {
            Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter => reduced(operation, &rows),
            _ => rows.concat(),
        };
        // SAFETY: the program gives memory of this size, until the stream is done.
        unsafe { (to as *mut u8).copy_from(result.as_ptr(), result.len()) };
        received(to, result.len());
    }
}

/// The sum, product, maximum, minimum or mean of the ranks' elements; of types that the host does
/// not compute with, this rank's own.
fn reduced(operation: &Operation, rows: &[&[u8]]) -> Vec<u8> {
    macro_rules! fold {
        ($kind:ty, $add:expr, $multiply:expr) => {{
            const BYTES: usize = size_of::<$kind>();
            let of = |row: &[u8], at: usize| {
                let bytes = row[at..at + BYTES].try_into();
                <$kind>::from_le_bytes(bytes.unwrap_or([0; BYTES]))
            };
            let mut result = Vec::with_capacity(rows[0].len());
            for at in (0..rows[0].len()).step_by(BYTES) {
                let values = rows.iter().map(|row| of(row, at));
                let value = values.reduce(|one, other| match operation.reduction {
                    1 => $multiply(one, other),
                    2 if one > other => one,
                    2 => other,
                    3 if one < other => one,
                    3 => other,
                    _ => $add(one, other),
                });
                let mut value = value.unwrap_or_default();
                if operation.reduction == 4 {
                    value /= rows.len() as $kind;
                }
                if let Some(factor) = super::factor(operation.reduction) {
                    value = (value as f64 * factor) as $kind;
                }
                result.extend(value.to_le_bytes());
            }
            result
        }};
    }
    macro_rules! integers {
        ($kind:ty) => {
            fold!($kind, <$kind>::wrapping_add, <$kind>::wrapping_mul)
        };
    }
    use std::ops::{Add, Mul};
    match operation.data {
        0 => integers!(i8),
        1 => integers!(u8),
        2 => integers!(i32),
        3 => integers!(u32),
        4 => integers!(i64),
        5 => integers!(u64),
        7 => fold!(f32, f32::add, f32::mul),
        8 => fold!(f64, f64::add, f64::mul),
        _ => rows[operation.communicator.rank].to_vec(),
    }
}

/// What a group of operations is for a stream: one kernel, which ends when all parts have.
pub(super) struct Group {
    parts: Vec<Part>,
    cost_ns: u64,
    /// The last that was known of its end.
    begun_ns: u64,
}

/// The name of a group's work, and its use of a device.
pub(super) fn work_of(operations: &[Operation]) -> Work {
    let names = operations.iter().map(Operation::name);
    let name = names.reduce(|one, other| if one == other { one } else { "nccl:group" });
    let bytes: f64 = operations.iter().map(Operation::link_bytes).sum();
    let scenario = &node().scenario;
    let us = scenario.link_us + bytes / scenario.link_gb_s / 1000.0;
    let used = Use {
        multiprocessors: 0.15,
        memory: 0.1,
    };
    Work::new(name.unwrap_or("nccl:group"), us, used)
}

impl Group {
    /// Takes the operations' places in their lanes.
    pub(super) fn new(operations: Vec<Operation>, work: &Work) -> std::io::Result<Self> {
        let mut parts = Vec::new();
        for operation in operations {
            let communicator = Arc::clone(&operation.communicator);
            let (lane, number) = match operation.kind {
                Kind::Send => communicator.pair(communicator.rank, operation.root, 0)?,
                Kind::Receive => communicator.pair(operation.root, communicator.rank, 1)?,
                _ => communicator.next(),
            };
            parts.push(Part {
                operation,
                lane,
                number,
                met_ns: None,
            });
        }
        Ok(Self {
            parts,
            // The rate of links is no matter of one device: none of them throttles it.
            cost_ns: (work.us * node().scenario.slow * 1000.0) as u64,
            begun_ns: 0,
        })
    }

    /// Whether the lanes have room for all parts.
    pub(super) fn has_room(&self) -> bool {
        self.parts.iter().all(|part| {
            let lane = &part.lane;
            part.operation.communicator.is_aborted() || lane.meeting.has_room(lane.own, part.number)
        })
    }
}

impl Meeting for Group {
    fn arrive(&mut self, at_ns: u64) {
        self.begun_ns = at_ns;
        for part in &self.parts {
            if !part.operation.communicator.is_aborted() {
                part.arrive(at_ns);
            }
        }
        node().bell.ring();
    }

    fn end_ns(&mut self) -> Option<u64> {
        let mut parts = self.parts.iter();
        if parts.any(|part| part.operation.communicator.is_aborted()) {
            return Some(self.begun_ns.max(monotonic_ns()));
        }
        let mut parts = self.parts.iter_mut();
        let met = parts.try_fold(0, |last, part| Some(last.max(part.met_ns()?)))?;
        for part in &self.parts {
            part.receive();
            part.lane.meeting.leave(part.number);
        }
        Some(met + self.cost_ns)
    }
}
