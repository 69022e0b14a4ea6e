//! Passes of loaders over their data: which of them trained, which evaluated.

use super::series::{Counted, begins_with_program, readings};
use crate::model::ids::{CounterId, ProcessId};
use crate::model::profile::Profile;
use crate::model::progress::{CounterKind, ProgressPoint};

/// Maximum number of passes: a recording is untrusted input.
const MAX_PASSES: usize = 1 << 18;

/// A pass of a loader over its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Counter of the iterator that made it.
    pub counter: CounterId,
    /// When it was first seen.
    pub start_ns: u64,
    /// When it last delivered a batch.
    pub end_ns: u64,
    /// Batches that it delivered during the recording.
    pub batches: u64,
    /// Batches delivered by its first reading.
    pub first_value: u64,
    /// Batches delivered by its last reading.
    pub last_value: u64,
    /// Whether it began before the recording.
    pub began_before: bool,
    /// Steps made with its batches.
    pub steps: u64,
    /// Whether it trained.
    pub trains: bool,
    /// Whether it is an epoch whose end is known: the next one was seen to begin. What follows the
    /// last batch of another is not seen to belong to it.
    pub is_followed: bool,
}

/// The passes of a process, by start.
pub(super) fn passes(profile: &Profile, process: ProcessId, counted: &Counted) -> Vec<Pass> {
    let mut passes: Vec<Pass> = Vec::new();
    // When each pass delivered a batch.
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
                is_followed: false,
            });
        }
    }
    given.sort_unstable();
    assign_steps(&mut passes, &given, counted);
    passes.sort_by_key(|pass| (pass.start_ns, pass.counter));
    began_before(profile, &mut passes);
    forgive_stray_steps(&mut passes);
    passes
}

/// A pass of many batches in which a single step was seen to end evaluated: on a busy machine the
/// end of the last step before it is seen late. The step is that of the pass before it.
fn forgive_stray_steps(passes: &mut [Pass]) {
    /// Times as many batches for a step as in other passes.
    const MANY: u64 = 3;
    let full = passes.iter().filter(|pass| pass.trains && pass.steps > 1);
    let mut each: Vec<u64> = full
        .map(|pass| pass.batches.div_ceil(pass.steps).max(1))
        .collect();
    each.sort_unstable();
    let Some(&each) = each.get(each.len() / 2) else {
        return;
    };
    let mut before: Option<usize> = None;
    for at in 0..passes.len() {
        let pass = passes[at];
        let is_stray = pass.steps == 1 && pass.batches >= each.saturating_mul(MANY);
        match before.filter(|_| is_stray) {
            Some(before) => {
                passes[before].steps = passes[before].steps.saturating_add(1);
                passes[at].steps = 0;
                passes[at].trains = false;
            }
            None if pass.trains => before = Some(at),
            None => {}
        }
    }
}

/// Marks the first passes of a process after an attach, which had begun before.
fn began_before(profile: &Profile, passes: &mut [Pass]) {
    const SOON_NS: u64 = 2_000_000_000;
    /// Batches that a pass has delivered by its first reading, if that is at its start.
    const FIRST: u64 = 2;
    if begins_with_program(profile) {
        return;
    }
    let mut trained_until_ns: Option<u64> = None;
    for pass in passes {
        let follows = trained_until_ns.is_some_and(|end_ns| end_ns <= pass.start_ns);
        let begins = follows && pass.first_value <= FIRST;
        let is_soon = pass.start_ns < profile.start_ns.saturating_add(SOON_NS);
        if is_soon && pass.first_value > 0 && !begins {
            pass.began_before = true;
            pass.batches = pass.last_value.saturating_sub(pass.first_value);
        }
        if pass.trains {
            trained_until_ns = trained_until_ns.max(Some(pass.end_ns));
        }
    }
}

/// A step belongs to the pass that last delivered a batch before it. But a pass is known only from
/// its first reading on. Between two readings one pass may have made its last step and the next one
/// delivered its first batch; and batches may have been delivered, and steps made with them, before
/// the first reading. So passes that certainly trained are assigned first.
fn assign_steps(passes: &mut [Pass], given: &[(u64, usize)], counted: &Counted) {
    // When each pass was first seen to have delivered batches, and how many.
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
    // Only this pass delivered batches before the step, and it did so after it.
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

/// Batches per step, if the number is the same in all passes.
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
    // The last batches of a pass may not fill a step; the last batch of the recording may lack its
    // step.
    let off = batches.abs_diff(steps.saturating_mul(each));
    let excused = count.saturating_mul(each.max(1)).max(steps / 20);
    (each > 0 && off <= excused).then_some(each)
}

/// Whether more batches were delivered than were seen: each step of a pass takes `each` batches,
/// except the last one, which may take fewer. Batches between the last reading of a loader and its
/// end are not seen.
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
    // A step at the border may belong to the pass that had begun before.
    let border = match passes.iter().any(|pass| pass.began_before) {
        true => each,
        false => 0,
    };
    taken > seen.saturating_add(border)
}

/// Whether more passes trained than were seen: a pass that begins and ends between two polls of a
/// thread is missed, while its steps are counted.
pub(super) fn are_missing(passes: &[Pass], steps: u64) -> bool {
    let training = passes.iter().filter(|pass| pass.trains);
    let (mut batches, mut count) = (0_u64, 0_u64);
    for pass in training {
        batches = batches.saturating_add(pass.batches);
        count += 1;
    }
    count > 1 && steps > batches.saturating_add(count).saturating_add(batches / 20)
}

/// Upper bound of passes, from the number of steps, if each delivers as many batches as the longest
/// that was seen. `None` if none trained.
pub(super) fn most(passes: &[Pass], steps: u64) -> Option<u64> {
    let training = || passes.iter().filter(|pass| pass.trains && pass.steps > 0);
    let longest = training().map(|pass| pass.last_value).max()?;
    // Steps of a missed pass are counted with the pass before it, so the usual pass is taken.
    let mut each: Vec<u64> = training()
        .map(|pass| (pass.batches as f64 / pass.steps as f64).round() as u64)
        .collect();
    each.sort_unstable();
    let each = each.get(each.len() / 2).copied()?.max(1);
    let room = steps.saturating_mul(each) / longest.max(1);
    // After an attach, one may have begun before.
    let cut = passes.iter().any(|pass| pass.began_before);
    Some(room.saturating_add(cut.into()))
}

/// Training passes that are complete in the recording, each until the start of the next one, the
/// last one until the last batch that was seen: epochs.
pub(super) fn complete(profile: &Profile, passes: &[Pass]) -> Vec<Pass> {
    let training: Vec<&Pass> = passes.iter().filter(|pass| pass.trains).collect();
    let mut epochs: Vec<Pass> = training
        .windows(2)
        .filter(|pair| !pair[0].began_before)
        .map(|pair| Pass {
            end_ns: pair[1].start_ns,
            is_followed: true,
            ..*pair[0]
        })
        .collect();
    // The last one is complete if it delivered as many batches as those before it.
    if let [.., before, last] = training.as_slice()
        && last.last_value >= before.last_value
        && !last.began_before
    {
        let after = passes.iter().map(|pass| pass.end_ns).max();
        epochs.push(Pass {
            end_ns: after.unwrap_or(last.end_ns).min(profile.end_ns),
            ..**last
        });
    }
    epochs
}
