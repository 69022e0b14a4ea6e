//! Lengths of steps, without warm-up and without the time between passes.

use super::passes::Pass;
use super::series::{Counted, Step, begins_with_program, listed, thread_samples};
use super::{LeftOut, PhaseTime, SlowStep, Spread, StepTimes, WarmUp, Why};
use crate::analysis::functions::user_lines;
use crate::analysis::intervals::{Share, Shares};
use crate::model::category::{Phase, SummaryRow};
use crate::model::ids::ProcessId;
use crate::model::profile::{Profile, ProfileSample};
use crate::model::progress::LeftOutStep;
use rustc_hash::FxHashSet;

/// Minimum length of a step in ticks for its length to be reported.
const TICKS_A_STEP: f64 = 5.0;
/// A slow start that is longer than this many steps is no warm-up. What a program does once (memory
/// of allocators, plans of cuDNN and oneDNN, connections of NCCL, the buckets of DDP) is done by
/// its first steps; a machine that is busy with other programs makes many steps slow.
const MOST_SLOW: usize = 5;
/// The same as a part of all steps: a tenth, rounded up.
const SLOW_OF_STEPS: usize = 10;
/// A step at the start counts as slow from this multiple of the usual length on.
const SLOW_START: f64 = 1.5;
/// If `torch.compile` takes at least this share of a step, all steps up to it are warm-up.
const COMPILES: f64 = 0.2;
/// Minimum number of steps for percentiles.
pub const FEWEST_FOR_SPREAD: usize = 10;
/// Maximum number of slow steps that are listed.
const MOST_LISTED: usize = 5;

/// Time by phase, ns, in the order of [`Phase::ALL`].
type ByPhase = [u64; Phase::ALL.len()];

/// Result of [`timed`].
#[derive(Default)]
pub(super) struct Timed {
    pub(super) warm_up: WarmUp,
    pub(super) left_out: LeftOut,
    pub(super) times: Option<StepTimes>,
    pub(super) phases: Vec<PhaseTime>,
    pub(super) collectives_elsewhere: Share,
    pub(super) slow: Vec<SlowStep>,
}

/// Times of steps. `samples` are those of the training thread.
pub(super) fn timed(
    profile: &Profile,
    process: ProcessId,
    counted: &Counted,
    passes: &[Pass],
    samples: &[&ProfileSample],
) -> Timed {
    let own;
    let samples = match counted.thread == samples.first().map(|sample| sample.thread) {
        true => samples,
        false => {
            own = thread_samples(profile, counted.thread);
            own.as_slice()
        }
    };
    let all = chosen(profile, process, counted, passes, samples);
    let left_out = left_out(counted, &all);
    // Times with a reservation say more than none.
    let is_timed = |chosen: &&(Step, Option<Why>)| left_out.all || chosen.1.is_none();
    let steps: Vec<Step> = all.iter().filter(is_timed).map(|&(step, _)| step).collect();
    let phases = phases_of_steps(&steps, samples);
    let first_ns = samples
        .first()
        .map_or(profile.start_ns, |sample| sample.start_ns);
    let warm_up = match steps.first() {
        Some(_) if left_out.all => WarmUp::default(),
        Some(step) if begins_with_program(profile) || left_out.start > 0 => WarmUp {
            steps: step.number - 1,
            ns: step.start_ns.saturating_sub(first_ns),
        },
        _ => WarmUp::default(),
    };
    let tick_ns = 1e9 / profile.run.rate_hz.max(1e-3);
    let (phase_times, collectives_elsewhere) = phase_times(&steps, samples);
    let profiled = all.iter().filter(|(_, why)| *why == Some(Why::Profiled));
    let profiled: FxHashSet<u64> = profiled.map(|(step, _)| step.number).collect();
    let slow = slow_steps(profile, &steps, &profiled, &phases, samples, tick_ns);
    Timed {
        warm_up,
        left_out,
        times: step_times(&steps, tick_ns),
        phases: phase_times,
        collectives_elsewhere,
        slow,
    }
}

