//! Which code raised a process's memory: changes between samples of its training thread, by line,
//! operator and phase.
//!
//! Memory is read after each sample ([`TrackKind::SampledAnonymous`]), and in each tick what
//! torch's allocator has given to tensors of devices ([`TrackKind::SampledAllocated`]). What
//! changed between two readings was changed by the code of the sample before, of the sample after,
//! or by code between them that no sample shows. It is shared out between the samples by the rate
//! at which each key raises memory while it runs, and these rates are what makes the changes most
//! likely (expectation maximization, Richardson 1972, Lucy 1974): a line that runs through many
//! windows without a change gets little of one that it is next to. How much does not depend on that
//! is known: windows that begin and end in the same line.

use super::memory_growth::Rate;
use super::of_thread;
use super::progress::{counting, timed_steps};
use super::summary::ProcessSummary;
use super::tracks::of_pid;
use crate::model::category::Phase;
use crate::model::facts::Line;
use crate::model::held::KeptHeld;
use crate::model::ids::{NameId, ProcessId, StackId, ThreadId};
use crate::model::profile::{Profile, ProfileSample};
use crate::model::progress::facts;
use crate::model::sample::ThreadState;
use crate::model::track::{TrackKind, TrackPoint};
use rustc_hash::FxHashMap;
use std::hash::Hash;

/// Rounds of the estimate; it hardly changes after some tens.
const ROUNDS: usize = 50;
/// Parts of the time whose means differ as the interval says.
const PARTS: usize = 20;
/// Two-sided 95 % quantile of Student's t with [`PARTS`] - 1 degrees of freedom.
const STUDENT: f64 = 2.093;
/// A thread that sleeps raises no memory, but threads that it waits for may: its sleep counts as
/// this part of the same time on a CPU.
const ASLEEP: f64 = 0.01;
/// The same of device memory: in `backward()` the thread sleeps while autograd's threads allocate.
const ASLEEP_ON_DEVICES: f64 = 1.0;

/// What one line, operator or phase raised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Raised<K> {
    /// `None`: none, or code that no sample shows: what a thread did before it fell asleep again.
    pub key: Option<K>,
    /// Sum of all rises, bytes.
    pub raised: f64,
    /// The part of it that came between two samples with this key.
    pub certain: f64,
    /// All rises next to a sample with this key.
    pub possible: f64,
    /// Sum of all falls, bytes.
    pub fell: f64,
    /// Rises each step, with the interval of their mean; `None` where no step was timed.
    pub per_step: Option<Rate>,
}

/// The highest reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    pub bytes: u64,
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Number in the recording of the step that it was in; `None` before the first and where none
    /// was counted.
    pub step: Option<u64>,
    /// Stack and phase of the sample before the reading.
    pub stack: Option<StackId>,
    pub phase: Phase,
}

/// What the code of one process did to its memory: anonymous memory, which is neither of files nor
/// shared memory, or device memory of tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessMemory {
    pub process: ProcessId,
    pub thread: ThreadId,
    /// The time that the sums are of: the timed steps, else all after start-up; CLOCK_MONOTONIC.
    pub from_ns: u64,
    pub to_ns: u64,
    /// Steps in this time; 0 if none was timed.
    pub steps: u64,
    /// Memory at its start and end, bytes.
    pub first: u64,
    pub last: u64,
    /// Sums of all rises and falls between readings, bytes.
    pub raised: f64,
    pub fell: f64,
    /// Of the complete recording.
    pub peak: Peak,
    /// By the line that [`crate::model::facts::StackFacts::line`] names.
    pub lines: Vec<Raised<Line>>,
    /// By the innermost operator.
    pub operators: Vec<Raised<NameId>>,
    pub phases: Vec<Raised<Phase>>,
}

impl ProcessMemory {
    /// Net growth, bytes a step.
    pub fn net_per_step(&self) -> Option<f64> {
        let net = self.last as f64 - self.first as f64;
        (self.steps > 0).then(|| net / self.steps as f64)
    }
}

/// What the modules and optimizers of a process held, at each reading that is kept.
pub(super) fn kept_held(
    profile: &Profile,
    process: ProcessId,
) -> impl DoubleEndedIterator<Item = KeptHeld> {
    let conditions = profile.sideband.conditions.iter();
    let own = conditions.filter(move |each| each.process == process && each.name == facts::HELD);
    own.filter_map(|each| KeptHeld::parse(&each.value))
}

