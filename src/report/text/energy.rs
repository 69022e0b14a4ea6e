//! Energy of GPUs: of the run, of ranks, epochs, steps and phases.

use super::format::{count, seconds};
use super::{role, wrapped};
use crate::analysis::Analysis;
use crate::analysis::energy::curve::Joules;
use crate::analysis::energy::{DeviceEnergy, RankEnergy};
use crate::analysis::lanes::Device;
use crate::model::profile::Profile;

/// Devices, epochs and phases that are listed.
const DEVICES: usize = 8;
const EPOCHS: usize = 4;
const PHASES: usize = 4;

/// Nothing where no device has an energy counter.
pub(super) fn energy(out: &mut String, profile: &Profile, analysis: &Analysis) {
    let energy = &analysis.energy;
    if energy.devices.is_empty() {
        return;
    }
    out.push_str("\nENERGY of the whole device (estimate, by its energy counter)\n");
    for device in energy.devices.iter().take(DEVICES) {
        let known = analysis.lanes.devices.iter();
        let label = known
            .clone()
            .find(|known| known.id == device.gpu)
            .map_or_else(|| "?".to_owned(), |known: &Device| known.info.label());
        wrapped(out, &of_device(&label, device), "| ");
        for rank in energy.ranks.iter().filter(|rank| rank.gpu == device.gpu) {
            of_rank(out, profile, rank);
        }
    }
    match energy.devices.len().saturating_sub(DEVICES) {
        0 => {}
        more => out.push_str(&format!("  and {more} more\n")),
    }
}

fn of_device(label: &str, device: &DeviceEnergy) -> Vec<String> {
    let length_s = device.covered_ns as f64 / 1e9;
    let mut facts = vec![format!(
        "  GPU {label} {} in {}, {:.0} W",
        joules(device.joules),
        seconds(device.covered_ns),
        device.joules / length_s.max(1e-9)
    )];
    match (device.idle_w, device.idle_j()) {
        (Some(watts), Some(idle)) => {
            facts.push(format!(
                "idle baseline {} ({watts:.0} W, as seen for {})",
                joules(idle),
                seconds(device.idle_ns)
            ));
            facts.push(format!(
                "above it {}",
                joules((device.joules - idle).max(0.0))
            ));
        }
        _ => facts.push("idle baseline not seen".to_owned()),
    }
    facts
}

fn of_rank(out: &mut String, profile: &Profile, rank: &RankEnergy) {
    let info = profile.processes.get(rank.process.index());
    let name = info.map_or_else(String::new, |process| role(process.role));
    let mut facts = Vec::new();
    if rank.shared {
        facts.push("shared with other processes".to_owned());
    }
    if let Some(step) = &rank.step {
        let steps = count(rank.steps);
        facts.push(format!("{} a step ({steps} steps)", bounded(step)));
    }
    let known = rank.epochs.iter().enumerate();
    let known: Vec<(usize, &Joules)> = known
        .filter_map(|(at, told)| Some((at + 1, told.as_ref()?)))
        .collect();
    let listed = known.iter().take(EPOCHS);
    facts.extend(listed.map(|(number, energy)| format!("epoch {number}: {}", bounded(energy))));
    if let Some(more @ 1..) = known.len().checked_sub(EPOCHS) {
        facts.push(format!("{more} more epochs"));
    }
    for phase in rank.phases.iter().take(PHASES) {
        let name = profile.phase_name(phase.phase);
        facts.push(match &phase.energy {
            Some(energy) => format!("{name} {}", bounded(energy)),
            None => format!("{name} not resolved"),
        });
    }
    if let Some(first) = facts.first_mut() {
        first.insert_str(0, &format!("    {name}: "));
        wrapped(out, &facts, "| ");
    }
}

fn bounded(energy: &Joules) -> String {
    format!(
        "{} ({} .. {})",
        joules(energy.joules),
        number(energy.low),
        number(energy.high)
    )
}

fn joules(value: f64) -> String {
    format!("{} J", number(value))
}

fn number(value: f64) -> String {
    if value < 99.95 {
        format!("{value:.1}")
    } else {
        count(value.round() as u64)
    }
}
