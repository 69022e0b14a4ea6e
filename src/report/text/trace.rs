//! A trace of torch.profiler, for people.

use super::format::{count, counted, cut, percent, printable, seconds, short_time};
use super::table::{TextTable, table};
use super::{By, Detail, TextOptions, WIDTH, line, sentence, wrapped};
use crate::analysis::Analysis;
use crate::analysis::traced::{Joined, Traced};
use crate::model::profile::Profile;
use crate::report::table::Column;
use crate::report::tables::trace::collectives::{COLLECTIVES, collectives};
use crate::report::tables::trace::devices::{IDLE, TracedDevice, devices, idle};
use crate::report::tables::trace::kernels::{COPIES, KERNELS, copies, details, kernels};
use crate::report::tables::trace::operators::{OPERATORS, SHAPES, operators, shapes, shown_shapes};
use crate::report::tables::trace::{SAMPLED_IDLE, are_of_steps, sampled_idle};
use crate::trace::advice::{Advice, Slow, advice};
use crate::trace::{StepMark, TraceSummary};

/// Rows of tables of devices where only a screen is filled.
const FEW: usize = 4;

/// The tables of a trace, which is all that is reported on.
pub fn render_trace(trace: &TraceSummary, options: TextOptions) -> String {
    let mut out = String::new();
    head(&mut out, trace);
    tables(&mut out, trace, options);
    out
}

/// The same beside a recording, after its own report.
pub(super) fn beside(out: &mut String, profile: &Profile, traced: &Traced, options: TextOptions) {
    let has_own = |by| matches!(by, By::Operator | By::Shape | By::Kernel);
    if !options.by.is_none_or(has_own) {
        return;
    }
    out.push('\n');
    head(out, &traced.trace);
    if let Ok(joined) = &traced.joined {
        let (start, end) = joined.window;
        let since_start = |ns: u64| seconds(ns.saturating_sub(profile.start_ns));
        let text = format!(
            "It is of {} to {} of the recording, whose samples then are of the slower program.",
            since_start(start),
            since_start(end)
        );
        sentence(out, "", &text);
    }
    tables(out, &traced.trace, options);
    match &traced.joined {
        Ok(joined) => during_gaps(out, profile, joined, options),
        Err(why) => {
            let text = format!("Not joined with the recording: {}.", why.text());
            sentence(out, "", &text);
        }
    }
}

/// What `record --trace` recorded of other processes, and what it did not.
pub(super) fn missing(out: &mut String, profile: &Profile, analysis: &Analysis) {
    if analysis.traced_ranks.len() > 1 {
        let ranks = analysis.traced_ranks.iter().flatten();
        let ranks: Vec<String> = ranks.map(u32::to_string).collect();
        let text = format!(
            "The recording has traces of ranks {}: --trace-rank N shows one.",
            ranks.join(", ")
        );
        sentence(out, "", &text);
    }
    for (process, why) in &analysis.without_trace {
        let pid = profile.process(*process).map(|process| process.info.pid);
        let of = pid.map_or(String::new(), |pid| format!(" of process {pid}"));
        let text = format!(
            "No trace of torch.profiler{of} (--trace): {}.",
            printable(why)
        );
        sentence(out, "", &text);
    }
}

/// What samples show while a device was idle.
fn during_gaps(out: &mut String, profile: &Profile, joined: &Joined, options: TextOptions) {
    let found = sampled_idle(profile, joined);
    if found.is_empty() {
        return;
    }
    line(
        out,
        "\nDEVICE IDLE, and the next kernel not yet launched: samples of the host",
    );
    let rows = if options.by.is_some() {
        usize::MAX
    } else {
        options.rows
    };
    table(out, SAMPLED_IDLE, &found, rows);
}

/// What the trace is of, and what is not in it.
fn head(out: &mut String, trace: &TraceSummary) {
    wrapped(out, &facts(trace), "| ");
    sentence(
        out,
        "",
        "Disturbed: torch.profiler adds time to every call. These times are never mixed with sampled ones.",
    );
    for missing in trace.missing() {
        sentence(out, "", &format!("WARNING: {missing}"));
    }
}

/// Whose trace it is, and how long.
pub(crate) fn facts(trace: &TraceSummary) -> Vec<String> {
    let head = &trace.head;
    let mut facts = vec!["trace of torch.profiler".to_owned()];
    facts.extend(head.pid.map(|pid| format!("pid {pid}")));
    if !head.host.is_empty() {
        facts.push(format!("host {}", printable(&head.host)));
    }
    facts.extend(head.rank.map(|rank| match head.world_size {
        Some(size) => format!("rank {rank}/{size}"),
        None => format!("rank {rank}"),
    }));
    facts.push(seconds(trace.window.1 - trace.window.0));
    facts.push(steps(trace));
    facts
}

