//! Idle time of a device by position in a step, from windows that are longer than phases.
//!
//! A window covers several steps, and the next one begins elsewhere in a step: many windows show
//! what one does not. A window's idle time is the sum over positions in the step of the time spent
//! there ([`position`](super::position)) times the share of it in which the device was idle. These
//! shares are a Gaussian process (Rasmussen and Williams 2006, 2.1), smooth along the step and
//! alike within a phase. They may belong to the time that the host spends at a position, or to its
//! passing by (a kernel takes as long as it does, however slow the host is). What windows do not
//! show keeps the prior's variance ([`gaussian`](super::gaussian)), and is then too uncertain to be
//! given.

use super::Subject;
use super::account::{Account, Part};
use super::gaussian::{FEATURES, Row, fit};
use super::position::{ByPosition, LABELS, POSITIONS, Poll, Positions, positions};
use super::windows::{Window, Windows};
use crate::model::category::Phase;
use crate::model::profile::{Profile, ProfileSample};
use rustc_hash::FxHashMap;

/// Fewer windows are not enough.
const FEWEST_WINDOWS: usize = 60;
/// Ticks that a step lasts at least.
const TICKS_A_STEP: f64 = 2.0;
/// A step is slow from this multiple of the usual length on, and ticks more: what it did may be
/// something else. Windows that touch one do not count.
const SLOW: f64 = 1.4;
const TICKS_SLOW: f64 = 1.2;
/// Share of the steps' time that may be in slow steps.
const MOST_SLOW: f64 = 0.2;
/// Largest half of an interval, as a share of the subject's time.
const WIDEST: f64 = 0.12;
/// The model's own error, and how many standard deviations make an interval: positions have an
/// error, too, which the posterior does not know. From the simulations of the tests.
const OF_MODEL: f64 = 0.03;
const DEVIATIONS: f64 = 3.5;
/// Shares of halves of the recording that differ by more have changed.
const DRIFT: f64 = 0.15;
/// Part of the steps' time that a line has at least.
const LEAST_OF_LINE: f64 = 0.1;
/// Why there is no regression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("no steps were counted")]
    NoSteps,
    #[error("steps are shorter than two ticks")]
    Short,
    #[error("steps are of different lengths")]
    Uneven,
    #[error("only {0} windows are within usual steps, of 60 that it takes")]
    Few(usize),
    #[error("the GPU's idle time changed during the recording")]
    Drift,
    /// For a single subject as well.
    #[error("windows do not tell the phases of a step apart")]
    Apart,
}

/// A share of idle time and its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Estimate {
    share: f64,
    half: f64,
}

/// Subjects that are resolved, and the number of windows.
#[derive(Clone, Debug, PartialEq)]
pub struct Regression {
    pub windows: usize,
    pub parts: FxHashMap<Subject, Part>,
}

/// Idle time of phases and lines in `steps` (start and end), from the samples of a thread.
///
/// # Errors
/// [`Refused`].
pub fn regress(
    profile: &Profile,
    windows: &Windows,
    steps: &[(u64, u64)],
    samples: &[&ProfileSample],
) -> Result<Regression, Refused> {
    let usual = Usual::of(steps, windows.tick_ns())?;
    let inside = |sample: &ProfileSample| {
        sample.start_ns >= usual.start_ns
            && sample.start_ns.saturating_add(sample.weight_ns) <= usual.end_ns
    };
    let of_steps = || samples.iter().filter(|sample| inside(sample));
    let labels = labels(of_steps().copied());
    let (mut polls, mut subjects) = (Vec::new(), Vec::new());
    for sample in of_steps() {
        let ticks = u64::from(sample.ticks.clamp(1, 1 << 16));
        let edge = |tick: u64| sample.start_ns + sample.weight_ns / ticks * tick;
        for tick in 0..ticks {
            polls.push(usual.poll(edge(tick), edge(tick + 1), labels[sample.phase as usize]));
            let line = profile.facts.line(sample.stack).map(Subject::Line);
            subjects.push([Some(Subject::Phase(sample.phase)), line]);
        }
    }
    let mut wanted: FxHashMap<Subject, Vec<usize>> = FxHashMap::default();
    for (number, subject) in subjects.iter().enumerate() {
        for &subject in subject.iter().flatten() {
            wanted.entry(subject).or_default().push(number);
        }
    }
    let least = (LEAST_OF_LINE * polls.len() as f64) as usize;
    wanted.retain(|subject, own| matches!(subject, Subject::Phase(_)) || own.len() >= least);
    let wanted: Vec<(Subject, Vec<usize>)> = wanted.into_iter().collect();
    let lists: Vec<&[usize]> = wanted.iter().map(|(_, own)| own.as_slice()).collect();
    let (count, estimates) = estimate(&polls, &usual, windows, &lists)?;
    let parts = wanted
        .iter()
        .zip(estimates)
        .filter_map(|((subject, _), estimate)| {
            let own = samples.iter().filter(|sample| match *subject {
                Subject::Phase(phase) => sample.phase == phase,
                Subject::Line(line) => profile.facts.line(sample.stack) == Some(line),
                Subject::Module(_) => false,
            });
            Some((*subject, usual.part(windows, own, estimate)?))
        });
    let parts: FxHashMap<Subject, Part> = parts.collect();
    match parts.is_empty() {
        true => Err(Refused::Apart),
        false => Ok(Regression {
            windows: count,
            parts,
        }),
    }
}

