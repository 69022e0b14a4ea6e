//! Collectives: the rank that the ranks wait for, and the host's time in each.

use super::format::{column_seconds, milliseconds, percent, share_of};
use super::table::table;
use super::{line, sentence};
use crate::analysis::Analysis;
use crate::analysis::collectives::ProcessCollectives;
use crate::analysis::late_ranks::last_rank;
use crate::analysis::slow_rank::{SlowDevice, SlowRank};
use crate::model::collective::Backend;
use crate::model::ids::ProcessId;
use crate::model::profile::Profile;
use crate::model::track::TrackKind;
use crate::report::label::process_labels;
use crate::report::tables::collectives::{COLLECTIVES, OF_BACKENDS, of_rank};
use crate::report::tables::waits::{At, at as place_at};

/// Minimum part of a rank's waits that one rank must cause to be named.
const WORTH_NAMING: f64 = 0.1;
/// Maximum number of lines at which a rank is said to be late.
const MOST_LINES: usize = 2;

pub(super) fn collectives(out: &mut String, profile: &Profile, analysis: &Analysis, rows: usize) {
    let ranks: Vec<&ProcessCollectives> = analysis
        .collectives
        .iter()
        .filter(|rank| rank.ns > 0)
        .collect();
    if ranks.is_empty() {
        return;
    }
    let mut backends: Vec<Backend> = ranks
        .iter()
        .flat_map(|rank| &rank.rows)
        .filter_map(|row| row.call.backend)
        .collect();
    // Its destructors run in processes that never used it.
    let nccl = analysis.processes.iter().any(|process| process.nccl);
    backends.retain(|&backend| backend != Backend::Nccl || nccl);
    backends.sort_unstable();
    backends.dedup();
    let names: Vec<&str> = backends.iter().map(|backend| backend.name()).collect();
    let names = match names.is_empty() {
        true => String::new(),
        false => format!(" ({})", names.join(", ")),
    };
    line(
        out,
        &format!("\nCOMMUNICATION{names}, % of each training thread's wall time (host time)"),
    );
    let labels = process_labels(profile);
    if let Some(slow) = &analysis.slow_rank {
        arrives_last(out, profile, &labels, slow);
    } else if let Some(slow) = &analysis.slow_device {
        slow_device(out, &labels, slow);
    }
    for rank in ranks.iter().take(rows.max(8)) {
        who_waits(out, profile, &labels, rank);
    }
    let recorded = ranks.iter().map(|rank| rank.peers + 1).max().unwrap_or(1);
    let world = ranks.iter().filter_map(|rank| rank.world_size).max();
    if let Some(world) = world.filter(|&world| world as usize > recorded) {
        let text = format!(
            "{recorded} of {world} ranks are in this recording: waits for other ranks are not attributed."
        );
        sentence(out, "  ", &text);
    }
    if backends.contains(&Backend::Nccl) {
        sentence(
            out,
            "  ",
            "NCCL: the host only enqueues; the GPU's own communication is not in these times.",
        );
    }
    if let Some(own) = analysis.primary_collectives() {
        listed(out, profile, own, rows, backends.len() > 1);
    }
}

/// The rank that the first `most` ranks wait for, one sentence each.
pub(super) fn brief(profile: &Profile, analysis: &Analysis, most: usize) -> Vec<String> {
    let labels = process_labels(profile);
    let ranks = analysis.collectives.iter().filter(|rank| rank.ns > 0);
    let sentence_of = |rank| {
        let mut text = String::new();
        who_waits(&mut text, profile, &labels, rank);
        text
    };
    let slow = analysis.slow_rank.iter().map(|slow| {
        let mut text = String::new();
        arrives_last(&mut text, profile, &labels, slow);
        text
    });
    slow.chain(ranks.map(sentence_of)).take(most).collect()
}

