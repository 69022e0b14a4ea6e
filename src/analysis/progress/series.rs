//! Which counter counts the steps, and when each of them ended.

use super::StepUnit;
use crate::model::category::Phase;
use crate::model::ids::{CounterId, ProcessId, ThreadId};
use crate::model::profile::{Profile, ProfileSample};
use crate::model::progress::{CounterKind, ProgressPoint};
use crate::model::sample::Capture;
use rustc_hash::FxHashMap;

/// Maximum number of steps that are listed: a recording is untrusted input.
const MAX_STEPS: u64 = 1 << 19;
/// Maximum number of changes that a step makes to a parameter.
const MAX_CHANGES: u64 = 64;
/// Maximum number of differences from which the number of changes per step is derived.
const MAX_DIFFERENCES: usize = 4096;
/// Maximum number of steps before their counter was found: a launched program is examined from its
/// start.
const MAX_EARLIER: u64 = 1000;

/// How often a parameter is usually filled before the first step, used where batches show how many
/// steps there were.
const FILLED: u64 = 2;

/// A step: from the end of the previous one to its own end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its number in the recording, from 1.
    pub number: u64,
    /// Start, CLOCK_MONOTONIC.
    pub start_ns: u64,
    pub end_ns: u64,
    /// Uncertainty of the end: the time between the two samples around it.
    pub uncertain_ns: u64,
    /// Whether no other step ended between these two samples. If others did, their ends are spread
    /// evenly.
    pub alone: bool,
}

/// What an optimizer's steps change.
const OF_OPTIMIZER: [CounterKind; 2] = [CounterKind::ParameterVersion, CounterKind::OptimizerState];

/// Steps that ended between two samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) after_ns: u64,
    pub(super) before_ns: u64,
    pub(super) count: u64,
}

impl Counted {
    /// What counts, for a comparison with other ranks.
    pub(super) fn name(&self) -> String {
        let each = self.counter.map_or(1, |(_, each)| each);
        format!("{} of {} by {each}", self.kind.name(), self.class)
    }

    /// Mean length of a step; `None` for a single one.
    fn step_ns(&self) -> Option<f64> {
        let (from, to) = (self.ended.first()?, self.ended.last()?);
        let steps: u64 = self.ended.iter().skip(1).map(|ended| ended.count).sum();
        let ns = to.before_ns.saturating_sub(from.before_ns);
        (steps > 0 && ns > 0).then(|| ns as f64 / steps as f64)
    }
}

impl Ended {
    fn middle_ns(&self) -> u64 {
        self.after_ns
            .saturating_add(self.before_ns.saturating_sub(self.after_ns) / 2)
    }
}

/// The steps of a process, counted.
#[derive(Clone, Debug)]
pub(super) struct Counted {
    pub(super) unit: StepUnit,
    pub(super) kind: CounterKind,
    pub(super) class: String,
    /// The counter, and how often a step changes it; `None` if several were added up.
    pub(super) counter: Option<(CounterId, u64)>,
    pub(super) thread: Option<ThreadId>,
    /// Steps before the first reading, and steps whose end was seen.
    pub(super) steps: u64,
    /// Steps before the first reading.
    pub(super) earlier: u64,
    /// When the first reading was made, if an unknown number of steps may have ended before it.
    pub(super) late_ns: Option<u64>,
    /// Upper bound; `None` if the number is exact, or no bound is known.
    pub(super) most: Option<u64>,
    /// By how much the counter is ahead of the number of a step; `None` for one that does not count
    /// steps from their start on in the same way on all ranks.
    pub(super) ahead: Option<i64>,
    /// In the order of time.
    pub(super) ended: Vec<Ended>,
}

/// The steps of a process, from the second one whose end was seen on; empty if no counter was read.
/// For tables with figures per step.
pub fn steps(profile: &Profile, process: ProcessId) -> Vec<Step> {
    count(profile, process).map_or(Vec::new(), |counted| listed(profile, &counted))
}

