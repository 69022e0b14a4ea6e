//! What the device did while the training thread was where.

use super::format::{column_seconds, count, cut, place, printable, seconds};
use super::{WIDTH, line, sentence};
use crate::analysis::Analysis;
use crate::analysis::gpu_overlay::account::Part;
use crate::analysis::gpu_overlay::{GpuIdle, IdleRow, Subject};
use crate::model::profile::Profile;

/// Things that are named as not resolved.
const UNRESOLVED: usize = 4;
/// Columns for a name.
const NAME: usize = WIDTH - 42;

/// Nothing without devices: the part on them says why there are none.
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
        Some((_, Err(why))) if !analysis.lanes.devices.is_empty() => {
            out.push('\n');
            let text = format!("GPU IDLE by line: not told, {why}");
            sentence(out, "", &text);
        }
        _ => {}
    }
}

fn table(out: &mut String, profile: &Profile, analysis: &Analysis, idle: &GpuIdle, rows: usize) {
    let device = analysis
        .lanes
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
    line(out, &[head]);
    out.push_str("   idle s    least     most   host s  where\n");
    row(out, &idle.all, "all of its time");
    for kind in [is_phase as fn(&IdleRow) -> bool, is_line, is_module] {
        let of_kind = idle.rows.iter().filter(|row| kind(row));
        let listed = of_kind.filter(|row| row.part.amount > 0.0);
        for each in listed.take(rows) {
            row(out, &each.part, &name(profile, each.subject));
        }
    }
    let short: Vec<&IdleRow> = idle.unresolved.iter().filter(|row| is_phase(row)).collect();
    if !short.is_empty() || idle.rows.is_empty() {
        let named: Vec<String> = short
            .iter()
            .take(UNRESOLVED)
            .map(|row| {
                let host = seconds(row.part.host_ns);
                format!("{} {host}", name(profile, row.subject))
            })
            .collect();
        let more = match short.len().saturating_sub(UNRESOLVED) {
            0 => String::new(),
            more => format!(" and {} more", count(more as u64)),
        };
        let what = format!(
            "not resolved (shorter than 2 windows each time): {}{more}",
            named.join(", ")
        );
        sentence(out, "  ", &what);
    }
    out.push_str("  Any kernel counts, those of NCCL and of other processes too.\n");
}

fn row(out: &mut String, part: &Part, name: &str) {
    let text = if part.resolved {
        format!(
            "{:>9}{:>9}{:>9}{:>9}  {}",
            column(part.amount),
            column(part.low),
            column(part.high),
            column_seconds(part.host_ns),
            cut(name, NAME)
        )
    } else {
        let host = column_seconds(part.host_ns);
        format!("{:>27}{host:>9}  {}", "not resolved", cut(name, NAME))
    };
    line(out, &[text]);
}

fn column(ns: f64) -> String {
    column_seconds(ns.max(0.0) as u64)
}

fn is_phase(row: &IdleRow) -> bool {
    matches!(row.subject, Subject::Phase(_))
}

fn is_line(row: &IdleRow) -> bool {
    matches!(row.subject, Subject::Line(_))
}

fn is_module(row: &IdleRow) -> bool {
    matches!(row.subject, Subject::Module(_))
}

fn name(profile: &Profile, subject: Subject) -> String {
    match subject {
        Subject::Phase(phase) => profile.phase_name(phase).to_owned(),
        Subject::Line((function, line)) => {
            let function = profile.functions.get(function.index());
            function.map_or(String::new(), |function| {
                format!("{} {}", place(function, line), printable(&function.name))
            })
        }
        Subject::Module(id) => {
            let module = profile.nn_modules.get(id.index());
            let name = module.map_or(String::new(), |module| match module.path.as_str() {
                "" => module.root.clone(),
                path => path.to_owned(),
            });
            format!("module {}", printable(&name))
        }
    }
}