/// `rank 1 arrives last: it waits for its GPU 0.4 % of the time, the others 56.3 % or more; its
/// host takes 44.6 ms ±3.8 more of each step, at train.py:47 slow_transform (43.9 ms)`.
fn arrives_last(out: &mut String, profile: &Profile, labels: &[String], slow: &SlowRank) {
    let places: Vec<String> = slow
        .lines
        .iter()
        .take(MOST_LINES)
        .map(|line| {
            let at = At::named(place_at(profile, line.at).as_ref());
            format!("{at} ({})", in_step(slow, line.share))
        })
        .collect();
    let at = match places.is_empty() {
        true => String::new(),
        false => format!(", at {}", places.join(", ")),
    };
    let text = format!(
        "{} arrives last: {}{at}",
        label(labels, slow.process),
        behind(slow)
    );
    sentence(out, "  ", &text);
}

/// `the GPU of rank 2 computes while the others spin: multiprocessors active 85.0 %, of the others
/// 22.1 % at most`.
fn slow_device(out: &mut String, labels: &[String], slow: &SlowDevice) {
    let what = match slow.kind {
        TrackKind::Power => "power of its limit",
        _ => "multiprocessors active",
    };
    let text = format!(
        "the GPU of {} computes while the others spin: {what} {}, of the others {} at most",
        label(labels, slow.process),
        percent(slow.value),
        percent(slow.others)
    );
    sentence(out, "  ", &text);
}

/// How far a rank is behind the others.
pub(super) fn behind(slow: &SlowRank) -> String {
    let half = (slow.less.high - slow.less.low) / 2.0;
    let more = match slow.step_ns {
        Some(ns) => format!(
            "{} ±{} more of each step",
            in_step(slow, slow.less.value),
            milliseconds(half * ns / 1e6)
        ),
        None => format!(
            "{} ±{:.1} more of the time",
            percent(slow.less.value),
            half * 100.0
        ),
    };
    format!(
        "it waits for its GPU {} of the time, the others {} or more; its host takes {more}",
        percent(slow.waits.value),
        percent(slow.other_waits.value),
    )
}

/// A share of the time as part of a step; as it is if steps are not counted.
fn in_step(slow: &SlowRank, share: f64) -> String {
    match slow.step_ns {
        Some(ns) => format!("{} ms", milliseconds(share * ns / 1e6)),
        None => percent(share),
    }
}

/// `rank 0 waits 38.0 % ±3.0 of its time in all_reduce (DDP bucket): rank 1 arrives last, at
/// train.py:41 slow_transform`.
fn who_waits(out: &mut String, profile: &Profile, labels: &[String], rank: &ProcessCollectives) {
    let (Some(process), Some(row)) = (rank.process, rank.rows.iter().max_by_key(|row| row.wait_ns))
    else {
        return;
    };
    if row.wait_share.is_uncertain() {
        return;
    }
    let mut text = format!(
        "{} waits {} of its time in {}",
        label(labels, process),
        share_of(&row.wait_share).trim(),
        row.call.label(),
    );
    let part = |ns: u64| ns as f64 / row.wait_ns.max(1) as f64;
    match last_rank(row) {
        Some((late, ns, at)) if part(ns) >= WORTH_NAMING => {
            text.push_str(&format!(
                ": {} arrives last ({} of {} s), at {}",
                label(labels, late),
                column_seconds(ns),
                column_seconds(row.wait_ns),
                At::named(place_at(profile, at).as_ref())
            ));
        }
        _ if rank.peers > 0 => text.push_str(": for most of it all ranks had arrived"),
        _ => {}
    }
    sentence(out, "  ", &text);
}

fn label(labels: &[String], process: ProcessId) -> &str {
    labels
        .get(process.index())
        .map_or("unknown process", String::as_str)
}

fn listed(
    out: &mut String,
    profile: &Profile,
    own: &ProcessCollectives,
    rows: usize,
    name_backends: bool,
) {
    let least_ns = if rows == usize::MAX {
        0
    } else {
        own.wall_ns / 1000
    };
    let shown = own
        .rows
        .iter()
        .take(rows)
        .take_while(|row| row.ns >= least_ns)
        .count();
    if shown == 0 {
        return;
    }
    let columns = match name_backends {
        true => OF_BACKENDS,
        false => COLLECTIVES,
    };
    table(out, columns, &of_rank(profile, own, usize::MAX), shown);
}
