//! How fast a rank trains: epochs, steps, energy of its device, and what divides the work.

use crate::analysis::energy::curve::Curve;
use crate::analysis::progress::{Paced, paced};
use crate::analysis::tracks::Device;
use crate::model::category::SummaryRow;
use crate::model::ids::{ProcessId, StackId};
use crate::model::profile::{Profile, ProfileSample};
use crate::model::reduction::{EpochPace, MOST_EPOCHS, MOST_PARTS, Pace, StepPart};
use crate::model::track::TrackKind;
use rustc_hash::FxHashSet;

/// Code that divides the work of a step among ranks, by its path, in the order in which it is
/// asked: DeepSpeed and Horovod may wrap the others. Source: torch 2.15, DeepSpeed 0.18, Horovod
/// 0.28, Megatron-Core 0.14.
const STRATEGIES: &[(&str, &str)] = &[
    ("/deepspeed/runtime/engine.py", "DeepSpeed"),
    ("/horovod/torch/", "Horovod"),
    ("/megatron/core/distributed/", "Megatron"),
    ("/torch/distributed/fsdp/", "FSDP"),
    ("/torch/distributed/_composable/fsdp/", "FSDP"),
    ("/torch/nn/parallel/distributed.py", "DDP"),
    ("/torch/nn/parallel/data_parallel.py", "DataParallel"),
];

/// Longest time between readings at points in time (`gpu/pace`).
const READING_NS: u64 = 2_000_000_000;

/// The file of the functions that import modules (CPython, Lib/importlib/_bootstrap.py, which is
/// frozen).
const IMPORT: &str = "<frozen importlib";

/// The pace of a process whose training thread has the samples `own`.
pub fn pace(
    profile: &Profile,
    process: ProcessId,
    own: &[&ProfileSample],
    device: Option<&Device>,
) -> Pace {
    let paced = paced(profile, process);
    let timed = paced
        .steps
        .iter()
        .filter(|(_, left_out)| left_out.is_none());
    let steps: Vec<(u64, u64)> = timed
        .map(|(step, _)| (step.start_ns, step.end_ns))
        .collect();
    let samples_a_step = paced.batch_size.zip(paced.batches_per_step);
    Pace {
        strategy: strategy(profile, own).map(str::to_owned),
        epochs: epochs(profile, &paced, device),
        parts: parts(&steps),
        samples_a_step: samples_a_step.and_then(|(size, batches)| size.checked_mul(batches)),
        utilization: device.map_or(Vec::new(), |device| utilization(profile, device, &steps)),
    }
}

/// By the code that runs in training: that of other strategies is imported, too.
fn strategy(profile: &Profile, own: &[&ProfileSample]) -> Option<&'static str> {
    let trains = own
        .iter()
        .filter(|sample| sample.row != SummaryRow::Startup);
    let stacks: FxHashSet<StackId> = trains.filter_map(|sample| sample.stack).collect();
    let mut files: FxHashSet<&str> = FxHashSet::default();
    for stack in stacks {
        let frames = profile.stacks.leaf_to_root(Some(stack));
        let functions = frames.filter_map(|frame| {
            let function = profile.stacks.frame(frame).function;
            profile.function(function).filter(|it| it.is_python)
        });
        let own: Vec<&str> = functions.map(|it| it.file.as_str()).collect();
        // Modules are imported when they are first used, in the midst of training, too.
        if !own.iter().any(|file| file.starts_with(IMPORT)) {
            files.extend(own);
        }
    }
    let is_seen = |part: &str| files.iter().any(|file| file.contains(part));
    let found = STRATEGIES.iter().find(|(part, _)| is_seen(part));
    found.map(|&(_, name)| name)
}

fn epochs(profile: &Profile, paced: &Paced, device: Option<&Device>) -> Vec<EpochPace> {
    let curve = device.and_then(|device| {
        let figure = device.figure(TrackKind::Energy)?;
        Curve::new(profile, figure.track)
    });
    // Where nothing is known of a part, more epochs may have begun in it.
    let timed = paced.epochs.iter().filter(|pass| pass.is_followed);
    let timed = timed.filter(|pass| profile.is_known(pass.start_ns, pass.end_ns));
    let kept = timed.take(MOST_EPOCHS);
    kept.map(|pass| {
        let energy = curve
            .as_ref()
            .and_then(|curve| curve.between(pass.start_ns, pass.end_ns));
        EpochPace {
            start_ns: pass.start_ns,
            end_ns: pass.end_ns,
            steps: pass.steps,
            samples: paced
                .batch_size
                .and_then(|size| size.checked_mul(pass.batches)),
            energy_j: energy.map(|energy| energy.joules),
        }
    })
    .collect()
}

fn parts(steps: &[(u64, u64)]) -> Vec<StepPart> {
    let count = steps.len().min(MOST_PARTS);
    let part = |at: usize| {
        let (from, to) = (at * steps.len() / count, (at + 1) * steps.len() / count);
        let own = steps.get(from..to).unwrap_or_default();
        StepPart {
            steps: own.len() as u32,
            ns: own
                .iter()
                .map(|(start, end)| end.saturating_sub(*start))
                .sum(),
        }
    };
    (0..count).map(part).collect()
}

/// Means over parts of equal time, none shorter than a window of the driver: neighbours would be
/// the same reading.
fn utilization(profile: &Profile, device: &Device, steps: &[(u64, u64)]) -> Vec<f64> {
    let (Some(&(from, _)), Some(&(_, to))) = (steps.first(), steps.last()) else {
        return Vec::new();
    };
    let Some(figure) = device.figure(TrackKind::Utilization) else {
        return Vec::new();
    };
    let window_ns = if figure.window_ns > 0 {
        figure.window_ns
    } else {
        READING_NS
    };
    let length = to.saturating_sub(from);
    let count = (length / window_ns).min(MOST_PARTS as u64);
    let at = |part: u64| from + (u128::from(length) * u128::from(part) / u128::from(count)) as u64;
    let parts = (0..count).map(|part| at(part)..at(part + 1));
    parts
        .filter_map(|time| device.mean(profile, TrackKind::Utilization, time))
        .collect()
}
