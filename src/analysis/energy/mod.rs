//! Energy of GPUs: of the run, of epochs, steps and ranks, and of phases where they last for long
//! enough.
//!
//! All of it is the device's, whoever used it, and an estimate: the sensor behind the counter looks
//! at part of the time only (on A100 and H100 about a quarter, arXiv 2312.02741).

pub mod curve;

use super::gpu_overlay::device_of;
use super::lanes::{Device, LaneSummary, spans};
use super::of_thread;
use super::progress::{Step, epochs, steps};
use crate::model::category::Phase;
use crate::model::ids::{GpuId, ProcessId, ThreadId};
use crate::model::lane::LaneKind;
use crate::model::profile::Profile;
use curve::{Curve, Joules, STEP_NS};

/// Time without a kernel that a baseline needs.
const BASELINE_NS: u64 = 1_000_000_000;
/// Part of a phase's time that must lie in visits that are long enough.
const LONG_ENOUGH: f64 = 0.5;
/// Epochs that are listed.
const MOST_EPOCHS: usize = 1000;

/// Energy of one device over the recording.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceEnergy {
    /// The device.
    pub gpu: GpuId,
    /// All of it, J, in `covered_ns`.
    pub joules: f64,
    /// See `joules`.
    pub covered_ns: u64,
    /// Power while no kernel ran, W; `None` where the device was never idle for a second, or its
    /// utilization is not known.
    pub idle_w: Option<f64>,
    /// For how long that was measured, ns.
    pub idle_ns: u64,
}

impl DeviceEnergy {
    /// What it would have taken without any kernel, J.
    pub fn idle_j(&self) -> Option<f64> {
        Some(self.idle_w? * self.covered_ns as f64 / 1e9)
    }
}

/// Energy of a phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhaseEnergy {
    /// The phase.
    pub phase: Phase,
    /// Its time on the host.
    pub host_ns: u64,
    /// The device's energy meanwhile; `None` where it is not resolved.
    pub energy: Option<Joules>,
}

/// Energy of the device of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct RankEnergy {
    /// The process.
    pub process: ProcessId,
    /// Its device.
    pub gpu: GpuId,
    /// Whether other processes use the device, too: the energy is theirs as well.
    pub shared: bool,
    /// Per step, over all steps that were seen whole.
    pub step: Option<Joules>,
    /// How many these are.
    pub steps: u64,
    /// Of epochs that were seen whole; `None` of one that readings do not cover.
    pub epochs: Vec<Option<Joules>>,
    /// Of phases, most time first.
    pub phases: Vec<PhaseEnergy>,
}

/// Energy of all devices and ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Energy {
    /// By device.
    pub devices: Vec<DeviceEnergy>,
    /// By rank.
    pub ranks: Vec<RankEnergy>,
}

/// Energy of the devices that have a counter, and of `ranks` that use one of them.
pub fn energy(profile: &Profile, lanes: &LaneSummary, ranks: &[(ProcessId, ThreadId)]) -> Energy {
    let curve = |device: &Device| {
        let figure = device.figure(LaneKind::Energy)?;
        Curve::new(profile, figure.lane)
    };
    let of_device = |device: &Device| {
        let curve = curve(device)?;
        let (idle_w, idle_ns) = idle_power(profile, device, &curve);
        Some(DeviceEnergy {
            gpu: device.id,
            joules: curve.total(),
            covered_ns: curve.covered_ns(),
            idle_w,
            idle_ns,
        })
    };
    let of_rank = |&(process, thread): &(ProcessId, ThreadId)| {
        let device = device_of(lanes, process).ok()?;
        Some(rank(profile, device, &curve(device)?, process, thread))
    };
    Energy {
        devices: lanes.devices.iter().filter_map(of_device).collect(),
        ranks: ranks.iter().filter_map(of_rank).collect(),
    }
}

/// Mean power over stretches without any kernel, less the counter's step at either end.
fn idle_power(profile: &Profile, device: &Device, curve: &Curve) -> (Option<f64>, u64) {
    let Some(figure) = device.figure(LaneKind::Utilization) else {
        return (None, 0);
    };
    let mut stretches: Vec<(u64, u64)> = Vec::new();
    for span in spans(profile, figure.lane) {
        if span.bits > 0 {
            continue;
        }
        match stretches.last_mut() {
            Some((_, end_ns)) if span.start_ns <= end_ns.saturating_add(STEP_NS / 10) => {
                *end_ns = span.end_ns;
            }
            _ => stretches.push((span.start_ns, span.end_ns)),
        }
    }
    let (mut joules, mut ns) = (0.0, 0_u64);
    for (start_ns, end_ns) in stretches {
        let (from_ns, to_ns) = (start_ns.saturating_add(2 * STEP_NS), end_ns);
        if from_ns < to_ns
            && let Some(energy) = curve.between(from_ns, to_ns)
        {
            joules += energy.joules;
            ns = ns.saturating_add(to_ns - from_ns);
        }
    }
    let watts = joules / (ns as f64 / 1e9);
    ((ns >= BASELINE_NS).then_some(watts), ns)
}

