//! Energy of GPUs: of the run, of epochs, steps and ranks, and of phases that last long enough.
//!
//! It is the energy of the device, whoever used it, and an estimate: the sensor behind the counter
//! measures only part of the time (on A100 and H100 about a quarter, arXiv 2312.02741).

pub mod curve;

use super::gpu_overlay::device_of;
use super::intervals::Bounds;
use super::of_thread;
use super::progress::{Step, epochs, steps};
use super::tracks::{Device, DeviceProcess, TrackSummary, spans};
use crate::model::category::Phase;
use crate::model::ids::{ProcessId, ThreadId};
use crate::model::profile::Profile;
use crate::model::seconds;
use crate::model::track::TrackKind;
use curve::{Curve, Joules, STEP_NS};
use schemars::JsonSchema;
use serde::Serialize;

/// Minimum time without a kernel for a baseline, ns.
const BASELINE_NS: u64 = 1_000_000_000;
/// Minimum part of a phase's time in visits that are long enough.
const LONG_ENOUGH: f64 = 0.5;
/// Epochs that are listed.
const MOST_EPOCHS: usize = 1000;

/// Energy of a device over the recording.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
#[schemars(rename = "OfDevice")]
pub struct DeviceEnergy {
    /// The driver's number.
    pub gpu: u32,
    /// The number of a MIG instance.
    pub mig: Option<u32>,
    /// `GPU-…`.
    pub uuid: String,
    /// Energy.
    #[serde(rename = "energy_j")]
    pub joules: f64,
    /// Time that the energy covers.
    #[serde(rename = "energy_s", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub covered_ns: u64,
    /// Power while no kernel ran; null if no such time was seen.
    pub idle_w: Option<f64>,
    /// Time over which `idle_w` was measured.
    #[serde(skip)]
    pub idle_ns: u64,
    /// `idle_w` over `energy_s`.
    pub idle_j: Option<f64>,
    /// `energy_j` minus `idle_j`.
    pub above_idle_j: Option<f64>,
}

/// Energy of the device during a phase.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
#[schemars(rename = "OfPhase")]
pub struct PhaseEnergy {
    /// The phase.
    pub phase: String,
    /// Its time on the host.
    #[serde(rename = "host_s", serialize_with = "seconds::serialize")]
    #[schemars(with = "f64")]
    pub host_ns: u64,
    /// Energy; null if it cannot be determined.
    pub energy: Option<Joules>,
}

/// Energy of a rank's device.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
#[schemars(rename = "OfRank")]
pub struct RankEnergy {
    /// Its id in the profile.
    #[serde(skip)]
    pub process: ProcessId,
    /// The process.
    pub pid: i32,
    /// Its rank.
    pub rank: Option<u32>,
    /// The device, by the driver's number.
    pub gpu: u32,
    /// The number of a MIG instance.
    pub mig: Option<u32>,
    /// Whether others use the device, too. In a container the driver lists the host's pids: the
    /// process itself may be the other then.
    pub shared: bool,
    /// The driver does not list the process, only its environment names the device.
    #[serde(skip)]
    pub hinted: bool,
    /// Per step; null if steps are not known or too short.
    pub step: Option<Joules>,
    /// Number of steps that `step` is the mean of.
    pub steps: u64,
    /// Epochs that are complete in the recording; null for one without an energy.
    pub epochs: Vec<Option<Joules>>,
    /// Phases by descending time on the host.
    pub phases: Vec<PhaseEnergy>,
}

/// Energy by device and rank.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct Energy {
    /// Always true: the sensor behind the counter measures only part of the time.
    pub estimate: bool,
    /// Devices with an energy counter.
    pub devices: Vec<DeviceEnergy>,
    /// Ranks whose device has one.
    pub ranks: Vec<RankEnergy>,
}