/// The steps; the list starts at the first end that was seen. Of those around a gap it is known how
/// many there were, and not when: they are left out.
pub(super) fn listed(profile: &Profile, counted: &Counted) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut number = counted.earlier;
    let mut last_end: Option<u64> = None;
    for ended in &counted.ended {
        let end_ns = ended.middle_ns();
        let is_known = |start_ns: &u64| profile.is_known(*start_ns, ended.before_ns);
        if let Some(start_ns) = last_end.filter(is_known) {
            let uncertain_ns = ended.before_ns.saturating_sub(ended.after_ns);
            let length = end_ns.saturating_sub(start_ns);
            for index in 0..ended.count.min(MAX_STEPS - steps.len() as u64) {
                let at = |index: u64| {
                    let part = u128::from(length) * u128::from(index) / u128::from(ended.count);
                    start_ns.saturating_add(u64::try_from(part).unwrap_or(length))
                };
                steps.push(Step {
                    number: number.saturating_add(index + 1),
                    start_ns: at(index),
                    end_ns: at(index + 1),
                    uncertain_ns,
                    alone: ended.count == 1,
                });
            }
        }
        number = number.saturating_add(ended.count);
        last_end = Some(end_ns);
    }
    steps
}

/// Whether the recording begins with the program: what came before its first reading is then part
/// of it, too.
pub(super) fn begins_with_program(profile: &Profile) -> bool {
    // If the profile is restricted to some of its steps, there are readings from before.
    let first = profile.sideband.points.first();
    profile.run.launched && first.is_none_or(|point| point.time_ns > profile.start_ns)
}

/// Readings of a process's counters, by counter.
pub(super) fn readings(
    profile: &Profile,
    process: ProcessId,
    kind: CounterKind,
) -> Vec<(CounterId, Vec<&ProgressPoint>)> {
    let mut of: FxHashMap<CounterId, Vec<&ProgressPoint>> = FxHashMap::default();
    for point in &profile.sideband.points {
        let counter = profile.counters.get(point.counter.index());
        if counter.is_some_and(|counter| counter.process == process && counter.kind == kind) {
            of.entry(point.counter).or_default().push(point);
        }
    }
    let mut all: Vec<_> = of.into_iter().collect();
    all.sort_by_key(|&(id, _)| id);
    for (_, points) in &mut all {
        points.sort_by_key(|point| point.time_ns);
    }
    all
}

/// By how much a kind of counter rose; `None` if there is none.
pub(super) fn raised(profile: &Profile, process: ProcessId, kind: CounterKind) -> Option<u64> {
    let all = readings(profile, process, kind);
    let rise = |(_, points): &(CounterId, Vec<&ProgressPoint>)| {
        let most = points.iter().map(|point| point.value).max()?;
        most.checked_sub(points.first()?.value)
    };
    all.iter().filter_map(rise).max()
}

/// Counts the steps of a process by the best available counter: one that counts steps; else the
/// changes of a parameter; else batches.
pub(super) fn count(profile: &Profile, process: ProcessId) -> Option<Counted> {
    let direct = [CounterKind::TrainerSteps, CounterKind::LightningSteps];
    for kind in direct {
        let best = readings(profile, process, kind)
            .into_iter()
            .max_by_key(|(_, points)| points.len());
        if let Some((id, points)) = best
            && points.len() >= 2
        {
            return Some(counted(profile, process, kind, id, &points, 1));
        }
    }
    let versions = OF_OPTIMIZER
        .into_iter()
        .flat_map(|kind| {
            let all = readings(profile, process, kind).into_iter();
            all.map(move |(id, points)| (kind, id, points))
        })
        .filter_map(|(kind, id, points)| {
            let each = changes_of_a_step(profile, &points)?;
            Some(counted(profile, process, kind, id, &points, each))
        })
        .max_by_key(|counted| counted.steps);
    versions
        .filter(|counted| counted.steps > 0)
        .or_else(|| batches(profile, process))
}

