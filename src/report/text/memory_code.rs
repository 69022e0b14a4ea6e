//! What code did to memory, by process.

use super::format::{count, counted, percent, place, printable, short_time};
use super::table::table;
use super::tracks::bytes;
use super::{line, sentence};
use crate::analysis::Analysis;
use crate::analysis::memory_code::{Peak, ProcessMemory, held};
use crate::analysis::step_peaks::{StepPeaks, step_peaks};
use crate::model::profile::{Profile, Role};
use crate::report::dump::memory::held_by;
use crate::report::label::process_labels;
use crate::report::tables::memory::{self as rows, LINES, OPERATORS, PHASES, RaisedRow};

/// Most processes with tables.
const MOST: usize = 8;
/// Rows with less than this part of all rises are not listed.
const LEAST: f64 = 0.005;

/// The memory of all processes, by code.
pub(super) fn memory(out: &mut String, profile: &Profile, analysis: &Analysis, most: usize) {
    let labels = process_labels(profile);
    for memory in analysis.memory.iter().take(MOST) {
        let label = labels.get(memory.process.index());
        let label = label.map_or("a process", String::as_str);
        line(
            out,
            &format!(
                "\nMEMORY BY CODE of {label}: host memory that is neither of files nor shared"
            ),
        );
        process(out, profile, memory, most);
        held_of(out, profile, memory, label);
    }
    for memory in analysis.allocated.iter().take(MOST) {
        let label = labels.get(memory.process.index());
        let label = label.map_or("a process", String::as_str);
        line(
            out,
            &format!("\nDEVICE MEMORY BY CODE of {label}: what torch's allocator gave to tensors"),
        );
        process(out, profile, memory, most);
        if let Some(peaks) = step_peaks(profile, memory.process) {
            of_steps(out, &peaks);
        }
    }
    let all = analysis.memory.len().max(analysis.allocated.len());
    let more = all.saturating_sub(MOST);
    if more > 0 {
        let more = counted(more as u64, "process");
        line(out, &format!("\n{more} more: --json, --csv memory_lines"));
    }
}

fn process(out: &mut String, profile: &Profile, memory: &ProcessMemory, most: usize) {
    head(out, profile, memory);
    if memory.raised <= 0.0 {
        line(
            out,
            "  It never rose by 64 kB or more between two readings.",
        );
        return;
    }
    let shown = |mut all: Vec<RaisedRow>| {
        let of = |part: f64, all: f64| part > 0.0 && part >= LEAST * all;
        let is_worth = |row: &RaisedRow| {
            of(row.raised_bytes, memory.raised) || of(row.fell_bytes, memory.fell)
        };
        all.retain(is_worth);
        all
    };
    let lines = shown(rows::lines_of(profile, memory));
    line(
        out,
        "  Raised: an estimate; `certain` of it came between two samples in the same row.",
    );
    table(out, LINES, &lines, most);
    let operators = shown(rows::operators_of(profile, memory));
    if operators.len() > 1 {
        table(out, OPERATORS, &operators, most);
    }
    let phases = shown(rows::phases_of(profile, memory));
    if phases.len() > 1 {
        table(out, PHASES, &phases, most);
    }
}

fn head(out: &mut String, profile: &Profile, memory: &ProcessMemory) {
    let length = short_time(memory.to_ns.saturating_sub(memory.from_ns));
    let net = memory.last as f64 - memory.first as f64;
    let sign = if net < 0.0 { "-" } else { "+" };
    let net = format!("{sign}{}", bytes(net.abs()));
    let of_all = format!(
        "raised {}, fell {}",
        bytes(memory.raised),
        bytes(memory.fell)
    );
    let text = match memory.net_per_step() {
        Some(each) => {
            let sign = if each < 0.0 { "-" } else { "+" };
            format!(
                "{} at the end; in {} of {length}: {net} ({sign}{} a step), {of_all}",
                bytes(memory.last as f64),
                counted(memory.steps, "step"),
                bytes(each.abs()),
            )
        }
        None => format!(
            "{} at the end; in {length} after start-up: {net}, {of_all}",
            bytes(memory.last as f64)
        ),
    };
    sentence(out, "  ", &text);
    sentence(out, "  ", &peak(profile, memory, &memory.peak));
}

