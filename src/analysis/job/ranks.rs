//! Ranks of a job: the time of each by class and bin of steps, and by line.

use crate::analysis::intervals::{Share, Shares};
use crate::model::category::{Activity, Phase, SummaryRow};
use crate::model::named::named;
use crate::model::reduction::{Bin, Place, ReducedRank, ReducedRow, Reduction};
use crate::model::wait::WaitKind;
use rustc_hash::FxHashMap;

named!(
    /// The classes of the distributed view.
    Class {
        /// Operators and their dispatch, on the host.
        Computation = "computation",
        /// Issuing and executing collectives on the host.
        CommunicationCall = "communication_call",
        /// Waiting in collectives.
        CommunicationWait = "communication_wait",
        Input = "input",
        GpuWait = "gpu_wait",
        Python = "python",
        /// Runnable, without a CPU.
        CpuWait = "cpu_wait",
        Other = "other",
    }
);

impl Class {
    pub const COUNT: usize = Class::ALL.len();

    fn of(row: &ReducedRow) -> Self {
        match row.row {
            SummaryRow::HostComputation | SummaryRow::OmpBarrier => Class::Computation,
            SummaryRow::Communication => match row.activity {
                Activity::CollectiveWait | Activity::LockWait | Activity::Sleep | Activity::Io => {
                    Class::CommunicationWait
                }
                _ => Class::CommunicationCall,
            },
            SummaryRow::Input => Class::Input,
            SummaryRow::GpuWait => Class::GpuWait,
            SummaryRow::Python => Class::Python,
            SummaryRow::CpuWait => Class::CpuWait,
            SummaryRow::Compile
            | SummaryRow::Startup
            | SummaryRow::Shutdown
            | SummaryRow::Other
            | SummaryRow::Unclassified => Class::Other,
        }
    }
}

/// What a rank did, by names of the job: indices into [`Names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Doing {
    pub phase: Phase,
    /// Index of the place; `None` if no line is known.
    pub place: Option<u32>,
    /// Index of what it waited for.
    pub wait: Option<u32>,
}

/// Names of all recordings of a job, each once.
#[derive(Clone, Debug, Default)]
pub struct Names {
    pub places: Vec<Place>,
    pub waits: Vec<String>,
    place_ids: FxHashMap<Place, u32>,
    wait_ids: FxHashMap<String, u32>,
}

impl Names {
    fn add(&mut self, reduction: &Reduction) -> (Vec<u32>, Vec<u32>) {
        let places = reduction.places.iter();
        let places = places.map(|place| intern(&mut self.places, &mut self.place_ids, place));
        let waits = reduction.waits.iter();
        let waits = waits.map(|wait| intern(&mut self.waits, &mut self.wait_ids, wait));
        (places.collect(), waits.collect())
    }

    pub fn place(&self, doing: &Doing) -> Option<&Place> {
        self.places.get(doing.place? as usize)
    }

    pub fn wait(&self, doing: &Doing) -> Option<&str> {
        self.waits.get(doing.wait? as usize).map(String::as_str)
    }
}

fn intern<T: Clone + Eq + std::hash::Hash>(
    all: &mut Vec<T>,
    ids: &mut FxHashMap<T, u32>,
    value: &T,
) -> u32 {
    if let Some(&id) = ids.get(value) {
        return id;
    }
    let id = all.len() as u32;
    all.push(value.clone());
    ids.insert(value.clone(), id);
    id
}

/// Times of one bin, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BinTimes {
    /// By [`Class`].
    pub classes: [f32; Class::COUNT],
    /// In which the host waited for other ranks or for its device.
    pub waits: f32,
    /// The same with launches, which wait, too, where the launch queue is full.
    pub waits_or_launches: f32,
}

impl BinTimes {
    pub fn of(&self, class: Class) -> f32 {
        self.classes.get(class as usize).copied().unwrap_or(0.0)
    }
}

/// One rank.
#[derive(Clone, Debug)]
pub struct Rank {
    /// Index of its recording.
    pub recording: usize,
    pub host: String,
    pub facts: ReducedRank,
    /// By bin of [`ReducedRank::bins`].
    pub times: Vec<BinTimes>,
    /// Time in steps that is no wait for others, or all of a wait with another reason, seconds.
    pub own: FxHashMap<Doing, f64>,
    /// Totals over steps by class, seconds; over all of the recording where no steps are known.
    pub totals: [f64; Class::COUNT],
}

