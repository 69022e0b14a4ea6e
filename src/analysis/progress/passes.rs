//! Passes of loaders over their data: which of them trained, which evaluated.

use super::series::{Counted, is_whole, readings};
use crate::model::ids::{CounterId, ProcessId};
use crate::model::profile::Profile;
use crate::model::progress::{CounterKind, ProgressPoint};

/// Passes that are listed: a recording is hostile.
const MAX_PASSES: usize = 1 << 18;

/// A pass of a loader over its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The iterator that made it.
    pub counter: CounterId,
    /// When it was first seen.
    pub start_ns: u64,
    /// When it last gave out a batch.
    pub end_ns: u64,
    /// Batches that it gave out, as far as the recording goes.
    pub batches: u64,
    /// How many it had given out at its first reading.
    pub first_value: u64,
    /// How many it had given out at its last reading.
    pub last_value: u64,
    /// Whether it had begun before the recording did.
    pub began_before: bool,
    /// Steps that were made with its batches.
    pub steps: u64,
    /// Whether it trained.
    pub trains: bool,
}

/// The passes of a process, by start.
pub(super) fn passes(profile: &Profile, process: ProcessId, counted: &Counted) -> Vec<Pass> {
    let mut passes: Vec<Pass> = Vec::new();
    // When each pass gave out something.
    let mut given: Vec<(u64, usize)> = Vec::new();
    for (counter, points) in readings(profile, process, CounterKind::Batches) {
        let mut rest: &[&ProgressPoint] = &points;
        while let Some(first) = rest.first() {
            let ends = rest
                .windows(2)
                .position(|pair| pair[1].value < pair[0].value);
            let (own, later) = rest.split_at(ends.map_or(rest.len(), |at| at + 1));
            rest = later;
            let last = own.last().unwrap_or(first);
            if last.value == 0 || passes.len() >= MAX_PASSES {
                continue;
            }
            let out = own.iter().filter(|point| point.value > 0);
            given.extend(out.map(|point| (point.time_ns, passes.len())));
            passes.push(Pass {
                counter,
                start_ns: first.time_ns,
                end_ns: last.time_ns,
                batches: last.value,
                first_value: first.value,
                last_value: last.value,
                began_before: false,
                steps: 0,
                trains: false,
            });
        }
    }
    began_before(profile, &mut passes);
    given.sort_unstable();
    assign_steps(&mut passes, &given, counted);
    passes.sort_by_key(|pass| (pass.start_ns, pass.counter));
    passes
}

/// The first passes of a process that was attached to had begun before.
fn began_before(profile: &Profile, passes: &mut [Pass]) {
    const SOON_NS: u64 = 2_000_000_000;
    if is_whole(profile) {
        return;
    }
    for pass in passes {
        let first = first_value(profile, pass);
        if pass.start_ns < profile.start_ns.saturating_add(SOON_NS) && first > 0 {
            pass.began_before = true;
            pass.batches = pass.last_value.saturating_sub(first);
        }
    }
}

fn first_value(profile: &Profile, pass: &Pass) -> u64 {
    let mut points = profile.sideband.points.iter();
    points
        .find(|point| point.counter == pass.counter && point.time_ns == pass.start_ns)
        .map_or(0, |point| point.value)
}

/// A step belongs to the pass that gave out a batch last before it. But a pass is known from its
/// first reading on only: between two readings it may have made its last step and the next one
/// given out its first batch, and some batches may have been given out, and some steps made with
/// them, before that reading. So those that trained beyond doubt come first.
fn assign_steps(passes: &mut [Pass], given: &[(u64, usize)], counted: &Counted) {
    // When each pass was first seen to have given out something, and how much.
    let mut starts: Vec<(u64, usize)> = passes.iter().map(|pass| pass.start_ns).zip(0..).collect();
    starts.sort_unstable();
    let last_until = |time_ns: u64| {
        let until = given.partition_point(|&(given_ns, _)| given_ns <= time_ns);
        given.get(until.checked_sub(1)?).map(|&(_, pass)| pass)
    };
    let next_after = |time_ns: u64| {
        let until = starts.partition_point(|&(start_ns, _)| start_ns <= time_ns);
        starts.get(until).map(|&(_, pass)| pass)
    };
    // Nothing but this pass gave out batches before the step, and it did so after it.
    for ended in &counted.ended {
        let last = last_until(ended.after_ns);
        if last == last_until(ended.before_ns)
            && let Some(pass) = last.and_then(|pass| passes.get_mut(pass))
        {
            pass.trains |= pass.end_ns > ended.before_ns;
        }
    }
    for (index, ended) in counted.ended.iter().enumerate() {
        let trains = |pass: &usize| passes.get(*pass).is_some_and(|pass| pass.trains);
        let gave = |pass: &usize, least: u64| {
            passes
                .get(*pass)
                .is_some_and(|pass| pass.first_value >= least)
        };
        let (last, next) = (last_until(ended.before_ns), next_after(ended.before_ns));
        let is_over = last
            .and_then(|last| passes.get(last))
            .is_none_or(|last| last.end_ns <= ended.after_ns);
        let pass = last_until(ended.after_ns)
            .filter(trains)
            .or_else(|| last.filter(trains))
            .or_else(|| next.filter(|next| gave(next, 1) && trains(next)))
            .or_else(|| next.filter(|next| gave(next, 2) && is_over))
            .or(last);
        let Some(pass) = pass else {
            continue;
        };
        let earlier = if index == 0 { counted.earlier } else { 0 };
        if let Some(pass) = passes.get_mut(pass) {
            pass.steps = pass
                .steps
                .saturating_add(ended.count)
                .saturating_add(earlier);
            pass.trains = true;
        }
    }
}

