//! The training thread's time by row, and by phase and activity.

use super::format::{column_seconds, count, cut, percent, place, seconds, share_of};
use super::{WIDTH, line, role};
use crate::analysis::functions::LineTime;
use crate::analysis::summary::ProcessSummary;
use crate::model::category::{Activity, Phase, SummaryRow};
use crate::model::profile::Profile;
use crate::report::part::row_name;

/// The label of a row, for people.
pub(crate) fn row_label(
    row: SummaryRow,
    profile: &Profile,
    process: &ProcessSummary,
) -> &'static str {
    match row {
        SummaryRow::HostComputation => process.computation_label(),
        SummaryRow::Python if !profile.run.reads_running_native() => "Python or native",
        row => row_name(row),
    }
}

/// Rows that are omitted if they are empty.
fn is_seldom(row: SummaryRow) -> bool {
    matches!(
        row,
        SummaryRow::OmpBarrier
            | SummaryRow::CpuWait
            | SummaryRow::Compile
            | SummaryRow::Startup
            | SummaryRow::Shutdown
    )
}

/// Without the rows below `least` of the time.
pub(super) fn rows(out: &mut String, profile: &Profile, process: &ProcessSummary, least: f64) {
    out.push('\n');
    let title = format!(
        "HOST WALL TIME of the training thread, {} ({}; not GPU time)",
        role(process.role),
        seconds(process.wall_ns)
    );
    line(out, &title);
    // Both figures are shown if they differ: the verdict uses the time after start-up and before
    // the interpreter's exit.
    let (startup_ns, shutdown_ns) = (process.startup_ns, process.shutdown_ns);
    let later_ns = process.wall_ns.saturating_sub(startup_ns + shutdown_ns);
    let is_worth = |ns: u64| ns.saturating_mul(200) >= process.wall_ns;
    let both = later_ns > 0 && (is_worth(startup_ns) || is_worth(shutdown_ns));
    if both {
        let which = match is_worth(shutdown_ns) {
            true => "% between start-up and exit",
            false => "% after start-up",
        };
        let later = format!("{which} ({})", seconds(later_ns));
        line(out, &format!("{:<34}% of all    {later}", ""));
    }
    for (index, (row, ns, interval)) in process.rows.iter().enumerate() {
        let is_small = (*ns as f64) < least * process.wall_ns as f64;
        if is_small || (*ns == 0 && is_seldom(*row)) {
            continue;
        }
        let later = process.after_startup.get(index).filter(|_| both);
        let later = later.map_or(String::new(), |later| {
            format!("{:>8}", percent(later.value))
        });
        let mut text = format!(
            "  {:<19}{:>8} s {:<13}{later}  ",
            row_label(*row, profile, process),
            column_seconds(*ns),
            share_of(interval),
        );
        if let Some(at) = process.row_lines.get(index).copied().flatten() {
            let room = WIDTH.saturating_sub(text.chars().count());
            text.push_str(&row_place(profile, at, *ns, room));
        }
        line(out, &cut(&text, WIDTH));
    }
    line(
        out,
        &format!(
            "  {:<19}{:>8} s {:>7}",
            "total",
            column_seconds(process.wall_ns),
            "100.0 %"
        ),
    );
    notes(out, process);
}

/// The line with most of a row, and how much of the row that is, if there is room for it.
fn row_place(profile: &Profile, at: LineTime, row_ns: u64, room: usize) -> String {
    // A line with little of its row's time would mislead.
    if at.total_ns.saturating_mul(5) < row_ns || row_ns == 0 {
        return String::new();
    }
    let part = at.total_ns as f64 / row_ns as f64;
    profile
        .function(at.function)
        .map_or(String::new(), |function| {
            let place = place(function, at.line);
            let text = format!("{:.0} % of it at {place}", part * 100.0);
            match text.chars().count() > room {
                true => format!("most at {place}"),
                false => text,
            }
        })
}

fn notes(out: &mut String, process: &ProcessSummary) {
    if process.cuda {
        out.push_str(
            "  CUDA is loaded: the host hands work to the GPU; these are not the GPU's times.\n",
        );
    }
    if process.nccl {
        out.push_str("  NCCL time is enqueue only; device communication not visible.\n");
    }
    if process.ticks < 100 {
        line(
            out,
            &format!(
                "  Few samples ({}): record for longer.",
                count(process.ticks)
            ),
        );
    }
    let unseen = process.life_ns.saturating_sub(process.wall_ns);
    if unseen > process.life_ns / 50 && unseen > 100_000_000 {
        line(
            out,
            &format!(
                "  {} of the thread's life were not sampled.",
                seconds(unseen)
            ),
        );
    }
}