/// The listed steps, each with the reason why its length is not among the times. In a part of a
/// recording, the reasons are those of the complete one. `samples` are those of the counter's
/// thread.
pub(super) fn chosen(
    profile: &Profile,
    process: ProcessId,
    counted: &Counted,
    passes: &[Pass],
    samples: &[&ProfileSample],
) -> Vec<(Step, Option<Why>)> {
    match profile.whole_ns {
        None => chosen_of_all(profile, process, counted, passes, samples),
        Some(_) => {
            let of_process = |step: &&LeftOutStep| step.process == process;
            let known: Vec<&LeftOutStep> =
                profile.left_out_steps.iter().filter(of_process).collect();
            // Its ends, each between two samples, may differ by a tick if samples are cut.
            let reason = |step: &Step| {
                let middle_ns = step.start_ns.saturating_add(length(step) / 2);
                let next = known.partition_point(|known| known.start_ns <= middle_ns);
                let last = known.get(next.checked_sub(1)?)?;
                (middle_ns < last.end_ns).then_some(last.why)
            };
            let steps = listed(profile, counted).into_iter();
            steps.map(|step| (step, reason(&step))).collect()
        }
    }
}

fn chosen_of_all(
    profile: &Profile,
    process: ProcessId,
    counted: &Counted,
    passes: &[Pass],
    samples: &[&ProfileSample],
) -> Vec<(Step, Option<Why>)> {
    let all = listed(profile, counted);
    let mut starts: Vec<u64> = passes.iter().map(|pass| pass.start_ns).collect();
    starts.sort_unstable();
    let has_new_pass = |step: &Step| {
        let next = starts.partition_point(|&start| start <= step.start_ns);
        starts.get(next).is_some_and(|&start| start <= step.end_ns)
    };
    let is_profiled = |step: &Step| {
        let mut windows = profile.profiled.iter();
        windows.any(|&(of, from, to)| of == process && step.start_ns < to && from < step.end_ns)
    };
    let own: Vec<Step> = all
        .iter()
        .filter(|step| !is_profiled(step))
        .copied()
        .collect();
    let inside: Vec<Step> = own
        .iter()
        .filter(|step| !has_new_pass(step))
        .copied()
        .collect();
    // If every step is a pass of its own, the time between passes belongs to the steps.
    let leaves_out = inside.len() * 2 >= own.len();
    let steps = if leaves_out { &inside } else { &own };
    let compiles = compiles_until(&phases_of_steps(steps, samples));
    // Later, slow steps are no start: a recording of a running program begins anywhere.
    let slow = match begins_with_program(profile) {
        true => slow_start(steps),
        false => 0,
    };
    let why = match compiles >= slow {
        true => Why::Compile,
        false => Why::SlowStart,
    };
    let warm = slow.max(compiles);
    let until = warm.checked_sub(1).and_then(|last| steps.get(last));
    let last = until.map_or(0, |step| step.number);
    let reason = |step: &Step| match () {
        () if is_profiled(step) => Some(Why::Profiled),
        () if leaves_out && has_new_pass(step) => Some(Why::NewPass),
        () if step.number <= last => Some(why),
        () => None,
    };
    all.iter().map(|step| (*step, reason(step))).collect()
}

fn left_out(counted: &Counted, all: &[(Step, Option<Why>)]) -> LeftOut {
    let mut out = LeftOut {
        unseen: counted.steps.saturating_sub(all.len() as u64),
        all: !all.is_empty() && all.iter().all(|(_, why)| why.is_some()),
        ..LeftOut::default()
    };
    for (step, why) in all {
        match why {
            Some(Why::NewPass) => out.between_passes += 1,
            Some(Why::Profiled) => out.profiled += 1,
            Some(why @ (Why::SlowStart | Why::Compile)) => {
                out.start += 1;
                out.start_ns = out.start_ns.saturating_add(length(step));
                out.compiles = *why == Why::Compile;
            }
            None => {}
        }
    }
    out
}

/// Time by phase in each of `steps`, which do not overlap.
fn phases_of_steps(steps: &[Step], samples: &[&ProfileSample]) -> Vec<ByPhase> {
    let mut of = vec![ByPhase::default(); steps.len()];
    for (step, sample, ns) in overlaps(steps, samples) {
        of[step][sample.phase as usize] = of[step][sample.phase as usize].saturating_add(ns);
    }
    of
}