/// The last of [`kept_held`] of the time that is reported; `None` where there is none.
pub fn held(profile: &Profile, process: ProcessId) -> Option<KeptHeld> {
    let mut kept = kept_held(profile, process).rev();
    kept.find(|each| profile.whole_ns.is_none() || each.time_ns <= profile.end_ns)
}

/// All processes whose memory of this kind was read with samples, in the order of `processes`:
/// [`TrackKind::SampledAnonymous`] or [`TrackKind::SampledAllocated`].
pub fn all(profile: &Profile, processes: &[ProcessSummary], kind: TrackKind) -> Vec<ProcessMemory> {
    let of = |summary: &ProcessSummary| {
        let process = profile.process(summary.process)?;
        let readings = of_pid(profile, kind, process.info.pid)?;
        let thread = summary.training_thread?;
        let asleep = match kind {
            TrackKind::SampledAllocated => ASLEEP_ON_DEVICES,
            _ => ASLEEP,
        };
        of_process(profile, summary, thread, readings, asleep)
    };
    processes.iter().filter_map(of).collect()
}

fn of_process(
    profile: &Profile,
    summary: &ProcessSummary,
    thread: ThreadId,
    readings: &[TrackPoint],
    asleep: f64,
) -> Option<ProcessMemory> {
    let samples = of_thread(profile, thread);
    let begin_ns = samples.first()?.start_ns;
    let steps = timed_steps(profile, summary.process);
    let timed = |(_, why): &&(_, Option<_>)| why.is_none();
    let range = steps
        .iter()
        .find(timed)
        .zip(steps.iter().rev().find(timed))
        .map(|(first, last)| (first.0.start_ns, last.0.end_ns));
    let (from_ns, to_ns) = range.unwrap_or((begin_ns + summary.startup_ns, profile.end_ns));
    let within = steps
        .iter()
        .filter(|(step, _)| step.start_ns >= from_ns && step.end_ns <= to_ns);
    let steps_within = match range {
        Some(_) => within.count() as u64,
        None => 0,
    };
    let level_at = |time_ns: u64| {
        let after = readings.partition_point(|reading| reading.end_ns <= time_ns);
        readings.get(after.saturating_sub(1))
    };
    let windows = windows(&samples, readings, (from_ns, to_ns), asleep);
    let sum = |sign: f64| -> f64 {
        let changes = windows.iter().map(|window| window.change * sign);
        changes
            .filter(|change| *change > 0.0)
            .fold(0.0, |sum, each| sum + each)
    };
    let facts = &profile.facts;
    let estimate = Estimate {
        samples: &samples,
        windows: &windows,
        span: (from_ns, to_ns),
        steps: steps_within,
        asleep,
    };
    let operator = |sample: &ProfileSample| facts.operators(sample.stack).next().map(|op| op.name);
    Some(ProcessMemory {
        process: summary.process,
        thread,
        from_ns,
        to_ns,
        steps: steps_within,
        first: level_at(from_ns)?.value,
        last: level_at(to_ns)?.value,
        raised: sum(1.0),
        fell: sum(-1.0),
        peak: peak(profile, summary.process, &samples, readings)?,
        lines: estimate.by(|sample| facts.line(sample.stack)),
        operators: estimate.by(operator),
        phases: estimate.by(|sample| Some(sample.phase)),
    })
}

fn peak(
    profile: &Profile,
    process: ProcessId,
    samples: &[&ProfileSample],
    readings: &[TrackPoint],
) -> Option<Peak> {
    let highest = readings.iter().max_by_key(|reading| reading.value)?;
    let steps = counting(profile, process, samples).map(|counting| counting.steps);
    let mut steps = steps.unwrap_or_default().into_iter();
    // Of a part of a recording, what it begins with was read before.
    let time_ns = highest.end_ns.max(profile.start_ns);
    let step = steps.find(|step| (step.start_ns..step.end_ns).contains(&time_ns));
    let sample = sample_at(samples, time_ns).and_then(|at| samples.get(at));
    let sample = sample.copied().copied().unwrap_or_default();
    Some(Peak {
        bytes: highest.value,
        time_ns,
        step: step.map(|step| step.number),
        stack: sample.stack,
        phase: sample.phase,
    })
}