/// Numbers of phases, the most frequent ones first; the rest have the last.
fn labels<'p>(samples: impl Iterator<Item = &'p ProfileSample>) -> [usize; Phase::ALL.len()] {
    let mut time = [0_u64; Phase::ALL.len()];
    for sample in samples {
        time[sample.phase as usize] += sample.weight_ns;
    }
    let mut order: Vec<usize> = (0..time.len()).collect();
    order.sort_by_key(|&phase| std::cmp::Reverse(time[phase]));
    let mut labels = [LABELS - 1; Phase::ALL.len()];
    for (label, phase) in order.into_iter().take(LABELS).enumerate() {
        labels[phase] = label;
    }
    labels
}

/// Steps, and those of them that are as long as usual.
struct Usual<'s> {
    steps: &'s [(u64, u64)],
    start_ns: u64,
    end_ns: u64,
    step_ns: f64,
    /// Times of slow steps, ascending, with a tick at either side.
    slow: Vec<(u64, u64)>,
}

impl<'s> Usual<'s> {
    fn of(steps: &'s [(u64, u64)], tick_ns: u64) -> Result<Self, Refused> {
        let (Some(first), Some(last)) = (steps.first(), steps.last()) else {
            return Err(Refused::NoSteps);
        };
        let tick = tick_ns as f64;
        let mut lengths: Vec<f64> = steps.iter().map(|(from, to)| (to - from) as f64).collect();
        lengths.sort_unstable_by(f64::total_cmp);
        // Ends of short steps are known to a tick, which spoils the median but not the mean.
        let (median, all) = (lengths[lengths.len() / 2], (last.1 - first.0) as f64);
        let mean = all / lengths.len() as f64;
        let step_ns = mean.min(median.max(0.8 * mean));
        if step_ns < TICKS_A_STEP * tick {
            return Err(Refused::Short);
        }
        let slowest = SLOW * step_ns + TICKS_SLOW * tick;
        let is_slow = |step: &&(u64, u64)| (step.1 - step.0) as f64 > slowest;
        let slow = steps.iter().filter(is_slow);
        if slow
            .clone()
            .map(|(from, to)| (to - from) as f64)
            .sum::<f64>()
            > MOST_SLOW * all
        {
            return Err(Refused::Uneven);
        }
        Ok(Self {
            steps,
            start_ns: first.0,
            end_ns: last.1,
            step_ns,
            slow: slow
                .map(|&(from, to)| (from.saturating_sub(tick_ns), to.saturating_add(tick_ns)))
                .collect(),
        })
    }

    fn poll(&self, start_ns: u64, end_ns: u64, label: usize) -> Poll {
        let middle_ns = start_ns.midpoint(end_ns);
        let step = self.steps.partition_point(|step| step.1 <= middle_ns);
        let step = self
            .steps
            .get(step)
            .filter(|step| step.0 <= middle_ns && step.0 < step.1);
        Poll {
            start_ns,
            end_ns,
            label,
            at: step.map(|step| (middle_ns - step.0) as f64 / (step.1 - step.0) as f64),
        }
    }

    /// Whether all of a time is within usual steps.
    fn has(&self, from_ns: u64, to_ns: u64) -> bool {
        let slow = self.slow.partition_point(|slow| slow.1 <= from_ns);
        from_ns >= self.start_ns
            && to_ns <= self.end_ns
            && self.slow.get(slow).is_none_or(|slow| slow.0 >= to_ns)
    }

    /// A subject's time in usual steps by the estimate, and the rest by what windows bound.
    fn part<'p>(
        &self,
        windows: &Windows,
        own: impl Iterator<Item = &'p &'p ProfileSample>,
        estimate: Estimate,
    ) -> Option<Part> {
        let (mut all, mut rest, mut usual_ns) = (Account::default(), Account::default(), 0);
        for sample in own {
            let end_ns = sample.start_ns.saturating_add(sample.weight_ns);
            all.add(windows, sample.start_ns, end_ns);
            match self.has(sample.start_ns, end_ns) {
                true => usual_ns += end_ns - sample.start_ns,
                false => rest.add(windows, sample.start_ns, end_ns),
            }
        }
        let (all, rest, usual) = (all.finish(windows), rest.finish(windows), usual_ns as f64);
        let (low, high) = (
            estimate.share - estimate.half,
            estimate.share + estimate.half,
        );
        // In slow steps the thread often had no CPU: a sample's phase may be that of another part
        // of its time, and what windows seem to show at least is not sure.
        let low = usual * low.max(0.0);
        let high = usual * high.min(1.0) + rest.high;
        (high - low <= 2.0 * WIDEST * all.host_ns as f64).then_some(Part {
            amount: usual * estimate.share + rest.amount,
            low,
            high,
            resolved: true,
            ..all
        })
    }
}