impl Rank {
    /// Its name for people and the key of its order: the rank, or the process where it has none.
    pub fn number(&self) -> (bool, u32, usize) {
        let rank = self.facts.rank;
        (rank.is_none(), rank.unwrap_or(0), self.recording)
    }

    pub fn length_s(bin: &Bin) -> f64 {
        bin.length_ns() as f64 / 1e9
    }

    /// Time of all bins, seconds.
    pub fn seconds(&self) -> f64 {
        self.facts.bins.iter().map(Self::length_s).sum()
    }

    /// Its bins with their times.
    pub fn bins(&self) -> impl Iterator<Item = (&Bin, &BinTimes)> {
        self.facts.bins.iter().zip(&self.times)
    }

    /// A part of the bins that are chosen by their index, as a share of their time.
    pub fn share(&self, is_chosen: impl Fn(u64) -> bool, part: impl Fn(&BinTimes) -> f32) -> Share {
        let chosen = || self.bins().filter(|(bin, _)| is_chosen(bin.index));
        let seconds: f64 = chosen().map(|(bin, _)| Self::length_s(bin)).sum();
        let per_second = self.facts.ticks as f64 * 1e9 / self.facts.wall_ns.max(1) as f64;
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        let mut shares = Shares::new(ns(seconds), (seconds * per_second) as u64, 1);
        for (bin, times) in chosen() {
            let seconds = f64::from(part(times));
            let ticks = (seconds * per_second).round() as u32;
            shares.add(ns(Self::length_s(bin)), ticks, &[(0, ns(seconds))]);
        }
        shares.share(0)
    }

    /// Puts bins together until they hold `1 << shift` steps.
    pub fn coarsen(&mut self, shift: u32) {
        let by = shift.saturating_sub(self.facts.shift);
        if by == 0 {
            return;
        }
        let mut bins: Vec<Bin> = Vec::new();
        let mut times: Vec<BinTimes> = Vec::new();
        for (bin, own) in self.bins() {
            let index = bin.index.checked_shr(by).unwrap_or(0);
            match (bins.last_mut(), times.last_mut()) {
                (Some(last), Some(sum)) if last.index == index => {
                    last.extend(bin.steps, bin.start_ns, bin.end_ns);
                    last.gap_ns += bin.gap_ns;
                    sum.add(own);
                }
                _ => {
                    bins.push(Bin { index, ..*bin });
                    times.push(*own);
                }
            }
        }
        (self.facts.bins, self.times, self.facts.shift) = (bins, times, shift);
    }
}

impl BinTimes {
    fn add(&mut self, other: &Self) {
        for (sum, value) in self.classes.iter_mut().zip(other.classes) {
            *sum += value;
        }
        self.waits += other.waits;
        self.waits_or_launches += other.waits_or_launches;
    }
}

/// Adds the ranks of a recording to those of its job, and drops its rows.
pub fn fold(mut reduction: Reduction, recording: usize, names: &mut Names, ranks: &mut Vec<Rank>) {
    let (places, waits) = names.add(&reduction);
    let first = ranks.len();
    for facts in std::mem::take(&mut reduction.ranks) {
        ranks.push(Rank {
            recording,
            host: reduction.host.clone(),
            times: vec![BinTimes::default(); facts.bins.len()],
            own: FxHashMap::default(),
            totals: [0.0; Class::COUNT],
            facts,
        });
    }
    for row in &reduction.rows {
        let Some(rank) = ranks.get_mut(first + row.rank as usize) else {
            continue;
        };
        let seconds = row.ns as f64 / 1e9;
        let class = Class::of(row) as usize;
        let is_step = row.bin.is_some();
        if is_step || rank.facts.bins.is_empty() {
            rank.totals[class] += seconds;
        }
        let times = row.bin.and_then(|bin| rank.times.get_mut(usize::from(bin)));
        let Some(times) = times else { continue };
        times.classes[class] += seconds as f32;
        let waits_for_others = matches!(
            row.wait,
            Some(WaitKind::GpuSync | WaitKind::GpuCopy | WaitKind::Collective)
        );
        let launches = matches!(row.activity, Activity::GpuLaunch | Activity::GpuAlloc);
        if waits_for_others {
            times.waits += seconds as f32;
        } else {
            let id = |ids: &[u32], at: Option<u32>| ids.get(at? as usize).copied();
            let doing = Doing {
                phase: row.phase,
                place: id(&places, row.place),
                wait: id(&waits, row.wait_label),
            };
            *rank.own.entry(doing).or_default() += seconds;
        }
        if waits_for_others || launches {
            times.waits_or_launches += seconds as f32;
        }
    }
}
