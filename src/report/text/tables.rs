//! The training thread: rows, phases and activities, functions and lines, threads.

use super::format::{
    column_seconds, count, cut, cut_front, percent, place, printable, seconds, share,
};
use super::{WIDTH, line, role};
use crate::analysis::functions::{FunctionTime, LineTime};
use crate::analysis::rounding::per_mille;
use crate::analysis::summary::ProcessSummary;
use crate::model::category::{Activity, Phase, SummaryRow};
use crate::model::ids::FunctionId;
use crate::model::profile::{Function, Profile};

/// A row for people.
fn row_label(row: SummaryRow, profile: &Profile, process: &ProcessSummary) -> &'static str {
    match row {
        SummaryRow::HostComputation => process.computation_label(),
        SummaryRow::Communication => "communication",
        SummaryRow::Input => "input",
        SummaryRow::GpuWait => "waiting for the GPU",
        SummaryRow::OmpBarrier => "OpenMP barriers",
        SummaryRow::Python if !profile.run.reads_running_native() => "Python or native",
        SummaryRow::Python => "Python",
        SummaryRow::CpuWait => "waiting for a CPU",
        SummaryRow::Compile => "torch.compile",
        SummaryRow::Startup => "start-up",
        SummaryRow::Other => "other",
        SummaryRow::Unclassified => "unclassified",
    }
}

/// Rows that are left out where they are empty.
fn is_seldom(row: SummaryRow) -> bool {
    matches!(
        row,
        SummaryRow::OmpBarrier | SummaryRow::CpuWait | SummaryRow::Compile | SummaryRow::Startup
    )
}

pub(super) fn rows(out: &mut String, profile: &Profile, process: &ProcessSummary) {
    out.push('\n');
    let title = format!(
        "HOST WALL TIME of the training thread, {} ({}; not GPU time)",
        role(process.role),
        seconds(process.wall_ns)
    );
    line(out, &[title]);
    let parts: Vec<u64> = process.rows.iter().map(|&(_, ns, _)| ns).collect();
    let shares = per_mille(&parts);
    // Where the two differ, both are given: the verdict's are of the time after start-up.
    let later_ns = process.wall_ns.saturating_sub(process.startup_ns);
    let both = process.startup_ns.saturating_mul(200) >= process.wall_ns && later_ns > 0;
    if both {
        let later = format!("% after start-up ({})", seconds(later_ns));
        line(out, &[format!("{:<34}% of all    {later}", "")]);
    }
    for (index, (row, ns, interval)) in process.rows.iter().enumerate() {
        if *ns == 0 && is_seldom(*row) {
            continue;
        }
        let at = process.row_lines.get(index).copied().flatten();
        let place = at.map_or(String::new(), |at| row_place(profile, at, *ns));
        let later = process.after_startup.get(index).filter(|_| both);
        let later = later.map_or(String::new(), |later| {
            format!("{:>8}", percent(later.value))
        });
        let text = format!(
            "  {:<19}{:>8} s {:<13}{later}  {place}",
            row_label(*row, profile, process),
            column_seconds(*ns),
            share(interval, shares.get(index).copied().unwrap_or(0)),
        );
        line(out, &[cut(&text, WIDTH)]);
    }
    line(
        out,
        &[format!(
            "  {:<19}{:>8} s {:>7}",
            "total",
            column_seconds(process.wall_ns),
            "100.0 %"
        )],
    );
    notes(out, process);
}

fn row_place(profile: &Profile, at: LineTime, row_ns: u64) -> String {
    // A line that holds little of its row would point the wrong way.
    if at.total_ns.saturating_mul(5) < row_ns || row_ns == 0 {
        return String::new();
    }
    let part = at.total_ns.min(row_ns) as f64 / row_ns as f64;
    profile
        .functions
        .get(at.function.index())
        .map_or(String::new(), |function| {
            format!("{:.0} % at {}", part * 100.0, place(function, at.line))
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
            &[format!(
                "  Few samples ({}): record for longer.",
                count(process.ticks)
            )],
        );
    }
    let unseen = process.life_ns.saturating_sub(process.wall_ns);
    if unseen > process.life_ns / 50 && unseen > 100_000_000 {
        line(
            out,
            &[format!(
                "  {} of the thread's life were not sampled.",
                seconds(unseen)
            )],
        );
    }
}

