//! The sampler's own figures. Values of two intervals add up.

use serde::{Deserialize, Serialize};

/// A histogram of durations: 16 buckets an octave, so a percentile is right within 5 %.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurationHistogram {
    /// Counts by bucket, sparse tail left off.
    counts: Vec<u32>,
    max_ns: u64,
    total_ns: u64,
}

impl DurationHistogram {
    const SUB_BITS: u32 = 4;

    fn bucket(ns: u64) -> usize {
        let sub = 1_u64 << Self::SUB_BITS;
        if ns < sub {
            return ns as usize;
        }
        let octave = ns.ilog2() - Self::SUB_BITS;
        ((u64::from(octave) + 1) * sub + ((ns >> octave) - sub)) as usize
    }

    fn bucket_end(bucket: usize) -> u64 {
        let sub = 1_u64 << Self::SUB_BITS;
        let bucket = bucket as u64;
        if bucket < sub {
            return bucket;
        }
        let octave = bucket / sub - 1;
        // The last bucket ends at 2^64 - 1: the shift leaves 0 there.
        ((sub + bucket % sub + 1) << octave).wrapping_sub(1)
    }

    pub fn record(&mut self, ns: u64) {
        let bucket = Self::bucket(ns);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] = self.counts[bucket].saturating_add(1);
        self.max_ns = self.max_ns.max(ns);
        self.total_ns = self.total_ns.saturating_add(ns);
    }

    /// Adds all durations of `other`. Buckets past the 64th octave, which no duration has, are
    /// dropped.
    pub fn merge(&mut self, other: &Self) {
        let wanted = other.counts.len().min(Self::bucket(u64::MAX) + 1);
        if self.counts.len() < wanted {
            self.counts.resize(wanted, 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*theirs);
        }
        self.max_ns = self.max_ns.max(other.max_ns);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().map(|&count| u64::from(count)).sum()
    }

    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }

    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The duration that a share of `quantile` (0 to 1) does not exceed, ns; `None` without any.
    pub fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let wanted = ((quantile * count as f64).ceil() as u64).clamp(1, count);
        let mut seen = 0;
        for (bucket, &here) in self.counts.iter().enumerate() {
            seen += u64::from(here);
            if seen >= wanted {
                return Some(Self::bucket_end(bucket).min(self.max_ns));
            }
        }
        Some(self.max_ns)
    }
}

/// What the sampler did over an interval. How many stacks were rooted and merged is known from the
/// samples themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    /// Ticks of the schedule that were carried out.
    pub ticks: u64,
    /// Ticks that began later than half a period, and than 0.2 ms, after their time.
    pub late_ticks: u64,
    /// Ticks that were left out because the one before, or its stops, took too long.
    pub missed_ticks: u64,
    /// Stops of the target's threads, by length (from the interrupt to the resume).
    pub stops: DurationHistogram,
    /// Time that sampled threads ran or were ready to run: what the stops are a share of, ns.
    pub target_run_ns: u64,
    /// Running threads that were passed over to stay within `--max-stopped`.
    pub skipped_for_budget: u64,
    /// Threads that did not stop by the deadline.
    pub stop_timeouts: u64,
    /// Thread captures tried again because the thread ran while it was read.
    pub torn_retries: u64,
    /// Threads that were not asked to stop, since one that was asked before had not stopped yet.
    #[serde(skip)]
    pub skipped_for_late_stop: u64,
    /// Training threads that were not polled because every CPU was busy and their processes take
    /// turns.
    #[serde(skip)]
    pub skipped_for_turn: u64,
    /// System calls that a stop ended early and the program saw: with EINTR, or less than was asked
    /// for. At most: they may have ended so by themselves.
    #[serde(skip)]
    pub calls_cut_short: u64,
    /// Threads that ran and were not stopped, since that would have cut a system call short.
    #[serde(skip)]
    pub calls_left_running: u64,
    /// Setuid and setgid programs that began while their thread was traced, and run without their
    /// privileges for it.
    #[serde(skip)]
    pub privileges_lost: u64,
    /// Samples of the kernel whose Python frames had changed between a read just before and one
    /// just after it: the frames are those of the later read.
    #[serde(skip)]
    pub python_later: u64,
    /// Samples that the kernel was asked for and did not take by the deadline: the thread left its
    /// CPU, or was in the kernel where that may not be sampled.
    #[serde(skip)]
    pub samples_missed: u64,
    /// Samples that the kernel could not be asked for: it does not let torchspy sample the thread,
    /// or has nothing left for another event.
    #[serde(skip)]
    pub samples_refused: u64,
    pub own_cpu_ns: u64,
    pub own_queue_ns: u64,
    /// Seconds by which the target's cgroup was throttled, ns; 0 where it has no quota.
    pub throttled_ns: u64,
}

impl Quality {
    /// Adds a later interval.
    pub fn merge(&mut self, other: &Self) {
        macro_rules! add {
            ($($count:ident)+) => {
                $(self.$count = self.$count.saturating_add(other.$count);)+
            };
        }
        self.stops.merge(&other.stops);
        add!(ticks late_ticks missed_ticks target_run_ns own_cpu_ns own_queue_ns throttled_ns);
        add!(skipped_for_budget stop_timeouts torn_retries skipped_for_late_stop skipped_for_turn);
        add!(calls_cut_short calls_left_running privileges_lost python_later samples_missed);
        add!(samples_refused);
    }
}
