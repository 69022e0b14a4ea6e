//! The part of the schema on energy. All of it is an estimate, and the device's, whoever used it.

use crate::analysis::Analysis;
use crate::analysis::energy::curve::Joules;
use crate::analysis::energy::{DeviceEnergy, RankEnergy};
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use crate::report::tables::gpu_idle::{Bounds, who};
use schemars::JsonSchema;
use serde::Serialize;

/// Energy by device and rank.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Energy {
    /// True: the sensor behind the counter sees part of the time only.
    pub estimate: bool,
    /// Devices with an energy counter.
    pub devices: Vec<OfDevice>,
    /// Ranks whose device has one.
    pub ranks: Vec<OfRank>,
}

/// Energy of a device over the recording.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct OfDevice {
    /// The driver's number.
    pub gpu: u32,
    /// The number of a MIG instance.
    pub mig: Option<u32>,
    /// `GPU-…`.
    pub uuid: String,
    /// Energy.
    pub energy_j: f64,
    /// In so many seconds.
    pub energy_s: f64,
    /// Power while no kernel ran; null where that was not seen.
    pub idle_w: Option<f64>,
    /// `idle_w` over `energy_s`.
    pub idle_j: Option<f64>,
    /// The rest.
    pub above_idle_j: Option<f64>,
}

/// An estimate with its bounds.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
pub struct Amount {
    /// The estimate.
    pub energy_j: f64,
    /// Its bounds.
    pub interval: Bounds,
}

/// Energy of a rank's device.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct OfRank {
    /// The process.
    pub pid: i32,
    /// Its rank.
    pub rank: Option<u32>,
    /// The device, by the driver's number.
    pub gpu: u32,
    /// The number of a MIG instance.
    pub mig: Option<u32>,
    /// Whether others use the device, too.
    pub shared: bool,
    /// Per step; null where steps are not known or too short.
    pub step: Option<Amount>,
    /// Steps that `step` is the mean of.
    pub steps: u64,
    /// Epochs that were seen whole; null of one that was not measured.
    pub epochs: Vec<Option<Amount>>,
    /// Phases.
    pub phases: Vec<OfPhase>,
}

/// Energy of the device during a phase.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct OfPhase {
    /// The phase.
    pub phase: String,
    /// Its time on the host.
    pub host_s: f64,
    /// Energy; null where it is not resolved.
    pub energy: Option<Amount>,
}

/// Null where no device has a counter.
pub(super) fn energy(profile: &Profile, analysis: &Analysis) -> Option<Energy> {
    let energy = &analysis.energy;
    (!energy.devices.is_empty()).then(|| Energy {
        estimate: true,
        devices: energy
            .devices
            .iter()
            .map(|device| of_device(profile, device))
            .collect(),
        ranks: energy
            .ranks
            .iter()
            .map(|rank| of_rank(profile, rank))
            .collect(),
    })
}

fn of_device(profile: &Profile, device: &DeviceEnergy) -> OfDevice {
    let info = profile.lanes.gpus.get(device.gpu.index());
    let idle_j = device.idle_j();
    OfDevice {
        gpu: info.map_or(0, |info| info.index),
        mig: info.and_then(|info| info.mig),
        uuid: info.map_or_else(String::new, |info| info.uuid.clone()),
        energy_j: device.joules,
        energy_s: seconds(device.covered_ns),
        idle_w: device.idle_w,
        idle_j,
        above_idle_j: idle_j.map(|idle| (device.joules - idle).max(0.0)),
    }
}

fn of_rank(profile: &Profile, rank: &RankEnergy) -> OfRank {
    let info = profile.lanes.gpus.get(rank.gpu.index());
    let (pid, number) = who(profile, rank.process);
    OfRank {
        pid,
        rank: number,
        gpu: info.map_or(0, |info| info.index),
        mig: info.and_then(|info| info.mig),
        shared: rank.shared,
        step: rank.step.map(amount),
        steps: rank.steps,
        epochs: rank.epochs.iter().map(|each| each.map(amount)).collect(),
        phases: rank
            .phases
            .iter()
            .map(|phase| OfPhase {
                phase: profile.phase_name(phase.phase).to_owned(),
                host_s: seconds(phase.host_ns),
                energy: phase.energy.map(amount),
            })
            .collect(),
    }
}

fn amount(energy: Joules) -> Amount {
    Amount {
        energy_j: energy.joules,
        interval: Bounds {
            low: energy.low,
            high: energy.high,
        },
    }
}