fn counted(
    profile: &Profile,
    process: ProcessId,
    kind: CounterKind,
    id: CounterId,
    points: &[&ProgressPoint],
    each: u64,
) -> Counted {
    let quiet = Quiet::of(profile, points);
    let base = points.first().map_or(0, |point| point.value);
    let mut done = 0;
    let mut ended = Vec::new();
    for point in points {
        let now = point.value.saturating_sub(base) / each.max(1);
        // A counter that decreased was set again: its further counts are not new steps until they
        // exceed the old value.
        if now > done {
            ended.push(Ended {
                after_ns: quiet.until(point),
                before_ns: point.time_ns,
                count: now - done,
            });
            done = now;
        }
    }
    let info = profile.counters.get(id.index());
    let mut counted = Counted {
        unit: StepUnit::Optimizer,
        kind,
        class: info.map(|info| info.class.clone()).unwrap_or_default(),
        counter: Some((id, each)),
        thread: points.first().map(|point| point.thread),
        steps: done,
        earlier: 0,
        late_ns: None,
        most: None,
        ahead: None,
        ended,
    };
    // Each step has raised it.
    let raised = match kind {
        CounterKind::ParameterVersion => least_base(profile, process, id, points) / each.max(1),
        // A state is made by the first step, with version 0.
        _ => base / each.max(1),
    };
    let first_ns = points.first().map_or(0, |point| point.time_ns);
    let earlier = earlier(profile, process, &counted, (first_ns, base), raised)
        .filter(|&earlier| earlier <= raised);
    counted.earlier = earlier.unwrap_or(0);
    // DDP copies parameters when it begins, on some ranks more often than on others.
    if kind != CounterKind::ParameterVersion {
        let done = i64::try_from(base / each.max(1)).ok();
        counted.ahead = done.and_then(|done| done.checked_sub_unsigned(counted.earlier));
    }
    counted.steps = counted.steps.saturating_add(counted.earlier);
    let samples = thread_samples(profile, counted.thread);
    let step_ns = counted.step_ns();
    let late_ns = late(profile, &samples, points, step_ns.unwrap_or(0.0));
    if !begins_with_program(profile) {
        counted.late_ns = late_ns;
        return counted;
    }
    let before = match kind {
        CounterKind::ParameterVersion => {
            let rest = raised.saturating_sub(counted.earlier);
            let filled = match (earlier, late_ns) {
                (Some(_), _) => FILLED,
                (None, None) => 1,
                (None, Some(_)) => 0,
            };
            if rest > filled { rest } else { 0 }
        }
        _ => 0,
    };
    counted.late_ns = points
        .first()
        .map(|point| point.time_ns)
        .filter(|_| before > 0);
    let missed = before.saturating_add(steps_after_last_reading(
        &counted,
        &samples,
        points,
        step_ns.unwrap_or(f64::INFINITY),
    ));
    let most = counted.steps.saturating_add(missed);
    counted.most = (before <= MAX_EARLIER && missed > 0).then_some(most);
    counted
}

/// The version that an optimizer's parameters had at the first reading. A parameter's version
/// begins at 0, and filling it raises the version, too, for some parameters more often than for
/// others.
fn least_base(
    profile: &Profile,
    process: ProcessId,
    id: CounterId,
    points: &[&ProgressPoint],
) -> u64 {
    let info = |id: CounterId| profile.counters.get(id.index());
    let said = |id: CounterId| info(id).map(|info| (&info.class, &info.facts));
    let own = points.first();
    readings(profile, process, CounterKind::ParameterVersion)
        .iter()
        .filter(|(other, _)| said(*other) == said(id))
        .filter_map(|(_, points)| points.first())
        .filter(|first| own.is_some_and(|own| own.time_ns == first.time_ns))
        .map(|first| first.value)
        .min()
        .unwrap_or(0)
}

fn trains(sample: &ProfileSample) -> bool {
    matches!(
        sample.phase,
        Phase::Forward | Phase::Backward | Phase::Recompute | Phase::Optimizer
    )
}

/// When the counter was first read, if a step may have ended between the last sample outside of
/// training and that reading.
fn late(
    profile: &Profile,
    samples: &[&ProfileSample],
    points: &[&ProgressPoint],
    step_ns: f64,
) -> Option<u64> {
    const ATTACHED_NS: u64 = 100_000_000;
    let first_ns = points.first()?.time_ns;
    let begin = samples.iter().position(|sample| trains(sample))?;
    // The time of a sample is anywhere within its interval.
    let begin_ns = match begin.checked_sub(1).and_then(|before| samples.get(before)) {
        Some(before) => before.start_ns.saturating_add(before.weight_ns / 2),
        None => samples.get(begin)?.start_ns,
    };
    let gap_ns = first_ns.saturating_sub(begin_ns);
    // After an attach, earlier steps do not matter, nor do a few ticks.
    let least_ns = if begins_with_program(profile) {
        0
    } else {
        ATTACHED_NS
    };
    // Steps differ: where programs share the CPUs, by a factor of two.
    (gap_ns as f64 > step_ns / 2.0 && gap_ns >= least_ns).then_some(first_ns)
}

