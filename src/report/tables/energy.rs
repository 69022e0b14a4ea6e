//! Energy of devices, and of ranks by step, epoch and phase. All of it is an estimate of the
//! device's energy, whoever used it.

use crate::analysis::Analysis;
use crate::analysis::energy::curve::Joules;
use crate::analysis::energy::{DeviceEnergy, RankEnergy};
use crate::analysis::intervals::Bounds;
use crate::model::profile::Profile;
use crate::model::seconds::of as seconds;
use crate::report::label::counted;
use crate::report::table::{Column, In, Kind};
use crate::report::text::role;

/// Energy of a device over an interval.
#[derive(Clone, Debug)]
pub struct Spent {
    /// The driver's number.
    pub gpu: u32,
    /// The number of a MIG instance.
    pub mig: Option<u32>,
    /// The process; null for the complete recording.
    pub pid: Option<i32>,
    pub rank: Option<u32>,
    /// `run`, `step`, `epoch` or `phase`.
    pub kind: &'static str,
    /// Number of the epoch, or the phase; for a step the number of steps that it is the mean of.
    pub name: String,
    /// For a phase its time on the host, for a run the time with readings.
    pub seconds: Option<f64>,
    /// Energy; null if it cannot be determined.
    pub energy: Option<Joules>,
    who: String,
}

type Col = Column<Spent>;

pub const ENERGY: &[Col] = &[
    Col::new(Kind::Number, "energy_j", "energy J", |row| {
        row.energy.map(|energy| energy.joules).into()
    }),
    Col::new(Kind::Number, "low", "least", |row| {
        row.energy.map(|energy| energy.interval.low).into()
    }),
    Col::new(Kind::Number, "high", "most", |row| {
        row.energy.map(|energy| energy.interval.high).into()
    }),
    Col::words(" of", |row| {
        let unknown = match row.energy {
            Some(_) => "",
            None => ": not resolved",
        };
        let kind = match row.kind {
            "phase" => String::new(),
            kind => format!("{kind} "),
        };
        format!(" {}, {kind}{}{unknown}", row.who, row.name).into()
    }),
    Col::new(Kind::Count, "gpu", "", |row| row.gpu.into()).only(In::Data),
    Col::data(Kind::Count, "mig", |row| row.mig.into()),
    Col::data(Kind::Count, "pid", |row| row.pid.into()),
    Col::data(Kind::Count, "rank", |row| row.rank.into()),
    Col::data(Kind::Text, "kind", |row| row.kind.into()),
    Col::data(Kind::Text, "name", |row| (&row.name).into()),
    Col::data(Kind::Seconds, "seconds", |row| row.seconds.into()),
];

/// All devices, then all ranks.
pub fn energy(profile: &Profile, analysis: &Analysis) -> Vec<Spent> {
    let energy = &analysis.energy;
    let ranks = energy.ranks.iter().flat_map(|rank| {
        let (steps, epochs, phases) = of_rank(profile, rank);
        steps.into_iter().chain(epochs).chain(phases)
    });
    energy.devices.iter().map(of_device).chain(ranks).collect()
}

fn of_device(device: &DeviceEnergy) -> Spent {
    Spent {
        gpu: device.gpu,
        mig: device.mig,
        pid: None,
        rank: None,
        kind: "run",
        name: device.uuid.clone(),
        seconds: Some(seconds(device.covered_ns)),
        energy: Some(Joules {
            joules: device.joules,
            interval: Bounds {
                low: device.joules,
                high: device.joules,
            },
        }),
        who: String::new(),
    }
}

/// For a rank: a step, epochs with an energy, and phases.
pub fn of_rank(profile: &Profile, rank: &RankEnergy) -> (Option<Spent>, Vec<Spent>, Vec<Spent>) {
    let process = profile.process(rank.process);
    let mut who = process.map_or_else(String::new, |process| role(process.role));
    match (rank.shared, rank.hinted) {
        (true, false) => who.push_str(" (shared with other processes)"),
        (true, true) => who.push_str(" (perhaps shared: the driver lists other pids)"),
        (false, _) => {}
    }
    let row = |kind, name, seconds, energy| Spent {
        gpu: rank.gpu,
        mig: rank.mig,
        pid: Some(rank.pid),
        rank: rank.rank,
        kind,
        name,
        seconds,
        energy,
        who: who.clone(),
    };
    let step = rank.step.map(|energy| {
        row(
            "step",
            format!("({})", counted(rank.steps, "step")),
            None,
            Some(energy),
        )
    });
    let epochs = rank.epochs.iter().zip(1..);
    let epochs = epochs.filter_map(|(energy, number)| {
        let energy = (*energy)?;
        Some(row("epoch", format!("{number}"), None, Some(energy)))
    });
    let phases = rank.phases.iter().map(|phase| {
        let host_s = Some(seconds(phase.host_ns));
        row("phase", phase.phase.clone(), host_s, phase.energy)
    });
    (step, epochs.collect(), phases.collect())
}