/// How many batches go into a step, if it is the same number everywhere.
pub(super) fn batches_per_step(passes: &[Pass]) -> Option<u64> {
    let training = passes
        .iter()
        .filter(|pass| pass.trains && !pass.began_before);
    let (mut batches, mut steps, mut count) = (0_u64, 0_u64, 0_u64);
    for pass in training {
        batches = batches.saturating_add(pass.batches);
        steps = steps.saturating_add(pass.steps);
        count += 1;
    }
    if steps == 0 {
        return None;
    }
    let each = (batches as f64 / steps as f64).round() as u64;
    // The last batches of a pass may not fill a step, the last batch of the recording may not have
    // had its step.
    let off = batches.abs_diff(steps.saturating_mul(each));
    let excused = count.saturating_mul(each.max(1)).max(steps / 20);
    (each > 0 && off <= excused).then_some(each)
}

/// Whether more batches were given out than were seen: each step of a pass takes `each`, but the
/// last one, which may take fewer. What a loader gave out between the last reading of it and its
/// end is not known.
pub(super) fn are_batches_missing(passes: &[Pass], each: u64) -> bool {
    let whole = passes
        .iter()
        .filter(|pass| pass.trains && !pass.began_before && pass.steps > 0);
    let (mut seen, mut taken) = (0_u64, 0_u64);
    for pass in whole {
        seen = seen.saturating_add(pass.batches);
        let steps = (pass.steps - 1).saturating_mul(each);
        taken = taken.saturating_add(steps).saturating_add(1);
    }
    // A step at the border may be of the pass that had begun before.
    let border = match passes.iter().any(|pass| pass.began_before) {
        true => each,
        false => 0,
    };
    taken > seen.saturating_add(border)
}

/// Whether more passes trained than were seen: one that begins and ends between two polls of a
/// thread is missed, and its steps are not.
pub(super) fn are_missing(passes: &[Pass], steps: u64) -> bool {
    let training = passes.iter().filter(|pass| pass.trains);
    let (mut batches, mut count) = (0_u64, 0_u64);
    for pass in training {
        batches = batches.saturating_add(pass.batches);
        count += 1;
    }
    count > 1 && steps > batches.saturating_add(count).saturating_add(batches / 20)
}

/// How many passes the steps leave room for, if each gives out as many batches as the longest that
/// was seen. `None` where none trained.
pub(super) fn most(passes: &[Pass], steps: u64) -> Option<u64> {
    let training = || passes.iter().filter(|pass| pass.trains && pass.steps > 0);
    let longest = training().map(|pass| pass.last_value).max()?;
    // Steps of a pass that was missed are counted with the one before it: the usual one tells.
    let mut each: Vec<u64> = training()
        .map(|pass| (pass.batches as f64 / pass.steps as f64).round() as u64)
        .collect();
    each.sort_unstable();
    let each = each.get(each.len() / 2).copied()?.max(1);
    let room = steps.saturating_mul(each) / longest.max(1);
    // Attached, one may have begun before.
    let cut = passes.iter().any(|pass| pass.began_before);
    Some(room.saturating_add(cut.into()))
}

/// Epochs that were seen whole: from the start of a pass that trained to that of the next one.
pub(super) fn whole_epochs(profile: &Profile, passes: &[Pass]) -> Vec<(u64, u64)> {
    let training: Vec<&Pass> = passes.iter().filter(|pass| pass.trains).collect();
    let mut epochs: Vec<(u64, u64)> = training
        .windows(2)
        .filter(|pair| !pair[0].began_before)
        .map(|pair| (pair[0].start_ns, pair[1].start_ns))
        .collect();
    // The last one is whole if it gave out as much as those before it.
    if let [.., before, last] = training.as_slice()
        && last.last_value >= before.last_value
        && !last.began_before
    {
        let after = passes.iter().map(|pass| pass.end_ns).max();
        let end_ns = after.unwrap_or(last.end_ns).min(profile.end_ns);
        epochs.push((last.start_ns, end_ns));
    }
    epochs
}

/// How long epochs took that were seen whole, ns.
pub(super) fn epoch_times(profile: &Profile, passes: &[Pass]) -> Vec<u64> {
    let epochs = whole_epochs(profile, passes).into_iter();
    epochs.map(|(from, to)| to.saturating_sub(from)).collect()
}