/// Energy of the devices that have a counter, and of `ranks` that use one of them.
pub fn energy(profile: &Profile, tracks: &TrackSummary, ranks: &[(ProcessId, ThreadId)]) -> Energy {
    let curve = |device: &Device| {
        let figure = device.figure(TrackKind::Energy)?;
        Curve::new(profile, figure.track)
    };
    let of_device = |device: &Device| {
        let curve = curve(device)?;
        let (idle_w, idle_ns) = idle_power(profile, device, &curve);
        let (joules, covered_ns) = (curve.total(), curve.covered_ns());
        let idle_j = idle_w.map(|watts| watts * covered_ns as f64 / 1e9);
        Some(DeviceEnergy {
            gpu: device.info.index,
            mig: device.info.mig,
            uuid: device.info.uuid.clone(),
            joules,
            covered_ns,
            idle_w,
            idle_ns,
            idle_j,
            above_idle_j: idle_j.map(|idle| (joules - idle).max(0.0)),
        })
    };
    let of_rank = |&(process, thread): &(ProcessId, ThreadId)| {
        let device = device_of(tracks, process).ok()?;
        Some(rank(profile, device, &curve(device)?, process, thread))
    };
    Energy {
        estimate: true,
        devices: tracks.devices.iter().filter_map(of_device).collect(),
        ranks: ranks.iter().filter_map(of_rank).collect(),
    }
}

/// Mean power over intervals without any kernel, shortened by the counter's update interval at
/// either end.
fn idle_power(profile: &Profile, device: &Device, curve: &Curve) -> (Option<f64>, u64) {
    let Some(figure) = device.figure(TrackKind::Utilization) else {
        return (None, 0);
    };
    let mut intervals: Vec<(u64, u64)> = Vec::new();
    for span in spans(profile, figure.track) {
        if span.bits > 0 {
            continue;
        }
        match intervals.last_mut() {
            Some((_, end_ns)) if span.start_ns <= end_ns.saturating_add(STEP_NS / 10) => {
                *end_ns = span.end_ns;
            }
            _ => intervals.push((span.start_ns, span.end_ns)),
        }
    }
    let (mut joules, mut ns) = (0.0, 0_u64);
    for (start_ns, end_ns) in intervals {
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
    let (pid, rank) = profile.pid_and_rank(process);
    let by_hint = |user: &DeviceProcess| user.process == Some(process) && user.hinted;
    RankEnergy {
        process,
        pid,
        rank,
        gpu: device.info.index,
        mig: device.info.mig,
        shared: device
            .processes
            .iter()
            .any(|user| user.process != Some(process)),
        hinted: device.processes.iter().any(by_hint),
        step: step.map(|(joules, _)| joules),
        steps: step.map_or(0, |(_, count)| count),
        epochs: epochs(profile, process)
            .iter()
            .filter(|pass| pass.is_followed)
            .take(MOST_EPOCHS)
            .map(|pass| curve.between(pass.start_ns, pass.end_ns))
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
        interval: Bounds {
            low: each(all.interval.low),
            high: each(all.interval.high),
        },
    };
    Some((joules, count))
}

/// An interval of one phase.
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
    let mut phases: Vec<(Phase, PhaseEnergy)> = Phase::ALL
        .iter()
        .filter_map(|&phase| {
            let own: Vec<&Visit> = visits.iter().filter(|visit| visit.phase == phase).collect();
            let length = |visit: &&Visit| visit.end_ns.saturating_sub(visit.start_ns);
            let host_ns = own.iter().map(length).fold(0, u64::saturating_add);
            let energy = PhaseEnergy {
                phase: profile.phase_name(phase).to_owned(),
                host_ns,
                energy: of_visits(curve, &own, host_ns),
            };
            (host_ns > 0).then_some((phase, energy))
        })
        .collect();
    phases.sort_by_key(|(phase, energy)| (std::cmp::Reverse(energy.host_ns), *phase));
    phases.into_iter().map(|(_, energy)| energy).collect()
}

/// The energy of a phase's visits; `None` if most of its time is in short visits, or readings do
/// not cover most of it.
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
        sum.interval.low += energy.interval.low;
        sum.interval.high += energy.interval.high;
    }
    // Bounds of many visits overlap, and together may be more than there was.
    sum.interval.high = sum.interval.high.min(curve.total()).max(sum.joules);
    let most = |ns: u64, share: f64| ns as f64 >= share * host_ns as f64;
    (most(long_ns, LONG_ENOUGH) && most(covered_ns, 0.9)).then_some(sum)
}