/// Index of the last sample that begins at a time or before.
fn sample_at(samples: &[&ProfileSample], time_ns: u64) -> Option<usize> {
    let after = samples.partition_point(|sample| sample.start_ns <= time_ns);
    after.checked_sub(1)
}

/// A change of memory, and the samples between whose readings it came.
struct Window {
    end_ns: u64,
    /// Bytes; below 0 for a fall.
    change: f64,
    /// Index of a sample, and its time in the window.
    parts: Vec<(usize, Time)>,
}

fn windows(
    samples: &[&ProfileSample],
    readings: &[TrackPoint],
    (from_ns, to_ns): (u64, u64),
    asleep: f64,
) -> Vec<Window> {
    let pairs = readings.iter().zip(readings.iter().skip(1));
    let within = pairs.filter(|(_, now)| now.end_ns > from_ns && now.end_ns <= to_ns);
    within
        .filter_map(|(before, now)| {
            let first = sample_at(samples, now.start_ns).unwrap_or(0);
            let last = sample_at(samples, now.end_ns)?;
            let parts = samples.get(first..=last)?.iter().zip(first..);
            Some(Window {
                end_ns: now.end_ns,
                change: now.value as f64 - before.value as f64,
                parts: parts
                    .map(|(sample, at)| (at, time_of(sample, (now.start_ns, now.end_ns), asleep)))
                    .collect(),
            })
        })
        .collect()
}

/// The time of a sample within two times, ns.
#[derive(Clone, Copy)]
struct Time {
    /// In which its code could raise memory: on a CPU, and a part of its sleep.
    own: f64,
    /// In which code ran that the sample does not show: before it fell asleep.
    unseen: f64,
}

fn time_of(sample: &ProfileSample, (from_ns, to_ns): (u64, u64), asleep: f64) -> Time {
    let all = sample.weight_ns.max(1) as f64;
    let end_ns = sample.start_ns.saturating_add(sample.weight_ns).min(to_ns);
    // The sample's own moment is in the window, wherever its interval is.
    let within = end_ns.saturating_sub(sample.start_ns.max(from_ns)).max(1) as f64;
    let awake = within * (sample.awake_ns as f64 / all).min(1.0);
    match sample.state {
        ThreadState::Running => Time {
            own: awake + asleep * within,
            unseen: 0.0,
        },
        _ => Time {
            own: asleep * within,
            unseen: awake,
        },
    }
}

/// Index of the key of code that no sample shows.
const UNSEEN: usize = 0;

struct Estimate<'a> {
    samples: &'a [&'a ProfileSample],
    windows: &'a [Window],
    span: (u64, u64),
    steps: u64,
    /// What a sleep counts as.
    asleep: f64,
}

