//! A trace of torch.profiler in the page: its rows on the time axis, and what it is in words.

use super::columns::{Column, Columns};
use crate::analysis::Analysis;
use crate::analysis::traced::time_in_recording;
use crate::model::profile::Profile;
use crate::model::seconds;
use crate::report::label::{LONG, clean, process_labels};
use crate::report::text::trace::facts;
use crate::trace::{DrawnKind, RowOf, TraceSummary};
use rustc_hash::FxHashMap;
use serde::Serialize;

/// What of a trace is drawn.
#[derive(Debug, Serialize)]
pub(super) struct Drawn {
    /// Index of the traced process; null where the trace is not on the recording's time axis.
    process: Option<usize>,
    /// When torch.profiler ran, us since the start.
    window_us: Option<(f64, f64)>,
    /// Names of spans, and their kinds as indices into `kinds`.
    names: Vec<String>,
    kind: Vec<usize>,
    kinds: Vec<&'static str>,
    rows: Vec<Row>,
    /// What is not drawn.
    pub(super) notes: Vec<String>,
}

/// A row; its columns are `trace.N.…`.
#[derive(Debug, Serialize)]
struct Row {
    /// Device and stream, or a thread.
    of: String,
    label: String,
    depth: usize,
    grain_us: f64,
}

/// The statement about the trace: when torch.profiler ran, and what that means.
pub(super) fn statement(profile: &Profile, analysis: &Analysis) -> Option<String> {
    let traced = analysis.traced.as_ref()?;
    let facts = facts(&traced.trace).join(", ");
    Some(match &traced.joined {
        Ok(joined) => {
            let at = |ns: u64| seconds::of(ns.saturating_sub(profile.start_ns));
            format!(
                "{}; torch.profiler ran from {:.2} to {:.2} s and added time to every call: times of that window, samples included, are disturbed",
                clean(&facts, LONG),
                at(joined.window.0),
                at(joined.window.1)
            )
        }
        Err(why) => format!(
            "{}; its tables are shown, and nothing is on the time axis of the recording: {}",
            clean(&facts, LONG),
            why.text()
        ),
    })
}

/// Writes the rows.
pub(super) fn write(
    profile: &Profile,
    analysis: &Analysis,
    columns: &mut Columns,
) -> Option<Drawn> {
    let traced = analysis.traced.as_ref()?;
    let trace = &traced.trace;
    let mut drawn = Drawn {
        process: None,
        window_us: None,
        names: Vec::new(),
        kind: Vec::new(),
        kinds: DrawnKind::ALL.iter().map(|kind| kind.name()).collect(),
        rows: Vec::new(),
        notes: trace.missing(),
    };
    let Ok(joined) = &traced.joined else {
        return Some(drawn);
    };
    let us = |ns: u64| ns.saturating_sub(profile.start_ns) as f64 / 1e3;
    drawn.process = Some(joined.process.index());
    drawn.window_us = Some((us(joined.window.0), us(joined.window.1)));
    drawn.notes.extend(trace.not_drawn());
    let label = process_labels(profile)
        .into_iter()
        .nth(joined.process.index());
    let label = label.unwrap_or_default();
    let mut names: FxHashMap<(String, DrawnKind), usize> = FxHashMap::default();
    for row in &trace.rows.rows {
        let number = drawn.rows.len();
        let (mut gap, mut length, mut name) =
            (Column::default(), Column::default(), Column::default());
        let (mut count, mut busy, mut longest) =
            (Column::default(), Column::default(), Column::default());
        let mut before = 0_i64;
        for span in &row.spans {
            let times =
                [span.start_ns, span.end_ns].map(|ns| time_in_recording(profile, trace, ns));
            let ([Some(start), Some(end)], Some((text, kind))) = (times, trace.drawn(row, span))
            else {
                continue;
            };
            let (start, end) = (start.max(joined.window.0), end.min(joined.window.1));
            if start > end {
                continue;
            }
            let relative = |ns: u64| ns.saturating_sub(profile.start_ns) as i64;
            gap.push_signed(relative(start) - before);
            length.push(end - start);
            before = relative(end);
            let next = names.len();
            let id = *names
                .entry((clean(text, LONG), kind))
                .or_insert_with_key(|(text, kind)| {
                    drawn.names.push(text.clone());
                    drawn.kind.push(*kind as usize);
                    next
                });
            name.push(id as u64);
            count.push(span.count);
            // One span is as long as it is, and busy all of that.
            let is_one = span.count == 1;
            busy.push(if is_one { 0 } else { span.busy_ns });
            longest.push(if is_one { 0 } else { span.longest_ns });
        }
        for (column, of) in [
            (&gap, "gap"),
            (&length, "length"),
            (&name, "name"),
            (&count, "count"),
            (&busy, "busy"),
            (&longest, "longest"),
        ] {
            columns.add(format!("trace.{number}.{of}"), column);
        }
        drawn.rows.push(Row {
            of: heading(trace, row.of, &label),
            label: match row.of {
                RowOf::Stream { stream, .. } => format!("stream {stream}"),
                RowOf::Thread(tid) => thread_label(profile, joined.process, tid),
            },
            depth: row.depth,
            grain_us: row.grain_ns as f64 / 1e3,
        });
    }
    Some(drawn)
}

fn heading(trace: &TraceSummary, of: RowOf, label: &str) -> String {
    match of {
        RowOf::Stream { device, .. } => {
            let name = usize::try_from(device).ok();
            let name = name.and_then(|device| trace.head.devices.get(device));
            let name = name.map_or(String::new(), |name| format!(" ({})", clean(name, LONG)));
            format!("torch.profiler: device {device} of {label}{name}")
        }
        RowOf::Thread(_) => format!("torch.profiler: operators of {label}"),
    }
}

fn thread_label(
    profile: &Profile,
    process: crate::model::ids::ProcessId,
    tid: Option<u64>,
) -> String {
    let Some(tid) = tid else {
        return "thread".to_owned();
    };
    let mut threads = profile.threads.iter();
    let thread = threads
        .find(|thread| thread.process == process && u64::try_from(thread.tid).ok() == Some(tid));
    match thread {
        Some(thread) if !thread.name.is_empty() => {
            format!("{} ({tid})", clean(&thread.name, LONG))
        }
        _ => format!("thread {tid}"),
    }
}