/// `peak 830 MB after 12 s, in step 119, forward, at train.py:41 main, in aten::zeros`.
fn peak(profile: &Profile, memory: &ProcessMemory, peak: &Peak) -> String {
    let facts = &profile.facts;
    let mut text = format!(
        "peak {} after {}",
        bytes(peak.bytes as f64),
        short_time(peak.time_ns.saturating_sub(profile.start_ns)),
    );
    if let Some(step) = peak.step {
        text.push_str(&format!(", in step {}", count(step)));
    }
    text.push_str(&format!(", {}", profile.phase_name(peak.phase)));
    if let Some((function, at)) = facts.line(peak.stack)
        && let Some(function) = profile.function(function)
    {
        text.push_str(&format!(", at {} {}", place(function, at), function.name));
    }
    if let Some(operator) = facts.operators(peak.stack).next() {
        text.push_str(&format!(", in {}", facts.names.get(operator.name)));
    }
    let above = peak.bytes as f64 / (memory.last as f64).max(1.0) - 1.0;
    if above >= 0.01 && memory.last > 0 {
        text.push_str(&format!(": {} above the end", percent(above)));
    }
    text
}

/// How high the steps' peaks are, and what the highest was of.
fn of_steps(out: &mut String, peaks: &StepPeaks) {
    let size = |all: u64| bytes(all as f64);
    let text = format!(
        "highest reading of a step: median {}, most {} in step {}; the lowest: median {}",
        size(peaks.median_bytes),
        size(peaks.highest_bytes),
        count(peaks.highest_step),
        size(peaks.lowest_median_bytes),
    );
    sentence(out, "  ", &text);
    if let Some(parts) = &peaks.parts {
        let rest = match parts.gradients_most_bytes {
            0 => size(parts.others_most_bytes),
            _ => format!(
                "{} to {}",
                size(parts.others_least_bytes),
                size(parts.others_most_bytes)
            ),
        };
        let text = format!(
            "of the {} of step {}: parameters {}, optimizer state {}, buffers {}, gradients up to {}; activations, batches and temporary tensors {rest}",
            size(parts.bytes),
            count(parts.step),
            size(parts.parameters_bytes),
            size(parts.optimizer_state_bytes),
            size(parts.buffers_bytes),
            size(parts.gradients_most_bytes),
        );
        sentence(out, "  ", &text);
    }
}

/// What modules and optimizers of a trainer held, or why that is not known.
fn held_of(out: &mut String, profile: &Profile, memory: &ProcessMemory, label: &str) {
    let role = profile.process(memory.process).map(|process| process.role);
    if !matches!(role, Some(Role::Trainer { .. })) {
        return;
    }
    let kept = held(profile, memory.process);
    match kept.as_ref().map(|kept| (kept.time_ns, &kept.result)) {
        Some((time_ns, Ok(held))) => {
            let when = match time_ns.checked_sub(profile.start_ns) {
                Some(after) => format!("after {}", short_time(after)),
                None => "read before this part".to_owned(),
            };
            line(
                out,
                &format!("\nHELD by modules and optimizers of {label}, {when}"),
            );
            held_by(out, held);
        }
        Some((_, Err(why))) => {
            let why = printable(why);
            line(
                out,
                &format!("\nHELD by modules and optimizers: not read, {why}"),
            );
        }
        None => {
            let why = match profile.is_confidential {
                true => "names are hidden",
                false => "the recording is shorter than 4 s, or older than this table",
            };
            line(
                out,
                &format!("\nHELD by modules and optimizers: not known, {why}"),
            );
        }
    }
}