impl Estimate<'_> {
    /// Rises and falls by a key of samples, the largest rise first.
    fn by<K: Copy + Eq + Hash + Ord>(
        &self,
        key_of: impl Fn(&ProfileSample) -> Option<K>,
    ) -> Vec<Raised<K>> {
        let mut ids: FxHashMap<Option<K>, usize> = FxHashMap::default();
        ids.insert(None, UNSEEN);
        let mut keys = vec![None];
        let of_samples: Vec<usize> = self
            .samples
            .iter()
            .map(|sample| {
                *ids.entry(key_of(sample)).or_insert_with_key(|key| {
                    keys.push(*key);
                    keys.len() - 1
                })
            })
            .collect();
        let mut time = vec![0.0; keys.len()];
        for (sample, key) in self.samples.iter().zip(&of_samples) {
            let end_ns = sample.start_ns.saturating_add(sample.weight_ns);
            if end_ns > self.span.0 && sample.start_ns < self.span.1 {
                let of_sample = time_of(sample, self.span, self.asleep);
                time[*key] += of_sample.own;
                time[UNSEEN] += of_sample.unseen;
            }
        }
        let rises = self.changes(&of_samples, 1.0);
        let falls = self.changes(&of_samples, -1.0);
        let raised = shared_out(&rises, &time);
        let fell = shared_out(&falls, &time);
        let mut parts = vec![[0.0; PARTS]; keys.len()];
        let mut rows: Vec<Raised<K>> = keys
            .into_iter()
            .map(|key| Raised {
                key,
                raised: 0.0,
                certain: 0.0,
                possible: 0.0,
                fell: 0.0,
                per_step: None,
            })
            .collect();
        for (change, shares) in rises.iter().zip(&raised) {
            for &(key, bytes) in shares {
                rows[key].raised += bytes;
                rows[key].possible += change.bytes;
                rows[key].certain += match shares.len() {
                    1 => change.bytes,
                    _ => 0.0,
                };
                parts[key][change.part] += bytes;
            }
        }
        for &(key, bytes) in fell.iter().flatten() {
            rows[key].fell += bytes;
        }
        for (row, parts) in rows.iter_mut().zip(&parts) {
            row.per_step = (self.steps > 0).then(|| per_step(parts, self.steps));
        }
        rows.retain(|row| row.raised > 0.0 || row.fell > 0.0);
        rows.sort_by(|a, b| {
            b.raised
                .total_cmp(&a.raised)
                .then(b.fell.total_cmp(&a.fell))
                .then(a.key.cmp(&b.key))
        });
        rows
    }

    fn changes(&self, keys: &[usize], sign: f64) -> Vec<Change> {
        let length_ns = self.span.1.saturating_sub(self.span.0).max(1);
        let of_sign = self.windows.iter().filter(|each| each.change * sign > 0.0);
        of_sign
            .map(|window| {
                let mut weights: Vec<(usize, f64)> = Vec::new();
                let mut add =
                    |key: usize, ns: f64| match weights.iter_mut().find(|known| known.0 == key) {
                        Some(known) => known.1 += ns,
                        None if ns > 0.0 => weights.push((key, ns)),
                        None => {}
                    };
                for &(sample, time) in &window.parts {
                    add(keys[sample], time.own);
                    add(UNSEEN, time.unseen);
                }
                let since_ns = window.end_ns.saturating_sub(self.span.0);
                let part = u128::from(since_ns) * PARTS as u128 / u128::from(length_ns);
                Change {
                    bytes: window.change * sign,
                    part: (part as usize).min(PARTS - 1),
                    weights,
                }
            })
            .collect()
    }
}

/// A rise or a fall.
struct Change {
    bytes: f64,
    /// Of [`PARTS`] parts of the time.
    part: usize,
    /// Keys that may have caused it, each with its time in the window.
    weights: Vec<(usize, f64)>,
}

impl Change {
    /// Its bytes by key, where the keys raise memory at these rates.
    fn shares(&self, rates: &[f64]) -> impl Iterator<Item = (usize, f64)> {
        let likely = |(key, weight): &(usize, f64)| rates[*key] * weight;
        let all: f64 = self.weights.iter().map(likely).sum();
        self.weights.iter().map(move |each| match all > 0.0 {
            true => (each.0, self.bytes * likely(each) / all),
            false => (each.0, self.bytes / self.weights.len() as f64),
        })
    }
}

/// Each change shared out between its keys. `time`: of each key in all.
fn shared_out(changes: &[Change], time: &[f64]) -> Vec<Vec<(usize, f64)>> {
    let mut rates = vec![1.0; time.len()];
    let mut next = vec![0.0; time.len()];
    // The last round's shares are the result.
    for _ in 1..ROUNDS {
        next.fill(0.0);
        for change in changes {
            for (key, bytes) in change.shares(&rates) {
                next[key] += bytes / time[key].max(1.0);
            }
        }
        std::mem::swap(&mut rates, &mut next);
    }
    changes
        .iter()
        .map(|change| change.shares(&rates).collect())
        .collect()
}