/// The shares of lists of polls, and the number of windows.
fn estimate(
    polls: &[Poll],
    usual: &Usual,
    windows: &Windows,
    lists: &[&[usize]],
) -> Result<(usize, Vec<Estimate>), Refused> {
    let all = windows.all().iter();
    let kept: Vec<&Window> = all
        .filter(|window| usual.has(window.start_ns, window.end_ns))
        .collect();
    if kept.len() < FEWEST_WINDOWS {
        return Err(Refused::Few(kept.len()));
    }
    let found = positions(polls, usual.step_ns);
    let mean = |list: &[usize]| -> ByPosition {
        let sum = |at: usize| list.iter().map(|&poll| found.polls[poll][at]).sum::<f64>();
        let sums: ByPosition = std::array::from_fn(sum);
        let total = sums.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        sums.map(|each| each / total)
    };
    let wanted: Vec<ByPosition> = lists.iter().map(|list| mean(list)).collect();
    let alike = alike(polls, &found);
    let rows = |shift_ns: f64| -> Vec<Row> {
        kept.iter()
            .filter_map(|window| row(&found, window, shift_ns))
            .collect()
    };
    let clock_ns = windows.clock_ns() as f64;
    // Of a long recording the first windows alone are placed.
    let all = rows(0.0);
    if all.len() < FEWEST_WINDOWS {
        return Err(Refused::Few(all.len()));
    }
    let (first, second) = all.split_at(all.len() / 2);
    let fitted = fit(&all, &wanted, &alike);
    let halves = [first, second].map(|rows| fit(rows, &wanted, &alike));
    let shifted = (clock_ns > 0.0)
        .then(|| [-clock_ns, clock_ns].map(|shift_ns| fit(&rows(shift_ns), &wanted, &alike)));
    let mut estimates = Vec::new();
    for (at, &(share, deviation)) in fitted.iter().enumerate() {
        let [(a, a_deviation), (b, b_deviation)] = [halves[0][at], halves[1][at]];
        let usual = DEVIATIONS * a_deviation.hypot(b_deviation);
        if (a - b).abs() > usual.max(DRIFT) {
            return Err(Refused::Drift);
        }
        let clock = shifted
            .as_ref()
            .map_or(0.0, |[early, late]| (early[at].0 - late[at].0) / 2.0);
        let half = (DEVIATIONS * deviation).hypot(OF_MODEL).hypot(clock);
        let share = share.clamp(0.0, 1.0);
        estimates.push(Estimate {
            share,
            half: half.max((a - b).abs() / 2.0),
        });
    }
    Ok((all.len(), estimates))
}

/// Probabilities that two positions have the same phase.
fn alike(polls: &[Poll], found: &Positions) -> Vec<f64> {
    let mut shown = [[0.0; LABELS]; POSITIONS];
    for (poll, positions) in polls.iter().zip(&found.polls) {
        for (row, part) in shown.iter_mut().zip(positions) {
            row[poll.label] += part;
        }
    }
    let shown = shown.map(|row| {
        let total = row.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        row.map(|each| each / total)
    });
    let same = |a: usize, b: usize| {
        (0..LABELS)
            .map(|label| shown[a][label] * shown[b][label])
            .sum()
    };
    (0..POSITIONS * POSITIONS)
        .map(|pair| same(pair / POSITIONS, pair % POSITIONS))
        .collect()
}

fn row(found: &Positions, window: &Window, shift_ns: f64) -> Option<Row> {
    let cell = |at_ns: u64| (at_ns as f64 + shift_ns - found.start_ns) / found.cell_ns;
    let (from, to) = (cell(window.start_ns), cell(window.end_ns));
    if from < 0.0 || to > found.moments.len() as f64 {
        return None;
    }
    let mut features = [0.0; FEATURES];
    for number in from as usize..(to.ceil() as usize).min(found.moments.len()) {
        let moment = &found.moments[number];
        let part = ((number + 1) as f64).min(to) - (number as f64).max(from);
        for at in 0..POSITIONS {
            features[at] += part * f64::from(moment.at[at]);
            features[POSITIONS + at] += part * f64::from(moment.left[at]) * found.dwell[at];
        }
    }
    let mut features = features.map(|each| each / (to - from));
    features[FEATURES - 1] = 1.0;
    Some(Row {
        features,
        idle: window.amount / window.length_ns() as f64,
    })
}

#[cfg(test)]
#[path = "regression_tests.rs"]
mod tests;
