//! How good the samples are, and what they cost.

use super::format::{count, counted, cut, fine_percent, percent, printable, seconds, short_time};
use super::{WIDTH, line, sentence, wrapped};
use crate::analysis::Analysis;
use crate::analysis::quality::QualitySummary;
use crate::model::profile::Profile;

pub(super) fn sampler(out: &mut String, profile: &Profile, analysis: &Analysis) {
    let quality = &analysis.quality;
    out.push_str("\nSAMPLER\n");
    ticks(out, profile, quality);
    captures(out, quality);
    cost(out, quality);
    stacks(out, quality);
    losses(out, profile, quality);
    if profile.missing.is_empty() {
        return;
    }
    out.push_str("\nMISSING\n");
    for missing in &profile.missing {
        sentence(out, "  ", missing);
    }
}

/// How reliable the figures are, in one or two lines, and what was lost.
pub(super) fn brief(out: &mut String, profile: &Profile, analysis: &Analysis) {
    let quality = &analysis.quality;
    let training = quality
        .training_hz
        .filter(|hz| *hz < 0.95 * quality.rate_hz);
    let mut parts = vec![match has_rate(quality) {
        true => format!(
            "SAMPLER {:.0} of {:.0} Hz{}",
            quality.rate_hz,
            quality.asked_hz,
            training.map_or(String::new(), |hz| format!(", training threads {hz:.0}"))
        ),
        false => format!(
            "SAMPLER {} at {:.0} Hz: too few to measure the rate",
            counted(quality.ticks, "tick"),
            quality.asked_hz
        ),
    }];
    if quality.stops > 0 {
        parts.push(format!(
            "stops {}, p99 {}",
            fine_percent(quality.stopped_share),
            short_time(quality.stop_us.p99_ns)
        ));
    }
    if quality.skipped_for_budget > 0 {
        parts.push(format!("limited by --max-stopped {}", limit(profile)));
    }
    if quality.skipped_for_turn > 0 {
        parts.push("in turns since every CPU is taken".to_owned());
    }
    let merged = quality.merged_share;
    parts.extend(merged.map(|share| format!("merged {}", fine_percent(share))));
    parts.push("report --full shows every table".to_owned());
    out.push('\n');
    wrapped(out, &parts, "| ");
    merge_warning(out, quality);
    harm(out, quality);
    lost(out, profile, quality);
    for missing in &profile.missing {
        sentence(out, "", &format!("MISSING {missing}"));
    }
}

/// Whether there are enough ticks for a rate: the first and the last one count in full, whatever
/// part of them was recorded.
fn has_rate(quality: &QualitySummary) -> bool {
    const FEW: u64 = 20;
    quality.ticks >= FEW
}

fn ticks(out: &mut String, profile: &Profile, quality: &QualitySummary) {
    wrapped(
        out,
        &[
            format!(
                "  {} in {}",
                counted(quality.ticks, "tick"),
                seconds(profile.recorded_ns())
            ),
            match has_rate(quality) {
                true => format!(
                    "{:.1} Hz of {:.0} asked for",
                    quality.rate_hz, quality.asked_hz
                ),
                false => format!(
                    "{:.0} Hz asked for, too few ticks to measure",
                    quality.asked_hz
                ),
            },
            format!(
                "{} late, {} left out",
                count(quality.late_ticks),
                count(quality.missed_ticks)
            ),
        ],
        "| ",
    );
}

fn captures(out: &mut String, quality: &QualitySummary) {
    let mut kinds = format!(
        "{} stopped, {} asleep",
        count(quality.captures.stopped),
        count(quality.captures.asleep)
    );
    if quality.captures.unstopped > 0 {
        kinds.push_str(&format!(
            ", {} unstopped",
            count(quality.captures.unstopped)
        ));
    }
    let read = quality.captures.stopped + quality.captures.asleep + quality.captures.unstopped;
    let mut parts = vec![format!("  captures: {} read ({kinds})", count(read))];
    parts.push(format!(
        "reused {} (thread had not run)",
        count(quality.captures.reused)
    ));
    if quality.captures.unread > 0 {
        parts.push(format!("not captured {}", count(quality.captures.unread)));
    }
    wrapped(out, &parts, "| ");
}

fn cost(out: &mut String, quality: &QualitySummary) {
    if quality.stops > 0 {
        wrapped(
            out,
            &[
                format!(
                    "  stops: p50 {}, p99 {}, max {}",
                    short_time(quality.stop_us.p50_ns),
                    short_time(quality.stop_us.p99_ns),
                    short_time(quality.stop_us.max_ns)
                ),
                format!(
                    "{} of the target's running time",
                    fine_percent(quality.stopped_share)
                ),
            ],
            "| ",
        );
    } else {
        out.push_str("  stops: none\n");
    }
    let mut parts = vec![format!(
        "  torchspy itself: {} of a core",
        percent(quality.own_cpu)
    )];
    if quality.own_queue > 0.01 {
        parts.push(format!(
            "WARNING: it waited for a CPU {} of the time",
            percent(quality.own_queue)
        ));
    }
    if quality.throttled_ns > 0 {
        parts.push(format!(
            "target's cgroup throttled for {}",
            seconds(quality.throttled_ns)
        ));
    }
    wrapped(out, &parts, "| ");
}