/// Mean and interval of sums over equal parts of the time, for each of `steps`.
fn per_step(parts: &[f64; PARTS], steps: u64) -> Rate {
    let count = PARTS as f64;
    let mean = parts.iter().sum::<f64>() / count;
    let squares: f64 = parts.iter().map(|part| (part - mean).powi(2)).sum();
    let error = STUDENT * (squares / (count - 1.0) / count).sqrt();
    let steps = steps as f64 / count;
    Rate {
        value: mean / steps,
        low: (mean - error).max(0.0) / steps,
        high: (mean + error) / steps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::TrackId;

    const TICK_NS: u64 = 10_000_000;

    /// A sample for each phase, and the memory that was read in the middle of its tick.
    fn run(ticks: &[(Phase, ThreadState, u64)]) -> Vec<Raised<Phase>> {
        let samples: Vec<ProfileSample> = ticks
            .iter()
            .zip(0..)
            .map(|(&(phase, state, _), at)| ProfileSample {
                phase,
                state,
                start_ns: at * TICK_NS,
                weight_ns: TICK_NS,
                awake_ns: TICK_NS,
                ..ProfileSample::default()
            })
            .collect();
        let samples: Vec<&ProfileSample> = samples.iter().collect();
        let mut readings = Vec::new();
        let mut read_ns = 0;
        for (&(.., value), at) in ticks.iter().zip(0..) {
            let now_ns = at * TICK_NS + TICK_NS / 2;
            let is_new = readings
                .last()
                .is_none_or(|last: &TrackPoint| last.value != value);
            if is_new {
                readings.push(TrackPoint {
                    track: TrackId(0),
                    start_ns: read_ns,
                    end_ns: now_ns,
                    value,
                });
            }
            read_ns = now_ns;
        }
        let span = (0, ticks.len() as u64 * TICK_NS);
        let windows = windows(&samples, &readings, span, ASLEEP);
        Estimate {
            samples: &samples,
            windows: &windows,
            span,
            asleep: ASLEEP,
            steps: 10,
        }
        .by(|sample| Some(sample.phase))
    }

    fn of(rows: &[Raised<Phase>], phase: Option<Phase>) -> (f64, f64) {
        let row = rows.iter().find(|row| row.key == phase);
        row.map_or((0.0, 0.0), |row| (row.raised, row.fell))
    }

    /// Ten steps: a long backward, the optimizer in one tick that allocates, and input.
    #[test]
    fn a_short_line_that_allocates_is_told_from_a_long_one_beside_it() {
        let mut ticks = Vec::new();
        for step in 0..10_u64 {
            for _ in 0..20 {
                ticks.push((Phase::Backward, ThreadState::Running, 1000 * step));
            }
            // In every other step the reading comes before the allocation.
            let now = 1000 * (step + (step % 2));
            ticks.push((Phase::Optimizer, ThreadState::Running, now));
            ticks.push((Phase::Input, ThreadState::Running, 1000 * (step + 1)));
        }
        let rows = run(&ticks);
        assert_eq!(rows[0].key, Some(Phase::Optimizer), "{rows:?}");
        let all: f64 = rows.iter().map(|row| row.raised).sum();
        assert!((all - 10_000.0).abs() < 1.0, "{rows:?}");
        assert!(rows[0].raised > 0.85 * all, "{rows:?}");
        let rate = rows[0].per_step.unwrap();
        assert!(rate.low < rate.value && rate.value < rate.high, "{rate:?}");
    }

    #[test]
    fn what_rises_and_falls_within_a_step_is_both() {
        let mut ticks = Vec::new();
        for _ in 0..10 {
            for level in [0, 100, 200, 300] {
                ticks.push((Phase::Forward, ThreadState::Running, level));
            }
            for level in [300, 200, 100, 0] {
                ticks.push((Phase::Backward, ThreadState::Running, level));
            }
        }
        let rows = run(&ticks);
        let (raised, _) = of(&rows, Some(Phase::Forward));
        let (_, fell) = of(&rows, Some(Phase::Backward));
        assert!(raised > 2900.0 && fell > 2900.0, "{rows:?}");
        let forward = rows.iter().find(|row| row.key == Some(Phase::Forward));
        assert!(forward.unwrap().certain > 2900.0, "{rows:?}");
    }

    /// A thread that allocates between two sleeps, where no sample finds it.
    #[test]
    fn a_sleep_raises_nothing() {
        let ticks: Vec<_> = (0..100)
            .map(|at| (Phase::User, ThreadState::Sleeping, at * 1000))
            .collect();
        let rows = run(&ticks);
        let (unseen, _) = of(&rows, None);
        let (asleep, _) = of(&rows, Some(Phase::User));
        assert!(unseen > 20.0 * asleep, "{rows:?}");
        let row = rows.iter().find(|row| row.key == Some(Phase::User));
        assert!(row.is_none_or(|row| row.certain == 0.0), "{rows:?}");
    }
}