/// `3 whole steps of 0.15 s`.
fn steps(trace: &TraceSummary) -> String {
    let steps = &trace.steps;
    let Some(mean_ns) = steps.mean_ns() else {
        return "no steps are marked".to_owned();
    };
    let by = match steps.mark {
        StepMark::Optimizer => " (between ends of Optimizer.step)",
        _ if steps.cut => ", and one that is cut",
        _ => "",
    };
    let whole = counted(steps.whole.len() as u64, "whole step");
    format!("{whole} of {}{by}", short_time(mean_ns))
}

/// The tables that are asked for.
pub(super) fn tables(out: &mut String, trace: &TraceSummary, options: TextOptions) {
    let is_full = options.detail == Detail::Full;
    let rows = match (options.by, is_full) {
        (Some(_), _) => usize::MAX,
        (None, true) => options.rows,
        (None, false) => options.rows.min(FEW),
    };
    let is_asked = |by: By| options.by.is_none_or(|asked| asked == by);
    if is_asked(By::Kernel) {
        for device in devices(trace) {
            device_time(out, trace, &device);
        }
        statements(out, trace);
    }
    if is_asked(By::Operator) {
        let found = operators(trace);
        if found.is_empty() {
            line(out, "\nOPERATORS  The trace has no operator.");
        } else {
            line(out, &format!("\nOPERATORS {}, on the host", extent(trace)));
            let rows = if is_full { rows } else { options.rows };
            table(
                out,
                OPERATORS,
                &in_steps(found, |row| row.calls_in_steps),
                rows,
            );
        }
    }
    if options.by == Some(By::Shape) || options.by.is_none() && is_full {
        by_shape(out, trace, rows);
    }
    if is_asked(By::Kernel) {
        on_devices(out, trace, rows);
    }
}

/// What calls and times of tables are of.
pub(crate) fn extent(trace: &TraceSummary) -> &'static str {
    match are_of_steps(trace) {
        true => "in whole steps",
        false => "in the traced time",
    }
}

/// The rows without those that are not in whole steps at all.
fn in_steps<R>(mut rows: Vec<R>, calls: fn(&R) -> Option<u64>) -> Vec<R> {
    rows.retain(|row| calls(row) != Some(0));
    rows
}

fn by_shape(out: &mut String, trace: &TraceSummary, rows: usize) {
    let found = shapes(trace);
    let text = format!(
        "\nOPERATORS BY SHAPE of their inputs, {}, on the host",
        extent(trace)
    );
    line(out, &text);
    if found.iter().all(|row| row.shapes.is_none()) {
        line(
            out,
            "  Shapes were not recorded: profile(record_shapes=True).",
        );
        return;
    }
    two_lines(
        out,
        SHAPES,
        &in_steps(found, |row| row.calls_in_steps),
        rows,
        shown_shapes,
    );
}

/// A table whose rows have a second line, which is set in.
fn two_lines<R>(
    out: &mut String,
    columns: &'static [Column<R>],
    rows: &[R],
    most: usize,
    second: fn(&R) -> String,
) {
    let table = TextTable::new(columns, rows);
    table.head(out);
    for row in rows.iter().take(most) {
        table.row(out, row);
        let text = second(row);
        if !text.is_empty() {
            line(out, &cut(&format!("{:>12}{}", "", printable(&text)), WIDTH));
        }
    }
    table.rest(out, rows.get(most..).unwrap_or_default());
}

/// Collectives, kernels, copies and idle time.
fn on_devices(out: &mut String, trace: &TraceSummary, rows: usize) {
    let found = collectives(trace);
    if !found.is_empty() {
        let text = format!(
            "\nCOLLECTIVES {}, waits for other ranks included",
            extent(trace)
        );
        line(out, &text);
        table(out, COLLECTIVES, &found, rows);
    }
    if trace.devices.is_empty() {
        line(out, "\nDEVICES  The trace has no event of a device.");
        return;
    }
    line(out, &format!("\nKERNELS launched {}", extent(trace)));
    let found = in_steps(kernels(trace), |row| row.calls_in_steps);
    two_lines(out, KERNELS, &found, rows, details);
    let found = copies(trace);
    if !found.is_empty() {
        line(out, &format!("\nCOPIES launched {}", extent(trace)));
        two_lines(out, COPIES, &found, rows, details);
    }
    let found = idle(trace);
    if !found.is_empty() {
        line(out, "\nDEVICE IDLE, and the next kernel not yet launched");
        table(out, IDLE, &found, rows);
    }
}

