//! What is needed of one recording to answer for a job of many: times by rank, step, phase, wait
//! and line, small enough that those of a thousand recordings fit into memory.

use super::category::{Activity, Phase, SummaryRow};
use super::nccl_ras::KeptRas;
use super::parallel::GroupSource;
use super::wait::WaitKind;
use serde::{Deserialize, Serialize};

/// Steps are put into at most this many bins per rank.
pub const MOST_BINS: usize = 256;

/// Bins hold a power of two of steps, so that those of ranks with different numbers of steps can be
/// put together: a bin holds the steps with the same `number >> shift`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// `number >> shift` of its steps.
    pub index: u64,
    /// Steps in it, which follow each other.
    pub steps: u32,
    /// Start of the first and end of the last, CLOCK_MONOTONIC of the host.
    pub start_ns: u64,
    pub end_ns: u64,
    /// Time between them of which nothing is known: no step of the bin has it.
    pub gap_ns: u64,
}

impl Bin {
    /// Takes in what comes after it.
    pub fn extend(&mut self, steps: u32, start_ns: u64, end_ns: u64) {
        self.steps = self.steps.saturating_add(steps);
        self.gap_ns += start_ns.saturating_sub(self.end_ns);
        self.end_ns = end_ns;
    }

    /// Time of its steps, ns.
    pub fn length_ns(&self) -> u64 {
        let ns = self.end_ns.saturating_sub(self.start_ns);
        ns.saturating_sub(self.gap_ns)
    }

    /// The number of the first step that a bin of this index may hold.
    pub fn first_step(&self, shift: u32) -> u64 {
        self.index.checked_shl(shift).unwrap_or(u64::MAX)
    }
}

/// The end of a step's last wait for other ranks, which comes at about the same time on all ranks:
/// its last collective; with NCCL, whose collectives run on devices, its last wait for the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncEnd {
    /// The step's number.
    pub step: u64,
    /// Start of the samples in it, CLOCK_MONOTONIC of the host.
    pub start_ns: u64,
    /// End of these samples.
    pub end_ns: u64,
    /// How many polls found the thread in it.
    pub ticks: u32,
    /// When its last sleep in it ended, by what it ran and waited for a CPU since; `None` if it was
    /// not found asleep in it.
    pub woke_ns: Option<u64>,
}

/// A line of code, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    pub function: String,
    pub file: String,
    pub line: u32,
}

/// Time of a training thread in one bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReducedRow {
    /// Index of the rank in [`Reduction::ranks`].
    pub rank: u32,
    /// Index of the bin in [`ReducedRank::bins`]; `None` outside of steps.
    pub bin: Option<u16>,
    pub phase: Phase,
    pub row: SummaryRow,
    pub activity: Activity,
    /// Also of time without a CPU: a thread that spins meanwhile waits all the same.
    pub wait: Option<WaitKind>,
    /// Index in [`Reduction::waits`] of what it waits for.
    pub wait_label: Option<u32>,
    /// Index in [`Reduction::places`]: the nearest line of the user's own code, else of a package.
    pub place: Option<u32>,
    pub ns: u64,
}

/// One trainer of a recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReducedRank {
    pub pid: i32,
    /// Its rank, number of ranks, and rank on its host, from its environment.
    pub rank: Option<u32>,
    pub world_size: Option<u32>,
    pub local_rank: Option<u32>,
    /// What identifies its job: rendezvous, scheduler's id.
    pub job: Vec<String>,
    /// Its parallel groups ([`text_of`](super::parallel::text_of)), and how they are known.
    pub groups: Option<(GroupSource, String)>,
    /// Whether numbers of steps count from the program's start, and are exact.
    pub counts_from_start: bool,
    /// Steps that there may have been besides, by which numbers may be too low.
    pub uncounted: u64,
    /// What counts the steps of all ranks alike since the job's start, and by how much it is ahead
    /// of the numbers here.
    pub counted: Option<(String, i64)>,
    /// Steps whose length is known.
    pub steps: u64,
    /// Bins hold `1 << shift` steps.
    pub shift: u32,
    /// Ascending.
    pub bins: Vec<Bin>,
    /// Of one part of the run in so many, ascending.
    pub sync_every: u64,
    pub sync_ends: Vec<SyncEnd>,
    /// Wall time and ticks of the training thread.
    pub wall_ns: u64,
    pub ticks: u64,
    /// First sample, CLOCK_MONOTONIC of the host.
    pub start_ns: u64,
    /// It communicates over NCCL: devices wait in collectives, hosts do not.
    pub nccl: bool,
    /// The device's UUID, and its utilization during steps, 0 to 1.
    pub device: Option<String>,
    pub utilization: Option<f64>,
    /// Energy of the device during the recording.
    pub energy_j: Option<f64>,
    pub pace: Pace,
    /// The end of the run, if no step ended in it for long.
    pub still: Option<Still>,
    /// What NCCL reported in that time.
    pub nccl_ras: Option<KeptRas>,
}

/// Where a training thread was for most of a time without a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Still {
    pub place: Option<Place>,
    /// The name of what it waited for.
    pub wait: Option<String>,
}

/// Epochs that are kept of a rank, and parts of its steps.
pub const MOST_EPOCHS: usize = 1000;
pub const MOST_PARTS: usize = 30;

/// How fast a rank trains: what is compared between numbers of ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// What divides the work among ranks: `DDP`, `FSDP`; `None` where no such code was seen.
    pub strategy: Option<String>,
    /// Epochs that are complete in the recording, in order; the first of them.
    pub epochs: Vec<EpochPace>,
    /// Steps without warm-up and without those between epochs, in parts of neighbouring steps.
    pub parts: Vec<StepPart>,
    /// Samples of the data set that the rank takes in each step.
    pub samples_a_step: Option<u64>,
    /// The device's utilization in steps, 0 to 1, in parts of equal time; without parts in which
    /// it was not measured.
    pub utilization: Vec<f64>,
}

/// An epoch, with all until the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochPace {
    /// CLOCK_MONOTONIC of the host.
    pub start_ns: u64,
    pub end_ns: u64,
    pub steps: u64,
    /// Samples of the data set that the rank took.
    pub samples: Option<u64>,
    /// Energy of the device.
    pub energy_j: Option<f64>,
}

/// Neighbouring steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepPart {
    pub steps: u32,
    /// Their time, ns.
    pub ns: u64,
}

/// A recording, reduced.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reduction {
    /// Version of the torchspy that recorded.
    pub torchspy: String,
    pub host: String,
    pub command: Vec<String>,
    /// When it began: the wall clock, ns since 1970, and CLOCK_MONOTONIC at the same time.
    pub started_wall_ns: u64,
    pub started_ns: u64,
    pub length_ns: u64,
    pub rate_hz: f64,
    /// What is missing of the recording.
    pub missing: Vec<String>,
    pub places: Vec<Place>,
    pub waits: Vec<String>,
    pub ranks: Vec<ReducedRank>,
    /// Kept as columns, not with the rest.
    #[serde(skip)]
    pub rows: Vec<ReducedRow>,
}