/// A share of merged stacks below this has a systematic cause.
const MOSTLY_MERGED: f64 = 0.5;

fn stacks(out: &mut String, quality: &QualitySummary) {
    let rooted = quality
        .rooted_share
        .map_or("not asked for".to_owned(), fine_percent);
    let merged = quality.merged_share.map_or("none".to_owned(), fine_percent);
    wrapped(
        out,
        &[
            format!("  native stacks to their root: {rooted}"),
            format!("Python merged: {merged}"),
            format!(
                "guessed frames {} (in {} of stacks)",
                fine_percent(quality.guessed_frames),
                fine_percent(quality.guessed_stacks)
            ),
        ],
        "| ",
    );
    merge_warning(out, quality);
    if !quality.partial.is_empty() {
        let reasons: Vec<String> = quality
            .partial
            .iter()
            .map(|(reason, number)| format!("{} {}", reason.name(), count(*number)))
            .collect();
        let mut parts = vec![format!(
            "  truncated: {}",
            reasons.first().cloned().unwrap_or_default()
        )];
        parts.extend(reasons.into_iter().skip(1));
        wrapped(out, &parts, "| ");
    }
    line(
        out,
        &format!(
            "  unclassified: {} of the training threads' time",
            fine_percent(quality.unclassified)
        ),
    );
}

/// Maximum share of the running time that stops may take, in percent.
fn limit(profile: &Profile) -> String {
    format!("{:.1}", profile.run.max_stopped * 100.0)
}

fn merge_warning(out: &mut String, quality: &QualitySummary) {
    if quality
        .merged_share
        .is_some_and(|share| share < MOSTLY_MERGED)
    {
        out.push_str(
            "  WARNING: Python frames do not match native ones and are placed at the root:\n",
        );
        out.push_str("    is this compiled Python (Nuitka), which runs no interpreter loop?\n");
    }
}

/// Effects of stops on setuid programs.
fn harm(out: &mut String, quality: &QualitySummary) {
    if quality.privileges_lost > 0 {
        line(
            out,
            &format!(
                "  WARNING: {} began while stopped, without the file's privileges",
                counted(quality.privileges_lost, "setuid program")
            ),
        );
    }
}

/// What was lost.
fn lost(out: &mut String, profile: &Profile, quality: &QualitySummary) {
    let losses = &profile.sideband.losses;
    if quality.lost > 0 || !losses.is_empty() {
        let reason = losses
            .last()
            .map_or(String::new(), |loss| printable(&loss.reason).into_owned());
        let text = format!(
            "  LOST {} in {} (their time is kept): {reason}",
            counted(quality.lost, "stack"),
            counted(losses.len() as u64, "gap")
        );
        line(out, &cut(&text, WIDTH));
    }
}

fn losses(out: &mut String, profile: &Profile, quality: &QualitySummary) {
    let limit = format!("to stay within --max-stopped {}", limit(profile));
    let mut reasons = Vec::new();
    if quality.skipped_for_turn > 0 {
        reasons.push("in turns since every CPU is taken".to_owned());
    }
    if quality.skipped_for_budget > 0 {
        reasons.push(limit.clone());
    }
    if let Some(hz) = quality.training_hz.filter(|_| !reasons.is_empty()) {
        let text = format!("  training threads: {hz:.0} of {:.0} Hz", quality.asked_hz);
        reasons.insert(0, text);
        wrapped(out, &reasons, "| ");
    }
    if quality.skipped_for_budget > 0 {
        let skipped = counted(quality.skipped_for_budget, "capture");
        line(out, &format!("  {skipped} left out {limit}"));
    }
    if quality.skipped_for_late_stop > 0 {
        line(
            out,
            &format!(
                "  {} skipped: an earlier stop request was outstanding",
                counted(quality.skipped_for_late_stop, "capture")
            ),
        );
    }
    if quality.stop_timeouts > 0 {
        line(
            out,
            &format!(
                "  {} took longer than 2 ms: read afterwards",
                counted(quality.stop_timeouts, "stop")
            ),
        );
    }
    if quality.calls_left_running > 0 {
        line(
            out,
            &format!(
                "  {} without native frames: a stop would have cut a system call short",
                counted(quality.calls_left_running, "capture")
            ),
        );
    }
    if quality.calls_cut_short > 0 {
        line(
            out,
            &format!(
                "  {} cut short by stops at most (EINTR, or less than asked for)",
                counted(quality.calls_cut_short, "system call")
            ),
        );
    }
    harm(out, quality);
    lost(out, profile, quality);
}