/// How many steps may have ended after the last reading of a counter, until its thread was next
/// polled.
fn steps_after_last_reading(
    counted: &Counted,
    samples: &[&ProfileSample],
    points: &[&ProgressPoint],
    step_ns: f64,
) -> u64 {
    let (Some(last), Some(ended)) = (points.last(), counted.ended.last()) else {
        return 0;
    };
    let after = samples.partition_point(|sample| sample.start_ns <= last.time_ns);
    let Some(next) = samples.get(after).or_else(|| samples.last()) else {
        return 0;
    };
    let end_ns = next.start_ns.saturating_add(next.weight_ns);
    let whole = end_ns.saturating_sub(last.time_ns) as f64 / step_ns;
    // Whether a step was under way. A forward may also have been an evaluation's, unless it was
    // still running.
    let mut since = samples.get(..after).unwrap_or(&[]).iter().rev();
    let is_forward = |sample: &&&ProfileSample| sample.phase == Phase::Forward;
    let computes = since.clone().next().is_some_and(|last| is_forward(&last));
    let trained = since
        .by_ref()
        .take_while(|sample| sample.start_ns >= ended.before_ns)
        .any(|sample| trains(sample) && !is_forward(&sample));
    whole as u64 + u64::from(computes || trained)
}

/// Steps before the counter was first read, in a recording that begins with the program: the number
/// that the batches delivered by then allow. `None` if unknown.
fn earlier(
    profile: &Profile,
    process: ProcessId,
    counted: &Counted,
    (first_ns, base): (u64, u64),
    raised: u64,
) -> Option<u64> {
    if !begins_with_program(profile) {
        return None;
    }
    if counted.kind == CounterKind::OptimizerState {
        return Some(raised);
    }
    if counted.kind != CounterKind::ParameterVersion {
        // It counts from the first step on, unless the run was resumed: then it is higher than the
        // number of batches by then.
        let given = |(_, points): &(CounterId, Vec<&ProgressPoint>)| {
            let mut by_then = points.iter().rev();
            let last = by_then.find(|point| point.time_ns <= first_ns);
            Some(last.or(points.first())?.value)
        };
        let given: u64 = readings(profile, process, CounterKind::Batches)
            .iter()
            .filter_map(given)
            .fold(0, u64::saturating_add);
        return Some(if base <= given { base } else { 0 });
    }
    let (batches, each) = first_pass(profile, process, counted)?;
    let samples = thread_samples(profile, counted.thread);
    let mut votes: FxHashMap<u64, usize> = FxHashMap::default();
    let mut steps_done = 0;
    let mut ended = counted.ended.iter().peekable();
    for point in &batches {
        while let Some(step) = ended.next_if(|step| step.before_ns <= point.time_ns) {
            steps_done = u64::saturating_add(steps_done, step.count);
        }
        // In forward and backward the last batch is delivered and its step is still to come.
        let Some(sample) = sample_at(&samples, point.time_ns) else {
            continue;
        };
        if matches!(sample.phase, Phase::Forward | Phase::Backward)
            && let Some(ahead) = (point.value).checked_sub(1)
            && let Some(before) = (ahead / each).checked_sub(steps_done)
            && before <= MAX_EARLIER
        {
            *votes.entry(before).or_default() += 1;
        }
    }
    let voted = votes
        .into_iter()
        .max_by_key(|&(before, votes)| (votes, std::cmp::Reverse(before)))
        .map(|(before, _)| before)?;
    // A loader that fetches a batch ahead (Accelerate's does) has delivered one more than was
    // trained with, but for the last one.
    let done = steps_by_end(profile, process, counted, &samples, &batches);
    let given = batches.last().map_or(0, |point| point.value);
    let most = done.map(|done| given.div_ceil(each).saturating_sub(done));
    Some(most.map_or(voted, |most| voted.min(most)))
}

/// The counted steps until the end of a pass, if each of its last batches was seen; `None` if not,
/// or if the pass was not over.
fn steps_by_end(
    profile: &Profile,
    process: ProcessId,
    counted: &Counted,
    samples: &[&ProfileSample],
    pass: &[&ProgressPoint],
) -> Option<u64> {
    let end_ns = pass.last()?.time_ns;
    let all = readings(profile, process, CounterKind::Batches);
    let later = all.iter().flat_map(|(_, points)| points);
    let over_ns = later
        .map(|point| point.time_ns)
        .filter(|&at| at > end_ns)
        .min()?;
    let within = counted
        .ended
        .partition_point(|step| step.before_ns <= over_ns);
    let (within, after) = counted.ended.split_at(within);
    let spans_end = after.first().is_some_and(|step| step.after_ns < over_ns);
    let (last, rest) = within.split_last().filter(|_| !spans_end)?;
    // Its batch was delivered before it computed.
    let from_ns = rest.last().map_or(0, |step| step.before_ns);
    let computes = samples
        .iter()
        .filter(|sample| (from_ns..=last.after_ns).contains(&sample.start_ns))
        .any(|sample| trains(sample));
    let steps = within.iter().map(|step| step.count);
    (last.count == 1 && computes).then(|| steps.fold(0, u64::saturating_add))
}

