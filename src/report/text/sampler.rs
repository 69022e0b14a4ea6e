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

/// From this share of merged stacks on the rest is of no consequence.
const NEARLY_ALL: f64 = 0.99;

/// How reliable the figures are, what sampling cost, and what was lost.
pub(super) fn brief(out: &mut String, profile: &Profile, analysis: &Analysis) {
    let quality = &analysis.quality;
    let mut parts = vec![match has_rate(quality) {
        true => format!(
            "SAMPLER {:.0} samples a second of {:.0} asked for",
            quality.rate_hz, quality.asked_hz
        ),
        false => format!(
            "SAMPLER {}, too few to measure the rate ({:.0} a second asked for)",
            counted(quality.ticks, "sample"),
            quality.asked_hz
        ),
    }];
    // Before what is cut where there is no room.
    parts.push("report --full shows every table".to_owned());
    if quality.stops > 0 {
        parts.push(format!(
            "stops took {} of the program's running time, 99 of 100 less than {}",
            fine_percent(quality.stopped_share),
            short_time(quality.stop_us.p99_ns)
        ));
    }
    let merged = quality.merged_share.filter(|&share| share < NEARLY_ALL);
    parts.extend(merged.map(|share| {
        let share = fine_percent(share);
        format!("Python and native frames match in only {share} of stacks")
    }));
    out.push('\n');
    wrapped(out, &parts, "| ");
    fewer(out, profile, quality);
    waited(out, quality);
    merge_warning(out, quality);
    harm(out, quality);
    lost(out, profile, quality);
    for missing in &profile.missing {
        sentence(out, "", &format!("MISSING {missing}"));
    }
}

/// Why training threads have fewer samples than there were ticks, and what that means.
fn fewer(out: &mut String, profile: &Profile, quality: &QualitySummary) {
    const NEARLY: f64 = 0.95;
    let mut reasons = Vec::new();
    if quality.skipped_for_turn > 0 {
        reasons.push("every CPU is taken and they are read in turns".to_owned());
    }
    if quality.skipped_for_budget > 0 {
        let limit = limit(profile);
        reasons.push(format!(
            "more stops would take over {limit} % of a thread's time (--max-stopped)"
        ));
    }
    let why = match reasons.is_empty() {
        true => String::new(),
        false => format!(", since {}", reasons.join(" and ")),
    };
    let few = quality
        .training_hz
        .filter(|hz| has_rate(quality) && *hz < NEARLY * quality.rate_hz);
    let text = match few {
        Some(hz) => format!(
            "training threads have {hz:.0} samples a second{why}: the ± of their shares is wider"
        ),
        None if reasons.is_empty() => return,
        None => format!("some threads have fewer samples{why}"),
    };
    sentence(out, "  ", &text);
}

/// Whether the machine had so little to spare for the sampler that a report begins with that.
pub(super) fn is_short_of_cpus(quality: &QualitySummary) -> bool {
    quality.own_queue > 0.1 || late(quality) > 0.2
}

/// Share of ticks that were late.
pub(super) fn late(quality: &QualitySummary) -> f64 {
    quality.late_ticks as f64 / quality.ticks.max(1) as f64
}

/// What late samples do to figures.
pub(super) const LATE: &str = "shares of what lasts a few ms may be some points off";

/// The sampler's own waits for a CPU, and what they do to figures.
fn waited(out: &mut String, quality: &QualitySummary) {
    const WORTH: f64 = 0.01;
    if quality.own_queue > WORTH && !is_short_of_cpus(quality) {
        let text = format!(
            "WARNING: torchspy waited for a CPU {} of the time, so samples came late: {LATE}",
            percent(quality.own_queue)
        );
        sentence(out, "  ", &text);
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
    if quality.captures.sampled > 0 {
        kinds.push_str(&format!(
            ", {} by the kernel",
            count(quality.captures.sampled)
        ));
    }
    if quality.captures.unstopped > 0 {
        kinds.push_str(&format!(
            ", {} unstopped",
            count(quality.captures.unstopped)
        ));
    }
    let fresh = &quality.captures;
    let read = fresh.stopped + fresh.asleep + fresh.sampled + fresh.unstopped;
    let mut parts = vec![format!("  captures: {} read ({kinds})", count(read))];
    parts.push(format!(
        "reused {} (had not moved)",
        count(quality.captures.reused)
    ));
    if quality.captures.unread > 0 {
        parts.push(format!("not captured {}", count(quality.captures.unread)));
    }
    wrapped(out, &parts, "| ");
    if quality.captures.sampled > 0 {
        let mut parts = vec![
            format!(
                "  by the kernel: Python frames changed during {}",
                fine_percent(quality.python_later as f64 / quality.captures.sampled as f64)
            ),
            format!("{} not in time", count(quality.samples_missed)),
        ];
        if quality.samples_refused > 0 {
            let then = match quality.captures.stopped {
                0 => "Python frames alone",
                _ => "threads were stopped from then on",
            };
            parts.push(format!(
                "{} refused by it: {then}",
                count(quality.samples_refused)
            ));
        }
        wrapped(out, &parts, "| ");
    }
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
    if quality.throttled_ns > 0 {
        parts.push(format!(
            "target's cgroup throttled for {}",
            seconds(quality.throttled_ns)
        ));
    }
    wrapped(out, &parts, "| ");
    waited(out, quality);
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
