//! What MLflow is told of a rank, as itwinai's trainer logs it, so that `itwinai
//! generate-scalability-report` reads it. What was not measured is not there.
//!
//! Source: itwinai 0.4.2, `torch/trainer.py` (runs, params, `epoch_time_s`),
//! `torch/monitoring/monitoring.py` (metrics of GPUs), `torch/distributed.py` (names of
//! strategies), `scalability_report/utils.py` (what is read of them). Its artifact
//! `torch_profiling_averages` has CUDA times, which are not known here.

use crate::analysis::gpu_overlay::device_of;
use crate::analysis::job::pace::pace;
use crate::analysis::of_thread;
use crate::analysis::tracks::{self, Device, TrackSummary, every};
use crate::model::ids::ProcessId;
use crate::model::profile::{Profile, Role};
use crate::model::reduction::Pace;
use crate::model::track::TrackKind;
use rustc_hash::FxHashMap;

const SECOND_NS: u64 = 1_000_000_000;
/// Seconds that are logged of a recording: 30 days.
const MOST_SECONDS: u64 = 30 * 86_400;

/// A value of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    pub key: &'static str,
    pub value: f64,
    /// Wall clock, ms since 1970.
    pub timestamp_ms: i64,
    /// The epoch, from 0; of GPUs, seconds since the start of the recording.
    pub step: i64,
}

/// The run of a rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// `worker_0 (main)`, `worker_1`.
    pub name: String,
    pub rank: u32,
    pub params: Vec<(&'static str, String)>,
    pub metrics: Vec<Metric>,
    /// Wall clock, ms since 1970.
    pub started_ms: i64,
    pub ended_ms: i64,
}

/// The ranks of a recording, by number; of a rank that was started again, the last process. A
/// trainer whose environment names no rank gets the next free number.
pub fn workers(profile: &Profile) -> Vec<Worker> {
    let tracks = tracks::summarize(profile);
    let trainers: Vec<(ProcessId, Option<u32>, Option<u32>)> = trainers(profile);
    let is_alone = trainers.len() == 1;
    let mut last: FxHashMap<u32, (ProcessId, Option<u32>)> = FxHashMap::default();
    for &(process, rank, world) in &trainers {
        let alone = is_alone && rank.is_none();
        let world = world.or(alone.then_some(1));
        let number = rank.unwrap_or_else(|| {
            let named = |number: &u32| trainers.iter().any(|(_, rank, _)| *rank == Some(*number));
            let is_free = |number: &u32| !named(number) && !last.contains_key(number);
            (0..=u32::MAX).find(is_free).unwrap_or(0)
        });
        last.insert(number, (process, world));
    }
    let mut workers: Vec<Worker> = last
        .into_iter()
        .map(|(rank, (process, world))| worker(profile, &tracks, process, rank, world))
        .collect();
    workers.sort_by_key(|worker| worker.rank);
    workers
}

fn trainers(profile: &Profile) -> Vec<(ProcessId, Option<u32>, Option<u32>)> {
    let all = profile.processes.iter().enumerate();
    all.filter_map(|(at, process)| {
        let Role::Trainer {
            rank, world_size, ..
        } = process.role
        else {
            return None;
        };
        let sampled = process
            .training_thread
            .map(|thread| of_thread(profile, thread));
        let is_sampled = sampled.is_some_and(|own| !own.is_empty());
        is_sampled.then(|| (ProcessId::from_index(at), rank, world_size))
    })
    .collect()
}

fn worker(
    profile: &Profile,
    tracks: &TrackSummary,
    process: ProcessId,
    rank: u32,
    world: Option<u32>,
) -> Worker {
    let device = device_of(tracks, process).ok();
    let thread = profile.process(process).and_then(|it| it.training_thread);
    let own = thread.map_or(Vec::new(), |thread| of_thread(profile, thread));
    let pace = pace(profile, process, &own, device);
    let mut metrics = Vec::new();
    // As itwinai: of the main worker alone.
    if rank == 0 {
        metrics.extend(epochs(profile, &pace));
    }
    let of_device = device.map_or(Vec::new(), |device| gpu(profile, device));
    let mut params = vec![
        ("strategy", strategy(&pace, world).to_owned()),
        ("global_rank", rank.to_string()),
    ];
    params.extend(world.map(|world| ("global_world_size", world.to_string())));
    if !of_device.is_empty() {
        params.push(("probing_interval", "1".to_owned()));
    }
    metrics.extend(of_device);
    let main = if rank == 0 { " (main)" } else { "" };
    Worker {
        name: format!("worker_{rank}{main}"),
        rank,
        params,
        metrics,
        started_ms: wall_ms(profile, profile.start_ns),
        ended_ms: wall_ms(profile, profile.end_ns),
    }
}

/// itwinai's name of a strategy, where it has one.
fn strategy(pace: &Pace, world: Option<u32>) -> &'static str {
    match (pace.strategy.as_deref(), world) {
        (Some("DDP"), _) => "torch-ddp",
        (Some("DeepSpeed"), _) => "deepspeed",
        (Some("Horovod"), _) => "horovod",
        (Some("FSDP"), _) => "torch-fsdp",
        (Some("Megatron"), _) => "megatron",
        (Some("DataParallel"), _) => "torch-dp",
        (None, Some(1)) => "non-distributed",
        _ => "unknown",
    }
}

/// The wall clock at a time, ms since 1970.
fn wall_ms(profile: &Profile, at_ns: u64) -> i64 {
    profile.wall_ns(at_ns).unwrap_or(0) / 1_000_000
}

fn epochs(profile: &Profile, pace: &Pace) -> Vec<Metric> {
    let epochs = pace.epochs.iter().zip(0..);
    epochs
        .map(|(epoch, step)| Metric {
            key: "epoch_time_s",
            value: epoch.end_ns.saturating_sub(epoch.start_ns) as f64 / 1e9,
            timestamp_ms: wall_ms(profile, epoch.end_ns),
            step,
        })
        .collect()
}

/// Means of whole seconds: their sum is the energy, however often the driver was asked.
fn gpu(profile: &Profile, device: &Device) -> Vec<Metric> {
    let length_ns = profile.end_ns.saturating_sub(profile.start_ns);
    let seconds = (length_ns / SECOND_NS).min(MOST_SECONDS) as usize;
    let power = device
        .figure(TrackKind::Energy)
        .or(device.figure(TrackKind::Power));
    let figures = [
        ("gpu_power_W", power, 1.0),
        (
            "gpu_utilization_percent",
            device.figure(TrackKind::Utilization),
            100.0,
        ),
    ];
    let mut metrics = Vec::new();
    for (key, figure, factor) in figures {
        let Some(figure) = figure else { continue };
        let values = every(profile, figure.track, SECOND_NS as f64, seconds);
        metrics.extend(
            values
                .into_iter()
                .zip(0_u64..)
                .filter_map(|(value, second)| {
                    let end_ns = profile.start_ns.saturating_add((second + 1) * SECOND_NS);
                    Some(Metric {
                        key,
                        value: value? * factor,
                        timestamp_ms: wall_ms(profile, end_ns),
                        step: i64::try_from(second).ok()?,
                    })
                }),
        );
    }
    metrics
}