/// Which part of which sample is in which step.
fn overlaps<'s, 'p>(
    steps: &'s [Step],
    samples: &'s [&'p ProfileSample],
) -> impl Iterator<Item = (usize, &'p ProfileSample, u64)> + 's {
    let mut first = 0;
    samples.iter().flat_map(move |&sample| {
        let end_ns = sample.start_ns.saturating_add(sample.weight_ns);
        while steps
            .get(first)
            .is_some_and(|step| step.end_ns <= sample.start_ns)
        {
            first += 1;
        }
        let from = first;
        (from..steps.len())
            .take_while(move |&at| steps[at].start_ns < end_ns)
            .map(move |at| {
                let step = &steps[at];
                let ns = end_ns
                    .min(step.end_ns)
                    .saturating_sub(sample.start_ns.max(step.start_ns));
                (at, sample, ns)
            })
    })
}

/// Number of steps at the start that are slow for the most part; 0 if that are too many to be a
/// warm-up.
fn slow_start(steps: &[Step]) -> usize {
    let lengths: Vec<u64> = steps.iter().map(length).collect();
    let Some(usual) = percentile(&sorted(&lengths), 0.5) else {
        return 0;
    };
    // A single slow step among usual ones is not warm-up.
    let (mut slow, mut count) = (0, 0);
    for (at, &ns) in lengths.iter().take(steps.len() / 2).enumerate() {
        if ns as f64 > SLOW_START * usual as f64 {
            count += 1;
            if 2 * count > at + 1 {
                slow = at + 1;
            }
        }
    }
    let most = steps.len().div_ceil(SLOW_OF_STEPS).min(MOST_SLOW);
    if slow <= most { slow } else { 0 }
}

/// Number of steps up to the last one in the first half in which torch.compile worked.
fn compiles_until(phases: &[ByPhase]) -> usize {
    let compiles = phases.iter().take(phases.len() / 2).rposition(|phases| {
        phases[Phase::Compile as usize] as f64 > COMPILES * total(phases).max(1) as f64
    });
    compiles.map_or(0, |at| at + 1)
}

fn step_times(steps: &[Step], tick_ns: f64) -> Option<StepTimes> {
    const FEWEST: usize = 2;
    let lengths: Vec<u64> = steps.iter().map(length).collect();
    let ns = total(&lengths);
    if lengths.len() < FEWEST || ns == 0 {
        return None;
    }
    let count = lengths.len() as f64;
    let mean_ns = ns as f64 / count;
    let are_told = mean_ns > TICKS_A_STEP * tick_ns && lengths.len() >= FEWEST_FOR_SPREAD;
    let spread = are_told.then(|| spread(steps, &lengths, mean_ns));
    Some(StepTimes {
        steps: lengths.len() as u64,
        ns,
        mean_ns,
        interval_ns: spread.map(|spread| {
            let half =
                1.96 * spread.sd_ns / count.sqrt() + 2.0 * spread.resolution_ns as f64 / count;
            (mean_ns - half, mean_ns + half)
        }),
        spread,
    })
}

fn spread(steps: &[Step], lengths: &[u64], mean_ns: f64) -> Spread {
    let count = lengths.len() as f64;
    let squares: f64 = lengths
        .iter()
        .map(|&ns| (ns as f64 - mean_ns).powi(2))
        .sum();
    // The end of a step is anywhere between two samples: that adds a twelfth of the square of their
    // distance at either end.
    let blur: f64 = steps
        .iter()
        .map(|step| (step.uncertain_ns as f64).powi(2) / 6.0)
        .sum();
    let variance = squares / (count - 1.0).max(1.0) - blur / count;
    let sorted = sorted(lengths);
    let at = |share: f64| percentile(&sorted, share).unwrap_or(0);
    let uncertain: Vec<u64> = steps.iter().map(|step| step.uncertain_ns).collect();
    Spread {
        sd_ns: variance.max(0.0).sqrt(),
        p50_ns: at(0.5),
        p95_ns: at(0.95),
        p99_ns: at(0.99),
        max_ns: sorted.last().copied().unwrap_or(0),
        resolution_ns: total(&uncertain) / lengths.len().max(1) as u64,
    }
}

/// Steps' time by phase, and the share of collectives in other phases than their own.
fn phase_times(steps: &[Step], samples: &[&ProfileSample]) -> (Vec<PhaseTime>, Share) {
    const ELSEWHERE: usize = Phase::ALL.len();
    let (mut total_ns, mut ticks) = (0_u64, 0_u64);
    let mut of = vec![0_u64; Phase::ALL.len()];
    let mut seen_last = None;
    for (_, sample, ns) in overlaps(steps, samples) {
        total_ns = total_ns.saturating_add(ns);
        of[sample.phase as usize] = of[sample.phase as usize].saturating_add(ns);
        if seen_last != Some(sample.start_ns) {
            ticks = ticks.saturating_add(sample.ticks.into());
        }
        seen_last = Some(sample.start_ns);
    }
    if total_ns == 0 {
        return (Vec::new(), Share::default());
    }
    let mut shares = Shares::new(total_ns, ticks, ELSEWHERE + 1);
    seen_last = None;
    for (_, sample, ns) in overlaps(steps, samples) {
        let is_new = seen_last != Some(sample.start_ns);
        let ticks = if is_new { sample.ticks } else { 0 };
        seen_last = Some(sample.start_ns);
        let is_elsewhere =
            sample.row == SummaryRow::Communication && sample.phase != Phase::Communication;
        let elsewhere_ns = if is_elsewhere { ns } else { 0 };
        shares.add(
            ns,
            ticks,
            &[(sample.phase as usize, ns), (ELSEWHERE, elsewhere_ns)],
        );
    }
    let mut times: Vec<PhaseTime> = Phase::ALL
        .iter()
        .filter(|&&phase| of[phase as usize] > 0)
        .map(|&phase| PhaseTime {
            phase,
            per_step_ns: of[phase as usize] as f64 / steps.len().max(1) as f64,
            share: shares.share(phase as usize),
        })
        .collect();
    times.sort_by(|left, right| right.per_step_ns.total_cmp(&left.per_step_ns));
    (times, shares.share(ELSEWHERE))
}

/// Steps that are much longer than the others, without those that torch.profiler slowed down, the
/// longest first, with the phase that took longer than it usually does.
fn slow_steps(
    profile: &Profile,
    steps: &[Step],
    profiled: &FxHashSet<u64>,
    phases: &[ByPhase],
    samples: &[&ProfileSample],
    tick_ns: f64,
) -> Vec<SlowStep> {
    const FEWEST: usize = 10;
    let lengths: Vec<u64> = steps.iter().map(length).collect();
    let usual = percentile(&sorted(&lengths), 0.5).unwrap_or(0);
    if steps.len() < FEWEST || (usual as f64) < TICKS_A_STEP * tick_ns {
        return Vec::new();
    }
    let off: Vec<u64> = lengths.iter().map(|&ns| ns.abs_diff(usual)).collect();
    // The median deviation of a normal distribution is 0.6745 of its standard deviation.
    let deviation = percentile(&sorted(&off), 0.5).unwrap_or(0) as f64 / 0.6745;
    let limit = usual as f64
        + (4.0 * deviation)
            .max(0.25 * usual as f64)
            .max(2.0 * tick_ns);
    let mut slow: Vec<usize> = (0..steps.len())
        .filter(|&at| lengths[at] as f64 > limit && steps[at].alone)
        .filter(|&at| !profiled.contains(&steps[at].number))
        .collect();
    slow.sort_by_key(|&at| (std::cmp::Reverse(lengths[at]), at));
    slow.truncate(MOST_LISTED);
    let usual_of = |phase: Phase| {
        let of: Vec<u64> = phases.iter().map(|phases| phases[phase as usize]).collect();
        percentile(&sorted(&of), 0.5).unwrap_or(0)
    };
    let usual_phases: Vec<u64> = Phase::ALL.iter().map(|&phase| usual_of(phase)).collect();
    let described = slow.into_iter().filter_map(|at| {
        let step = &steps[at];
        let more =
            |phase: Phase| phases[at][phase as usize].saturating_sub(usual_phases[phase as usize]);
        let phase = Phase::ALL
            .iter()
            .copied()
            .max_by_key(|&phase| more(phase))?;
        let inside = overlaps(std::slice::from_ref(step), samples)
            .filter(|(_, sample, ns)| sample.phase == phase && *ns > 0)
            .map(|(_, sample, _)| sample);
        let lines = user_lines(profile, inside);
        Some(SlowStep {
            number: step.number,
            start_ns: step.start_ns,
            ns: lengths[at],
            usual_ns: usual,
            phase,
            more_ns: more(phase),
            line: lines.first().map(|line| (line.function, line.line)),
        })
    });
    described.collect()
}

fn length(step: &Step) -> u64 {
    step.end_ns.saturating_sub(step.start_ns)
}

fn total(values: &[u64]) -> u64 {
    values.iter().copied().fold(0, u64::saturating_add)
}

fn sorted(values: &[u64]) -> Vec<u64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted
}

/// The value that `share` of them are not above, between neighbours by their distance.
fn percentile(sorted: &[u64], share: f64) -> Option<u64> {
    let place = share * sorted.len().checked_sub(1)? as f64;
    let below = sorted.get(place.floor() as usize).copied()?;
    let above = sorted.get(place.ceil() as usize).copied()?;
    Some(below + ((above - below) as f64 * place.fract()) as u64)
}
