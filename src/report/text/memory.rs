//! Processes whose memory grows.

use super::format::{counted, seconds};
use super::sentence;
use super::tracks::bytes;
use crate::analysis::Analysis;
use crate::analysis::memory_growth::{Growth, Rate};
use crate::model::profile::Profile;
use crate::report::label::process_labels;

/// A sentence for each of the first `most` processes whose memory grows.
pub(super) fn growing(out: &mut String, profile: &Profile, analysis: &Analysis, most: usize) {
    if analysis.growing.is_empty() {
        return;
    }
    out.push('\n');
    let labels = process_labels(profile);
    for growth in analysis.growing.iter().take(most) {
        let label = labels.get(growth.process.index());
        sentence(
            out,
            "MEMORY  ",
            &statement(growth, label.map_or("process", String::as_str)),
        );
    }
    let more = analysis.growing.len().saturating_sub(most);
    if more > 0 {
        sentence(
            out,
            "MEMORY  ",
            &format!("{} more grow, more slowly", counted(more as u64, "process")),
        );
    }
}

/// `worker 3 grows by 1.2 MB (1.1 to 1.3) a step: 80 MB in 60 s`.
fn statement(growth: &Growth, label: &str) -> String {
    let rate = |rate: &Rate, of: &str| {
        let (value, low, high) = (bytes(rate.value), bytes(rate.low), bytes(rate.high));
        format!("by {value} {of} (95 %: {low} to {high})")
    };
    let each = growth
        .per_epoch
        .as_ref()
        .map(|each| rate(each, "an epoch"))
        .or(growth.per_step.as_ref().map(|each| rate(each, "a step")))
        .unwrap_or_else(|| rate(&growth.per_second, "a second"));
    let all = format!("{} in {}", bytes(growth.bytes), seconds(growth.length_ns));
    format!("{label} grows {each}: {all}")
}