fn rank(
    profile: &Profile,
    device: &Device,
    curve: &Curve,
    process: ProcessId,
    thread: ThreadId,
) -> RankEnergy {
    let steps = steps(profile, process);
    let step = per_step(curve, &steps);
    RankEnergy {
        process,
        gpu: device.id,
        shared: device
            .processes
            .iter()
            .any(|user| user.process != Some(process)),
        step: step.map(|(joules, _)| joules),
        steps: step.map_or(0, |(_, count)| count),
        epochs: epochs(profile, process)
            .into_iter()
            .take(MOST_EPOCHS)
            .map(|(from_ns, to_ns)| curve.between(from_ns, to_ns))
            .collect(),
        phases: phases(profile, curve, thread),
    }
}

/// Over all steps from the first to the last that readings cover.
fn per_step(curve: &Curve, steps: &[Step]) -> Option<(Joules, u64)> {
    let is_covered = |step: &&Step| curve.between(step.start_ns, step.end_ns).is_some();
    let from_ns = steps.iter().find(is_covered)?.start_ns;
    let to_ns = steps.iter().rfind(is_covered)?.end_ns;
    let is_inside = |step: &&Step| step.start_ns >= from_ns && step.end_ns <= to_ns;
    let count = steps.iter().filter(is_inside).count() as u64;
    let all = curve.between(from_ns, to_ns)?;
    if count == 0 || to_ns.saturating_sub(from_ns) < curve.shortest_ns() {
        return None;
    }
    let each = |joules: f64| joules / count as f64;
    let joules = Joules {
        joules: each(all.joules),
        low: each(all.low),
        high: each(all.high),
    };
    Some((joules, count))
}

/// A stretch of one phase.
struct Visit {
    phase: Phase,
    start_ns: u64,
    end_ns: u64,
}

fn phases(profile: &Profile, curve: &Curve, thread: ThreadId) -> Vec<PhaseEnergy> {
    let mut visits: Vec<Visit> = Vec::new();
    for sample in of_thread(profile, thread) {
        let end_ns = sample.start_ns.saturating_add(sample.weight_ns);
        match visits.last_mut() {
            Some(last) if last.phase == sample.phase && last.end_ns == sample.start_ns => {
                last.end_ns = end_ns;
            }
            _ => visits.push(Visit {
                phase: sample.phase,
                start_ns: sample.start_ns,
                end_ns,
            }),
        }
    }
    let mut phases: Vec<PhaseEnergy> = Phase::ALL
        .iter()
        .filter_map(|&phase| {
            let own: Vec<&Visit> = visits.iter().filter(|visit| visit.phase == phase).collect();
            let length = |visit: &&Visit| visit.end_ns.saturating_sub(visit.start_ns);
            let host_ns = own.iter().map(length).fold(0, u64::saturating_add);
            (host_ns > 0).then(|| PhaseEnergy {
                phase,
                host_ns,
                energy: of_visits(curve, &own, host_ns),
            })
        })
        .collect();
    phases.sort_by_key(|phase| (std::cmp::Reverse(phase.host_ns), phase.phase));
    phases
}

/// The energy of a phase's visits; `None` where most of its time is in short ones, or where
/// readings do not cover most of it.
fn of_visits(curve: &Curve, visits: &[&Visit], host_ns: u64) -> Option<Joules> {
    let mut sum = Joules::default();
    let (mut long_ns, mut covered_ns) = (0_u64, 0_u64);
    for visit in visits {
        let length_ns = visit.end_ns.saturating_sub(visit.start_ns);
        let Some(energy) = curve.between(visit.start_ns, visit.end_ns) else {
            continue;
        };
        covered_ns = covered_ns.saturating_add(length_ns);
        if length_ns >= curve.shortest_ns() {
            long_ns = long_ns.saturating_add(length_ns);
        }
        sum.joules += energy.joules;
        sum.low += energy.low;
        sum.high += energy.high;
    }
    let most = |ns: u64, share: f64| ns as f64 >= share * host_ns as f64;
    (most(long_ns, LONG_ENOUGH) && most(covered_ns, 0.9)).then_some(sum)
}