fn device_time(out: &mut String, trace: &TraceSummary, device: &TracedDevice) {
    let name = device.name.as_deref();
    let name = name.map_or(String::new(), |name| format!(" {}", printable(name)));
    let of = match trace.steps.whole.is_empty() {
        true => "from its first event to its last",
        false => "in whole steps",
    };
    let (number, window_s) = (device.device, device.window_s);
    line(
        out,
        &format!("\nDEVICE {number}{name}, {window_s:.2} s {of}"),
    );
    let share = |part_s: f64| percent(part_s / device.window_s.max(1e-9));
    let hidden = match device.communication_s > 0.0 {
        true => format!(
            "{} of it while computing",
            percent(device.overlap_s / device.communication_s)
        ),
        false => match trace.head.world_size {
            Some(ranks) if ranks > 1 => format!("no kernel is known as such; {ranks} ranks"),
            _ => String::new(),
        },
    };
    for (label, part_s, more) in [
        ("computation", device.compute_s, String::new()),
        ("communication", device.communication_s, hidden),
        ("copies alone", device.copies_s, String::new()),
        ("idle", device.idle_s, String::new()),
        (
            "  next not launched",
            device.idle_not_launched_s,
            String::new(),
        ),
        ("  next launched", device.idle_launched_s, String::new()),
    ] {
        let text = format!("  {label:<19}{part_s:>9.3} s{:>9}  {more}", share(part_s));
        line(out, text.trim_end());
    }
    let mut facts = vec![counted(device.kernels, "kernel")];
    facts.extend(
        device
            .kernels_per_step
            .map(|per| format!("{per:.1} per step")),
    );
    if device.kernels_with_call > 0 {
        let short = device.shorter_than_call as f64 / device.kernels_with_call as f64;
        let of = match device.kernels_with_call == device.kernels {
            true => String::new(),
            false => format!(" of the {} compared", count(device.kernels_with_call)),
        };
        facts.push(format!(
            "{}{of} shorter than their launch call",
            percent(short)
        ));
    }
    sentence(out, "  ", &facts.join(", "));
    if let (Some(median), Some(high)) = (device.launch_latency_us, device.launch_latency_p95_us) {
        let text = format!(
            "launch latency while it was idle: median {median:.1} us, 95 % below {high:.1} us, of {} launches",
            count(device.launch_latencies)
        );
        sentence(out, "  ", &text);
    }
}

fn statements(out: &mut String, trace: &TraceSummary) {
    for advice in advice(trace) {
        let text = match advice {
            Advice::Unaligned(slow) => format!(
                "16-bit products with a dimension that is no multiple of 8: {}; tensor cores are used best, or only, where all are multiples of 8",
                slow_shapes(trace, &slow)
            ),
            Advice::OneRow(slow) => format!(
                "products with one row (a batch of 1, or one query of attention): {}; reading the other factor bounds them",
                slow_shapes(trace, &slow)
            ),
            Advice::ShortKernels {
                device,
                short,
                kernels,
                not_launched_ns,
                idle_ns,
                window_ns,
            } => {
                let share = |ns: u64| percent(ns as f64 / window_ns.max(1) as f64);
                format!(
                    "{} of {} kernels of device {device} are shorter than the call that launches them; it was idle for {}, for {} before a launch had ended: a CUDA graph can save at most the first, fusing also time of kernels",
                    count(short),
                    count(kernels),
                    share(idle_ns),
                    share(not_launched_ns)
                )
            }
        };
        out.push('\n');
        sentence(out, "", &format!("SLOW {text}."));
    }
}

/// `12 calls of 2 shapes, 3.4 % of kernel time; most aten::mm [[8,3],[3,5]]`.
fn slow_shapes(trace: &TraceSummary, slow: &Slow) -> String {
    let most = trace.host_keys.get(slow.key as usize);
    let most = most.map_or(String::new(), |key| format!("{} {}", key.name, key.shapes));
    format!(
        "{} of {}, {} of the time of kernels; most: {most}",
        counted(slow.calls, "call"),
        counted(slow.shapes, "shape"),
        percent(slow.device_ns as f64 / slow.of_ns.max(1) as f64),
    )
}
