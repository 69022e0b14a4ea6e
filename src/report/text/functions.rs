//! The training thread's functions and lines, and all threads.

use super::format::{column_seconds, count, cut, cut_front, percent, place, printable, share};
use super::tables::column;
use super::{WIDTH, line};
use crate::analysis::functions::{FunctionTime, LineTime};
use crate::analysis::intervals::Share;
use crate::analysis::summary::ProcessSummary;
use crate::model::ids::FunctionId;
use crate::model::profile::{Function, Profile};

pub(super) fn functions(
    out: &mut String,
    profile: &Profile,
    process: &ProcessSummary,
    rows: usize,
) {
    let hot = &process.hot;
    let wall_ns = process.wall_ns.max(1);
    user_lines(out, profile, process, rows);
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
        for (time, shares) in own.take(rows).zip(shares_of(&process.line_shares)) {
            let total = format!("{:>9} ", column_seconds(time.total_ns));
            line_time(out, profile, wall_ns, time, shares, &total);
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

/// Lines of the user's own code: where to begin.
pub(super) fn user_lines(
    out: &mut String,
    profile: &Profile,
    process: &ProcessSummary,
    rows: usize,
) {
    if process.user_lines.is_empty() || rows == 0 {
        return;
    }
    out.push_str("\nLINES OF YOUR CODE, with all that they call\n");
    let times = process.user_lines.iter().take(rows);
    for (time, share) in times.zip(shares_of(&process.user_line_shares)) {
        line_time(out, profile, process.wall_ns, time, share, "");
    }
}

/// As many as are known, and none for the rest.
fn shares_of(known: &[Share]) -> impl Iterator<Item = Option<&Share>> {
    known.iter().map(Some).chain(std::iter::repeat(None))
}

fn line_time(
    out: &mut String,
    profile: &Profile,
    wall_ns: u64,
    time: &LineTime,
    known: Option<&Share>,
    total: &str,
) {
    let Some(function) = profile.functions.get(time.function.index()) else {
        return;
    };
    let of_wall = time.self_ns as f64 / wall_ns.max(1) as f64;
    let self_share = match known {
        Some(known) => share(known, (of_wall * 1000.0).round() as u32),
        None => format!("{:>7}", percent(of_wall)),
    };
    let text = format!(
        "{:>9}  {self_share:<14}{total}{} {}",
        column_seconds(time.self_ns),
        place(function, time.line),
        printable(&function.name)
    );
    line(out, &[cut(&text, WIDTH)]);
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
