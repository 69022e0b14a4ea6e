//! What flight recorders of a job's ranks say, as text and as JSON.

use crate::analysis::dump::flight::{Called, Disagreement, Finding};
use crate::model::text::printable;
use crate::report::label::{counted, ranges};
use serde::Serialize;
use std::fmt::Write as _;

/// Calls of one collective that are listed.
const CALLS: usize = 8;

/// Dumps that were read, and what they say.
#[derive(Clone, Debug, Serialize)]
pub struct FlightReport {
    /// Ranks whose dumps were read.
    pub ranks: Vec<u32>,
    /// Ranks of the job without a dump, as far as dumps name them.
    pub missing_ranks: Vec<u32>,
    /// Files that could not be read, and why.
    pub not_read: Vec<(String, String)>,
    /// The likeliest cause first.
    pub findings: Vec<Finding>,
}

/// As JSON.
///
/// # Errors
/// None that can happen with these types.
pub fn render_flight_json(report: &FlightReport) -> serde_json::Result<String> {
    serde_json::to_string_pretty(report)
}

/// As text.
pub fn render_flight(report: &FlightReport) -> String {
    let mut out = String::new();
    let ranks = counted(report.ranks.len() as u64, "rank");
    let _ = writeln!(out, "flight recorders of {ranks}");
    if !report.missing_ranks.is_empty() {
        let _ = writeln!(out, "no dump of rank {}", listed(&report.missing_ranks));
    }
    for (file, why) in &report.not_read {
        let _ = writeln!(out, "not read: {}: {}", printable(file), printable(why));
    }
    out.push('\n');
    if report.findings.is_empty() {
        out.push_str(
            "All ranks have called the same collectives, and none is under way as far as was kept.\n",
        );
    }
    for finding in &report.findings {
        group(&mut out, finding);
    }
    out
}

fn listed(ranks: &[u32]) -> String {
    ranges(&mut ranks.to_vec())
}

fn group(out: &mut String, finding: &Finding) {
    let description = match finding.description.as_str() {
        "" | "undefined" => String::new(),
        text => format!(" ({})", printable(text)),
    };
    let _ = writeln!(
        out,
        "process group {}{description}, rank {}",
        printable(&finding.group),
        listed(&finding.members)
    );
    let number = finding.number;
    match &finding.what {
        Disagreement::Different => {
            let _ = writeln!(
                out,
                "  ranks differ in what they call as its collective {number}:"
            );
            calls(out, &finding.calls);
        }
        Disagreement::NotDone => {
            let _ = match &finding.without_dump[..] {
                [] => writeln!(
                    out,
                    "  all have called collective {number}, and it has not ended:"
                ),
                silent => writeln!(
                    out,
                    "  collective {number} has not ended. Of rank {} there is no dump: perhaps the others wait for it. They are in:",
                    listed(silent)
                ),
            };
            calls(out, &finding.calls);
        }
        Disagreement::Behind {
            ranks,
            last,
            lasts,
            wait_elsewhere,
        } => {
            let _ = writeln!(
                out,
                "  rank {} has not called collective {number}, which others are in:",
                listed(ranks)
            );
            calls(out, &finding.calls);
            match last {
                0 => out.push_str("  it has called none in this group\n"),
                last if lasts.is_empty() => {
                    let _ = writeln!(out, "  its last here is {last}, which was not kept");
                }
                last => {
                    let _ = writeln!(out, "  its last here is {last}:");
                    calls(out, lasts);
                }
            }
            if !wait_elsewhere.is_empty() {
                let _ = writeln!(
                    out,
                    "  rank {} waits in another group's collective",
                    listed(wait_elsewhere)
                );
            }
        }
    }
    out.push('\n');
}

fn calls(out: &mut String, calls: &[Called]) {
    for call in calls.iter().take(CALLS) {
        let state = if call.is_done { "done" } else { "under way" };
        let at = call.at.as_ref().map(|(function, file, line)| {
            format!(" at {}:{line} {}", printable(file), printable(function))
        });
        let _ = writeln!(
            out,
            "    rank {}: {} {}, {state}{}",
            listed(&call.ranks),
            printable(&call.operation),
            call.inputs,
            at.unwrap_or_default()
        );
    }
    if let Some(more @ 1..) = calls.len().checked_sub(CALLS) {
        let _ = writeln!(out, "    and {more} more");
    }
}
