//! Idle time of the device by what the training thread executed.

use super::format::{count, seconds};
use super::table::TextTable;
use super::{line, sentence};
use crate::analysis::Analysis;
use crate::analysis::gpu_overlay::GpuIdle;
use crate::model::profile::Profile;
use crate::report::tables::gpu_idle::{GPU_IDLE, Idle, of_rank};

/// Maximum number of unresolved subjects that are named.
const UNRESOLVED: usize = 4;

/// Appends nothing without devices: the section on devices shows why there are none.
pub(super) fn gpu_idle(out: &mut String, profile: &Profile, analysis: &Analysis, rows: usize) {
    let Some(process) = analysis.primary() else {
        return;
    };
    let own = analysis
        .gpu_idle
        .iter()
        .find(|(id, _)| *id == process.process);
    match own {
        Some((_, Ok(idle))) => table(out, profile, analysis, idle, rows),
        Some((_, Err(why))) if !analysis.tracks.devices.is_empty() => {
            out.push('\n');
            let text = format!("GPU IDLE by line: unknown, {why}");
            sentence(out, "", &text);
        }
        _ => {}
    }
}

fn table(out: &mut String, profile: &Profile, analysis: &Analysis, idle: &GpuIdle, rows: usize) {
    let device = analysis
        .tracks
        .devices
        .iter()
        .find(|device| device.id == idle.gpu);
    let label = device.map_or(String::new(), |device| {
        format!("GPU {} ", device.info.label())
    });
    let window_ms = idle.window_ns as f64 / 1e6;
    out.push('\n');
    let head = format!(
        "{label}IDLE while the training thread was at (estimate, windows of {window_ms:.0} ms)"
    );
    line(out, &head);
    let found = of_rank(profile, analysis, idle);
    let table = TextTable::new(GPU_IDLE, &found);
    table.head(out);
    for kind in ["all", "phase", "line", "module"] {
        let of_kind = found.iter().filter(|row| row.kind == kind);
        let listed = of_kind.filter(|row| kind == "all" || row.seconds > Some(0.0));
        for each in listed.take(rows) {
            table.row(out, each);
        }
    }
    let is_short = |row: &&Idle| row.kind == "phase" && !row.resolved;
    let short: Vec<&Idle> = found.iter().filter(is_short).collect();
    if !short.is_empty() || idle.rows.is_empty() {
        let named: Vec<String> = short
            .iter()
            .take(UNRESOLVED)
            .map(|row| {
                format!(
                    "{} {}",
                    row.shown(),
                    seconds((row.host_s * 1e9).round() as u64)
                )
            })
            .collect();
        let more = match short.len().saturating_sub(UNRESOLVED) {
            0 => String::new(),
            more => format!(" and {} more", count(more as u64)),
        };
        let what = format!(
            "not resolved (shorter than 2 windows each time; no regression: {}): {}{more}",
            idle.refused,
            named.join(", ")
        );
        sentence(out, "  ", &what);
    }
    out.push_str("  Any kernel counts, those of NCCL and of other processes too.\n");
}