pub(super) fn itwinai(out: &mut String, process: &ProcessSummary) {
    let parts = [process.itwinai.computation_ns, process.itwinai.other_ns];
    let shares = per_mille(&parts);
    out.push_str("\nCOMPUTATION VERSUS OTHER (host analogue of itwinai's computation_fraction)\n");
    for ((label, ns), share) in ["computation", "other"].into_iter().zip(parts).zip(shares) {
        line(
            out,
            &[format!(
                "  {label:<20}{:>9} s {:>7}",
                column_seconds(ns),
                percent(f64::from(share) / 1000.0)
            )],
        );
    }
    out.push_str(
        "  itwinai counts device time by operator; this is the host's time in operators.\n",
    );
}

/// Short names for columns.
pub(super) fn column(activity: Activity) -> &'static str {
    match activity {
        Activity::AtenCompute => "aten",
        Activity::Gemm => "gemm",
        Activity::Dispatch => "dispatch",
        Activity::Autograd => "autograd",
        Activity::GpuLaunch => "launch",
        Activity::GpuSync => "gpu sync",
        Activity::GpuCopy => "gpu copy",
        Activity::GpuAlloc => "gpu mem",
        Activity::CollectiveCall => "coll",
        Activity::CollectiveWait => "collwait",
        Activity::Python => "python",
        Activity::GilWait => "gil wait",
        Activity::LockWait => "lock",
        Activity::Io => "io",
        Activity::OmpIdle => "omp idle",
        Activity::CpuWait => "cpu wait",
        Activity::Sleep => "sleep",
        Activity::NativeOther => "native",
        Activity::Unclassified => "unknown",
    }
}

/// Activities with a column of their own, or one more where that is all; the rest share one. 80 columns hold no more.
const COLUMNS: usize = 5;

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

    // Cells are rounded together, so that they sum to 100; sums are those of the rounded cells.
    let columns = activities.len() + usize::from(!rest.is_empty());
    let cells: Vec<u64> = phases
        .iter()
        .flat_map(|&phase| {
            let own = activities
                .iter()
                .map(move |&activity| matrix.cell(phase, activity));
            let others = rest
                .iter()
                .map(|&activity| matrix.cell(phase, activity))
                .sum();
            own.chain((!rest.is_empty()).then_some(others))
                .collect::<Vec<u64>>()
        })
        .collect();
    let rounded = per_mille(&cells);
    out.push_str("\nPHASE x ACTIVITY, % of all wall time of the training thread\n");
    let names = phases.iter().map(|&phase| profile.phase_name(phase));
    let width = names.map(|name| name.chars().count()).fold(13, usize::max);
    let mut header = format!("  {:<width$}{:>7}", "", "all");
    for &activity in &activities {
        header.push_str(&format!("{:>9}", column(activity)));
    }
    if !rest.is_empty() {
        header.push_str(&format!("{:>7}", "rest"));
    }
    line(out, &[header]);
    let mut totals = vec![0_u32; columns];
    for (&phase, cells) in phases.iter().zip(rounded.chunks(columns.max(1))) {
        for (total, cell) in totals.iter_mut().zip(cells) {
            *total += cell;
        }
        let label = format!("{:<width$}", profile.phase_name(phase));
        matrix_line(out, &label, cells, activities.len());
    }
    matrix_line(
        out,
        &format!("{:<width$}", "all"),
        &totals,
        activities.len(),
    );
    if !rest.is_empty() {
        let names: Vec<&str> = rest.iter().map(|&activity| column(activity)).collect();
        line(out, &[cut(&format!("  rest: {}", names.join(", ")), WIDTH)]);
    }
}

fn matrix_line(out: &mut String, label: &str, cells: &[u32], own: usize) {
    let tenths = |value: u32| {
        if value == 0 {
            "-".to_owned()
        } else {
            format!("{}.{}", value / 10, value % 10)
        }
    };
    let mut text = format!("  {label}{:>7}", tenths(cells.iter().sum()));
    for (index, &cell) in cells.iter().enumerate() {
        let width = if index < own { 9 } else { 7 };
        text.push_str(&format!("{:>width$}", tenths(cell)));
    }
    line(out, &[text]);
}