/// The readings of the first pass with steps, and the batches per step in it.
fn first_pass<'p>(
    profile: &'p Profile,
    process: ProcessId,
    counted: &Counted,
) -> Option<(Vec<&'p ProgressPoint>, u64)> {
    let (first, last) = (counted.ended.first()?, counted.ended.last()?);
    let mut best: Option<Vec<&ProgressPoint>> = None;
    for (_, points) in readings(profile, process, CounterKind::Batches) {
        let ends = points
            .windows(2)
            .position(|pair| pair[1].value < pair[0].value);
        let pass = points[..ends.map_or(points.len(), |at| at + 1)].to_vec();
        let (Some(begin), Some(end)) = (pass.first(), pass.last()) else {
            continue;
        };
        let holds = begin.time_ns <= last.before_ns && end.time_ns >= first.after_ns;
        let is_earlier = best
            .as_ref()
            .is_none_or(|best| begin.time_ns < best[0].time_ns);
        if holds && is_earlier {
            best = Some(pass);
        }
    }
    let pass = best?;
    let (begin, end) = (pass.first()?, pass.last()?);
    // Either counter may have been found long after the other: only the time in which both were
    // read counts.
    let from_ns = begin.time_ns.max(first.after_ns);
    let to_ns = end.time_ns.min(last.before_ns);
    let steps: u64 = counted
        .ended
        .iter()
        .filter(|step| step.before_ns > from_ns && step.before_ns <= to_ns)
        .map(|step| step.count)
        .fold(0, u64::saturating_add);
    let given = |until_ns: u64| {
        let mut until = pass.iter().rev();
        until
            .find(|point| point.time_ns <= until_ns)
            .map_or(begin.value, |point| point.value)
    };
    let batches = given(to_ns).saturating_sub(given(from_ns));
    // In short passes a batch more or less at the ends matters.
    let each = (batches as f64 / steps.max(1) as f64).round() as u64;
    (steps > 0 && each > 0).then_some((pass, each))
}

/// [`changes_of_a_step`] of all counters of optimizers.
pub(super) fn all_changes(profile: &Profile) -> Vec<(CounterId, u64)> {
    let processes = (0..profile.processes.len()).map(ProcessId::from_index);
    let all = processes.flat_map(|process| {
        let of = move |kind| readings(profile, process, kind).into_iter();
        OF_OPTIMIZER.into_iter().flat_map(of)
    });
    all.filter_map(|(id, points)| Some((id, changes_of_a_step(profile, &points)?)))
        .collect()
}

/// Number of changes that a step makes to a parameter: a divisor of nearly all differences between
/// readings outside of the optimizer. `None` if too few readings show it.
fn changes_of_a_step(profile: &Profile, points: &[&ProgressPoint]) -> Option<u64> {
    let own = points.first()?.counter;
    let mut known = profile.step_changes.iter();
    if let Some(&(_, changes)) = known.find(|(id, _)| *id == own) {
        return Some(changes);
    }
    // A thread that is not stopped may run between the reading of a counter and that of its frames.
    let still = |sample: &ProfileSample| sample.capture != Capture::Unstopped;
    changes_outside_optimizer(profile, points, still)
        .or_else(|| changes_outside_optimizer(profile, points, |_| true))
}

fn changes_outside_optimizer(
    profile: &Profile,
    points: &[&ProgressPoint],
    tells: impl Fn(&ProfileSample) -> bool,
) -> Option<u64> {
    const FEWEST: usize = 2;
    let samples = thread_samples(profile, points.first().map(|point| point.thread));
    // A value was valid from its first reading to the last one before the next value.
    let valid_outside = |from_ns: u64, to_ns: u64| {
        let first = samples.partition_point(|sample| sample.start_ns <= from_ns);
        let rest = samples.get(first.saturating_sub(1)..).unwrap_or(&[]);
        let mut within = rest
            .iter()
            .take_while(|sample| sample.start_ns <= to_ns.max(from_ns));
        within.any(|sample| sample.phase != Phase::Optimizer && tells(sample))
    };
    let outside: Vec<u64> = points
        .iter()
        .enumerate()
        .filter(|(index, point)| {
            let next = points.get(index + 1);
            valid_outside(
                point.time_ns,
                next.map_or(point.time_ns, |next| next.before_ns),
            )
        })
        .map(|(_, point)| point.value)
        .collect();
    let differences: Vec<u64> = outside
        .windows(2)
        .filter_map(|pair| pair[1].checked_sub(pair[0]))
        .filter(|&difference| difference > 0)
        .take(MAX_DIFFERENCES)
        .collect();
    if differences.len() < FEWEST {
        return None;
    }
    let divides = |each: &u64| {
        let even = differences.iter().filter(|&&each_one| each_one % each == 0);
        // A single reading from within a step makes two differences that are not multiples.
        even.count() * 10 >= differences.len() * 9
    };
    (1..=MAX_CHANGES).rev().find(divides)
}

