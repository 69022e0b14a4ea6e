//! Energy of GPUs: of the run, of ranks, epochs, steps and phases.

use super::format::{joules, seconds};
use super::table::TextTable;
use super::wrapped;
use crate::analysis::Analysis;
use crate::analysis::energy::DeviceEnergy;
use crate::model::profile::Profile;
use crate::report::tables::energy::{ENERGY, of_rank};

/// Maximum number of listed devices, epochs and phases.
const DEVICES: usize = 8;
const EPOCHS: usize = 4;
const PHASES: usize = 4;

/// Appends nothing if no device has an energy counter.
pub(super) fn energy(out: &mut String, profile: &Profile, analysis: &Analysis) {
    let energy = &analysis.energy;
    if energy.devices.is_empty() {
        return;
    }
    out.push_str("\nENERGY of the whole device (estimate, by its energy counter)\n");
    let listed = energy.devices.iter().take(DEVICES);
    for device in listed.clone() {
        wrapped(out, &of_device(device), "| ");
    }
    match energy.devices.len().saturating_sub(DEVICES) {
        0 => {}
        more => out.push_str(&format!("  and {more} more\n")),
    }
    let is_listed = |gpu| listed.clone().any(|device| (device.gpu, device.mig) == gpu);
    let mut rows = Vec::new();
    let mut more = 0;
    for rank in &energy.ranks {
        if !is_listed((rank.gpu, rank.mig)) {
            continue;
        }
        let (step, epochs, phases) = of_rank(profile, rank);
        more += epochs.len().saturating_sub(EPOCHS) + phases.len().saturating_sub(PHASES);
        rows.extend(step);
        rows.extend(epochs.into_iter().take(EPOCHS));
        rows.extend(phases.into_iter().take(PHASES));
    }
    if rows.is_empty() {
        return;
    }
    let table = TextTable::new(ENERGY, &rows);
    table.head(out);
    for row in &rows {
        table.row(out, row);
    }
    table.more(out, more);
}

fn of_device(device: &DeviceEnergy) -> Vec<String> {
    let length_s = device.covered_ns as f64 / 1e9;
    let label = match device.mig {
        Some(mig) => format!("{}:{mig}", device.gpu),
        None => device.gpu.to_string(),
    };
    let mut facts = vec![format!(
        "  GPU {label} {} J in {}, {:.0} W",
        joules(device.joules),
        seconds(device.covered_ns),
        device.joules / length_s.max(1e-9)
    )];
    match (device.idle_w, device.idle_j, device.above_idle_j) {
        (Some(watts), Some(idle), Some(above)) => {
            facts.push(format!(
                "idle baseline {} J ({watts:.0} W, as seen for {})",
                joules(idle),
                seconds(device.idle_ns)
            ));
            facts.push(format!("above it {} J", joules(above)));
        }
        _ => facts.push("idle baseline not seen".to_owned()),
    }
    facts
}
