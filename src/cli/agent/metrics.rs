//! The series of the agent, in the text format of OpenMetrics.
//!
//! What was not measured has no series. Label values are of closed sets, but for jobs and ranks, of
//! which there are as many as trainers.

use super::job_labels::JobLabels;
use crate::live::follow::{GpuPart, RankPart};
use crate::model::seconds;
use crate::model::track::TrackKind;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Upper bounds of the buckets of steps, seconds.
const BUCKETS: [f64; 18] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0,
    200.0, 500.0,
];

pub(crate) type Labels = Vec<(&'static str, String)>;
type Seconds = Counter<f64, AtomicU64>;
type Ratio = Gauge<f64, AtomicU64>;

/// All series.
pub(crate) struct Metrics {
    registry: Registry,
    most_ranks: usize,
    ranks: BTreeMap<Labels, Rank>,
    left_out: BTreeSet<Labels>,
    jobs: JobLabels,
    phases: Family<Labels, Seconds>,
    waits: Family<Labels, Seconds>,
    steps: Family<Labels, Counter>,
    step_lengths: Family<Labels, Histogram, fn() -> Histogram>,
    energy: Family<Labels, Seconds>,
    idle: Family<Labels, Seconds>,
    hang: Family<Labels, Gauge>,
    unclassified: Family<Labels, Ratio>,
    gpu_info: Family<Labels, Gauge>,
    allocator_bytes: Family<Labels, Gauge>,
    allocator_refusals: Family<Labels, Counter>,
    overhead: Family<Labels, Seconds>,
    pushes: Family<Labels, Counter>,
    trainers: Gauge,
    not_shown: Gauge,
}

/// What is kept of a rank besides its series.
struct Rank {
    /// All label sets that its series have.
    labels: BTreeSet<Labels>,
    wall_ns: u64,
    unclassified_ns: u64,
    seen: Instant,
}

impl Metrics {
    /// Series of the trainers of `node`: of at most so many ranks.
    pub(crate) fn new(node: String, most_ranks: usize, started_wall_ns: u64) -> Self {
        let node = [("node".into(), node.into())];
        let lengths: fn() -> Histogram = || Histogram::new(BUCKETS);
        let mut metrics = Self {
            registry: Registry::with_prefix_and_labels("torchspy", node.into_iter()),
            most_ranks,
            ranks: BTreeMap::new(),
            left_out: BTreeSet::new(),
            jobs: JobLabels::default(),
            phases: Family::default(),
            waits: Family::default(),
            steps: Family::default(),
            step_lengths: Family::new_with_constructor(lengths),
            energy: Family::default(),
            idle: Family::default(),
            hang: Family::default(),
            unclassified: Family::default(),
            gpu_info: Family::default(),
            allocator_bytes: Family::default(),
            allocator_refusals: Family::default(),
            overhead: Family::default(),
            pushes: Family::default(),
            trainers: Gauge::default(),
            not_shown: Gauge::default(),
        };
        let started = Ratio::default();
        started.set(seconds::of(started_wall_ns));
        macro_rules! register {
            ($($name:literal, $metric:expr, $help:literal;)+) => {
                $(metrics.registry.register($name, $help, $metric.clone());)+
            };
        }
        register!(
            "phase_seconds", metrics.phases, "Wall time of the training thread by phase of training";
            "wait_seconds", metrics.waits, "Wall time in which the training thread waited, by what for";
            "steps", metrics.steps, "Steps of the optimizer";
            "step_seconds", metrics.step_lengths, "Length of the optimizer's steps";
            "energy_joules", metrics.energy, "Energy of the rank's GPU by phase of the host, whoever used it";
            "gpu_idle_seconds", metrics.idle, "Time in which no kernel ran on the rank's GPU, by phase of the host";
            "hang", metrics.hang, "Whether the job hangs: 1, or 0";
            "unclassified_ratio", metrics.unclassified, "Share of the training thread's time that no rule classified";
            "gpu_info", metrics.gpu_info, "The GPU that a rank uses, as dcgm-exporter labels it";
            "allocator_bytes", metrics.allocator_bytes, "Device memory that torch's caching allocator holds, or a part of it";
            "allocator_refusals", metrics.allocator_refusals, "Allocations for which the device had no memory: tried again after the cache was freed, and failed";
            "overhead_seconds", metrics.overhead, "Cost of the agent: its CPU time, and time in which it stopped threads of trainers";
            "pushes", metrics.pushes, "Profiles that were sent, by receiver and result";
            "trainers", metrics.trainers, "Trainers and launchers that are sampled";
            "ranks_left_out", metrics.not_shown, "Ranks without series, because there are too many";
            "start_time_seconds", started, "Start of the agent, since 1970: counters begin at 0 then";
        );
        metrics
    }

    /// Adds what a rank did, and whether this is the last of it. Figures of ranks that have the
    /// same labels are added up. Returns the label of its job.
    pub(crate) fn add(
        &mut self,
        part: &RankPart,
        hangs: bool,
        is_last: bool,
        now: Instant,
    ) -> Option<String> {
        let job = self.jobs.of(&part.info, is_last, now);
        let rank = part.role.rank().map(|rank| rank.to_string());
        let named = [("job", job.clone()), ("rank", rank)];
        let named = named.into_iter();
        let labels: Labels = named
            .filter_map(|(name, value)| Some((name, value?)))
            .collect();
        if !self.ranks.contains_key(&labels) && self.ranks.len() >= self.most_ranks {
            if self.left_out.len() < self.most_ranks {
                self.left_out.insert(labels);
            }
            self.show_counts();
            return job;
        }
        self.left_out.remove(&labels);
        let rank = self.ranks.entry(labels.clone()).or_insert_with(|| Rank {
            labels: BTreeSet::from([labels.clone()]),
            wall_ns: 0,
            unclassified_ns: 0,
            seen: now,
        });
        rank.seen = now;
        let mut with = |more: &[(&'static str, &str)]| {
            let more = more.iter().map(|&(name, value)| (name, value.to_owned()));
            let all: Labels = labels.iter().cloned().chain(more).collect();
            rank.labels.insert(all.clone());
            all
        };
        for (phase, &ns) in &part.phases {
            let series = self.phases.get_or_create_owned(&with(&[("phase", phase)]));
            series.inc_by(seconds::of(ns));
        }
        for (cause, &ns) in &part.waits {
            let labels = with(&[("cause", cause.name())]);
            let series = self.waits.get_or_create_owned(&labels);
            series.inc_by(seconds::of(ns));
        }
        if let Some(GpuPart { info, energy, idle }) = &part.gpu {
            let index = info.index.to_string();
            let gpu = [("gpu", index.as_str()), ("UUID", info.uuid.as_str())];
            self.gpu_info.get_or_create_owned(&with(&gpu)).set(1);
            for (phase, &joules) in energy {
                let labels = with(&[&gpu[..], &[("phase", phase)]].concat());
                self.energy.get_or_create_owned(&labels).inc_by(joules);
            }
            for (cause, ns) in idle {
                let labels = with(&[&gpu[..], &[("cause", cause)]].concat());
                self.idle.get_or_create_owned(&labels).inc_by(ns / 1e9);
            }
        }
        for ((device, kind), &value) in &part.allocators {
            let mut of = |name: &'static str, value: &str| {
                with(&[("device", device.as_str()), (name, value)])
            };
            let state = match kind {
                TrackKind::AllocatorReserved => {
                    // From the start, so that the first one is a rise.
                    for result in ["retried", "failed"] {
                        let labels = of("result", result);
                        self.allocator_refusals.get_or_create_owned(&labels);
                    }
                    "reserved"
                }
                TrackKind::AllocatorAllocated => "allocated",
                TrackKind::AllocatorActive => "active",
                TrackKind::AllocatorInactiveSplit => "inactive_split",
                TrackKind::AllocatorPeak => "peak",
                TrackKind::AllocatorReservedPeak => "reserved_peak",
                kind => {
                    let result = match kind {
                        TrackKind::AllocatorRetries => "retried",
                        _ => "failed",
                    };
                    let labels = of("result", result);
                    self.allocator_refusals
                        .get_or_create_owned(&labels)
                        .inc_by(value);
                    continue;
                }
            };
            let level = i64::try_from(value).unwrap_or(i64::MAX);
            self.allocator_bytes
                .get_or_create_owned(&of("state", state))
                .set(level);
        }
        let wall_ns: u64 = part.phases.values().sum();
        rank.wall_ns = rank.wall_ns.saturating_add(wall_ns);
        rank.unclassified_ns = rank.unclassified_ns.saturating_add(part.unclassified_ns);
        if rank.wall_ns > 0 {
            let share = rank.unclassified_ns as f64 / rank.wall_ns as f64;
            self.unclassified.get_or_create_owned(&labels).set(share);
            self.hang.get_or_create_owned(&labels).set(hangs.into());
        }
        if let Some(steps) = &part.steps {
            let series = self.steps.get_or_create_owned(&labels);
            let lengths = self.step_lengths.get_or_create_owned(&labels);
            for ended in steps {
                series.inc_by(ended.count);
                for _ in 0..ended.count {
                    if let Some(ns) = ended.each_ns {
                        lengths.observe(seconds::of(ns));
                    }
                }
            }
        }
        self.show_counts();
        job
    }

    /// Adds what the agent itself cost.
    pub(crate) fn add_overhead(&mut self, kind: &str, ns: u64) {
        let labels = vec![("kind", kind.to_owned())];
        let series = self.overhead.get_or_create_owned(&labels);
        series.inc_by(seconds::of(ns));
    }

    /// Counts a profile that was sent, or not.
    pub(crate) fn add_push(&mut self, receiver: &str, result: &str) {
        let labels = [("receiver", receiver), ("result", result)];
        let labels = labels
            .map(|(name, value)| (name, value.to_owned()))
            .to_vec();
        self.pushes.get_or_create_owned(&labels).inc();
    }

    /// How many trainers are sampled.
    pub(crate) fn set_trainers(&mut self, count: usize) {
        self.trainers.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Drops the series of ranks that nothing was heard of for so long.
    pub(crate) fn forget(&mut self, now: Instant, keep: Duration) {
        self.ranks.retain(|_, rank| {
            let stays = now.saturating_duration_since(rank.seen) < keep;
            for labels in rank.labels.iter().filter(|_| !stays) {
                self.phases.remove(labels);
                self.waits.remove(labels);
                self.steps.remove(labels);
                self.step_lengths.remove(labels);
                self.energy.remove(labels);
                self.idle.remove(labels);
                self.hang.remove(labels);
                self.unclassified.remove(labels);
                self.gpu_info.remove(labels);
                self.allocator_bytes.remove(labels);
                self.allocator_refusals.remove(labels);
            }
            stays
        });
        self.jobs.forget(now, keep);
        if self.ranks.len() < self.most_ranks {
            self.left_out.clear();
        }
        self.show_counts();
    }

    /// What all series of a rank have.
    fn show_counts(&mut self) {
        self.not_shown.set(self.left_out.len() as i64);
    }

    /// All series as text.
    ///
    /// # Errors
    /// None: a string takes everything.
    pub(crate) fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