pub(super) fn functions(
    out: &mut String,
    profile: &Profile,
    process: &ProcessSummary,
    rows: usize,
) {
    let hot = &process.hot;
    let wall_ns = process.wall_ns.max(1);
    if !hot.python.is_empty() {
        out.push_str("\nPYTHON FUNCTIONS (self: with the native code they call)\n");
        out.push_str("   self s   self %  total s  function\n");
        for time in hot.python.iter().filter(|time| time.self_ns > 0).take(rows) {
            let text = |function: &Function| {
                let at = place(function, function.first_line);
                with_place(&printable(&function.name), &at)
            };
            timed(
                out,
                profile,
                (time.function, time.self_ns, time.total_ns),
                wall_ns,
                text,
            );
        }
        out.push_str("\nPYTHON LINES\n   self s   self %         total s  line\n");
        let own = hot.lines.iter().filter(|time| time.self_ns > 0);
        for (index, time) in own.take(rows).enumerate() {
            let Some(function) = profile.functions.get(time.function.index()) else {
                continue;
            };
            let of_wall = time.self_ns as f64 / wall_ns as f64;
            let self_share = match process.line_shares.get(index) {
                Some(known) => share(known, (of_wall * 1000.0).round() as u32),
                None => format!("{:>7}", percent(of_wall)),
            };
            let at = place(function, time.line);
            let text = format!(
                "{:>9}  {self_share:<14}{:>9} {at} {}",
                column_seconds(time.self_ns),
                column_seconds(time.total_ns),
                printable(&function.name)
            );
            line(out, &[cut(&text, WIDTH)]);
        }
    }
    let native: Vec<&FunctionTime> = hot
        .native
        .iter()
        .filter(|time| time.self_ns > 0)
        .take(rows)
        .collect();
    if !native.is_empty() {
        out.push_str("\nNATIVE FUNCTIONS\n   self s   self %  total s  function\n");
        for time in native {
            let text = |function: &Function| cut(&printable(&function.short_name), NAME);
            timed(
                out,
                profile,
                (time.function, time.self_ns, time.total_ns),
                wall_ns,
                text,
            );
        }
    }
}

/// What is left for a name after the three columns of numbers.
const NAME: usize = WIDTH - 28;

fn with_place(name: &str, at: &str) -> String {
    let name = cut_front(name, NAME.saturating_sub(at.chars().count() + 1).max(12));
    cut(&format!("{name} {at}"), NAME)
}

fn timed(
    out: &mut String,
    profile: &Profile,
    (function, self_ns, total_ns): (FunctionId, u64, u64),
    wall_ns: u64,
    text: impl Fn(&Function) -> String,
) {
    let Some(function) = profile.functions.get(function.index()) else {
        return;
    };
    line(
        out,
        &[format!(
            "{:>9}{:>9}{:>9} {}",
            column_seconds(self_ns),
            percent(self_ns as f64 / wall_ns as f64),
            column_seconds(total_ns),
            text(function)
        )],
    );
}

pub(super) fn threads(out: &mut String, profile: &Profile, process: &ProcessSummary, rows: usize) {
    if process.threads.is_empty() {
        return;
    }
    out.push_str("\nTHREADS\n");
    line(
        out,
        &[format!(
            "  {:<38}{:>9}{:>9}  {}",
            "thread", "wall s", "cpu s", "mostly"
        )],
    );
    for thread in process.threads.iter().take(rows) {
        let Some(info) = profile.threads.get(thread.thread.index()) else {
            continue;
        };
        let name = cut(
            &format!("{} {} ({})", info.tid, printable(&info.name), thread.role),
            38,
        );
        line(
            out,
            &[format!(
                "  {name:<38}{:>9}{:>9}  {} {:.0} %",
                column_seconds(thread.wall_ns),
                column_seconds(thread.cpu_ns),
                column(thread.main_activity),
                thread.main_share * 100.0
            )],
        );
    }
    let left = process.threads.len().saturating_sub(rows);
    if left > 0 {
        let cpu_ns: u64 = process
            .threads
            .iter()
            .skip(rows)
            .map(|thread| thread.cpu_ns)
            .sum();
        line(
            out,
            &[format!(
                "  {:<38}{:>9}{:>9}",
                format!("{} more", count(left as u64)),
                "",
                column_seconds(cpu_ns)
            )],
        );
    }
}