pub(super) fn itwinai(out: &mut String, process: &ProcessSummary) {
    let parts = [process.itwinai.computation_ns, process.itwinai.other_ns];
    let total_ns = parts.iter().sum::<u64>().max(1) as f64;
    out.push_str("\nCOMPUTATION VERSUS OTHER (host analogue of itwinai's computation_fraction)\n");
    for (label, ns) in ["computation", "other"].into_iter().zip(parts) {
        line(
            out,
            &format!(
                "  {label:<20}{:>9} s {:>7}",
                column_seconds(ns),
                percent(ns as f64 / total_ns)
            ),
        );
    }
    out.push_str(
        "  itwinai counts device time by operator; this is the host's time in operators.\n",
    );
}

/// Activities with a column of their own, or one more if that covers all; the rest share one. 80
/// columns hold no more.
const COLUMNS: usize = 5;
/// A smaller share is less than a tenth of a percent, rounded.
const SHOWN: f64 = 0.0005;

pub(super) fn matrix(out: &mut String, profile: &Profile, process: &ProcessSummary) {
    let matrix = &process.matrix;
    if matrix.total() == 0 {
        return;
    }
    let mut activities: Vec<Activity> = Activity::ALL
        .iter()
        .copied()
        .filter(|&activity| matrix.activity(activity) > 0)
        .collect();
    activities.sort_by_key(|&activity| (std::cmp::Reverse(matrix.activity(activity)), activity));
    let rest = if activities.len() > COLUMNS + 1 {
        activities.split_off(COLUMNS)
    } else {
        Vec::new()
    };
    let mut phases: Vec<Phase> = profile
        .phases()
        .filter(|&phase| matrix.phase(phase) > 0)
        .collect();
    phases.sort_by_key(|&phase| (std::cmp::Reverse(matrix.phase(phase)), phase));

    // The activities that share a column come last.
    let of_phase = |phase: Phase| -> Vec<u64> {
        let own = activities.iter();
        let mut cells: Vec<u64> = own.map(|&activity| matrix.cell(phase, activity)).collect();
        let others = rest.iter().map(|&activity| matrix.cell(phase, activity));
        cells.extend((!rest.is_empty()).then(|| others.sum::<u64>()));
        cells
    };
    let share = |ns: u64| ns as f64 / matrix.total() as f64;
    out.push_str("\nPHASE x ACTIVITY, % of all wall time of the training thread\n");
    let names = phases.iter().map(|&phase| profile.phase_name(phase));
    let width = names.map(|name| name.chars().count()).fold(13, usize::max);
    let mut header = format!("  {:<width$}{:>7}", "", "all");
    for &activity in &activities {
        header.push_str(&format!("{:>9}", activity.label()));
    }
    if !rest.is_empty() {
        header.push_str(&format!("{:>7}", "rest"));
    }
    line(out, &header);
    let mut totals = vec![0_u64; activities.len() + usize::from(!rest.is_empty())];
    for &phase in &phases {
        let cells = of_phase(phase);
        for (total, cell) in totals.iter_mut().zip(&cells) {
            *total += cell;
        }
        let shares: Vec<f64> = cells.into_iter().map(share).collect();
        if shares.iter().all(|&share| share < SHOWN) {
            continue;
        }
        let label = format!("{:<width$}", profile.phase_name(phase));
        let all = share(matrix.phase(phase));
        matrix_line(out, &label, all, &shares, activities.len());
    }
    let totals: Vec<f64> = totals.into_iter().map(share).collect();
    let label = format!("{:<width$}", "all");
    matrix_line(out, &label, 1.0, &totals, activities.len());
    if !rest.is_empty() {
        let names: Vec<&str> = rest.iter().map(|&activity| activity.label()).collect();
        line(out, &cut(&format!("  rest: {}", names.join(", ")), WIDTH));
    }
}

fn matrix_line(out: &mut String, label: &str, all: f64, cells: &[f64], own: usize) {
    let tenths = |share: f64| match share < SHOWN {
        true => "-".to_owned(),
        false => format!("{:.1}", share * 100.0),
    };
    let mut text = format!("  {label}{:>7}", tenths(all));
    for (index, &cell) in cells.iter().enumerate() {
        let width = if index < own { 9 } else { 7 };
        text.push_str(&format!("{:>width$}", tenths(cell)));
    }
    line(out, &text);
}