/// Counts batches as steps, where nothing was trained.
fn batches(profile: &Profile, process: ProcessId) -> Option<Counted> {
    let all = readings(profile, process, CounterKind::Batches);
    let mut ended = Vec::new();
    let (mut steps, mut class, mut thread) = (0_u64, String::new(), None);
    let first_ns = all
        .iter()
        .filter_map(|(_, points)| points.first().map(|point| point.time_ns))
        .min();
    for (id, points) in &all {
        let quiet = Quiet::of(profile, points);
        let begun =
            begins_with_program(profile) || points.first().map(|point| point.time_ns) != first_ns;
        let mut last = (!begun).then(|| points.first().map_or(0, |point| point.value));
        for point in points {
            let count = match last {
                Some(last) if point.value >= last => point.value - last,
                _ => point.value,
            };
            last = Some(point.value);
            steps = steps.saturating_add(count);
            if count > 0 {
                ended.push(Ended {
                    after_ns: quiet.until(point),
                    before_ns: point.time_ns,
                    count,
                });
            }
        }
        if let Some(info) = profile.counters.get(id.index()) {
            class.clone_from(&info.class);
        }
        thread = thread.or(points.first().map(|point| point.thread));
    }
    ended.sort_by_key(|step| (step.before_ns, step.after_ns));
    (steps > 0).then_some(Counted {
        unit: StepUnit::Batch,
        kind: CounterKind::Batches,
        class,
        counter: None,
        thread,
        steps,
        earlier: 0,
        late_ns: None,
        most: None,
        ahead: None,
        ended,
    })
}

/// Until when a thread is known not to have run before a reading.
pub(super) struct Quiet<'p> {
    samples: Vec<&'p ProfileSample>,
}

impl<'p> Quiet<'p> {
    pub(super) fn of(profile: &'p Profile, points: &[&ProgressPoint]) -> Self {
        Self {
            samples: thread_samples(profile, points.first().map(|point| point.thread)),
        }
    }

    /// The last time before a reading at which the counter had its old value. The thread itself
    /// raises the counter, so it did not change while the thread was not scheduled.
    pub(super) fn until(&self, point: &ProgressPoint) -> u64 {
        let before_ns = point.before_ns.min(point.time_ns);
        let after = self
            .samples
            .partition_point(|sample| sample.start_ns <= point.time_ns);
        let earlier = self.samples.get(..after).unwrap_or(&[]).iter().rev();
        for sample in earlier.take(64) {
            let end_ns = sample.start_ns.saturating_add(sample.weight_ns);
            if end_ns <= before_ns {
                break;
            }
            if sample.capture == Capture::Reused {
                // The poll that found it so was made within the last tick of the interval.
                let tick_ns = sample.weight_ns / u64::from(sample.ticks.max(1));
                let seen_ns = end_ns.min(point.time_ns).saturating_sub(tick_ns / 2);
                return seen_ns.clamp(before_ns, point.time_ns);
            }
        }
        before_ns
    }
}

/// The samples of a thread, by start.
pub(super) fn thread_samples(profile: &Profile, thread: Option<ThreadId>) -> Vec<&ProfileSample> {
    // Samples are sorted by thread, then start.
    let Some(thread) = thread else {
        return Vec::new();
    };
    let from = profile
        .samples
        .partition_point(|sample| sample.thread < thread);
    let rest = profile.samples.get(from..).unwrap_or(&[]);
    rest.iter()
        .take_while(|sample| sample.thread == thread)
        .collect()
}

fn sample_at<'p>(samples: &[&'p ProfileSample], time_ns: u64) -> Option<&'p ProfileSample> {
    let after = samples.partition_point(|sample| sample.start_ns <= time_ns);
    samples.get(after.checked_sub(1)?).copied()
}
